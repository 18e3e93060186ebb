"""Profiles an unmodified PyTorch program: injects the recorder, and makes a kernel profile of its trace.

What is injected is `injected.py`. It leaves in a folder: a file per process (`process-PID.json`), and
when it is done `trace.json` (a Chrome trace of the PyTorch profiler) and `done.json` (the GPU, its ceilings).

Utilisation of a kernel: FLOPs and bytes of the operator that launched it, over the time of that operator's kernels,
against what the GPU reached in a measurement; unknown for operators that `operators.py` doesn't list.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.sharing.imports import parse_torch
from gpuloom.sharing.operators import work_of
from gpuloom.sharing.profiles import BOUND, KernelProfile, parse_json, read_text

SETTING = "GPULOOM_KERNEL_PROFILE"
MOST_KNOWN = 0.5
"""Share of a kernel's time in launches whose work is known, from which on its utilisation counts as known."""


class ProfileError(GpuloomError):
    """The program ran, but no kernel profile came of it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to record.

    Attributes:
        warm_up: iterations before it (by time: seconds).
        iterations: to record, after one that is not used.
        seconds: by time: how long.
        by: what delimits iterations: step (of the first optimizer), forward (outermost), time, auto (step or forward).
    """

    warm_up: int = 10
    iterations: int = 5
    seconds: float | None = None
    by: str = "auto"


def prepare(folder: Path, request: Request, base: dict[str, str]) -> dict[str, str]:
    """Put what is injected into a folder; the environment for the program.

    Raises:
        ProfileError: the folder can't be written.
    """
    source = Path(__file__).with_name("injected.py")
    inject, left = folder / "inject", folder / "left"
    try:
        inject.mkdir()
        left.mkdir()
        shutil.copyfile(source, inject / "sitecustomize.py")
    except OSError as error:
        raise ProfileError(f"{folder}: {error.strerror}; set TMPDIR to a folder with free space") from error
    setting = {
        "folder": str(left),
        "warm_up": request.warm_up,
        "iterations": request.iterations,
        "seconds": request.seconds,
        "by": request.by,
    }
    before = base.get("PYTHONPATH", "")
    # PyTorch's profiler else writes lines of its own on stderr.
    quiet = {"KINETO_LOG_LEVEL": base.get("KINETO_LOG_LEVEL", "9")}
    return {
        **base,
        **quiet,
        "PYTHONPATH": f"{inject}:{before}" if before else str(inject),
        SETTING: json.dumps(setting),
    }


def is_done(folder: Path) -> bool:
    """Whether the program has left a trace."""
    return (folder / "left" / "done.json").exists()


def made(folder: Path, name: str, threshold: float = BOUND) -> KernelProfile:
    """The kernel profile of what the program has left.

    Args:
        threshold: utilisation from which on a kernel is of a class.

    Raises:
        ProfileError: the trace can't be read, or holds nothing usable; says why.
    """
    left = folder / "left"
    try:
        told = parse_json(read_text(left / "done.json"), "done.json")
        text = read_text(left / "trace.json")
        trace = parse_json(text, "the trace")
    except InputError as error:
        raise ProfileError(f"the profiler's trace can't be read: {error}; {_room(left)}") from error
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise ProfileError("the profiler's trace can't be read: it holds no traceEvents; try another version of torch")
    try:
        return _profile(Recording.of(events, told), told, name, threshold)
    except InputError as error:
        raise ProfileError(f"the profiler's trace can't be used: {error}") from error


def why_not(folder: Path, request: Request) -> str:
    """Why a program that has ended left no trace, in a sentence with a remedy."""
    found = []
    for path in sorted((folder / "left").glob("process-*.json")):
        try:
            story = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(story, dict):
            found.append(story)
    errors = [str(story["error"]) for story in found if "error" in story]
    with_torch = [story for story in found if story.get("torch")]
    if errors:
        if "Errno 28" in errors[0]:
            return f"the disk is full ({errors[0]}); set TMPDIR to a folder with free space"
        return f"PyTorch's profiler failed in the program: {errors[0]}"
    if not found:
        return (
            "the profiler did not load in the program: it must be a Python program, run without -E, -I and -S, that "
            f"keeps PYTHONPATH; {_room(folder)}"
        )
    if not with_torch:
        return "the program never imported torch; other programs are profiled by ncu (gpuloom share profiles import)"
    if not any(story.get("used") for story in with_torch):
        here = any(story.get("cuda") for story in with_torch)
        return "the program ran no CUDA kernel: " + (
            "a GPU is there, but the program did not use it; put its model there (model.cuda())"
            if here
            else "its torch finds no GPU; check the driver, CUDA_VISIBLE_DEVICES, and that torch is a build with CUDA"
        )
    most = max(with_torch, key=lambda s: (s.get("state") == "recording", s.get("steps", 0) + s.get("forwards", 0)))
    if request.by == "time":
        return f"the program ended before {request.warm_up} s and {request.seconds:g} s more on the GPU; ask for less"
    if not any(story.get("ended") for story in with_torch):
        return "the program was killed (a signal, or os._exit) before enough iterations; let it run longer"
    return (
        f"the program ended before enough iterations: {most.get('steps', 0)} optimizer steps, "
        f"{most.get('forwards', 0)} forward passes, {most.get('recorded', 0)} of {request.iterations} recorded after "
        f"{request.warm_up} of warm-up; let it run longer, or lower --warm-up and --iterations"
    )


def _room(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free >> 20
    except OSError:
        return "set TMPDIR to a folder with free space"
    return f"{folder} has {free} MiB free" + ("; set TMPDIR to a folder with more room" if free < 256 else "")


# -- the trace --------------------------------------------------------------------------------------------------------

Key = tuple[str, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Recording:
    """Kernels of a trace, by iteration.

    Attributes:
        iterations: kernel events in the order they ran.
        utilisation: of a kernel (name, grid, block), compute and memory, None where unknown.
    """

    iterations: list[list[dict[str, Any]]]
    utilisation: dict[Key, tuple[float | None, float | None]]

    @staticmethod
    def of(events: list[Any], told: dict[str, Any]) -> Recording:
        """Read the events of a trace.

        Raises:
            InputError: no kernels.
        """
        kernels, operators, launched, marks = [], {}, {}, []
        for event in events:
            if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("args", {}), dict):
                continue
            category, args = str(event.get("cat", "")).lower(), event.get("args", {})
            if not _number(event.get("ts")) or not _number(event.get("dur")):
                continue
            if category == "kernel":
                kernels.append(event)
            elif category == "cpu_op":
                operators[_external(args)] = event
            elif category in ("cuda_runtime", "cuda_driver"):
                launched[_hashable(args.get("correlation"))] = float(event["ts"])
            elif category == "user_annotation" and str(event.get("name", "")).startswith("ProfilerStep#"):
                marks.append((float(event["ts"]), float(event["ts"]) + float(event["dur"]), str(event["name"])))
        kernels = [kernel for kernel in kernels if _usable(kernel)]
        if not kernels:
            raise InputError("it holds no CUDA kernel: the recorded iterations ran on the CPU alone")
        number = Counter(kernel["args"].get("device", 0) for kernel in kernels).most_common(1)[0][0]
        kernels = [kernel for kernel in kernels if kernel["args"].get("device", 0) == number]
        kernels.sort(key=lambda kernel: float(kernel["ts"]))
        spans = sorted(mark for mark in marks if mark[2] != "ProfilerStep#0")
        if told.get("by") == "time":
            spans = [(-math.inf, math.inf, "")]
        by_span: list[list[dict[str, Any]]] = [[] for _ in spans]
        for kernel in kernels:
            at = launched.get(_hashable(kernel["args"].get("correlation", "")), float(kernel["ts"]))
            for index, (begin, end, _) in enumerate(spans):
                if begin <= at < end:
                    by_span[index].append(kernel)
        found = [span for span in by_span if span]
        if not found:
            raise InputError("no CUDA kernel ran in the recorded iterations")
        return Recording(found, _utilisations(found, operators, told.get("ceilings") or {}))

    def typical(self) -> list[dict[str, Any]]:
        """The iteration to show: the latest of those whose launches are the most usual.

        Iterations in which kernels were tuned, or the model was evaluated or saved, launch others.
        """
        shapes = [tuple(key_of(kernel) for kernel in iteration) for iteration in self.iterations]
        often = Counter(shapes)
        most = max(often.values())
        if most == 1 and len(shapes) > 1:  # all differ: that of middle length
            middle = sorted(range(len(shapes)), key=lambda index: len(shapes[index]))[len(shapes) // 2]
            return self.iterations[middle]
        last = max(index for index, shape in enumerate(shapes) if often[shape] == most)
        return self.iterations[last]


def key_of(kernel: dict[str, Any]) -> Key:
    """The key of a kernel in a trace."""
    return str(kernel.get("name")), tuple(kernel["args"]["grid"]), tuple(kernel["args"]["block"])


def _usable(kernel: dict[str, Any]) -> bool:
    args = kernel.get("args")
    if not isinstance(args, dict) or not isinstance(args.get("device", 0), (int, str)):
        return False
    return all(
        isinstance(args.get(name), list) and all(type(part) is int for part in args[name]) for name in ("grid", "block")
    )


def _number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _external(args: dict[str, Any]) -> Any:
    return _hashable(args.get("External id", args.get("external id")))


def _hashable(value: object) -> Any:
    return value if isinstance(value, (int, str)) else None


def _utilisations(
    iterations: list[list[dict[str, Any]]], operators: dict[Any, dict[str, Any]], ceilings: dict[str, Any]
) -> dict[Key, tuple[float | None, float | None]]:
    """Utilisations by kernel. An operator's work is spread over its kernels by their time."""
    limits = {name: float(value) for name, value in ceilings.items() if _number(value) and float(value) > 0}
    of_operator: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    time_us: defaultdict[Key, float] = defaultdict(float)
    for iteration in iterations:
        for kernel in iteration:
            of_operator[_external(kernel["args"])].append(kernel)
            time_us[key_of(kernel)] += _us(kernel)
    known: dict[tuple[Key, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for external, kernels in of_operator.items():
        operator = operators.get(external) if external is not None else None
        work = work_of(str(operator.get("name")), operator.get("args", {})) if operator is not None else None
        if work is None:
            continue
        seconds = sum_floats(_us(kernel) for kernel in kernels) / 1e6
        for which, amount, limit in (
            (0, work.flops, limits.get(work.ceiling)),
            (1, work.bytes, limits.get("bandwidth")),
        ):
            if amount is None or limit is None:
                continue
            share = min(1.0, amount / seconds / limit)
            for kernel in kernels:
                sums = known[key_of(kernel), which]
                sums[0] += share * _us(kernel)
                sums[1] += _us(kernel)

    def one(key: Key, which: int) -> float | None:
        total, covered = known.get((key, which), [0.0, 0.0])
        return round(min(1.0, total / covered), 4) if covered > 0 and covered >= MOST_KNOWN * time_us[key] else None

    return {key: (one(key, 0), one(key, 1)) for key in time_us}


def _us(kernel: dict[str, Any]) -> float:
    """Its duration, microseconds; the clock's step is 1 ns, so nothing is shorter."""
    return max(0.001, float(kernel["dur"]))


def _profile(recording: Recording, told: dict[str, Any], name: str, threshold: float) -> KernelProfile:
    typical = recording.typical()
    device = told.get("device") or {}
    properties: dict[str, Any] = {"name": str(device.get("name", "")), "numSms": device.get("sm_count")}
    major, _, minor = str(device.get("cc", "")).partition(".")
    if major.isdigit() and minor.isdigit():
        properties |= {"computeMajor": int(major), "computeMinor": int(minor)}
    reduced = {
        "deviceProperties": [properties],
        "traceEvents": [{**kernel, "cat": "kernel", "dur": _us(kernel)} for kernel in typical],
    }
    # The importer knows what a trace holds and refuses what can't be.
    profile = parse_torch(json.dumps(reduced), name, 1, "", "trace")
    durations: defaultdict[Key, list[float]] = defaultdict(list)
    for iteration in recording.iterations:
        for kernel in iteration:
            durations[key_of(kernel)].append(_us(kernel))
    records = []
    for record in profile.records:
        key = (record.name, record.grid, record.block)
        compute, dram = recording.utilisation[key]
        klass = "unknown"
        if compute is not None and compute >= threshold:
            klass = "compute"
        elif dram is not None and dram >= threshold:
            klass = "memory"
        lasts, runs = durations[key], len(durations[key])
        records.append(
            replace(
                record,
                compute_util=compute,
                dram_util=dram,
                klass=klass,
                duration_ns=max(1, round(sum_floats(lasts) / runs * 1000)),
                samples=runs,
            )
        )
    profile = replace(profile, records=tuple(records))
    known_ns = sum_ints(k.duration_ns for k in profile.kernels if k.compute_util is not None or k.dram_util is not None)
    what = {"step": "training iterations", "forward": "requests (forward passes)", "time": "stretch of time"}
    source = (
        f"PyTorch profiler (torch {told.get('version', '')}), {len(recording.iterations)} "
        f"{what.get(str(told.get('by')), 'iterations')}; utilisations from operators' shapes against measured "
        f"ceilings, known for {known_ns / profile.duration_ns:.0%} of the time"
    )
    return replace(profile, source=source)


def write(profile: KernelProfile, text: str, path: Path) -> None:
    """Write a profile's text to a file that then is whole or as before.

    Raises:
        ProfileError: it can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ProfileError(f"{path}: the profile of {profile.name} can't be written ({error.strerror})") from error
