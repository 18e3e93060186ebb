"""PyTorch's data loaders: how long the training thread waits for batches, and of what the work on a batch is made."""

from __future__ import annotations

import os
import sys
from functools import wraps

from . import guarded, own_time, records, stages, switched_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Tuple

    Mark = Tuple[int, int, int]

HOOK = "torch_data"

_load: records.Load | None = None


def install_loader(module: Any) -> None:
    """Time `__next__` of every iterator over a DataLoader. module: torch.utils.data.dataloader."""
    iterator = module._BaseDataLoaderIter
    original = iterator.__next__
    begins, ends = guarded(HOOK, _begins), guarded(HOOK, _ends)

    @wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - takes the place of one
        start = begins(self)
        try:
            batch = original(self)
        except BaseException:
            if start is not None:
                ends(self, start, False)
            raise
        if start is not None:
            ends(self, start, True)
        return batch

    iterator.__next__ = __next__


def _begins(iterator: Any) -> Mark | None:
    line = stages.thread()
    if line is None:
        records.facts.flags |= records.OTHER_THREAD
        return None
    facts = records.facts
    facts.workers = getattr(iterator, "_num_workers", 0)
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    if isinstance(size, int) and 0 < size <= records.MOST:
        facts.batch_size = size
    line.data_begins()
    return own_time.mark()


def _ends(iterator: Any, start: Mark, got: bool) -> None:
    line = stages.thread()
    if line is None:
        return
    storage_ns, cpu_ns, queued_ns = own_time.since(start)
    if not own_time.known():
        records.facts.flags |= records.NO_QUEUE
    # Of a batch that workers make this thread knows only that it waits.
    line.fetched(0 if getattr(iterator, "_num_workers", 0) else storage_ns, cpu_ns, queued_ns)
    records.facts.batches += got
    line.data_ends(got)


def install_fetch(module: Any) -> None:
    """Look into the work on a batch that a worker does. module: torch.utils.data._utils.fetch."""
    for fetcher in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        _time_fetch(fetcher)


def _time_fetch(fetcher: Any) -> None:
    original = fetcher.fetch
    mark, fetched = guarded(HOOK, own_time.mark), guarded(HOOK, _fetched)

    @wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        start = mark() if _in_worker() else None
        batch = original(self, index)  # the end of an iterable's data is no batch
        if start is not None:
            fetched(start)
        return batch

    fetcher.fetch = fetch


def _fetched(start: Mark) -> None:
    global _load
    if _load is None:
        _load = records.Load()
    _load.add(*own_time.since(start))


def _in_worker() -> bool:
    return sys.modules["torch.utils.data"].get_worker_info() is not None


def _forked() -> None:
    global _load
    _load = None
    switched_off.discard(HOOK)


os.register_at_fork(after_in_child=_forked)
