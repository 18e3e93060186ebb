"""The API over the scheduler of tests/fake_service.py, served in a thread at a port of loopback, with its home."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_service import FakeService
from gpuloom.server.run import Listening, serve

TOKEN = "token-of-a-test-0123456789"


class Api:
    """A served FakeService. `start` again after `stop`: a scheduler that was restarted, at another port."""

    def __init__(self, home: Path, service: FakeService) -> None:
        self.home, self.service = home, service
        self._thread: threading.Thread | None = None
        self._listening: Listening | None = None
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "token").write_text(TOKEN + "\n")
        (home / "token").chmod(0o600)

    @property
    def url(self) -> str:
        assert self._listening is not None
        return self._listening.url

    def start(self) -> None:
        ready = threading.Event()

        def on_ready(listening: Listening) -> None:
            self._listening = listening
            said = {"pid": os.getpid(), "url": listening.url, "version": "test", "started_s": 0.0}
            (self.home / "server.json").write_text(json.dumps(said))
            ready.set()

        arguments: dict[str, Any] = {"token": TOKEN, "on_ready": on_ready}
        self._thread = threading.Thread(target=lambda: serve(self.service, **arguments), daemon=True)
        self._thread.start()
        assert ready.wait(30)

    def stop(self) -> None:
        assert self._listening is not None
        assert self._thread is not None
        self._listening.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def serving(home: Path, *, gpus: int = 4) -> Iterator[Api]:
    """A scheduler in this home."""
    api = Api(home, FakeService(home, gpus=gpus))
    api.start()
    try:
        yield api
    finally:
        api.stop()
