"""As crash_at_writes.py, for moves between GPU models and for groups: the scheduler is killed at every step of every
write of them.

moves: under `hlas`, on two slots that pretend to be of two models, a job that gains much from the fast one is moved
there when another comes that gains less; and again with the next. groups: under `muri-s`, on one slot, a job that
reads and one that computes are put together; the second leaves, and a third one joins the first.

Another scheduler takes up what is left and lets all end. Then no job is lost or was run twice at once; no step that was
saved was done again; in a group nobody was started anew; what the events say of groups is what attempts say, at the
moment of the take-up and over all the time; and the store is sound.

    python tests/crash_at_moves.py FOLDER FIRST STEP moves|groups   one JSON object a line, until a run gets through
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crash_at_writes import ENDED, Mortal, in_child, of_home, wait
from gpuloom.agent.inventory import inventory
from gpuloom.core.job import NodeRecord
from gpuloom.live import parts
from gpuloom.live.facade import LiveService
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.records.history import trace_of
from gpuloom.live.submission.spec import job_spec
from gpuloom.store.home import Home, home_of
from gpuloom.store.port import JobQuery
from gpuloom.store.sqlite import SqliteStore

MODELS = ("K80", "V100")
POLICY = {"moves": "hlas:upgrade=no;min_seconds_between_moves=0", "groups": "muri-s"}
SLOTS = {"moves": 2, "groups": 1}
PROFILES = """model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s
reader,1,1,1.0,0,0,0
learner,1,1,0,0,1.0,0
"""
TRAIN = """
import fcntl, os, signal, sys, time
at = os.path.dirname(os.path.abspath(__file__)) + "/" + os.environ["GPULOOM_JOB_ID"]
lock = open(at + ".lock", "a")
def told(text):
    with open(at + ".told", "a") as file:
        file.write(text + chr(10))
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    told("doubled 0")
saved = at + ".saved"
step = int(open(saved).read()) if os.path.exists(saved) else 0
told(f"begins {step}")
def save(*_):
    with open(saved + ".new", "w") as file:
        file.write(str(step))
    os.replace(saved + ".new", saved)
    told(f"saves {step}")
    os._exit(85)
signal.signal(signal.SIGTERM, save)
while not os.path.exists(at + ".enough"):
    time.sleep(0.01)
    step += 1
"""


def _two_models(*, slots: int | None, **given: Any) -> NodeRecord:
    """This machine with slots that pretend to be of different models."""
    node = inventory(slots=slots, **given)
    return replace(node, gpus=tuple(replace(gpu, model=MODELS[gpu.index]) for gpu in node.gpus))


def opened(home: Home, store: SqliteStore, kind: str) -> tuple[LiveScheduler, LiveService]:
    if kind == "moves":
        parts.inventory = _two_models
    os.environ["GPULOOM_HOME"] = str(home.path)
    (home.path / "profiles.csv").write_text(PROFILES)
    live = LiveScheduler(home, slots=SLOTS[kind], policy=POLICY[kind], interval_s=0.0, store=store)
    live.start()
    return live, LiveService(
        live.scheduler, live.sights, machine=live.machine, store_path=str(home.db), on_stop=lambda: None
    )


class Script:
    """What is asked of a scheduler."""

    def __init__(self, home: Home, service: LiveService) -> None:
        self.home, self.service = home, service
        (home.path / "train.py").write_text(TRAIN)
        self.known = (home.path / "acknowledged").open("a")

    def submit(self, **fields: Any) -> int:
        command = [sys.executable, str(self.home.path / "train.py")]
        ((job,),) = self.service.submit([job_spec({"command": command, "grace": 5, **fields})], user="ann")
        self.known.write(f"{job}\n")
        self.known.flush()
        return job

    def on(self, job: int, gpu: int) -> None:
        """Wait until it runs on this slot, and has begun."""

        def there() -> bool:
            view = self.service.job(job)
            return view["state"] == "running" and view["where"].endswith(f":{gpu}")

        wait(there, 10.0)
        wait(lambda: (self.home.path / f"{job}.told").exists(), 10.0)

    def moves(self) -> None:
        types = {"gpu_types": list(MODELS), "estimate": 3600}
        jobs = [self.submit(gpu_types=["V100"])]
        self.on(jobs[0], 1)
        jobs.append(self.submit(name="first", speeds={"V100": 10, "K80": 1}, **types))
        self.on(jobs[1], 0)
        for faster in (2, 1.2):
            end(self.home, [jobs[-2]])
            wait(lambda: self.service.job(jobs[-2])["state"] in ENDED, 10.0)
            time.sleep(1.5)  # one that has just begun is not moved
            jobs.append(self.submit(name=f"by{faster}", speeds={"V100": faster, "K80": 1}, **types))
            self.on(jobs[-2], 1)
            self.on(jobs[-1], 0)

    def groups(self) -> None:
        first = self.submit(model="reader", estimate=3600)
        self.on(first, 0)
        second = self.submit(model="learner", estimate=3600)
        self.on(second, 0)
        end(self.home, [second])
        wait(lambda: self.service.groups() == [], 10.0)
        third = self.submit(model="learner", estimate=3600)
        self.on(third, 0)


def end(home: Home, jobs: Sequence[int]) -> None:
    for job in jobs:
        (home.path / f"{job}.enough").touch()


def live_through(home: Home, point: int, kind: str) -> None:
    store = Mortal(home.db)
    store.left = point
    live, service = opened(home, store, kind)
    script = Script(home, service)
    script.moves() if kind == "moves" else script.groups()
    live.close()


def take_up(home: Home, kind: str) -> dict[str, Any]:
    """The next scheduler; what is wrong."""
    wrong: list[str] = []
    live, service = opened(home, SqliteStore(home.db), kind)
    path = home.path / "acknowledged"
    acknowledged = {int(line) for line in path.read_text().split()} if path.exists() else set()
    jobs = [view["id"] for view in service.jobs(JobQuery(limit=10))]
    if lost := acknowledged - set(jobs):
        wrong.append(f"jobs {sorted(lost)} were acknowledged and are lost")

    def settled() -> bool:
        views = [service.job(job) for job in jobs]
        return all(view["state"] in ENDED or view["state"] == "running" for view in views)

    if not wait(settled, 30.0):
        wrong.append(f"not all run: {[(v['id'], v['state'], v['waiting']) for v in service.jobs(JobQuery())]}")

    def there() -> set[frozenset[int]]:
        return {frozenset(member["job"] for member in group["members"]) for group in service.groups()}

    if not wait(lambda: _told_groups(service) == there(), 5.0):
        wrong.append(f"the events tell of groups {_told_groups(service)}, and there are {there()}")
    end(home, jobs)
    if not wait(lambda: all(service.job(job)["state"] in ENDED for job in jobs), 30.0):
        wrong.append(f"not all jobs end: {[(v['id'], v['state'], v['waiting']) for v in service.jobs(JobQuery())]}")
    if not wait(lambda: not service.groups() and not _told_groups(service), 10.0):
        wrong.append(f"groups are left: {_told_groups(service)}")
    starts = []
    for job in jobs:
        view, attempts = service.job(job), service.show(job)["attempts"]
        if view["state"] != "finished":
            wrong.append(f"job {job} is {view['state']}: {view['reason']} {view['message']}")
        wrong += _told(home.path / f"{job}.told", job, len(attempts))
        starts.append(len(attempts))
    if kind == "groups" and max(starts, default=1) > 1:
        wrong.append(f"somebody was started anew: {starts}")
    live.close()
    with SqliteStore(home.db, read_only=True) as store:
        wrong.extend(f"{finding.what}: {finding.detail}" for finding in store.check().findings)
        if jobs:
            wrong += _history(store)
    if not wait(lambda: not of_home(home), 30.0):
        wrong.append(f"processes are left: {of_home(home)}")
    return {"starts": starts, "wrong": wrong}


def _told_groups(service: LiveService) -> set[frozenset[int]]:
    """The groups of which the events say that they are there."""
    now: set[frozenset[int]] = set()
    for event in service.events(types=["group.changed"]):
        now = {one for one in now if one.isdisjoint(event.data["was"])}
        if event.data["members"]:
            now.add(frozenset(event.data["members"]))
    return now


def _history(store: SqliteStore) -> list[str]:
    """Members of a group held the same GPUs for all its time, give or take a moment."""
    ran = trace_of(store.history(since_s=0.0, until_s=1e12), 0.0, events=store.events).ran
    if ran is None or ran.runs is None:
        return ["the history tells of no runs"]
    wrong = []
    for job, times in enumerate(ran.runs.together):
        for one in times:
            runs = [run for run in ran.runs.runs[job] if run.start_s <= one.until_s and run.end_s >= one.since_s]
            if not runs or runs[0].start_s > one.since_s + 1.0 or runs[-1].end_s < one.until_s - 1.0:
                wrong.append(f"group {one.members} lasts {one[:2]}, but row {job} runs {ran.runs.runs[job]}")
    return wrong


def _told(path: Path, job: int, attempts: int) -> list[str]:
    """What the job's processes saw, against the records."""
    wrong, saved, begun = [], 0, 0
    for line in path.read_text().splitlines() if path.exists() else ():
        what, step = line.split()
        if what == "doubled":
            wrong.append(f"two attempts of job {job} ran at once")
        elif what == "saves":
            saved = int(step)
        else:
            begun += 1
            if int(step) != saved:
                wrong.append(f"job {job} begins at step {step}, and step {saved} was saved")
    if begun > attempts:
        wrong.append(f"job {job} began {begun} times, in {attempts} attempts")
    return wrong


def main(folder: Path, first: int, step: int, kind: str) -> None:
    point = first
    while True:
        home = home_of(folder / f"p{point}").create()
        status, said = in_child(lambda: live_through(home, point, kind))  # noqa: B023 - called at once
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        found = json.loads(in_child(lambda: take_up(home, kind))[1])  # noqa: B023
        if not killed and said != "null":
            found["wrong"].append(f"the first scheduler: {said}")
        print(json.dumps({"point": point, "killed": killed, **found}), flush=True)
        if not killed:
            return
        point += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
