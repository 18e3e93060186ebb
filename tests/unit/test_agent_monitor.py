"""Looks at real processes, with a machine's GPUs put in by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pynvml
import pytest

from fake_nvml import FakeGpu, FakeNvml
from gpuloom.agent.health import Health
from gpuloom.agent.inventory import inventory
from gpuloom.agent.monitor import Monitor
from gpuloom.agent.nvml import Nvml
from gpuloom.agent.processes import Process, Trees, process
from gpuloom.agent.sample import Finding, RunOnNode
from gpuloom.core.progress import progress_of
from until import until

MIB = 1 << 20


@pytest.fixture
def spawn() -> Iterator[object]:
    """Starts programs in sessions of their own, and ends them with their sessions."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, **env: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        started.append(child)
        assert child.stdout is not None
        child.said = child.stdout.readline().split()  # type: ignore[attr-defined]
        return child

    yield start
    for child in started:
        try:
            os.killpg(child.pid, 9)
        except ProcessLookupError:
            assert child.poll() is not None
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def run_of(child: subprocess.Popen[str], *gpus: int, directory: str = "") -> RunOnNode:
    one = process(child.pid)
    assert one is not None
    return RunOnNode(child.pid, one.start_ticks, gpus, directory)


def slots(number: int = 2) -> Monitor:
    nvml = Nvml(FakeNvml())
    return Monitor(inventory(slots=number, nvml=nvml), nvml)


def with_gpus(*gpus: FakeGpu, **more: object) -> tuple[Monitor, FakeNvml]:
    fake = FakeNvml(*gpus)
    nvml = Nvml(fake)
    return Monitor(inventory(slots=None, nvml=nvml), nvml, **more), fake  # type: ignore[arg-type]


def findings(monitor: Monitor, runs: dict[str, RunOnNode] | None = None) -> list[tuple[str, int, str]]:
    return [(f.kind, f.gpu, f.code) for f in monitor.sample(runs or {}).findings]


def test_the_machine_as_a_whole(tmp_path: Path) -> None:
    nvml = Nvml(FakeNvml())
    monitor = Monitor(inventory(slots=1, nvml=nvml), nvml, disk_path=str(tmp_path), clock=lambda: 42.0)
    first = monitor.sample({})
    assert first.at_s == 42.0
    assert (first.node.cpu_percent, first.node.received_mib_per_s) == (None, None)
    ends = time.monotonic() + 0.2
    while time.monotonic() < ends:
        pass
    rates = monitor.sample({}).node
    assert rates.cpu_percent is not None
    assert 100.0 / (os.cpu_count() or 1) * 0.3 < rates.cpu_percent <= 100.0
    assert 0 < rates.memory_used_mib < rates.memory_mib
    assert rates.disk_free_mib is not None
    assert rates.disk_free_mib > 0
    assert rates.received_mib_per_s is not None
    monitor = Monitor(inventory(slots=1, nvml=nvml), nvml, disk_path=str(tmp_path / "none"))
    assert monitor.sample({}).node.disk_free_mib is None


TREE = """
import os, sys, time
block = bytearray(64 << 20)
daemon_read, daemon_write = os.pipe()
if os.fork() == 0:
    # A daemon: a session of its own, and its parent gone.
    os.setsid()
    if os.fork() == 0:
        os.write(daemon_write, str(os.getpid()).encode())
        time.sleep(600)
    os._exit(0)
os.wait()
child = os.fork()
if child == 0:
    while True:
        pass
print(os.getpid(), child, os.read(daemon_read, 20).decode(), flush=True)
time.sleep(600)
"""


def test_a_runs_usage_is_that_of_its_whole_tree(spawn: object, tmp_path: Path) -> None:
    child = spawn(TREE)  # type: ignore[operator]
    (tmp_path / "output.log").write_bytes(b"x" * MIB)
    (tmp_path / "output.log.1").write_bytes(b"x" * 2 * MIB)
    (tmp_path / "progress.json").write_text('{"step": 3, "steps": 12, "loss": 0.5}')
    runs = {"7.1": run_of(child, 0, directory=str(tmp_path)), "8.1": RunOnNode(None, None, (1,))}
    monitor = slots()
    first = monitor.sample(runs)
    assert first.runs["7.1"].cpu_cores is None
    spinner = psutil.Process(int(child.said[1]))
    before = spinner.cpu_times().user
    until(lambda: spinner.cpu_times().user >= before + 0.3, "it to spin")
    usage = monitor.sample(runs).runs["7.1"]
    assert usage.cpu_cores is not None
    assert 0 < usage.cpu_cores < 1.3  # one process spins, on cores that others share
    assert usage.memory_mib is not None
    assert usage.memory_mib > 64
    assert usage.log_mib == 3.0
    assert (usage.gpu_utilization, usage.gpu_memory_mib) == (None, None)
    assert dict(usage.progress) == {"step": 3, "steps": 12, "loss": 0.5, "fraction": 0.25}
    assert monitor.sample(runs).runs["8.1"].memory_mib is None
    # The same numbers of another process are not the run.
    other = {"7.1": replace(runs["7.1"], start_ticks=(runs["7.1"].start_ticks or 0) + 1)}
    assert slots().sample(other).runs["7.1"].memory_mib is None


def test_writes_to_the_disk_are_counted(spawn: object, tmp_path: Path) -> None:
    code = f"""
import os, sys, time
file = os.open({str(tmp_path / "data")!r}, os.O_WRONLY | os.O_CREAT)
print("ready", flush=True)
while True:
    os.pwrite(file, b"x" * (1 << 20), 0)
    os.fsync(file)
    time.sleep(0.01)
"""
    runs = {"7.1": run_of(spawn(code), 0)}  # type: ignore[operator]
    monitor = slots()
    monitor.sample(runs)
    written = until(lambda: monitor.sample(runs).runs["7.1"].write_mib_per_s, "a look after a write")
    assert written > 0.1


def made(pid: int, parent: int, session: int, start: int = 5) -> Process:
    return Process(pid, parent, session, session, 0, start, 0)


def test_what_left_its_parents_stays_of_its_run() -> None:
    trees, runs = Trees(), {"1.1": RunOnNode(10, 5, ()), "2.1": RunOnNode(20, 5, ())}
    begin = [made(1, 0, 1), made(10, 1, 10), made(11, 10, 10), made(12, 11, 12), made(20, 1, 20), made(30, 1, 30)]

    def pids(processes: list[Process], runs: dict[str, RunOnNode] = runs) -> dict[str, list[int]]:
        found = trees.members({one.pid: one for one in processes}, runs)
        return {run: sorted(one.pid for one in members) for run, members in found.items()}

    assert pids(begin) == {"1.1": [10, 11, 12], "2.1": [20]}
    # 10 and 11 ended: 12 was seen before; 13 is its child; 14 is left in the session.
    later = [made(1, 0, 1), made(12, 1, 12), made(13, 12, 99), made(14, 1, 10), made(20, 1, 20)]
    assert pids(later) == {"1.1": [12, 13, 14], "2.1": [20]}
    # 12 is another process now.
    assert pids([made(12, 1, 12, start=9), made(13, 12, 99)]) == {"1.1": [13], "2.1": []}
    # Of the session, or of the group alone.
    lone = [Process(50, 1, 20, 99, 0, 5, 0), Process(51, 1, 99, 20, 0, 5, 0), Process(52, 1, 99, 99, 0, 5, 0)]
    assert pids([made(20, 1, 20), *lone]) == {"1.1": [], "2.1": [20, 50, 51]}
    # A circle, as a torn reading could show it, is nobody's.
    assert pids([made(40, 41, 7), made(41, 40, 7)]) == {"1.1": [], "2.1": []}


def test_gpus_and_their_processes(spawn: object, tmp_path: Path) -> None:
    # The daemon left before the first look: its environment says whose it is.
    mine = {"GPULOOM_RUN": "home:7.1", "GPULOOM_PROGRESS_FILE": str(tmp_path / "progress.json")}
    ours = spawn(TREE, **mine)  # type: ignore[operator]
    _, child, daemon = map(int, ours.said)
    stranger = spawn("import time; print(1, flush=True); time.sleep(600)")  # type: ignore[operator]
    one = FakeGpu("GPU-a", utilization=80, processes={child: 3000, daemon: 500})
    two = FakeGpu("GPU-b", utilization=40, processes={stranger.pid: 700})
    monitor, _ = with_gpus(one, two)
    runs = {"7.1": run_of(ours, 0, directory=str(tmp_path))}
    memory = monitor.sample(runs).runs["7.1"].memory_mib
    sample = monitor.sample(runs)
    assert (sample.runs["7.1"].gpu_utilization, sample.runs["7.1"].gpu_memory_mib) == (80.0, 3500.0)
    assert [gpu.utilization for gpu in sample.gpus] == [80.0, 40.0]
    assert (sample.runs["7.1"].memory_mib or 0.0) > (memory or 0.0) + 1.0  # the daemon's own is in it now
    assert sample.gpus[0].foreign == ()
    (other,) = sample.gpus[1].foreign
    assert (other.pid, other.memory_mib) == (stranger.pid, 700.0)
    assert other.name.startswith("python")
    assert other.user != "?"
    (found,) = sample.findings
    assert (found.kind, found.gpu, found.patience) == ("foreign", 1, 1)
    assert found.text == f"used by process {other.pid} ({other.name}) of user {other.user}, 700 MiB"
    assert monitor.gpu_processes(["GPU-b"]) == {"GPU-b": [stranger.pid]}

    health = Health(inventory(slots=None, nvml=Nvml(FakeNvml(one, two))))
    assert [gpu.state for gpu in health.note(sample, runs).gpus] == ["foreign"]


def test_a_process_that_says_it_is_ours_is_believed_if_its_files_are_ours(spawn: object, tmp_path: Path) -> None:
    code = "import time; print(1, flush=True); time.sleep(600)"
    mine = {"GPULOOM_RUN": "home:7.1", "GPULOOM_PROGRESS_FILE": str(tmp_path / "progress.json")}
    stray = spawn(code, **mine)  # type: ignore[operator]
    gpu = FakeGpu("GPU-a", processes={stray.pid: 700})
    monitor, _ = with_gpus(gpu)
    assert findings(monitor, {"7.1": RunOnNode(None, None, (0,), str(tmp_path))}) == []
    # The same name under another scheduler's home, or a run that is over.
    for runs in ({"7.1": RunOnNode(None, None, (0,), "/elsewhere")}, {}):
        (found,) = with_gpus(gpu)[0].sample(runs).findings
        assert (found.kind, found.patience) == ("foreign", 3)
        assert found.text.endswith("left over from run 7.1")


def test_what_draws_is_left_alone_unless_it_is_large(spawn: object) -> None:
    drawer = spawn("import time; print(1, flush=True); time.sleep(600)")  # type: ignore[operator]
    gpu = FakeGpu("GPU-a", graphics={drawer.pid: 200})
    monitor, _ = with_gpus(gpu)
    assert findings(monitor) == []
    gpu.graphics = {drawer.pid: 2000}
    assert findings(monitor) == [("foreign", 0, f"pid-{drawer.pid}")]


def test_memory_used_by_nobody_who_can_be_seen() -> None:
    gpu = FakeGpu("GPU-a", hidden=400)
    monitor, _ = with_gpus(gpu)
    assert findings(monitor) == []
    gpu.hidden = 900
    (found,) = monitor.sample({}).findings
    assert (found.kind, found.code, found.patience) == ("foreign", "memory", 3)
    assert found.text == "900 MiB of its memory are used by processes that are not visible here"
    # Our run in a container: neither its memory nor its process numbers can be told from others'.
    gpu.processes = {2**22 - 7: 900}
    runs = {"7.1": RunOnNode(None, None, (0,))}
    assert findings(monitor, runs) == []
    assert monitor.sample(runs).runs["7.1"].gpu_memory_mib == 1800.0
    assert findings(monitor) == [("foreign", 0, f"pid-{2**22 - 7}")]


@pytest.mark.parametrize(
    ("change", "kind", "code", "text"),
    [
        ({"remap": (0, 1, 0, 1)}, "unhealthy", "remap", "could not be remapped"),
        ({"remap": (0, 1, 1, 0)}, "note", "pending", "next reset"),
        ({"retirement_pending": 1}, "note", "pending", "next reset"),
        ({"retirement_pending": 1, "ecc": 2}, "unhealthy", "retirement", "2 uncorrectable ECC errors"),
        ({"recovery": 1}, "unhealthy", "recovery", "needs a reset"),
        ({"recovery": 2}, "unhealthy", "recovery", "a reboot"),
        ({"temperature": 91}, "unhealthy", "thermal", "near 92 °C"),
        ({"slowed": 0x40}, "note", "slowed", "hot"),
        ({"mig": 1}, "unhealthy", "mig", "MIG"),
        ({"error": pynvml.NVML_ERROR_GPU_IS_LOST}, "unhealthy", "lost", "GPU is lost"),
        ({"error": pynvml.NVML_ERROR_RESET_REQUIRED}, "unhealthy", "lost", "requires restart"),
    ],
)
def test_a_gpu_that_is_not_well(change: dict[str, object], kind: str, code: str, text: str) -> None:
    gpu = FakeGpu("GPU-a")
    monitor, _ = with_gpus(gpu, FakeGpu("GPU-b"))
    assert findings(monitor) == []
    for name, value in change.items():
        setattr(gpu, name, value)
    found = [f for f in monitor.sample({}).findings if f.code != "ecc"]
    assert [(f.kind, f.gpu, f.code) for f in found] == [(kind, 0, code)]
    assert text in found[0].text


def test_new_ecc_errors_count_and_old_ones_do_not() -> None:
    gpu = FakeGpu("GPU-a", ecc=7)
    monitor, _ = with_gpus(gpu)
    assert findings(monitor) == []
    gpu.ecc = 9
    assert monitor.sample({}).findings == (
        Finding("unhealthy", 0, "ecc", "2 new uncorrectable ECC errors", event=True),
    )
    assert findings(monitor) == []


def test_a_gpu_that_does_not_answer_once_is_given_time() -> None:
    gpu = FakeGpu("GPU-a", error=None)
    monitor, _ = with_gpus(gpu)
    gpu.error = pynvml.NVML_ERROR_TIMEOUT
    assert findings(monitor) == []
    assert monitor.sample({}).gpus[0].error
    assert findings(monitor) == [("unhealthy", 0, "unreachable")]
    gpu.error = None
    assert findings(monitor) == []


def test_a_lost_gpu_is_looked_for_again_and_its_last_error_is_its_own() -> None:
    now = [0.0]
    gpu, other = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    monitor, fake = with_gpus(gpu, other, monotonic=lambda: now[0])
    opened = fake.opened
    gpu.error = pynvml.NVML_ERROR_GPU_IS_LOST
    # The driver names no GPU with the error of one that is gone.
    fake.events = [(gpu, 79)]
    sample = monitor.sample({})
    assert fake.opened == opened + 1
    for _ in range(10):
        now[0] += 5.0
        assert findings(monitor) == [("unhealthy", 0, "lost")]
    assert fake.opened == opened + 1
    now[0] += 20.0
    gpu.error = None  # it was reset
    fake.gpus = [gpu, other]
    assert findings(monitor) == [("unhealthy", 0, "lost")]  # found anew after this look
    assert findings(monitor) == []
    assert sample.xids == ((0, 79),)


def test_xids_are_given_to_their_gpus() -> None:
    gpu, other = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    monitor, fake = with_gpus(gpu, other)
    fake.events = [(other, 31), (gpu, 48), (other, 31)]
    assert monitor.sample({}).xids == ((1, 31), (0, 48), (1, 31))
    assert monitor.sample({}).xids == ()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"\xff\xfe\x00",
        b"[" * 60_000,
        b"9" * 5000,
        b'{"step": 1}' + b" " * 70_000,
        None,
    ],
)
def test_broken_progress_is_no_progress(text: bytes | None) -> None:
    assert progress_of(text) == {}


def test_progress_keeps_plain_values_alone() -> None:
    given = {"step": 5, "steps": 4, "loss": float("nan"), "deep": {"a": 1}, "name": "x" * 500, "big": 2**70}
    assert progress_of(json.dumps(given).encode()) == {
        "step": 5,
        "steps": 4,
        "loss": "nan",
        "name": "x" * 200,
        "fraction": 1.0,
    }
    assert len(progress_of(json.dumps({str(n): n for n in range(100)}).encode())) == 32
    for odd in ({"step": True, "steps": 3}, {"step": 1, "steps": 0}, {"step": "1", "steps": 2}, {"step": 1}):
        assert progress_of(json.dumps(odd).encode()) == odd


def test_a_progress_file_that_is_a_trap_is_left_alone(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"step": 1}')
    fifo, link, folder = (tmp_path / name for name in ("fifo", "link", "folder"))
    for directory in (fifo, link, folder):
        directory.mkdir()
    os.mkfifo(fifo / "progress.json")
    (link / "progress.json").symlink_to(secret)
    (folder / "progress.json").mkdir()
    runs = {f"{n}.1": RunOnNode(None, None, (), str(d)) for n, d in enumerate((fifo, link, folder))}
    assert [dict(usage.progress) for usage in slots().sample(runs).runs.values()] == [{}, {}, {}]


def test_progress_is_read_again_when_it_was_written_again(tmp_path: Path) -> None:
    runs = {"7.1": RunOnNode(None, None, (), str(tmp_path))}
    monitor = slots()
    for step in range(3):
        new = tmp_path / "new"
        new.write_text(json.dumps({"step": step}))
        new.replace(tmp_path / "progress.json")
        assert dict(monitor.sample(runs).runs["7.1"].progress) == {"step": step}
    (tmp_path / "progress.json").unlink()
    assert dict(monitor.sample(runs).runs["7.1"].progress) == {}
