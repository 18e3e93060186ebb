"""From a trace of PyTorch's profiler to a kernel profile: operators' work, iterations, hostile traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuloom.sharing import profiler
from gpuloom.sharing.operators import Work, work_of
from tiers import examples

DONE = {
    "by": "step",
    "iterations": 3,
    "version": "2.9.0",
    "device": {"name": "NVIDIA A100", "sm_count": 108, "cc": "8.0"},
    "ceilings": {"bandwidth": 1e12, "mm:float": 1e13, "conv:c10::Half": 1e14},
}


def args(dims: list[Any], kind: str = "float", values: tuple[object, ...] = (), **more: object) -> dict[str, Any]:
    types = [kind if isinstance(d, list) and d else "Scalar" for d in dims]
    return {"Input Dims": dims, "Input type": types, "Concrete Inputs": list(values), **more}


CONV = ("", "", "[1, 1]", "[2, 2]", "[1, 1]", "1")
BACKWARD = ("", "", "", "[]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]")


@pytest.mark.parametrize(
    ("name", "told", "work"),
    [
        ("aten::mm", args([[8, 4], [4, 2]]), Work("mm:float", 2 * 8 * 4 * 2, 4 * (32 + 8 + 16))),
        ("aten::addmm", args([[2], [8, 4], [4, 2]]), Work("mm:float", 128, 4 * (32 + 8 + 16))),
        ("aten::bmm", args([[3, 8, 4], [3, 4, 2]], "c10::Half"), Work("mm:c10::Half", 384, 2 * 3 * 56)),
        # 16 filters of 3 by 3 by 8 on 2 images of 9 by 9, stride 2, padding 1: 2·16·5·5 results
        (
            "aten::cudnn_convolution",
            args([[2, 8, 9, 9], [16, 8, 3, 3], [], [], [], []], "c10::Half", CONV),
            Work("conv:c10::Half", 2.0 * 800 * 72, 2 * (2 * 8 * 81 + 16 * 72 + 800)),
        ),
        (
            "aten::convolution_backward",
            args([[2, 16, 9, 9], [2, 8, 9, 9], [16, 8, 3, 3], *[[]] * 8], "float", BACKWARD),
            Work("conv:float", 2 * 2.0 * 2592 * 72, 4 * (2 * 2592 + 2 * (1296 + 1152))),
        ),
        ("aten::add", args([[10, 3], [3], []]), Work("mm:float", 30, 4 * (30 + 3 + 30))),
        (
            "aten::mm",
            args([[4, 10], [10, 512]], **{"Input Strides": [[0, 0], [512, 1]]}),
            Work("mm:float", 40960, 28676),
        ),
        ("aten::copy_", args([[10], [10], []]), Work("mm:float", 10, 80)),
        ("triton_poi_fused_add_0", args([[10], [10], [10]]), Work("mm:float", None, 120)),
        ("aten::mm", args([[8, 4], [3, 2]]), None),
        ("aten::mm", args([[8], [4, 2]]), None),
        ("aten::mm", args([[8, 4], [4, 2]], "c10::quint8"), None),
        ("aten::unheard_of", args([[8, 4]]), None),
        ("aten::cudnn_convolution", args([[2, 8, 9, 9], [16, 8, 3, 3], [], [], []]), None),
        ("aten::mm", {}, None),
        ("aten::mm", {"Input Dims": "x", "Input type": []}, None),
    ],
)
def test_an_operators_work(name: str, told: dict[str, Any], work: Work | None) -> None:
    assert work_of(name, told) == work


class Trace:
    """Builds a trace iteration by iteration; kernels run after the next iteration has begun on the CPU."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.at, self.ids = 0.0, 0

    def iteration(self, number: int, *kernels: tuple[str, float], device: int = 0, **operator: Any) -> Trace:
        begin = self.at
        for name, us in kernels:
            self.ids, self.at = self.ids + 1, self.at + 1
            shape = {"grid": [64, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
            joined = {"External id": self.ids, "correlation": self.ids}
            base = {"ph": "X", "ts": self.at, "dur": 0.5}
            self.events += [
                {**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": joined},
                {**base, "cat": "kernel", "name": name, "ts": self.at + 900, "dur": us,
                 "args": {**joined, **shape, "device": device}},
            ]  # fmt: skip
            if operator:
                self.events.append({**base, "cat": "cpu_op", **operator, "args": {**operator["args"], **joined}})
        self.at += 5
        mark = {"ph": "X", "name": f"ProfilerStep#{number}", "args": {}, "ts": begin, "dur": self.at - begin}
        self.events += [{**mark, "cat": "user_annotation"}, {**mark, "cat": "gpu_user_annotation", "ts": begin + 900}]
        return self


def made(folder: Path, events: object, done: object = DONE, threshold: float = 0.6) -> Any:
    left = folder / "left"
    left.mkdir(exist_ok=True)
    (left / "trace.json").write_text(events if isinstance(events, str) else json.dumps({"traceEvents": events}))
    (left / "done.json").write_text(json.dumps(done))
    return profiler.made(folder, "it", threshold)


def test_kernels_belong_to_the_iteration_that_launched_them(tmp_path: Path) -> None:
    trace = Trace().iteration(0, ("first", 9)).iteration(1, ("a", 2), ("b", 3)).iteration(2, ("a", 4), ("b", 3))
    profile = made(tmp_path, trace.iteration(3, ("a", 6), ("tuning", 9), ("tuning", 9), ("b", 3)).events)
    assert [(k.name, k.duration_ns, k.samples) for k in profile.kernels] == [("a", 4000, 3), ("b", 3000, 3)]
    assert (profile.sm_count, profile.cc, profile.device) == (108, "8.0", "NVIDIA A100")


def test_where_all_iterations_differ_that_of_middle_length_counts(tmp_path: Path) -> None:
    trace = Trace().iteration(1, ("a", 1)).iteration(2, ("b", 1), ("b", 1)).iteration(3, *[("c", 1.0)] * 3)
    assert [k.name for k in made(tmp_path, trace.events).kernels] == ["b", "b"]


def test_of_several_gpus_the_one_with_most_kernels(tmp_path: Path) -> None:
    trace = Trace().iteration(1, ("a", 1), ("a", 1), device=1).iteration(2, ("b", 1))
    assert [k.name for k in made(tmp_path, trace.events).kernels] == ["a", "a"]


@pytest.mark.parametrize(
    ("us", "compute", "klass"), [(20.0, 0.5, "unknown"), (12.5, 0.8, "compute"), (1.0, 1.0, "compute")]
)
def test_utilisation_against_ceilings(tmp_path: Path, us: float, compute: float, klass: str) -> None:
    # 2·500·500·200 FLOPs = 1e8: 10 us at 1e13 FLOP/s
    product = {"name": "aten::mm", "args": args([[500, 500], [500, 200]])}
    kernel = made(tmp_path, Trace().iteration(1, ("gemm", us), **product).events).kernels[0]
    assert (kernel.compute_util, kernel.klass) == (compute, klass)
    assert kernel.dram_util == pytest.approx(min(1.0, 4 * 450_000 / (us / 1e6) / 1e12), abs=1e-3)


def test_no_ceilings_no_utilisation(tmp_path: Path) -> None:
    product = {"name": "aten::mm", "args": args([[500, 500], [500, 200]])}
    done = {**DONE, "ceilings": {"bandwidth": 0.0, "mm:float": "fast"}}
    kernel = made(tmp_path, Trace().iteration(1, ("gemm", 9.0), **product).events, done).kernels[0]
    assert (kernel.compute_util, kernel.dram_util, kernel.klass) == (None, None, "unknown")


@pytest.mark.parametrize(
    ("events", "done", "told"),
    [
        ("{", DONE, "can't be read: the trace: not JSON"),
        ("", DONE, "MiB free"),
        ("3", DONE, "no traceEvents"),
        ([], DONE, "ran on the CPU alone"),
        (Trace().iteration(0, ("a", 1)).events, DONE, "no CUDA kernel ran in the recorded"),
        (Trace().iteration(1, ("a", 1)).events, {**DONE, "device": {}}, "compute capability of the GPU is missing"),
        (Trace().iteration(1, ("a", 1)).events, {**DONE, "device": {"cc": "3.5"}}, "capability '3.5'"),
    ],
)
def test_traces_that_cannot_be_used(tmp_path: Path, events: object, done: object, told: str) -> None:
    with pytest.raises(profiler.ProfileError, match=told):
        made(tmp_path, events, done)


junk = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.integers(), max_size=3)
)
shape = st.fixed_dictionaries(
    {},
    optional={
        "External id": junk, "correlation": junk, "device": junk, "grid": junk, "block": junk,
        "registers per thread": junk, "shared memory": junk, "Input Dims": junk, "Input type": junk,
    },
)  # fmt: skip
event = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "user_annotation"])},
    optional={
        "name": junk | st.sampled_from(["ProfilerStep#1", "aten::mm"]),
        "ts": junk,
        "dur": junk,
        "args": shape | junk,
    },
)


@settings(max_examples=examples(150))
@example([{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}], "step", True)  # as it is drawn once in thousands
@given(st.lists(event | junk, max_size=6), st.sampled_from(["step", "time"]), st.booleans())
def test_junk_in_a_trace_is_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], by: str, valid: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "junk"
    folder.mkdir(exist_ok=True)
    known = Trace().iteration(1, ("a", 1)).events if valid else []
    try:
        profile = made(folder, [*known, *events], {**DONE, "by": by})
    except profiler.ProfileError:
        return
    assert profile.order
