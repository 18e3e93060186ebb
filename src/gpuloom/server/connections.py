"""Limits on connections: how many there may be, which are closed first, and how long a request may take to arrive.

A client that has not shown the token is a stranger. Strangers get few connections, one request each and little time.
If there are too many, the oldest connection of the peer with the most is closed. So nobody without the token can keep
its owner out.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuloom.server.peers import Peer, Users, me
from gpuloom.server.problems import HEADER_BYTES, ProblemError

MOST = 2048
"""Connections in all."""
OF_STRANGERS = 256
"""Without token, of all peers together."""
OF_A_STRANGER = 32
"""Without token, of one user of this machine or one address."""
OF_MY_USER = 512
"""Without token, of the user who runs the scheduler, or of whom it can't be said who they are on this machine."""

HEADER_S = 10.0
"""Time for the head of a request, from its first byte (the first one: from the connection)."""
BODY_S = 30.0
BODY_RATE = 16 * 1024
"""Time for a body: BODY_S, and a second more for so many bytes that have come."""
STRANGER_S = 20.0
"""Life of a connection on which nobody showed the token."""

_log = logging.getLogger(__name__)


class Connections:
    """All connections, by who is at the other end. Used on the event loop alone."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.users = Users()
        self._all: dict[Guarded, Peer] = {}
        self._strangers: OrderedDict[Peer, dict[Guarded, None]] = OrderedDict()
        self._me = me()
        self.ending = False
        """No more are taken."""

    def close(self) -> None:
        """No more of them are looked at."""
        self.users.close()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def strangers(self) -> int:
        """Connections on which nobody has shown the token."""
        return sum(map(len, self._strangers.values()))

    def enter(self, connection: Guarded, transport: asyncio.Transport) -> None:
        """Add the connection; close others if there are too many."""
        if self.ending:
            transport.abort()
            return
        peer = connection.peer = self.users.peer(transport)
        self._all[connection] = peer
        own = self._strangers.setdefault(peer, {})
        own[connection] = None
        trusted_user = peer == self._me
        unknown = peer[0] == "address" and str(peer[1]) in ("127.0.0.1", "::/64")
        if len(own) > (OF_MY_USER if trusted_user or unknown else OF_A_STRANGER):
            self._refuse_new(next(iter(own)))
        elif self._others() > OF_STRANGERS and not trusted_user and not unknown:
            self._refuse_new(self._oldest_of_most())
        if len(self._all) > self.most:
            self.make_room(besides=connection)

    def know(self, connection: Guarded) -> None:
        """The token was shown on it."""
        self._forget(connection)

    def leave(self, connection: Guarded) -> None:
        """Remove the connection."""
        self._forget(connection)
        self._all.pop(connection, None)

    def make_room(self, besides: Guarded | None = None) -> None:
        """End one: of strangers, else of our own user without token, else one that does nothing, else the newest."""
        if self._others() > (besides is not None and self._all[besides] != self._me):
            self._refuse_new(self._oldest_of_most())
            return
        mine = self._strangers.get(self._me, {})
        idle = (one for one in self._all if one is not besides and one.idle)
        victim = next((one for one in mine if one is not besides), None) or next(idle, besides)
        if victim is not None:
            self._refuse_new(victim)

    def _others(self) -> int:
        return self.strangers - len(self._strangers.get(self._me, ()))

    def _oldest_of_most(self) -> Guarded:
        peer = max((peer for peer in self._strangers if peer != self._me), key=lambda peer: len(self._strangers[peer]))
        return next(iter(self._strangers[peer]))

    def _refuse_new(self, connection: Guarded) -> None:
        _log.warning("too many connections without a token: the oldest are closed")
        self.leave(connection)
        connection.transport.abort()

    def _forget(self, connection: Guarded) -> None:
        peer = self._all.get(connection)
        if peer is not None and (group := self._strangers.get(peer)) is not None:
            group.pop(connection, None)
            if not group:
                del self._strangers[peer]


class Guarded(H11Protocol):
    """uvicorn's connection, with deadlines, and with problems for answers where it can't read a request."""

    def __init__(self, *arguments: Any, connections: Connections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._connections = connections
        self.peer: Peer = ("address", "")
        self._known = self._linked = False
        self._phase: object = h11.IDLE
        self._since = self._made = self.loop.time()
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, "connection": self}

    def token_shown(self) -> None:
        """Whoever is there may stay."""
        if not self._known:
            self._known = True
            self._connections.know(self)

    def linked(self) -> None:
        """It is a node's link from now on: no more of HTTP, and never idle."""
        self._linked = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def left(self) -> None:
        """What has taken it over (a node's link) is gone."""
        self._connections.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def idle(self) -> bool:
        """Whether it waits for a next request."""
        return self._known and not self._linked and (self.cycle is None or self.cycle.response_complete)

    # -- as the event loop and uvicorn call it ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connections.enter(self, transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._linked:  # this was its request
            return
        phase = self.conn.their_state
        if phase is not self._phase or phase not in (h11.IDLE, h11.SEND_BODY):
            self._phase, self._since, self._received = phase, self.loop.time(), 0
        self._received += len(data)
        if self._timer is None:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. Called where uvicorn catches the error that says so."""
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) == 431:
            self._refuse(ProblemError("headers-too-large", f"at most {HEADER_BYTES:,} bytes of headers are allowed"))
        else:
            self._refuse(ProblemError("bad-request", "this is not an HTTP request"))

    # -- deadlines --------------------------------------------------------------------------------------------------

    def _due(self) -> float | None:
        """When this connection has had its time, if nothing more comes."""
        found = None
        if self._phase is h11.IDLE:
            found = self._since + HEADER_S
        elif self._phase is h11.SEND_BODY:
            found = self._since + BODY_S + self._received / BODY_RATE
        if self._known:
            return found
        last = self._made + STRANGER_S
        return last if found is None else min(found, last)

    def _arm(self) -> None:
        due = self._due()
        self._timer = None if due is None else self.loop.call_at(due, self._look)

    def _look(self) -> None:
        """Something was due when the timer was set; more may have come since."""
        due, coming = self._due(), self._phase in (h11.IDLE, h11.SEND_BODY)
        if due is None or due > self.loop.time():
            self._arm()
        elif self.transport.is_closing() or not (coming and self._received):
            self.transport.abort()
        elif self._phase is h11.SEND_BODY and self._known and self.flow.read_paused:
            self._since = self.loop.time()  # we are the slow ones
            self._arm()
        else:
            self._refuse(ProblemError("too-slow", "the request did not arrive in time: nothing was done"))

    def _refuse(self, problem: ProblemError) -> None:
        """Answer what no route will see, and hang up."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or (answering and self.cycle.response_started):
            self.transport.abort()
            return
        response = problem.response()
        headers = [(name, value) for name, value in response.raw_headers if name != b"connection"]
        sent = h11.Response(status_code=response.status_code, headers=[*headers, (b"connection", b"close")])
        for event in (sent, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if answering:  # whoever reads its body learns that nobody is there any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        if self._timer is None or self._timer.when() <= self.loop.time():
            self._arm()  # the answer may not be taken
