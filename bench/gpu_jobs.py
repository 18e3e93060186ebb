"""gpuloom itself on a real GPU, by its commands: jobs that make room, share, and are woven.

    python bench/gpu_jobs.py [--out FILE] [--parts suspend,share,weave] [--budget SECONDS]

One call on a machine with one idle NVIDIA GPU and PyTorch, from a checkout with gpuloom's own packages. `gpuloom up`
in a home of its own, then:

suspend: a training that knows nothing of gpuloom runs; a shorter one comes that needs nearly all GPU memory,
    under `srtf`. The first must be suspended, be one attempt, and end with bitwise the losses of an undisturbed run.
share: a service (`--class high`) and a training (`--class best-effort`) on the GPU at once; the shim must see both.
weave: four trainings under `weave`; which of them were together, and what each did.

JSON after every part, with the events of all jobs. Exit code 1 where a part does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_report import say, write

ROOT = Path(__file__).resolve().parents[1]
WORKER = [sys.executable, str(ROOT / "bench" / "gpu_suspend_work.py")]
PARTS = ("suspend", "share", "weave")
LEFT_GIB = 6
"""Of the GPU's memory, that the short training of `suspend` leaves: less than the first one has."""
FIRST_GIB = 8


class PartError(Exception):
    """A part does not hold; says why."""


@dataclass
class Bench:
    """What is asked, and what was found."""

    worker: list[str]
    out: Path
    parts: Sequence[str]
    budget_s: float
    folder: Path
    steps: int
    began_s: float = field(default_factory=time.monotonic)
    result: dict[str, Any] = field(default_factory=dict)

    def left_s(self) -> float:
        return max(self.budget_s - (time.monotonic() - self.began_s), 1.0)

    def gpuloom(self, *words: str) -> Any:
        """What a command says with --json. Raises PartError."""
        home = ("--home", str(self.folder / "home"))
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        head = words.index("--") if "--" in words else len(words)
        done = subprocess.run(
            [sys.executable, "-m", "gpuloom", *words[:head], *home, "--json", *words[head:]], capture_output=True,
            text=True, timeout=self.left_s(), check=False, cwd=self.folder, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        if done.returncode != 0:
            raise PartError(f"gpuloom {words[0]}: {(done.stderr or done.stdout).strip()[-500:]}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def submit(self, name: str, *options: str, program: Sequence[str]) -> int:
        """Returns its number. program: of gpu_suspend_work.py, its file is NAME.txt."""
        what, *words = program
        command = [*self.worker, what, str(self.file(name)), *words]
        found = self.gpuloom("submit", "--name", name, "-g", "1", *options, "--", *command)
        return int(found["jobs"][0])

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def done(self, name: str) -> int:
        path = self.file(name)
        return sum(1 for line in path.read_text().splitlines() if line and line[0].isdigit()) if path.exists() else 0

    def show(self, job: int) -> dict[str, Any]:
        found: dict[str, Any] = self.gpuloom("show", str(job))["job"]
        return found

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """Raises PartError: the budget is over."""
        while not (found := true()):
            if self.left_s() <= 1.0:
                raise PartError(f"waited in vain for {what}")
            time.sleep(0.1)
        return found

    def ends(self, job: int) -> dict[str, Any]:
        """Wait for its end, which must be a good one. Raises PartError."""
        over = ("finished", "failed", "cancelled", "timed_out")
        found: dict[str, Any] = self.until(
            lambda: (one := self.show(job))["state"] in over and one, f"job {job} to end"
        )
        if found["state"] != "finished":
            raise PartError(f"job {job}: {found['state']}: {found.get('message') or found.get('reason')}")
        return found

    def run(self) -> bool:
        """Whether all parts hold."""
        self.result |= {"at": time.strftime("%F %T"), "parts": {}}
        held = True
        try:
            self.gpuloom("up", "--detach", "--port", "0", "--policy", "srtf", "--interval", "1")
            self.result["nodes"] = self.gpuloom("nodes")
            for name in self.parts:
                held = self.part(name) and held
        except (PartError, subprocess.TimeoutExpired) as error:
            self.result["why"], held = str(error), False
            say(str(error))
        finally:
            self.end()
        self.result["took_s"] = round(time.monotonic() - self.began_s, 1)
        write(self.out, self.result)
        return held

    def part(self, name: str) -> bool:
        """Do one, and write down what came of it."""
        told: dict[str, Any] = {"holds": False}
        self.result["parts"][name] = told
        begin = time.monotonic()
        try:
            told |= getattr(self, name)()
            told["holds"] = True
        except (PartError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            told["why"] = f"{type(error).__name__}: {error}"
            for job in self.gpuloom("ls"):
                told.setdefault("jobs", []).append(self.show(job["id"]))
            self.gpuloom("cancel", "--all")
        told["took_s"] = round(time.monotonic() - begin, 1)
        told["events"] = self.gpuloom("events", "-n", "200")
        write(self.out, self.result)
        say(f"{name}: {'holds' if told['holds'] else told['why']}, {told['took_s']} s")
        return bool(told["holds"])

    def suspend(self) -> dict[str, Any]:
        words = ["--gib", str(FIRST_GIB), "--steps", str(self.steps)]
        alone = subprocess.Popen([*self.worker, "train", str(self.file("alone")), *words])
        if alone.wait(timeout=self.left_s()) != 0:
            raise PartError(f"the training alone ended with code {alone.returncode}")
        gib = self.gpu_gib() - LEFT_GIB
        first = self.submit(
            "first", "--estimate", "10m", "--on-preempt", "suspend", program=["train", *words, "--pause", "0.01"]
        )
        self.until(lambda: self.done("first") > 100, "the first to work")
        words = ["--gib", str(gib), "--steps", "100", "--pause", "0.03"]
        short = self.submit("short", "--estimate", "10s", program=["train", *words])
        self.until(lambda: self.done("short") > 10, "the short one to work")
        at, while_away = self.done("first"), self.show(first)["state"]
        self.until(lambda: self.done("short") > 60, "the short one to go on")
        still = self.done("first")
        waited_s = self.ends(short)["waited_s"]
        found = self.ends(first)
        lines, wanted = (self.file(name).read_text().splitlines() for name in ("first", "alone"))
        kinds = ("attempt.frozen", "attempt.thawed", "attempt.not_suspended")
        story = [event for kind in kinds for event in self.gpuloom("events", "--job", str(first), "--type", kind)]
        held = {
            "state_while_away": while_away,
            "short_waited_s": round(waited_s, 2),
            "short_gib": gib,
            "attempts": found["attempts"],
            "went_on_by": still - at,
            "losses_equal": lines == wanted,
            "story": story,
        }
        if not held["losses_equal"]:
            raise PartError(f"its losses are not those of an undisturbed run: {held}")
        if found["attempts"] != 1 or held["went_on_by"] or while_away != "frozen":
            raise PartError(f"it was not suspended all the while: {held}")
        if (
            len([event for event in story if event["type"] == "attempt.frozen" and event["data"].get("suspended_mib")])
            < 1
        ):
            raise PartError(f"it was not suspended: {held}")
        return held

    def gpu_gib(self) -> int:
        """Of the one GPU, as the scheduler shows it."""
        gpus = [gpu for node in self.result["nodes"] for gpu in node["gpus"]]
        return int(gpus[0]["memory_mib"] / 1024)

    def share(self) -> dict[str, Any]:
        self.gpuloom("policy", "set", "fifo")
        service = self.submit("service", "--class", "high", program=["serve", "--pause", "0.005"])
        self.until(lambda: self.done("service") > 100, "the service to work")
        training = self.submit("beside", "--class", "best-effort", program=["train", "--pause", "0"])
        self.until(lambda: self.done("beside") > 100, "the training to work beside it")
        before = self.done("service"), self.done("beside")
        begin = time.monotonic()
        time.sleep(4.0)
        took = time.monotonic() - begin
        programs = self.top()
        did = [
            round((now - then) / took, 1)
            for now, then in zip((self.done("service"), self.done("beside")), before, strict=True)
        ]
        for name in ("service", "beside"):
            self.file(name).with_suffix(".stop").touch()
        self.ends(service)
        self.ends(training)
        held = {"requests_per_s": did[0], "iterations_per_s": did[1], "programs": programs}
        classes = {program["class"] for program in programs if program["kernels"] > 0}
        if classes < {"high", "best-effort"} or min(did) <= 0:
            raise PartError(f"not both were seen by the shim at work: {held}")
        return held

    def top(self) -> list[dict[str, Any]]:
        """Programs that share GPUs."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuloom", "share", "top", "--once", "--json"], capture_output=True, text=True,
            timeout=self.left_s(), check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
        )  # fmt: skip
        return [program for line in done.stdout.splitlines() for program in json.loads(line)["programs"]]

    def weave(self) -> dict[str, Any]:
        self.gpuloom("policy", "set", "weave")
        names = [f"woven{number}" for number in range(4)]
        begin = time.monotonic()
        words = ["train", "--steps", "600", "--workers", "1", "--pause", "0.005"]
        jobs = [self.submit(name, "--estimate", "30s", program=words) for name in names]
        groups: list[Any] = []
        while any(self.show(job)["state"] in ("queued", "starting", "running") for job in jobs) and self.left_s() > 5:
            if (now := self.gpuloom("ls", "--groups")) and now not in groups:
                groups.append(now)
            time.sleep(0.5)
        for job in jobs:
            self.ends(job)
        return {"all_s": round(time.monotonic() - begin, 1), "groups": groups}

    def end(self) -> None:
        """End what runs in this home."""
        for words in (("cancel", "--all"), ("down",)):
            try:
                self.gpuloom(*words)
            except (PartError, subprocess.TimeoutExpired, ValueError) as error:
                say(str(error))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", ROOT / "out")) / "gpu_jobs.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON [{default}]")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of: {', '.join(PARTS)} [all]")
    parser.add_argument("--steps", type=int, default=1500, help="iterations of the training that is suspended [1500]")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="for all [540]")
    parser.add_argument("--worker", nargs="+", default=WORKER, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    parts = [name.strip() for name in given.parts.split(",") if name.strip()]
    if wrong := [name for name in parts if name not in PARTS]:
        parser.error(f"--parts: {wrong[0]}: none of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="gpu-jobs-") as folder:
        bench = Bench(given.worker, given.out.absolute(), parts, given.budget, Path(folder), given.steps)
        held = bench.run()
    print(json.dumps({name: part["holds"] for name, part in bench.result["parts"].items()}))
    say(str(bench.out))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
