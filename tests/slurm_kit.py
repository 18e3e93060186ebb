"""A real Slurm of four nodes on this machine, in a folder of its own: slurmctld and four slurmd, as whoever runs it.

Nodes n0 to n3 have two stand-in GPUs each (character devices that any machine has). It ends its own processes only.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")
NODES, GPUS, CPUS = 4, 2, 16

CONF = """\
ClusterName=kit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=10
MessageTimeout=4
KillWait=3
OverTimeLimit=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
GresTypes=gpu
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
NodeName=n[0-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[4]}] CPUs={cpus} RealMemory=4000 {gres}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def devices() -> list[str]:
    """Character devices that stand in for GPUs; [] where there are none."""
    found = [f"/dev/tty{number}" for number in range(GPUS)]
    return found if all(Path(device).is_char_device() for device in found) else []


def missing_programs() -> list[str]:
    """Programs of Slurm that are not here."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in NEEDED if shutil.which(name, path=path) is None]


def _free_ports(count: int) -> list[int]:
    """Ports in a row that nobody uses, below those that the system gives away by itself."""
    # Each process has twenty of its own to begin with: a daemon that is away for a while finds its port free again.
    for first in range(20_000 + 20 * (os.getpid() % 500), 32_000, count):
        with suppress(OSError):
            listeners = []
            try:
                for port in range(first, first + count):
                    listeners.append(socket.create_server(("127.0.0.1", port)))
            finally:
                for listener in listeners:
                    listener.close()
            return list(range(first, first + count))
    raise AssertionError("no free ports")


def wait(found: Callable[[], Any], what: str, timeout_s: float = 150.0) -> Any:
    """As `until`, for what is asked of programs: not as often."""
    end = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)
    return value


class RealSlurm:
    """A Slurm that runs. env: what its commands need. cpus: of each node."""

    def __init__(self, folder: Path, *, cpus: int = CPUS) -> None:
        self.folder, self.gpus = folder, bool(devices())
        ports = _free_ports(NODES + 1)
        host = socket.gethostname().partition(".")[0]
        gres = f"Gres=gpu:{GPUS}" if self.gpus else ""
        conf = CONF.format(host=host, user=getpass.getuser(), ports=ports, folder=folder, cpus=cpus, gres=gres)
        self.conf = folder / "slurm.conf"
        self.conf.write_text(conf)
        if self.gpus:
            (folder / "gres.conf").write_text(f"Name=gpu File=/dev/tty[0-{GPUS - 1}] Flags=nvidia_gpu_env\n")
        (folder / "state").mkdir()
        for number in range(NODES):
            (folder / f"spool.n{number}").mkdir()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.env = {**clean, "SLURM_CONF": str(self.conf), "PATH": f"{clean.get('PATH', '')}:/usr/sbin:/sbin"}
        self.ctld: subprocess.Popen[bytes] | None = None
        self.slurmd: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start it all; returns once all nodes are idle."""
        self.start_ctld()
        for number in range(NODES):
            self.start_node(f"n{number}")
        wait(lambda: self.said("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T").split() == ["idle"] * NODES, "idle nodes")

    def start_ctld(self) -> None:
        self.ctld = self._daemon("slurmctld", "-D", "-f", str(self.conf))

        def answers() -> bool:
            assert self.ctld is not None
            if self.ctld.poll() is not None:  # its port was taken for a moment
                time.sleep(1.0)
                self.ctld = self._daemon("slurmctld", "-D", "-f", str(self.conf))
            return self.run("scontrol", "ping").returncode == 0

        wait(answers, "slurmctld")

    def start_node(self, name: str) -> None:
        self.slurmd[name] = self._daemon("slurmd", "-D", "-f", str(self.conf), "-N", name)

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.out").open("ab") as output:
            return subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder
            )

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.env, input=text, capture_output=True, text=True, timeout=60, check=False, cwd=self.folder
        )

    def said(self, *command: str, text: str = "") -> str:
        done = self.run(*command, text=text)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def state(self, job: int) -> str:
        """Of a job, as squeue writes it; '' if it is not known any more."""
        return self.run("squeue", "-h", "--states=all", "-o", "%T", "-j", str(job)).stdout.strip()

    def queue(self) -> list[int]:
        """Jobs that have not ended."""
        return [int(word) for word in self.said("squeue", "-h", "-o", "%A").split()]

    def clear(self) -> None:
        """End all jobs, and wait until all nodes are free."""
        if jobs := self.queue():
            self.run("scancel", "--signal=KILL", "--full", *map(str, jobs))
            self.run("scancel", *map(str, jobs))
        wait(lambda: not self.queue(), "the end of all jobs")
        for name in self.said("sinfo", "-h", "-N", "-p", "gpu", "-t", "down,drain", "-o", "%N").split():
            self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        wait(
            lambda: set(self.said("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T").split()) == {"idle"},
            "idle nodes",
        )

    def kill(self, daemon: subprocess.Popen[bytes]) -> None:
        """SIGKILL to one of its daemons."""
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(10)

    def close(self) -> None:
        """End everything."""
        if self.ctld is not None and self.ctld.poll() is None:
            with suppress(AssertionError):
                self.clear()
        for daemon in (*self.slurmd.values(), *filter(None, [self.ctld])):
            daemon.terminate()
        for daemon in (*self.slurmd.values(), *filter(None, [self.ctld])):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)


@contextmanager
def real_slurm(folder: Path) -> Iterator[RealSlurm]:
    """A Slurm while the block runs; skips where its programs are missing."""
    if lacking := missing_programs():
        pytest.skip(f"no Slurm here ({', '.join(lacking)} missing): scripts/install-system-parts installs it")
    slurm = RealSlurm(folder)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()
