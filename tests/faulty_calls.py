"""The calls that a process of its own has made, for those who make them fail."""

from __future__ import annotations

import json

import faults


class Seen(dict[faults.Call, int]):
    """Calls and how often they were made; the first of each is written down at once, as a child's memory is its own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def __missing__(self, call: faults.Call) -> int:
        return 0

    def __setitem__(self, call: faults.Call, count: int) -> None:
        if call not in self:
            faults.note(self._path, json.dumps([call.function, call.site]) + "\n")
        super().__setitem__(call, count)

    def total(self) -> int:
        return sum(self.values())
