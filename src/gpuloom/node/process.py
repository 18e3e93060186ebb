"""The node process: takes its home, serves this machine to the head, and leaves in order.

It ends when it is told to leave (SIGTERM, SIGINT, `gpuloom node leave`, or the head) and nothing of the head's runs
here any more. Killed, it leaves its runs to the runner and the guard: the next process for this home goes on with them,
if it comes before the lease is over.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from gpuloom import __version__
from gpuloom.agent.inventory import CPU, inventory
from gpuloom.agent.looking import Looker
from gpuloom.agent.nvml import Nvml
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.faults import fault_text
from gpuloom.core.job import NodeSource
from gpuloom.executors.guard.start import ensure_guard
from gpuloom.executors.lease import LeaseFile
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.local_node import LocalNode
from gpuloom.executors.open_files import ask_for_more
from gpuloom.executors.port import ExecutorError
from gpuloom.executors.procs import boot_id
from gpuloom.fleet.certificates import PinError
from gpuloom.fleet.channel import Channel, encoded
from gpuloom.fleet.codec import CodecError, of_plain, plain
from gpuloom.fleet.lease import NodeLease, Terms, least_margin_s
from gpuloom.fleet.messages import VERSION, Hello, Refused, Welcome
from gpuloom.fleet.stream import StreamError
from gpuloom.fleet.token import token_of
from gpuloom.node.dial import Gone, RefusedError, Wire, dial
from gpuloom.node.home import NodeHome, State
from gpuloom.node.serve import Served
from gpuloom.node.stuck import what_is_left
from gpuloom.sharing.start import ability, under_the_shim
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.node")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
SILENT_S = 8.0
"""Without any answer for so long the link is given up, and another one made."""
GREETING_S = 10.0
AGAIN_S = 0.3
"""Between heartbeats until the first one of a session is answered."""
STUCK_S = 10.0
"""What ran under a lease that is over has so long to end, before the head is told that it does not."""
LEAVE_LOOK_S = 0.2
LAST_WORD_S = 5.0
ENDS = "the node process ends"


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """What a node joins with. token: as it was minted. slots: CPU slots in place of GPUs, None: the machine's GPUs;
    slot_model: the GPU model that they pretend to be.

    name, address: '' for what the machine says. engine_job: the allocation of Slurm of which it is part;
    until_s: when that ends. give_up_s: it leaves when the head was not reached for so long; None: never.
    """

    home: Path
    url: str
    token: str
    name: str = ""
    slots: int | None = None
    slot_model: str = CPU
    address: str = ""
    lease_s: float | None = None
    engine_job: str = ""
    until_s: float | None = None
    give_up_s: float | None = None


class NodeProcess:
    """See the module. `run` serves until it has left."""

    def __init__(self, options: JoinOptions, *, nvml: Nvml | None = None) -> None:
        """Raises InputError, BusyError."""
        self.options = options
        self.token = token_of(options.token)
        self.home = NodeHome(options.home).create()
        self.lock = self.home.take()
        with suppress(FileNotFoundError):
            self.home.leave.unlink()
        nvml = Nvml() if nvml is None else nvml
        if options.engine_job and (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            nvml.keep(named)
        record = inventory(slots=options.slots, nvml=nvml, slot_model=options.slot_model)
        source = NodeSource.SLURM if options.engine_job else NodeSource.JOINED
        self.record = replace(
            record,
            name=options.name or record.name,
            source=source,
            address=options.address,
            engine_job=options.engine_job,
            until_s=options.until_s,
        )
        self._began_s = time.time()
        self._process, self._boot_id = secrets.token_hex(8), boot_id()
        self._home_id = self.home.id()
        self.channel = Channel(f"the head at {options.url}")
        self.looker = Looker(self.record, nvml, disk=self.home.path)
        executor = LocalExecutor(self.home.path, gpu_processes=self.looker.gpu_processes)
        shared = partial(under_the_shim, ability(self.record, os.environ))
        node = LocalNode(self.record.name, executor, self.home.runs, shared=shared)
        self.lease = LeaseFile(str(self.home.path))
        self.served = Served(
            self.record, node, self.looker, self.home.runs, self.lease, self.channel, self._told_to_leave
        )
        self._wire: Wire | None = None
        """The newest link, also before the head has greeted."""
        self._node_lease: NodeLease | None = None
        self._fenced = False
        """Its lease has run out since the head was last told what runs here."""
        self._ending_from_s = math.inf
        """Since when what ran under a lease that is over is being ended; infinity: nothing is."""
        self._beaten_ns = 0
        """The last heartbeat that was answered, on CLOCK_BOOTTIME."""
        self._met = self._welcome = False
        self._greeted_s = self._answered_s = self._beat_s = 0.0
        self._heard_s = time.monotonic()
        self._refusal: Refused | None = None
        self._leaving = ""
        self._wanted = os.eventfd(0, os.EFD_CLOEXEC)  # signal handlers must not touch locks, which events have
        self._end = threading.Event()
        self._signals = 0
        self._final = ""
        self._worker = Worker("link", self._link)
        self._said = ("", "")

    def run(self) -> int:
        """Serve until it has left; the exit code."""
        before = {number: signal.signal(number, self._signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._say("joining")
            ensure_guard(self.home.path)
            self.served.open()
            self._worker.start()
            self._wait()
            self._leave()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end.set()
            if self._wire is not None:
                self._wire.close(ENDS)
            self._worker.end(LAST_WORD_S)
            self.served.close()
        if self._final:
            self._say("refused", self._final)
            raise RefusedError(self._final)
        self.lease.remove()  # so the guard ends, too
        self._say("left", self._leaving)
        return 0

    def _wait(self) -> None:
        """Until it is to leave."""
        while True:
            with suppress(InterruptedError):  # by a signal, whose handler has run
                os.eventfd_read(self._wanted)
                return

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._told_to_leave(f"it was told to ({signal.Signals(number).name})")

    def _told_to_leave(self, why: str) -> None:
        if not self._leaving:
            self._leaving = why
        os.eventfd_write(self._wanted, 1)

    def _leave(self) -> None:
        """Until nothing of the head's runs here, or only what it will never ask for."""
        log.info("leaving: %s", self._leaving or self._final)
        told = stopped = False
        while not self._final:
            if not stopped and (self._signals > 1 or self.home.leave.exists()):
                stopped = True
                self.served.stop_all("the node leaves now")
            if self._met and not told:
                told = True
                self._say("leaving", self._leaving)
                self.served.say_leaving(self._leaving)
            told = told and self._met  # a new session has to be told anew
            # Cut off, nobody can take note of what has ended here.
            if not (self.served.unsettled() if self.channel.connected else self.served.alive()):
                break
            time.sleep(LEAVE_LOOK_S)
        while self._final and self.served.alive():  # the guard ends them with the lease
            time.sleep(LEAVE_LOOK_S)
        if self._met:
            self._end.set()  # the head hangs up on who has left: it is not called again
            self.served.say_left(self._leaving)
            until = time.monotonic() + LAST_WORD_S
            while self.channel.connected and len(self.channel) and time.monotonic() < until:
                time.sleep(LEAVE_LOOK_S / 10)

    # -- the link (a thread) ------------------------------------------------------------------------------------------

    def _link(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._end.is_set():
            try:
                if self._may_call():
                    wire = dial(self.options.url, self.token)
                    why = self._serve(wire)
                    pause_s = FIRST_PAUSE_S if self._welcome else pause_s
                elif time.monotonic() - self._ending_from_s < STUCK_S:
                    why = "its lease is over: what runs is ended first"
                else:
                    why = what_is_left(self.home.path)
                    self._serve(dial(self.options.url, self.token), stuck=why)
            except (RefusedError, PinError) as error:
                self._refused(str(error))
                return
            except (OSError, Gone) as error:
                why = fault_text("no connection", error) if isinstance(error, OSError) else str(error)
            if self._refusal is not None and self._refusal.final:
                self._refused(self._refusal.why)
                return
            if self._end.is_set():
                return
            self._say("cut" if self._welcome or self.channel.session else "joining", why)
            if self.options.give_up_s is not None and time.monotonic() - self._heard_s > self.options.give_up_s:
                self._told_to_leave(f"the head was not reached for {self.options.give_up_s:g} s")
            self._end.wait(pause_s * random.uniform(0.5, 1.0))  # a thousand nodes don't all come at once
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _refused(self, why: str) -> None:
        log.error("the head does not take this node: %s", why)
        self._final = why
        os.eventfd_write(self._wanted, 1)

    def _may_call(self) -> bool:
        """Whether there is something to serve; a session does not outlive its lease."""
        if not self._over():
            self._ending_from_s = math.inf
            return True
        if self.channel.session and self._met:
            log.warning("the lease is over: what ran here is ended")
        self._fenced = self._fenced or bool(self.channel.session)
        self.channel.session = ""
        # The guard has the last word: it also sees what the runner can't, and without it there is no new lease.
        if not self.served.alive() and self._settled():
            self._ending_from_s = math.inf
            return True
        self._ending_from_s = min(self._ending_from_s, time.monotonic())
        return False

    def _over(self) -> bool:
        try:
            return self.lease.over()
        except OSError as error:
            log.error("%s", fault_text("the lease can't be read", error))
            return True

    def _left_s(self) -> float | None:
        try:
            left = self.lease.left_s()
        except OSError:
            return None
        return None if left is None else max(left, 0.0)

    def _settled(self) -> bool:
        try:
            return self.lease.settled()
        except OSError:
            return False

    def _serve(self, wire: Wire, stuck: str = "") -> str:
        self._wire = wire
        self._met = self._welcome = False
        self._refusal = None
        self._greeted_s = self._answered_s = time.monotonic()
        self._beat_s = 0.0
        hello = Hello(
            VERSION,
            self.record.name,
            self._home_id,
            self._process,
            self._boot_id,
            __version__,
            self.channel.session,
            self.channel.received,
            self.options.lease_s,
            self._left_s(),
            stuck,
        )
        wire.send(encoded({"hello": plain(hello)}))
        try:
            why = wire.run(lambda text: self._take(wire, text), lambda: self._tick(wire))
        finally:
            self.channel.detach(wire)
            self._met = False
        if self._refusal is not None:
            why = self._refusal.why
        log.log(logging.INFO if self._end.is_set() else logging.WARNING, "the link to the head is down: %s", why)
        return why

    def _tick(self, wire: Wire) -> float:
        """Heartbeats, and what their lack means."""
        now = time.monotonic()
        if self._end.is_set() and not self._met:  # made in the very moment of the end
            wire.close(ENDS)
            return 0.0
        if not self._welcome:
            left = self._greeted_s + GREETING_S - now
            if left <= 0:
                wire.close("the head does not greet")
            return max(left, 0.0)
        if now - self._answered_s > SILENT_S:
            wire.close(f"the head was silent for {SILENT_S:g} s")
            return 0.0
        assert self._node_lease is not None  # noqa: S101 - made when it was welcomed
        every = self._node_lease.terms.every_s if self._met else AGAIN_S
        due = self._beat_s + every
        if now >= due:
            self._beat_s, due = now, now + every
            self.channel.say({"beat": self._node_lease.beat()})
        return min(due, self._answered_s + SILENT_S + 0.1) - now

    def _take(self, wire: Wire, text: str) -> None:
        try:
            frame = json.loads(text)
            if not isinstance(frame, dict):
                raise StreamError("the head sent what is no frame")
            if "beaten" in frame:
                self._beaten(wire, frame)
            elif "hold" in frame:
                self._hold(float(frame["hold"]))
            elif "welcome" in frame:
                self._welcomed(wire, of_plain(Welcome, frame["welcome"]))
            elif "refused" in frame:
                self._refusal = of_plain(Refused, frame["refused"])
                wire.close(self._refusal.why)
            else:
                self._answered_s = time.monotonic()
                self.served.take(wire, frame)
        except (StreamError, CodecError, ValueError) as error:
            self.channel.session = ""
            wire.close(f"{error}: head and node begin anew")
        except ExecutorError as error:
            self.channel.session = ""
            wire.close(str(error))
        except OSError as error:
            wire.close(fault_text("the lease can't be put off", error))

    def _beaten(self, wire: Wire, frame: Mapping[str, Any]) -> None:
        self._answered_s = self._heard_s = time.monotonic()
        self.channel.heard(wire, {"ack": frame.get("ack")})
        assert self._node_lease is not None  # noqa: S101 - made when it was welcomed
        beat = int(frame["beaten"])
        self._beaten_ns = max(self._beaten_ns, beat)
        try:
            self._node_lease.answered(beat)
        except OSError as error:
            log.error("%s", fault_text("the lease can't be put off", error))
        if not self._met:
            self._met = True
            self._fenced = False
            log.info("joined %s as %s", self.options.url, self.record.name)
            self._say("joined")

    def _hold(self, hold_s: float) -> None:
        """The head ends in order, and lets what runs here go on for longer."""
        log.info("the head ends: what runs here goes on for up to %g s without it", hold_s)
        if self._beaten_ns:
            self.lease.extend(self._beaten_ns + int(hold_s * 1e9))

    def _welcomed(self, wire: Wire, welcome: Welcome) -> None:
        terms = Terms(welcome.lease_s, least_margin_s(welcome.lease_s) + 1.0, welcome.beat_s)
        if self._node_lease is None or self._node_lease.terms != terms:
            self._node_lease = NodeLease(self.lease, terms)
        if welcome.resumed:
            self.channel.attach(wire, welcome.received)
        else:
            if not self.served.record.address:
                self.served.record = replace(self.served.record, address=wire.where)
            self.served.begin(welcome.session, fenced=self._fenced)
            self.channel.attach(wire, 0)
        self._answered_s = time.monotonic()
        self._welcome = True

    def _say(self, state: str, detail: str = "") -> None:
        """Write down how it goes, for `gpuloom node status`."""
        if self._leaving and state in ("joined", "cut"):
            state, detail = "leaving", detail or self._leaving
        if self._said == (state, detail):
            return
        self._said = (state, detail)
        now, url, name = time.time(), self.options.url, self.record.name
        self.home.say(State(os.getpid(), name, url, state, now, self._began_s, detail, __version__))
        if state in ("cut", "joining") and detail:
            log.warning("%s", detail)


def join(options: JoinOptions, taken: Callable[[Path], None]) -> int:
    """Run a node process until it has left; returns the exit code. taken: called with its log, which is its alone,
    once it has its home.

    Raises:
        InputError, BusyError: it can't begin. RefusedError: the head does not take it.
    """
    ask_for_more()
    if urlsplit(options.url).scheme == "http" and token_of(options.token).fingerprint:
        raise InputError(f"the token is of a head with TLS: give https instead of {options.url}")
    try:
        process = NodeProcess(options)
        taken(process.home.log)
        return process.run()
    except ExecutorError as error:
        raise GpuloomError(f"the node can't begin: {error}") from None
