"""Jobs of the chaos test, and what is known of them without asking gpuloom.

Each member of a job writes its start and its end into one ledger, and holds locks for as long as anything of it lives:
one of its job and rank, and one of each slot that it was given. Who finds a lock taken says so in the ledger.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = r"""
kind=$1 secs=$2
rank=$GPULOOM_MEMBER slots=${GPULOOM_SLOTS:--}   # pods know their node, and not which of its GPUs they have
IFS=,; set -- $GPULOOM_NODE_NAMES; unset IFS
shift "$rank"; node=$1
me="$GPULOOM_JOB_ID $GPULOOM_ATTEMPT $rank $node $slots $$"
[ "$kind" = stubborn ] && trap '' TERM
exec 7>>"$CHAOS/locks/job.$GPULOOM_JOB_ID.$rank"
flock -n 7 || echo "twice-job $me" >> "$CHAOS/ledger"
if [ "$kind" != freezing ] && [ "$slots" != - ]; then   # who stands still lends its slot
  fd=8
  for slot in $(echo "$slots" | tr , ' '); do
    eval "exec $fd>>\"$CHAOS/locks/slot.$node.$slot\""
    flock -n $fd || echo "twice-slot $me" >> "$CHAOS/ledger"
    fd=$((fd+1))
  done
fi
echo "start $me" >> "$CHAOS/ledger"
case $kind in
  daemon) setsid sleep 600 & sleep "$secs";;
  stubborn) i=0; while [ $i -lt "${secs%.*}" ]; do sleep 0.1; i=$((i+1)); done;;
  *) sleep "$secs";;
esac
code=0
case $kind in failing) code=3;; gang-failing) [ "$rank" = 1 ] && code=3;; esac
echo "end $me $code" >> "$CHAOS/ledger"
exit $code
"""

KINDS = {
    "ok": 30,
    "failing": 10,
    "daemon": 12,
    "stubborn": 10,
    "gang": 12,
    "gang-failing": 4,
    "array": 4,
    "freezing": 8,
    "urgent": 6,
    "long": 8,
    "cancelled": 8,
    "limited": 3,
}
"""How often each is drawn."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job. cancel_s: when it is cancelled, seconds after it was submitted."""

    kind: str
    spec: dict[str, Any]
    cancel_s: float | None = None

    @property
    def retries(self) -> int:
        return int(self.spec.get("retries", 0))


def drawn(rng: random.Random, folder: Path, jobs: int) -> list[Wanted]:
    """Specs of so many jobs, each element of an array counted."""
    found: list[Wanted] = []
    left = jobs
    while left > 0:
        (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        elements = rng.randint(2, 5) if kind == "array" else 1
        left -= elements
        found.append(_one(rng, kind, elements, folder))
    return found


def _one(rng: random.Random, kind: str, elements: int, folder: Path) -> Wanted:
    secs, does = f"{rng.uniform(0.1, 1.5):.2f}", kind
    cancel_s: float | None = None
    more: dict[str, Any] = {"retries": rng.choice((0, 0, 3))}
    if kind == "stubborn":
        secs = str(rng.randint(2, 15))  # tenths
    elif kind in ("gang", "gang-failing"):
        more["gpus"] = rng.choice((3, 4, 4, 5))
        more["per"] = "node"
        more["retries"] = rng.choice((0, 2))
    elif kind == "array":
        does, more["array"] = "ok", f"0-{elements - 1}"
    elif kind == "freezing":
        secs, more["on_preempt"] = f"{rng.uniform(1, 4):.2f}", "freeze"
    elif kind == "long":  # longer than a lease
        secs, more["gpus"] = f"{rng.uniform(6, 14):.2f}", rng.choice((1, 2, 4))
    elif kind == "urgent":
        does, more["priority"] = "ok", 10
    elif kind == "cancelled":
        does, secs, cancel_s = rng.choice(("ok", "daemon", "stubborn")), "600", rng.uniform(0.0, 20.0)
    elif kind == "limited":
        secs, more["time_limit"], more["retries"] = "600", 0.7, rng.choice((0, 1))
    elif kind == "failing":
        more["retries"] = rng.choice((0, 2))
    if "gpus" not in more:
        more["gpus"] = rng.choice((1, 1, 1, 2))
    spec = {
        "command": ["sh", str(folder / "job.sh"), does, secs],
        "name": kind,
        "workdir": str(folder),
        "env": {"CHAOS": str(folder)},
        "grace": rng.choice((0.5, 1, 2)),
        **more,
    }
    return Wanted(kind, spec, cancel_s)


def marked(folder: Path) -> dict[int, str]:
    """Processes of these jobs that live, with their command lines."""
    needle, found = f"\0CHAOS={folder}\0".encode(), {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if needle in b"\0" + Path("/proc", entry, "environ").read_bytes():
                    line = Path("/proc", entry, "cmdline").read_bytes()
                    found[int(entry)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


@dataclass
class Ledger:
    """What the jobs wrote. Keys: (job, attempt, rank)."""

    folder: Path
    starts: dict[tuple[int, int, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    """Nodes on which each began."""
    ends: dict[tuple[int, int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """The codes with which each was about to exit."""
    pids: dict[tuple[int, int, int], int] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)

    def read(self) -> Ledger:
        """All of it anew."""
        found = Ledger(self.folder)
        with suppress(FileNotFoundError):
            for line in (self.folder / "ledger").read_text().splitlines():
                what, job, attempt, rank, node, _, pid, *code = line.split()
                key = int(job), int(attempt), int(rank)
                if what == "start":
                    found.starts[key].append(node)
                    found.pids[key] = int(pid)
                elif what == "end":
                    found.ends[key].append(int(code[0]))
                else:
                    found.twice.append(line)
        return found


def kill_one(rng: random.Random, folder: Path) -> tuple[int, int, int] | None:
    """SIGKILL to the leading process of a member that runs; which one."""
    ledger = Ledger(folder).read()
    living = [key for key in ledger.starts if key not in ledger.ends]
    rng.shuffle(living)
    for key in living:
        pid = ledger.pids[key]
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                if f"\0CHAOS={folder}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    return key
            finally:
                os.close(descriptor)
    return None


BY_SLURM = ("slurm", "scancel", "time limit")
MAY = {
    "lost": ("runner", "together", "reboot"),
    "node": ("link", "node", "head", "disk", "together", "standstill", "reboot", *BY_SLURM),
    "not_started": ("link", "node", "head", "disk", "together", "standstill", "reboot", "runner", *BY_SLURM),
}
"""Reasons that are no doing of a job, and faults of which one must have been done, or one that has it in its name."""


def faults_of(
    wanted: Mapping[int, Wanted],
    shown: Mapping[int, Mapping[str, Any]],
    ledger: Ledger,
    done: Counter[str],
    killed: Sequence[tuple[int, int, int]],
) -> list[str]:
    """What is not as it must be, a sentence each.

    Args:
        wanted, shown: by job; what was asked for, and what the scheduler says in the end. done: faults, by kind.
    """
    found = [f"it ran while it or another one held the same: {line}" for line in ledger.twice]
    struck = {(job, attempt) for job, attempt, _ in killed}
    known: set[tuple[int, int]] = set()
    for job, view in shown.items():
        known |= {(job, attempt["number"]) for attempt in view["attempts"]}
        found += [f"job {job} ({wanted[job].kind}): {text}" for text in _of_job(job, wanted[job], view, ledger, struck)]
        for attempt in view["attempts"]:
            needed = MAY.get(attempt["reason"])
            if needed is not None and not any(kind in fault for kind in needed for fault in done):
                found.append(f"job {job}: attempt {attempt['number']} ended as {attempt['reason']} without any fault")
    for key, nodes in ledger.starts.items():
        if len(nodes) > 1:
            found.append(f"job, attempt, rank {key} began {len(nodes)} times, on {nodes}")
        if key[:2] not in known:
            found.append(f"job, attempt, rank {key} began, and the scheduler does not know it")
    return found


def _reasons_of(wanted: Wanted) -> set[str]:
    """Why an attempt may have ended, besides `failed`."""
    reasons = {"finished", "lost", "node", "not_started", "preempted", "failed"}
    if wanted.cancel_s is not None:
        reasons |= {"cancelled"}
    return reasons | ({"timed_out"} if wanted.kind == "limited" else set())


def _of_job(
    job: int, wanted: Wanted, view: Mapping[str, Any], ledger: Ledger, struck: set[tuple[int, int]]
) -> list[str]:
    """Of a gang that finished each member has ended well, or had begun, and was still running when the grace after the
    master's end was over. So one that is to fail may finish, if who fails was late."""
    found = []
    state, attempts = view["job"]["state"], view["attempts"]
    if state not in ("finished", "failed", "cancelled"):
        return [f"is {state}"]
    reasons = [attempt["reason"] for attempt in attempts]
    if None in reasons:
        found.append(f"is {state}, with an attempt that has not ended: {reasons}")
    if "finished" in reasons[:-1] or "cancelled" in reasons[:-1]:
        found.append(f"went on after its end: {reasons}")
    bad = sum(reason in ("failed", "timed_out", "out_of_memory") for reason in reasons)
    if state == "cancelled" and wanted.cancel_s is None:
        found.append("was cancelled by nobody")
    if state == "finished" and (not reasons or reasons[-1] != "finished"):
        found.append(f"finished, with attempts {reasons}")
    if state == "failed" and bad != wanted.retries + 1:
        said = [attempt["message"] for attempt in attempts]
        found.append(f"failed after {bad} failures with {wanted.retries} retries: {reasons}, {said}")
    if bad > wanted.retries + 1:
        found.append(f"tried again too often: {reasons}")
    for attempt in attempts:
        number, reason = attempt["number"], attempt["reason"]
        members = range(max(len(attempt["members"]), 1))
        ends = {rank: ledger.ends.get((job, number, rank), []) for rank in members}
        text = f"attempt {number} {reason} ({attempt['message']!r}), its ends {ends}"
        if reason == "finished":
            began = {rank for rank in members if (job, number, rank) in ledger.starts}
            late = {one["rank"] for one in attempt["members"] if one["reason"] == "peer"}
            if ends[0] != [0] or late - began or any(ends[rank] != [0] for rank in members if rank not in late):
                found.append(text)
        elif reason == "failed":
            own = wanted.kind in ("failing", "gang-failing") and any(3 in codes for codes in ends.values())
            if not own and (job, number) not in struck:
                found.append(text)
        elif reason not in _reasons_of(wanted):
            found.append(text)
    if state == "finished" and wanted.kind in ("failing", "limited"):
        found.append(f"finished: {reasons}")
    return found
