"""Chaos on pilots of a real Slurm of four nodes, started for it on this machine (slurm_kit.py).

Besides what may happen to a node's processes and to the head: Slurm's daemons are killed, pilots are cancelled, and
reach their time limit, which is really enforced, though it is set while they run.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from chaos_base import PATIENCE_S, SLOTS, Chaos, pid_of
from gpuloom.executors import procs
from gpuloom.executors.lease import LEASE_FILE
from slurm_kit import NODES, RealSlurm, wait

MOST = 3
"""Nodes that are asked for at a time, of the four."""
IDLE_S = 4
RESUME_S = 5.0
GUARD = "executors/guard/main.py"


class SlurmChaos(Chaos):
    """See the module."""

    FAULTS: ClassVar[Mapping[str, int]] = {
        "head": 8,
        "head stands still": 4,
        "node": 5,
        "runner": 6,
        "guard": 4,
        "guards": 3,
        "node+runner+guard": 5,
        "standstill": 4,
        "job": 8,
        "scancel": 10,
        "scancel at once": 4,
        "time limit": 8,
        "slurmd": 10,
        "slurmctld": 8,
        "second head": 1,
        "disk of the head": 3,
    }

    def __init__(self, folder: Path, seed: int, jobs: int, stack: ExitStack) -> None:
        super().__init__(folder, seed, jobs, stack, ("head",))
        (folder / "slurm").mkdir()
        self.slurm = RealSlurm(folder / "slurm", cpus=SLOTS)
        self._next_resume_s = 0.0
        stack.callback(self.slurm.close)
        self.slurm.start()
        self.homes = folder / "pilots"
        self.homes.mkdir()
        self.env |= self.slurm.env | {"TMPDIR": str(self.homes)}
        wanted = ("--slurm", "-N", str(MOST), "--slots", str(SLOTS), "--host", "127.0.0.1", "--idle", f"{IDLE_S}s")
        self._up(*wanted, more=("--", "--time=3", f"--output={folder}/pilot-%j.said"))

    def _begin(self) -> None:
        """Pilots come when jobs wait."""

    def _look(self) -> None:
        """Also for daemons of Slurm that ended by themselves: where the machine has no threads left, they do."""
        super()._look()
        ctld = self.slurm.ctld
        if ctld is not None and ctld.poll() is not None and "slurmctld" not in self.hurt:
            self.outcome.faults["slurmctld gave up"] += 1
            self._for(1.0, "slurmctld", self.slurm.start_ctld)
        for name, slurmd in self.slurm.slurmd.items():
            if slurmd.poll() is not None and f"slurmd {name}" not in self.hurt:
                self.outcome.faults["slurmd gave up"] += 1
                self._for(1.0, f"slurmd {name}", partial(self.slurm.start_node, name))
        if time.monotonic() >= self._next_resume_s:
            self._next_resume_s = time.monotonic() + RESUME_S
            self._resume_drained()

    def _resume_drained(self) -> None:
        """As an administrator would: a slurmctld that was killed before it wrote down a start makes it again, and Slurm
        then drains the nodes for good ("Duplicate jobid")."""
        ctld = self.slurm.ctld
        if ctld is None or ctld.poll() is not None or "slurmctld" in self.hurt:
            return
        for line in self.slurm.run("sinfo", "-h", "-N", "-p", "gpu", "-t", "drain", "-o", "%N %E").stdout.splitlines():
            name, _, why = line.partition(" ")
            if "Duplicate jobid" in why:
                self.outcome.faults["node drained by Slurm"] += 1
                self.slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def _do(self, kind: str) -> bool:
        match kind:
            case "head stands still":
                return "head" not in self.hurt and self._stand_still("head", self.processes["head"].pid)
            case "scancel" | "scancel at once" | "time limit":
                return "slurmctld" not in self.hurt and self._end_pilot(kind)
            case "slurmd":
                return self._kill_slurmd(f"n{self.rng.randrange(NODES)}")
            case "slurmctld":
                return self._kill_slurmctld()
            case "node" | "runner" | "guard" | "guards" | "node+runner+guard" | "standstill":
                homes = sorted(home for home in self.homes.iterdir() if node_of(home))
                return bool(homes) and self._strike_node(kind, self.rng.choice(homes))
        return super()._do(kind)

    def _strike_node(self, kind: str, home: Path) -> bool:
        if kind == "standstill":
            who = self.rng.choice(("node", "runner", "guard"))
            return self._stand_still(f"{who} {home.name}", node_of(home) if who == "node" else pid_of(home, who))
        some = {"guards": ["guard", "standby"], "node+runner+guard": ["runner", "guard"], "node": []}.get(kind, [kind])
        done = self._kill_of(home, *some)
        if "node" in kind and (pid := node_of(home)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return done

    def _end_pilot(self, how: str) -> bool:
        """Whose: of any that runs."""
        jobs = sorted(map(int, self.slurm.run("squeue", "-h", "-t", "running", "-o", "%A").stdout.split()))
        if not jobs:
            return False
        job = str(self.rng.choice(jobs))
        if how == "time limit":
            if self.rng.random() < 0.5:
                self._deafen(job)
            return self.slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1").returncode == 0
        at_once = () if how == "scancel" else ("--signal=KILL", "--full")
        return self.slurm.run("scancel", *at_once, job).returncode == 0

    def _deafen(self, job: str) -> None:
        """Slurm warns nodes a minute ahead, and the head empties them: now nobody does, until Slurm ends them."""
        self._kill("head")
        for home in self.homes.glob(f"gpuloom-{job}-*"):
            if pid := node_of(home):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def _kill_slurmd(self, name: str) -> bool:
        if f"slurmd {name}" in self.hurt:
            return False
        self.slurm.kill(self.slurm.slurmd[name])
        self._for(self._while(), f"slurmd {name}", lambda: self.slurm.start_node(name))
        return True

    def _kill_slurmctld(self) -> bool:
        ctld = self.slurm.ctld
        if "slurmctld" in self.hurt or ctld is None:
            return False
        self.slurm.kill(ctld)
        self._for(self._while(), "slurmctld", self.slurm.start_ctld)
        return True

    def _all_free(self) -> bool:
        gpus = [gpu for node in self._nodes() for gpu in node["gpus"]]
        return self._answers() and not any(gpu["jobs"] for gpu in gpus)

    def _leave(self) -> None:
        """Pilots are given back by themselves. What is left of them then are guards of node processes that were killed:
        they stay for some time, as such a process might come back, unless their lease is taken away."""
        wait(lambda: not self.slurm.queue(), "all pilots to be given back", PATIENCE_S)
        wait(
            lambda: all(GUARD in line for line in self._left().values()), "the ends of all pilots' runners", PATIENCE_S
        )
        for home in self.homes.iterdir():
            (home / LEASE_FILE).unlink(missing_ok=True)
        wait(lambda: not self._left(), "the ends of all guards", PATIENCE_S)

    def _left(self) -> dict[int, str]:
        """Processes of pilots' nodes, with their command lines."""
        found = {}
        for entry in procs.table().values():
            with suppress(OSError):
                line = Path("/proc", str(entry.pid), "cmdline").read_bytes()
                if f"{self.homes}/".encode() in line + Path("/proc", str(entry.pid), "environ").read_bytes():
                    found[entry.pid] = line.replace(b"\0", b" ").decode(errors="replace")
        return found


def node_of(home: Path) -> int:
    """The process of a node that works on this home; 0: none does."""
    try:
        pid = int(json.loads((home / "node.json").read_text())["pid"])
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return 0
    return pid if f"\0{home}\0".encode() in line else 0
