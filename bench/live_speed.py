"""What the live scheduler costs: submissions, launches, idling, restarts, passes; over the real API.

    python bench/live_speed.py                  all of it, about four minutes; exit code 1 if a target is missed
    python bench/live_speed.py --only launch,idle
    python bench/live_speed.py --json FILE      the figures as JSON as well ('-': instead of the table)

Each part starts a scheduler of its own in a new home below --folder (by default in the system's directory for temporary
files, which decides what a write costs), and ends it with all its jobs. Baselines are measured in the same run:
    submit   rows like those of a job, committed to SQLite (write-ahead log, synchronous=FULL): as many commits
    launch   subprocess.Popen of the same program, from the call until it runs
    idle     none: shares of one core, and resident memory, of scheduler and runner together
    restart  `gpuloom up` in an empty home
    arrays   the same jobs submitted one by one
Seconds of wall clock, but for `idle`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuloom.client import Client

PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
RUNNING = 1000
QUEUED = 10_000
SAMPLES = 50
IDLE_S = 20.0
RATE_S = 20.0


@dataclass(frozen=True)
class Figure:
    """One measured figure. target: the most it may be; None: only told. baseline: what it is compared with."""

    part: str
    what: str
    unit: str
    measured: float
    target: float | None = None
    baseline: float | None = None
    baseline_of: str = ""

    @property
    def missed(self) -> bool:
        return self.target is not None and not self.measured <= self.target


# -- a scheduler ------------------------------------------------------------------------------------------------------


class Up:
    """A scheduler as a process of its own."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home, self.options = home, options
        self.client = Client(home, user="bench", patience_s=5.0)

    def start(self) -> float:
        """Start it; seconds until its ready line."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.home.mkdir(exist_ok=True)
        with (self.home / "scheduler.log").open("ab") as log:
            begun = time.perf_counter()
            self.process = subprocess.Popen(
                [*PROGRAM, "up", "--home", str(self.home), "--port", str(port), *self.options],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        took = time.perf_counter() - begun
        if not line:
            raise SystemExit(f"the scheduler does not start: {(self.home / 'scheduler.log').read_text()[-2000:]}")
        return took

    def kill(self) -> None:
        self.process.kill()
        self._gone()

    def stop(self) -> None:
        """End it and all its jobs."""
        with suppress(Exception):
            self.client.shutdown(stop_jobs=True)
            self.process.wait(60)
        if self.process.poll() is None:
            self.process.kill()
        self._gone()
        self.client.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _gone(self) -> None:
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def processes(self) -> list[int]:
        """The processes of this home, by arguments and environment."""
        needle, found = str(self.home).encode(), []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with suppress(OSError):
                    text = Path("/proc", entry, "cmdline").read_bytes() + Path("/proc", entry, "environ").read_bytes()
                    if needle in text:
                        found.append(int(entry))
        return found


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Up]:
    up = Up(Path(tempfile.mkdtemp(prefix="live-speed-", dir=folder)), *options)
    up.start()
    try:
        yield up
    finally:
        up.stop()


def wait(true: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    until = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until:
            raise SystemExit(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


def counted(up: Up, state: str) -> int:
    return int(up.client.status()["jobs"].get(state, 0))


def timed(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


# -- the parts --------------------------------------------------------------------------------------------------------


def submit(folder: Path) -> list[Figure]:
    """1,000 submissions to a machine whose slots are taken."""
    spec = {"command": ["python", "train.py", "--epochs", "3"], "name": "train", "workdir": str(folder)}
    with running(folder, "--slots", "4") as up:
        up.client.submit([{"command": ["sleep", "600"]}] * 4)
        wait(lambda: counted(up, "running") == 4, "4 jobs running")
        batches = timed(lambda: [up.client.submit([spec] * 100) for _ in range(10)])
        singles = timed(lambda: [up.client.submit(spec) for _ in range(1000)])
        assert counted(up, "queued") == 2000
    return [
        Figure(
            "submit", "1,000 jobs, 10 batches", "s", batches, 2.0, commits(folder, 10, 100), "10 commits of 100 rows"
        ),
        Figure("submit", "1,000 jobs, one by one", "s", singles, 10.0, commits(folder, 1000, 1), "1,000 commits"),
    ]


def commits(folder: Path, count: int, rows: int) -> float:
    """So many commits of so many rows with as much text as a job has."""
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        base = sqlite3.connect(f"{directory}/x.db", isolation_level=None)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")
        base.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, data TEXT)")
        text = "x" * 800

        def write() -> None:
            for _ in range(count):
                base.execute("BEGIN IMMEDIATE")
                base.executemany("INSERT INTO jobs (data) VALUES (?)", [(text,)] * rows)
                base.execute("COMMIT")

        took = timed(write)
        base.close()
        return took


def launch(folder: Path) -> list[Figure]:
    """From the call of `submit` to the moment in which the client is told that the job runs."""
    with running(folder, "--slots", "4") as up:
        told: dict[tuple[str, int], float] = {}
        wrote: dict[int, float] = {}
        news = threading.Condition()
        ready = threading.Event()

        def listen() -> None:
            with Client(up.home, patience_s=0.0) as client, suppress(Exception):
                ready.set()
                for event in client.follow_events(after=0, types=["attempt.running", "attempt.ended"]):
                    with news:
                        told[event["type"], event["job"]] = time.time()
                        if event["type"] == "attempt.running":
                            wrote[event["job"]] = event["at_s"]
                        news.notify_all()

        threading.Thread(target=listen, daemon=True).start()
        ready.wait()
        seen, written = [], []
        for sample in range(SAMPLES + 3):
            begun = time.time()
            job = up.client.submit({"command": ["sleep", "0.02"]})[0][0]
            with news:
                if not news.wait_for(lambda job=job: ("attempt.ended", job) in told, 30):  # type: ignore[misc]
                    raise SystemExit(f"job {job} does not end")
            if sample >= 3:
                seen.append(told["attempt.running", job] - begun)
                written.append(wrote[job] - begun)
    plain = []
    for _ in range(SAMPLES):
        begun = time.perf_counter()
        process = subprocess.Popen(["sleep", "0.02"])
        plain.append(time.perf_counter() - begun)
        process.wait()
    base = 1000 * statistics.median(plain)
    found = [
        Figure("launch", "submit → running, median", "ms", 1000 * statistics.median(seen), 150.0, base, "Popen"),
        Figure("launch", "submit → running, 95 %", "ms", 1000 * sorted(seen)[int(0.95 * len(seen))]),
        Figure("launch", "submit → running by the event's own time, median", "ms", 1000 * statistics.median(written)),
    ]
    return found


def idle(folder: Path) -> list[Figure]:
    """A scheduler that has run some jobs and has nothing to do."""
    with running(folder, "--slots", "4") as up:
        jobs = [group[0] for group in up.client.submit([{"command": ["true"]}] * 100)]
        up.client.wait(jobs, timeout_s=120)
        up.client.submit({"command": ["sleep", "600"], "hold": True})
        up.client.close()
        time.sleep(2.0)
        pids = up.processes()
        before = {pid: cpu_s(pid) for pid in pids}
        time.sleep(IDLE_S)
        used = sum(cpu_s(pid) - was for pid, was in before.items())
        memory = {pid: rss_mib(pid) for pid in pids}
        scheduler = memory.pop(up.process.pid)
    return [
        Figure("idle", f"CPU of scheduler and runner over {IDLE_S:g} s", "%", 100 * used / IDLE_S, 1.0),
        Figure("idle", "resident memory of scheduler and runner", "MiB", scheduler + sum(memory.values()), 150.0),
        Figure("idle", "of that, the runner", "MiB", sum(memory.values())),
    ]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def restart(folder: Path) -> list[Figure]:
    """kill -9 with 1,000 jobs running; then 10,000 more that wait."""
    empty = Up(Path(tempfile.mkdtemp(prefix="live-speed-", dir=folder)), "--slots", "4")
    first_s = empty.start()
    empty.stop()
    with running(folder, "--slots", str(RUNNING), "--policy", "tiresias") as up:
        begun = time.perf_counter()
        up.client.submit([{"command": ["sleep", "900"]}] * RUNNING)
        wait(lambda: counted(up, "running") == RUNNING, "all jobs running")
        started_s = time.perf_counter() - begun
        up.kill()
        took = up.start()
        assert counted(up, "running") == RUNNING
        said = json.loads((up.home / "server.json").read_text())["started_s"]
        began = up.client.events(types=["scheduler.started"], newest=True, limit=1)[0]["at_s"]
        ended = up.client.events(types=["attempt.ended", "attempt.starting"], newest=True, limit=1)
        assert ended[0]["type"] == "attempt.starting"
        assert ended[0]["at_s"] < began
        queue = long_queue(up)
    return [
        Figure("restart", f"{RUNNING:,} jobs started, from submission on", "s", started_s),
        Figure("restart", f"recovery, {RUNNING:,} runs re-adopted", "s", said - began, 2.0),
        Figure("restart", "`gpuloom up` to ready, the same", "s", took, None, first_s, "empty home"),
        *queue,
    ]


def long_queue(up: Up) -> list[Figure]:
    for _ in range(QUEUED // 1000):
        up.client.submit([{"command": ["true"], "gpus": 2}] * 1000)
    passes: dict[str, list[float]] = {"anew": [], "event": []}
    running_jobs = [job["id"] for job in up.client.jobs(states=["running"], limit=40)]
    waiting = [job["id"] for job in up.client.jobs(states=["queued"], limit=40)]
    wait(lambda: counted(up, "queued") == QUEUED, "all jobs queued")

    def note(kind: str, job: int) -> None:
        """The longest pass of those that a cancellation leads to."""
        before = float(up.client.status()["last_pass_s"])
        up.client.cancel([job], grace_s=0)
        seen: set[float] = set()
        until = time.monotonic() + 1.0
        while time.monotonic() < until or not seen:
            status = up.client.status()
            if status["policy_problem"] or time.monotonic() > until + 30:
                raise SystemExit(f"no pass after a cancellation: {status}")
            seen |= {float(status["last_pass_s"])} - {before}
            time.sleep(0.05)
        passes[kind].append(max(seen))

    for number in range(8):
        note("anew", waiting[number])
        note("event", running_jobs[number])
    asked = waiting[20]
    return [
        Figure(
            "queue",
            f"pass, {QUEUED:,} jobs wait, tiresias: all anew",
            "ms",
            1000 * statistics.median(passes["anew"]),
            100.0,
        ),
        Figure("queue", "the same after one job has ended", "ms", 1000 * statistics.median(passes["event"]), 100.0),
        Figure("queue", "first page of `ls`", "ms", 1000 * timed(lambda: list(up.client.jobs(limit=100)))),
        Figure("queue", "`why` with its forecast", "ms", 1000 * timed(lambda: up.client.why(asked))),
        Figure("queue", "`why` without", "ms", 1000 * timed(lambda: up.client.why(asked, forecast=False))),
    ]


def arrays(folder: Path) -> list[Figure]:
    """Half-second jobs on 4 slots: how fast they go by as single jobs, and as arrays; what is done to a large array."""
    job = {"command": ["sleep", "0.5"], "name": "half"}
    found: list[Figure] = []
    rates: dict[str, float] = {}
    for what, count in (("single jobs", 10_000), ("array", 10_000), ("array", 100_000)):
        with running(folder, "--slots", "4") as up:
            if what == "array":
                took = timed(lambda n=count: up.client.submit({**job, "array": f"0-{n - 1}"}))  # type: ignore[misc]
            else:
                took = timed(lambda: [up.client.submit([job] * 1000) for _ in range(10)])
            wait(lambda: counted(up, "finished") >= 8, "the first jobs ended")
            before, begun = counted(up, "finished"), time.perf_counter()
            time.sleep(RATE_S)
            rate = (counted(up, "finished") - before) / (time.perf_counter() - begun)
            rates[f"{what} {count}"] = rate
            single = rates["single jobs 10000"]
            found.append(Figure("arrays", f"{count:,} submitted: {what}", "s", took))
            found.append(
                Figure("arrays", f"ends with {count:,} queued: {what}", "1/s", rate, None, single, "as single jobs")
            )
            if count < 100_000:
                continue
            found.append(Figure("arrays", "single jobs' rate over the array's", "", single / rate, 1 / 0.95))
            found.append(Figure("arrays", "`status`, 100,000 queued", "ms", 1000 * timed(up.client.status)))
            found.append(
                Figure("arrays", "first page of `ls`", "ms", 1000 * timed(lambda: list(up.client.jobs(limit=100))))
            )
            found.append(Figure("arrays", "resident memory of the scheduler", "MiB", rss_mib(up.process.pid)))
            up.kill()
            found.append(Figure("arrays", "`gpuloom up` to ready, 100,000 queued", "s", up.start(), 5.0))
            took = timed(lambda: up.client.update_array(1, {"priority": 5}))
            found.append(Figure("arrays", "another priority for all of them", "s", took, 3.0))
            for action in ("hold", "release", "top", "cancel"):
                took = timed(lambda a=action: up.client.act_on_array(1, a))  # type: ignore[misc]
                found.append(Figure("arrays", f"{action} all of them", "s", took, 3.0))
    return found


PARTS: dict[str, Callable[[Path], list[Figure]]] = {
    "submit": submit,
    "launch": launch,
    "idle": idle,
    "restart": restart,
    "arrays": arrays,
}


def table(figures: Sequence[Figure]) -> str:
    lines = [f"{'part':<8} {'what':<54} {'measured':>12} {'target':>9}  baseline"]
    for one in figures:
        target = "" if one.target is None else f"≤ {one.target:g}"
        beside = ""
        if one.baseline is not None:
            beside = f"{one.baseline:.3g} {one.unit} ({one.baseline_of}), × {one.measured / one.baseline:.1f}"
        lines.append(
            f"{one.part:<8} {one.what:<54} {f'{one.measured:.3g} {one.unit}':>12} {target:>9}  {beside}"
            + ("  MISSED" if one.missed else "")
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the homes are made")
    parser.add_argument("--json", metavar="FILE", help="write the figures there; '-' for standard output")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"no part is named {unknown[0]!r}; there are {', '.join(PARTS)}")
    os.environ.pop("GPULOOM_HOME", None)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="live-speed-", dir=options.folder, ignore_cleanup_errors=True) as folder:
        for part in chosen:
            figures += PARTS[part](Path(folder))
            if options.json != "-":
                print(f"{part} done", file=sys.stderr, flush=True)
    data = {
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "figures": [asdict(f) | {"missed": f.missed} for f in figures],
    }
    if options.json == "-":
        print(json.dumps(data, indent=2))
    else:
        print(table(figures))
        if options.json:
            Path(options.json).write_text(json.dumps(data, indent=2) + "\n")
    return 1 if any(figure.missed for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
