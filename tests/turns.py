"""The order of tests that several workers share: what takes long comes first, and nobody waits for it at the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

WAITING = frozenset(("integration", "contract"))
"""Folders of tests most of whose time passes in waiting, for processes and for Slurm."""


def in_turns(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """An order for `--dist worksteal`, which gives each worker a piece of the list, all of them as long, and lets those
    who are done take from the ends of others' pieces.

    Every piece begins with slow tests. They are dealt by files, which share what takes long to make. Half of the
    workers begin with those that wait, the others with those that compute: so neither stand alone at the end, when
    nobody is left to take them, nor does the machine wait at the beginning. Before all others come those that say
    themselves that they take longer than usual (`timeout`).
    """
    long, rest = list[pytest.Item](), list[pytest.Item]()
    waiting, computing = dict[object, list[pytest.Item]](), dict[object, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("slow") is None:
            rest.append(item)
        elif item.get_closest_marker("timeout") is not None:
            long.append(item)
        else:
            files = computing if WAITING.isdisjoint(item.path.parts) else waiting
            files.setdefault(item.path, []).append(item)
    if not (long or waiting or computing):
        return list(items)
    pieces = [long[worker::workers] for worker in range(workers)]
    both = bool(waiting and computing) and workers > 1
    for files, turns in ((waiting, pieces[::2] if both else pieces), (computing, pieces[1::2] if both else pieces)):
        for number, tests in enumerate(files.values()):
            turns[number % len(turns)] += tests
    ordered = list[pytest.Item]()
    for worker, piece in enumerate(pieces):
        left = len(items) - len(ordered)
        more = max(0, left // (workers - worker) - len(piece)) if worker < workers - 1 else len(rest)
        ordered += [*piece, *rest[:more]]
        del rest[:more]
    return ordered
