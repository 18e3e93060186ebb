"""After its lease nothing of a node's runs is left, whatever of {link, node process, runner, guard} died with it.

Real processes: a node process (tests/leased_node.py) with runner, guard and standby, and jobs that daemonise and ignore
SIGTERM.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from gpuloom.executors import procs
from gpuloom.executors.guard.start import ensure_guard
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.lease import LeaseFile
from gpuloom.executors.runner.restarts import holder
from gpuloom.executors.wire import FENCED_FILE, GUARD_LOCK, LOCK
from gpuloom.fleet.lease import ENDING_S
from until import until

pytestmark = pytest.mark.slow

NODE = Path(__file__).parents[1] / "leased_node.py"
LEASE_S = 2.0
PROGRAMS = (
    "sleep 1000 & exec sleep 1000",
    "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.2; done' & while :; do sleep 0.2; done",
)
"""One with a child, and one that ignores SIGTERM and has a child in another session that forks all the time."""


class Node:
    """A home with all that belongs to it."""

    def __init__(self, home: Path, environment: dict[str, str], lease_s: float = LEASE_S) -> None:
        self.home = home
        home.mkdir()
        self.marker = f"GPULOOM_RUN={home_id_of(home)}:".encode()
        self.lease = LeaseFile(str(home))
        argv = [sys.executable, str(NODE), str(home), str(lease_s), *PROGRAMS]
        self.process = subprocess.Popen(argv, env=os.environ | environment, start_new_session=True)
        until((home / "ready").exists, "its jobs")

    def pid(self, who: str) -> int:
        if who == "node":
            return self.process.pid
        note = until(lambda: holder(str(self.home / (LOCK if who == "runner" else GUARD_LOCK))), who)
        if who == "standby":
            note = until(lambda: (n := holder(str(self.home / GUARD_LOCK))) and n.get("standby") and n, who)
        return int(note["standby" if who == "standby" else "pid"])

    def kill(self, *who: str, number: int = signal.SIGKILL) -> None:
        """All of them at one moment."""
        pids = [self.pid(one) for one in who]
        for pid in pids:
            os.kill(pid, number)
        if "node" in who and number == signal.SIGKILL:
            self.process.wait()

    def cut(self) -> None:
        (self.home / "cut").touch()

    def mend(self) -> None:
        (self.home / "cut").unlink()

    def of_runs(self) -> set[int]:
        """Processes of its runs, whoever looks after them."""
        marks = procs.Marks()
        return {e.pid for e in procs.table().values() if not e.dead and marks.of(e).startswith(self.marker)}

    def wait_for_end(self) -> None:
        """Until the deadline and the time for ending have passed; then nothing may be left."""
        while not self.lease.over():
            time.sleep(0.02)
        end = time.monotonic() + ENDING_S
        while self.of_runs() and time.monotonic() < end:
            time.sleep(0.02)
        assert self.of_runs() == set()

    def exits(self) -> list[tuple[str, str]]:
        """Reason and cause of each run, as the runner noted them."""
        found = []
        for number in range(1, len(PROGRAMS) + 1):
            path = self.home / "runs" / str(number) / "exit.json"
            if not path.exists():
                return []
            how = json.loads(path.read_text())["exit"]
            found.append((how["reason"], how["cause"]))
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.lease.remove()
        until(lambda: holder(str(self.home / GUARD_LOCK)) is None, "the end of the guards", 30.0)
        with suppress(ProcessLookupError):
            if (note := holder(str(self.home / LOCK))) is not None:
                os.kill(note["pid"], signal.SIGKILL)


@pytest.fixture(params=["auto", "off"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """With control groups, where there are any, and without."""
    found = Node(tmp_path / "home", {"GPULOOM_CGROUPS": request.param})
    yield found
    found.end()


def _sets(of: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(some) for size in range(len(of) + 1) for some in itertools.combinations(of, size)]


@pytest.mark.parametrize("what", _sets(("link", "node", "runner", "guard")), ids=lambda some: "+".join(some) or "none")
def test_all_that_can_die_together(node: Node, what: tuple[str, ...]) -> None:
    before = node.of_runs()
    assert len(before) >= 4
    node.kill(*(one for one in what if one != "link"))
    if "link" in what:
        node.cut()
    assert not node.lease.over()
    assert {pid for pid in before if (e := procs.process(pid)) and not e.dead} >= _leaders(node), (
        "they go on until then"
    )
    if not {"link", "node"} & set(what):
        time.sleep(LEASE_S + 0.5)
        assert not node.lease.over()
        assert _leaders(node) <= before
        assert len(_leaders(node)) == len(PROGRAMS), "a node that reaches its head goes on"
        return
    node.wait_for_end()
    # Whoever is left brings back the others, and the runs' ends are told as they were.
    assert until(node.exits, "their ends") == [("node", "node")] * len(PROGRAMS)
    fenced = json.loads(until(lambda: (p := node.home / FENCED_FILE).exists() and p.read_text(), "the note"))
    assert fenced["boot_id"] == procs.boot_id()
    assert set(fenced["runs"]) <= {"1.1-abc", "2.1-abc"}
    until(lambda: node.lease.fences() >= 1, "the count of it, which comes after the note")


def _leaders(node: Node) -> set[int]:
    """The leading processes of its runs that live."""
    found = set()
    for number in range(1, len(PROGRAMS) + 1):
        note = json.loads((node.home / "runs" / str(number) / "run.json").read_text())
        entry = procs.process(note["pid"])
        if entry is not None and entry.start_ticks == note["start_ticks"] and not entry.dead:
            found.add(entry.pid)
    return found


@pytest.mark.parametrize(
    "what",
    [("standby",), ("guard", "standby"), ("node", "guard", "standby"), ("node", "runner", "standby")],
    ids="+".join,
)
def test_the_standby_too(node: Node, what: tuple[str, ...]) -> None:
    node.kill(*what)
    node.cut()
    node.wait_for_end()
    assert until(node.exits, "their ends") == [("node", "node")] * len(PROGRAMS)


def test_nobody_is_left_until_the_node_process_is_started_again(tmp_path: Path) -> None:
    """The one case that the promise leaves to whoever starts the node process: its guard ends the runs at once."""
    node = Node(tmp_path / "home", {})
    try:
        node.kill("node", "runner", "guard", "standby")
        until(node.lease.over)
        assert _leaders(node)
        ensure_guard(node.home)
        node.wait_for_end()
        assert until(node.exits, "their ends") == [("node", "node")] * len(PROGRAMS)
    finally:
        node.end()


def test_one_that_is_stopped_keeps_no_run_alive(node: Node) -> None:
    """Guard and runner stand still: the standby ends the runs."""
    node.kill("guard", "runner", number=signal.SIGSTOP)
    node.cut()
    node.wait_for_end()
    node.kill("guard", "runner", number=signal.SIGCONT)
    assert until(node.exits, "their ends") == [("node", "node")] * len(PROGRAMS)


def test_a_machine_that_slept_over_its_deadline_ends_its_runs_at_once(node: Node) -> None:
    """All stood still, jobs too; the clock went on."""
    stopped = {*(node.pid(who) for who in ("node", "runner", "guard", "standby")), *node.of_runs()}
    for pid in stopped:
        with suppress(ProcessLookupError):  # a job's `sleep` that has ended
            os.kill(pid, signal.SIGSTOP)
    time.sleep(LEASE_S + 0.5)
    assert node.lease.over()
    assert len(_leaders(node)) == len(PROGRAMS)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    until(lambda: not node.of_runs(), "their end", ENDING_S)
    assert until(node.exits, "their ends") == [("node", "node")] * len(PROGRAMS)


def test_a_link_that_comes_back_in_time(node: Node) -> None:
    before = _leaders(node)
    for _ in range(2):
        node.cut()
        time.sleep(0.6 * LEASE_S)
        node.mend()
        time.sleep(0.6 * LEASE_S)
    assert _leaders(node) == before
    assert node.lease.fences() == 0


def test_it_goes_on_with_a_new_lease(node: Node) -> None:
    """Once fenced, the node gets its lease again when the head is reached, and nothing is ended a second time."""
    node.cut()
    node.wait_for_end()
    until(node.lease.settled, "the note of it")
    assert node.lease.over()
    node.mend()
    until(lambda: not node.lease.over(), "a new lease")
    fences = node.lease.fences()
    time.sleep(2 * LEASE_S)
    assert not node.lease.over()
    assert node.lease.fences() == fences
