"""Where the iteration over a PyTorch DataLoader stands, and how to go on from there in another process.

A position is the number of batches that were used, and the random state with which the iteration began: that of the
loader when its iterator was made, and that of the sampler when it was first asked. From these the same order is drawn
again, and the batches that were used are left out by their indices, without being read. (An iterable dataset has no
indices: its first batches are read and dropped.)
"""

from __future__ import annotations

from weakref import WeakKeyDictionary, ref

from . import chance, guarded, switched_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "loaders"

_seen = WeakKeyDictionary()  # type: WeakKeyDictionary[Any, Any]
"""By loader: a reference to the iterator it made last."""
_due = WeakKeyDictionary()  # type: WeakKeyDictionary[Any, dict[str, Any]]
"""By loader: the position at which its next iteration is to go on."""


def install(module: Any) -> None:
    """module: torch.utils.data.dataloader."""
    base = module._BaseDataLoaderIter
    make, reset, draw = base.__init__, base._reset, base._next_index
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
        _wrap_making(kind)

    def _begin(self: Any, loader: Any) -> None:
        _seen[loader] = ref(self)
        self._gpuloom = {"skip": 0, "first": None, "loader": ref(loader)}
        due = _due.get(loader)
        self._gpuloom["before"] = _drawn(loader)
        if due is not None and not due["iterable"]:
            self._gpuloom.update(skip=due["used"], first=due["first"])

    def _first(self: Any) -> None:
        own = self._gpuloom
        if own["first"] is None:
            own["first"] = _drawn(own["loader"]())

    begin, first = guarded(HOOK, _begin), guarded(HOOK, _first)

    def new_make(self: Any, loader: Any) -> None:
        begin(self, loader)
        make(self, loader)

    def new_reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            begin(self, loader)
        reset(self, loader, first_iter)

    def next_index(self: Any) -> Any:
        own = getattr(self, "_gpuloom", None)  # None: its loader is one that can't be followed
        if own is not None and own.get("skip"):
            skip, own["skip"] = own["skip"], 0
            loader = own["loader"]()
            now = _drawn(loader)
            _set(loader, own["first"])
            for _ in range(skip):
                draw(self)
            index = draw(self)
            chance.restore(now["global"])
            return index
        if own is not None:
            first(self)
        return draw(self)

    base.__init__, base._reset, base._next_index = new_make, new_reset, next_index


def _wrap_making(kind: Any) -> None:
    make, due_of = kind.__init__, guarded(HOOK, _due.get)

    def new_make(self: Any, loader: Any) -> None:
        due = due_of(loader)
        if due is None:
            make(self, loader)
            return
        now = chance.state()
        _set(loader, due["before"])
        make(self, loader)
        if due["iterable"]:
            if due["first"] is not None:
                _set(loader, due["first"])
            for _ in range(due["used"]):
                next(self)
        else:
            self._num_yielded = due["used"]
        _due.pop(loader, None)
        chance.restore(now)

    kind.__init__ = new_make


def position(loader: Any, *, ahead: int = 0) -> dict[str, Any]:
    """Where its newest iteration stands. ahead: batches that were read and not used yet.

    Raises RuntimeError: that is not known.
    """
    if HOOK in switched_off:
        raise RuntimeError("where the data loaders stand is not known: their hook is switched off")
    found = _seen.get(loader)
    iterator = None if found is None else found()
    iterable = loader._dataset_kind == 1
    common = {"iterable": iterable}
    if iterator is None:
        return {**common, "used": 0, "before": _drawn(loader), "first": None}
    own = iterator._gpuloom
    return {**common, "used": max(iterator._num_yielded - ahead, 0), "before": own["before"], "first": own["first"]}


def go_on(loader: Any, found: dict[str, Any]) -> None:
    """The next iteration over the loader goes on at this position."""
    _due[loader] = found


def _generators(loader: Any) -> list[Any]:
    """Those that the loader and its samplers draw from, where they have their own."""
    batches = getattr(loader, "batch_sampler", None)
    owners = [loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]
    found = []  # type: list[Any]
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if hasattr(generator, "get_state") and not any(generator is one for one in found):
            found.append(generator)
    return found


def _drawn(loader: Any) -> dict[str, Any]:
    own = [] if loader is None else [generator.get_state() for generator in _generators(loader)]
    return {"global": chance.state(devices=False), "own": own}


def _set(loader: Any, found: dict[str, Any]) -> None:
    chance.restore(found["global"])
    for generator, state in zip(_generators(loader), found["own"]):
        generator.set_state(state)
