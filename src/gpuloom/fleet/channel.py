"""One end of a link, over any number of connections: numbered messages both ways, and questions for the moment."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from gpuloom.core.waiting import one_wait_s
from gpuloom.executors.port import ExecutorError
from gpuloom.fleet.stream import Data, Stream, StreamError

ANSWER_S = 10.0


class Connection(Protocol):
    """Carries text frames to the other side."""

    def send(self, text: str) -> None:
        """Never waits; does nothing once it is closed."""
        ...

    def close(self, why: str = "") -> None: ...


class AnswerError(ExecutorError):
    """The other side could not answer a question. kind: what of, as it says."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


def encoded(frame: Mapping[str, Any]) -> str:
    """A frame as text."""
    return json.dumps(frame, separators=(",", ":"))


class Channel:
    """See the module. Safe to use from any thread; nothing but `ask` waits. peer: whom it leads to, for messages."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.session = ""
        self._lock = threading.Lock()
        self._stream = Stream()
        self._connection: Connection | None = None
        self._questions: dict[int, Future[Any]] = {}
        self._asked = 0

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def received(self) -> int:
        return self._stream.received

    def __len__(self) -> int:
        """Messages that are kept for the other side."""
        return len(self._stream)

    def is_on(self, connection: Connection) -> bool:
        """Whether this is the connection in use."""
        return self._connection is connection

    def begin(self, session: str = "") -> None:
        """Begin anew, as `session` (else one of its own): what is kept for the other side is dropped."""
        with self._lock:
            self._stream = Stream()
            self.session = session or secrets.token_hex(8)

    def attach(self, connection: Connection, received: int) -> None:
        """Go on over this connection; all up to this number has arrived there. Raises StreamError."""
        with self._lock:
            self._stream.connected(received)
            self._connection = connection
            self._flush()

    def detach(self, connection: Connection | None = None) -> bool:
        """This connection (None: whichever) is gone: questions get no answers. Whether it was the one in use."""
        with self._lock:
            if self._connection is None or (connection is not None and connection is not self._connection):
                return False
            gone, self._connection = self._connection, None
            questions, self._questions = self._questions, {}
        for question in questions.values():
            question.set_exception(ExecutorError(f"the link to {self.peer} broke before it answered"))
        gone.close()
        return True

    def put(self, message: Data, key: str = "") -> None:
        """Send a message, now or once there is a connection. key: see `Stream.put`."""
        with self._lock:
            self._stream.put(message, key)
            self._flush()

    def say(self, frame: Mapping[str, Any]) -> None:
        """Send a frame for the moment, with what is to be acknowledged; nobody gets it where the link is cut."""
        with self._lock:
            if self._connection is not None:
                self._connection.send(encoded({**frame, **(self._stream.ack(always=True) or {})}))

    def heard(self, connection: Connection, frame: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A frame has come. The message in it, if it is new: to be dealt with, and then told (`dealt`).

        Raises:
            StreamError: the two sides don't agree on what was said.
        """
        with self._lock:
            if self._connection is not connection:
                return None
            ack, number = frame.get("ack"), frame.get("n")
            if isinstance(ack, int):
                self._stream.acknowledged(ack)
                self._flush()
            if not isinstance(number, int) or not self._stream.take(number):
                return None
            message = frame.get("m")
            if not isinstance(message, dict):
                raise StreamError(f"message {number} is none")
            return message

    def dealt(self, number: int) -> None:
        """The message of this number has been dealt with."""
        with self._lock:
            self._stream.deal(number)
            if self._connection is not None and (frame := self._stream.ack()) is not None:
                self._connection.send(encoded(frame))

    def _flush(self) -> None:
        if self._connection is not None:
            for frame in self._stream.frames():
                self._connection.send(encoded(frame))

    # -- questions ----------------------------------------------------------------------------------------------------

    def ask(self, what: str, patience_s: float = ANSWER_S, **arguments: Any) -> Any:
        """Ask, and wait for the answer.

        Raises:
            ExecutorError: the link is cut, or there is no answer in time. AnswerError: the other side says why not.
        """
        answer: Future[Any] = Future()
        with self._lock:
            if self._connection is None:
                raise ExecutorError(f"the link to {self.peer} is cut: it can't be asked now")
            self._asked += 1
            number = self._asked
            self._questions[number] = answer
            self._connection.send(encoded({"ask": number, "what": what, "with": arguments}))
        try:
            return answer.result(one_wait_s(patience_s))
        except TimeoutError:
            raise ExecutorError(f"{self.peer} does not answer within {patience_s:g} s") from None
        finally:
            with self._lock:
                self._questions.pop(number, None)

    def replied(self, frame: Mapping[str, Any]) -> None:
        """An answer has come."""
        number = frame["reply"]
        with self._lock:
            question = self._questions.pop(number, None) if isinstance(number, int) else None
        if question is None:
            return
        if "error" in frame:
            question.set_exception(AnswerError(str(frame["error"]), str(frame.get("kind", ""))))
        else:
            question.set_result(frame.get("data"))
