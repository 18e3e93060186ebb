"""Jobs that share devices take turns: real processes, with tokens that are files, and the page of their devices."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from _gpuloom_hooks import page as layout
from _gpuloom_hooks import tokens as hook
from _gpuloom_hooks.page import Page
from _gpuloom_hooks.tokens import CPU, GPU, NETWORK, STORAGE, Tokens
from gpuloom.core.job import DeviceKind
from gpuloom.executors import devices
from gpuloom.executors.devices import Weaving, devices_folder, made, tell
from until import until

JOB = """
import json, os, sys, time
from _gpuloom_hooks.tokens import Tokens
tokens = Tokens(os.environ["GPULOOM_DEVICES_DIR"])
def say(**what):
    print(json.dumps(what), flush=True)
def stage(resource, hold_s):
    tokens.begin(resource)
    time.sleep(hold_s)
    tokens.end(resource)
"""
HOLDS = """
if {forks}:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
tokens.begin(2)
{late}
say(held=tokens.held)
sys.stdin.readline()
tokens.end(2)
say(left=True)
sys.stdin.readline()
"""
LATE_FORK = """
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
"""
TURNS = """
sys.stdin.readline()
end_s, turns = time.monotonic() + 1.0, 0
while time.monotonic() < end_s:
    stage(1, {hold_s})
    turns += 1
    time.sleep({pause_s})
say(turns=turns)
"""


class Jobs:
    """Jobs on one set of devices."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.folder = runs, made(runs, DeviceKind.CPU, [0])
        self.processes: list[subprocess.Popen[str]] = []

    def weave(self, *members: int, on: bool = True) -> None:
        tell(self.runs, Weaving(DeviceKind.CPU, (0,), members, on))

    def environment(self, job: int) -> dict[str, str]:
        run = self.runs / str(job)
        run.mkdir(exist_ok=True)
        return {
            "GPULOOM_JOB_ID": str(job),
            "GPULOOM_RUN_DIR": str(run),
            "GPULOOM_DEVICES_DIR": str(self.folder),
            "GPULOOM_HOOKS": str(run),
        }

    def start(self, job: int, code: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", JOB + code],
            env=os.environ | self.environment(job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def here(self, job: int, monkeypatch: pytest.MonkeyPatch) -> Tokens:
        """A job in this process."""
        for name, value in self.environment(job).items():
            monkeypatch.setenv(name, value)
        tokens = Tokens(str(self.folder))
        tokens.begin(STORAGE)
        tokens.end(STORAGE)
        assert tokens.seat >= 0
        return tokens


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    for process in jobs.processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(process: "subprocess.Popen[str]") -> dict[str, object]:
    assert process.stdout is not None
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def goes_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def in_thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    thread.join(30)
    return not thread.is_alive()


def test_node_and_hooks_mean_the_same_page(jobs: Jobs) -> None:
    jobs.weave(7, 3)
    page = Page(str(jobs.folder))
    words = page.words
    assert words[layout.AT_ON] == 1
    assert list(words[layout.AT_ORDER : layout.AT_ORDER + words[layout.AT_MEMBERS]]) == [7, 3]
    generation, page.longs[layout.AT_LONGEST] = words[layout.AT_GENERATION], 5
    jobs.weave(7, 3)
    assert (words[layout.AT_GENERATION], page.longs[layout.AT_LONGEST]) == (generation, 5)
    jobs.weave(3, on=False)
    assert (words[layout.AT_ON], words[layout.AT_GENERATION], page.longs[layout.AT_LONGEST]) == (0, generation + 1, 0)
    assert made(jobs.runs, DeviceKind.CPU, [0]) == jobs.folder
    assert words[layout.AT_GENERATION] == generation + 1, "a page that is there stays"
    page.close()
    same = ("FILE", "BYTES", "MAGIC", "VERSION", "MOST_MEMBERS")
    assert [getattr(layout, name) for name in same] == [getattr(devices, name) for name in same]
    assert hook.SETTING == devices.SETTING
    assert devices_folder(jobs.runs, DeviceKind.GPU, [3, 1]).name == "gpu-1-3"


def test_a_page_of_another_version_switches_the_hook_off(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    (jobs.folder / "page").write_bytes(b"\1" * 4096)
    for name, value in jobs.environment(1).items():
        monkeypatch.setenv(name, value)
    tokens = Tokens(str(jobs.folder))
    tokens.begin(CPU)
    tokens.end(CPU)
    tokens.iteration()
    assert tokens.off
    assert "no page of version 1" in (jobs.runs / "1" / "hooks.log").read_text()
    assert made(jobs.runs, DeviceKind.CPU, [0]) == jobs.folder
    jobs.here(2, monkeypatch)


def test_alone_no_token_is_touched(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    one = jobs.here(1, monkeypatch)
    one.begin(GPU)
    assert one.held == -1
    one.end(GPU)
    page = Page(str(jobs.folder))
    assert page.longs[one.base + layout.TURNS] == 0


def test_who_joins_and_who_leaves_restart_nobody(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = jobs.here(1, monkeypatch), jobs.here(2, monkeypatch)
    one.begin(GPU)
    two.begin(GPU)  # not together: at once
    one.end(GPU)
    two.end(GPU)
    jobs.weave(1, 2)
    one.begin(GPU)
    waits = in_thread(lambda: two.begin(GPU))
    until(lambda: next(one.page.others(one.seat, GPU), None) is not None)
    assert (one.held, two.held) == (GPU, -1)
    two_has = two.page.longs[two.base + layout.TURNS]
    jobs.weave(1, on=False)  # the second is taken out, or the first one's group ends: who waits goes on
    assert ends(waits)
    assert (two.held, two.page.longs[two.base + layout.TURNS]) == (-1, two_has)
    one.end(GPU)
    two.end(GPU)
    assert (one.held, two.held) == (-1, -1)


def test_in_a_nested_stage_the_outer_token_is_free(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.weave(1, 2)
    one, two = jobs.here(1, monkeypatch), jobs.here(2, monkeypatch)
    one.begin(GPU)
    one.begin(NETWORK)
    assert one.held == NETWORK
    two.begin(GPU)
    assert two.held == GPU
    back = in_thread(lambda: one.end(NETWORK))
    until(lambda: next(two.page.others(two.seat, GPU), None) is not None)
    two.end(GPU)
    assert ends(back)
    assert one.held == GPU, "back in the outer stage"
    one.end(GPU)
    assert one.held == -1


@pytest.mark.parametrize("fork", ["before", "while it holds", "never"])
def test_a_killed_holder_frees_its_token(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, fork: str) -> None:
    """Also if a child of it lives on, which has inherited its files."""
    jobs.weave(1, 2)
    holder = jobs.start(1, HOLDS.format(forks=fork == "before", late=LATE_FORK if fork == "while it holds" else ""))
    assert said(holder) == {"held": GPU}
    two = jobs.here(2, monkeypatch)
    monkeypatch.setattr(hook, "LEAST_PATIENCE_NS", 60 * 10**9)
    monkeypatch.setattr(hook, "MOST_PATIENCE_NS", 60 * 10**9)
    waits = in_thread(lambda: two.begin(GPU))
    until(lambda: two.page.longs[two.base + layout.SINCE + GPU] > 0)
    assert two.held == -1
    os.kill(holder.pid, signal.SIGKILL)
    assert ends(waits)
    assert two.held == GPU
    assert two.page.words[layout.AT_GAVE_UP + GPU] == 0


def test_a_frozen_holder_keeps_nobody_for_long(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.weave(1, 2)
    holder = jobs.start(1, HOLDS.format(forks=False, late=""))
    assert said(holder) == {"held": GPU}
    two = jobs.here(2, monkeypatch)
    os.kill(holder.pid, signal.SIGSTOP)
    monkeypatch.setattr(hook, "LEAST_PATIENCE_NS", 10**8)
    two.begin(GPU)
    words = two.page.words
    assert two.held == -1, "it goes on without"
    assert words[layout.AT_STUCK + GPU] == words[layout.AT_HOLDER + GPU] != two.seat + 1
    assert words[layout.AT_GAVE_UP + GPU] == 1
    two.end(GPU)
    monkeypatch.setattr(hook, "LEAST_PATIENCE_NS", 60 * 10**9)
    monkeypatch.setattr(hook, "MOST_PATIENCE_NS", 60 * 10**9)
    two.begin(GPU)  # it has waited for this one once
    two.end(GPU)
    os.kill(holder.pid, signal.SIGCONT)
    goes_on(holder)
    assert said(holder) == {"left": True}
    assert words[layout.AT_STUCK + GPU] == 0
    two.begin(GPU)
    assert two.held == GPU


def test_one_that_died_or_froze_while_it_waited_keeps_nobody(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.weave(1, 2, 3)
    one = jobs.here(1, monkeypatch)
    one.begin(GPU)
    waiting = jobs.start(2, HOLDS.format(forks=False, late=""))
    until(lambda: next(one.page.others(one.seat, GPU), None) is not None)
    os.kill(waiting.pid, signal.SIGSTOP)
    one.end(GPU)
    three = jobs.here(3, monkeypatch)
    three.begin(GPU)
    assert three.held == GPU, "though another one came first"
    three.end(GPU)
    os.kill(waiting.pid, signal.SIGCONT)
    assert said(waiting) == {"held": GPU}, "and goes on waiting"


def test_one_process_of_a_job_takes_turns(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.weave(1, 2)
    first = jobs.here(1, monkeypatch)
    second = Tokens(str(jobs.folder))  # another process of this job, say a rank that knows of no RANK
    second.begin(GPU)
    assert second.seat == -1
    monkeypatch.setenv("RANK", "1")
    other = Tokens(str(jobs.folder))
    other.begin(GPU)
    assert (other.seat, other.off) == (-1, True)
    first.close()
    other.begin(GPU)
    assert other.seat == -1
    monkeypatch.delenv("RANK")
    for _ in range(hook.SEAT_EVERY):
        second.iteration()
    second.begin(GPU)
    assert second.held == GPU, "the first has ended"


CLOSES = """
tokens.begin(2)
os.closerange(3, 256)  # as a script does that becomes a daemon
files = [open(os.path.join(os.environ["GPULOOM_RUN_DIR"], "mine%d" % number), "w+") for number in range(40)]
tokens.end(2)
for resource in range(4):
    stage(resource, 0.0)
for file in files:
    file.write("mine")
    file.close()
say(off=tokens.off)
sys.stdin.readline()
"""


def test_a_script_that_closes_all_files_keeps_its_own(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.weave(1, 2)
    one = jobs.here(1, monkeypatch)
    closes = jobs.start(2, CLOSES)
    assert said(closes) == {"off": True}
    assert {path.read_text() for path in (jobs.runs / "2").glob("mine*")} == {"mine"}
    assert "the script has closed the files" in (jobs.runs / "2" / "hooks.log").read_text()
    one.begin(GPU)
    assert one.held == GPU


def test_one_that_fetches_ahead_takes_no_turns(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.weave(1, 2)
    one = jobs.here(1, monkeypatch)

    def iterate(wait_ns: int) -> None:
        """Iterations of 10 ms."""
        for _ in range(2 * hook.JUDGE_EVERY):
            one.begin(STORAGE)
            Clock.now += wait_ns
            one.end(STORAGE)
            one.begin(GPU)
            Clock.now += 10**7 - wait_ns
            one.end(GPU)
            one.iteration()

    class Clock:
        now = 10**12

    monkeypatch.setattr(hook, "monotonic_ns", lambda: Clock.now)
    iterate(10**6)
    one.begin(GPU)
    assert one.held == GPU
    one.end(GPU)
    iterate(10**5)
    one.begin(GPU)
    assert one.held == -1
    assert one.longs[one.base + layout.APART] == 1
    one.end(GPU)
    iterate(10**6)
    one.begin(GPU)
    assert one.held == GPU, "it fetches ahead no more"
    log = (jobs.runs / "1" / "hooks.log").read_text()
    assert log.count("fetches its data ahead") == log.count("waits for its data") == 1


class Event:
    """An event of a GPU that comes when it is told to."""

    def __init__(self) -> None:
        self.came = threading.Event()

    def synchronize(self) -> None:
        assert self.came.wait(30)


def test_the_token_of_a_gpu_goes_back_when_the_gpu_is_done(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With events as PyTorch has them; no GPU is needed."""
    jobs.weave(1, 2)
    one, two = jobs.here(1, monkeypatch), jobs.here(2, monkeypatch)
    events: list[Event] = []

    class Cuda:
        is_available = is_initialized = staticmethod(lambda: True)

        @staticmethod
        def Event(*, blocking: bool) -> Event:  # noqa: N802 - its name there
            assert blocking
            events.append(event := Event())
            event.record = lambda: None  # type: ignore[attr-defined]
            return event

    class Torch:
        cuda = Cuda

    monkeypatch.setitem(sys.modules, "torch", Torch)
    one.begin(GPU)
    one.end(GPU)
    assert one.held == -1
    one.begin(GPU)
    assert (one.held, one.pending) == (GPU, None), "nobody waits: it goes on with the token it still has"
    one.end(GPU)
    one.begin(CPU)
    assert one.held == CPU, "the GPU computes meanwhile"
    waits = in_thread(lambda: two.begin(GPU))
    until(lambda: next(one.page.others(one.seat, GPU), None) is not None)
    events[0].came.set()
    time.sleep(0.02)
    assert two.held == -1, "that was the event of the first stage"
    events[1].came.set()
    assert ends(waits)
    assert two.held == GPU
    one.end(CPU)
    for tokens in (one, two):
        tokens.close()


def test_who_has_waited_longest_goes_first(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who has just held the token comes after all that wait."""
    monkeypatch.setattr(
        hook, "LOOK_MS", 20_000
    )  # only who is woken goes on: no thread that is slow to wake is passed by
    jobs.weave(1, 2, 3)
    everyone = [jobs.here(job, monkeypatch) for job in (1, 2, 3)]
    one, two, three = everyone
    took: list[int] = []

    def takes(tokens: Tokens) -> threading.Thread:
        """In a thread that waits now; it ends when it has the token."""
        thread = in_thread(lambda: (tokens.begin(GPU), took.append(tokens.job)))  # type: ignore[func-returns-value]
        until(lambda: tokens.longs[tokens.base + layout.SINCE + GPU] > 0 or tokens.held == GPU)
        return thread

    one.begin(GPU)
    for _ in range(10):
        waits = [takes(three), takes(two)]
        one.end(GPU)
        waits.append(takes(one))
        for tokens, thread in zip((three, two), waits, strict=False):
            assert ends(thread)
            tokens.end(GPU)
        assert ends(waits[-1])
    assert took == [3, 2, 1] * 10
    one.end(GPU)


ITERATES = """
from _gpuloom_hooks import rotation
rotation.PROMISES = 0.0  # whatever turns by waiting time have come to, the best order is tried
while True:
    for resource, hold_s in enumerate({stages}):
        stage(resource, hold_s)
    tokens.iteration()
"""


@pytest.mark.slow
def test_tokens_go_round_where_that_does_more(jobs: Jobs) -> None:
    """Three jobs, each slow on another resource; whatever becomes of the order on a busy machine, all go on."""
    jobs.weave(1, 2, 3)
    page = Page(str(jobs.folder))
    for job, stages in enumerate(((0.02, 0.004, 0.005), (0.003, 0.018, 0.005), (0.003, 0.004, 0.02)), 1):
        jobs.start(job, ITERATES.format(stages=stages))
    until(lambda: page.words[layout.AT_CYCLE_ID] > 0, "an order is tried", timeout_s=150.0)
    seats = [layout.AT_SEATS + seat * layout.SEAT_WORDS for seat in range(3)]
    before = [page.longs[at + layout.ITERATIONS] for at in seats]
    until(lambda: all(page.longs[at + layout.ITERATIONS] > was + 40 for at, was in zip(seats, before, strict=True)))
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "holds",
    [[(0.02, 0.0), (0.002, 0.002)], [(0.005, 0.001)] * 4],
    ids=["a long one and a short one", "four alike"],
)
def test_turns_are_shared_out(jobs: Jobs, holds: list[tuple[float, float]]) -> None:
    """As processes. A busy machine keeps some of them from their cores for a while, so that not all get as many."""
    jobs.weave(*range(1, len(holds) + 1))
    started = [
        jobs.start(job, TURNS.format(hold_s=hold_s, pause_s=pause_s)) for job, (hold_s, pause_s) in enumerate(holds, 1)
    ]
    for process in started:
        goes_on(process)
    turns = [int(str(said(process)["turns"])) for process in started]
    assert min(turns) >= 0.4 * max(turns) > 2, turns


def test_a_stage_that_a_signal_s_handler_begins_while_a_token_is_given_back(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a barrier in a script's own handler of SIGTERM."""
    jobs.weave(1, 2)
    one = jobs.here(1, monkeypatch)
    one.begin(GPU)
    flock, came = fcntl.flock, []

    def signalled(file: int, how: int) -> None:
        if how == fcntl.LOCK_UN and not came:
            came.append(file)
            one.begin(CPU)
            one.end(CPU)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", signalled)
    assert ends(in_thread(lambda: one.end(GPU)))
    assert (bool(came), one.held, one.off) == (True, -1, False)


def test_no_thread_is_left_that_waits_for_a_gpu_when_python_ends() -> None:
    came = threading.Event()

    class Slow:
        def record(self) -> None:
            """Recorded."""

        def synchronize(self) -> None:
            time.sleep(0.05)
            came.set()

    device = hook.Device(lambda event: None)
    device._thread = threading.Thread(target=device._follow, daemon=True)
    device._thread.start()
    device._events.put(Slow())
    device.finish()
    assert came.is_set()
    assert not device._thread.is_alive()
