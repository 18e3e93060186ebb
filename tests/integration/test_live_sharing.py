"""Best-effort jobs beside high-priority ones on a live scheduler: who may, how they are started, and that they run."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_executor import FakeExecutor
from fake_nvml import FakeGpu, FakeNvml
from fake_torch import install
from gpuloom.agent.nvml import Nvml
from gpuloom.core.errors import ConflictError
from gpuloom.core.kernel_load import Load
from gpuloom.core.kernel_pairs import Beside
from gpuloom.live.views.groups import groups_view
from gpuloom.sharing.expected import expected, profile_of, with_kernel_pairs
from gpuloom.sharing.loads import request_rates
from gpuloom.sharing.profiles import KernelProfile, KernelRecord, library_folder, save
from gpuloom.sharing.shim import shm
from gpuloom.sharing.shipped import shipped
from gpuloom.sharing.simulate import Machine, request_alone_ns
from gpuloom.store.port import JobQuery
from gpuloom.traces import read_trace
from live_builders import Live, living
from shim_kit import built

pytestmark = pytest.mark.slow

GPU = "GPU-11111111-2222-3333-4444-555555555555"
SERVICE: dict[str, Any] = {"share_class": "high"}
TRAINING: dict[str, Any] = {"task_type": "training"}


def test_training_runs_beside_a_service_and_goes_on_alone(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        service, training, more = live.submit(**SERVICE), live.submit(**TRAINING), live.submit(**TRAINING)
        plain = live.submit()
        assert live.state(service, training, more, plain) == ["running", "running", "queued", "queued"]
        assert "No GPU has a high-priority job alone on it" in live.why(more)["text"]
        assert "share" not in live.why(plain)["text"]
        live.end(training)
        assert live.state(more, plain) == ["running", "queued"]
        live.end(service)
        assert live.state(more, plain) == ["running", "queued"]
        live.end(more)
        assert live.state(plain) == ["running"]


def test_a_service_of_higher_priority_is_joined_and_never_stopped(tmp_path: Path) -> None:
    for policy in ("fifo", "srtf", "tiresias"):
        with living(tmp_path / policy, slots=1, policy=policy) as live:
            service = live.submit(priority=10, estimate=1000, **SERVICE)
            training, short = live.submit(estimate=500, **TRAINING), live.submit(estimate=1)
            assert live.state(service, training, short) == ["running", "running", "queued"], policy
            live.end(service)
            if policy == "srtf":  # now the training is a job like any other
                live.settle()
                assert live.state(training, short) == ["queued", "running"]
            else:
                assert live.state(training) == ["running"], policy


WRAPPED = ("fifo", "fifo:backfill=easy", "sjf", "srtf", "srsf", "tiresias", "gittins", "themis", "gavel", "hlas")


@pytest.mark.parametrize("policy", WRAPPED)
@pytest.mark.parametrize("stays", [{"priority": 10}, {"on_preempt": "never"}], ids=str)
def test_the_gpu_of_a_service_that_ends_goes_to_who_waits(tmp_path: Path, policy: str, stays: dict[str, Any]) -> None:
    """Of a service that the policy may not touch, and so has never seen."""
    with living(tmp_path, slots=1, policy=policy) as live:
        service, plain = live.submit(**SERVICE, **stays), live.submit()
        assert live.state(service, plain) == ["running", "queued"]
        live.end(service)
        assert live.state(plain) == ["running"]


@pytest.mark.parametrize("policy", WRAPPED)
def test_a_job_of_negative_priority_has_its_gpu_for_itself(tmp_path: Path, policy: str) -> None:
    with living(tmp_path, slots=2, policy=policy) as live:
        low, job = live.submit(priority=-1), live.submit()
        assert live.state(low, job) == ["running", "running"]
        held = [live.book.attempts[number].allocation for number in (low, job)]
        assert held[0] != held[1]


def test_a_service_that_may_not_be_stopped_is_joined(tmp_path: Path) -> None:
    with living(tmp_path, slots=1, policy="srtf") as live:
        service = live.submit(estimate=1000, on_preempt="never", **SERVICE)
        training, short = live.submit(estimate=500, **TRAINING), live.submit(estimate=1)
        assert live.state(service, training, short) == ["running", "running", "queued"]


def test_a_service_joins_training(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        training = live.submit(estimate=1000, on_preempt="never", **TRAINING)
        service = live.submit(priority=5, **SERVICE)
        assert live.state(training, service) == ["running", "running"]
        assert live.book.attempts[service].allocation == live.book.attempts[training].allocation


def test_a_restart_finds_the_pair_as_it_was(tmp_path: Path) -> None:
    executor = FakeExecutor()
    live = Live(tmp_path, executor, slots=1)
    jobs = [live.submit(priority=3, **SERVICE), live.submit(**TRAINING)]
    live.crash()
    with living(tmp_path, executor, slots=1) as live:
        live.settle()
        assert live.state(*jobs) == ["running", "running"]
        waiting = live.submit(**TRAINING)
        assert live.state(waiting) == ["queued"]
        live.end(jobs[1])
        assert live.state(jobs[0], waiting) == ["running", "running"]


def test_who_does_not_share(tmp_path: Path) -> None:
    """Jobs that said nothing, ask for several GPUs, or run under a policy that was told not to."""
    with living(tmp_path, slots=2, policy="fifo:beside=no") as live:
        service = live.submit(2, **SERVICE)
        training = live.submit(**TRAINING)
        assert live.state(service, training) == ["running", "queued"]
        live.end(service)
        first, second = live.submit(), live.submit(**SERVICE)
        assert live.state(training, first, second) == ["running", "running", "queued"]
        assert live.service.status()["sharing"]["on"] is False
        assert (
            live.service.status()["sharing"]["text"]
            == "policy fifo:beside=no can't put jobs beside each other on a GPU"
        )
        live.service.set_policy("fifo")
        live.settle()
        assert live.service.status()["sharing"]["on"] is True
        assert live.state(second) == ["running"]


def test_other_policies_take_over_and_give_back(tmp_path: Path) -> None:
    """Pairs outlive a change of the policy, whatever it does with classes."""
    with living(tmp_path, slots=1) as live:
        jobs = [live.submit(**SERVICE), live.submit(**TRAINING)]
        for policy in ("srtf", "antman", "elastic", "fifo:beside=no", "tiresias"):
            live.service.set_policy(policy)
            live.settle()
            assert live.state(*jobs) == ["running", "running"], policy
        waiting = live.submit()
        for job in jobs:
            live.end(job)
        assert live.state(waiting) == ["running"]


def test_the_past_as_a_trace_tells_the_class(tmp_path: Path) -> None:
    with living(tmp_path, slots=2) as live:
        jobs = [live.submit(**SERVICE), live.submit(**TRAINING), live.submit()]
        for job in jobs:
            live.until(lambda job=job: live.state(job) == ["running"])  # type: ignore[misc]
            live.end(job)
        lines = live.service.history(since_s=None, until_s=None).splitlines()
        header, *rows = (line.split(",") for line in lines if not line.startswith("#"))
        at = header.index("share_class")
        assert [row[at] for row in rows] == ["high", "best-effort", ""]


def test_the_class_can_be_changed_while_it_waits(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        service, training = live.submit(**SERVICE), live.submit()
        assert live.state(training) == ["queued"]
        live.service.update([training], {"share_class": "best-effort"})
        live.settle()
        assert live.state(training) == ["running"]
        with pytest.raises(ConflictError):
            live.service.update([service], {"share_class": "best-effort"})


@pytest.fixture
def gpus() -> Nvml:
    return Nvml(FakeNvml(FakeGpu(GPU, memory=81_920)))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake driver as this machine's."""
    path = built("plain").fake
    folder = tmp_path / "shm"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("GPULOOM_SHARE_DRIVER", str(path))
    monkeypatch.setenv("GPULOOM_SHARE_DIR", str(folder))
    return folder


class TestOnGpus:
    def test_pairs_need_memory_for_both_and_start_under_the_shim(
        self, tmp_path: Path, gpus: Nvml, driver: Path
    ) -> None:
        executor = FakeExecutor()
        with living(tmp_path / "home", executor, slots=None, nvml=gpus) as live:
            service = live.submit(gpu_memory="20GiB", **SERVICE)
            unknown, large = live.submit(**TRAINING), live.submit(gpu_memory="70GiB", **TRAINING)
            small = live.submit(gpu_memory="30GiB", estimate=60, **TRAINING)
            assert live.state(service, unknown, large, small) == ["running", "queued", "queued", "running"]
            assert "ow much GPU memory it needs is unknown" in live.why(unknown)["text"]
            assert "leaves room" in live.why(large)["text"]
            for job, klass in ((service, "high"), (small, "best-effort")):
                request = executor.requests[f"{job}.1"]
                starter = ("share", "run", "--class", klass, "--name", f"job {job}", "--", "train")
                assert request.argv == (sys.executable, "-I", "-m", "gpuloom", *starter)
                assert request.env["GPULOOM_SHARE_DIR"] == str(driver)
            status = live.service.status()["sharing"]
            assert (status["on"], status["gated"]) == (True, True)

    def test_containers_and_jobs_of_no_class_are_left_alone(self, tmp_path: Path, gpus: Nvml, driver: Path) -> None:
        tool = tmp_path / "podman"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        executor = FakeExecutor()
        with living(tmp_path / "home", executor, slots=None, nvml=gpus) as live:
            plain = live.submit(gpu_memory="1GiB")
            assert executor.requests[f"{plain}.1"].argv == ("train",)
            live.end(plain)
            inside = live.submit(gpu_memory="1GiB", container="image", env={"PATH": path}, **SERVICE)
            assert "gpuloom" not in executor.requests[f"{inside}.1"].argv
            training = live.submit(gpu_memory="1GiB", **TRAINING)
            assert live.state(inside, training) == ["running", "queued"]

    def test_without_a_driver_nobody_is_paired(
        self, tmp_path: Path, gpus: Nvml, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GPULOOM_SHARE", "off")
        executor = FakeExecutor()
        with living(tmp_path / "home", executor, slots=None, nvml=gpus) as live:
            service = live.submit(gpu_memory="1GiB", **SERVICE)
            training = live.submit(gpu_memory="1GiB", **TRAINING)
            assert live.state(service, training) == ["running", "queued"]
            assert executor.requests[f"{service}.1"].argv == ("train",)
            assert "GPULOOM_SHARE=off" in live.service.status()["sharing"]["text"]

    def test_each_is_held_to_the_memory_that_it_asks_for(self, tmp_path: Path, gpus: Nvml, driver: Path) -> None:
        """As on a user's machine, with the fake driver: the job's own words reach the shim."""
        from gpuloom.executors.local import LocalExecutor

        program = str(built("plain").program("memory"))
        common = {"command": [program, *["alloc", "a", "600", "info", "alloc", "b", "600", "alloc", "c", "400"]]}
        executor = LocalExecutor(tmp_path / "home", cgroups="off")
        with living(tmp_path / "home", executor, slots=None, nvml=gpus) as live:  # type: ignore[arg-type]
            env = {"FAKE_STATE": str(tmp_path / "gpu"), "LD_LIBRARY_PATH": str(built("plain").fake.parent)}
            more = {**env, "GPULOOM_SHARE_MEMORY_MIB": "99999"}
            jobs = [live.submit(**{**how, **common}, gpu_memory="1GiB", env=more) for how in (SERVICE, TRAINING)]
            alone = live.submit(**common, gpu_memory="1GiB", env=env)
            live.until(lambda: live.state(*jobs, alone) == ["finished"] * 3, timeout_s=60)
            logs = [Path(live.service.show(job)["log"]).read_text() for job in (*jobs, alone)]
            for log in logs[:2]:
                assert "this program may have 1024 MiB (gpu_memory), has 600 and asked for 600 more" in log
                assert [line for line in log.splitlines() if line[0].isdigit()] == ["0", "424 1024", "2", "0"]
            assert "out of GPU memory" not in logs[2], "who shares with nobody has all of it"

    def test_two_real_programs_meet_on_the_gpu(
        self, tmp_path: Path, gpus: Nvml, driver: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fake driver; all else is as on a user's machine: the runner, `share run`, the shim, shared memory."""
        from gpuloom.executors.local import LocalExecutor

        assert shutil.which("cc"), "the shim is compiled here"
        program = str(built("plain").program())
        env = {"FAKE_STATE": str(tmp_path / "gpu")}
        executor = LocalExecutor(tmp_path / "home", cgroups="off")
        with living(tmp_path / "home", executor, slots=None, nvml=gpus) as live:  # type: ignore[arg-type]
            common = {"gpu_memory": "1GiB", "env": env}
            service = live.submit(
                **SERVICE, **common, command=[program, "direct", "serve", "60", "20", "50000", "4000000"]
            )
            training = live.submit(**TRAINING, **common, command=[program, "direct", "train", "6e8", "20", "20000"])
            seen: set[tuple[str, str]] = set()
            rates: dict[int, float] = {}
            monkeypatch.setattr("gpuloom.sharing.loads.LEAST_S", 0.0)
            monkeypatch.setattr("gpuloom.sharing.loads.LEAST_REQUESTS", 2)

            def ended() -> bool:
                rates.update(request_rates(driver))
                for path in shm.files(driver):
                    seen.update((found.name, found.klass) for found in shm.read(path).programs)
                return live.state(service, training) == ["finished", "finished"]

            live.until(ended, timeout_s=60)
            assert dict(rates).keys() == {service}
            assert seen == {(f"job {service}", "high"), (f"job {training}", "best-effort")}
            logs = [Path(live.service.show(job)["log"]).read_text() for job in (service, training)]
            assert "iterations=" in logs[1]
            assert {job["exit_code"] for job in live.service.jobs(JobQuery())} == {0}, json.dumps(logs)

    def test_kernel_profiles_reach_the_shim(
        self, tmp_path: Path, gpus: Nvml, driver: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file of the working directory, one by the name of the model, and one that is gone when the job starts."""
        from gpuloom.executors.local import LocalExecutor

        assert shutil.which("cc"), "the shim is compiled here"
        monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "library"))
        save(replace(shipped("resnet50-train"), name="mine"), library_folder())
        work = tmp_path / "work"
        work.mkdir()
        own = save(replace(shipped("resnet50"), name="a service"), work)
        gone = save(replace(shipped("resnet50"), name="gone"), work)
        show = ["sh", "-c", 'head -qn 1 "${GPULOOM_SHARE_PROFILE:-/dev/null}"; echo "as $GPULOOM_SHARE_CLASS"']
        executor = LocalExecutor(tmp_path / "home", cgroups="off")
        with living(tmp_path / "home", executor, slots=None, nvml=gpus) as live:  # type: ignore[arg-type]
            common: dict[str, Any] = {"command": show, "gpu_memory": "1GiB", "workdir": str(work)}
            lost = live.submit(**SERVICE, **common, hold=True, kernel_profile=gone.name)
            gone.unlink()
            live.service.release([lost])
            jobs = [
                live.submit(**SERVICE, **common, kernel_profile=own.name),
                live.submit(**TRAINING, **common, model="mine"),
                live.submit(**TRAINING, **common, kernel_profile="resnet50-train"),
                live.submit(**TRAINING, **common, model="of which nothing is known"),
            ]
            live.until(lambda: set(live.state(lost, *jobs)) == {"finished"}, timeout_s=60)
            logs = [Path(live.service.show(job)["log"]).read_text() for job in (lost, *jobs)]
        assert "without its kernel profile" in logs[0], logs[0]
        assert str(gone) in logs[0]
        assert logs[0].endswith("\nas high\n")
        made = "made by gpuloom share run"
        assert logs[1:] == [
            f"# a service: {made}\nas high\n",
            f"# mine: {made}\nas best-effort\n",
            f"# resnet50-train: {made}\nas best-effort\n",
            "as best-effort\n",
        ]

    def test_a_profile_is_taken_while_the_job_runs_and_used_from_then_on(
        self, tmp_path: Path, gpus: Nvml, driver: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a stand-in for PyTorch. A program without it runs as ever, and says why it has none."""
        from gpuloom.executors.local import LocalExecutor

        assert shutil.which("cc"), "the shim is compiled here"
        monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "library"))
        place = install(tmp_path / "program")
        executor = LocalExecutor(tmp_path / "home", cgroups="off")
        with living(tmp_path / "home", executor, slots=None, nvml=gpus) as live:  # type: ignore[arg-type]
            common: dict[str, Any] = {"gpu_memory": "1GiB", "workdir": str(place), **TRAINING}
            train = {"command": [sys.executable, "train.py", "20"], "model": "net", "kernel_profile": "auto"}
            first = live.submit(**common, **train)
            live.until(lambda: live.state(first) == ["finished"], timeout_s=60)
            found, _ = profile_of("net")
            assert {record.klass for record in found.records} == {"compute", "memory", "unknown"}
            show = ["sh", "-c", 'head -qn 1 "${GPULOOM_SHARE_PROFILE:-/dev/null}"; exit 3']
            jobs = [
                live.submit(**common, command=show, model="net", kernel_profile="auto"),
                live.submit(**common, command=show, model="other", kernel_profile="auto"),
            ]
            live.until(lambda: live.state(*jobs) == ["failed", "failed"], timeout_s=60)
            logs = [Path(live.service.show(job)["log"]).read_text() for job in (first, *jobs)]
            assert {attempt["exit_code"] for job in jobs for attempt in live.service.show(job)["attempts"]} == {3}
        assert "gpuloom: profiled net: " in logs[0]
        assert logs[1] == "# net: made by gpuloom share run\n"
        assert "gpuloom: no kernel profile: the profiler did not load in the program" in logs[2]


def kernels(name: str, *each: tuple[int, float]) -> KernelProfile:
    """Kernels of (SMs, microseconds)."""
    records = tuple(KernelRecord(f"{name}{i}", sm, round(us * 1000), 0.3, 0.3) for i, (sm, us) in enumerate(each))
    return KernelProfile(name, 80, records, tuple(range(len(records))))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles of a service, of a training of small kernels, and of one whose kernels last 250 of its requests."""
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "library"))
    monkeypatch.setattr("gpuloom.sharing.expected.pairs_folder", lambda: tmp_path / "pairs")
    for profile in (
        kernels("serve", (40, 60.0), (80, 20.0)),
        kernels("light", (20, 30.0)),
        kernels("heavy", (80, 2e4)),
    ):
        save(profile, library_folder())


class TestByKernelProfiles:
    def test_pairs_are_chosen_by_what_is_expected(self, tmp_path: Path, library: None) -> None:
        """The real simulator finds out; the heavy training would ruin the service, the light one joins."""
        with living(tmp_path / "home", slots=1) as live:
            service = live.submit(**SERVICE, kernel_profile="serve:40%", estimate=100_000)
            heavy = live.submit(**TRAINING, model="heavy", estimate=60)
            told = "the service's p99 is expected above 1.05 of alone (beside_p99)"
            live.until(lambda: live.state(heavy) == ["queued"] and told in live.why(heavy)["text"], timeout_s=60)
            light = live.submit(**TRAINING, model="light", estimate=60)
            live.until(lambda: live.state(light) == ["running"], timeout_s=60)
            assert live.state(service, heavy) == ["running", "queued"]
            (group,) = live.scheduler.do(lambda: groups_view(live.scheduler, live.parts.sights))
            of = {member["job"]: member for member in group["members"]}
            (service_kernels, load), (training_kernels, _) = profile_of("serve:40%"), profile_of("light")
            expected_ = expected(service_kernels, training_kernels, load)
            assert of[light]["expected_rate"] == expected_.speed
            assert of[light]["expected_from"] == f"kernel profiles; p99 of the service {expected_.p99:.3f} of alone"
            assert (of[service]["expected_rate"], expected_.speed > 0.5) == (1.0, True)
            live.service.set_policy("fifo:beside_p99=1000")
            live.end(light)
            live.until(lambda: live.state(heavy) == ["running"], timeout_s=60)

    def test_until_it_is_known_they_wait_and_not_for_ever(
        self, tmp_path: Path, library: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with living(tmp_path / "home", slots=1) as live:
            go, asked = threading.Event(), []

            def compute(service: KernelProfile, best_effort: KernelProfile, load: Load | None) -> Beside:
                asked.append((service.name, best_effort.name, load))
                go.wait(60)
                return Beside(0.75, 1.01)

            monkeypatch.setattr(live.scheduler.kernels, "_compute", compute)
            service = live.submit(**SERVICE, kernel_profile="serve:40%")
            training = live.submit(**TRAINING, kernel_profile="light")
            unprofiled = live.submit()
            assert live.state(service, training) == ["running", "queued"]
            assert "is being computed from their kernel profiles" in live.why(training)["text"]
            go.set()
            live.until(lambda: live.state(training) == ["running"], timeout_s=60)
            assert asked == [("serve", "light", Load(0.4))]
            assert live.scheduler.do(lambda: live.scheduler.work.rate_of(training)) == 0.75
            live.end(training)
            assert live.state(unprofiled) == ["queued"]
            again = live.submit(**TRAINING, kernel_profile="light")  # known by now
            assert live.state(again) == ["queued"]  # the plain job was there before
            live.service.cancel([unprofiled])
            live.settle()
            assert live.state(again) == ["running"]
            live.end(again)
            monkeypatch.setattr("gpuloom.live.planning.kernel_speeds.PATIENCE_S", 0.0)
            go.clear()
            other = live.submit(**TRAINING, kernel_profile="heavy")
            assert live.state(other) == ["running"]  # many pairs come at once: the number for all counts
            assert live.scheduler.do(lambda: live.scheduler.work.rate_of(other)) == 0.5
            go.set()
            live.until(lambda: live.scheduler.do(lambda: live.scheduler.work.rate_of(other)) == 0.75, timeout_s=60)

    def test_the_load_that_the_shim_counts(
        self, tmp_path: Path, library: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a service whose user has said none; of the other what was said stands."""
        monkeypatch.setattr("gpuloom.live.planning.kernel_speeds.LOOK_S", 0.05)
        alone_s = request_alone_ns(profile_of("serve")[0], Machine()) / 1e9
        with living(tmp_path / "home", slots=2) as live:
            kernels_ = live.scheduler.kernels
            monkeypatch.setattr(
                kernels_, "_compute", lambda service, training, load: Beside(1 - (load or Load()).share, 1)
            )  # type: ignore[operator]
            services = [
                live.submit(**SERVICE, kernel_profile="serve"),
                live.submit(**SERVICE, kernel_profile="serve:60%"),
            ]
            trainings = [live.submit(**TRAINING, kernel_profile="light") for _ in range(2)]
            rates: dict[int, float] = {}
            monkeypatch.setattr(kernels_, "_rates", lambda: rates)

            def speeds() -> list[float | None]:
                return live.scheduler.do(lambda: [live.scheduler.work.rate_of(job) for job in trainings])

            live.until(lambda: speeds() == [0.5, pytest.approx(0.4)], timeout_s=60)
            rates |= dict.fromkeys(services, 0.22 / alone_s)
            live.until(lambda: speeds() == [pytest.approx(0.8), pytest.approx(0.4)], timeout_s=60)
            rates |= dict.fromkeys(services, 2.0 / alone_s)  # more than it can serve by its profile
            live.until(lambda: speeds() == [pytest.approx(0.1), pytest.approx(0.4)], timeout_s=60)

    def test_a_profile_that_is_gone_leaves_the_default(self, tmp_path: Path, library: None) -> None:
        with living(tmp_path / "home", slots=1) as live:
            service = live.submit(**SERVICE, kernel_profile="serve", hold=True)
            (library_folder() / "serve.kernels.jsonl").unlink()
            live.service.release([service])
            training = live.submit(**TRAINING, kernel_profile="light")
            live.until(lambda: live.state(service, training) == ["running", "running"], timeout_s=60)
            assert live.scheduler.do(lambda: live.scheduler.work.rate_of(training)) == 0.5
            assert "no kernel profile serve" in live.scheduler.kernels.problems["serve", "light"]

    def test_the_past_as_a_trace_tells_the_profile(self, tmp_path: Path, library: None) -> None:
        with living(tmp_path / "home", slots=2) as live:
            jobs = [live.submit(**SERVICE, kernel_profile="serve:40%"), live.submit(**TRAINING, model="light")]
            jobs += [live.submit(model="light")]
            for job in jobs:
                live.until(lambda job=job: live.state(job) == ["running"], timeout_s=60)  # type: ignore[misc]
                live.end(job)
            trace = tmp_path / "past.csv"
            trace.write_text(live.service.history(since_s=None, until_s=None))
        workload = with_kernel_pairs(read_trace(trace).workload)
        assert workload.kernel_profile is not None
        assert [workload.kernel_profile[job] for job in range(3)] == ["serve:40%", "light", ""]
        assert workload.kernel_pairs is not None
        assert workload.kernel_pairs.beside(0, 1) is not None
