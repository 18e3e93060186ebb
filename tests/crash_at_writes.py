"""Kills a scheduler at every step of every write of its store, lets another one take up what is left, and looks.

A program of its own, run by tests/integration/test_live_crashes.py: it forks, which a test process with threads must
not. For each point: a child runs a scheduler with real processes on a new home and dies by SIGKILL at that point; then
another child takes the home up, waits for the end of all jobs and checks that nothing is lost, doubled or left behind.

    python tests/crash_at_writes.py FOLDER FIRST STEP      one JSON object a line, until a run gets through unharmed
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuloom.core.errors import ConflictError, GpuloomError
from gpuloom.live.facade import LiveService
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.submission.spec import job_spec
from gpuloom.store.home import Home, home_of
from gpuloom.store.port import JobQuery
from gpuloom.store.sqlite import SqliteStore

ENDED = ("finished", "failed", "cancelled")


class Mortal(SqliteStore):
    """Dies at the n-th point of writing."""

    left = 1 << 60

    def _at(self, point: str) -> None:
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def opened(home: Home, store: SqliteStore) -> tuple[LiveScheduler, LiveService]:
    live = LiveScheduler(home, slots=3, policy="fifo", interval_s=0.0, store=store)
    live.start()
    return live, LiveService(
        live.scheduler, live.sights, machine=live.machine, store_path=str(home.db), on_stop=lambda: None
    )


def wait(true: Callable[[], bool], timeout_s: float) -> bool:
    until, pause_s = time.monotonic() + timeout_s, 0.005
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.05)
    return True


def live_through(home: Home, point: int) -> None:
    """Submit, hold, cancel, finish, until it dies."""
    store = Mortal(home.db)
    store.left = point
    live, service = opened(home, store)
    marks = home.path / "marks"
    acknowledged = (home.path / "acknowledged").open("a")

    def submit(*commands: str, **fields: Any) -> list[int]:
        specs = [job_spec({"command": ["sh", "-c", command], "grace": 1, **fields}) for command in commands]
        jobs = [job for group in service.submit(specs, user="ann", idempotency_key=commands[0]) for job in group]
        acknowledged.write("".join(f"{job}\n" for job in jobs))
        acknowledged.flush()
        return jobs

    quick = f'echo "$GPULOOM_JOB_ID" >> {marks}; sleep 0.05; true 1'
    first = submit(quick)
    many = submit(f"{quick}2", f"{quick}3", f"{quick}4")
    held = submit(f"{quick}5", hold=True)
    long = submit(f'echo "$GPULOOM_JOB_ID" >> {marks}; sleep 60')
    service.release(held)
    submit(f"{quick}6", after=first)
    wait(lambda: service.job(long[0])["state"] == "running", 5.0)
    service.cancel(long)
    wait(lambda: all(service.job(job)["state"] in ENDED for job in (*first, *many, *held, *long)), 5.0)
    live.close()


def take_up(home: Home) -> dict[str, Any]:
    """The next scheduler; what is wrong, and how long it took until it was ready."""
    wrong: list[str] = []
    begun = time.perf_counter()
    live, service = opened(home, SqliteStore(home.db))
    ready_s = time.perf_counter() - begun
    jobs = {view["id"]: view for view in service.jobs(JobQuery(limit=1000))}
    path = home.path / "acknowledged"
    acknowledged = {int(line) for line in path.read_text().split()} if path.exists() else set()
    if lost := acknowledged - jobs.keys():
        wrong.append(f"jobs {sorted(lost)} were acknowledged and are lost")
    for view in jobs.values():
        with suppress(ConflictError):  # it has ended since it was looked at
            if view["state"] == "held":
                service.release([view["id"]])
            elif view["command"][-1].endswith("sleep 60") and view["state"] not in ENDED:
                service.cancel([view["id"]])
    if not wait(lambda: all(v["state"] in ENDED for v in service.jobs(JobQuery(limit=1000))), 60.0):
        wrong.append(f"not all jobs end: {[(v['id'], v['state'], v['waiting']) for v in service.jobs(JobQuery())]}")
    marks = home.path / "marks"
    times = Counter(map(int, marks.read_text().split())) if marks.exists() else Counter()
    for view in service.jobs(JobQuery(limit=1000)):
        ran = times[view["id"]]
        if ran > 1 or (view["state"] == "finished" and ran != 1):
            wrong.append(f"job {view['id']} ({view['state']}, {view['reason']}) ran {ran} times")
        if view["state"] == "failed":
            wrong.append(f"job {view['id']} failed: {view['reason']} {view['message']}")
    live.close()
    with SqliteStore(home.db, read_only=True) as store:
        wrong.extend(f"{finding.what}: {finding.detail}" for finding in store.check().findings)
    if not wait(lambda: not of_home(home), 30.0):
        wrong.append(f"processes are left: {of_home(home)}")
    return {"jobs": len(jobs), "ready_s": ready_s, "wrong": wrong}


def of_home(home: Home) -> list[int]:
    """Processes that belong to this home, by their environment or arguments; not this one."""
    needle = str(home.path).encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in (os.getpid(), os.getppid()):
            try:
                text = Path("/proc", entry, "environ").read_bytes() + Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if needle in text:
                found.append(int(entry))
    return found


def in_child(work: Callable[[], object]) -> tuple[int, str]:
    """Do it in a forked process: (status as of `waitpid`, what it returned as JSON)."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 0
        try:
            os.write(write, json.dumps(work()).encode())
        except GpuloomError as error:
            os.write(write, json.dumps({"wrong": [f"{type(error).__name__}: {error}"]}).encode())
        except BaseException as error:
            os.write(write, json.dumps({"wrong": [repr(error)]}).encode())
            code = 1
        os._exit(code)
    os.close(write)
    text = b""
    while part := os.read(read, 65536):
        text += part
    os.close(read)
    return os.waitpid(child, 0)[1], text.decode()


def main(folder: Path, first: int, step: int) -> None:
    point = first
    while True:
        home = home_of(folder / f"p{point}").create()
        status, said = in_child(lambda: live_through(home, point))  # noqa: B023 - called at once
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        found = json.loads(in_child(lambda: take_up(home))[1])  # noqa: B023
        if not killed and said != "null":
            found["wrong"].append(f"the first scheduler: {said}")
        print(json.dumps({"point": point, "killed": killed, **found}), flush=True)
        if not killed:
            return
        point += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
