"""The head's nodes: who joins, whose link is cut, who is lost, who leaves.

Frames come from the event loop of the server (`opened`, `received`, `closed`), which answers heartbeats and passes on
answers at once. All else is done in one thread, in order, which also calls the head's scheduler (`OnNodes`).

A node is *cut* when its link is down or silent: its jobs go on, and commands wait for it. It is *lost* when lease and
margin have passed since its last heartbeat was answered: then nothing runs there any more, and its jobs may be given to
others. What is kept of nodes in a file (remembered.py) lets a head that was started anew wait for them as long.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuloom import __version__
from gpuloom.agent.health import Changes, Flag
from gpuloom.agent.sample import Sample
from gpuloom.core.errors import InputError
from gpuloom.core.job import NodeRecord
from gpuloom.executors.port import RunStatus
from gpuloom.fleet.channel import Channel, Connection, encoded
from gpuloom.fleet.codec import CodecError, of_plain, plain
from gpuloom.fleet.joined import JoinedNode
from gpuloom.fleet.lease import LONGEST_LEASE_S, HeadLease, Terms, ended_after_s, terms_of
from gpuloom.fleet.messages import (
    VERSION,
    Flagged,
    Gpus,
    Health,
    Hello,
    Joined,
    Leaving,
    Left,
    NodeSays,
    Refused,
    Sampled,
    Status,
    Welcome,
    of_node,
)
from gpuloom.fleet.remembered import NodesFile, Remembered
from gpuloom.fleet.stream import StreamError
from gpuloom.fleet.token import Tokens
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.nodes")

HOLD_S = 600.0
"""A head that ends in order lets nodes go on for so long without it: an update, a restart of its machine."""
LOOK_S = 0.5
SILENT_S = 8.0
"""A link on which nothing came for so long is cut."""
AGAIN_S = 2.0
"""A link that broke has so long to be there again before it counts as cut."""
TOKENS_S = 5.0
"""Between looks at whether the tokens of those who joined still count."""
UNSURE = (
    f"its jobs go on elsewhere once its node process was there again, or after {LONGEST_LEASE_S / 86_400:g} days; if "
    "its machine is gone for good, cancel them and submit them again"
)
GREETING_S = 10.0
"""For a node that has connected to say who it is."""


class OnNodes(Protocol):
    """What the scheduler is told, in one thread and in order. None of these may raise or wait for a node."""

    def joined(self, node: JoinedNode, record: NodeRecord, runs: Sequence[RunStatus]) -> None:
        """A node is there. A first time: `open` it. Again, with the same object: its process, or its machine, was
        started anew, or the head had been told of it before it came; its link may have been cut until now. runs: all
        that are there; they are told as statuses, too."""
        ...

    def back(self, name: str) -> None:
        """A link that was cut is there again; nothing was lost meanwhile."""
        ...

    def sampled(self, name: str, sample: Sample, changes: Changes) -> None:
        """The newest sample, or what changed since: GPUs whose state changed, flags of jobs, notes on GPUs."""
        ...

    def leaving(self, name: str, why: str) -> None:
        """It wants to leave: nothing new may start there, its jobs are to be moved away."""
        ...

    def cut(self, name: str, why: str) -> None:
        """Its link is cut; its jobs go on, and must not be given to others."""
        ...

    def stuck(self, name: str, why: str) -> None:
        """Its lease is over, and it can't come back yet, as what ran there does not end."""
        ...

    def lost(self, name: str, why: str) -> None:
        """Nothing of it runs any more: its jobs may be given to others. Its `JoinedNode` is of no use any more."""
        ...

    def left(self, name: str) -> None:
        """It has left in order. Its `JoinedNode` is of no use any more."""
        ...


@dataclass(slots=True, eq=False)
class _Node:
    """A node that may run jobs. home, process, boot_id: as it said last; '' while it is only expected. last: what it
    sampled last. heard_s, cut_s: when something came last, and since when there is no connection. expected: the
    records know it, and it has not come yet: what is said of it while it does not."""

    name: str
    lease: HeadLease
    channel: Channel
    joined: JoinedNode
    home: str = ""
    process: str = ""
    boot_id: str = ""
    token: str = ""
    connection: Connection | None = None
    met: bool = False
    heard_s: float = 0.0
    cut_s: float | None = None
    told_cut: bool = False
    expected: str = ""
    last: Sample | None = None


class Nodes:
    """See the module. path: the file with what must be known of nodes after a restart; its folder must be there.

    reserved: names that no node may have (the head's own machine).
    """

    def __init__(
        self,
        path: Path,
        tokens: Tokens,
        on: OnNodes,
        *,
        reserved: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens, self._on, self._reserved, self._now = tokens, on, reserved, monotonic
        self._file = NodesFile(path)
        self._nodes: dict[str, _Node] = {}
        self._of: dict[Connection, _Node] = {}
        self._calls: dict[Connection, tuple[float, str]] = {}
        self._given_away: set[str] = set()
        self._queue: queue.SimpleQueue[tuple[Connection, dict[str, Any]] | None] = queue.SimpleQueue()
        self._gone_names: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._looked_s = self._tokens_s = 0.0
        self._held = False
        self._ended = threading.Event()
        self._worker = Worker("nodes", self._work)

    # -- for the scheduler --------------------------------------------------------------------------------------------

    def expect(self, names: Iterable[str]) -> None:
        """These nodes were there when the head before this one ended, and may be running jobs: until they come they
        are cut; after lease and margin they are lost. Call it before `start`."""
        names = [name for name in names if name not in self._nodes]
        why = "it was not heard of since the scheduler began"
        if names and (unsure := self._file.unsure):
            why = f"{why}, and its lease is not known, as {unsure}: {UNSURE}"
            log.error("nodes that are not heard of, %s: their leases are not known, as %s", ", ".join(names), unsure)
            self._file.fear(names, LONGEST_LEASE_S)
        now = self._now()
        for name in names:
            known = self._file.of(name)
            node = self._made(name, terms_of(known.lease_s))
            node.home, node.cut_s, node.expected = known.home, now, why
            if known.hold_s:
                node.lease.not_before_s = now + ended_after_s(known.hold_s)
            self._nodes[name] = node

    def gone(self, name: str, why: str) -> None:
        """Who lends us the node says that nothing runs there any more: it is lost now, whatever its lease. From any
        thread."""
        self._gone_names.put((name, why))
        self._queue.put(None)

    def start(self) -> None:
        """Begin to call."""
        self._worker.start()

    def ending(self) -> None:
        """The head ends in order: jobs go on for HOLD_S on the nodes that can be told now, else for their leases.

        The next head waits for all of them as long. That is written down first, so that no node goes on for longer.
        """
        if self._held:
            return
        self._held = True
        met = [node for node in list(self._nodes.values()) if node.met]
        if not met or not self._file.hold([node.name for node in met], HOLD_S):
            return
        now = self._now()
        for node in met:
            with self._lock:
                over = node.lease.over(now)
            if not over:
                node.channel.say({"hold": HOLD_S})

    def close(self) -> None:
        """Hang up; jobs go on as `ending` says."""
        self._ended.set()
        self._queue.put(None)
        self._worker.end(5.0)
        self.ending()
        for connection in [*self._calls, *self._of]:
            connection.close("the head ends")

    @property
    def problem(self) -> str:
        """'' or why nodes are not heard."""
        return self._worker.problem

    # -- for the server (its event loop; any thread) ------------------------------------------------------------------

    def why_not(self, shown: str) -> str:
        """'' if a node may connect with what it shows of its token, else why not."""
        try:
            return self._tokens.why_not(shown)
        except InputError as error:
            return str(error)

    def opened(self, connection: Connection, shown: str) -> None:
        """A node has connected, with a token that counts."""
        self._calls[connection] = (self._now(), shown.split("_")[1])

    def received(self, connection: Connection, text: str) -> None:
        """A frame has come."""
        try:
            frame = json.loads(text)
            if not isinstance(frame, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            connection.close(f"this is no frame: {error}")
            return
        node = self._of.get(connection)
        if node is not None:
            node.heard_s = self._now()
            if "beat" in frame:
                self._beat(node, connection, frame)
                return
            if "reply" in frame:
                node.channel.replied(frame)
                return
        self._queue.put((connection, frame))

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self._calls.pop(connection, None)
        self._queue.put((connection, {"gone": True}))

    def _beat(self, node: _Node, connection: Connection, frame: dict[str, Any]) -> None:
        """Answer a heartbeat: unless its jobs are, or are about to be, given to others."""
        with self._lock:
            answered = node.met and node.channel.is_on(connection) and node.lease.answer(self._now())
        if answered:
            with suppress(StreamError):  # it comes again in the next frame, which is looked at below
                node.channel.heard(connection, {"ack": frame.get("ack")})
            node.channel.say({"beaten": frame["beat"]})

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._ended.is_set():
            wait = LOOK_S if self._nodes or self._calls else None
            with suppress(queue.Empty):
                item = self._queue.get(timeout=wait)
                if item is not None:
                    self._one(*item)
            while not self._gone_names.empty():
                name, why = self._gone_names.get()
                if (node := self._nodes.get(name)) is not None:
                    self._lose(node, why)
            now = self._now()
            if now - self._looked_s >= LOOK_S:
                self._looked_s = now
                self._look(now)

    def _one(self, connection: Connection, frame: dict[str, Any]) -> None:
        node = self._of.get(connection)
        try:
            if "gone" in frame:
                self._gone(connection)
            elif node is None:
                self._greet(connection, frame)
            else:
                self._message(node, connection, frame)
        except Exception as error:
            # Nothing that is said on after this could be trusted; the node comes back with a session of its own.
            expected = isinstance(error, CodecError | StreamError)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "node %s: %s; its session ends",
                "?" if node is None else node.name,
                error if expected else f"{type(error).__name__}: {error}",
                exc_info=not expected,
            )
            if node is not None:
                node.channel.session = ""
            self._refuse(connection, f"{error}; head and node begin anew", final=node is None)

    def _refuse(self, connection: Connection, why: str, *, final: bool) -> None:
        connection.send(encoded({"refused": plain(Refused(why, final))}))
        self._gone(connection)
        connection.close(why)

    def _gone(self, connection: Connection) -> None:
        self._calls.pop(connection, None)
        node = self._of.pop(connection, None)
        if node is not None and node.channel.detach(connection):
            node.cut_s = self._now()

    def _greet(self, connection: Connection, frame: dict[str, Any]) -> None:
        call = self._calls.get(connection)
        if call is None:
            return  # it is closing
        hello = of_plain(Hello, frame.get("hello"))
        why, final = self._why_refused(hello)
        if not why and self._file.of(hello.name).home != hello.home:
            why = self._tokens.why_no_more(call[1], joins=True)
            why, final = f"the token does not count: {why}" if why else "", True
        if why:
            log.warning("node %s was refused: %s", hello.name, why)
            self._refuse(connection, why, final=final)
            return
        if hello.stuck:
            self._on.stuck(hello.name, hello.stuck)
            self._refuse(connection, hello.stuck, final=False)
            return
        node = self._nodes.get(hello.name)
        if node is not None and hello.session and hello.session == node.channel.session and node.met:
            self._resume(node, connection, hello)
        elif why := self._begin(node, connection, hello):
            log.warning("node %s was refused: %s", hello.name, why)
            self._refuse(connection, why, final=False)
            return
        self._calls.pop(connection, None)
        self._nodes[hello.name].token = call[1]

    def _why_refused(self, hello: Hello) -> tuple[str, bool]:
        """('' or why the node is not taken, whether asking again is of no use)."""
        if hello.version != VERSION:
            return (
                f"it speaks version {hello.version} of the link (gpuloom {hello.gpuloom or 'of unknown version'}), the "
                f"head version {VERSION} (gpuloom {__version__}): install the head's version on the node"
            ), True
        try:
            terms_of(hello.lease_s)
        except InputError as error:
            return str(error), True
        if hello.name in self._reserved:
            return f"{hello.name!r} is the head's own machine: choose another name with --name", True
        node = self._nodes.get(hello.name)
        if node is None:
            return "", False
        if node.home and node.home != hello.home:
            return (
                f"another node has joined as {hello.name!r}, from another home: choose another name with --name (or "
                f"wait until that one has left or is lost)"
            ), True
        heard = self._now() - node.heard_s
        if node.boot_id != hello.boot_id and node.channel.connected and heard < SILENT_S:
            return f"a copy of this home has joined as {hello.name!r} from another machine", True
        return "", False

    def _resume(self, node: _Node, connection: Connection, hello: Hello) -> None:
        """Its session goes on."""
        self._connect(node, connection)
        terms = node.lease.terms
        welcome = Welcome(node.channel.session, node.channel.received, True, terms.lease_s, terms.every_s)
        connection.send(encoded({"welcome": plain(welcome)}))
        node.channel.attach(connection, hello.received)
        if node.told_cut:
            node.told_cut = False
            log.info("node %s: its link is there again", node.name)
            self._on.back(node.name)

    def _begin(self, node: _Node | None, connection: Connection, hello: Hello) -> str:
        """A new session. Not '': why there is none now."""
        terms = terms_of(hello.lease_s)
        if node is not None:  # its runs may still go by the lease of before
            terms = max(node.lease.terms, terms, key=lambda one: one.give_away_s)
        if not self._noted(hello, terms):
            return f"the head can't write down the lease of {terms.lease_s:g} s ({self._file.path}): make room there"
        if node is None:
            node = self._nodes[hello.name] = self._made(hello.name, terms)
        node.lease.terms = terms
        if hello.left_s is not None:  # what the node knows of its lease counts, whatever we feared
            node.lease.not_before_s = self._now() + ended_after_s(hello.left_s)
        self._connect(node, connection)
        node.home, node.process, node.boot_id = hello.home, hello.process, hello.boot_id
        node.channel.begin()
        node.met = False
        welcome = Welcome(node.channel.session, 0, False, terms.lease_s, terms.every_s)
        connection.send(encoded({"welcome": plain(welcome)}))
        node.channel.attach(connection, 0)
        return ""

    def _noted(self, hello: Hello, terms: Terms) -> bool:
        """Write down what the next head must know of this node. False: that can't be done, and what is written there
        is not enough."""
        before = self._file.of(hello.name)
        hold_s = before.hold_s
        if hello.left_s is not None:
            hold_s = hello.left_s if hello.left_s > terms.lease_s else 0.0
        if self._file.keep(hello.name, Remembered(hello.home, terms.lease_s, hold_s)):
            return True
        return max(before.hold_s, terms_of(before.lease_s).lease_s) >= max(terms.lease_s, hold_s)

    def _connect(self, node: _Node, connection: Connection) -> None:
        """It is at the end of this connection, and of no other."""
        if node.connection is not None and node.connection is not connection:
            self._of.pop(node.connection, None)
            node.channel.detach()
        node.connection, node.heard_s, node.cut_s = connection, self._now(), None
        self._of[connection] = node

    def _made(self, name: str, terms: Terms) -> _Node:
        channel = Channel(name)
        return _Node(name, HeadLease(terms, self._now()), channel, JoinedNode(name, channel))

    def _message(self, node: _Node, connection: Connection, frame: dict[str, Any]) -> None:
        data = node.channel.heard(connection, frame)
        if data is None:
            return
        message = of_node(data)
        if isinstance(message, Joined):
            self._joined(node, connection, message)
        elif not node.met:
            raise StreamError("the first message must be the node's record")
        else:
            self._heard(node, message)
        node.channel.dealt(int(frame["n"]))

    def _joined(self, node: _Node, connection: Connection, joined: Joined) -> None:
        now = self._now()
        alive = [status.run for status in joined.runs if status.exit is None]
        if (node.name in self._given_away or joined.fenced) and alive:
            self._refuse(connection, f"{len(alive)} runs of before its lease ran out are still there", final=False)
            return
        with self._lock:
            node.lease.begin_again(now)
            node.met = True
        self._given_away.discard(node.name)
        node.told_cut, node.expected = False, ""
        log.info("node %s has joined, with %d GPUs or slots", node.name, len(joined.record.gpus))
        self._on.joined(node.joined, joined.record, node.joined.began(joined, node.boot_id))

    def _heard(self, node: _Node, message: NodeSays) -> None:
        if isinstance(message, Status):
            node.joined.heard(message.status)
        elif isinstance(message, Sampled):
            node.last = message.sample
            self._on.sampled(node.name, message.sample, Changes(notes=message.notes))
        elif isinstance(message, Gpus) and node.last is not None:
            self._on.sampled(node.name, node.last, Changes(gpus=message.gpus))
        elif isinstance(message, Flagged) and node.last is not None:
            flag = Flag(message.run, message.flag, message.text)
            self._on.sampled(node.name, node.last, Changes(flags=(flag,)))
        elif isinstance(message, Health):
            node.joined.health(message.text)
        elif isinstance(message, Leaving):
            log.info("node %s wants to leave: %s", node.name, message.why)
            self._on.leaving(node.name, message.why)
        elif isinstance(message, Left):
            log.info("node %s has left: %s", node.name, message.why)
            self._forget(node)
            self._on.left(node.name)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        for connection, (since, _) in list(self._calls.items()):
            if now - since > GREETING_S:
                connection.close("it did not say who it is")
        for node in list(self._nodes.values()):
            if node.channel.connected and now - node.heard_s > SILENT_S:
                self._drop(node, now)
            self._look_at_cut(node, now)
            with self._lock:
                over = node.lease.over(now)
            if node.lease.not_before_s < now and self._file.of(node.name).hold_s:
                self._file.release(node.name)
            if over and node.name not in self._given_away:
                if node.met or node.expected:
                    self._lose(node, f"nothing was heard of it for {node.lease.terms.give_away_s:g} s")
                else:
                    self._forget(node)
        if now - self._tokens_s >= TOKENS_S:
            self._tokens_s = now
            self._check_tokens()

    def _look_at_cut(self, node: _Node, now: float) -> None:
        """Say that its link is cut, if it has been for long enough."""
        if node.cut_s is None or node.told_cut or not (node.met or node.expected):
            return
        if now - node.cut_s >= (SILENT_S if node.expected else AGAIN_S):
            node.told_cut = True
            why = node.expected or "its link is cut"
            log.warning("node %s: %s", node.name, why)
            self._on.cut(node.name, why)

    def _drop(self, node: _Node, now: float) -> None:
        """Nothing comes from it, though its connection is open."""
        connection = node.connection
        node.channel.detach()
        node.connection = None
        # Silence was waited for already.
        node.cut_s = now - AGAIN_S
        if connection is not None:
            self._of.pop(connection, None)

    def _check_tokens(self) -> None:
        for connection, node in list(self._of.items()):
            try:
                why = self._tokens.why_no_more(node.token)
            except InputError as error:  # the file can't be read: no word against those that are there
                log.error("%s", error)
                return
            if why:
                self._refuse(connection, f"its token counts no more: {why}", final=True)

    def _lose(self, node: _Node, why: str) -> None:
        """Its jobs may be given to others."""
        log.warning("node %s is lost: %s", node.name, why)
        self._forget(node)
        self._given_away.add(node.name)
        self._on.lost(node.name, why)

    def _forget(self, node: _Node) -> None:
        self._nodes.pop(node.name, None)
        for connection in [one for one, other in self._of.items() if other is node]:
            del self._of[connection]
        node.channel.detach()
