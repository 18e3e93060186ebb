"""The order of tests that several workers share: what takes long comes first, and nobody waits for it at the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def in_turns(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """An order for `--dist worksteal`, which gives each worker a piece of the list, all of them as long, and lets those
    who are done take from the ends of others' pieces.

    Every piece begins with slow tests. They are dealt by files, which share what takes long to make, and each piece
    begins elsewhere: files of one folder are alike, and those that wait should do so while others compute. Before all
    others come those that say themselves that they take longer than usual (`timeout`).
    """
    long, files, rest = list[pytest.Item](), dict[object, list[pytest.Item]](), list[pytest.Item]()
    for item in items:
        if item.get_closest_marker("slow") is None:
            rest.append(item)
        elif item.get_closest_marker("timeout") is not None:
            long.append(item)
        else:
            files.setdefault(item.path, []).append(item)
    if not files:
        return list(items)
    pieces = list[list[pytest.Item]]()
    for worker in range(workers):
        dealt = list(files.values())[worker::workers]
        first = worker * len(dealt) // workers
        slow = [item for tests in dealt[first:] + dealt[:first] for item in tests]
        pieces.append([*long[worker::workers], *slow])
    ordered = list[pytest.Item]()
    for worker, piece in enumerate(pieces):
        left = len(items) - len(ordered)
        more = max(0, left // (workers - worker) - len(piece)) if worker < workers - 1 else len(rest)
        ordered += [*piece, *rest[:more]]
        del rest[:more]
    return ordered
