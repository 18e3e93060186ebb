"""A policy's memory as bytes, to be kept over a restart.

Layout: the line `gpuloom-memory-1`, a line of JSON, then the contents of all arrays, one after another, compressed
(zlib). The JSON is `{"policy": id, "base": id or null, "memory": …}`, where `…` is numbers, words, and

    {"list": […]}, {"tuple": […]}, {"dict": [[key, value], …]}    numbers as keys stay numbers, order is kept
    {"array": [dtype, [shape]]}                                    contents: the next bytes of those after the JSON
    {"float": "nan" | "inf" | "-inf"}
    {"of": "module:class", "fields": {name: …}}                    a dataclass that the policy names in `remembers`

What is not of this form is refused, never guessed at: nothing of it is executed.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.decision import Placement
from gpuloom.core.errors import PolicyError
from gpuloom.policies.base import Policy
from gpuloom.policies.beside import Beside, Memory

FORMAT = "gpuloom-memory-1"
_MOST_BYTES = 1 << 30
"""More than that is not unpacked: the data is damaged, or not ours."""


def dump(memory: Any, policy: Policy) -> bytes:
    """The memory of this policy as bytes.

    Raises:
        PolicyError: it holds something that can't be written down: see the module.
    """
    writer = _Writer(policy)
    content = {"policy": policy.id, "base": _base_of(policy), "memory": writer.plain(memory, "memory")}
    head = f"{FORMAT}\n{json.dumps(content, allow_nan=False)}\n".encode()
    return head + zlib.compress(b"".join(writer.blobs), 1)


def load(data: bytes, policy: Policy) -> Any:
    """The memory that `dump` wrote for a policy of this id (and base).

    Raises:
        PolicyError: it is of another policy or format, or damaged; begin with a new memory then.
    """
    where = f"memory of policy {policy.id!r}"
    name, _, rest = data.partition(b"\n")
    if name.decode("ascii", "replace") != FORMAT:
        raise PolicyError(f"{where}: begins with {name[:32]!r}, must be {FORMAT!r} (written by another version?)")
    head, _, packed = rest.partition(b"\n")
    try:
        content = json.loads(head)
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(packed, _MOST_BYTES)
        if unpacker.unconsumed_tail or unpacker.unused_data or not unpacker.eof:
            raise ValueError("the arrays are cut off, or something follows them")
    except (ValueError, RecursionError, zlib.error) as error:
        raise PolicyError(f"{where}: is damaged: {error}") from error
    if not isinstance(content, dict) or content.keys() != {"policy", "base", "memory"}:
        raise PolicyError(f"{where}: must be a JSON object of policy, base and memory")
    written, expected = (content["policy"], content["base"]), (policy.id, _base_of(policy))
    if isinstance(policy, Beside) and written == (policy.inner.id, _base_of(policy.inner)):
        return Memory(load(data, policy.inner))  # from before pairs were formed
    if policy.inner is None and written == (policy.id, policy.id):
        return load(data, Beside(policy.twin(), 1.0)).base  # pairs are formed no more
    if written != expected:
        raise PolicyError(f"{where}: was written by {_named(*written)}, not by {_named(*expected)}")
    reader = _Reader(policy, raw)
    try:
        memory = reader.value(content["memory"])
        if reader.at != len(raw):
            raise ValueError(f"{len(raw) - reader.at} bytes are left over")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise PolicyError(f"{where}: is damaged, or of another version: {error}") from error
    return memory


def _base_of(policy: Policy) -> str | None:
    return None if policy.inner is None else policy.inner.id


def _named(policy: object, base: object) -> str:
    return f"{policy!r}" if base is None else f"{policy!r} over {base!r}"


def _known(policy: Policy) -> dict[str, type]:
    """Dataclasses that may be in its memory, by name."""
    return {f"{cls.__module__}:{cls.__qualname__}": cls for cls in (*policy.remembers, Placement)}


class _Writer:
    """Turns values into what JSON can hold; arrays go to `blobs`."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._names = policy, {cls: name for name, cls in _known(policy).items()}
        self.blobs: list[bytes] = []

    def plain(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, str | bool):
            return value
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, int) and type(value) in (int, bool):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if type(value) in (list, tuple):
            items = [self.plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
            return {"list" if type(value) is list else "tuple": items}
        if type(value) is dict:
            pairs = [[self.plain(k, f"a key of {where}"), self.plain(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"dict": pairs}
        if is_dataclass(value) and not isinstance(value, type) and type(value) in self._names:
            content = {}
            for one in fields(value):
                # To its author, the memory of the policy within is the memory.
                inside = where if isinstance(value, Memory) and one.name == "base" else f"{where}.{one.name}"
                content[one.name] = self.plain(getattr(value, one.name), inside)
            return {"of": self._names[type(value)], "fields": content}
        raise PolicyError(
            f"policy {self._policy.id!r}: {where} is a {type(value).__name__}, which can't be saved; a memory may "
            f"hold numbers, words, lists, tuples, dicts, NumPy arrays and the dataclasses in Policy.remembers"
        )

    def _array(self, array: NDArray[Any], where: str) -> Any:
        if array.dtype.kind not in "biuf" or not array.dtype.isnative:
            raise PolicyError(f"policy {self._policy.id!r}: {where} is an array of {array.dtype}, must be of numbers")
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        self.blobs.append(np.ascontiguousarray(little).tobytes())
        return {"array": [little.dtype.str, list(array.shape)]}


class _Reader:
    """The way back. Raises ValueError and the like for anything unknown."""

    def __init__(self, policy: Policy, raw: bytes) -> None:
        self._known, self._raw, self.at = _known(policy), raw, 0

    def value(self, plain: Any) -> Any:
        if not isinstance(plain, Mapping):
            if isinstance(plain, list):
                raise ValueError("a bare list")
            return plain
        if plain.keys() == {"of", "fields"}:
            return self._dataclass(plain["of"], plain["fields"])
        if len(plain) != 1:
            raise ValueError(f"an object of {', '.join(map(str, plain))}")
        kind, content = next(iter(plain.items()))
        if kind == "list":
            return [self.value(item) for item in content]
        if kind == "tuple":
            return tuple([self.value(item) for item in content])
        if kind == "dict":
            return {self.value(key): self.value(value) for key, value in content}
        if kind == "array":
            return self._array(*content)
        if kind == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        raise ValueError(f"unknown content {kind!r}")

    def _array(self, dtype: str, shape: list[int]) -> NDArray[Any]:
        kind = np.dtype(dtype)
        if kind.kind not in "biuf" or any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"an array of {dtype} with shape {shape}")
        end = self.at + kind.itemsize * math.prod(shape)
        if end > len(self._raw):
            raise ValueError("arrays are cut off")
        flat = np.frombuffer(self._raw[self.at : end], dtype=kind)
        self.at = end
        return flat.reshape(shape).astype(kind.newbyteorder("="))

    def _dataclass(self, name: str, content: Mapping[str, Any]) -> Any:
        cls = self._known.get(name)
        if cls is None:
            raise ValueError(f"unknown class {name!r}")
        names = [one.name for one in fields(cls)]
        if list(content) != names:
            raise ValueError(f"{name} has the fields {', '.join(content)}, must have {', '.join(names)}")
        return cls(**{key: self.value(value) for key, value in content.items()})
