"""Dataclasses as JSON and back: what is sent arrives as it was, and what is no such thing is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from gpuloom.fleet.codec import CodecError, of_plain, plain


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Leaf:
    name: str
    parent: Leaf | None = None


@dataclass(frozen=True)
class Tree:
    count: int
    share: float
    alive: bool
    colour: Colour
    level: Level
    words: tuple[str, ...]
    pair: tuple[int, str]
    leaves: tuple[Leaf, ...]
    by_number: Mapping[int, float]
    by_name: Mapping[str, tuple[int, ...]]
    anything: Any
    limit_s: float | None
    note: str = ""
    more: tuple[int, ...] = field(default_factory=tuple)
    secret: int = field(default=7, init=False)


TREE = Tree(
    3, 0.5, True, Colour.RED, Level.LOW, ("a", "b"), (1, "x"), (Leaf("l", Leaf("p")),), {4: 1.0}, {"k": (1, 2)},
    {"free": [1, None]}, None,
)  # fmt: skip


def sent(value: Any) -> Any:
    """As it arrives at the other side."""
    return json.loads(json.dumps(plain(value)))


def changed(**fields: Any) -> dict[str, Any]:
    return {**sent(TREE), **fields}


def test_what_is_sent_arrives_as_it_was() -> None:
    assert of_plain(Tree, sent(TREE)) == TREE
    assert sent(TREE)["leaves"] == [{"name": "l", "parent": {"name": "p", "parent": None}}]
    assert (sent(TREE)["colour"], sent(TREE)["level"], sent(TREE)["by_number"]) == ("red", 1, {"4": 1.0})
    assert (type(plain(Colour.RED)), type(plain(Level.LOW))) == (str, int)


def test_of_another_version_what_is_not_known_is_passed_over_and_what_has_a_default_may_be_missing() -> None:
    without = changed(newer=5)
    del without["note"], without["more"]
    assert of_plain(Tree, without) == TREE
    assert of_plain(Tree, changed(note="n", more=[9])).more == (9,)
    assert of_plain(Tree, changed(secret=99)).secret == 7, "what is not given to it is no field for others"


@pytest.mark.parametrize("name", ["count", "words", "by_name", "limit_s"])
def test_what_has_no_default_may_not_be_missing(name: str) -> None:
    found = sent(TREE)
    del found[name]
    with pytest.raises(CodecError, match=f"Tree without {name}"):
        of_plain(Tree, found)


def test_a_whole_number_may_stand_for_any() -> None:
    found = of_plain(Tree, changed(share=2, limit_s=3))
    assert (found.share, found.limit_s) == (2, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 1.5}, {"count": "1"}, {"count": True}, {"count": None}, {"share": "0.5"}, {"share": False},
        {"alive": 1}, {"colour": "blue"}, {"level": 2}, {"words": "ab"}, {"words": [1]}, {"words": {"a": 1}},
        {"pair": [1]}, {"pair": [1, "x", 2]}, {"pair": ["x", 1]}, {"leaves": [{}]}, {"leaves": [5]},
        {"by_number": {"x": 1.0}}, {"by_number": [1]}, {"by_number": {"1": "y"}}, {"by_name": {"k": 5}},
        {"limit_s": "soon"}, {"note": None},
    ],
)  # fmt: skip
def test_what_is_of_another_kind_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="this is no Tree"):
        of_plain(Tree, changed(**wrong))


@pytest.mark.parametrize("data", [None, 5, "text", [], {}])
def test_what_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(CodecError, match=r"this is no Tree|Tree without"):
        of_plain(Tree, data)


def test_what_can_not_be_sent_is_said_at_once() -> None:
    @dataclass
    class Odd:
        either: int | str

    with pytest.raises(CodecError, match="set can't be sent"):
        plain({"a": {1, 2}})
    with pytest.raises(CodecError, match=r"int \| str can't be sent"):
        of_plain(Odd, {"either": 5})
