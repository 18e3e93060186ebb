"""What a training script imports, and the example that uses it: interrupted or not, it ends the same."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gpuloom.files.hook_records import training_in
from gpuloom.training import job
from gpuloom.training.inject import environment
from tiers import slow
from until import until

ROOT = Path(__file__).resolve().parents[2]
LIVE = ROOT / "examples" / "live"


@pytest.fixture(autouse=True)
def _as_if_new(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has used nothing of it yet, outside gpuloom."""
    for name in [name for name in os.environ if name.startswith("GPULOOM_") or name == "RANK"]:
        monkeypatch.delenv(name)
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(job, "_notice", job._Notice())
    monkeypatch.setattr(job, "_progress", job._Progress())
    monkeypatch.setattr(job, "_stages", job._Stages())
    monkeypatch.setattr(job, "LOOK_EVERY_S", 0.0)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "progress.json"
    monkeypatch.setenv("GPULOOM_PROGRESS_FILE", str(path))
    return path


@pytest.fixture
def notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "notice"
    monkeypatch.setenv("GPULOOM_NOTICE_FILE", str(path))
    return path


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def test_importing_it_imports_nothing_else_of_gpuloom_or_beyond_the_standard_library() -> None:
    code = "import sys; from gpuloom.training import job; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    plain = "import sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    added = set(python(code).stdout.split()) - set(python(plain).stdout.split())
    assert added - set(sys.stdlib_module_names) == {"gpuloom"}
    loaded = python("import sys; from gpuloom.training import job; print(*[m for m in sys.modules if 'gpuloom' in m])")
    # An editable installation puts a finder of its own there.
    assert {name for name in loaded.stdout.split() if not name.startswith("__editable__")} == {
        "gpuloom",
        "gpuloom.training",
        "gpuloom.training.job",
    }


def test_outside_gpuloom_nothing_happens() -> None:
    job.progress(1, 10, loss=1.0)
    assert (job.should_stop(), job.deadline_s(), job.resuming()) == (False, None, False)
    assert list(job.steps(3, save=lambda step: None)) == [0, 1, 2]


def test_progress_is_written_at_most_once_a_second_and_at_the_end(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: now[0])
    seen = []
    for step in range(1, 101):
        job.progress(step, 100, loss=1.0 / step)
        seen.append(json.loads(report.read_text())["step"])
        now[0] += 0.09
    assert seen[0] == 1
    assert len(set(seen)) == 10
    assert seen[-1] == 100
    job.progress(7)
    assert json.loads(report.read_text())["step"] == 100
    job._progress.flush()
    data = json.loads(report.read_text())
    assert data.pop("at_s") >= data.pop("first_s") > 0
    assert data == {"step": 7, "first_step": 1}
    assert [path.name for path in report.parent.iterdir()] == ["progress.json"]


def test_the_last_report_is_written_when_the_process_ends(report: Path) -> None:
    code = "from gpuloom.training import job\nfor i in range(50): job.progress(i, 100, loss=i / 2)"
    assert python(code, GPULOOM_PROGRESS_FILE=str(report)).returncode == 0
    data = json.loads(report.read_text())
    assert (data["step"], data["steps"], data["loss"]) == (49, 100, 24.5)


def test_a_notice_while_the_interpreter_ends_leaves_the_exit_code_alone() -> None:
    code = """
import os, signal
from gpuloom.training import job

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)

late = Late()  # goes when the interpreter tears down its modules, after the handlers of signals
job.should_stop()
raise SystemExit(85)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (85, "")


LEAVES = """
import atexit, sys
from gpuloom.training import job

class Large:
    def __del__(self):
        print("taken apart", flush=True)

large = Large()
large.itself = large
atexit.register(print, "first registered")
def train():
    try:
        CALL
    finally:
        print("finally")
def late():
    print("last registered", end=" ")
"""


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("atexit.register(late); job.exit_preempted()", 85, "finally\nlast registered first registered\n"),
        ("atexit.register(sys.exit, 3); job.exit_preempted()", 85, "finally\nfirst registered\n"),
        ("sys.stdout.close(); sys.stdout = open(1, 'w'); job.exit_preempted()", 85, "finally\nfirst registered\n"),
        ("sys.exit(85)", 85, "finally\nfirst registered\ntaken apart\n"),
    ],
)
def test_a_preempted_process_is_not_taken_apart(call: str, code: int, said: str) -> None:
    script = LEAVES.replace("CALL", call) + "train()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, said), done.stderr


@pytest.mark.parametrize(
    "caught",
    [
        "try:\n    train()\nexcept SystemExit:\n    print('works on')\n",
        "try:\n    train()\nexcept SystemExit as kept:\n    mine = kept\nprint('works on')\n",
        "import threading\none = threading.Thread(target=train)\none.start()\none.join()\nprint('works on')\n",
    ],
)
def test_a_script_that_catches_the_exit_ends_as_it_will(caught: str) -> None:
    script = LEAVES.replace("CALL", "job.exit_preempted()") + caught + "sys.exit(4)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "finally\nworks on\nfirst registered\ntaken apart\n"), done.stderr


def test_metrics_of_any_kind_are_written(report: Path) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 0.25

    job.progress(1, None, a=Tensor(), b=float("inf"), c="text", d=[1, 2], e=True, f=None)
    data = json.loads(report.read_text())
    del data["at_s"], data["first_s"]
    assert data == {"step": 1, "first_step": 1, "a": 0.25, "b": "inf", "c": "text", "d": "[1, 2]", "e": True}


def test_only_the_first_rank_reports(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    job.progress(1, 1)
    assert not report.exists()
    monkeypatch.setenv("RANK", "0")
    job.progress(1, 1)
    assert report.exists()


def test_a_report_that_cannot_be_written_is_told_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPULOOM_PROGRESS_FILE", str(tmp_path / "none" / "progress.json"))
    for step in range(3):
        job.progress(step, 0)
    assert capsys.readouterr().err.count("progress can't be written") == 1


def test_notice_by_signal_calls_the_handler_of_before_too() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    assert not job.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert job.should_stop()
    assert seen == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("text", "deadline"),
    [
        ('{"reason": "preempted", "deadline_s": 1234.5}', 1234.5),
        ("1234.5", 1234.5),
        ("", None),
        ("garbage", None),
        ('{"deadline_s": "soon"}', None),
        ("NaN", None),
    ],
)
def test_notice_by_file_with_its_deadline(notice: Path, text: str, deadline: float | None) -> None:
    assert not job.should_stop()
    notice.write_text(text)
    assert job.should_stop()
    assert job.deadline_s() == deadline


def test_a_notice_that_names_no_deadline_gives_the_usual_grace(notice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_GRACE_S", "30")
    monkeypatch.setattr(job.time, "time", lambda: 1000.0)
    assert (job.should_stop(), job.deadline_s()) == (False, None)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (job.should_stop(), job.deadline_s()) == (True, 1030.0)
    notice.write_text('{"deadline_s": 50}')
    assert job.deadline_s() == 50.0


@pytest.mark.parametrize(("value", "resuming"), [("1", True), ("0", False), ("", False)])
def test_a_job_that_ran_before_knows_it(value: str, resuming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_RESUME", value)
    assert job.resuming() is resuming


def test_a_helper_process_still_ends_on_sigterm_unless_it_is_the_notice(notice: Path) -> None:
    code = """
import os, signal
from gpuloom.training import job
job.should_stop()
up, begun = os.pipe()
end, told = os.pipe()
child = os.fork()
if child == 0:
    os.write(begun, b"x")
    os.read(end, 1)
    os._exit(7)
os.read(up, 1)
os.kill(child, signal.SIGTERM)
os.write(told, b"x")
print(os.waitpid(child, 0)[1], job.should_stop())
"""
    assert python(code).stdout.split() == [str(int(signal.SIGTERM)), "False"]
    notice.write_text("{}")
    ended = python(code, GPULOOM_NOTICE_FILE=str(notice)).stdout.split()
    assert ended == [str(7 << 8), "True"]


def test_a_checkpoint_is_the_old_one_or_the_whole_new_one(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    job.save_atomically(path, lambda file: file.write(b"one"))

    def fails(file: object) -> None:
        file.write(b"tw")  # type: ignore[attr-defined]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        job.save_atomically(path, fails)
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["model.bin"]
    killed = f"""
import os, signal
from gpuloom.training import job
job.save_atomically({str(path)!r}, lambda file: (file.write(b"half"), file.flush(), os.kill(os.getpid(), 9)))
"""
    assert python(killed).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"one"
    assert len(os.listdir(tmp_path)) == 2
    job.save_atomically(path, lambda file: file.write(b"two"))
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["model.bin"]


def test_steps_saves_now_and_then_at_the_end_and_on_notice(
    notice: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: now[0])
    saved: list[int] = []
    for _ in job.steps(10, save=saved.append, every_s=30.0):
        now[0] += 10.0
    assert saved == [3, 6, 9, 10]
    done: list[int] = []

    def trains() -> None:
        for step in job.steps(100, start=40, save=saved.append):
            done.append(step)
            if step == 44:
                notice.write_text("{}")

    with pytest.raises(SystemExit) as ended:
        trains()
    assert ended.value.code == 85
    assert done == [40, 41, 42, 43, 44]
    assert saved[4:] == [45]
    assert json.loads(report.read_text())["step"] == 45
    # Notice during the last step: the work is done, and finished is what it is.
    notice.unlink()
    monkeypatch.setattr(job, "_notice", job._Notice())
    for step in job.steps(3, save=saved.append):
        if step == 2:
            notice.write_text("{}")
    assert saved[5:] == [3]
    # Nothing left to do: nothing to save.
    assert list(job.steps(3, start=3, save=saved.append)) == []
    assert saved[6:] == []


# -- the example ----------------------------------------------------------------------------------------------------


def test_a_notice_is_heard_before_the_work_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(job, "should_stop", lambda: calls.append("looks"))
    monkeypatch.setattr(job, "progress", lambda *_: calls.append("reports"))
    next(job.steps(2, save=lambda step: None))
    assert calls == ["looks", "reports", "looks"]


def test_where_the_work_begins_is_reported_before_the_first_step(report: Path) -> None:
    for step in job.steps(100, start=40, save=lambda step: None):
        told = json.loads(report.read_text())
        assert (told["step"], told["steps"]) == (40, 100)
        assert step == 40
        break


def test_the_notice_is_looked_for_now_and_then_until_it_is_there(notice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [100.0], []
    right = job._notice_text

    def text() -> str | None:
        looks.append(now[0])
        return right()

    monkeypatch.setattr(job, "_notice_text", text)
    monkeypatch.setattr(job, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    watch = job._Notice()
    seen = []
    for at in (100.0, 100.25, 100.5, 100.75, 101.0, 102.0):
        now[0] = at
        if at == 100.75:
            notice.write_text("preempted")
        seen.append(watch.look())
    assert looks == [100.0, 100.5, 101.0]
    assert seen == [False, False, False, False, True, True]


@pytest.fixture
def train() -> ModuleType:
    return importlib.import_module("gpuloom.training.sample")


def words(path: Path, seed: int, steps: int) -> list[str]:
    return ["--checkpoint", str(path), "--seed", str(seed), "--steps", str(steps), "--step-seconds", "0"]


def test_interrupted_anywhere_the_example_ends_with_the_very_same_loss(
    train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(5)
    whole = {seed: train.main(words(tmp_path / f"whole-{seed}.npz", seed, 120)) for seed in range(3)}
    assert len(set(whole.values())) == 3
    for round_ in range(6):
        seed, path = round_ % 3, tmp_path / f"parts-{round_}.npz"
        ends = sorted(dice.sample(range(120), 3))
        for end in ends:
            monkeypatch.setattr(job, "should_stop", lambda end=end: (job._progress.step or 0) >= end)
            job._progress.step = None
            with pytest.raises(SystemExit) as ended:
                train.main(words(path, seed, 120))
            assert ended.value.code == 85
        monkeypatch.setattr(job, "should_stop", lambda: False)
        assert train.main(words(path, seed, 120)) == whole[seed]


def test_the_example_learns(train: ModuleType, tmp_path: Path) -> None:
    before, after = (train.main(words(tmp_path / f"{steps}.npz", 0, steps)) for steps in (1, 1200))
    assert before > 0.6
    assert after < 0.1


@pytest.mark.slow
def test_the_example_as_a_process_stops_on_sigterm_saves_and_goes_on(tmp_path: Path) -> None:
    def start(path: Path, pace: str) -> subprocess.Popen[str]:
        arguments = ["--checkpoint", str(path), "--steps", "150", "--step-seconds", pace, "--seed", "3"]
        return subprocess.Popen(
            [sys.executable, "-m", "gpuloom.training.sample", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GPULOOM_PROGRESS_FILE": str(tmp_path / "progress.json")},
        )

    def final(text: str) -> str:
        found = re.search(r"final loss (\S+)", text)
        assert found is not None, text
        return found[1]

    path = tmp_path / "new" / "model.npz"
    first = start(path, "0.01")
    progress = tmp_path / "progress.json"
    until(lambda: progress.exists() and json.loads(progress.read_text())["step"] > 2, "its third step")
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=60)
    assert first.returncode == 85, out
    step = int(re.search(r"saved at step (\d+)", out)[1])  # type: ignore[index]
    assert 0 < step < 150
    again, whole = start(path, "0"), start(tmp_path / "whole.npz", "0")
    second, _ = again.communicate(timeout=30)
    third, _ = whole.communicate(timeout=30)
    assert f"continues from step {step}" in second
    assert final(second) == final(third)


def test_the_example_keeps_its_pace_without_using_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuloom.training.sample", "--checkpoint", str(tmp_path / "a.npz")]
    began = time.monotonic()
    subprocess.run([*command, "--steps", "20", "--step-seconds", "0.05"], check=True, capture_output=True, timeout=60)
    assert time.monotonic() - began >= 1.0


def test_the_examples_job_files_are_jobs() -> None:
    spec = importlib.import_module("gpuloom.live.submission.spec")
    files = importlib.import_module("gpuloom.cli.submit_files")
    for name in ("job.yaml", "array.yaml"):
        (job,) = files.read_jobs(str(LIVE / name), {}, {}, {})
        found = spec.job_spec(job, source=name)
        assert all((LIVE / word).exists() for word in found.command if word.endswith((".py", ".sh")))


def count(folder: Path, env: dict[str, str], pace: str) -> subprocess.Popen[str]:
    """The shell example, in a process group of its own."""
    command = ["sh", str(LIVE / "count.sh"), str(folder / "state"), "20", pace]
    return subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.PIPE, text=True)


def counts_to_the_end(folder: Path, env: dict[str, str]) -> None:
    again = count(folder, env, "0")
    out, _ = again.communicate(timeout=60)
    assert (again.returncode, out) == (0, "counted to 20\n")
    assert sorted(path.name for path in folder.iterdir()) == ["progress.json", "state"]


def test_the_shell_example_can_be_interrupted_and_goes_on(tmp_path: Path) -> None:
    env = {**os.environ, "GPULOOM_PROGRESS_FILE": str(tmp_path / "progress.json")}
    with count(tmp_path, env, "0.05") as first:
        until((tmp_path / "progress.json").exists, "its first step")
        os.killpg(first.pid, signal.SIGTERM)  # as gpuloom does
        assert first.wait(timeout=30) == 85
    step = int((tmp_path / "state").read_text())
    assert 0 < step < 20
    assert json.loads((tmp_path / "progress.json").read_text()) == {"step": step, "steps": 20, "saved_step": step}
    counts_to_the_end(tmp_path, env)


@pytest.mark.parametrize("again", [*slow(False), True])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_the_notice_may_come_in_any_of_its_programs(tmp_path: Path, nth: int, when: str, again: bool) -> None:
    """Before or after the work of the nth program that it calls, which the signal kills: `sleep`, `mv`, `mv`."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    calls = tmp_path / "calls"
    for name in ("mv", "sleep"):
        work = f'{shutil.which(name)} "$@"'
        hit = f"[ $calls = {nth} ] || [ $calls = {nth + 1 if again else nth} ]"
        order = (f"! {{ {hit}; }} || kill -s TERM 0", work)
        lines = ["#!/bin/sh", f"echo >> {calls}", f"calls=$(wc -l < {calls})"]
        (programs / name).write_text("\n".join([*lines, *(order if when == "before" else order[::-1])]) + "\n")
        (programs / name).chmod(0o755)
    env = {**os.environ, "GPULOOM_PROGRESS_FILE": str(home / "progress.json")}
    with count(home, {**env, "PATH": f"{programs}:{env['PATH']}"}, "0") as first:
        assert first.wait(timeout=30) == 85
    state = home / "state"
    assert (state.read_text() if state.exists() else "") == ("" if nth == 1 else "1\n")
    counts_to_the_end(home, env)


def test_the_programs_and_files_in_the_document_are_right(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs" / "howto" / "write-jobs.md").read_text()
    code, *_ = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "steps.txt").read_text() == "100"
    service, written = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    job_spec = importlib.import_module("gpuloom.live.submission.spec").job_spec
    found = job_spec(yaml.safe_load(written))
    assert (found.time_limit, found.grace) == (600.0, 20.0)
    fields = yaml.safe_load(service.replace("# gpu_memory", "gpu_memory"))  # on a machine with GPUs
    found = job_spec({"share_class": fields.pop("class"), **fields})
    assert (found.share_class, found.gpu_memory, found.on_preempt) == ("high", 20_480, "never")


def test_saves_are_reported_at_once_and_repeated(report: Path) -> None:
    job.progress(5, 100, loss=0.5)
    job.saved(5)
    data = json.loads(report.read_text())
    assert (data["step"], data["saved_step"], data["loss"]) == (5, 5, 0.5)
    assert data["at_s"] <= data["saved_s"]
    job.progress(100, 100)
    assert json.loads(report.read_text())["saved_step"] == 5


def test_steps_report_their_saves(report: Path) -> None:
    for _ in job.steps(4, save=lambda step: None, every_s=0.0):
        pass
    data = json.loads(report.read_text())
    assert (data["step"], data["saved_step"]) == (4, 4)


def test_the_example_tells_its_loss_every_fifty_steps(
    train: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.main(words(tmp_path / "a.npz", 0, 120))
    assert re.findall(r"^step (\d+): loss", capsys.readouterr().out, re.MULTILINE) == ["50", "100"]


MARKED = """
from gpuloom.training import job
{before}
for step in job.steps(3, save=lambda step: None):
    with job.stage("storage"):
        pass
    with job.stage("gpu"):
        with job.stage("network"):
            pass
    job.progress(step + 1, 3)
"""
LISTENS = """
from _gpuloom_hooks import stages
class Listener:
    def begin(self, resource): print("+%d" % resource, end=" ")
    def end(self, resource): print("-%d" % resource, end=" ")
    def iteration(self): print("iteration", end=" ")
stages.listeners.append(Listener())
"""


def test_marked_stages_reach_the_hooks(tmp_path: Path) -> None:
    within = dict(environment(os.environ, tmp_path / "hooks"))
    done = python(MARKED.format(before=LISTENS), **within)
    assert done.stdout.split() == ["+0", "-0", "+2", "+3", "-3", "-2", "iteration"] * 3
    seen = training_in(str(tmp_path / "hooks"))
    assert seen is not None
    assert (seen.framework, seen.iterations) == ("marked", 3)
    counts = "stages.thread().iteration()"  # as the hooks of a framework do, at its own steps
    done = python(MARKED.format(before=LISTENS + counts), **within)
    assert done.stdout.split().count("iteration") == 1
    assert python(MARKED.format(before="")).returncode == 0, "outside gpuloom it does no harm"
    with pytest.raises(ValueError, match="must be one of storage, cpu, gpu, network"):
        job.stage("disk")
