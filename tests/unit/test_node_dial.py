"""What a node is told when what it calls does not answer as a head does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from gpuloom.fleet.token import Token
from gpuloom.node.dial import Gone, dial

TOKEN = Token("0" * 8, "A" * 43, "")


@pytest.mark.parametrize(
    ("answer", "text"),
    [(b"", "hung up before it answered"), (b"SSH-2.0-x\r\n", "is no gpuloom that takes nodes")],
)
def test_what_answers_is_no_head(answer: bytes, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answers() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(10_000)
                connection.sendall(answer)

        thread = threading.Thread(target=answers)
        thread.start()
        with pytest.raises(Gone, match=text):
            dial(f"http://127.0.0.1:{listener.getsockname()[1]}", TOKEN)
        thread.join()
