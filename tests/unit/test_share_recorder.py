"""What `share profile` puts into a program, step by step, with a torch that only keeps a diary."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.sharing import injected
from gpuloom.sharing.injected import PATIENCE, ROOM, AfterTorch, Recorder

DEVICE = injected.device


class Torch:
    """diary: what was asked of it, in order."""

    def __init__(self, *, used: bool = True) -> None:
        self.diary: list[str] = []
        self.used, self.capturing, self.gradients = used, False, True
        self.rank: int | None = None
        self.__version__ = "9.1"
        note = self.diary.append

        class Module:
            def __call__(self, *values: int) -> int:
                return self.forward(*values)

            def forward(self, *values: int) -> int:
                return sum(values)

        class Profiler:
            def start(self) -> None:
                note("start")

            def stop(self) -> None:
                note("stop")

            def export_chrome_trace(self, path: str) -> None:
                note("export")
                Path(path).write_text("trace")

        class Mark:
            def __init__(self, name: str) -> None:
                self.name = name

            def __enter__(self) -> None:
                note(f"> {self.name}")

            def __exit__(self, *how: object) -> None:
                note(f"< {self.name}")

        self.nn = SimpleNamespace(Module=Module)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.used,
            is_available=lambda: True,
            is_current_stream_capturing=lambda: self.capturing,
            synchronize=lambda: note("synchronize"),
        )
        self.profiler = SimpleNamespace(
            ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda"),
            profile=lambda **how: note(f"profile {how}") or Profiler(),
            record_function=Mark,
        )
        self.distributed = SimpleNamespace(
            is_available=lambda: self.rank is not None, is_initialized=lambda: True, get_rank=lambda: self.rank
        )
        self.is_grad_enabled = lambda: self.gradients


def recorder(folder: Path, torch: Torch | None = None, **setting: Any) -> Recorder:
    made = Recorder({"folder": str(folder), "warm_up": 1, "iterations": 2, "seconds": None, "by": "auto", **setting})
    made.torch = torch or Torch()
    return made


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injected, "device", lambda torch: {"name": "fake"})
    monkeypatch.setattr(injected, "ceilings", lambda torch: {"bandwidth": 1.0})
    monkeypatch.delenv("RANK", raising=False)


def story(folder: Path) -> dict[str, Any]:
    text = (folder / f"process-{os.getpid()}.json").read_text()
    assert len(text) == ROOM
    found: dict[str, Any] = json.loads(text)
    return found


def test_iterations_end_at_steps_of_the_first_optimizer(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    first, second = object(), object()
    one.on_step(first)
    assert (one.state, one.by) == ("recording", "step")  # the warm-up is one iteration
    one.on_step(second)
    one.on_forward()
    assert (one.steps, one.forwards) == (1, 0)
    marks = ["> ProfilerStep#0"]
    assert one.torch.diary[0] == "synchronize"
    assert one.torch.diary[1] == ("profile {'activities': ['cpu', 'cuda'], 'record_shapes': True, 'with_flops': True}")
    assert one.torch.diary[2:] == ["start", *marks]
    one.torch.capturing = True
    one.on_step(first)
    assert one.torch.diary[3:] == marks, "while a graph is captured nothing is waited for"
    one.torch.capturing = False
    one.on_step(first)
    one.on_step(first)
    assert one.state == "recording"
    one.on_step(first)
    turns = [f"{what} ProfilerStep#{number}" for number in (0, 1, 2) for what in (">", "<")]
    expected = []
    for turn in turns:
        expected += ["synchronize", turn] if turn.startswith("<") else [turn]
    assert one.torch.diary[3:] == [*expected, "stop", "export"]
    assert (one.state, one.profiler) == ("over", None)
    assert sorted(os.listdir(tmp_path)) == ["claim", "done.json", f"process-{os.getpid()}.json", "trace.json"]
    assert json.loads((tmp_path / "done.json").read_text()) == {
        "by": "step", "iterations": 2, "version": "", "device": {"name": "fake"}, "ceilings": {"bandwidth": 1.0},
    }  # fmt: skip
    one.on_step(first)
    assert one.steps == 5
    before = story(tmp_path)
    one.ended()
    assert story(tmp_path) == before, "it was recorded: nothing more is to be told"


def test_a_warm_up_of_none_and_one_of_three(tmp_path: Path) -> None:
    for warm_up, steps in ((0, 1), (3, 3)):
        folder = tmp_path / str(warm_up)
        folder.mkdir()
        one, optimizer = recorder(folder, warm_up=warm_up), object()
        for number in range(steps):
            assert one.state == "waiting", number
            one.on_step(optimizer)
        assert one.state == "recording"


@pytest.mark.parametrize(("gradients", "calls"), [(False, 3), (True, PATIENCE + 3)])
def test_a_service_is_one_that_computes_no_gradients_or_never_steps(
    gradients: bool, calls: int, tmp_path: Path
) -> None:
    one = recorder(tmp_path)
    one.torch.gradients = gradients
    for number in range(calls):
        assert (one.by, one.state) == ("auto", "waiting"), number
        one.on_forward()
    assert (one.by, one.state, one.requests) == ("forward", "recording", 3)
    one.on_step(object())
    assert one.steps == 0
    one.on_forward()
    assert one.recorded == 1


def test_by_forward_passes_each_is_a_request(tmp_path: Path) -> None:
    one = recorder(tmp_path, by="forward")
    one.on_forward()
    assert one.state == "waiting"
    one.on_forward()
    assert (one.state, one.requests) == ("recording", 2)
    patient = recorder(tmp_path, warm_up=5)
    patient.torch.gradients = False
    for _ in range(5):
        patient.on_forward()
    assert patient.by == "auto"
    patient.on_forward()
    assert patient.by == "forward"


def test_outermost_calls_count_and_the_wrapper_is_taken_out(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    module = one.torch.nn.Module
    plain = module.__call__

    class Outer(module):  # type: ignore[misc, valid-type]
        def forward(self, *values: int) -> int:
            return int(module()(*values)) + 1

    one.watch_forwards(module)
    assert Outer()(1, 2) == 4
    assert Outer()(1, 2) == 4
    assert one.forwards == 2
    module.forward = None
    with pytest.raises(TypeError):
        module()()
    module.forward = lambda self, *values: sum(values)
    assert Outer()(3) == 4
    assert one.forwards == 4, "also after one that failed"
    one.over()
    assert module.__call__ is plain
    one.watch_forwards(module)
    own = module.__call__ = lambda self, *values: 7
    one.over()
    assert module.__call__ is own, "someone has wrapped it since"


def test_who_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = recorder(tmp_path, Torch(used=False))
    assert not unused.ready()
    assert {key: story(tmp_path)[key] for key in ("cuda", "used")} == {"cuda": True, "used": False}
    assert unused.state == "waiting"
    unused.torch.used = True
    unused.torch.capturing = True
    assert not unused.ready()
    assert not (tmp_path / "claim").exists()
    monkeypatch.setenv("RANK", "1")
    assert not unused.ready()
    unused.torch.capturing = False
    other = recorder(tmp_path)
    assert not other.ready()
    assert other.state == "over"
    other = recorder(tmp_path)
    other.torch.rank = 0
    assert other.ready(), "the rank of the group goes before the variable's"
    assert story(tmp_path)["used"] is True
    monkeypatch.delenv("RANK")
    late = recorder(tmp_path)
    assert not late.ready()
    assert late.state == "over"
    (tmp_path / "claim").unlink()
    late = recorder(tmp_path)
    late.torch.rank = 1
    assert not late.ready()


@pytest.mark.parametrize(("free", "good"), [(64 << 20, True), ((64 << 20) - 1, False)])
def test_the_trace_needs_room(free: int, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=free, f_frsize=1))
    one = recorder(tmp_path)
    one.on_step(object())
    assert one.state == ("recording" if good else "over")
    assert story(tmp_path).get("error") == (
        None if good else f"OSError: [Errno 28] less than 64 MiB left for the trace: '{tmp_path}'"
    )


def test_what_fails_is_told_and_ends_it(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    taken: list[int] = []
    one.takes_out += [lambda: 1 / 0, lambda: taken.append(1)]
    one.on_step(one)
    one.torch.cuda.synchronize = lambda: 1 / 0
    one.on_step(one)
    assert (one.state, taken, one.takes_out) == ("over", [1], [])
    assert story(tmp_path)["error"] == "ZeroDivisionError: division by zero"
    assert one.torch.diary[-1] == "stop"
    one.failed(ValueError("x" * 3000))
    assert story(tmp_path)["error"] == f"ValueError: {'x' * 1988}"


def test_what_is_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "a", "b", "c"])
    one = recorder(tmp_path)
    one.on_forward()
    one.ended()
    assert story(tmp_path) == {
        "program": "train.py a b", "torch": False, "cuda": True, "used": True, "ended": True, "state": "waiting",
        "by": "auto", "steps": 0, "forwards": 1, "recorded": 0,
    }  # fmt: skip
    assert one.stopping.is_set()
    one.recorded = 3
    one.ended()
    assert story(tmp_path)["recorded"] == 2
    monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
    one.ended()
    assert sorted(os.listdir(tmp_path)) == [f"process-{one.pid}.json"], "a fork's child tells nothing of its parent"


def test_in_a_forks_child(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    one.forked()
    assert one.state == "over"  # the parent's GPU is in use
    two = recorder(tmp_path, Torch(used=False))
    two.thread = 7
    two.forked()
    assert (two.state, two.thread) == ("waiting", 0)
    three = recorder(tmp_path, Torch(used=False))
    three.state = "recording"
    three.forked()
    assert three.state == "over"
    four = recorder(tmp_path)
    four.torch = None
    four.forked()
    assert four.state == "waiting"
    assert story(tmp_path)["torch"] is False


@pytest.mark.parametrize(("by", "hooks", "forwards"), [("auto", 1, True), ("step", 1, False), ("forward", 0, True)])
def test_setting_up(by: str, hooks: int, forwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, there = Torch(), list[Any]()
    plain = torch.nn.Module.__call__

    def register(hook: Any) -> Any:
        there.append(hook)
        return SimpleNamespace(remove=lambda: there.remove(hook))

    monkeypatch.setitem(
        sys.modules,
        "torch.optim.optimizer",
        SimpleNamespace(register_optimizer_step_post_hook=register),  # type: ignore[arg-type]
    )
    one = recorder(tmp_path, torch, by=by, warm_up=9)
    one.set_up(torch)
    assert (len(there), torch.nn.Module.__call__ is not plain) == (hooks, forwards)
    assert (story(tmp_path)["torch"], story(tmp_path)["version"]) == (True, "9.1")
    for hook in there:
        hook(object(), (), {})
        assert one.steps == 1
    one.over()
    assert (there, torch.nn.Module.__call__) == ([], plain)
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", SimpleNamespace())  # type: ignore[arg-type]
    old = recorder(tmp_path, torch, by=by)
    old.set_up(torch)
    if hooks:
        text = "RuntimeError: this torch has no optimizer hooks (2.0 or newer has); use --by forward"
        assert (old.state, story(tmp_path)["error"]) == ("over", text)
        assert torch.nn.Module.__call__ is plain


def test_by_time(tmp_path: Path) -> None:
    """Waits for the GPU, the warm-up, its turn, and then records for so long."""
    one = recorder(tmp_path, Torch(used=False), by="time", warm_up=3, seconds=5.0)
    waits: list[float | None] = []

    def wait(seconds: float | None) -> bool:
        waits.append(seconds)
        one.torch.used = len(waits) > 1
        one.torch.capturing = len(waits) == 3
        return False

    one.stopping.wait = wait  # type: ignore[assignment]
    one.by_time()
    assert waits == [0.05, 0.05, 3.0, 0.05, 5.0]
    assert one.torch.diary[2:] == ["start", "synchronize", "stop", "export"]
    assert one.state == "over"
    for stop_at, state in ((1, "waiting"), (2, "waiting"), (3, "recording")):
        (tmp_path / "claim").unlink(missing_ok=True)
        two, count = recorder(tmp_path, Torch(used=stop_at > 1), by="time", seconds=5.0), [int(stop_at > 1)]

        def stops(seconds: float | None, count: list[int] = count, stop_at: int = stop_at) -> bool:
            count[0] += 1
            return count[0] >= stop_at

        two.stopping.wait = stops  # type: ignore[assignment]
        two.by_time()
        assert (two.state, "stop" in two.torch.diary) == (state, False)


def test_the_gpu_in_figures() -> None:
    found = SimpleNamespace(name="H", multi_processor_count=132, major=9, minor=0)
    cuda = SimpleNamespace(current_device=lambda: 3, get_device_properties=lambda number: found)
    plain = {"number": 3, "name": "H", "sm_count": 132, "cc": "9.0", "memory_bytes_per_s": None}
    torch: Any = SimpleNamespace(cuda=cuda)
    assert DEVICE(torch) == plain
    found.memory_clock_rate, found.memory_bus_width = 1_000_000, 512
    assert DEVICE(torch) == {**plain, "memory_bytes_per_s": 2 * 1e9 * 512 / 8}
    times = iter([5.0, 4.0, 3.0, 6.0, 7.0])  # after two that are not looked at

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            pass

        def elapsed_time(self, other: Event) -> float:
            return next(times)

    cuda.Event, cuda.synchronize = Event, lambda: None
    worked: list[int] = []
    assert injected._fastest_s(torch, lambda: worked.append(1)) == 0.003
    assert len(worked) == 7
    times = iter([0.0] * 5)
    with pytest.raises(ValueError, match="no time passed"):
        injected._fastest_s(torch, lambda: None)


def test_torch_is_noticed_once_it_has_been_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("value = 1\n")
    (tmp_path / "other.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    seen: list[Any] = []
    one: Any = SimpleNamespace(set_up=lambda module: seen.append(module.value), failed=seen.append)
    finder = AfterTorch(one)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    try:
        import other  # type: ignore[import-not-found]

        assert (other.value, seen) == (2, [])
        assert finder in sys.meta_path
        import torch

        assert (torch.value, seen) == (1, [1])  # type: ignore[attr-defined]
        assert finder not in sys.meta_path
    finally:
        sys.modules.pop("torch", None)
        sys.modules.pop("other", None)
