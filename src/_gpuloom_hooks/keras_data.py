"""Where Keras' iteration over an epoch's data stands, and how to go on from there in another process, by backend.

PyTorch: the loader's position (`loaders`). JAX: arrays are permuted by NumPy's global generator, whose state before the
epoch gives the same order again; batches that were used are drawn and dropped. TensorFlow: a checkpoint of tf.data's
iterator, whose files lie in the save's folder.
"""

from __future__ import annotations

import os
import sys

from . import chance, loaders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator


class Torch:
    """Of Keras on PyTorch."""

    name = "torch"
    kinds = ("ArrayDataAdapter", "TorchDataLoaderAdapter")  # type: tuple[str, ...]
    """Data of which the place within an epoch can be kept, by Keras' adapters for them."""

    def __init__(self) -> None:
        self.loader = None  # type: Any

    def begins(self, source: Any, position: Any) -> Any:
        """An epoch's iteration begins; what is iterated over in place of the source. position: of its first batch;
        None: it is the epoch's first."""
        self.loader = source
        if position is not None:
            loaders.go_on(source, position)
        return source

    def reached(self, iterator: Any, folder: str) -> None:
        """The iterator of an epoch that goes on has been made; the position was kept in this folder."""

    def position(self, iterator: Any, batches: int, folder: str) -> Any:
        """Where it stands after so many batches, to be kept by pickle. folder: for files beside that.

        Raises any error: it can't be told.
        """
        return loaders.position(self.loader)


class Jax(Torch):
    """Of Keras on JAX. Its iterators draw at their first batch, not before."""

    name = "jax"
    kinds = ("ArrayDataAdapter",)

    def __init__(self) -> None:
        super().__init__()
        self.before = None  # type: Any

    def begins(self, source: Any, position: Any) -> Iterator[Any]:
        numpy = sys.modules["numpy"].random
        batches = iter(source)
        if position is None:
            self.before = numpy.get_state()
        else:
            now = chance.state()
            self.before = position["before"]
            numpy.set_state(self.before)
            for _ in range(position["used"]):
                next(batches)
            chance.restore(now)
        yield from batches

    def position(self, iterator: Any, batches: int, folder: str) -> Any:
        return {"before": self.before, "used": batches}


class TensorFlow(Torch):
    """Of Keras on TensorFlow, with one replica."""

    name = "tensorflow"
    kinds = ("ArrayDataAdapter", "TFDatasetAdapter")
    file = "iterator"

    def begins(self, source: Any, position: Any) -> Any:
        return source

    def reached(self, iterator: Any, folder: str) -> None:
        path = os.path.join(folder, self.file)
        sys.modules["tensorflow"].train.Checkpoint(iterator=iterator).read(path).assert_consumed()

    def position(self, iterator: Any, batches: int, folder: str) -> Any:
        sys.modules["tensorflow"].train.Checkpoint(iterator=iterator).write(os.path.join(folder, self.file))
        return {}


BACKENDS = {one.name: one for one in (Torch, Jax, TensorFlow)}
