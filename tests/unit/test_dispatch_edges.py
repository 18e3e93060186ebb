"""Starts, ends and saves of runs, and what is kept of a policy's memory: bounds and messages."""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from fake_views import attempt, record
from gpuloom.core.errors import InputError
from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, DeviceKind, EndReason, Gpu, Job, NodeRecord, NodeState, Phase, SavedBy
from gpuloom.core.spec import Launcher, OnPreempt, Spec
from gpuloom.executors.gang_ends import unseen_end
from gpuloom.executors.kubernetes.manifest import SAID
from gpuloom.executors.local_files import LocalFiles, run_directory, same_process
from gpuloom.executors.port import Cause, RunExit, RunPhase, RunRequest, RunStatus
from gpuloom.executors.prepare import request_of
from gpuloom.executors.roster import rebooted
from gpuloom.executors.runner import cgroups
from gpuloom.facts.inputs import load_policy
from gpuloom.live.dispatch import ends, last_words, launch, saved, starts
from gpuloom.live.dispatch.in_place import in_members
from gpuloom.live.dispatch.last_words import LastWords, Where
from gpuloom.live.dispatch.recovery import take_up
from gpuloom.live.dispatch.starts import Starts, pause_after
from gpuloom.live.planning.chosen import read
from gpuloom.live.planning.policy_memory import memory_from_bytes, memory_to_bytes
from gpuloom.live.planning.world import RANK_S, Collector, Memory
from gpuloom.live.records.work import WorkDone
from gpuloom.live.submission.fields import Interval
from gpuloom.live.submission.spec import job_spec
from gpuloom.live.views.cluster import status_view
from gpuloom.live.views.policy import policy_view
from live_builders import living


def how(code: int | None = 0, reason: EndReason | None = None, **changes: Any) -> RunExit:
    plain: dict[str, Any] = {"exit_code": code, "signal": None, "reason": reason, "message": "", "at_s": 9.0}
    return RunExit(**{**plain, **changes})


def spec_of(**given: Any) -> Any:
    return job_spec({"command": ["./a"], **given}).named().kept()


def ended(end: RunExit, stop: EndReason | None = None, **given: Any) -> dict[str, Any]:
    job = given.pop("job", None) or record(
        spec=spec_of(retries=given.pop("retries", 0)), failures=given.pop("failures", 0)
    )
    plain: dict[str, Any] = {"work_s": 10.0, "complete": False, "now_s": 100.0}
    return ends.ended(job, attempt(stop_reason=stop), end, **{**plain, **given})


# -- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "retries", "after", "not_before"),
    [
        (0, 0, "failed", 0.0),
        (0, 1, "queued", 101.0),
        (3, 4, "queued", 108.0),
        (9, 99, "queued", 160.0),
        (1, 1, "failed", 0.0),
    ],
)
def test_a_job_that_failed_waits_longer_each_time(failures: int, retries: int, after: str, not_before: float) -> None:
    found = ended(how(1), retries=retries, failures=failures)
    assert (found["next"], found["not_before_s"], found["failure"]) == (after, not_before, True)
    assert (found["message"], found["saved"], found["saved_by"], found["work_s"]) == ("exit code 1", False, "", 0.0)
    assert "began" not in found


@pytest.mark.parametrize(
    ("end", "stop", "reason", "after"),
    [
        (how(0), None, "finished", "finished"),
        (how(None, EndReason.TIMED_OUT), None, "timed_out", "failed"),
        (how(None, EndReason.PREEMPTED), EndReason.CANCELLED, "cancelled", "cancelled"),
        (how(1), EndReason.CANCELLED, "cancelled", "cancelled"),
        (how(None, EndReason.CANCELLED), None, "cancelled", "cancelled"),
        (how(1), EndReason.REQUEUED, "requeued", "queued"),
        (how(None, EndReason.LOST), EndReason.PREEMPTED, "preempted", "queued"),
        (how(None, EndReason.LOST), None, "lost", "failed"),
        (how(None, EndReason.LOST, cause=Cause.RESTARTED), None, "lost", "queued"),
        (how(None, EndReason.NOT_STARTED, cause=Cause.EXECUTOR), None, "not_started", "queued"),
        (how(None, EndReason.NOT_STARTED, cause=Cause.PLACE), None, "not_started", "queued"),
        (how(None, EndReason.NOT_STARTED, cause=Cause.JOB), None, "not_started", "failed"),
        (how(None, EndReason.OUT_OF_MEMORY), EndReason.PREEMPTED, "out_of_memory", "failed"),
    ],
)
def test_why_a_run_ended_and_what_becomes_of_its_job(
    end: RunExit, stop: EndReason | None, reason: str, after: str
) -> None:
    found = ended(end, stop, pause_s=7.0)
    assert (found["reason"], found["next"]) == (reason, after)
    kept_from = reason == "not_started" and after == "queued"
    assert found["not_before_s"] == (107.0 if kept_from else 0.0)
    assert found.get("began", True) is not kept_from
    assert found["failure"] is (after == "failed" and reason != "not_started")


@pytest.mark.parametrize(
    ("end", "stop", "complete", "work_s"),
    [
        (how(0), None, False, 15.0),
        (how(0, EndReason.PREEMPTED), EndReason.PREEMPTED, True, 15.0),
        (how(1, EndReason.PREEMPTED), EndReason.PREEMPTED, True, 5.0),
        (how(0, EndReason.REQUEUED), EndReason.REQUEUED, False, 0.0),
    ],
)
def test_which_work_is_kept(end: RunExit, stop: EndReason | None, complete: bool, work_s: float) -> None:
    assert ended(end, stop, complete=complete, job=record(work_s=5.0))["work_s"] == work_s


def test_work_that_is_known_to_be_saved() -> None:
    made_way = (how(1, EndReason.PREEMPTED), EndReason.PREEMPTED)
    by = ended(*made_way, saves=saved.Saved(SavedBy.SAVED_STEP), job=record(work_s=5.0))
    assert (by["saved"], by["saved_by"], by["work_s"]) == (True, "saved_step", 15.0)
    part = ended(*made_way, saves=saved.Saved(part=0.5), job=record(work_s=5.0))
    assert (part["saved"], part["work_s"]) == (False, 7.5)
    assert "without proof that it saved: its work since the last save it reported counts as lost" in part["message"]
    less = ended(*made_way, saves=saved.Saved(part=0.1), job=record(work_s=5.0))
    assert less["work_s"] == 5.0
    assert "its work in this attempt counts as lost" in less["message"]


@pytest.mark.parametrize(
    ("end", "container", "text"),
    [
        (how(None, signal=9), False, "ended by SIGKILL"),
        (how(None, signal=99), False, "ended by signal 99"),
        (how(125), True, "exit code 125: the container could not be started; the log says why"),
        (how(126), True, "exit code 126: the container's command can't be run; the log says why"),
        (how(127), True, "exit code 127: the container has no such command; the log says why"),
        (how(127), False, "exit code 127"),
        (how(85), False, "exit code 85 means 'preempted, saved', but the job had not been asked to stop"),
        (how(3, message="out of x"), False, "out of x; exit code 3"),
        (how(0, message="out of x"), False, "out of x"),
        (how(0), False, ""),
    ],
)
def test_an_end_in_words(end: RunExit, container: bool, text: str) -> None:
    job = record(spec=spec_of(container="img") if container else spec_of())
    assert ended(end, job=job)["message"] == text


# -- starts --------------------------------------------------------------------------------------------------


def test_pauses_after_failures() -> None:
    assert [pause_after(failures) for failures in (1, 2, 3, 5, 6, 99)] == [1.0, 2.0, 4.0, 16.0, 30.0, 30.0]
    there = Starts()
    assert there.pause_s("1.1", 1, everywhere=True) == 1.5
    assert there.pause_s("1.1", 1, everywhere=False) == 1.0
    there.failed("1.1", 1, 0.0, everywhere=False, why="x")
    assert there.pause_s("1.2", 1, everywhere=False) == 2.0
    assert (there.problem, there.allowed(0.0)) == ("", math.inf)
    there.gone("1.2", 1)
    assert there.pause_s("1.3", 1, everywhere=False) == 1.0


def test_after_a_failure_starts_are_tried_one_at_a_time() -> None:
    there = Starts()
    for run in ("1.1", "2.1"):
        there.asked(run)
    there.failed("1.1", 1, 10.0, everywhere=True, why="full")
    there.failed("2.1", 2, 10.0, everywhere=True, why="full")
    assert there.problem == "full (jobs wait; the next try is within 30s)"
    first = there.next_s(waiting=True)
    assert there.allowed(first - 0.1) == 0
    assert there.allowed(first) == 1
    assert there.next_s(waiting=False) == 10.0 + starts.STALE_S == 130.0
    there.asked("3.1")
    assert there.allowed(first) == 0
    assert there.next_s(waiting=True) == math.inf
    assert there.allowed(200.0) == 0  # it is under way
    there.began("9.1", 9)  # one from before says nothing
    assert there.problem
    there.began("3.1", 3)
    assert (there.problem, there.allowed(first)) == ("", math.inf)
    there.failed("4.1", 4, 20.0, everywhere=True, why="full")
    assert there.next_s(waiting=True) == 21.0
    assert there.allowed(139.9) == 1
    assert there.problem
    assert there.allowed(140.0) == math.inf


# -- files of runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pid", "known", "same"),
    [(None, 5, True), (5, None, True), (5, 5, True), (5, 6, False)],
)
def test_whether_a_process_is_the_run_s(pid: int | None, known: int | None, same: bool) -> None:
    assert same_process((known, 1), (pid, 1)) is same
    assert not same_process((5, 1), (5, 2))


@pytest.mark.parametrize(
    ("boot", "of_run", "cause"),
    [("b", "b", Cause.NONE), ("b", "a", Cause.RESTARTED), ("", "a", Cause.NONE), ("b", None, Cause.NONE)],
)
def test_an_end_that_nobody_saw(boot: str, of_run: str | None, cause: Cause) -> None:
    found = unseen_end(1.0, begun=True, restarted=rebooted(of_run, boot))
    assert (found.reason, found.cause, found.exit_code) == (EndReason.LOST, cause, None)
    assert ("restarted" in found.message) is (cause is Cause.RESTARTED)


def request(job: Job, held: Attempt, node: NodeRecord, **given: Any) -> RunRequest:
    """What its only member is run with."""
    (one,) = launch.run_specs(job, held, {node.name: node}, **{"resumes": False, **given})
    return request_of(one, Path("/r"))


def test_the_variables_of_slurm_where_they_are_asked_for() -> None:
    node = NodeRecord("a", (Gpu(0, "G0", "V100"), Gpu(3, "G3", "V100")))
    held = attempt(number=2, allocation=(("a", (0, 3)),))
    spec = spec_of(name="n", slurm_env=True, cpus=4, memory=512, workdir="/w", env={"SLURM_JOB_ID": "of another"})
    job = record(user="ann", name="n[4]", array_id=7, array_index=4, spec=spec)
    env = request(job, held, node, resumes=True, environment={"SLURM_JOB_ID": "of another"}).env
    assert {name: text for name, text in env.items() if name.startswith("SLURM")} == {
        "SLURM_JOB_ID": "1",
        "SLURM_JOBID": "1",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NTASKS": "1",
        "SLURM_NPROCS": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "a",
        "SLURM_JOB_NODELIST": "a",
        "SLURMD_NODENAME": "a",
        "SLURM_JOB_NAME": "n",
        "SLURM_JOB_USER": "ann",
        "SLURM_SUBMIT_DIR": "/w",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_GPUS": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_GPUS": "0,3",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_CPUS_ON_NODE": "4",
        "SLURM_MEM_PER_NODE": "512",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "4",
    }
    slots = replace(node, kind=DeviceKind.CPU)
    few = request(record(spec=spec_of(slurm_env=True, cpus=0.5)), held, slots).env
    assert {"SLURM_GPUS", "SLURM_ARRAY_JOB_ID", "SLURM_MEM_PER_NODE"}.isdisjoint(few)
    assert few["SLURM_CPUS_PER_TASK"] == "1"
    plain = request(record(), held, node).env
    assert not [name for name in plain if name.startswith("SLURM")]


def test_what_a_run_is_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOME": "/h", "PATH": "/bin", "SECRET": "x"}.items():
        monkeypatch.setenv(name, value)
    node = NodeRecord("a", (Gpu(0, "G0", "V100"), Gpu(3, "G3", "V100")))
    held = attempt(allocation=(("a", (3,)),))
    job = record(name="n[4]", array_id=7, array_index=4, spec=spec_of(env={"A": "1"}, time_limit=60, cpus=2, memory=5))
    found = request(job, held, node, resumes=True, environment={"A": "1"}, limit_s=60.0)
    assert (found.gpus, found.gpu_uuids, found.cwd, found.directory) == ((3,), ("G3",), "/h", "/r/0000/1/1")
    assert (found.limit_s, found.cpus, found.memory_mib, found.resumes) == (60.0, 2.0, 5, True)
    env = {name: found.env.get(name) for name in ("A", "PYTHONUNBUFFERED", "GPULOOM_JOB_NAME", "SECRET", "PATH")}
    assert env == {"A": "1", "PYTHONUNBUFFERED": "1", "GPULOOM_JOB_NAME": "n[4]", "SECRET": None, "PATH": "/bin"}
    assert (found.env["GPULOOM_ARRAY_ID"], found.env["GPULOOM_ARRAY_INDEX"]) == ("7", "4")
    plain = request(record(), held, node)
    assert "GPULOOM_ARRAY_ID" not in plain.env
    assert not plain.resumes
    with pytest.raises(InputError, match="no longer kept: submit it again"):
        request(job, held, node, resumes=True)
    with pytest.raises(InputError, match="node a no longer has GPU 1"):
        request(record(), attempt(allocation=(("a", (1,)),)), node)


@pytest.mark.parametrize(
    ("kind", "spec", "suspends"),
    [
        (DeviceKind.GPU, {}, True),
        (DeviceKind.GPU, {"on_preempt": OnPreempt.SUSPEND}, True),
        (DeviceKind.GPU, {"on_preempt": OnPreempt.CHECKPOINT}, False),
        (DeviceKind.GPU, {"on_preempt": OnPreempt.NEVER}, False),
        (DeviceKind.GPU, {"container": "image"}, False),
        (DeviceKind.CPU, {}, False),
    ],
)
def test_which_programs_may_be_suspended(kind: DeviceKind, spec: dict[str, Any], suspends: bool) -> None:
    node = NodeRecord("a", (Gpu(0, "G0", "V100"), Gpu(1, "G1", "V100")), kind=kind)
    held = attempt(allocation=(("a", (0,)),))
    (one,) = launch.run_specs(record(spec=spec_of(**spec)), held, {"a": node}, resumes=False)
    assert one.suspends is suspends
    gang = attempt(allocation=(("a", (0,)), ("a", (1,))))
    members = launch.run_specs(record(spec=spec_of(**spec)), gang, {"a": node}, resumes=False)
    assert [one.suspends for one in members] == [False, False]


def test_pods_that_others_made_are_not_cut() -> None:
    node = NodeRecord("a", tuple(Gpu(index, f"G{index}", "V100") for index in range(8)))
    made = replace(record(), spec=Spec(("x",), gpus=6, replica_gpus=3, launcher=Launcher.ADOPTED))
    given = in_members((("a", (0, 1, 2, 3, 4, 5)),), 3)
    found = launch.run_specs(made, attempt(allocation=given), {"a": node}, resumes=False)
    assert [(one.gpus, one.launcher, one.hold) for one in found] == [
        ((0, 1, 2), Launcher.ADOPTED, True),
        ((3, 4, 5), Launcher.ADOPTED, True),
    ]
    odd = in_members((("a", (0, 1, 2, 3)),), 3)
    with pytest.raises(launch.OddPlaceError, match="its pods have 3 GPUs each, and node a has 4 for it"):
        launch.run_specs(made, attempt(allocation=odd), {"a": node}, resumes=False)


@pytest.mark.parametrize(("written", "reason"), [(True, EndReason.TIMED_OUT), (False, EndReason.LOST)])
def test_an_end_that_the_executor_forgot_is_read_from_the_run_s_files(
    tmp_path: Path, written: bool, reason: EndReason
) -> None:
    run = attempt(pid=5, start_ticks=6)
    if written:
        (directory := run_directory(tmp_path, run.run)).mkdir(parents=True)
        (directory / "run.json").write_text(json.dumps({"pid": 5, "start_ticks": 6}))
        (directory / "exit.json").write_text(json.dumps({"exit": asdict(how(None, EndReason.TIMED_OUT))}))
    dispatch: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: 50.0),
        gangs=SimpleNamespace(boot_id=lambda node: "b", files=lambda node: LocalFiles(tmp_path)),
        work=WorkDone(),
    )
    intake: Any = SimpleNamespace(statuses={})
    take_up({}, [run], dispatch, intake)
    assert list(intake.statuses) == ["1.1"]
    assert intake.statuses["1.1"].phase is RunPhase.EXITED
    assert intake.statuses["1.1"].exit.reason is reason


def test_a_look_at_a_checkpoint_that_is_over_is_not_called_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Any] = []

    class Timer:
        def __init__(self, interval: float, function: Any, args: Any) -> None:
            self.interval, self.alive = interval, False
            timers.append(self)

        def start(self) -> None:
            self.alive = True

        def cancel(self) -> None:
            self.alive = False

    class Now:
        def __init__(self, target: Any, args: Any, name: str) -> None:
            self.start = lambda: target(*args)

    monkeypatch.setattr(last_words, "threading", SimpleNamespace(Timer=Timer, Thread=Now, Lock=threading.Lock))
    (tmp_path / "c").write_text("x")
    taken: list[Any] = []
    looks = LastWords(lambda run: Where(LocalFiles(tmp_path), True, "c", str(tmp_path)) if run == "1.1" else None)
    end = RunStatus("1.1", RunPhase.EXITED, exit=how(0, EndReason.PREEMPTED))
    assert looks.wants(end)
    looks.first_look(end, lambda status, words: taken.append(words and words.checkpoint_s))
    assert taken == [(tmp_path / "c").stat().st_mtime]
    assert [(timer.interval, timer.alive) for timer in timers] == [(10.0, False)]
    for other in (
        RunStatus("2.1", RunPhase.EXITED, exit=how(0, EndReason.PREEMPTED)),
        RunStatus("1.1", RunPhase.EXITED, exit=how(None, EndReason.PREEMPTED)),
        RunStatus("1.1", RunPhase.EXITED, exit=how(0)),
        RunStatus("1.1", RunPhase.RUNNING),
    ):
        assert not looks.wants(other)
        looks.first_look(other, lambda status, words: taken.append(words))
    assert taken[1:] == [None] * 4


# -- control groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "inside", "ours", "handed"),
    [(True, "7", [], 2), (False, "", [], 2), (False, "7", [7, 8], 2), (False, "7", [8], 0)],
)
def test_which_groups_hand_controllers_down(
    tmp_path: Path, root: bool, inside: str, ours: list[int], handed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that others' processes are in is left as it is; at the root the kernel allows it."""
    offered = " ".join(cgroups.WANTED[:2])
    for name, text in {
        "cgroup.subtree_control": "",
        "cgroup.procs": inside,
        "cgroup.controllers": f"x {offered}",
    }.items():
        (tmp_path / name).write_text(text)
    if not root:
        (tmp_path / "cgroup.type").write_text("domain")

    def write(path: str, text: str) -> None:
        Path(path).write_text(text.replace("+", ""))

    monkeypatch.setattr(cgroups, "write", write)
    assert cgroups._handed_down(str(tmp_path), ours) == handed
    aside = tmp_path / "gpuloom-main" / "cgroup.procs"
    assert (aside.read_text() if aside.exists() else "") == (inside if not root and handed else "")


# -- what is kept of a policy's memory -----------------------------------------------------------------------


def test_a_policy_s_memory_comes_back() -> None:
    policy = load_policy("fifo")
    for value in (None, [1.5, 2]):
        memory = Memory(value, (4, 5), ("a", "b"), (4,), {4: (0, 1)})
        assert memory_from_bytes(memory_to_bytes(memory, policy), policy) == memory
    older = json.dumps({"jobs": [1], "nodes": ["a"], "met": [], "empty": True}).encode() + b"\n"
    assert memory_from_bytes(older, policy) == Memory(None, (1,), ("a",))
    for head in (
        b"{",
        b"[]",
        json.dumps({"jobs": [], "nodes": [], "met": [], "empty": True, "held": [[1, [0]]]}).encode(),
    ):
        with pytest.raises(InputError, match="the head of a policy's memory can't be read"):
            memory_from_bytes(head + b"\n", policy)


def test_commands_are_taken_once() -> None:
    there, command = Collector(), SimpleNamespace()
    there.apply([command], 1.0)  # type: ignore[list-item]
    assert there.take() == [command]
    assert there.take() == []
    assert RANK_S > 3 * 365 * 86_400


@pytest.mark.parametrize(
    ("written", "moves"), [("fifo", False), ("fifo:upgrade=yes", True), ("srtf", True), ("srtf:upgrade=no", False)]
)
def test_who_stops_nobody_moves_nobody_unasked(written: str, moves: bool) -> None:
    assert read(written).moves_running is moves


# -- what is shown -------------------------------------------------------------------------------------------


def test_the_policy_as_it_is_shown(tmp_path: Path) -> None:
    swaps = [Event(n, 10.0 * n, "policy.set", None, {"policy": f"p{n}"}) for n in (1, 2)]
    with living(tmp_path) as live:
        planning = live.scheduler.planning
        shown = [policy_view(planning, some, failure=None, began_s=5.0) for some in ([], swaps[1:], swaps)]
    assert [(one["since_s"], one["previous"]) for one in shown] == [(5.0, None), (20.0, None), (20.0, "p1")]


def test_gpus_are_counted_as_they_are() -> None:
    nodes = [
        NodeRecord("a", (Gpu(0, "x", "V100"), Gpu(1, "y", "V100"))),
        NodeRecord("b", (Gpu(0, "z", "V100"),), NodeState.DOWN),
    ]
    names = ("store", "executor", "monitor", "sharing", "policy_failure")
    given: dict[str, Any] = dict.fromkeys(names) | {"policy": "fifo", "policy_problem": "", "policy_lacks": ()}
    given |= {
        "home": Path("/h"),
        "started_s": 1.0,
        "now_s": 2.0,
        "interval_s": 3.0,
        "last_pass_s": 4.0,
        "jobs": {"queued": 1},
    }
    found = status_view(**given, nodes=nodes, attempts=[attempt(allocation=(("a", (0,)),))])
    assert found["gpus"] == {"total": 3, "busy": 1, "in_service": 2, "kind": "gpu"}
    assert (found["nodes"], found["pid"], found["jobs"]) == (2, os.getpid(), {"queued": 1})
    none = status_view(**given, nodes=[], attempts=[attempt(phase=Phase.FROZEN)])
    assert (none["gpus"]["total"], none["gpus"]["kind"]) == (0, "gpu")


def test_intervals_between_decisions() -> None:
    kept = TypeAdapter(Interval)
    assert [kept.validate_python(given) for given in (0, 0.1, "2m")] == [0.0, 0.1, 120.0]
    for given in (0.05, -1):
        with pytest.raises(ValidationError):
            kept.validate_python(given)


def test_pods_know_what_is_said_to_every_job_as_no_secret() -> None:
    job: Any = SimpleNamespace(name="a", id=1, submitted_s=1.0, array_index=0, array_id=1)
    sized: Any = SimpleNamespace(spec=Spec(("train",), elastic="1-2"))
    assert launch._said_to_every_job(job).keys() | launch._said_of_sizes(sized, 1).keys() == SAID
