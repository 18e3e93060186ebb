"""Lines of events, heads of `top`, the demo's story, groups of figures of traces, profiles: word by word."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from builders import jobs as make_jobs
from gpuloom.cli import events, explain, logs, nodes, profiles, trace, watch
from gpuloom.cli.demo import jobs as demo
from gpuloom.cli.demo.jobs import PLAN, Planned, Story
from gpuloom.client.logs import LogPiece
from gpuloom.core.errors import InputError
from gpuloom.core.profile import Profile
from gpuloom.core.workload import Labels
from gpuloom.sim.explain import Alternative


def at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


# -- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, ""),
        ({"a": None, "b": "", "c": False, "d": [], "boot_id": "x", "start_ticks": 3, "failure": "f"}, ""),
        ({"estimates": 1}, ""),
        ({"gpus": 2, "real_time": True, "rate": 0.123456789, "who": "ada", "after": [1, 2]},
         "gpus 2, real time true, rate 0.123457, who ada, after [1, 2]"),
        ({"spec": {"name": "a", "gpus": 1}, "message": "it began", "text": "so"}, "a, it began, so"),
        ({"spec": {}}, ""),
        ({"held_s": 61.0, "run_time_s": -5.0, "waited_s": 99_999_999.0}, "held 1m 01s, run time -5s, waited 1157d 10h"),
        ({"ended_s": 1.5e9 - 2}, f"ended {at(1.5e9 - 2)}"),
        ({"ended_s": 1.5e9 - 1.9, "deadline_s": 1.5e9}, f"ends by {at(1.5e9)}"),
        ({"ended_s": 1.5e9 + 1.9}, ""),
        ({"stopped_at_s": 1e8}, f"stopped at {at(1e8)}"),
        ({"held_s": "x"}, "held s x"),
        ({"gpu_memory_mib": 20480.4, "memory_mib": "all"}, "gpu memory 20,480 MiB, memory mib all"),
        ({"reason": "node"}, "moved: its machine was drained"),
        ({"reason": "failed"}, "reason failed"),
        ({"node": {"name": "n", "state": "up", "reason": ""}}, "n up"),
        ({"node": {"name": "n", "state": "draining", "reason": "a fan"}}, "n draining a fan"),
        ({"node": "n"}, "node n"),
        ({"allocation": [["n", [0, 1]], ["m", [3]]]}, "n:0,1;m:3"),
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": 3, "message": "exit code 3"}, "exit code 3"),
        ({"exit_code": 0, "saved": True}, "saved true"),
        ({"estimate_s": 60.0, "estimate_from": "unknown"}, ""),
        ({"estimate_s": 60.0, "estimate_from": "time_limit", "x": 1}, "x 1"),
        ({"estimate_s": 60.0, "estimate_from": "given"}, "estimate 1m 00s, estimate from given"),
        ({"message": "x" * 200}, "x" * 200),
        ({"message": "x" * 201}, "x" * 199 + "…"),
    ],
)  # fmt: skip
def test_the_data_of_an_event(data: dict[str, Any], said: str) -> None:
    assert events._data_text(data, 1.5e9) == said


def test_lines_of_events() -> None:
    event: Any = {"id": 7, "at_s": 1.5e9, "type": "node.up", "job": None, "data": {}}
    assert events._line(event) == f"     7  {at(1.5e9)}  node.up"
    event |= {"job": 12, "data": {"a": 1}}
    assert events._line(event) == f"     7  {at(1.5e9)}  node.up            job 12     a 1"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0"), (0.5, "0.50 s"), (0.6, "0.01 min"), (35.9, "0.60 min"), (36, "0.01 h"), (7_200_000, "2,000.00 h")],
)
def test_gpu_time(seconds: float, said: str) -> None:
    assert events._gpu_time(seconds) == said


USE = {"key": "a", "gpu_s": 3600.0, "jobs": 1000, "attempts": 2, "failed": 0, "cost_usd": None}
USE |= {"suspensions": 0, "suspended_s": 0.0, "suspended_mib": 0.0}


@pytest.mark.parametrize("by", ["user", "day"])
def test_usage_most_first_but_days_in_order(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [USE, {**USE, "key": "b", "gpu_s": 10_800.0, "jobs": 1}]
    monkeypatch.setattr(events, "connect", lambda home: nullcontext(SimpleNamespace(usage=lambda **_: found)))
    lines = CliRunner().invoke(events.usage, ["--by", by]).stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["a", "1.00", "h", "25%", "1,000", "2", "0"],
        ["b", "3.00", "h", "75%", "1", "2", "0"],
    ][:: -1 if by == "user" else 1]
    found[1]["cost_usd"] = 7.44
    lines = CliRunner().invoke(events.usage, ["--by", by]).stdout.splitlines()
    assert sorted(line.split()[4] for line in lines[1:]) == ["$7.44", "-"], "where one is known there is a column"
    found[1] |= {"suspensions": 2, "suspended_s": 600.0, "suspended_mib": 1536.0}
    lines = CliRunner().invoke(events.usage, ["--by", by]).stdout.splitlines()
    assert "suspended" in lines[0]
    assert any("2 times, 10m" in line and line.rstrip().endswith("1.5 GiB") for line in lines)
    assert any("0 times" in line and line.rstrip().endswith(" -") for line in lines)
    found.clear()
    assert CliRunner().invoke(events.usage, []).stdout == "nothing was used in that time\n"
    found.append({**USE, "gpu_s": 0.0})
    assert CliRunner().invoke(events.usage, []).stdout.splitlines()[1].split() == ["a", "0", "0%", "1,000", "2", "0"]


# -- top, nodes -------------------------------------------------------------------------------------------------------

FINE = {"ok": True, "problem": ""}
STATUS: dict[str, Any] = {
    "version": "1", "policy": "fifo", "started_s": 100.0, "now_s": 165.4, "jobs": {"queued": 1500},
    "policy_problem": "", "store": FINE, "executor": FINE, "monitor": FINE,
}  # fmt: skip
GPU = {"jobs": [3]}
NODE: dict[str, Any] = {
    "name": "n", "kind": "gpu", "state": "up", "gpus": [GPU, {"jobs": []}], "cpu_percent": 12.6, "cpus": 64,
    "memory_used_mib": 1536, "memory_mib": 2048, "load": 1.25, "reason": "",
}  # fmt: skip


def test_heads_of_top() -> None:
    bare = {
        "cpu_percent": None,
        "memory_used_mib": None,
        "load": None,
        "kind": "cpu",
        "reason": "a fan",
        "state": "down",
    }
    found: Any = {
        "status": STATUS,
        "nodes": [NODE, {**NODE, **bare}, {**NODE, "cpus": None, "memory_mib": 0}],
        "jobs": [1],
        "groups": [
            {
                "members": [{"job": 12, "share": 0.81}, {"job": 13, "share": None}],
                "gpus": {"n": [0]},
                "order": [13, 12],
                "gain": 1.434,
            },
        ],
    }
    assert watch._heads(found) == [
        "gpuloom 1, up 1m 05s, policy fifo; 1 job on GPUs, 1,500 queued, 0 held",
        "n up, 1 of 2 GPUs busy, CPU 13% of 64 cores, memory 1.5 of 2.0 GiB, load 1.2",
        "n down, 1 of 2 CPU slots busy, a fan",
        "n up, 1 of 2 GPUs busy, CPU 13% of ? cores, load 1.2",
        "together on n:0: jobs 13, 12 (0.81), measured gain 1.43",
    ]
    early: Any = {
        "status": {**STATUS, "now_s": 99.0, "jobs": {"held": 2}, "policy_problem": "x"},
        "nodes": [],
        "jobs": [],
        "groups": [],
    }
    assert watch._heads(early) == ["policy: x", "gpuloom 1, up 0s, policy fifo; 0 jobs on GPUs, 0 queued, 2 held"]


@pytest.mark.parametrize(
    ("state", "changed", "said"),
    [
        ("running", True, "runs already; top moves waiting jobs"),
        ("starting", True, "runs already; top moves waiting jobs"),
        ("queued", True, "first in the queue (priority 5)"),
        ("held", False, "first in the queue already (priority 5)"),
    ],
)
def test_a_job_that_was_moved_to_the_top(state: str, changed: bool, said: str) -> None:
    job: Any = {"state": state, "changed": changed, "priority": 5}
    assert watch._moved(job) == said


@pytest.mark.parametrize(
    ("state", "held", "said"),
    [
        ("up", [3], "n: up"),
        ("cordoned", [], "n: cordoned; no new job starts there"),
        ("cordoned", [3], "n: cordoned; no new job starts there, job 3 keeps running"),
        ("cordoned", [3, 4], "n: cordoned; no new job starts there, jobs 3-4 keep running"),
        ("draining", [3, 3], "n: draining; no new job starts there, job 3 moves"),
        ("draining", [3, 5], "n: draining; no new job starts there, jobs 3, 5 move"),
    ],
)
def test_what_becomes_of_a_node(state: str, held: list[int], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    node: Any = {**NODE, "state": state, "gpus": [{"jobs": [job]} for job in held]}
    nodes._say(node, False)
    assert capsys.readouterr().out == f"{said}\n"


# -- logs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "start", "lines"),
    [
        ([(0, b"a\n"), (2, b"b")], 0, [(0, b"a\n"), (0, b"b")]),
        ([(5, b"x\nab\n")], 0, [(7, b"ab\n")]),
        ([(5, b"x\nab\n")], 5, [(0, b"x\nab\n")]),
        ([(5, b"cut"), (8, b"off\nab")], 0, [(0 + 5 + 7, b"ab")]),
        ([(5, b"y" * (1 << 16))], 0, [(5, b"y" * (1 << 16))]),
        ([(5, b"y" * ((1 << 16) - 1))], 0, []),
        ([(0, b"a\n"), (9, b"x\nb")], 0, [(0, b"a\n"), (9, b"b")]),
        ([(7, b"")], 0, [(7, b"")]),
    ],
)
def test_whole_lines_of_a_log(pieces: list[tuple[int, bytes]], start: int, lines: list[tuple[int, bytes]]) -> None:
    given: Any = [SimpleNamespace(start=first, content=content) for first, content in pieces]
    assert {"start", "content"} <= set(dir(LogPiece)) | set(LogPiece.__annotations__)
    assert list(logs.whole_lines(given, start)) == lines


# -- the demo ---------------------------------------------------------------------------------------------------------


def test_the_plan_of_the_demo() -> None:
    assert [(job.name[0], job.at_s, job.gpus, job.work_s) for job in PLAN] == [
        ("a", 0.0, 4, 14.0), ("b", 1.5, 1, 3.0), ("c", 2.5, 2, 8.0), ("d", 4.0, 1, 10.0), ("e", 5.5, 2, 4.0),
        ("f", 7.5, 1, 6.0), ("g", 11.5, 3, 5.0), ("h", 15.0, 1, 2.0),
    ]  # fmt: skip
    assert [Planned("x", 0.0, 1, work).steps for work in (0.0, 0.05, 0.24, 3.0)] == [1, 1, 5, 60]


def test_the_story_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "last_report", lambda home, job, attempt: {})
    story = Story(tmp_path)

    def tell(kind: str, at_s: float, job: Any = 5, **data: Any) -> list[str]:
        return story.tell([{"id": 9, "type": kind, "job": job, "at_s": at_s, "data": data}])

    assert story.chart(1, 3.0, 10) == [""]
    assert tell("node.up", 1.0, None) == []
    spec = {"name": "alpha", "gpus": 2, "estimate": 9.0}
    assert tell("jobs.submitted", 10.0, spec=spec) == ["   0.0 s  submitted  alpha     2 slots, 9 s of work"]
    tell("jobs.submitted", 11.0, 6, spec={**spec, "name": "bravo"})
    assert (story.began_s, story.last, story.state[5]) == (10.0, 9, "queued")
    allocation = [["n", [0, 2]]]
    assert tell("attempt.starting", 12.0, attempt=1, allocation=allocation) == [
        "   2.0 s  starts     alpha     on slots 0,2"
    ]
    assert story.progress(5) == (0, 0)
    assert tell("attempt.stopping", 13.0) == ["   3.0 s  notice     alpha     is asked to save and free its GPUs"]
    assert story.state[5] == "stopping"
    end: dict[str, Any] = {
        "next": "queued",
        "signal": None,
        "exit_code": 85,
        "saved": True,
        "reason": "preempted",
        "ended_s": 14.0,
    }
    assert tell("attempt.ended", 14.5, **end) == [
        "   4.5 s  preempted  alpha     has saved (exit code 85), waits again"
    ]
    tell("attempt.starting", 14.0, 6, attempt=1, allocation=[["n", [0]]])
    assert story.spans == [[0, 12.0, 14.0, 5], [2, 12.0, 14.0, 5], [0, 14.0, None, 6]]
    assert story.chart(3, 18.0, 8) == ["..AABBBB", "........", "..AA...."]
    assert story.chart(1, 10.4, 8) == ["."]
    assert len(story.chart(3, 13.0, 8)[0]) == 7
    assert tell("attempt.starting", 15.0, attempt=2, allocation=allocation)[0].endswith("continues from step 0 of 0")
    lost = {**end, "signal": 9, "saved": False, "ended_s": None, "reason": "lost"}
    assert tell("attempt.ended", 16.0, **lost)[0].endswith(
        "lost       alpha     without saving (signal 9), waits again"
    )
    assert story.spans[-1][2] == 16.0
    assert tell("attempt.ended", 17.0, **{**end, "next": "finished", "message": "m"})[0].endswith(
        "finished   alpha     m"
    )


# -- traces -----------------------------------------------------------------------------------------------------------


def test_figures_of_a_trace() -> None:
    work = make_jobs([(0.0, 100.0, 1), (10.0, 300.0, 4), (50.0, 0.0, 1)])
    read: Any = SimpleNamespace(workload=work, format="own", files=["a.csv"], bad_rows=[1, 2])
    found = trace.summarise(read)
    assert (found["jobs"], found["bad_rows_skipped"], found["span_s"], found["max_gpus"]) == (3, 2, 50.0, 4)
    assert (found["first_submit_s"], found["last_submit_s"]) == (0.0, 50.0)
    assert found["gpu_hours"] == 1300 / 3600
    assert found["mean_offered_gpus"] == 26.0
    assert found["gpus"] == {
        1: {"jobs": 2, "job_share": 2 / 3, "gpu_time_share": 100 / 1300},
        4: {"jobs": 1, "job_share": 1 / 3, "gpu_time_share": 1200 / 1300},
    }
    assert found["duration_s"]["mean"] == pytest.approx(400 / 3)
    assert [found[name] for name in ("elastic", "speeds", "gpu_memory_mib", "users")] == [None] * 4
    idle: Any = SimpleNamespace(workload=make_jobs([(5.0, 0.0, 1)]), format="own", files=[], bad_rows=[])
    found = trace.summarise(idle)
    assert (found["mean_offered_gpus"], found["gpus"][1]["gpu_time_share"]) == (None, 0.0)


def test_memory_of_which_it_is_known() -> None:
    assert trace._memory(SimpleNamespace(gpu_memory_mib=None)) is None  # type: ignore[arg-type]
    unknown: Any = SimpleNamespace(gpu_memory_mib=np.array([np.nan]))
    assert trace._memory(unknown) is None
    some: Any = SimpleNamespace(gpu_memory_mib=np.array([np.nan, 1.0, 9.0, 2.0]))
    assert trace._memory(some) == {"jobs": 3, "min": 1.0, "median": 2.0, "max": 9.0}


def test_the_most_frequent_words() -> None:
    assert trace._most(None) is None
    words = Labels(np.array([0, 2, 2, 3, 3, 3], np.int32), ("a", "none", "b", "c"))
    assert trace._most(words) == {"distinct": 3, "top": {"c": 3, "b": 2, "a": 1}}
    assert trace._most(words, 2) == {"distinct": 3, "top": {"c": 3, "b": 2}}
    many = Labels(np.arange(12, dtype=np.int32), tuple(map(str, range(12))))
    assert len(trace._most(many)["top"]) == 10  # type: ignore[index]


def test_shares_and_cells() -> None:
    assert trace._shares("--models", "a=1, b=c=0.5") == {"a": 1.0, "b=c": 0.5}
    for text in ("a", "=1", "a=x", "a=nan", "a=1,a=2", ""):
        with pytest.raises(InputError, match=r"--models is .*: at .*, write shares such as a=0.7,b=0.3"):
            trace._shares("--models", text)
    assert trace._count("8") == 8
    with pytest.raises(InputError, match="'x' is not a GPU count"):
        trace._count("x")
    assert [trace._cell(value) for value in (1234.5, 3, "a", 0.1234567890123)] == ["1,234.5", "3", "a", "0.123456789"]


def test_where_a_trace_may_be_written(tmp_path: Path) -> None:
    here = tmp_path / "a.csv"
    trace._check_output(str(here), False)
    trace._check_output(str(tmp_path / "A.CSV.GZ"), False)
    trace._check_output("-", False)
    here.touch()
    trace._check_output(str(here), True)
    with pytest.raises(InputError, match=r"a\.csv exists already; --overwrite replaces it"):
        trace._check_output(str(here), False)
    with pytest.raises(InputError, match=r"the file's name must end with .csv, .csv.gz or .parquet"):
        trace._check_output(str(tmp_path / "a.txt"), True)


# -- profiles, explanations -------------------------------------------------------------------------------------------


def test_cells_of_profiles() -> None:
    bare = Profile("m", 8, 1.5, (0.1, 10.0, 0.02), source="")
    assert profiles._cells(bare, True) == ("m", "8", "", "", "1,500", "100", "10,000", "20", "", "", "yours")
    more: dict[str, Any] = {"batch_size": 32, "gpu_model": "V100", "gpu_memory_mib": 2048, "start_s": 1.5}
    full = Profile("m", 8, 0.0123456, (0.1, 0.2, 0.3, 0.4), **more)
    assert profiles._cells(full, False) == (
        "m", "8", "32", "V100", "12.35", "100 + 200", "300", "400", "2,048 MiB", "1.5 s", "shipped",
    )  # fmt: skip
    assert [profiles._ms(s) for s in (9.9996, 10.0, 12.3456)] == ["1e+04", "10,000", "12,346"]
    for option, call in (
        ("--iteration", lambda: profiles._time("--iteration", "x")),
        ("--memory", lambda: profiles._memory("x")),
    ):
        with pytest.raises(InputError, match=f"{option}: "):
            call()


def alternative(model: str, speed: float, **more: Any) -> Any:
    plain = {"it_per_s": None, "source": "measured", "free": 2, "fits_now": True, "cant": "", "chosen": False}
    plain["price_usd_per_hour"] = None
    assert {*plain, "model", "speed", "estimated"} == set(Alternative.__annotations__)
    return SimpleNamespace(model=model, speed=speed, **{**plain, **more})


def test_gpu_models_that_were_weighed() -> None:
    chosen = alternative("V100", 1.0, chosen=True, it_per_s=12.3456, price_usd_per_hour=2.48)
    others = [
        alternative("K80", 0.25, fits_now=False, free=1), alternative("A100", 4.0),
        alternative("T4", 0.0, cant="too small"),
        alternative("P4", 0.0),
    ]  # fmt: skip
    step: Any = SimpleNamespace(alternatives=[chosen, *others])
    assert [explain._line(one, step) for one in step.alternatives] == [
        "> V100: 12.35 it/s (measured), 2 GPUs free, $2.48/h each",
        "  K80: speed 0.25 (measured), 1 GPU free, not enough for it; V100 is 4.00 times as fast",
        "  A100: speed 4 (measured), 2 GPUs free; V100 is 0.25 times as fast",
        "  T4: can't run there (too small)",
        "  P4: speed 0 (measured), 2 GPUs free; V100 is inf times as fast",
    ]
    assert explain._generic(step) == "A100 had room for it and is 4.00 times as fast; the policy chose otherwise."
    alike: Any = SimpleNamespace(alternatives=[chosen, alternative("A", 1.0)])
    assert explain._generic(alike).startswith("All GPU models that had room for it are equally fast")
    full: Any = SimpleNamespace(alternatives=[chosen, alternative("A", 4.0, fits_now=False)])
    assert explain._generic(full) == "No other GPU model had room for it."
    one: Any = SimpleNamespace(alternatives=[chosen])
    assert explain._generic(one) == "The cluster has one GPU model."


@pytest.mark.parametrize(("count", "out"), [(51, 0), (52, 2), (1060, 1010)])
def test_of_a_long_story_the_middle_is_left_out(count: int, out: int, capsys: pytest.CaptureFixture[str]) -> None:
    def step(number: int, what: str, **more: Any) -> Any:
        plain = {"model": "", "nodes": (), "gpus": 1, "waited_s": 0.0, "alternatives": (), "why": None, "company": None}
        return SimpleNamespace(time_s=100.0 + number, what=what, **{**plain, **more})

    chosen = alternative("V100", 1.0, chosen=True)
    there = {"model": "V100", "alternatives": (chosen,)}
    steps = [step(number, "rise") for number in range(count)]
    steps[0] = step(0, "start", nodes=("a",), waited_s=5.0, **there)
    steps[41] = step(41, "move", nodes=("b",), **there)  # left out, or shown
    steps[42] = step(42, "stop")
    steps[-2] = step(count - 2, "move", nodes=("c",), **there)
    steps[-1] = step(count - 1, "end", model="V100", nodes=("c",))
    result = SimpleNamespace(trace="t", cluster="2x4", interrupted=False)
    found: Any = SimpleNamespace(job_id="7", gpus=1, policy="fifo", steps=steps, result=result, cost_usd=2.5)
    explain._print(found)
    text = capsys.readouterr().out
    assert text.endswith("\n\nIts GPUs cost $2.50, at on-demand prices (gpuloom gpus).\n")
    lines = [line for line in text.splitlines() if line.startswith(("+", "…"))]
    assert text.startswith("job 7 (1 GPU) of t under fifo on 2x4\n\n+0s  starts on 1 V100, node a, after waiting 5s\n")
    assert lines[-2].endswith("moves to 1 V100, node c (from 1 V100, node b)"), "the one before it may be left out"
    assert lines[-1].endswith("  ends on V100, node c")
    assert len(lines) == count - out + (out > 0)
    if out:
        assert lines[40] == f"… {out:,} of {count:,} steps are left out here (--json has all)"
