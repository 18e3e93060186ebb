"""Two programs on a real GPU: a service's tail and a training job's speed: alone, by default, by MPS, by gpuloom.

    python bench/gpu_sharing.py [--out FILE] [--quick] [--budget SECONDS] [--dry-run]

One call, under 10 minutes, for a machine with an NVIDIA GPU; from a checkout, with PyTorch installed and nothing else
(a C compiler for the shim). Each step has a time of its own; what can't be done is told and the rest goes on. The JSON
is written after every step. Exit code 1 where the main comparison could not be made.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import queue
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_report import say, write
from gpuloom.core.errors import GpuloomError
from gpuloom.core.share_class import BEST_EFFORT, HIGH
from gpuloom.sharing import rule
from gpuloom.sharing.shim import attach as shim
from gpuloom.sharing.shim import build, compiler, mps, shm

ROOT = Path(__file__).resolve().parents[1]
WORKER = [sys.executable, str(ROOT / "bench" / "gpu_sharing_work.py")]
START_S = 90.0
"""Longest for a worker to import torch, build its model and warm up."""
CHECKS = ("cublas", "cudnn", "triton")
SERVICES = ("eager", "large", "graph")
"""Kinds of service (`gpu_sharing_work.serve`): bound by the processor, by the GPU, and one CUDA graph a request."""
TARGETS = {"p99_over_alone": 1.05, "best_effort_over_alone": 0.6, "overhead": 0.01}


class StepError(Exception):
    """A step can't be done; says why."""


# -- statistics and load ----------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between order statistics. The values need not be sorted."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Of the requests of one run, milliseconds."""
    return {
        "requests": len(latencies_ms),
        "mean_ms": statistics.fmean(latencies_ms),
        **{f"p{share * 100:g}_ms": quantile(latencies_ms, share) for share in (0.5, 0.95, 0.99)},
        "max_ms": max(latencies_ms),
    }


def arrivals(rate_per_s: float, count: int, seed: int) -> list[float]:
    """Poisson arrivals, seconds from the start; the same for every way of sharing."""
    generator, at, times = random.Random(seed), 0.0, []
    for _ in range(count):
        at += generator.expovariate(rate_per_s)
        times.append(at)
    return times


# -- workers ----------------------------------------------------------------------------------------------------------


class Worker:
    """A program in a session of its own that is told by lines on stdin and answers by JSON lines on stdout."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], name: str) -> None:
        self.name = name
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        try:
            self.process = subprocess.Popen(
                list(command), env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.errors.close()
            raise StepError(f"{name}: {command[0]} can't be started ({error.strerror})") from error
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.decode("utf-8", "replace"))
        self.lines.put(None)

    def tell(self, **what: object) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise StepError(f"{self.name} is gone: {self._why()}") from error

    def hear(self, key: str, timeout_s: float) -> dict[str, Any]:
        """The next answer that holds this key; other output is passed over."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise StepError(f"{self.name}: no {key!r} within {timeout_s:.0f} s: {self._why()}") from None
            if line is None:
                self.lines.put(None)
                raise StepError(f"{self.name} ended without {key!r}: {self._why()}")
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "error" in found:
                    raise StepError(f"{self.name}: {found['error']}")
                if isinstance(found, dict) and key in found:
                    return found

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0.5)
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, size - 2000))
        text = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        state = "still running" if self.process.returncode is None else f"exit code {self.process.returncode}"
        return f"{state}, {text[-1][:500] if text else 'nothing on stderr'}"

    def end(self) -> None:
        """End it and all it has started, first politely."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it left behind
        self.reader.join(timeout=5)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self.errors.close()


# -- ways of sharing --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How two programs share: under a private MPS, with its priorities, under the shim, by one of its rules."""

    name: str
    mps: bool = False
    priority: bool = False
    shim: bool = False
    rule: str = ""


WAYS = (
    Way("time-slicing"),
    Way("mps", mps=True),
    Way("mps+priority", mps=True, priority=True),
    Way("gpuloom", mps=True, priority=True, shim=True),
    Way("gpuloom without mps", shim=True),
    Way("shim, no rule", mps=True, priority=True, shim=True, rule="none"),
)
MAIN = ("gpuloom", "time-slicing")
"""Ways that are compared first, so that they don't fall to the budget."""


@dataclass
class Bench:
    """What is asked, and what was found.

    Attributes:
        budget_s: for all.
        load: share of the time that the service is busy, alone.
        train_s: how long the training job is measured alone.
    """

    worker: list[str]
    out: Path
    budget_s: float = 540.0
    requests: int = 1000
    load: float = 0.5
    train_s: float = 15.0
    rounds: int = 3
    seed: int = 1
    gpu: str = "0"
    services: Sequence[str] = SERVICES
    ways: Sequence[Way] = WAYS
    checks: Sequence[str] = CHECKS
    began_s: float = field(default_factory=time.monotonic)
    result: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)

    def left_s(self) -> float:
        """Seconds left of the budget; 10 are kept for ending."""
        return self.budget_s - 10.0 - (time.monotonic() - self.began_s)

    def step(self, name: str, needs_s: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Do a step if there is time for it, and write down what came of it."""
        begin = time.monotonic()
        found: dict[str, Any] | None = None
        if self.left_s() < needs_s:
            told = {"state": "skipped", "why": f"{self.left_s():.0f} s left of the budget, it needs {needs_s:.0f} s"}
        else:
            try:
                found = work()
                told = {"state": "done", **found}
            except (StepError, GpuloomError, OSError) as error:
                told = {"state": "failed", "why": str(error)}
        told["took_s"] = round(time.monotonic() - begin, 2)
        self.result.setdefault("steps", {})[name] = told
        write(self.out, self.result)
        say(f"{name}: {told['state']}, {told['took_s']:.1f} s" + (f": {told['why']}" if "why" in told else ""))
        return found

    @contextlib.contextmanager
    def environments(self, way: Way) -> Iterator[tuple[dict[str, str], dict[str, str], Path]]:
        """The environments of the service and of the training job, and the folder of the shim's shared file."""
        base = {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu}
        made = {klass: dict(base) for klass in (HIGH, BEST_EFFORT)}
        with contextlib.ExitStack() as stack:
            # Sockets of MPS need a short path.
            shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gls-", dir="/tmp")))
            if way.shim:
                if "shim" not in self.paths:
                    raise StepError("the shim could not be built (see the step shim)")
                for klass in made:
                    made[klass] = shim.program_environment(
                        shim.ShimSettings(
                            klass, gpu=self.gpu, name=klass, rule=way.rule, log=self.out.with_suffix(f".{klass}.log")
                        ),
                        base, shim=self.paths["shim"], driver=self.paths["driver"], shared=shared,
                    )  # fmt: skip
            if way.mps:
                folder = stack.enter_context(mps.private(shared, self.gpu, base))
                for klass in made:
                    wanted = klass if way.priority else HIGH
                    made[klass].update(mps.client_environment(folder, self.gpu, wanted))
            yield made[HIGH], made[BEST_EFFORT], shared

    @contextlib.contextmanager
    def started(self, role: str, environment: Mapping[str, str]) -> Iterator[Worker]:
        """A worker that is ready."""
        worker = Worker([*self.worker, role], environment, role)
        try:
            yield worker
        finally:
            worker.end()

    def wait_ready(self, *workers: Worker) -> list[dict[str, Any]]:
        """What the workers say of themselves once they are warm."""
        return [worker.hear("ready", min(START_S, self.left_s())) for worker in workers]

    def serve(self, worker: Worker, rate_per_s: float) -> dict[str, float]:
        """Of the requests: milliseconds from arrival to result, and the median of what one takes from its begin on."""
        times = arrivals(rate_per_s, self.requests, self.seed)
        worker.tell(serve=times)
        found = worker.hear("latencies_ms", min(self.left_s(), 20.0 * times[-1] + 30.0))
        if len(found["latencies_ms"]) != self.requests:
            raise StepError(f"serve answered {len(found['latencies_ms'])} of {self.requests} requests")
        return {
            **summary([float(value) for value in found["latencies_ms"]]),
            "takes_ms": quantile(found["took_ms"], 0.5),
        }

    def service_alone(self, kind: str, environment: Mapping[str, str], rate_per_s: float = 0.0) -> dict[str, Any]:
        """The service with nobody beside it; its time for a request, and its tail at the load."""
        with self.started(f"serve-{kind}", environment) as service:
            ready = self.wait_ready(service)[0]
            rate = rate_per_s or self.load / (ready["request_ms"] / 1000)
            return {**ready, "rate_per_s": rate, **self.serve(service, rate)}

    def training_alone(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Iterations per second with nobody beside it."""
        with self.started("train", environment) as training:
            ready = self.wait_ready(training)[0]
            training.tell(train=True)
            time.sleep(self.train_s)
            training.tell(stop=True)
            found = training.hear("iterations", 30.0)
            return {**ready, "it_per_s": found["iterations"] / found["seconds"], **found}

    def shared(self, way: Way, kind: str, alone: Mapping[str, float]) -> dict[str, Any]:
        """Both at once. Under the shim it counts only if both were attached to it."""
        with self.environments(way) as (high, best, folder), contextlib.ExitStack() as stack:
            service = stack.enter_context(self.started(f"serve-{kind}", high))
            training = stack.enter_context(self.started("train", best))
            self.wait_ready(service, training)
            training.tell(train=True)
            training.hear("training", 30.0)
            found = self.serve(service, alone["rate_per_s"])
            proof = attached(folder, way.rule != "none") if way.shim else {}
            training.tell(stop=True)
            trained = training.hear("iterations", 60.0)
        speed = trained["iterations"] / trained["seconds"]
        return {
            **found,
            "mps": way.mps,
            "it_per_s": speed,
            "p99_over_alone": found["p99_ms"] / alone["p99_ms"],
            "best_effort_over_alone": speed / alone["it_per_s"],
            **({"attached": proof} if proof else {}),
        }

    def overhead(self, kind: str) -> dict[str, Any]:
        """The service alone with and without the shim, in turns: time of a request, median of medians."""
        by: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(self.rounds):
            for name in by:
                way = Way(name, shim=name == "with")
                with self.environments(way) as (high, *_), self.started(f"serve-{kind}", high) as it:
                    self.wait_ready(it)
                    it.tell(closed=max(100, self.requests // 2))
                    times = it.hear("request_times_ms", min(120.0, self.left_s()))["request_times_ms"]
                    by[name].append(statistics.median(times))
        without, under = (statistics.median(by[name]) for name in ("without", "with"))
        return {"without_ms": by["without"], "with_ms": by["with"], "overhead": under / without - 1.0}

    def check(self, what: str) -> dict[str, Any]:
        """A program's results with and without the shim, in both classes, must be equal."""
        results = {}
        for name, way, place in (
            ("without", Way("plain"), 0),
            ("high", Way("shim", shim=True), 0),
            ("best-effort", Way("shim", shim=True), 1),
        ):
            with (
                self.environments(way) as both,
                self.started(f"check-{what}", both[place]) as worker,
            ):
                results[name] = worker.hear("digest", min(120.0, self.left_s()))
        digests = {name: found["digest"] for name, found in results.items()}
        equal = len(set(digests.values())) == 1
        told = {"equal": equal, "digests": digests, "kernels": results["without"].get("what")}
        if not equal:
            raise StepError(f"results differ: {digests}")
        return told

    def machine(self) -> dict[str, Any]:
        """Driver, GPU, PyTorch, tools."""
        found: dict[str, Any] = {
            "python": platform.python_version(), "processors": os.cpu_count(), "compiler": compiler.compiler(),
            "mps": mps.control(), "nvidia_smi": None,
        }  # fmt: skip
        tool = shutil.which("nvidia-smi")
        if tool:
            asked = "--query-gpu=name,driver_version,memory.total,compute_mode"
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(
                    [tool, asked, "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=False
                )
                found["nvidia_smi"] = done.stdout.strip()
        with self.started("about", {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu}) as worker:
            found["torch"] = worker.hear("torch", START_S)
        return found

    def make_shim(self) -> dict[str, Any]:
        """Find the driver and build the shim for it."""
        driver = shim.find_driver(os.environ)
        if driver is None:
            raise StepError("no NVIDIA driver (libcuda.so.1) was found; set GPULOOM_SHARE_DRIVER to where it is")
        path = build.shim_path(driver)
        self.paths |= {"driver": driver, "shim": path}
        lacking = sorted(build.exported(driver) - build.exported(path))
        return {"driver": str(driver), "shim": str(path), "lacking": lacking}

    def run(self) -> bool:
        """All steps; whether the main comparison was made for each service."""
        plain = {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu}
        self.result |= {"requests": self.requests, "load": self.load, "targets": TARGETS, "at": time.strftime("%F %T")}
        here = self.step("machine", 20, self.machine)
        built = self.step("shim", 30, self.make_shim)
        if here is None:
            say(
                "PyTorch with a GPU can't be used here; pip install torch where there is a network. Nothing to compare."
            )
            return False
        training = self.step("training alone", 30 + self.train_s, lambda: self.training_alone(plain))
        held = built is not None
        for kind in self.services:
            held = self.compare(kind, plain, training) and held
        if built is not None:
            for what in self.checks:
                self.step(f"check {what}", 45, lambda what=what: self.check(what))
            for kind in self.services if self.rounds else ():
                self.step(f"{kind}: overhead", 20 + 15 * self.rounds, lambda kind=kind: self.overhead(kind))
        self.result["took_s"] = round(time.monotonic() - self.began_s, 1)
        write(self.out, self.result)
        return held

    def compare(self, kind: str, plain: Mapping[str, str], training: Mapping[str, Any] | None) -> bool:
        """One kind of service, alone and in all ways; whether the main comparison was made."""
        service = self.step(f"{kind}: alone", 40, lambda: self.service_alone(kind, plain))
        if service is None or training is None:
            return False
        alone = {"p99_ms": service["p99_ms"], "rate_per_s": service["rate_per_s"], "it_per_s": training["it_per_s"]}
        lasts_s = 30 + 2 * self.requests / service["rate_per_s"]
        made = {}
        for way in sorted(self.ways, key=lambda way: MAIN.index(way.name) if way.name in MAIN else len(MAIN)):
            made[way.name] = self.step(f"{kind}: {way.name}", lasts_s, lambda way=way: self.shared(way, kind, alone))
        self.step(f"{kind}: alone, again", lasts_s, lambda: self.service_alone(kind, plain, alone["rate_per_s"]))
        ours = made.get("gpuloom") or made.get("gpuloom without mps")
        return bool(ours and made.get("time-slicing"))


def attached(folder: Path, holds: bool) -> dict[str, Any]:
    """What the shim counted for both programs.

    Args:
        folder: of the GPU's shared file.
        holds: whether best-effort launches must have been held.

    Raises:
        StepError: one was not attached, or launched nothing, or no request was seen, or nothing was held.
    """
    programs = {program.klass: program for path in shm.files(folder) for program in shm.read(path).programs}
    found = {}
    for klass in (HIGH, BEST_EFFORT):
        program = programs.get(klass)
        if program is None:
            raise StepError(f"the {klass} program was not attached to the shim; see its log")
        if program.kernels + program.graphs == 0:
            raise StepError(f"the shim saw no kernel of the {klass} program")
        found[klass] = {
            "kernels": program.kernels, "graphs": program.graphs, "captured": program.captured,
            "requests": program.requests, "request_ms": program.request_ns / 1e6, "gpu_s": program.gpu_ns / 1e9,
            "holds": program.holds, "held_s": program.held_ns / 1e9, "longest_held_ms": program.longest_held_ns / 1e6,
            "price_scale": program.price_scale, "load": program.load,
            "reasons": {rule.reason_name(code): count for code, count in sorted(program.reasons.items())},
        }  # fmt: skip
    if programs[HIGH].requests == 0:
        raise StepError("the shim saw no request of the service end")
    if holds and programs[BEST_EFFORT].holds == 0:
        raise StepError("the shim held no launch of the training job")
    return found


def table(result: Mapping[str, Any]) -> str:
    """Markdown of what was found, for docs/results/sharing.md."""
    steps = result.get("steps", {})
    lines = ["| service | way | p50 ms | p99 ms | p99 over alone | it/s | of alone |", "|---|---|---|---|---|---|---|"]
    keys = ("p50_ms", "p99_ms", "p99_over_alone", "it_per_s", "best_effort_over_alone")
    for name, found in steps.items():
        kind, _, way = name.partition(": ")
        if name == "training alone":
            kind, way = "", name
        elif kind not in SERVICES or way == "overhead":
            continue
        cells = [f"{found[key]:.3f}" if key in found else "" for key in keys]
        lines.append(
            f"| {kind} | {way} | {' | '.join(cells) if found['state'] == 'done' else found['state'] + ' | ' * 4} |"
        )
    for name, found in steps.items():
        if name.endswith(": overhead") and found["state"] == "done":
            lines += ["", f"Overhead of the shim, {name.partition(':')[0]} alone: {found['overhead']:+.2%}."]
    checks = [f"{what} {steps[f'check {what}']['state']}" for what in CHECKS if f"check {what}" in steps]
    return "\n".join([*lines, *(["", f"Results equal with and without the shim: {', '.join(checks)}."] * bool(checks))])


def chosen(text: str, names: Sequence[str]) -> list[str]:
    """A list of names from a line, in order. Raises argparse.ArgumentTypeError."""
    found = [name.strip() for name in text.split(";") if name.strip()]
    if wrong := [name for name in found if name not in names]:
        raise argparse.ArgumentTypeError(f"{wrong[0]}: none of {'; '.join(names)}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", ROOT / "out")) / "gpu_sharing.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON [{default}]")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="for all steps [540]")
    parser.add_argument("--requests", type=int, default=1000, help="a run [1000]")
    parser.add_argument("--load", type=float, default=0.5, help="share of the time the service is busy, alone [0.5]")
    ways = [way.name for way in WAYS]
    for name, all_of, what in (
        ("services", SERVICES, "kinds of service"),
        ("ways", ways, "ways of sharing"),
        ("checks", CHECKS, "equal results"),
    ):  # fmt: skip
        parser.add_argument(
            f"--{name}", type=lambda text, all_of=all_of: chosen(text, all_of), default=list(all_of), metavar="A;B",
            help=f"{what}, of: {'; '.join(all_of)} [all]",
        )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="of the overhead of the shim; 0: not measured [3]")
    parser.add_argument("--gpu", default="0", help="index or UUID [0]")
    parser.add_argument("--quick", action="store_true", help="200 requests, short training, one round: does it work?")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--worker", nargs="+", default=WORKER, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if not 0 < given.load < 1 or given.requests < 1:
        parser.error("--load must be between 0 and 1, --requests at least 1")
    bench = Bench(
        given.worker, given.out.absolute(), given.budget, given.requests, given.load,
        rounds=given.rounds, gpu=given.gpu, services=given.services,
        ways=[way for way in WAYS if way.name in given.ways], checks=given.checks,
    )  # fmt: skip
    if given.quick:
        bench.requests, bench.train_s, bench.rounds = min(200, given.requests), 4.0, min(1, given.rounds)
    if given.dry_run:
        print(
            f"GPU {given.gpu}, at most {given.budget:g} s, results after every step into {bench.out}\n"
            "1. machine: driver, GPU, PyTorch, MPS    2. shim: built for this driver\n"
            f"3. training alone (ResNet-50, 32 images): {bench.train_s:g} s\n"
            f"4. services ({', '.join(bench.services)}), ResNet-50: alone, its time, {bench.requests} requests at "
            f"{given.load:.0%} load; with training beside, same arrivals: {', '.join(way.name for way in bench.ways)}; "
            "alone again\n"
            f"5. equal results with and without the shim: {', '.join(bench.checks)}\n"
            f"6. overhead of the shim on each service alone: {bench.rounds} rounds in turns"
        )
        return 0
    held = bench.run()
    print(table(bench.result))
    say(f"{bench.out}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
