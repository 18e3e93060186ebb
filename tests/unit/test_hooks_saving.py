"""What every saving hook stands on: notices, saves that are whole or not there, reports, ranks that agree."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from _gpuloom_hooks import kept, ranks, saving, saving_own
from gpuloom.executors.kept_saves import remove_saves
from gpuloom.executors.prepare import request_of
from gpuloom.training import inject
from test_hooks_enter import one

HOOKS = str(Path(__file__).parents[2] / "src")

LOOP = """
import os, sys, time
sys.path.insert(0, HOOKS)
import signal
from _gpuloom_hooks import saving

def write(folder):
    if FAILS:
        raise OSError("the disk is full")
    with open(os.path.join(folder, "state"), "w") as file:
        file.write(str(step))

BEFORE
loop = saving.begin("Frame Work", "saving_frame")
step = 0
found = loop.newest() if loop else None
if found:
    with open(os.path.join(found[0], "state")) as file:
        step = int(file.read())
print("from", step, flush=True)
while step < 10:
    step += 1
    if step == STOP:
        os.kill(os.getpid(), signal.SIGTERM)
    if loop and loop.due(step, 10):
        loop.save_and_leave(write, True)
if loop:
    loop.end(step)
print("done", step, flush=True)
AFTER
"""


def run(place: Path, attempt: int = 1, *words_of_command: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Ten steps of a framework, in which the process gives itself notice at step `stop`."""
    run = place / f"run-{attempt}"
    (run / "hooks").mkdir(parents=True, exist_ok=True)
    words = {
        "STOP": -1,
        "FAILS": False,
        "BEFORE": "",
        "AFTER": "",
        **{key.upper(): value for key, value in given.items() if key != "progress"},
    }
    code = LOOP.replace("HOOKS", repr(HOOKS))
    for key, value in words.items():
        code = code.replace(key, str(value))
    env = {key: value for key, value in os.environ.items() if not key.startswith("GPULOOM_")}
    env |= {
        "GPULOOM_HOOKS": str(run / "hooks"),
        "GPULOOM_SAVES": str(place / "saves" / "3-af"),
        "GPULOOM_ATTEMPT": str(attempt),
    }
    env |= {"GPULOOM_NOTICE_FILE": str(run / "notice"), "GPULOOM_PROGRESS_FILE": str(run / "progress.json")}
    env["GPULOOM_PROGRESS_FILE"] = str(given.get("progress", env["GPULOOM_PROGRESS_FILE"]))
    command = [sys.executable, "-c", code, *words_of_command]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def told(place: Path, attempt: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / f"run-{attempt}" / "progress.json").read_text())
    return found


def test_on_notice_it_saves_at_the_end_of_the_step_and_goes_on_from_there(tmp_path: Path) -> None:
    at = random.Random().randrange(1, 10)
    first = run(tmp_path, stop=at)
    assert (first.returncode, first.stdout) == (85, "from 0\n"), first.stderr
    assert (told(tmp_path)["saved_step"], told(tmp_path)["step"], told(tmp_path)["steps"]) == (at, at, 10)
    assert (told(tmp_path)["saved_who"], told(tmp_path)["saved_what"]) == ("hook", "Frame Work")
    again = run(tmp_path, 2)
    assert (again.returncode, again.stdout) == (0, f"from {at}\ndone 10\n"), again.stderr
    assert "saved_step" not in told(tmp_path, 2)


def test_a_notice_by_the_file_alone_is_seen(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "notice").write_text("{}")
    assert run(tmp_path).returncode == 85
    assert told(tmp_path)["saved_step"] == 1


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("signal.signal(signal.SIGTERM, lambda *a: print('mine', flush=True))", "the script handles SIGTERM itself"),
        ("saving.begin('Frame Work', 'saving_frame').end(10)", "it trains for the 2. time"),
    ],
)
def test_a_loop_that_is_not_ours_to_save_is_left_alone(before: str, why: str, tmp_path: Path) -> None:
    done = run(tmp_path, before=before, stop=4)
    mine = "mine" in before
    assert (done.returncode, "mine" in done.stdout) == ((0, True) if mine else (-signal.SIGTERM, False))
    assert not (tmp_path / "saves").exists()
    assert why in (tmp_path / "run-1" / "hooks" / "hooks.log").read_text()


def test_a_save_that_fails_ends_the_process_as_without_us_and_keeps_the_old_one(tmp_path: Path) -> None:
    assert run(tmp_path, stop=3).returncode == 85
    failed = run(tmp_path, 2, stop=7, fails=True)
    assert failed.returncode == -signal.SIGTERM
    assert "the disk is full" in told(tmp_path, 2)["not_saved"]
    assert "saved_step" not in told(tmp_path, 2)
    assert [path.name for path in (tmp_path / "saves").rglob("*.tmp")] == [], "it takes no room"
    assert run(tmp_path, 3).stdout == "from 3\ndone 10\n"


def test_a_job_that_trains_by_several_commands_goes_on_with_each_from_its_own_save(tmp_path: Path) -> None:
    """A script that runs `train.py --fold 0`, then `train.py --fold 1`, and is preempted in the second."""
    assert run(tmp_path, 1, "--fold", "0").stdout == "from 0\ndone 10\n"
    assert run(tmp_path, 1, "--fold", "1", stop=4).returncode == 85
    assert run(tmp_path, 2, "--fold", "0").stdout == "from 0\ndone 10\n"
    assert run(tmp_path, 2, "--fold", "1").stdout == "from 4\ndone 10\n"


def test_what_one_training_has_left_is_not_the_beginning_of_the_next_by_the_same_command(tmp_path: Path) -> None:
    assert run(tmp_path, stop=4).returncode == 85
    assert run(tmp_path, 2).stdout == "from 4\ndone 10\n"
    second = run(tmp_path, 2, stop=7)
    assert (second.returncode, second.stdout) == (-signal.SIGTERM, "from 0\n")
    assert "the same command has trained before in this job" in told(tmp_path, 2)["not_saved"]


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--lr", "3", "--local_rank=1"], True),
        (["--local-rank", "2", "--lr", "3"], True),
        (["--lr", "3", "hydra.job.name=train_ddp_process_1"], True),
        (["--lr", "4"], False),
        (["--lr", "3", "--ranking=2"], False),
    ],
)
def test_ranks_have_the_same_command(words: list[str], same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "3"])
    first = saving.command()
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    assert (saving.command() == first) is same


def test_a_hook_in_which_something_fails_gives_sigterm_back(tmp_path: Path) -> None:
    fails = "os.kill(os.getpid(), signal.SIGTERM)\nprint('heard', flush=True)\nimport _gpuloom_hooks\n"
    fails += "_gpuloom_hooks.guarded('saving_frame', lambda: 1 // 0)()\nprint('lives')"
    before = f"saving.begin('Frame Work', 'saving_frame')\n{fails}"
    done = run(tmp_path, before=before)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "heard\n")
    assert "division" in told(tmp_path)["not_saved"]


def test_progress_that_cant_be_written_breaks_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, stop=4, progress=tmp_path / "none" / "progress.json")
    assert (done.returncode, done.stderr) == (85, "")
    assert run(tmp_path, 2).stdout == "from 4\ndone 10\n"


def test_a_handler_that_a_framework_had_meanwhile_does_not_stay(tmp_path: Path) -> None:
    """Lightning puts its own in front of what is there, and takes it away after the loop."""
    before = "from _gpuloom_hooks import notice\nwas = saving.begin('Frame Work', 'saving_frame')\n"
    before += "signal.signal(signal.SIGTERM, lambda *a: None)\nnotice.take()\n"
    before += "signal.signal(signal.SIGTERM, notice.on_signal)\nwas.end(1)\n"
    done = run(tmp_path, before=before + "os.kill(os.getpid(), signal.SIGTERM)\nprint('lives')")
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr


def test_who_trains_a_second_time_is_not_done(tmp_path: Path) -> None:
    assert run(tmp_path).stdout == "from 0\ndone 10\n"
    assert told(tmp_path)["steps"] == 10
    again = run(tmp_path, 2, after="saving.begin('Frame Work', 'saving_frame')")
    assert again.returncode == 0, again.stderr
    assert "steps" not in told(tmp_path, 2)


@pytest.mark.parametrize(("notice", "left"), [("", "0"), ("before", "own 0"), ("meanwhile", "lives own 0")])
def test_a_worker_outlives_the_notice_and_ends_when_its_parent_says_so(notice: str, left: str, tmp_path: Path) -> None:
    """With PyTorch's handler a worker ends with 0: its parent would take a death by signal for a fault."""
    code = f"""
import os, signal, sys, time, types
sys.path.insert(0, {HOOKS!r})
from _gpuloom_hooks import notice
def own(*a):
    os.write(1, b"own ")
    os._exit(0)
def set_handlers():
    signal.signal(signal.SIGTERM, own)
    os.write(made, b"1")
torch = types.SimpleNamespace(_set_worker_signal_handlers=set_handlers)
notice.shield_workers(torch)
def tell():
    open(os.environ["GPULOOM_NOTICE_FILE"], "w").close()
if {notice!r} == "before":
    tell()
ready, made = os.pipe()
worker = os.fork()
if not worker:
    torch._set_worker_signal_handlers()
    os.write(made, b"2")
    while True:
        time.sleep(0.01)
os.close(made)
while os.read(ready, 1) != b"2":
    pass
if {notice!r} == "meanwhile":
    tell()
    os.kill(worker, signal.SIGTERM)
    print("lives" if os.read(ready, 1) else "died", end=" ", flush=True)
os.kill(worker, signal.SIGTERM)
print(os.waitpid(worker, 0)[1])
"""
    env = {**os.environ, "GPULOOM_NOTICE_FILE": str(tmp_path / "notice")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (left, "")


def test_a_child_that_had_no_notice_ends_when_its_parent_leaves(tmp_path: Path) -> None:
    """As in a container, where the notice goes to one process. multiprocessing ends children at exit, and waits."""
    before = """
import multiprocessing
was, step = saving.begin("Frame Work", "saving_frame"), 3
multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
open(os.environ["GPULOOM_NOTICE_FILE"], "w").close()
os.kill(os.getpid(), signal.SIGTERM)
was.save_and_leave(write, True)
"""
    done = run(tmp_path, before=before)
    assert (done.returncode, done.stdout) == (85, ""), done.stderr


def test_after_the_loop_sigterm_is_the_scripts_again(tmp_path: Path) -> None:
    done = run(tmp_path, after="os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)")
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "from 0\ndone 10\n")


def test_killed_in_the_middle_of_a_save_the_old_one_stays_whole(tmp_path: Path) -> None:
    """Saves in which two files must agree, killed at random."""
    code = f"""
import sys, os
sys.path.insert(0, {HOOKS!r})
from _gpuloom_hooks.kept import Save
for step in range(1, 10**9):
    save = Save("loop-0", step)
    save.begin()
    for name in ("a", "b"):
        with open(os.path.join(save.path, name), "w") as file:
            file.write(str(step) * 5000)
    save.commit()
    print(step, flush=True)
"""
    env = {**os.environ, "GPULOOM_SAVES": str(tmp_path / "1-a"), "GPULOOM_ATTEMPT": "1"}
    env.pop("GPULOOM_HOOKS", None)
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as saver:
        assert saver.stdout is not None
        for _ in range(random.Random().randrange(1, 30)):
            last = int(saver.stdout.readline())
        threading.Event().wait(random.Random().random() * 0.01)
        saver.kill()
        rest = saver.stdout.read().split()
    last = int(rest[-1]) if rest else last
    whole = [one for one in (tmp_path / "1-a").iterdir() if not one.name.startswith(".")]
    steps = {int(one.name.rpartition("-")[2]) for one in whole if (one / "gpuloom.json").exists()}
    newest = max(steps)
    assert newest >= last
    for name in ("a", "b"):
        assert (tmp_path / "1-a" / f"loop-0.1-{newest}" / name).read_text() == str(newest) * 5000


@pytest.fixture
def saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "w" / ".gpuloom" / "4-ab"
    monkeypatch.setenv("GPULOOM_SAVES", str(place))
    return place


def save(monkeypatch: pytest.MonkeyPatch, attempt: int, step: int) -> None:
    monkeypatch.setenv("GPULOOM_ATTEMPT", str(attempt))
    one = kept.Save("loop-0", step)
    one.begin()
    Path(one.path, "state").write_text(str(step))
    one.commit()


def test_an_attempt_that_was_given_up_neither_replaces_nor_removes(
    saves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt, step in ((2, 50), (1, 70), (2, 60), (1, 90)):
        save(monkeypatch, attempt, step)
    found = kept.newest("loop-0")
    assert found is not None
    assert (Path(found[0]).name, found[1]["step"], found[1]["attempt"]) == ("loop-0.2-60", 60, 2)


def test_what_was_kept_is_removed_when_the_job_has_ended_well(
    saves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "hooks").mkdir(parents=True)
    monkeypatch.setenv("GPULOOM_HOOKS", str(run / "hooks"))
    save(monkeypatch, 1, 5)
    (saves / ".loop-0.1-9.tmp").mkdir()
    (saves / "mine").write_text("")

    def ended(code: int) -> None:
        (run / "exit.json").write_text(json.dumps({"exit": {"exit_code": code}}))
        remove_saves(run)

    ended(1)
    (run / "notice").write_text("")
    ended(0)
    assert sorted(one.name for one in saves.iterdir()) == [".loop-0.1-9.tmp", "loop-0.1-5", "mine"]
    (run / "progress.json").write_text('{"step": 9, "steps": 9}')
    ended(0)
    assert [one.name for one in saves.iterdir()] == ["mine"]
    (saves / "mine").unlink()
    ended(0)
    assert list((tmp_path / "w").iterdir()) == []


@pytest.mark.parametrize("place", ["/", "~", "4-ab", "{tmp}/w", "{tmp}/w/.gpuloom/../../5-c"])
def test_nothing_is_removed_but_what_hooks_have_made(place: str, tmp_path: Path) -> None:
    (tmp_path / "run" / "hooks").mkdir(parents=True)
    (tmp_path / "run" / "exit.json").write_text('{"exit": {"exit_code": 0}}')
    for folder in ("w", "5-c"):
        (tmp_path / folder / "mine").mkdir(parents=True)
        (tmp_path / folder / "mine" / "gpuloom.json").write_text("")
        (tmp_path / folder / "loop-0.1-1").mkdir()
    (tmp_path / "run" / "hooks" / "saves").write_text(place.format(tmp=tmp_path))
    remove_saves(tmp_path / "run")
    for folder in ("w", "5-c"):
        assert sorted(one.name for one in (tmp_path / folder).iterdir()) == ["loop-0.1-1", "mine"]


def test_where_a_jobs_saves_lie(tmp_path: Path) -> None:
    def of(**env: str) -> str | None:
        return request_of(one(workdir="/w", env=env), tmp_path).env.get("GPULOOM_SAVES")

    assert of(GPULOOM_JOB_KEY="4-ab") == "/w/.gpuloom/4-ab"
    assert of(GPULOOM_JOB_KEY="4-ab", GPULOOM_SAVES="/w/.gpuloom/3-of-another") == "/w/.gpuloom/4-ab"
    assert of(GPULOOM_JOB_KEY="4-ab", GPULOOM_SAVES_IN="/scratch") == "/scratch/4-ab"
    assert of(GPULOOM_JOB_KEY="4-ab", GPULOOM_SAVES_IN="deep") == "/w/deep/4-ab"
    assert of(GPULOOM_JOB_KEY="4-ab", GPULOOM_SAVES="off") == "off" == inject.saves({}, "/w")["GPULOOM_SAVES"]


class Store:
    """As torch.distributed's, of one process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> str:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])


def test_ranks_that_see_the_notice_at_different_steps_leave_at_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks take their steps in any order, at most one apart, and see the notice when they like."""
    store, chance = Store(), random.Random()
    group: dict[str, Any] = {"is_available": lambda: True, "is_initialized": lambda: True}
    distributed = types.SimpleNamespace(**group, get_world_size=lambda: count, get_rank=lambda: now)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=distributed))  # type: ignore[arg-type]
    inner = types.SimpleNamespace(_get_default_store=lambda: store)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", inner)  # type: ignore[arg-type]
    count, now = chance.randrange(1, 6), 0
    sees = [chance.randrange(1, 12) for _ in range(count)]
    agreements = [ranks.Agreement("loop-0") for _ in range(count)]
    left: dict[int, int] = {}
    while len(left) < count:
        slowest = min(one.step for rank, one in enumerate(agreements) if rank not in left)
        now = chance.choice([rank for rank, one in enumerate(agreements) if rank not in left and one.step <= slowest])
        mine = agreements[now]
        if mine.leaves(mine.step + 1 >= sees[now]):
            left[now] = mine.step
    assert len(set(left.values())) == 1, (sees, left)
    assert max(sees) <= left[0] <= max(sees) + ranks.APART


def test_two_files_of_one_checkpoint_say_nothing_of_when_the_next_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model and of the best one, say, both with the optimizer's state."""
    for name in ("GPULOOM_RESUME", "GPULOOM_NOTICE_FILE", "GPULOOM_PROGRESS_FILE"):
        monkeypatch.delenv(name, raising=False)
    now_s = 100.0
    monkeypatch.setattr(saving_own.time, "monotonic", lambda: now_s)
    own = saving_own.Own()
    own.began_s = now_s
    for step in (5, 10):
        now_s += 60.0
        own.steps = step
        for _ in range(2):
            own.written("PyTorch", "script")
            now_s += 0.5
    assert (own.every_s, own.last_s) == (60.5, now_s - 0.5)
