"""What `gpuloom share profile` injects into a program: records some iterations with PyTorch's own profiler.

It enters as `sitecustomize.py` in a folder on PYTHONPATH, sets itself up once the program has imported `torch`, and
takes itself out again when it is done. It imports no framework, prints nothing, and what fails in it is told to the
parent by a file, never to the program. Standard library only, and no import of gpuloom, which the program's Python
may lack.

Iterations end at each step of the program's first optimizer; in a service, a request begins at each outermost forward
pass. The GPU is waited for at these marks while recording, so that kernels belong to the iteration that launched them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

SETTING = "GPULOOM_KERNEL_PROFILE"
"""Environment variable: JSON of folder, warm_up, iterations, seconds, by."""
ROOM = 8192
"""Bytes that a process's file has from the start: on a full disk its error can still be written."""
FREE_BYTES = 64 << 20
PATIENCE = 64
"""Forward passes with gradients, and no optimizer step, after which they count as requests."""


class Recorder:
    """Counts iterations, and records those after the warm-up. One per process."""

    def __init__(self, setting: dict[str, Any]) -> None:
        self.folder: str = setting["folder"]
        self.warm_up: int = setting["warm_up"]
        self.iterations: int = setting["iterations"]
        self.seconds: float | None = setting["seconds"]
        self.by: str = setting["by"]
        self.state = "waiting"
        self.torch: Any = None
        self.profiler: Any = None
        self.mark: Any = None
        self.optimizer = 0
        self.steps = self.forwards = self.requests = self.recorded = 0
        self.takes_out: list[Callable[[], object]] = []
        self.stopping = threading.Event()
        self.here()

    def here(self) -> None:
        """This process, as new: at the start, and after a fork."""
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.thread = 0
        self.story: dict[str, Any] = {"program": " ".join(sys.argv[:3])[:200] if hasattr(sys, "argv") else ""}
        self.tell(torch=self.torch is not None)

    def forked(self) -> None:
        """In a fork's child: the parent records, unless the GPU has not been used yet."""
        if self.state != "waiting" or (self.torch is not None and self.torch.cuda.is_initialized()):
            self.state = "over"
        else:
            self.here()

    def tell(self, **what: object) -> None:
        """Write what is known of this process to its file."""
        self.story.update(what)
        text = json.dumps(self.story)[: ROOM - 1].ljust(ROOM - 1) + "\n"
        path = os.path.join(self.folder, f"process-{self.pid}.json")
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, text.encode("utf-8", "replace")[:ROOM], 0)
            finally:
                os.close(handle)

    # -- marks ------------------------------------------------------------------------------------------------------

    def set_up(self, torch: Any) -> None:
        """The program has imported torch."""
        self.torch = torch
        self.tell(torch=True, version=str(getattr(torch, "__version__", "")))
        if self.by == "time":
            thread = threading.Thread(target=self.by_time, name="gpuloom-profile", daemon=True)
            thread.start()
            return
        if self.by in ("auto", "step"):
            # Not an attribute of torch.optim, which deletes the names of its modules.
            register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
            if register is None:
                self.failed(RuntimeError("this torch has no optimizer hooks (2.0 or newer has); use --by forward"))
                return
            self.takes_out.append(register(lambda optimizer, *_: self.on_step(optimizer)).remove)
        if self.by in ("auto", "forward"):
            self.watch_forwards(torch.nn.Module)

    def watch_forwards(self, module: Any) -> None:
        """Count outermost calls of modules."""
        original, inside = module.__call__, threading.local()

        @functools.wraps(original)
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state == "over" or getattr(inside, "yes", False):
                return original(this, *args, **kwargs)
            inside.yes = True
            try:
                self.on_forward()
                return original(this, *args, **kwargs)
            finally:
                inside.yes = False

        def take_out() -> None:
            if module.__call__ is call:  # else someone has wrapped it since, and passes through
                module.__call__ = original

        module.__call__ = call
        self.takes_out.append(take_out)

    def on_step(self, optimizer: object) -> None:
        """An optimizer has stepped. Only the first one's steps count."""
        if self.state == "over" or self.by == "forward":
            return
        self.optimizer = self.optimizer or id(optimizer)
        if id(optimizer) == self.optimizer:
            self.by = "step"
            self.steps += 1
            self.boundary(self.steps)

    def on_forward(self) -> None:
        """An outermost forward pass begins."""
        if self.by == "step":
            return
        self.forwards += 1
        # In training the optimizer steps soon; evaluation before it is short. A service computes no gradients.
        if self.by == "forward" or not self.torch.is_grad_enabled() or self.forwards > PATIENCE:
            self.requests += 1
            if self.by == "auto" and self.requests > max(2, self.warm_up):
                self.by = "forward"
            if self.by == "forward":
                self.boundary(self.requests - 1)

    def boundary(self, finished: int) -> None:
        """One iteration has ended, the next one begins."""
        with self.lock:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if self.state == "waiting" and finished >= self.warm_up:
                        self.start()
                    elif self.state == "recording" and self.thread == threading.get_ident():
                        self.next()
            except Exception as error:  # the program must not notice
                self.failed(error)

    # -- recording --------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether this process is the one to record, now."""
        cuda = self.torch.cuda
        if not cuda.is_initialized():
            if "cuda" not in self.story:
                self.tell(cuda=bool(cuda.is_available()), used=False)
            return False
        if cuda.is_current_stream_capturing():
            return False
        spread = self.torch.distributed
        first = os.environ.get("RANK", "0") == "0"
        if spread.is_available() and spread.is_initialized():
            first = spread.get_rank() == 0
        try:
            if not first:
                raise FileExistsError
            os.close(os.open(os.path.join(self.folder, "claim"), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            self.over()
            return False
        room = os.statvfs(self.folder)
        if room.f_bavail * room.f_frsize < FREE_BYTES:
            raise OSError(28, "less than 64 MiB left for the trace", self.folder)
        self.tell(cuda=True, used=True)
        return True

    def begin(self) -> None:
        profiler = self.torch.profiler
        kinds = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
        self.torch.cuda.synchronize()
        self.profiler = profiler.profile(activities=kinds, record_shapes=True, with_flops=True)
        self.profiler.start()
        self.state, self.thread = "recording", threading.get_ident()

    def start(self) -> None:
        if self.ready():
            self.begin()
            self.enter()

    def enter(self) -> None:
        # Named as the profiler's own steps are, so that other tools read the trace, too. Number 0 holds the cost of
        # starting and is not used.
        self.mark = self.torch.profiler.record_function(f"ProfilerStep#{self.recorded}")
        self.mark.__enter__()

    def next(self) -> None:
        if self.torch.cuda.is_current_stream_capturing():
            return
        self.torch.cuda.synchronize()
        self.mark.__exit__(None, None, None)
        self.recorded += 1
        if self.recorded > self.iterations:
            self.finish()
        else:
            self.enter()

    def by_time(self) -> None:
        """Record for some seconds whatever runs; in a thread of its own, as the profiler must end where it began."""
        try:
            while not self.torch.cuda.is_initialized():
                if self.stopping.wait(0.05):
                    return
            if self.stopping.wait(float(self.warm_up)):
                return
            while not self.ready():
                if self.state == "over" or self.stopping.wait(0.05):
                    return
            self.begin()
            if not self.stopping.wait(self.seconds):
                self.torch.cuda.synchronize()
                self.finish()
        except Exception as error:
            self.failed(error)

    def finish(self) -> None:
        """Stop, export the trace, tell about the GPU, and take everything out."""
        self.profiler.stop()
        part = os.path.join(self.folder, "trace.part")
        self.profiler.export_chrome_trace(part)
        self.profiler = None
        told = {
            "by": self.by,
            "iterations": self.iterations,
            "version": self.story.get("version", ""),
            "device": device(self.torch),
            "ceilings": ceilings(self.torch),
        }
        os.replace(part, os.path.join(self.folder, "trace.json"))
        part = os.path.join(self.folder, "done.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(part, os.path.join(self.folder, "done.json"))
        self.over()

    def failed(self, error: BaseException) -> None:
        self.tell(error=f"{type(error).__name__}: {error}"[:2000])
        with contextlib.suppress(Exception):
            if self.profiler is not None:
                self.profiler.stop()
        self.over()

    def over(self) -> None:
        self.state = "over"
        for take_out in self.takes_out:
            with contextlib.suppress(Exception):
                take_out()
        self.takes_out.clear()

    def ended(self) -> None:
        """The process ends by itself."""
        self.stopping.set()
        if os.getpid() != self.pid or os.path.exists(os.path.join(self.folder, "done.json")):
            return
        if "cuda" not in self.story and self.torch is not None:
            with contextlib.suppress(Exception):
                self.story.update(cuda=bool(self.torch.cuda.is_available()), used=self.torch.cuda.is_initialized())
        marks = {"steps": self.steps, "forwards": self.forwards, "recorded": max(0, self.recorded - 1)}
        self.tell(ended=True, state=self.state, by=self.by, **marks)


# -- the GPU ----------------------------------------------------------------------------------------------------------


def device(torch: Any) -> dict[str, Any]:
    """Model, SMs, compute capability and, where torch tells, bytes/s of its memory by clock and width."""
    number = torch.cuda.current_device()
    found = torch.cuda.get_device_properties(number)
    clock_khz, bits = getattr(found, "memory_clock_rate", None), getattr(found, "memory_bus_width", None)
    return {
        "number": number,
        "name": found.name,
        "sm_count": found.multi_processor_count,
        "cc": f"{found.major}.{found.minor}",
        "memory_bytes_per_s": 2 * clock_khz * 1000 * bits / 8 if clock_khz and bits else None,
    }


def ceilings(torch: Any) -> dict[str, float]:
    """What this GPU reaches here: bytes/s of a copy; FLOP/s of matrix products and convolutions by type.

    A fraction of a second, 0.5 GiB, nothing of the program touched; nothing is measured with less than 2 GiB free.
    """
    found: dict[str, float] = {}
    with contextlib.suppress(Exception):
        if torch.cuda.mem_get_info()[0] < 2 << 30:
            return found
        with torch.no_grad():
            for name, amount, work in _loads(torch):
                with contextlib.suppress(Exception):
                    found[name] = amount / _fastest_s(torch, work)
    return found


def _loads(torch: Any) -> Iterator[tuple[str, float, Callable[[], object]]]:
    def of(kind: Any, *shape: int) -> Any:
        return torch.zeros(*shape, dtype=kind, device="cuda")

    yield (
        "bandwidth",
        2.0 * (128 << 20),
        functools.partial(of(torch.uint8, 128 << 20).copy_, of(torch.uint8, 128 << 20)),
    )
    for name, kind in (("float", torch.float32), ("c10::Half", torch.float16), ("c10::BFloat16", torch.bfloat16)):
        yield f"mm:{name}", 2.0 * 4096**3, functools.partial(torch.mm, of(kind, 4096, 4096), of(kind, 4096, 4096))
        x, w = of(kind, 32, 256, 56, 56), of(kind, 256, 256, 3, 3)
        amount = 2.0 * 32 * 256 * 56 * 56 * 256 * 9
        yield f"conv:{name}", amount, functools.partial(torch.nn.functional.conv2d, x, w, padding=1)


def _fastest_s(torch: Any, work: Callable[[], object]) -> float:
    """Seconds of the fastest of five, after two."""
    best = float("inf")
    for number in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if number >= 2:
            best = min(best, begin.elapsed_time(end) / 1000)
    if not 0 < best < float("inf"):
        raise ValueError("no time passed")
    return best


# -- entering ---------------------------------------------------------------------------------------------------------


class AfterTorch:
    """A finder of modules that calls the recorder once `torch` has been executed."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.busy = recorder, False

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """The spec that others find for torch, with its loader extended."""
        if name != "torch" or self.busy:
            return None
        import importlib.util

        self.busy = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.busy = False
        loader: Any = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            try:
                self.recorder.set_up(module)
            except Exception as error:  # an unusual torch
                self.recorder.failed(error)

        loader.exec_module = exec_module
        return spec


def chain(own: str) -> None:
    """Run the sitecustomize that this one shadows: the next on the path."""
    import importlib.machinery
    import importlib.util

    places = [os.path.abspath(path or ".") for path in sys.path]
    after = places.index(own) + 1 if own in places else 0
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places[after:])
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def enter() -> None:
    """At the start of Python, as `sitecustomize`."""
    try:
        text = os.environ.get(SETTING)
        if text:
            recorder = Recorder(json.loads(text))
            os.register_at_fork(after_in_child=recorder.forked)
            sys.meta_path.insert(0, AfterTorch(recorder))
            atexit.register(recorder.ended)
    except Exception:  # noqa: S110 - the program runs on; the parent sees that nothing was recorded
        pass
    chain(os.path.dirname(os.path.abspath(__file__)))


if __name__ == "sitecustomize":
    enter()
