"""The real shim on recorded kernels: a service and a training in processes of their own, fake driver, virtual clock."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloom.sharing.find import find_profile
from gpuloom.sharing.profiles import KernelProfile
from gpuloom.sharing.simulate import Machine, Outcome, Pair, poisson_arrivals, request_alone_ns
from shim_kit import Built, Stage, told

JITTER = 0.05
LAUNCH_NS = 6000
"""What a launch costs the program, about."""
ALONE_ITERATIONS = 20


@dataclass(frozen=True)
class Shared:
    """A pair under a rule. p99 from arrival to finish, and the training's work per time, each over alone."""

    p99_over_alone: float
    best_effort_over_alone: float
    longest_hold_ms: float


class ShimPair:
    """A service that gets random arrivals and a training that loops, of profiles found by name.

    Args:
        folder: for what the runs write.
        data: folder of the profiles.
        load: share of the time that the service is busy, alone.
        profiled: the shim is given the kernels' profile; else it learns.
        pause_ns: that the service computes before each launch: with enough of it, it is slower than the GPU.
    """

    def __init__(
        self,
        made: Built,
        folder: Path,
        data: Path,
        service: str,
        training: str,
        load: float = 0.5,
        requests: int = 300,
        seed: int = 1,
        profiled: bool = True,
        pause_ns: int = 0,
    ) -> None:
        self.made, self.folder, self.profiled, self.seed = made, folder, profiled, seed
        self.high, self.best_effort = find_profile(service, data)[0], find_profile(training, data)[0]
        takes_ns = max(request_alone_ns(self.high, Machine()), len(self.high.order) * (pause_ns + LAUNCH_NS))
        rate = load / (takes_ns / 1e9)
        self.arrival_s = poisson_arrivals(rate, requests, seed)
        self.arrival_ns = np.round(self.arrival_s * 1e9)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "arrivals").write_text("".join(f"{int(at)}\n" for at in self.arrival_ns))
        for name, profile in (("high", self.high), ("best-effort", self.best_effort)):
            pause = f"p {pause_ns}\n" if pause_ns and name == "high" else ""
            (folder / name).write_text(pause + kernel_lines(profile))
            (folder / f"{name}.tsv").write_text(profile_lines(profile))
        self.alone_ns = self._latency(self._run("none", "high"))
        self.alone_rate = self._rate(self._run("none", "best-effort"))

    def under(self, rule: str, skip: int = 0) -> Shared:
        """Both at once; the first `skip` requests don't count for the p99."""
        found = self._run(rule, "high", "best-effort")
        p99 = float(np.percentile(self._latency(found)[skip:], 99) / np.percentile(self.alone_ns[skip:], 99))
        longest = float(found["best-effort"]["longest"]) / 1e6
        return Shared(p99, self._rate(found) / self.alone_rate, longest)

    def simulated(self, rule: str) -> Outcome:
        """The same pair, arrivals and rule in the simulator."""
        return Pair(self.high, self.best_effort, self.arrival_s, seed=self.seed).outcome(rule)

    def _run(self, rule: str, *classes: str) -> dict[str, dict[str, str]]:
        stage = Stage(self.made, self.folder / f"{rule}-{'-'.join(classes)}", {"GPULOOM_SHARE_RULE": rule})
        shutil.rmtree(stage.folder, ignore_errors=True)
        stage.folder.mkdir()
        ends = float(self.arrival_ns[-1]) if len(classes) > 1 else ALONE_ITERATIONS * self.best_effort.duration_ns
        last = {"high": str(self.folder / "arrivals"), "best-effort": f"{ends:.0f}"}
        commands = {"high": "serve", "best-effort": "train"}
        processes = {}
        for rank, klass in enumerate(classes):
            more = {"FAKE_VIRTUAL": str(len(classes)), "FAKE_RANK": str(rank), "FAKE_JITTER": str(JITTER)}
            if klass == "best-effort" and rule != "none":
                more["CUDA_MPS_CLIENT_PRIORITY"] = "1"
            if self.profiled:
                more["GPULOOM_SHARE_PROFILE"] = str(self.folder / f"{klass}.tsv")
            arguments = (commands[klass], str(self.folder / klass), last[klass])
            processes[klass] = stage.start(klass, *arguments, program="pairs", loader="", **more)
        try:
            return {klass: told(process, 200)[0] for klass, process in processes.items()}
        finally:
            stage.end()

    def _latency(self, found: dict[str, dict[str, str]]) -> NDArray[np.float64]:
        return np.array(found["high"]["finish"].split(","), dtype=np.float64) - self.arrival_ns

    @staticmethod
    def _rate(found: dict[str, dict[str, str]]) -> float:
        return float(found["best-effort"]["work"]) / float(found["best-effort"]["took"])


def kernel_lines(profile: KernelProfile) -> str:
    """The profile as the program `pairs` reads it."""
    lines = []
    for record in profile.records:
        k = record.as_kernel()
        compute, dram = (-1.0 if value is None else value for value in (k.compute, k.dram))
        lines.append(f"k {k.sm} {k.duration_ns} {compute:.4f} {dram:.4f}\n")
    return "".join(lines) + "".join(f"l {index}\n" for index in profile.order)


def profile_lines(profile: KernelProfile) -> str:
    """The profile as the shim reads it: names as the program `pairs` makes them."""
    lines = []
    for index, record in enumerate(profile.records):
        k = record.as_kernel()
        compute, dram = (-1.0 if value is None else value for value in (k.compute, k.dram))
        name = f"k{index}?ns={k.duration_ns}&per_sm=1&compute={compute:.4f}&dram={dram:.4f}"
        told = ("-" if value is None else f"{value:.4f}" for value in (k.compute, k.dram))
        numbers = (k.sm, 1, 1, 128, 1, 1, 0, k.sm, *told, k.duration_ns, record.klass)
        lines.append("\t".join((name, *map(str, numbers))) + "\n")
    return "".join(lines)
