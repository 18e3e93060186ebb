"""What the live commands say of jobs, GPUs and times, word by word, at the edges of each rule."""

from __future__ import annotations

import time
from collections import Counter
from io import StringIO
from typing import Any

import click
import pytest

from gpuloom.cli import control, jobs, live, live_tables, show
from gpuloom.cli.live_tables import Column, ended_words, left_words, predicted_end, progress_of, short_reason
from gpuloom.core.errors import InputError
from gpuloom.core.spec import Spec
from gpuloom.core.words import plural

PLAIN: dict[str, Any] = {
    "id": 7, "name": "a", "user": "ada", "state": "running", "reason": None, "message": "", "exit_code": None,
    "gpus": 2, "replicas": None,
    "priority": 0, "attempts": 1, "progress": {}, "waiting": None, "flags": {}, "time_limit_s": None,
    "ended_s": None,
    "predicted_end_s": None, "predicted_end_s_low": None, "predicted_end_s_high": None, "overrun_s": 0.0,
    "estimate_from": "given", "estimate_runs": 0, "waited_s": 5.0, "run_s": 70.0, "where": "n:0", "usage": {},
    "changed": True, "array_id": None,
}  # fmt: skip


def job(**changes: Any) -> Any:
    return {**PLAIN, **changes}


# -- tables -----------------------------------------------------------------------------------------------------------


def columns(*given: tuple[str, bool, bool]) -> list[Column[tuple[str, ...]]]:
    return [Column(t, lambda r, i=i: r[i], right=right, gives=gives) for i, (t, right, gives) in enumerate(given)]  # type: ignore[misc]


def test_a_plain_table(capsys: pytest.CaptureFixture[str]) -> None:
    live_tables.show_table(columns(("no", True, False), ("name", False, True)), [("1", "漢字\n"), ("1000", "x" * 200)])
    assert capsys.readouterr().out == f"  no  name\n   1  漢字\n1000  {'x' * 200}\n"


def test_a_terminal_gets_plain_columns_of_very_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    drawn: list[int] = []
    monkeypatch.setattr(live_tables, "rich_table", lambda columns, rows, width: drawn.append(len(rows)))
    monkeypatch.setattr("sys.stdout", Terminal())
    for rows in (500, 501):
        live_tables.show_table(columns(("no", True, False)), [("1",)] * rows)
    assert drawn == [500]


@pytest.mark.parametrize(
    ("natural", "gives", "width", "fitted"),
    [
        ([5, 10, 9], (1, 2), 28, [5, 10, 9]),
        ([5, 10, 9], (1, 2), 27, [5, 9, 9]),
        ([5, 10, 9], (1, 2), 25, [5, 8, 8]),
        ([5, 10, 9], (1, 2), 10, [5, 4, 4]),
        ([5, 10, 9], (), 10, [5, 10, 9]),
        ([5, 3, 9], (1,), 10, [5, 3, 9]),
    ],
)
def test_columns_that_may_be_cut_are_the_widest_first(
    natural: list[int], gives: tuple[int, ...], width: int, fitted: list[int]
) -> None:
    asked = columns(*((str(n), False, n in gives) for n in range(3)))
    assert live_tables._fitted(asked, natural, width) == fitted


def test_a_text_that_is_cut_ends_in_dots() -> None:
    assert [live_tables._cut("abcdef", n) for n in (6, 5, 4)] == ["abcdef", "abcd…", "abc…"]
    assert live_tables._cut("ab cdef", 4) == "ab…"
    assert live_tables._cut("漢字漢字", 6) == "漢字…"
    assert [live_tables._padded("ab", 4, right) for right in (True, False)] == ["  ab", "ab  "]
    assert live_tables.shortened("a \n b" + "c" * 130) == "a b" + "c" * 116 + "…"


# -- a job's state ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        ({}, ""),
        ({"step": 1500}, "step 1,500"),
        ({"step": 15, "steps": 60}, "25%"),
        ({"step": 15, "steps": 0}, "step 15"),
        ({"step": 0, "steps": 1}, "0%"),
        ({"step": 15, "steps": 60, "fraction": 0.5}, "50%"),
        ({"fraction": 0.994}, "99%"),
        ({"fraction": "half"}, ""),
        ({"step": "x", "steps": 60}, ""),
        ({"step": 3, "steps": "x"}, "step 3"),
    ],
)
def test_progress_in_a_word(progress: dict[str, Any], said: str) -> None:
    assert progress_of(job(progress=progress)) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "finished", "reason": "failed", "message": "x"}, ""),
        ({"reason": "failed"}, "failed"),
        ({"reason": "failed", "exit_code": 0}, "exit code 0"),
        ({"reason": "failed", "exit_code": 3, "message": "no such file"}, "no such file"),
        ({"reason": "timed_out", "time_limit_s": 90.0, "message": "x"}, "time limit of 1m 30s"),
        ({"reason": "not_started"}, "could not be started"),
        ({"reason": "not_started", "message": "no shell"}, "no shell"),
        ({"reason": "out_of_memory", "message": "x"}, "out of memory"),
        ({"reason": "lost"}, "lost: nobody saw its end"),
        ({"reason": "node"}, "moved: its machine was drained"),
        ({"reason": "cancelled"}, ""),
        ({"reason": "cancelled", "message": "by ada"}, "by ada"),
        ({"reason": None, "message": "dependency"}, "dependency"),
        ({"reason": "preempted"}, "preempted"),
    ],
)
def test_how_a_job_ended(fields: dict[str, Any], said: str) -> None:
    assert ended_words(job(**{"state": "failed", **fields})) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "queued", "waiting": {"text": "No GPU is free."}, "attempts": 0}, "No GPU is free."),
        ({"state": "queued", "waiting": {"text": "Full."}, "reason": "preempted"}, "Full; preempted before"),
        ({"state": "queued", "reason": "failed", "attempts": 1}, "to be tried again"),
        ({"state": "queued", "reason": "failed", "attempts": 0}, ""),
        ({"state": "queued", "reason": "lost"}, "lost before"),
        ({"state": "queued", "reason": "node"}, "moved: its machine was drained"),
        ({"state": "queued", "reason": "cancelled"}, ""),
        ({"state": "held", "waiting": {"text": "It is held."}, "reason": "preempted"}, "It is held."),
        ({"state": "running", "flags": {"a": "Idle.", "b": "Slow."}}, "Idle; Slow."),
        ({"state": "failed", "reason": "lost", "waiting": {"text": "x"}}, "lost: nobody saw its end"),
        ({"state": "cancelled", "message": "by ada"}, "by ada"),
    ],
)
def test_why_a_job_is_as_it_is(fields: dict[str, Any], said: str) -> None:
    assert short_reason(job(**fields)) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "-"),
        ({"overrun_s": 65.0, "predicted_end_s": 200.0}, "late 1m 05s"),
        ({"predicted_end_s": 160.0, "predicted_end_s_high": 900.0}, "1m 00s"),
        ({"predicted_end_s": 60.0}, "0s"),
        ({"predicted_end_s_high": 220.0}, "< 2m 00s"),
        ({"predicted_end_s_high": 20.0}, "< 0s"),
    ],
)
def test_how_long_a_job_will_run_yet(fields: dict[str, Any], said: str) -> None:
    assert left_words(job(**fields), 100.0) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "queued", "predicted_end_s": 160.0}, ""),
        ({"predicted_end_s": 160.0}, "in 1m 00s (by its estimate)"),
        ({"state": "starting", "predicted_end_s": 160.0, "estimate_from": "progress"},
         "in 1m 00s (by its own progress)"),
        (
            {"predicted_end_s": 160.0, "predicted_end_s_low": 155.0, "predicted_end_s_high": 165.0,
             "estimate_from": "earlier_runs", "estimate_runs": 3},
            "in 55s to 1m 05s (by 3 runs of the same)",
        ),
        (
            {"predicted_end_s": 1100.0, "predicted_end_s_low": 1060.0, "predicted_end_s_high": 1110.0,
             "estimate_from": "array", "estimate_runs": 1},
            "in 16m 40s (by 1 run of its array)",
        ),
        ({"predicted_end_s": 105.0, "predicted_end_s_low": 104.5, "predicted_end_s_high": 105.5},
         "in 5s (by its estimate)"),
        (
            {"predicted_end_s": 105.0, "predicted_end_s_low": 104.0, "predicted_end_s_high": 106.0},
            "in 4s to 6s (by its estimate)",
        ),
        ({"overrun_s": 30.0, "predicted_end_s": 110.0}, "past its estimate by 30s"),
        (
            {"overrun_s": 30.0, "predicted_end_s_high": 160.0, "estimate_from": "earlier_runs", "estimate_runs": 3},
            "past what earlier runs took by 30s; at the latest in 1m 00s, its time limit",
        ),
        (
            {"estimate_from": "unknown"},
            "unknown: none of its earlier runs has finished, and it has no --estimate",
        ),
        (
            {"estimate_from": "time_limit", "predicted_end_s_high": 160.0},
            "unknown: none of its earlier runs has finished, and it has no --estimate; at the latest in 1m 00s, "
            "its time limit",
        ),
    ],
)  # fmt: skip
def test_when_a_job_is_expected_to_end(fields: dict[str, Any], said: str) -> None:
    assert predicted_end(job(**fields), 100.0) == said


# -- rates ------------------------------------------------------------------------------------------------------------


def test_rates_of_a_job_and_of_none() -> None:
    usage = {
        "gpu_utilization": 90.6, "gpu_memory_mib": 2560.0, "cpu_cores": 1.25, "memory_mib": 512.0,
        "read_mib_per_s": 1000.06, "write_mib_per_s": 0.0,
    }  # fmt: skip
    cells = {c.title: (c.cell(job(usage=usage)), c.cell(job())) for c in live_tables.rate_columns([], 100.0)}
    assert cells == {
        "id": ("7", "7"), "name": ("a", "a"), "user": ("ada", "ada"), "state": ("running", "running"),
        "where": ("n:0", "n:0"), "ran": ("1m 10s", "1m 10s"), "left": ("-", "-"), "done": ("", ""),
        "GPU %": ("91", "-"), "GPU GiB": ("2.5", "-"), "cores": ("1.2", "-"), "GiB": ("0.5", "-"),
        "read MiB/s": ("1,000.1", "-"), "write MiB/s": ("0.0", "-"),
    }  # fmt: skip


def test_rows_of_jobs() -> None:
    cells = {c.title: c.cell(job(progress={"fraction": 0.5}, flags={"a": "Idle."})) for c in live_tables.JOB_COLUMNS}
    assert cells == {
        "id": "7", "name": "a", "user": "ada", "state": "running", "gpus": "2", "where": "n:0", "waited": "5s",
        "ran": "1m 10s", "done": "50%", "reason": "Idle.",
    }  # fmt: skip
    assert [c.cell(job(run_s=0.0)) for c in live_tables.JOB_COLUMNS if c.title == "ran"] == [""]


NODE: dict[str, Any] = {
    "name": "n", "kind": "gpu", "state": "up", "cpus": 64, "cpu_percent": 12.6, "memory_used_mib": 1536,
    "memory_mib": 65536, "disk_free_mib": 2048, "load": 0.25, "reason": "a fan",
    "cut": "", "source": "here", "suspended": [],
}  # fmt: skip
GPU: dict[str, Any] = {
    "index": 3, "model": "H100", "state": "foreign", "jobs": [4, 5], "utilization": 99.5, "memory_used_mib": 1024,
    "memory_mib": None, "temperature_c": 60.4, "power_w": None, "reason": "",
    "foreign": [{"name": "game", "user": "eve", "pid": 12}],
}  # fmt: skip


def test_rows_of_nodes_and_gpus() -> None:
    node: Any = {**NODE, "gpus": [GPU, {**GPU, "jobs": []}]}
    slots: Any = {**node, "kind": "cpu"}
    assert {c.title: c.cell(node) for c in live_tables.NODE_COLUMNS} == {
        "node": "n", "state": "up", "busy": "1/2 GPUs", "cores": "64", "CPU %": "13", "GiB": "1.5/64.0",
        "disk free GiB": "2.0", "load": "0.2", "reason": "a fan",
    }  # fmt: skip
    assert next(c for c in live_tables.NODE_COLUMNS if c.title == "busy").cell(slots) == "1/2 CPU slots"
    assert live_tables.node_columns([node]) == live_tables.NODE_COLUMNS
    lie = node | {"suspended": [{"job": 3, "mib": 1024.0}, {"job": 4, "mib": 512.0}]}
    cells = {column.title: column.cell(lie) for column in live_tables.node_columns([node, lie])}
    assert cells["GiB suspended"] == "1.5 (jobs 3-4)"
    assert {column.title: column.cell(node) for column in live_tables.node_columns([node, lie])}["GiB suspended"] == "-"
    pilot: Any = {
        **node,
        "source": "slurm",
        "engine_job": "77",
        "until_s": None,
        "cut": "its link is cut",
        "reason": "",
    }
    cells = {c.title: c.cell(pilot) for c in live_tables.node_columns([node | {"until_s": None}, pilot])}
    assert (cells["from"], cells["model"], cells["state"]) == ("Slurm 77", "H100", "cut off")
    assert cells["reason"] == "its link is cut"
    assert "ours until" not in cells
    assert "ours until" in {c.title for c in live_tables.node_columns([pilot | {"until_s": 1.0}])}
    assert {c.title: c.cell((node, node["gpus"][0])) for c in live_tables.GPU_COLUMNS} == {
        "node": "n", "no": "3", "model": "H100", "state": "foreign", "jobs": "4,5", "GPU %": "100", "GiB": "1.0",
        "°C": "60", "W": "-", "reason": "game (eve, pid 12)",
    }  # fmt: skip
    odd: Any = {**GPU, "model": "", "reason": "hot"}
    cells = {c.title: c.cell((node, odd)) for c in live_tables.GPU_COLUMNS}
    assert (cells["model"], cells["reason"]) == ("-", "hot; game (eve, pid 12)")


def test_the_schedulers_troubles() -> None:
    fine = {"ok": True, "problem": ""}
    status: Any = {"policy_problem": "", "store": fine, "executor": fine, "monitor": fine}
    assert live_tables.troubles(status) == []
    status |= {
        "policy_problem": "it fails",
        "store": {"ok": False, "problem": ""},
        "monitor": {**fine, "problem": "late"},
    }
    assert live_tables.troubles(status) == ["policy: it fails", "store: not ok", "monitor: late"]


# -- ls, show ---------------------------------------------------------------------------------------------------------


class Jobs:
    """A client that has jobs, and remembers what it was asked for."""

    def __init__(self, *found: Any) -> None:
        self.found, self.asked = found, list[Any]()

    def jobs(self, states: Any = (), limit: int | None = None, **asked: Any) -> list[Any]:
        self.asked.append((tuple(states), limit))
        return [one for one in self.found if one["state"] in states][:limit]


MANY = [
    job(id=1, state="finished", ended_s=50.0), job(id=2, state="failed", ended_s=60.0), job(id=3, state="held"),
    job(id=4, state="queued", priority=1), job(id=5, state="queued"), job(id=6, state="queued", priority=9),
    job(id=9, state="running"), job(id=8, state="frozen"), job(id=10, state="cancelled", ended_s=60.0),
]  # fmt: skip
FIRST = [8, 9, 6, 4, 5, 3]


@pytest.mark.parametrize(
    ("every", "states", "limit", "shown", "asked"),
    [
        (False, (), None, [*FIRST, 2, 10, 1], [(jobs.OPEN, None), (jobs.ENDED, 5)]),
        (False, (), 7, [*FIRST, 1], [(jobs.OPEN, None), (jobs.ENDED, 1)]),
        (False, (), 6, FIRST, [(jobs.OPEN, None)]),
        (False, (), 20, [*FIRST, 2, 10, 1], [(jobs.OPEN, None), (jobs.ENDED, 5)]),
        (True, (), None, [*FIRST, 2, 10, 1], [(jobs.OPEN, None), (jobs.ENDED, None)]),
        (True, (), 20, [*FIRST, 2, 10, 1], [(jobs.OPEN, None), (jobs.ENDED, 14)]),
        (False, ("failed",), None, [2], [(("failed",), None)]),
        (False, ("held", "failed"), 2, [3, 2], [(("held",), None), (("failed",), 1)]),
        (False, ("held",), 1, [3], [(("held",), None)]),
    ],
)
def test_which_jobs_are_listed(
    every: bool, states: tuple[str, ...], limit: int | None, shown: list[int], asked: list[Any]
) -> None:
    client: Any = Jobs(*MANY)
    found, hidden = jobs.listed(client, every=every, states=states, users=(), names=(), limit=limit)
    assert [one["id"] for one in found] == shown
    assert client.asked == asked
    assert not hidden


def test_jobs_over_the_limit_are_counted_by_state() -> None:
    client: Any = Jobs(*MANY)
    found, hidden = jobs.listed(client, every=False, states=("queued", "held", "running"), users=(), names=(), limit=2)
    assert [one["id"] for one in found] == [9, 6]
    assert hidden == Counter(queued=2, held=1)
    assert jobs._counts(MANY) == "1 running, 1 frozen, 3 queued, 1 held, 1 finished, 1 failed, 1 cancelled"
    assert jobs._counts([]) == "no jobs"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "1 GPU"),
        (
            {"gpus": 4, "gpu_types": ("H100", "A100"), "gpu_memory": 40960, "cpus": 8.0, "memory": 2048,
             "time_limit": 90.0, "priority": -1, "container": ""},
            "4 GPUs, of H100 or A100, 40,960 MiB on each, 8 cores, 2,048 MiB, at most 1m 30s, priority -1",
        ),
        ({"share_class": "high"}, "1 GPU, class high"),
        ({"share_class": "high", "gpus": 2}, "2 GPUs"),
    ],
)  # fmt: skip
def test_what_a_job_asks_for(fields: dict[str, Any], said: str) -> None:
    assert show._requests(Spec(("a",), **fields)) == said


RUN: dict[str, Any] = {
    "number": 2, "state": "running", "where": "n:0", "started_s": 0.0, "held_s": 70.0, "ended_s": 80.0, "reason": None,
    "message": "", "signal": None, "exit_code": None, "saved": False, "peak_memory_mib": 2048.4, "members": [],
    "kept": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ended_s": None, "reason": "failed"}, "running"),
        ({"reason": "finished", "exit_code": 0}, "finished"),
        ({"reason": "failed", "signal": 9, "exit_code": 137}, "failed, signal 9"),
        ({"reason": "failed", "exit_code": 3}, "failed, exit code 3"),
        ({"reason": "failed", "exit_code": 3, "message": "exit code 3"}, "failed, exit code 3"),
        ({"reason": "preempted", "saved": True}, "preempted, checkpoint saved"),
        ({"reason": "timed_out"}, "time limit"),
    ],
)
def test_how_an_attempt_ended(fields: dict[str, Any], said: str) -> None:
    run: Any = {**RUN, **fields}
    cells = {c.title: c.cell(run) for c in show.ATTEMPT_COLUMNS}
    assert cells["how it ended"] == said
    assert (cells["attempt"], cells["peak MiB"]) == ("2", "2,048")
    assert cells["held GPUs"] == ("" if fields.get("ended_s", 1) is None else "1m 10s")


SHOWN: dict[str, Any] = {
    **PLAIN, "command": ["a b", "c"], "submitted_s": 0.0, "jct_s": None, "after": [[3, "ok"], [4, "any"]],
    "attempts": 1,
}  # fmt: skip


def test_with_whom_a_job_shares(capsys: pytest.CaptureFixture[str]) -> None:
    members = [{"job": number, "expected_rate": None, "expected_from": None} for number in (1, 4, 5, 6)]
    group: Any = {"members": members, "gpus": {"n": [0]}, "since_s": time.time() - 60.0, "efficiency": None}
    group["gain"] = None
    said = shown(capsys, {}, [], group=group, id=1)["shares with"]
    assert said == "4-6, since 1m 00s ago (gpuloom ls --groups)"
    said = shown(capsys, {}, [], group=group | {"efficiency": 0.514}, id=1)["shares with"]
    assert said == "4-6, since 1m 00s ago, γ 0.51 (gpuloom ls --groups)"
    said = shown(capsys, {}, [], group=group | {"gain": 1.432}, id=1)["shares with"]
    assert said == "4-6, since 1m 00s ago, together 1.43 of one alone (gpuloom ls --groups)"
    assert "shares with" not in shown(capsys, {}, [])


def shown(capsys: pytest.CaptureFixture[str], spec: Any, runs: list[Any], **fields: Any) -> dict[str, str]:
    found: Any = {"job": {**SHOWN, **fields}, "spec": {"command": ["a"], **spec}, "speeds": [], "attempts": runs}
    found |= {
        "log": "",
        "sizes": [],
        "resizes": [],
        "suspensions": [],
        "makes_way": None,
        "cost_usd": fields.pop("cost_usd", None),
        "gpu_memory": fields.pop("gpu_memory", None),
        "hooks": fields.pop("hooks", None),
        "group": fields.pop("group", None),
        "launcher": fields.pop("launcher", None),
    }
    show._show(found)
    lines = capsys.readouterr().out.splitlines()
    return {line[:15].rstrip(" :"): line[15:] for line in lines}


def test_gpu_memory_that_was_measured_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def said(source: str, runs: int) -> str | None:
        need = {"mib": 9_001, "source": source, "runs": runs}
        return shown(capsys, {}, [], gpu_memory=need).get("GPU memory")

    assert said("measured", 3) == "9,001 MiB on each GPU, measured in 3 earlier runs"
    assert said("measured", 0) == "9,001 MiB on each GPU, measured in this job"
    assert said("given", 0) is None, "it is among what was asked for"


def test_what_starts_the_processes_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert "launcher" not in shown(capsys, {}, [])
    assert shown(capsys, {}, [], launcher="torchrun")["launcher"] == "torchrun (recognised by the command)"
    assert shown(capsys, {"per": "gpu"}, [], launcher="direct")["launcher"] == "direct"
    given = {"launcher": "tensorflow", "ps": 2}
    assert shown(capsys, given, [], launcher="tensorflow")["launcher"] == "tensorflow, 2 parameter servers"


def test_the_resizes_of_a_job_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"at_s": time.time() - 60.0, "attempt": 2, "from_replicas": 1, "to_replicas": 3, "why": "made_room"}
    paid = {"jobs": [4], "cost_s": 3.25, "lost_steps": 2.0, "cost_from": "steps"}
    unpaid = {"attempt": 3, "jobs": [], "cost_s": None, "lost_steps": None, "cost_from": None}
    found: Any = {"job": SHOWN, "spec": {"command": ["a"], "elastic": "1-4"}, "speeds": [], "attempts": [], "log": ""}
    found |= {
        "sizes": [],
        "group": None,
        "launcher": None,
        "gpu_memory": None,
        "hooks": None,
        "cost_usd": None,
        "makes_way": None,
    }
    show._show(found | {"resizes": [{**one, **paid}, {**one, **unpaid}], "suspensions": []})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[-3:] == [
        "attempt replicas resized stood still steps lost why",
        "2 1 → 3 1m 00s ago 3.2s 2 it made room for job 4",
        "3 1 → 3 1m 00s ago - - it made room for other jobs",
    ]


def test_when_a_job_was_suspended_and_when_not(capsys: pytest.CaptureFixture[str]) -> None:
    then = time.time() - 60.0
    there = {"at_s": then, "mib": 9002.0, "out_s": 6.345, "back_at_s": then + 30.0, "in_s": 1.671, "why_not": ""}
    there["why_ended"] = ""
    tried = {**there, "rehearsal": True}
    away = {**there, "back_at_s": None, "in_s": None, "rehearsal": False}
    never = {**away, "mib": None, "out_s": None, "why_not": "error 801"}
    ended = {**away, "why_ended": "it lay suspended for 4h 00m, the longest that it may"}
    how = {"way": "checkpoint", "why": "its program was not rehearsed yet"}
    found: Any = {"job": SHOWN, "spec": {"command": ["a"], "on_preempt": "suspend"}, "speeds": [], "attempts": []}
    found |= {
        "sizes": [],
        "group": None,
        "launcher": None,
        "gpu_memory": None,
        "hooks": None,
        "cost_usd": None,
        "makes_way": None,
    }
    show._show(found | {"log": "", "resizes": [], "suspensions": [tried, never, away, ended], "makes_way": how})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "if preempted: it has its notice and ends, as its program was not rehearsed yet" in lines
    assert lines[-5:] == [
        "GPU memory moved when GPU MiB out went on back remarks",
        "to try it 1m 00s ago 9,002 6.3s 30s ago 1.7s",
        "to make way 1m 00s ago - - - - not suspended: error 801",
        "to make way 1m 00s ago 9,002 6.3s - -",
        "to make way 1m 00s ago 9,002 6.3s - - told to end: it lay suspended for 4h 00m, the longest that it may",
    ]


def test_all_that_is_known_of_a_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 100.0)
    found = shown(capsys, {}, [], exit_code=3, predicted_end_s=160.0, flags={"a": "Idle."})
    assert found == {
        "job": "7  a  of ada", "state": "running: Idle.", "command": "'a b' c", "in": "-", "asks for": "1 GPU",
        "where": "n:0", "submitted": "1m 40s ago", "waited, ran": "5s, 1m 10s",
        "predicted end": "in 1m 00s (by its estimate)", "after": "3 (ended well), 4 (ended)", "log": "-",
    }  # fmt: skip
    ended = {"state": "failed", "jct_s": 90.0, "ended_s": 90.0, "exit_code": 0, "after": [], "where": ""}
    found = shown(capsys, {"env": {"A": "1"}, "workdir": "/w"}, [RUN], **ended, progress={"fraction": 0.5})
    assert "attempt  where started" in next(name + text for name, text in found.items() if name.startswith("attempt"))
    assert [found[name] for name in ("state", "in", "where", "ended", "exit code", "done")] == [
        "failed", "/w", "-", "10s ago, 1m 30s after submission", "0", "50%",
    ]  # fmt: skip
    members = [
        {
            "rank": 0,
            "node": "n",
            "gpus": [0, 1],
            "pid": 11,
            "reason": "peer",
            "exit_code": None,
            "signal": 15,
            "message": "",
        },
        {
            "rank": 1,
            "node": "m",
            "gpus": [2],
            "pid": None,
            "reason": "failed",
            "exit_code": 3,
            "signal": None,
            "message": "",
        },
    ]
    rows = shown(capsys, {}, [{**RUN, "members": members}], **ended)
    said = " | ".join(name + text for name, text in rows.items())
    assert "member node GPUs pid how it ended" in " ".join(said.split())
    assert "2 0 n 0,1 11 ended with its gang, signal 15" in " ".join(said.split())
    assert "2 1 m 2 - failed, exit code 3" in " ".join(said.split())
    assert found["environment"] == "1 variable (--json names them; values are not shown)"
    assert not {"after", "predicted end"} & set(found)


def test_a_sentence_on_a_job_that_has_ended() -> None:
    assert jobs.ended_line(job(state="finished")) == "job 7 a: finished, ran 1m 10s, waited 5s"
    failed = job(state="failed", reason="failed", exit_code=3)
    assert jobs.ended_line(failed) == "job 7 a: failed (exit code 3), ran 1m 10s, waited 5s"


# -- words ------------------------------------------------------------------------------------------------------------


def test_times_and_runs_of_numbers() -> None:
    assert [live.short(s) for s in (None, -1.0, 0.04, 61.26, 59.96)] == ["-", "0s", "0s", "1m 01s", "1m 00s"]
    assert live.ago(None) == "-"
    assert [live.ago(at, 1000.0) for at in (1000.0, 1001.0, 1001.5, 939.6, 1060.0)] == [
        "0s ago", "0s ago", "in 1.5s", "1m 00s ago", "in 1m 00s",
    ]  # fmt: skip
    assert [live.runs_of(n) for n in ([], [3], [3, 4], [3, 4, 6, 8, 9, 10])] == ["", "3", "3-4", "3-4, 6, 8-10"]
    assert live.plain("a\nb\x1b[1m\u202e") == "a b�[1m�"
    assert (live.PATIENCE_S, plural(2, "job")) == (300.0, "2 jobs")


@pytest.mark.parametrize(
    ("text", "at"), [("100000000", 1e8), ("123456789.5", 123456789.5), ("2026-11-21T14:30+00:00", 1795271400.0),
                     ("99999999s", 1e9 - 99999999), ("2h", 1e9 - 7200)],
)  # fmt: skip
def test_points_in_time(text: str, at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert live.Moment().convert(text, None, None) == at
    assert live.Moment().convert(4.0, None, None) == 4.0


def test_what_is_no_time_and_no_size() -> None:
    with pytest.raises(click.BadParameter, match="'soon' is not a time: write how long ago"):
        live.Moment().convert("soon", None, None)
    with pytest.raises(click.BadParameter, match="much"):
        live.Memory().convert("much", None, None)
    assert live.Memory().convert("2G", None, None) == 2048


class Numbers:
    def __init__(self, *found: int) -> None:
        self.found = list(found)

    def numbers(self, written: Any) -> list[int]:
        return self.found


def test_one_job_or_at_least_one() -> None:
    none, one, two = (Numbers(*found) for found in ((), (4,), (4, 5)))
    assert live.one_number(one, "4") == 4  # type: ignore[arg-type]
    for client, count in ((none, 0), (two, 2)):
        with pytest.raises(InputError, match=f"'4-5' stands for {count} jobs; this command takes one"):
            live.one_number(client, "4-5")  # type: ignore[arg-type]
    assert live.numbers(two, ["4-5"]) == [4, 5]  # type: ignore[arg-type]
    assert live.numbers(none, [], least=0) == []  # type: ignore[arg-type]
    with pytest.raises(click.UsageError, match="which job"):
        live.numbers(none, [])  # type: ignore[arg-type]


# -- what was done to jobs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("done", "said"),
    [
        ([], ["no job that this applies to"]),
        ([job(id=n, name="a[1]", array_id=1) for n in (1, 2)], ["job 1 a[1]: held", "job 2 a[1]: held"]),
        ([job(id=n, changed=n > 1) for n in (1, 2)], ["job 1 a: held already", "job 2 a: held"]),
        ([job(id=n) for n in range(10)], [f"job {n} a: held" for n in range(10)]),
        ([job(id=n) for n in range(11)], ["11 jobs (0-10): held"]),
        (
            [job(id=n, name=f"a[{n}]", array_id=1, changed=n != 4) for n in range(1, 12)],
            ["11 jobs of array 1 a (1-11): 10 held, 1 held already"],
        ),
        (
            [job(id=n, array_id=1) for n in range(11)] + [job(id=20)],
            ["11 jobs of array 1  (0-10): held", "job 20 a: held"],
        ),
        ([job(id=2 * n) for n in range(11)], ["11 jobs (0 to 20): held"]),
        (
            [job(id=2 * n, array_id=1, name="b[3]") for n in range(10)] + [job(id=30), job(id=31)],
            ["10 jobs of array 1 b (0, 2, 4, 6, 8, 10, 12, 14, 16, 18): held", "job 30 a: held", "job 31 a: held"],
        ),
    ],
)
def test_jobs_that_were_changed(done: list[Any], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    control.report(done, False, lambda one: control._or_already(one, "held"))
    assert capsys.readouterr().out.splitlines() == said


def test_whole_arrays_that_were_changed(capsys: pytest.CaptureFixture[str]) -> None:
    changed = {5: {"queued": 1}, 6: {}, 7: {"queued": 2000, "running": 1, "frozen": 2}}
    control.act_on_arrays(
        [5, 6, 7], changed.__getitem__, lambda state: "q" if state == "queued" else "stops", "is held"
    )
    told = capsys.readouterr()
    assert told.out.splitlines() == ["1 job of array 5: q", "2,003 jobs of array 7: 2,000 q, 3 stops"]
    assert told.err == "none of 6_ is held\n"


def test_which_arrays_are_reported_as_a_whole() -> None:
    class Arrays:
        def jobs(self, array: int, limit: int) -> list[int]:
            assert limit == 11
            return list(range({1: 11, 2: 10}[array]))

    client: Any = Arrays()
    words = ("1_", "2_", "3", "1_4", "1234567890123456_", "x_")
    assert control.split_large_arrays(client, words, False) == ([1], list(words[1:]))
    assert control.split_large_arrays(client, words, True) == ([], list(words))


def test_ended_jobs_were_not_told_to_stop() -> None:
    assert [control._ended(job(state=s)) for s in ("running", "cancelled", "failed")] == [
        "told to stop", "cancelled", "failed",
    ]  # fmt: skip
    assert control._ended(job(state="cancelled", changed=False)) == "cancelled already"


def test_what_a_job_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, {}, [], cost_usd=1234.5)["cost"] == "$1,234.50 at on-demand prices (gpuloom gpus)"
    assert all("cost" not in shown(capsys, {}, [], cost_usd=unknown) for unknown in (None, 0.0))


def test_where_its_trackers_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    links = [{"tracker": "wandb", "where": "https://w"}, {"tracker": "tensorboard", "where": "/runs\x1b[2J"}]
    said = shown(capsys, {}, [], hooks={"links": links, "measured": None})
    assert (said["W&B"], said["TensorBoard"]) == ("https://w", "/runs�[2J")
