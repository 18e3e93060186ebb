"""A node in a network namespace, whose link is really cut: its job runs there or elsewhere, never both at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuloom.executors import procs
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.lease import LeaseFile, boottime_ns
from gpuloom.executors.runner.restarts import holder
from gpuloom.executors.wire import GUARD_LOCK, LOCK
from gpuloom.fleet.lease import ENDING_S
from namespaces import Far, far_machine
from real_scheduler import PROGRAM, Real, real
from until import until

pytestmark = pytest.mark.slow

LEASE_S = 6.0
MARKS = """trap '' TERM
while :; do echo "$GPULOOM_ATTEMPT $(cut -d' ' -f1 /proc/uptime)" >> marks; sleep 0.05; done
"""
"""Says all the time that it runs, and ignores SIGTERM."""


class Apart:
    """A head with one slot, and a node with two, in a network namespace."""

    def __init__(self, head: Real, far: Far, home: Path) -> None:
        self.head, self.far, self.home = head, far, home
        self.marker = f"GPULOOM_RUN={home_id_of(home)}:".encode()
        ready = head.up("--host", far.here, "--slots", "1")
        token = head.files / "token"
        token.write_text(head.run("node", "token").stdout.strip())
        self._url, self._token = ready["url"], token
        # The job comes to the far node: the head's own slot is taken.
        ((self.filler,),) = head.client.submit(head.waiting())
        head.in_state("running", [self.filler])
        self.join("join", ready["url"], "--token-file", str(token), "--name", "far", "--slots", "2", "--lease", "6s")
        (head.files / "marks.sh").write_text(MARKS)
        # With a child in a session of its own.
        ((self.job,),) = head.client.submit(head.shell("setsid sh marks.sh & exec sh marks.sh", retries=1))
        until(lambda: self.lines(), "its first mark")

    def join(self, *arguments: str) -> None:
        done = self.far.run([*PROGRAM, "node", *arguments, "--home", str(self.home), "--detach"])
        assert done.returncode == 0, done.stderr

    def pid(self, lock: str) -> int:
        note = until(lambda: holder(str(self.home / lock)), lock)
        return int(note["pid"])

    def node_process(self) -> int:
        return int(json.loads((self.home / "node.json").read_text())["pid"])

    def lines(self, attempt: int | None = None) -> list[tuple[int, float]]:
        """What the job has said: attempt, and when, in seconds after boot."""
        path = self.head.files / "marks"
        if not path.exists():
            return []
        fields = [line.split() for line in path.read_text().splitlines()]
        found = [(int(one[0]), float(one[1])) for one in fields if len(one) == 2]
        return [one for one in found if attempt in (None, one[0])]

    def of_runs(self) -> set[int]:
        """Processes of runs of the node."""
        marks = procs.Marks()
        return {e.pid for e in procs.table().values() if not e.dead and marks.of(e).startswith(self.marker)}

    def attempts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.head.client.show(self.job)["attempts"]
        return found


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    with far_machine() as far, real(tmp_path, slots=1) as head:
        home = tmp_path / "node"
        try:
            yield Apart(head, far, home)
        finally:
            LeaseFile(str(home)).remove()  # so whatever of it lives ends its runs, and itself
            state = home / "node.json"
            if state.exists():
                subprocess.run(["kill", "-9", str(json.loads(state.read_text())["pid"])], check=False)
            until(lambda: holder(str(home / GUARD_LOCK)) is None, "the end of the guards")


@pytest.mark.parametrize("killed", [(), ("node", "runner", "guard")], ids=["link", "link and all that may die"])
def test_a_job_goes_on_elsewhere_once_it_has_ended_at_its_node(apart: Apart, killed: tuple[str, ...]) -> None:
    pids = {"node": apart.node_process(), "runner": apart.pid(LOCK), "guard": apart.pid(GUARD_LOCK)}
    cut_s = boottime_ns() / 1e9
    apart.far.cut()
    for one in killed:
        os.kill(pids[one], signal.SIGKILL)
    apart.head.end(apart.filler)  # now there is room for it at the head
    until(lambda: apart.lines(2), "its second attempt", 90.0)
    first, second = apart.lines(1), apart.lines(2)
    assert max(at for _, at in first) < min(at for _, at in second), "it ran twice at once"
    assert apart.of_runs() == set()
    ended_s = max(at for _, at in first) - cut_s
    assert ended_s <= LEASE_S + ENDING_S
    assert ended_s > LEASE_S / 2 - 1, "until then it went on"
    before, now = apart.attempts()
    assert (before["where"].partition(":")[0], before["reason"]) == ("far", "node")
    assert now["where"].partition(":")[0] != "far"
    view = apart.head.client.job(apart.job)
    assert (view["state"], view["retries_left"]) == ("running", 1), "no retry was used up"
    # The node comes back, and takes jobs again.
    apart.far.mend()
    if "node" in killed:
        apart.join("join")
    ((after,),) = apart.head.client.submit(apart.head.waiting())
    apart.head.in_state("running", [after])
    assert apart.head.client.job(after)["where"].partition(":")[0] == "far"
    time.sleep(1.0)
    assert {attempt for attempt, at in apart.lines() if at > boottime_ns() / 1e9 - 1.0} == {2}
    assert LeaseFile(str(apart.home)).fences() == 1


def test_a_link_that_is_cut_for_less_than_the_lease_changes_nothing(apart: Apart) -> None:
    before = apart.of_runs()
    apart.far.cut()
    time.sleep(LEASE_S / 3)
    apart.far.mend()
    time.sleep(LEASE_S + 2.0)
    assert before <= apart.of_runs() | {pid for pid in before if procs.process(pid) is None}
    assert {attempt for attempt, _ in apart.lines()} == {1}
    assert apart.lines()[-1][1] > boottime_ns() / 1e9 - 2.0
    (only,) = apart.attempts()
    assert only["reason"] is None
    apart.head.client.cancel([apart.job])
    apart.head.in_state("cancelled", [apart.job])
    until(lambda: not apart.of_runs(), "its end")
