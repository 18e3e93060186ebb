"""Hooks of PyTorch and Keras on pretended frameworks: what counts as an iteration, and what is timed as what."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.files.hook_records import hooked
from hooks_kit import Clock, anew, records, stages

torch_steps: Any = importlib.import_module("_gpuloom_hooks.torch_steps")
torch_data: Any = importlib.import_module("_gpuloom_hooks.torch_data")
torch_comm: Any = importlib.import_module("_gpuloom_hooks.torch_comm")
torch_gpu: Any = importlib.import_module("_gpuloom_hooks.torch_gpu")
keras_steps: Any = importlib.import_module("_gpuloom_hooks.keras_steps")
loaders: Any = importlib.import_module("_gpuloom_hooks.loaders")
totals: Any = importlib.import_module("_gpuloom_hooks.totals")
MS = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    monkeypatch.setattr(torch_steps, "first", torch_steps.First())
    monkeypatch.setattr(torch_comm, "_models", [])
    monkeypatch.setattr(torch_gpu, "install", lambda: None)
    return anew(monkeypatch, str(tmp_path))


class Torch:
    """What hooks touch of PyTorch's optimizers and backward passes."""

    def __init__(self, clock: Clock) -> None:
        before: list[Any] = []
        after: list[Any] = []

        class Optimizer:
            def step(self, ms: int = 1) -> None:
                for hook in before:
                    assert hook(self, (), {}) is None
                clock.now += ms * MS
                for hook in after:
                    hook(self, (), {})

        self.Optimizer = Optimizer
        self.register_optimizer_step_pre_hook = before.append
        self.register_optimizer_step_post_hook = after.append

        def backward(ms: int) -> None:
            clock.now += ms * MS

        self.backward = backward
        torch_steps.install(self)
        torch_steps.install_backward(self)


def iterations() -> int:
    return int(stages._timeline.iterations)


def test_steps_of_the_first_optimizer_are_the_iterations(clock: Clock) -> None:
    torch = Torch(clock)
    first, second = torch.Optimizer(), torch.Optimizer()
    for _ in range(7):
        for _ in range(3):
            second.step()
        first.step()
    assert iterations() == 7


def test_one_that_is_never_used_or_no_more_gives_way(clock: Clock) -> None:
    torch = Torch(clock)
    unused, used, last = torch.Optimizer(), torch.Optimizer(), torch.Optimizer()
    for _ in range(torch_steps.AT_FIRST + 5):
        used.step()
    assert iterations() == 5
    for _ in range(torch_steps.PATIENCE + 2):
        last.step()
    assert iterations() == 7
    del last
    used.step()
    assert iterations() == 8
    assert unused is not None


def test_backward_and_step_are_computing(clock: Clock, tmp_path: Path) -> None:
    torch = Torch(clock)
    optimizer = torch.Optimizer()
    for _ in range(5):
        clock.now += 2 * MS
        torch.backward(5)
        optimizer.step(3)
    found = hooked(str(tmp_path)).measured
    assert found is not None
    assert (found.gpu_s, found.rest_s) == (pytest.approx(0.008), pytest.approx(0.002))


def test_a_backward_that_fails_ends_all_the_same(clock: Clock) -> None:
    torch = Torch(clock)

    def fails() -> None:
        raise ValueError("of the job")

    torch.backward = fails  # type: ignore[assignment]
    torch_steps.install_backward(torch)
    with pytest.raises(ValueError, match="of the job"):
        torch.backward()  # type: ignore[call-arg]
    assert stages.thread().stack == []


class Iterator:
    """An iterator over a DataLoader, as far as hooks look at it."""

    def __init__(self, batches: int, workers: int = 0) -> None:
        self.left, self._num_workers = batches, workers
        self._index_sampler = SimpleNamespace(batch_size=16)

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


def test_batches_are_counted_and_the_end_of_data_is_none(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Iterator):
        __next__ = Iterator.__next__

    torch_data.install_loader(SimpleNamespace(_BaseDataLoaderIter=Own))
    monkeypatch.setattr(torch_data.own_time, "since", lambda start: (4, 2, 1))
    iterator = Own(2)
    assert next(iterator) == 1  # type: ignore[call-overload]
    clock.now += 100
    next(iterator)  # type: ignore[call-overload]
    with pytest.raises(StopIteration):
        next(iterator)  # type: ignore[call-overload]
    clock.now += 50
    line = stages.thread()
    assert (records.facts.batches, records.facts.batch_size, line.stack) == (2, 16, [])
    assert (line.ns[stages.STORAGE], line.ns[stages.CPU], line.ns[stages.GPU]) == (12, 6, 100)
    waits = Own(1, workers=3)
    next(waits)  # type: ignore[call-overload]
    assert (records.facts.workers, line.ns[stages.STORAGE]) == (3, 12)  # what workers read is theirs to tell


def test_ddp_logs_as_often_as_it_is_read_and_collectives_are_network(clock: Clock, tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.rate = 0

        def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
            self.rate = rate

        def _get_ddp_logging_data(self) -> dict[str, int]:
            return {"backward_comm_time": 4 * MS, "backward_compute_comm_overlap_time": 3 * MS}

    module = SimpleNamespace(DistributedDataParallel=Model)
    torch_comm.install_ddp(module)
    model = Model()
    assert model.rate == torch_comm.EVERY

    def all_reduce(tensor: int, *, async_op: bool = False) -> int:
        clock.now += MS
        return tensor

    c10d = SimpleNamespace(all_reduce=all_reduce)
    torch_comm.install_collectives(c10d)
    assert c10d.all_reduce(1) == 1  # of the set-up: no iteration has been made yet
    torch = Torch(clock)
    optimizer = torch.Optimizer()
    for _ in range(16):
        torch.backward(6)
        c10d.all_reduce(1)
        c10d.all_reduce(1, async_op=True)
        optimizer.step(0)
    found = hooked(str(tmp_path)).measured
    assert found is not None
    assert found.stages_s == pytest.approx((0.0, 0.0, 0.005, 0.005))
    assert (found.network_s, found.rest_s) == (pytest.approx(0.002), pytest.approx(0.001))


def test_the_gpu_s_clock_and_the_most_memory(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that the device passes late: their time belongs to a later row, and nothing waits for them."""

    class Event:
        made = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            Event.made += 1

        def record(self) -> None:
            self.at = clock.now

        def query(self) -> bool:
            return clock.now - self.at > 5 * MS

        def elapsed_time(self, other: Event) -> float:
            return (other.at - self.at) / MS * 2  # the device computes for longer than Python drives it

    cuda = SimpleNamespace(Event=Event, is_initialized=lambda: True, max_memory_reserved=lambda: 300 << 20)
    monkeypatch.setattr(torch_gpu, "_cuda", lambda: cuda)
    watch = torch_gpu.DeviceClock()
    stages.listeners.append(watch)
    records.before.append(watch.look)
    torch = Torch(clock)
    optimizer = torch.Optimizer()
    for _ in range(20):
        torch.backward(4)
        optimizer.step(0)
        clock.now += 16 * MS
    found = hooked(str(tmp_path)).measured
    assert found is not None
    assert found.gpu_s == pytest.approx(0.008)
    assert found.memory_mib == 300
    assert Event.made <= 8
    pairs = len(watch.open)
    watch.end(stages.GPU)  # of what began before it listened
    watch.end(stages.NETWORK)
    assert (watch.depth, len(watch.open)) == (0, pairs)
    watch.begin(stages.GPU)
    watch.end(stages.GPU)
    assert len(watch.open) == pairs + 1, "the next one counts all the same"


def test_keras_counts_all_batches_of_an_execution(clock: Clock, tmp_path: Path) -> None:
    class CallbackList:
        params = {"epochs": 2, "steps": 10}  # noqa: RUF012

        def on_train_begin(self, logs: Any = None) -> None: ...

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None: ...

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    keras_steps.install(SimpleNamespace(CallbackList=CallbackList, __name__="tf_keras.src.callbacks"))
    torch = Torch(clock)
    optimizer, listed = torch.Optimizer(), CallbackList()
    listed.on_train_begin()
    for begin in (0, 4, 8, 0, 4, 8):
        end = min(begin + 3, 9)
        listed.on_train_batch_begin(begin)
        optimizer.step(8)  # Keras on PyTorch: a step of it is no further iteration
        listed.on_train_batch_end(end, logs={})
    found = hooked(str(tmp_path))
    assert found.training is not None
    assert found.measured is not None
    assert (found.training.framework, found.training.iterations, found.training.steps) == ("keras", 20, 20)
    assert found.measured.doubts  # data is fetched within the step


def test_frameworks_that_know_how_many_steps_there_will_be(clock: Clock) -> None:
    class CallbackHandler:
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> str:
            return "theirs"

    totals.install_hf(SimpleNamespace(CallbackHandler=CallbackHandler))
    state = SimpleNamespace(max_steps=500, global_step=120)
    assert CallbackHandler().on_train_begin(None, state, None, model=None) == "theirs"
    assert (records.facts.total_steps, records.facts.first_step) == (500, 120)

    class Loop:
        def __init__(self, **trainer: Any) -> None:
            self.trainer = SimpleNamespace(**trainer)

        def on_run_start(self) -> None: ...

    totals.install_lightning(SimpleNamespace(_FitLoop=Loop))
    Loop(optimizers=[1, 2], estimated_stepping_batches=9, global_step=0).on_run_start()  # counts both together
    Loop(optimizers=[1], estimated_stepping_batches=float("inf"), global_step=0).on_run_start()
    assert records.facts.total_steps == 500
    Loop(optimizers=[1], estimated_stepping_batches=80, global_step=8).on_run_start()
    assert (records.facts.total_steps, records.facts.first_step) == (80, 8)
    line = stages.thread(steps=True)
    assert line is not None
    line.iteration(72)
    Loop(optimizers=[1], estimated_stepping_batches=50, global_step=0).on_run_start()
    assert (records.facts.total_steps, records.facts.first_step) == (130, 8), "a second training"


def test_a_loader_that_cant_be_followed_goes_as_without_hooks(request: pytest.FixtureRequest) -> None:
    """A subclass with `__eq__` alone has no hash, and so can't be a key."""
    request.addfinalizer(lambda: loaders.switched_off.discard("loaders"))

    class Loader:
        def __eq__(self, other: object) -> bool:
            return self is other

    class Iterator:
        def __init__(self, loader: Loader) -> None:
            self._reset(loader, first_iter=True)

        def _reset(self, loader: Loader, first_iter: bool = False) -> None:
            self.indices = iter([3, 1])

        def _next_index(self) -> int:
            return next(self.indices)

    class Single(Iterator):
        pass

    class Several(Iterator):
        pass

    loaders.install(
        SimpleNamespace(
            _BaseDataLoaderIter=Iterator, _SingleProcessDataLoaderIter=Single, _MultiProcessingDataLoaderIter=Several
        )
    )
    for kind in (Single, Several):
        found = kind(Loader())
        assert [found._next_index(), found._next_index()] == [3, 1]
    with pytest.raises(RuntimeError, match="where the data loaders stand is not known"):
        loaders.position(Loader())


def test_a_file_of_the_job_s_that_took_a_closed_descriptor_s_place_stays_open() -> None:
    """A job that closes all descriptors and forks, as loaders do for their workers."""
    own_time: Any = importlib.import_module("_gpuloom_hooks.own_time")
    own = own_time._Own()
    if own.fd < 0:
        pytest.skip("this kernel has no /proc/thread-self/schedstat")
    os.close(own.fd)
    theirs = os.dup2(os.open(os.devnull, os.O_RDONLY), own.fd)
    del own
    os.fstat(theirs)
    os.close(theirs)
