"""One end of a stream of messages that goes on over any number of connections. Pure: no clock, no I/O, no threads.

Each side numbers its own messages from 1. What was sent is kept until the other side has dealt with it (*ack*), and
sent again on the next connection, from the number after the last that has arrived there. So each message is dealt with
once and in order, for as long as both ends remember the session.

Memory: only `window` messages are numbered and not yet acknowledged. What comes after waits without a number; of those
with the same key only the newest waits, in the oldest one's place (samples, states). Messages without key all wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

WINDOW = 64
"""Messages under way."""
ACK_AFTER = 16
"""Messages dealt with that are acknowledged at once, and not with the next frame that is sent anyhow."""

Data = Mapping[str, Any]


class StreamError(ValueError):
    """A frame that can't follow those before it."""


class Stream:
    """See the module. received: the highest number that has come; handled: … that has been dealt with."""

    def __init__(self, *, window: int = WINDOW) -> None:
        self._window = window
        self._waiting: OrderedDict[object, Data] = OrderedDict()
        self._keys = 0
        self._under_way: deque[tuple[int, Data]] = deque()
        self._last = 0
        """Number of the last message that got one."""
        self._sent = 0
        """… that was sent on this connection."""
        self.received = 0
        self.handled = 0
        self._told = 0

    def __len__(self) -> int:
        """Messages that are kept."""
        return len(self._waiting) + len(self._under_way)

    # -- what is sent -------------------------------------------------------------------------------------------------

    def put(self, message: Data, key: str = "") -> None:
        """Send this, now or later. key: it replaces what waits under this key."""
        if key:
            self._waiting[key] = message
        else:
            self._keys += 1
            self._waiting[self._keys] = message

    def frames(self) -> list[dict[str, Any]]:
        """What is to be sent now on this connection, in order."""
        while self._waiting and len(self._under_way) < self._window:
            self._last += 1
            self._under_way.append((self._last, self._waiting.popitem(last=False)[1]))
        found = [
            {"n": number, "m": message, "ack": self.handled}
            for number, message in self._under_way
            if number > self._sent
        ]
        if found:
            self._sent, self._told = self._last, self.handled
        return found

    def acknowledged(self, number: int) -> None:
        """The other side has dealt with all up to this number. Raises StreamError."""
        if number > self._last:
            raise StreamError(f"message {number} is acknowledged, and the last one was {self._last}")
        while self._under_way and self._under_way[0][0] <= number:
            self._under_way.popleft()

    def connected(self, received: int) -> None:
        """There is a new connection; all up to this number has arrived there. Raises StreamError."""
        if received > self._last or (self._under_way and received < self._under_way[0][0] - 1):
            raise StreamError(f"{received} messages have arrived, and the last one was {self._last}")
        self._sent, self._told = received, 0

    # -- what comes ---------------------------------------------------------------------------------------------------

    def take(self, number: int) -> bool:
        """A message with this number has come. Whether it is new; else it is to be passed over. Raises StreamError."""
        if number > self.received + 1:
            raise StreamError(f"message {number} came after message {self.received}")
        if number <= self.received:
            return False
        self.received = number
        return True

    def deal(self, number: int) -> None:
        """It, and all before it, has been dealt with."""
        self.handled = max(self.handled, min(number, self.received))

    def ack(self, *, always: bool = False) -> dict[str, Any] | None:
        """A frame that acknowledges, where that is due; always: in any case."""
        if not always and self.handled - self._told < ACK_AFTER:
            return None
        self._told = self.handled
        return {"ack": self.handled}
