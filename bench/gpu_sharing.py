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

from gpuloom.core.errors import GpuloomError
from gpuloom.core.share_class import BEST_EFFORT, HIGH
from gpuloom.sharing.shim import attach as shim
from gpuloom.sharing.shim import build, compiler, mps

ROOT = Path(__file__).resolve().parents[1]
WORKER = [sys.executable, str(ROOT / "bench" / "gpu_sharing_work.py")]
START_S = 90.0
"""Longest for a worker to import torch, build its model and warm up."""
CHECKS = ("cublas", "cudnn", "triton")
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
    """How two programs share: under a private MPS, with its priorities, under the shim."""

    name: str
    mps: bool = False
    priority: bool = False
    shim: bool = False


WAYS = (
    Way("time-slicing"),
    Way("mps", mps=True),
    Way("mps+priority", mps=True, priority=True),
    Way("gpuloom", mps=True, priority=True, shim=True),
    Way("gpuloom without mps", shim=True),
)


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
        self.write()
        say(f"{name}: {told['state']}, {told['took_s']:.1f} s" + (f": {told['why']}" if "why" in told else ""))
        return found

    def write(self) -> None:
        """Write what is known so far, whole or not at all."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        part = self.out.with_name(f".{self.out.name}.part")
        part.write_text(json.dumps(self.result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self.out)

    @contextlib.contextmanager
    def environments(self, way: Way) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """The environments of the service and of the training job."""
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
                        shim.ShimSettings(klass, gpu=self.gpu, name=klass, log=self.out.with_suffix(f".{klass}.log")),
                        base, shim=self.paths["shim"], driver=self.paths["driver"], shared=shared,
                    )  # fmt: skip
            if way.mps and (mps.control() is not None or not way.shim):
                folder = stack.enter_context(mps.private(shared, self.gpu, base))
                for klass in made:
                    wanted = klass if way.priority else HIGH
                    made[klass].update(mps.client_environment(folder, self.gpu, wanted))
            yield made[HIGH], made[BEST_EFFORT]

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

    def serve(self, worker: Worker, rate_per_s: float) -> list[float]:
        """Latencies of the requests, milliseconds from arrival to result."""
        times = arrivals(rate_per_s, self.requests, self.seed)
        worker.tell(serve=times)
        found = worker.hear("latencies_ms", min(self.left_s(), 20.0 * times[-1] + 30.0))["latencies_ms"]
        if len(found) != self.requests:
            raise StepError(f"serve answered {len(found)} of {self.requests} requests")
        return [float(value) for value in found]

    def service_alone(self, environment: Mapping[str, str], rate_per_s: float = 0.0) -> dict[str, Any]:
        """The service with nobody beside it; its time for a request, and its tail at the load."""
        with self.started("serve", environment) as service:
            ready = self.wait_ready(service)[0]
            rate = rate_per_s or self.load / (ready["request_ms"] / 1000)
            return {**ready, "rate_per_s": rate, **summary(self.serve(service, rate))}

    def training_alone(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Iterations per second with nobody beside it."""
        with self.started("train", environment) as training:
            ready = self.wait_ready(training)[0]
            training.tell(train=True)
            time.sleep(self.train_s)
            training.tell(stop=True)
            found = training.hear("iterations", 30.0)
            return {**ready, "it_per_s": found["iterations"] / found["seconds"], **found}

    def shared(self, way: Way, alone: Mapping[str, float], rate_per_s: float) -> dict[str, Any]:
        """Both at once."""
        with self.environments(way) as (high, best), contextlib.ExitStack() as stack:
            service = stack.enter_context(self.started("serve", high))
            training = stack.enter_context(self.started("train", best))
            self.wait_ready(service, training)
            training.tell(train=True)
            training.hear("training", 30.0)
            found = summary(self.serve(service, rate_per_s))
            training.tell(stop=True)
            trained = training.hear("iterations", 60.0)
        speed = trained["iterations"] / trained["seconds"]
        return {
            **found,
            "it_per_s": speed,
            "p99_over_alone": found["p99_ms"] / alone["p99_ms"],
            "best_effort_over_alone": speed / alone["it_per_s"],
        }

    def overhead(self) -> dict[str, Any]:
        """The service alone with and without the shim, in turns: time of a request, median of medians."""
        by: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(self.rounds):
            for name in by:
                with self.environments(Way(name, shim=name == "with")) as (high, _), self.started("serve", high) as it:
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
        """All steps; whether the main comparison was made."""
        plain = {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu}
        self.result |= {"requests": self.requests, "load": self.load, "targets": TARGETS, "at": time.strftime("%F %T")}
        here = self.step("machine", 20, self.machine)
        built = self.step("shim", 30, self.make_shim)
        if here is None:
            say(
                "PyTorch with a GPU can't be used here; pip install torch where there is a network. Nothing to compare."
            )
            return False
        service = self.step("service alone", 40, lambda: self.service_alone(plain))
        training = self.step("training alone", 30 + self.train_s, lambda: self.training_alone(plain))
        made = {}
        if service is not None and training is not None:
            alone = {"p99_ms": service["p99_ms"], "it_per_s": training["it_per_s"]}
            rate = service["rate_per_s"]
            lasts_s = 30 + 2 * self.requests / rate
            # Ours directly after the baseline: it must not fall to the budget.
            for way in sorted(WAYS, key=lambda way: ("gpuloom", "time-slicing").index(way.name) if way.name in
                              ("gpuloom", "time-slicing") else 2):  # fmt: skip
                made[way.name] = self.step(way.name, lasts_s, lambda way=way: self.shared(way, alone, rate))
            self.step("service alone, again", lasts_s, lambda: self.service_alone(plain, rate))
        if built is not None:
            for what in CHECKS:
                self.step(f"check {what}", 45, lambda what=what: self.check(what))
            self.step("overhead", 20 + 15 * self.rounds, self.overhead)
        self.result["took_s"] = round(time.monotonic() - self.began_s, 1)
        self.write()
        ours = made.get("gpuloom") or made.get("gpuloom without mps")
        return bool(ours and made.get("time-slicing"))


def say(text: str) -> None:
    """On stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def table(result: Mapping[str, Any]) -> str:
    """Markdown of what was found, for docs/results/sharing.md."""
    lines = ["| way | p50 ms | p99 ms | p99 over alone | it/s | of alone |", "|---|---|---|---|---|---|"]
    steps = result.get("steps", {})
    for name in ("service alone", "training alone", *(way.name for way in WAYS)):
        found = steps.get(name, {"state": "not run"})
        if found["state"] != "done":
            lines.append(f"| {name} | {found['state']} | | | | |")
            continue
        keys = ("p50_ms", "p99_ms", "p99_over_alone", "it_per_s", "best_effort_over_alone")
        cells = [f"{found[key]:.3f}" if key in found else "" for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    over = steps.get("overhead", {})
    if over.get("state") == "done":
        lines += ["", f"Overhead of the shim on the service alone: {over['overhead']:+.2%}."]
    checks = [f"{what} {steps[f'check {what}']['state']}" for what in CHECKS if f"check {what}" in steps]
    return "\n".join([*lines, *(["", f"Results equal with and without the shim: {', '.join(checks)}."] * bool(checks))])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", ROOT / "out")) / "gpu_sharing.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON [{default}]")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="for all steps [540]")
    parser.add_argument("--requests", type=int, default=1000, help="a run [1000]")
    parser.add_argument("--load", type=float, default=0.5, help="share of the time the service is busy, alone [0.5]")
    parser.add_argument("--gpu", default="0", help="index or UUID [0]")
    parser.add_argument("--quick", action="store_true", help="200 requests, short training, one round: does it work?")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--worker", nargs="+", default=WORKER, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if not 0 < given.load < 1 or given.requests < 1:
        parser.error("--load must be between 0 and 1, --requests at least 1")
    bench = Bench(given.worker, given.out.absolute(), given.budget, given.requests, given.load, gpu=given.gpu)
    if given.quick:
        bench.requests, bench.train_s, bench.rounds = min(200, given.requests), 4.0, 1
    if given.dry_run:
        print(
            f"GPU {given.gpu}, at most {given.budget:g} s, results after every step into {bench.out}\n"
            "1. machine: driver, GPU, PyTorch, MPS    2. shim: built for this driver\n"
            f"3. service alone (ResNet-50, 4 images): its time; {bench.requests} requests at {given.load:.0%} load\n"
            f"4. training alone (ResNet-50, 32 images): {bench.train_s:g} s\n"
            f"5. both, same arrivals: {', '.join(way.name for way in WAYS)}; 'service alone' again\n"
            f"6. equal results with and without the shim: {', '.join(CHECKS)}\n"
            f"7. overhead of the shim on the service alone: {bench.rounds} rounds in turns"
        )
        return 0
    held = bench.run()
    print(table(bench.result))
    say(f"{bench.out}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
