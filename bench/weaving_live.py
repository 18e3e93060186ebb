"""What weaving brings real processes: jobs with different bottlenecks, one after another, at once, and in turns.

    python bench/weaving_live.py                 all groups, about four minutes on two cores
    python bench/weaving_live.py --only four     one of them; --rounds 5, --window 4 for how long
    python bench/weaving_live.py --nice -19      before others, where this is allowed: a busy machine spoils the figures
    python bench/weaving_live.py --json FILE     the figures as JSON as well ('-': instead of the table)

Each job is a process that marks its stages (`gpuloom.training.job.stage`) and runs with gpuloom's hooks. What it uses
is real, and has one owner at a time at most:
    storage  bytes from a server on loopback that serves so many a second, to all together
    CPU      NumPy on the first core, so many milliseconds of CPU time
    GPU      a matrix product on the second core, so many milliseconds of CPU time
    network  bytes there and back to a second such server
The jobs run all the time. Short windows alternate, in another order every round: each job alone; all of them, without
turns; all of them, in turns (the page of their devices says so, as the scheduler has it written), first by waiting time
and then, once one has been found that does more, in an order. A load of the machine so hits all alike. Figures are sums
of a job's rates over those of the same job alone: 1 is one after another.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from _gpuloom_hooks.rotation import SKIPPED, WINDOW
from gpuloom.core.job import DeviceKind
from gpuloom.executors.devices import Weaving, made, tell
from gpuloom.solvers.linear import maximize
from gpuloom.training.inject import environment

RATE = 40e6
"""Bytes a second of each server."""
CHUNK = 40_000
"""A millisecond of it."""
ORDERED = 2 * SKIPPED + WINDOW + 16
"""Iterations after which an order of turns has been tried for a while, if one promises more."""
SETTLE_S = 0.25
"""After a change, until it is counted."""
STORAGE, CPU, GPU, NETWORK = range(4)


@dataclass(frozen=True)
class Group:
    """Jobs to put together. stages_ms: of each its milliseconds on storage, CPU, GPU and network, alone.
    ahead: they fetch their data (storage and CPU) in a thread, ahead of the computing."""

    stages_ms: tuple[tuple[float, float, float, float], ...]
    what: str
    ahead: bool = False


GROUPS = {
    "four": Group(
        ((50, 10, 12, 6), (6, 46, 12, 8), (6, 8, 50, 10), (8, 10, 12, 44)), "four jobs, each slow on another resource"
    ),
    "two": Group(((40, 10, 10, 4), (4, 6, 40, 10)), "a reader and a learner"),
    "alike": Group(((6, 8, 44, 6), (6, 8, 44, 6)), "two learners"),
    "ahead": Group(
        ((20, 4, 34, 8), (4, 20, 34, 8), (6, 6, 12, 42)), "three jobs that fetch their data ahead", ahead=True
    ),
}


# -- what the jobs use ------------------------------------------------------------------------------------------------


class Throttled(socketserver.ThreadingTCPServer):
    """Sends as many bytes as it is asked for, at `RATE` for all connections together, first come first served."""

    daemon_threads = allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Sends)
        self._turn = threading.Lock()
        self._free_s = 0.0

    def chunk(self) -> None:
        """Wait until the next chunk may go."""
        with self._turn:
            now = time.monotonic()
            self._free_s = max(now - 0.004, self._free_s) + CHUNK / RATE
            if self._free_s > now:
                time.sleep(self._free_s - now)


class Sends(socketserver.BaseRequestHandler):
    """One connection: four bytes say how many are wanted."""

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # the job was killed
            while len(asked := self.request.recv(4, socket.MSG_WAITALL)) == 4:
                left = struct.unpack("=I", asked)[0]
                while left > 0:
                    self.server.chunk()  # type: ignore[attr-defined]
                    self.request.sendall(bytes(min(left, CHUNK)))
                    left -= CHUNK


def serve() -> None:
    """Two servers, until the parent is gone; says their ports."""
    servers = [Throttled(), Throttled()]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(*[server.server_address[1] for server in servers], flush=True)
    sys.stdin.read()


class Uses:
    """What a stage does, for so many milliseconds of its resource."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._connections = [socket.create_connection(("127.0.0.1", port)) for port in ports]
        self._matrix = np.ones((64, 64)) / 64
        self._column = np.linspace(0.0, 1.0, 4096)

    def __call__(self, resource: int, ms: float) -> None:
        if resource in (STORAGE, NETWORK):
            connection = self._connections[resource == NETWORK]
            left = int(ms / 1000 * RATE)
            connection.sendall(struct.pack("=I", left))
            while left > 0:
                left -= len(connection.recv(min(left, 65536)))
            return
        cores = os.cpu_count() or 1
        os.sched_setaffinity(0, {(resource == GPU) % cores})
        end_ns = time.thread_time_ns() + int(ms * 1e6)
        while time.thread_time_ns() < end_ns:
            if resource == GPU:
                np.matmul(self._matrix, self._matrix)
            else:
                np.sort(np.sin(self._column))
        os.sched_setaffinity(0, range(cores))


class Board:
    """Shared by all: which jobs are to run, and how many iterations each has made."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        if new:
            path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            view = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
        self.runs, self.done = view[:16], view[16:32]


def work(index: int, stages_ms: Sequence[float], ahead: bool, ports: Sequence[int], path: Path) -> None:
    """A job, until it is killed."""
    from queue import Queue

    from gpuloom.training import job

    board, uses = Board(path), Uses(ports)
    ready: Queue[None] = Queue(maxsize=2)

    def fetch() -> None:
        mine = Uses(ports)
        while True:
            while not board.runs[index]:
                time.sleep(0.002)
            mine(STORAGE, stages_ms[STORAGE])
            mine(CPU, stages_ms[CPU])
            ready.put(None)

    if ahead:
        threading.Thread(target=fetch, daemon=True).start()
    for step in range(10**9):
        while not board.runs[index]:
            time.sleep(0.002)
        if ahead:
            with job.stage("storage"):
                ready.get()
        else:
            for resource in (STORAGE, CPU):
                with job.stage(job.RESOURCES[resource]):
                    uses(resource, stages_ms[resource])
        for resource in (GPU, NETWORK):
            with job.stage(job.RESOURCES[resource]):
                uses(resource, stages_ms[resource])
        board.done[index] = step + 1
        job.progress(step + 1)


# -- measuring --------------------------------------------------------------------------------------------------------


@contextmanager
def running(group: Group, folder: Path) -> Iterator[tuple[Board, Path]]:
    """The jobs of a group, which wait for the board."""
    runs = folder / "runs"
    devices = made(runs, DeviceKind.CPU, [0])
    board = Board(folder / "board", new=True)
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    ports = [int(port) for port in server.stdout.readline().split()]
    jobs = []
    try:
        for index, stages_ms in enumerate(group.stages_ms):
            run = folder / str(index)
            run.mkdir()
            env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            env |= {"GPULOOM_DEVICES_DIR": str(devices), "GPULOOM_RUN_DIR": str(run), "GPULOOM_JOB_ID": str(index + 1)}
            env |= environment(env, run / "hooks")
            words = [str(index), json.dumps([*stages_ms]), str(int(group.ahead)), json.dumps(ports)]
            jobs.append(subprocess.Popen([sys.executable, __file__, "--work", *words, str(folder / "board")], env=env))
        yield board, runs
        assert all(job.poll() is None for job in jobs), "a job has ended"
        for log in folder.rglob("hooks.log"):
            if "switched off" in (text := log.read_text()):
                raise RuntimeError(text)
    finally:
        for process in [*jobs, server]:
            process.kill()
            process.wait()


def measure(group: Group, *, rounds: int, window_s: float, seed: int) -> dict[str, object]:
    """The rates of a group's jobs in the three ways, and what they come to."""
    n = len(group.stages_ms)
    everyone = tuple(range(n))
    ways = [*(("alone", (index,)) for index in everyone), ("uncoordinated", everyone), ("turns", everyone)]
    done: dict[tuple[str, int], float] = {}
    took: dict[tuple[str, int], float] = {}
    draw = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="weaving-"))
    try:
        with running(group, folder) as (board, runs):
            for round_ in range(rounds + 1):  # the first one is for warming up
                draw.shuffle(ways)
                for way, jobs in ways:
                    tell(runs, Weaving(DeviceKind.CPU, (0,), tuple(j + 1 for j in everyone), way == "turns"))
                    for index in everyone:
                        board.runs[index] = index in jobs
                    time.sleep(SETTLE_S + (window_s if group.ahead and way == "turns" and not round_ else 0.0))
                    before, began_s = list(board.done[:n]), time.monotonic()
                    time.sleep(window_s if len(jobs) > 1 else window_s / 2)
                    after, lasted_s = list(board.done[:n]), time.monotonic() - began_s
                    measured = [(way, before, after, lasted_s)]
                    if way == "turns":  # an order is looked for, and tried
                        end_s = time.monotonic() + 12.0
                        while time.monotonic() < end_s and min(np.subtract(board.done[:n], before)) < ORDERED:
                            time.sleep(0.05)
                        before, began_s = list(board.done[:n]), time.monotonic()
                        time.sleep(window_s)
                        measured.append(("order", before, list(board.done[:n]), time.monotonic() - began_s))
                    for name, before, after, lasted_s in measured if round_ else ():
                        for index in jobs:
                            done[name, index] = done.get((name, index), 0.0) + after[index] - before[index]
                            took[name, index] = took.get((name, index), 0.0) + lasted_s
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rate = {key: done[key] / took[key] for key in done}
    gains = {way: sum(rate[way, i] / rate["alone", i] for i in everyone) for way in ("uncoordinated", "turns", "order")}
    return {
        "what": group.what,
        "stages_ms": [list(stages) for stages in group.stages_ms],
        "alone_it_per_s": [rate["alone", index] for index in everyone],
        "uncoordinated_it_per_s": [rate["uncoordinated", index] for index in everyone],
        "turns_it_per_s": [rate["turns", index] for index in everyone],
        "uncoordinated": gains["uncoordinated"],
        "turns": gains["turns"],
        "order_it_per_s": [rate["order", index] for index in everyone],
        "order": gains["order"],
        "order_over_uncoordinated": gains["order"] / gains["uncoordinated"],
        "bound": bound(group),
    }


def bound(group: Group) -> float:
    """The most that any way could do: each resource busy all the time, no job faster than alone."""
    stages = np.array(group.stages_ms)
    alone = stages.sum(axis=1)
    if group.ahead:
        alone = np.maximum(stages[:, :2].sum(axis=1), stages[:, 2:].sum(axis=1))
    rows, columns = np.indices((4, len(stages))).reshape(2, -1)
    share = (stages / alone[:, None]).T  # of each resource, that a job at its speed alone needs
    one, none = np.ones(len(stages)), np.full(4, -np.inf)
    return float(maximize(one, rows, columns, share.reshape(-1), none, np.ones(4), one).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="groups, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve()
    if given.work:
        index, stages_ms, ahead, ports, path = given.work
        return work(int(index), json.loads(stages_ms), ahead == "1", json.loads(ports), Path(path))
    if given.nice:
        os.setsid()  # some kernels share out by sessions first
        os.nice(given.nice)
        own = Path("/proc/self/autogroup")
        if own.exists():
            own.write_text(str(given.nice))
    names = given.only.split(",") if given.only else list(GROUPS)
    load = os.getloadavg()[0]
    found = {name: measure(GROUPS[name], rounds=given.rounds, window_s=given.window, seed=given.seed) for name in names}
    report = {"load_before": load, "load_after": os.getloadavg()[0], "cores": os.cpu_count(), "nice": given.nice}
    report |= {"rounds": given.rounds, "window_s": given.window, "groups": found}
    if given.json == "-":
        print(json.dumps(report, indent=1))
        return None
    print("group    jobs  bound  at once  in turns  in order  order / at once")
    for name, one in found.items():
        figures = f"{one['bound']:6.2f} {one['uncoordinated']:8.2f} {one['turns']:9.2f} {one['order']:9.2f}"
        print(f"{name:8} {len(GROUPS[name].stages_ms):4} {figures} {one['order_over_uncoordinated']:6.3f}")
    if given.json:
        Path(given.json).write_text(json.dumps(report, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
