"""Profiling a program: what it is given, what is said if nothing comes of it, and edges of reading its trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.sharing import profiler
from gpuloom.sharing.profiler import ProfileError, Request, why_not
from gpuloom.sharing.profiles import KernelProfile, KernelRecord

RECORD = KernelRecord("k", 4, 1000, 0.5, 0.25, "compute", (4, 1, 1), (64, 1, 1), 4, 64, 32, 128, 64, 2)
PROFILE = KernelProfile(
    "p", 80, (RECORD, replace(RECORD, name="m", klass="memory", sm_slots=100)), (0, 1, 1), "V", "7.0"
)


# -- why there is no profile ------------------------------------------------------------------------------------------


def left_by(folder: Path, *stories: object) -> Path:
    (folder / "left").mkdir()
    for number, story in enumerate(stories):
        text = story if isinstance(story, str) else json.dumps(story)
        (folder / "left" / f"process-{number}.json").write_text(text)
    return folder


ON_GPU = {"torch": True, "cuda": True, "used": True}


@pytest.mark.parametrize(
    ("stories", "request_", "told"),
    [
        ([], Request(), ["the profiler did not load in the program", "MiB free"]),
        (["{", "[]"], Request(), ["the profiler did not load in the program"]),
        ([{"program": "a"}], Request(), ["the program never imported torch"]),
        ([{"error": "OSError: [Errno 28] full"}], Request(), ["the disk is full (OSError: [Errno 28] full); set"]),
        ([{"error": "x"}, {"error": "Errno 28"}], Request(), ["PyTorch's profiler failed in the program: x"]),
        ([{"torch": True, "cuda": True}, {"torch": True}], Request(), ["a GPU is there, but the program did not"]),
        ([{"torch": True, "cuda": False}], Request(), ["its torch finds no GPU"]),
        ([{"torch": False}, {"torch": True}], Request(), ["its torch finds no GPU"]),
        ([{"torch": True}, ON_GPU], Request(), ["the program was killed (a signal, or os._exit)"]),
        (
            [{**ON_GPU, "ended": True}], Request(by="time", warm_up=3, seconds=2.5),
            ["the program ended before 3 s and 2.5 s more on the GPU"],
        ),
        (
            [{**ON_GPU, "steps": 9, "state": "over"}, {**ON_GPU, "ended": True, "state": "recording", "steps": 3,
                                                      "forwards": 1, "recorded": 2}],
            Request(warm_up=4, iterations=6),
            ["3 optimizer steps, 1 forward passes, 2 of 6 recorded after 4 of warm-up; let it run longer"],
        ),
        (
            [{**ON_GPU, "ended": True, "steps": 1, "forwards": 1}, {**ON_GPU, "forwards": 9}], Request(),
            ["0 optimizer steps, 9 forward passes, 0 of 5 recorded after 10 of warm-up"],
        ),
    ],
)  # fmt: skip
def test_why_there_is_no_profile(stories: list[Any], request_: Request, told: list[str], tmp_path: Path) -> None:
    said = why_not(left_by(tmp_path, *stories), request_)
    assert all(part in said for part in told), said
    assert "{" not in said


def test_room_for_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, more in ((256 << 20, ""), ((256 << 20) - 1, "; set TMPDIR to a folder with more room")):
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        assert profiler._room(tmp_path) == f"{tmp_path} has {free >> 20} MiB free{more}"


def test_what_the_program_gets(tmp_path: Path) -> None:
    made = profiler.prepare(tmp_path, Request(seconds=1.5), {"A": "1", "PYTHONPATH": "/x"})
    assert json.loads(made.pop("GPULOOM_KERNEL_PROFILE")) == {
        "folder": str(tmp_path / "left"), "warm_up": 10, "iterations": 5, "seconds": 1.5, "by": "auto",
    }  # fmt: skip
    assert made == {"A": "1", "KINETO_LOG_LEVEL": "9", "PYTHONPATH": f"{tmp_path}/inject:/x"}
    assert "def enter()" in (tmp_path / "inject" / "sitecustomize.py").read_text()
    with pytest.raises(ProfileError, match="File exists; set TMPDIR"):
        profiler.prepare(tmp_path, Request(), {})
    (tmp_path / "b").mkdir()
    made = profiler.prepare(tmp_path / "b", Request(), {"KINETO_LOG_LEVEL": "3"})
    assert (made["KINETO_LOG_LEVEL"], made["PYTHONPATH"]) == ("3", f"{tmp_path}/b/inject")
    assert not profiler.is_done(tmp_path)
    (tmp_path / "left" / "done.json").touch()
    assert profiler.is_done(tmp_path)


def test_a_profile_is_written_whole_or_not(tmp_path: Path) -> None:
    profiler.write(PROFILE, "text", tmp_path / "a")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "text")]
    with pytest.raises(ProfileError, match=r"the profile of p can't be written \(No such file"):
        profiler.write(PROFILE, "text", tmp_path / "none" / "a")


# -- a trace ----------------------------------------------------------------------------------------------------------


def kernel(name: str, ts: float, dur: float, **args: object) -> dict[str, Any]:
    given = {"grid": [64, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0, **args}
    return {"ph": "X", "cat": "Kernel", "name": name, "ts": ts, "dur": dur, "args": given}


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": ts, "dur": dur}


def launch(correlation: object, ts: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_driver", "name": "l", "ts": ts, "dur": 1, "args": {"correlation": correlation}}


A100 = {"name": "A100", "sm_count": 108, "cc": "8.0"}


def made(folder: Path, events: list[Any], threshold: float = 0.6, bare: bool = False, **told: object) -> KernelProfile:
    left = folder / "left"
    left.mkdir(exist_ok=True)
    (left / "trace.json").write_text(json.dumps(events if bare else {"traceEvents": events}))
    (left / "done.json").write_text(json.dumps({"by": "step", "version": "2.9", "device": A100, **told}))
    return profiler.made(folder, "it", threshold)


def test_kernels_at_the_edges_of_an_iteration(tmp_path: Path) -> None:
    events = [step(1, 10, 10), kernel("begin", 10, 1), kernel("end", 20, 1), kernel("last", 19.5, 0)]
    found = made(
        tmp_path, [*events, launch(7, 15), kernel("launched", 99, 2, correlation=7), step(0, 98, 5)], bare=True
    )
    assert [(k.name, k.duration_ns) for k in found.kernels] == [("begin", 1000), ("last", 1), ("launched", 2000)]
    assert found.source == (
        "PyTorch profiler (torch 2.9), 1 training iterations; utilisations from operators' shapes against measured "
        "ceilings, known for 0% of the time"
    )
    found = made(tmp_path, [kernel("b", 5, 1), kernel("a", 4, 1), {**kernel("c", 5, 1), "ph": "B"}], by="time")
    assert [k.name for k in found.kernels] == ["a", "b"]
    assert "1 stretch of time;" in found.source


def test_the_latest_of_the_most_usual_iterations_is_shown(tmp_path: Path) -> None:
    runs = [("a",), ("b",), ("a",), ("b",), ("c", "c")]
    events = [
        event
        for n, names in enumerate(runs, 1)
        for event in (step(n, 100 * n, 50), *(kernel(name, 100 * n + i, n) for i, name in enumerate(names)))
    ]
    found = made(tmp_path, events)
    assert [(k.name, k.duration_ns, k.samples) for k in found.kernels] == [("b", 3000, 2)]


@pytest.mark.parametrize(
    ("others_us", "compute", "dram", "klass"),
    [(0.0, 0.4, 0.625, "memory"), (20.0, 0.4, 0.625, "memory"), (20.5, None, None, "unknown")],
)
def test_a_kernel_is_known_if_half_of_its_time_is(
    others_us: float, compute: float | None, dram: float | None, klass: str, tmp_path: Path
) -> None:
    mm = {
        "ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1,
        "args": {"external id": 3, "Input Dims": [[100, 100], [100, 100]], "Input type": ["float", "float"]},
    }  # fmt: skip
    events = [step(1, 0, 50), mm, kernel("k", 1, 20, **{"External id": 3}), kernel("k", 40, others_us or 0.001)]
    events = events if others_us else events[:-1]
    found = made(tmp_path, events, ceilings={"mm:float": 2.5e11, "bandwidth": 9.6e9, "x": -1})
    assert [(k.compute_util, k.dram_util, k.klass) for k in found.records] == [(compute, dram, klass)]
    assert made(tmp_path, events, 0.4, ceilings={"mm:float": 2.5e11}).records[0].klass == (
        "unknown" if compute is None else "compute"
    )
