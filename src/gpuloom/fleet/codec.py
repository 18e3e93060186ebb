"""Dataclasses as JSON, both ways, by the types of their fields."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Decode = Callable[[Any], Any]


class CodecError(ValueError):
    """What came is not what it should be."""


def plain(value: Any) -> Any:
    """A value as json.dumps takes it: dataclasses as objects, enums as their values, tuples as lists."""
    if value is None or isinstance(value, str | int | float):  # also StrEnum, which is text
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _names(_key(type(value)))}
    raise CodecError(f"{type(value).__name__} can't be sent")


def of_plain(kind: type[T], data: Any) -> T:
    """The value that was sent. Fields that are not known are passed over, those that have a default may be missing.

    Raises:
        CodecError: it is none of this kind.
    """
    try:
        made: T = _decoder(_key(kind))(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CodecError(f"this is no {kind.__name__}: {error!r}") from None
    return made


def _key(kind: Any) -> Any:
    """A type as a key of a cache."""
    return kind


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _decoder(kind: Any) -> Decode:
    """What makes a value of this type of what was sent."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        others = [one for one in inside if one is not type(None)]
        if len(others) != 1:
            raise CodecError(f"{kind} can't be sent")
        decode = _decoder(others[0])
        return lambda data: None if data is None else decode(data)
    if origin is tuple:
        return _tuple(inside)
    if origin is not None and issubclass(origin, Mapping):
        key, value = _decoder(inside[0]), _decoder(inside[1])
        number = int in inside[:1]
        return lambda data: {key(int(one) if number else one): value(other) for one, other in data.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    return _checked(kind)


def _tuple(inside: tuple[Any, ...]) -> Decode:
    if len(inside) == 2 and inside[1] is ...:
        decode = _decoder(inside[0])
        return lambda data: tuple(decode(one) for one in _listed(data))
    each = [_decoder(one) for one in inside]
    return lambda data: tuple(decode(one) for decode, one in zip(each, _listed(data), strict=True))


def _listed(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise CodecError("a list was expected")
    return data


def _dataclass(kind: type) -> Decode:
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    each: list[tuple[str, Decode]] = []

    def decode(data: Any) -> Any:
        if not each:  # only now, as a kind may hold itself
            hints = get_type_hints(kind)
            each.extend([(one.name, _decoder(hints[one.name])) for one in fields(kind) if one.init])
        if missing := needed - data.keys():
            raise CodecError(f"{kind.__name__} without {', '.join(sorted(missing))}")
        return kind(**{name: one(data[name]) for name, one in each if name in data})

    return decode


def _checked(kind: Any) -> Decode:
    if kind is float:
        kinds: tuple[type, ...] = (int, float)
    elif kind in (str, int, bool):
        kinds = (kind,)
    else:
        return lambda data: data

    def check(data: Any) -> Any:
        if not isinstance(data, kinds) or (isinstance(data, bool) and kind is not bool):
            raise CodecError(f"{data!r:.80} is no {kind.__name__}")
        return data

    return check
