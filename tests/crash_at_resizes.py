"""As crash_at_writes.py, for an elastic job: the scheduler is killed at every step of every write of its resizes.

The job runs on 4 slots, a process each, makes room for another one, and grows again; then a process of it is killed,
and it goes on. Another scheduler takes up what is left and lets it end; then: no attempt ran beside another, none had
fewer replicas than the least or more than the slots, no step that was saved was done again, and what its records say of
replicas is what its processes saw.

    python tests/crash_at_resizes.py FOLDER FIRST STEP      one JSON object a line, until a run gets through unharmed
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from crash_at_writes import ENDED, Mortal, in_child, of_home, wait
from gpuloom.live.facade import LiveService
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.submission.spec import job_spec
from gpuloom.store.home import Home, home_of
from gpuloom.store.port import JobQuery
from gpuloom.store.sqlite import SqliteStore

LEAST, SLOTS = 2, 4
TRAIN = """
import fcntl, os, signal, sys, time
at = os.path.dirname(os.path.abspath(__file__))
rank, attempt = os.environ["RANK"], os.environ["GPULOOM_ATTEMPT"]
lock = open(at + "/lock" + rank, "a")
def told(text):
    with open(at + "/told", "a") as file:
        file.write(text + chr(10))
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    told("doubled 0 0")
if rank != "0":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(85))
    with open(at + f"/{attempt}.{rank}.new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(at + f"/{attempt}.{rank}.new", at + f"/{attempt}.{rank}.pid")
    while not os.path.exists(at + "/enough"):
        time.sleep(0.01)
    sys.exit(0)
saved = at + "/saved"
step = int(open(saved).read()) if os.path.exists(saved) else 0
told(f"begins {os.environ['GPULOOM_REPLICAS']} {step} {attempt}")
def save(*_):
    with open(saved + ".new", "w") as file:
        file.write(str(step))
    os.replace(saved + ".new", saved)
    told(f"saves 0 {step}")
    os._exit(85)
signal.signal(signal.SIGTERM, save)
while not os.path.exists(at + "/enough"):
    time.sleep(0.01)
    step += 1
"""


def opened(home: Home, store: SqliteStore) -> tuple[LiveScheduler, LiveService]:
    live = LiveScheduler(home, slots=SLOTS, policy="elastic-goodput", interval_s=0.0, store=store)
    live.start()
    return live, LiveService(
        live.scheduler, live.sights, machine=live.machine, store_path=str(home.db), on_stop=lambda: None
    )


def live_through(home: Home, point: int) -> None:
    """Start at 4, shrink to 2 for another job, grow to 4 again, lose a replica, until it dies."""
    store = Mortal(home.db)
    store.left = point
    live, service = opened(home, store)
    (home.path / "train.py").write_text(TRAIN)
    command = [sys.executable, str(home.path / "train.py")]
    train = job_spec({"command": command, "elastic": f"{LEAST}-8", "per": "gpu", "grace": 5, "name": "train"})
    ((job,),) = service.submit([train], user="ann")

    def has(replicas: int) -> bool:
        view = service.job(job)
        return view["state"] == "running" and (view["replicas"] or {}).get("now") == replicas

    wait(lambda: has(4), 10.0)
    wait(lambda: (home.path / "told").exists(), 10.0)
    other = job_spec({"command": ["sleep", "60"], "gpus": 2, "grace": 1, "name": "other"})
    ((second,),) = service.submit([other], user="ann")
    wait(lambda: has(2) and service.job(second)["state"] == "running", 10.0)
    service.cancel([second])
    wait(lambda: has(4), 10.0)
    last = service.job(job)["attempts"]
    wait((home.path / f"{last}.{SLOTS - 1}.pid").exists, 10.0)
    os.kill(int((home.path / f"{last}.{SLOTS - 1}.pid").read_text()), signal.SIGKILL)
    wait(lambda: service.job(job)["attempts"] > last and has(4), 10.0)
    live.close()


def take_up(home: Home) -> dict[str, Any]:
    """The next scheduler; what is wrong."""
    wrong: list[str] = []
    live, service = opened(home, SqliteStore(home.db))
    jobs = service.jobs(JobQuery(limit=10))
    if others := [view["id"] for view in jobs if view["name"] == "other" and view["state"] not in ENDED]:
        service.cancel(others)
    trains = [view["id"] for view in jobs if view["name"] == "train"]

    def grown() -> bool:
        view = service.job(trains[0])
        return view["state"] == "running" and (view["replicas"] or {}).get("now") == SLOTS

    if trains and not wait(grown, 30.0):
        wrong.append(f"it does not grow again: {service.job(trains[0])}")
    (home.path / "enough").touch()
    if not wait(lambda: all(v["state"] in ENDED for v in service.jobs(JobQuery(limit=10))), 30.0):
        wrong.append(f"not all jobs end: {[(v['id'], v['state'], v['waiting']) for v in service.jobs(JobQuery())]}")
    sizes: list[int] = []
    for job in trains:
        wait(lambda job=job: service.job(job)["state"] in ENDED, 5.0)  # the list is of the store, which is ahead
        view, attempts = service.job(job), service.show(job)["attempts"]
        if view["state"] != "finished" or view["retries_left"]:
            wrong.append(f"it is {view['state']}: {view['reason']} {view['message']}")
        sizes = [one["replicas"] or 0 for one in attempts]
        wrong += _told(home.path / "told", {one["number"]: one["replicas"] for one in attempts})
    live.close()
    with SqliteStore(home.db, read_only=True) as store:
        wrong.extend(f"{finding.what}: {finding.detail}" for finding in store.check().findings)
    if not wait(lambda: not of_home(home), 30.0):
        wrong.append(f"processes are left: {of_home(home)}")
    return {"sizes": sizes, "wrong": wrong}


def _told(path: Path, records: dict[int, int | None]) -> list[str]:
    """What the job's processes saw, against the records."""
    wrong, saved = [], 0
    for line in path.read_text().splitlines() if path.exists() else ():
        what, replicas, step, *attempt = line.split()
        if what == "doubled":
            wrong.append("two attempts ran at once")
        elif what == "saves":
            saved = int(step)
        else:
            if not LEAST <= int(replicas) <= SLOTS or records.get(int(attempt[0])) != int(replicas):
                wrong.append(f"attempt {attempt[0]} saw {replicas} replicas; records: {records}")
            if int(step) != saved:
                wrong.append(f"attempt {attempt[0]} begins at step {step}, and step {saved} was saved")
    return wrong


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
