"""Server-sent events: the response, and the hub that tells all followers of new events and of logs that grow.

The scheduler's calls block, so one thread waits for events on behalf of all followers, and only while there are any.
The newest events stay in memory in the form in which they are sent; a follower that is behind them reads from the
store, page by page, as fast as its connection takes it. So nothing is kept per follower, and no event is dropped: the
connection of a client that reads nothing for STALLED_S is closed; the client resumes with the last id it saw.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpuloom.core.errors import GpuloomError
from gpuloom.core.events import Event
from gpuloom.executors.port import ExecutorError
from gpuloom.live.service import LogOf, Service
from gpuloom.live.views.jobs import event_view
from gpuloom.server.encoded import encoded
from gpuloom.server.problems import ProblemError

HEARTBEAT_S = 15.0
STALLED_S = 60.0
LOG_PERIOD_S = 0.2
"""How often logs that are followed are looked at."""
AGAIN_S = 1.0
"""How long to wait after what should not be."""
MOST_READERS = 40
"""Threads that read logs."""

KEPT = 5_000
KEPT_BYTES = 16 * 2**20
"""Events kept in memory, and bytes of them, at most (twice as many events just before they are thinned out)."""
PIECE = 64 * 2**10
"""Bytes sent at once."""

PAGE = 1_000

MOST_STREAMS = 1_000
MOST_OF_A_PEER = 500
"""Streams at once, in all, and of one user of this machine or one address elsewhere."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


def message(data: Any, *, event: str = "", id_: str = "") -> bytes:
    """One event of a stream."""
    return wire_of(encoded(data), event=event, id_=id_)


def wire_of(data: bytes, *, event: str = "", id_: str = "") -> bytes:
    """The same of data that are encoded already."""
    head = (f"event: {event}\n" if event else "") + (f"id: {id_}\n" if id_ else "")
    return head.encode() + b"data: " + data + b"\n\n"


HEARTBEAT = b": heartbeat\n\n"


@dataclass(frozen=True, slots=True)
class WireEvent:
    """An event as it goes over the wire, and what it is about (a submission: all its jobs)."""

    id: int
    type: str
    jobs: range
    wire: bytes

    def concerns(self, job: int | None, types: Collection[str] = ()) -> bool:
        """Whether it is about this job, and of one of these types. None, empty: any."""
        return (not types or self.type in types) and (job is None or job in self.jobs)


def told(event: Event) -> WireEvent:
    """An event in that form."""
    if event.type == "jobs.submitted":
        jobs = range(event.data["first"], event.data["first"] + event.data["count"])
    else:
        jobs = range(0) if event.job is None else range(event.job, event.job + 1)
    return WireEvent(event.id, event.type, jobs, message(event_view(event), event=event.type, id_=str(event.id)))


def pieces(wires: Iterable[bytes]) -> Iterator[bytes]:
    """Joined to pieces of moderate size: a connection takes each whole, and says when it takes no more."""
    piece = bytearray()
    for wire in wires:
        piece += wire
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


class EventStream(Response):
    """A stream of server-sent events. It ends when `parts` does, or when the client is gone or stalled."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, parts: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        self.hub, self.parts = hub, parts
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get("connection")
        peer = connection.peer if connection is not None else scope.get("client")
        if (full := self.hub.enter(peer)) is not None:
            await self.parts.aclose()
            await full.response()(scope, receive, send)
            return
        try:
            await self._stream(receive, send)
        finally:
            self.hub.exit(peer)

    async def _stream(self, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            outcomes = await asyncio.gather(sending, leaving, return_exceptions=True)
        if isinstance(outcomes[0], TimeoutError):
            _log.info("a client that followed a stream read nothing for %g s; its connection was closed", STALLED_S)
        elif isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _send(self, send: Send) -> None:
        async def put(message: Message) -> None:
            async with asyncio.timeout(STALLED_S):
                await send(message)

        await put({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # At once, so that the client knows that it is connected, and when to try again should the connection break.
        await put({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
        try:
            async for part in self.parts:
                await put({"type": "http.response.body", "body": part, "more_body": True})
        except GpuloomError as error:
            # The status is sent already. The client sees a stream that ended too early, and resumes.
            _log.warning("a stream ended early: %s", error)
        finally:
            await self.parts.aclose()
        await put({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Follower:
    """Somebody who waits: for events, and for logs to change. seen: what was seen last of each log that is looked at,
    by its node. changed: those that have changed since."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.seen: dict[str, dict[LogOf, object]] = {}
        self.changed: set[LogOf] = set()

    async def wait(self) -> bool:
        """Until there is news; False after HEARTBEAT_S without."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self.news.wait()
        except TimeoutError:
            return False
        self.news.clear()
        return True


class Hub:
    """See the module. All but `_watch` runs on the event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._followers: set[Follower] = set()
        self._recent: list[WireEvent] = []
        self._bytes = 0
        self._since = 0
        self._last = 0
        self._watching: threading.Event | None = None
        self._looking: dict[str, asyncio.Task[None]] = {}
        """By node, who looks at its logs: one that does not answer keeps nobody from the others'."""
        self._waiting: dict[str, set[Follower]] = {}
        """By node, for whom."""
        self._readers: CapacityLimiter | None = None
        self._streams: Counter[object] = Counter()
        self.closed = False

    def enter(self, peer: object) -> ProblemError | None:
        """Count a stream of this peer; instead, why there can't be one more."""
        for found, most, whose in (
            (self._streams[peer], MOST_OF_A_PEER, "by you"),
            (self._streams.total(), MOST_STREAMS, "in all"),
        ):
            if found >= most:
                return ProblemError(
                    "too-many-streams",
                    f"{found} streams are open {whose}, and at most {most} are allowed: close some, "
                    "or read pages instead",
                    headers={"Retry-After": "5"},
                )
        self._streams[peer] += 1
        return None

    def exit(self, peer: object) -> None:
        """A stream of this peer has ended."""
        self._streams[peer] -= 1
        if not self._streams[peer]:
            del self._streams[peer]

    async def join(self) -> tuple[Follower, int]:
        """A new follower, who is told of every event from here on, and the number of the newest. Raises StoreError."""
        loop = asyncio.get_running_loop()
        last = await run_in_threadpool(self._service.wait_for_events, 0, 0.0)
        follower = Follower()
        if self._watching is None:
            stop = threading.Event()
            # Where no thread is to be had the next follower asks again.
            threading.Thread(target=self._watch, args=(loop, stop, last), name="event hub", daemon=True).start()
            self._watching = stop
            self._recent, self._bytes, self._since, self._last = [], 0, last, last
        self._followers.add(follower)
        return follower, last

    def leave(self, follower: Follower) -> None:
        """Remove a follower. The thread ends when it next wakes and finds none."""
        self._followers.discard(follower)
        self.look_at(follower, ())

    def close(self) -> None:
        """End all streams, in order."""
        self.closed = True
        for follower in list(self._followers):
            follower.news.set()
        if self._watching is not None:
            self._watching.set()

    @property
    def last(self) -> int:
        """Number of the newest event that it knows of."""
        return self._last

    def after(self, number: int) -> Sequence[WireEvent] | None:
        """The events after this number, up to a page; None if they are no longer in memory."""
        if number < self._since:
            return None
        start = bisect_right(self._recent, number, key=lambda known: known.id)
        return self._recent[start : start + PAGE]

    # -- events -----------------------------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop, stop: threading.Event, last: int) -> None:
        while not stop.is_set():
            try:
                newest = self._service.wait_for_events(last, HEARTBEAT_S)
                if not self._followers:
                    loop.call_soon_threadsafe(self._stop_if_unused, stop)
                    stop.wait(0.1)
                    continue
                while newest > last and not stop.is_set() and (events := self._service.events(after=last, limit=PAGE)):
                    last = events[-1].id
                    found = [told(event) for event in events]
                    loop.call_soon_threadsafe(self._publish, stop, found)
            except Exception:
                if stop.is_set() or loop.is_closed():
                    return
                # Followers keep their heartbeat meanwhile, and get what they missed.
                _log.exception("events can't be read; trying again")
                stop.wait(AGAIN_S)

    def _stop_if_unused(self, stop: threading.Event) -> None:
        if not self._followers and self._watching is stop:
            self._watching = None
            stop.set()

    def _publish(self, stop: threading.Event, found: list[WireEvent]) -> None:
        if stop.is_set():
            return
        self._recent += found
        self._bytes += sum(len(one.wire) for one in found)
        self._last = found[-1].id
        if len(self._recent) > 2 * KEPT or self._bytes > KEPT_BYTES:
            self._forget()
        for follower in self._followers:
            follower.news.set()

    def _forget(self) -> None:
        """Drop the oldest events, so that it is not done again for each that comes."""
        keep, size = 0, 0
        while keep < min(KEPT, len(self._recent)) and size + len(self._recent[-keep - 1].wire) <= KEPT_BYTES // 2:
            keep, size = keep + 1, size + len(self._recent[-keep - 1].wire)
        drop = len(self._recent) - keep
        self._since, self._bytes = self._recent[drop - 1].id, size
        del self._recent[:drop]

    # -- logs -------------------------------------------------------------------------------------------------------

    async def off_loop(self, function: Callable[..., T], *arguments: object) -> T:
        """Call what may wait for files. These threads are the logs' own: the rest of the API goes on beside them."""
        if self._readers is None:
            self._readers = CapacityLimiter(MOST_READERS)
        return await to_thread.run_sync(function, *arguments, limiter=self._readers, abandon_on_cancel=True)

    def look_at(self, follower: Follower, logs: Collection[LogOf]) -> None:
        """Tell this follower when these logs grow or are rotated, and of no others. Each is told of once at first."""
        wanted: dict[str, dict[LogOf, object]] = {}
        for log in logs:
            wanted.setdefault(log.node, {})[log] = follower.seen.get(log.node, {}).get(log)
        for node in follower.seen.keys() - wanted.keys():
            self._waiting.get(node, set()).discard(follower)
        follower.seen = wanted
        for node in wanted:
            self._waiting.setdefault(node, set()).add(follower)
            if node not in self._looking:
                self._looking[node] = asyncio.get_running_loop().create_task(self._look(node))

    async def _look(self, node: str) -> None:
        """One task looks at all logs of a node that are followed, off the event loop: a disk or a link may be slow."""
        while self._waiting[node] and not self.closed:
            asked = [(follower, log) for follower in self._waiting[node] for log in follower.seen[node]]
            logs = list(dict.fromkeys(log for _, log in asked))
            try:
                found = await self.off_loop(_marks, self._service, logs)
            except Exception:
                # Followers keep their heartbeat meanwhile, and get what they missed.
                _log.exception("logs can't be looked at; trying again")
                await asyncio.sleep(AGAIN_S)
                continue
            for follower, log in asked:
                seen = follower.seen.get(node, {})
                if log in seen and seen[log] != found[log]:
                    seen[log] = found[log]
                    follower.changed.add(log)
                    follower.news.set()
            await asyncio.sleep(LOG_PERIOD_S)
        del self._looking[node], self._waiting[node]


def _marks(service: Service, logs: Sequence[LogOf]) -> Mapping[LogOf, object]:
    """What tells whether logs have changed. Of a node that can't be asked: why, and it is asked only once."""
    found: dict[LogOf, object] = {}
    try:
        for log in logs:
            found[log] = service.files_of(log).log_mark(log.run)
    except ExecutorError as error:
        found |= dict.fromkeys(logs[len(found) :], str(error))
    return found


async def follow_events(
    service: Service, hub: Hub, *, after: int | None, job: int | None, types: Sequence[str]
) -> AsyncGenerator[bytes, None]:
    """Events after a number (None: from now on) as they come, for ever."""
    follower, newest = await hub.join()
    try:
        at = newest if after is None else after
        while not hub.closed:
            found = hub.after(at)
            if found is None:
                # As of now the hub knows all up to `newest`: what is not in the page did not match.
                newest = hub.last
                page = await run_in_threadpool(service.events, after=at, job=job, types=types, limit=PAGE)
                if page:
                    for piece in pieces(told(event).wire for event in page):
                        yield piece
                    at = page[-1].id
                if len(page) < PAGE:
                    at = max(at, newest)
            elif found:
                at = found[-1].id
                for piece in pieces(one.wire for one in found if one.concerns(job, types)):
                    yield piece
            elif not await follower.wait():
                yield HEARTBEAT
    finally:
        hub.leave(follower)


def resume_id(header: str | None) -> int | None:
    """The number in a Last-Event-ID; None if it is not one of ours."""
    return int(header) if header is not None and header.isascii() and header.isdigit() else None
