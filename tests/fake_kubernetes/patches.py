"""Patches of objects, as the API server applies them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from fake_kubernetes.errors import our_error

Json = Any


def json_patch(value: Json, operations: Json) -> Json:
    """RFC 6902. Whatever is wrong with it is the same error. Replacing what is not there adds it."""
    if not isinstance(operations, list):
        raise our_error()
    found = deepcopy(value)
    for one in operations:
        try:
            found = _operation(found, one)
        except (KeyError, IndexError, ValueError, TypeError):
            raise our_error() from None
    return found


def _operation(value: Json, one: Json) -> Json:
    path = _pointer(one["path"])
    match one["op"]:
        case "test":
            if _get(value, path) != one.get("value"):
                raise ValueError("test")
        case "add":
            _set(value, path, deepcopy(one["value"]), insert=True)
        case "replace":
            _set(value, path, deepcopy(one["value"]), insert=False)
        case "remove":
            _remove(value, path)
        case "copy":
            _set(value, path, deepcopy(_get(value, _pointer(one["from"]))), insert=True)
        case "move":
            moved = _get(value, _pointer(one["from"]))
            _remove(value, _pointer(one["from"]))
            _set(value, path, moved, insert=True)
        case _:
            raise ValueError(one["op"])
    return value


def _pointer(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(path)
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _get(value: Json, path: list[str]) -> Json:
    for part in path:
        value = value[_index(value, part)] if isinstance(value, list) else value[part]
    return value


def _index(value: list[Json], part: str) -> int:
    place = int(part)
    if not 0 <= place < len(value):
        raise IndexError(part)
    return place


def _set(value: Json, path: list[str], new: Json, *, insert: bool) -> None:
    parent, last = _get(value, path[:-1]), path[-1]
    if isinstance(parent, list):
        if last == "-":
            parent.append(new)
        elif insert:
            if not 0 <= int(last) <= len(parent):
                raise IndexError(last)
            parent.insert(int(last), new)
        else:
            parent[_index(parent, last)] = new
    elif isinstance(parent, dict):
        parent[last] = new
    else:
        raise TypeError(last)


def _remove(value: Json, path: list[str]) -> None:
    parent, last = _get(value, path[:-1]), path[-1]
    if isinstance(parent, list):
        del parent[_index(parent, last)]
    else:
        del parent[last]


def merge_patch(value: Json, patch: Json) -> Json:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    found = dict(value) if isinstance(value, dict) else {}
    for name, new in patch.items():
        if new is None:
            found.pop(name, None)
        else:
            found[name] = merge_patch(found.get(name), new)
    return found


MERGED_BY = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "schedulingGates": "name",
    "containerStatuses": None,
    "tolerations": None,
    "finalizers": "",
    "env": "name",
    "taints": "key",
}
"""Lists that a strategic merge patch merges: by which field; '': of plain values; None: replaced."""


def strategic_patch(value: Json, patch: Json, name: str = "") -> Json:
    """A strategic merge patch, for the lists that are used here."""
    if isinstance(patch, list) and (key := MERGED_BY.get(name)) is not None and isinstance(value, list):
        if key == "":
            return [*value, *(one for one in patch if one not in value)]
        found = list(value)
        for one in patch:
            place = next((at for at, old in enumerate(found) if old.get(key) == one.get(key)), None)
            if one.get("$patch") == "delete":
                if place is not None:
                    del found[place]
            elif place is None:
                found.append(deepcopy(one))
            else:
                found[place] = strategic_patch(found[place], one)
        return found
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(value) if isinstance(value, dict) else {}
    for field, new in patch.items():
        if new is None:
            merged.pop(field, None)
        else:
            merged[field] = strategic_patch(merged.get(field), new, field)
    return merged
