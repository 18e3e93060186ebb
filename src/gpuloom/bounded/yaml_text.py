"""YAML as people write it: plain values, lists and mappings. What makes a small file a large one is refused.

Aliases (*name), merge keys (<<) and tags (all but !!str) are refused; dates stay text. A key may be given once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import yaml

from gpuloom.bounded.text import cut, shown

MOST_BYTES = 4 * 2**20
DEPTH = 32
"""Lists and mappings within each other."""
NODES = 200_000
"""Values, keys included."""
LONGEST_NUMBER = 60

_TYPES = ("null", "bool", "int", "float", "str", "seq", "map")


class RefusedError(yaml.MarkedYAMLError):
    """Valid YAML that uses an unsupported feature."""


class Loader(yaml.SafeLoader):
    """See the module."""

    yaml_constructors = {  # noqa: RUF012 - as PyYAML has it
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _TYPES
    }
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if tag.rpartition(":")[2] in _TYPES]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(check_size(text))
        self._nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark: Any = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise refused("aliases (*name) are not supported: write out the value", mark)
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        if tag not in (None, "!", "tag:yaml.org,2002:str"):
            raise refused(f"tags ({cut(tag.replace('tag:yaml.org,2002:', '!!'), 60)}) are not supported", mark)
        self._nodes += 1
        self._depth += 1
        if self._nodes > NODES:
            raise refused(f"more than {NODES:,} values: write several files", mark)
        if self._depth > DEPTH + 1:
            raise refused(f"nested too deeply: at most {DEPTH} levels are allowed", mark)
        found: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return found

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen: dict[Any, None] = {}
        for key_node, _ in node.value:
            if key_node.tag.endswith(":str") and key_node.value == "<<" and key_node.style is None:
                raise refused("merge keys (<<) are not supported: write out the fields", key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise refused(f"key {shown(key)} is given twice", key_node.start_mark)
                seen[key] = None

    def _int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > LONGEST_NUMBER:
            raise refused(f"the number {shown(node.value, 30)} is too long; quote what is text", node.start_mark)
        return int(self.construct_yaml_int(node))

    def _float(self, node: yaml.ScalarNode) -> float:
        found = float(self.construct_yaml_float(node)) if len(node.value) <= LONGEST_NUMBER else math.inf
        if not math.isfinite(found):
            raise refused(f"{shown(node.value, 30)} is not a finite number; quote what is text", node.start_mark)
        return found


Loader.add_constructor("tag:yaml.org,2002:int", Loader._int)
Loader.add_constructor("tag:yaml.org,2002:float", Loader._float)


def refused(problem: str, mark: Any) -> RefusedError:
    """An error at this place."""
    return RefusedError(None, None, problem, mark)


def check_size(text: str) -> str:
    """The text, if it is not too long to be read."""
    if len(text) > MOST_BYTES:
        raise RefusedError(None, None, f"longer than {MOST_BYTES // 2**20} MiB: write several files", None)
    return text


def load_yaml(text: str) -> Any:
    """Parse a YAML text of one document.

    Raises:
        ValueError: it is not YAML, or not of a kind that is taken; with line and column.
    """
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(told(error)) from None


def told(error: yaml.YAMLError) -> str:
    """The error and its place, in one line of moderate length."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"is not YAML: {cut(' '.join(str(error).split()), 200)}"
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = where + cut(" ".join(str(error.problem or error.context).split()), 200)
    return problem if isinstance(error, RefusedError) else f"is not YAML: {problem}"
