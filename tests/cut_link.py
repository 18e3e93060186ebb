"""A link that a test can cut and slow down: a TCP proxy on loopback."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

PIECE = 16_384


class CutLink:
    """From a port of its own to a port of this machine.

    Attributes:
        port: where to connect. silent: nothing is carried, and connections stay open, as when a cable is out.
        rate: bytes per second each way; 0: as fast as can be. delay_s: before each piece.
    """

    def __init__(self, to: int) -> None:
        self.to, self.silent, self.rate, self.delay_s = to, False, 0.0, 0.0
        self.refuses = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self) -> None:
        """Break what is connected, and let nobody connect."""
        self.refuses = True
        self._hang_up()

    def mend(self) -> None:
        """All is well again. What was silent is broken: its bytes are lost."""
        was_silent, self.silent, self.refuses = self.silent, False, False
        self.rate, self.delay_s = 0.0, 0.0
        if was_silent:
            self._hang_up()

    def close(self) -> None:
        self.refuses = True
        # A listener that is only closed goes on for who waits at it: that one would take the next connection.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._ends |= {near, far}
            if self.refuses:  # since just now
                self._hang_up()
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(PIECE):
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self.rate:
                    time.sleep(len(data) / self.rate)
                while self.silent and one.fileno() >= 0:
                    time.sleep(0.01)
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
