"""Tells the nodes which jobs take turns on which devices: those of a group, where the policy weaves (`NodePort.weave`).

Devices of which nothing was said, or of a job alone, need no turns. What was told before is told again only when it is
not so any more; a scheduler that takes over tells all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuloom.core.book import Book
from gpuloom.core.job import DeviceKind
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.node import Weaving
from gpuloom.live.records.groups import Group, Groups

_Devices = tuple[str, tuple[int, ...]]
"""A node, and indices of GPUs there."""


class Turns:
    """Used by the scheduler's thread alone. weaves: whether the policy that decides now weaves jobs that share GPUs."""

    def __init__(self, book: Book, groups: Groups, gangs: Gangs, weaves: Callable[[], bool]) -> None:
        self._book, self._groups, self._gangs, self._weaves = book, groups, gangs, weaves
        self._told: dict[_Devices, Weaving] = {}
        self._as: tuple[int, bool] | None = None
        """The change of the groups, and whether they were woven, when all was told."""
        self._anew: set[str] = set()
        """Nodes of which it is not known what was said on them last."""

    def forget(self, node: str) -> None:
        """A node has come (back): what was said there may be lost, or come from another scheduler."""
        self._told = {devices: said for devices, said in self._told.items() if devices[0] != node}
        self._anew.add(node)

    def tell(self) -> None:
        """Tell the nodes what is not so any more."""
        state = self._groups.changes, self._weaves()
        if state == self._as and not self._anew:
            return
        wanted: dict[_Devices, Weaving] = {}
        if self._as is None or self._anew:
            for attempt in self._book.attempts.values():
                if self._as is None or self._anew.intersection(attempt.nodes):
                    wanted |= self._of([attempt.job], attempt.allocation, on=False)
        for devices, said in self._told.items():
            if said.on:
                held = [job for job in said.members if self._holds(job, devices)]
                wanted[devices] = Weaving(said.kind, said.gpus, tuple(held), on=False)
        for group in self._groups.all():
            members = group.members if group.order is None else group.order
            wanted |= self._of(members, group.gpus.items(), on=state[1] and self._in_turns(group))
        for devices, weaving in wanted.items():
            if self._told.get(devices) != weaving and self._gangs.weave(devices[0], weaving):
                if weaving.on:
                    self._told[devices] = weaving
                else:
                    self._told.pop(devices, None)
        self._as = state
        self._anew.clear()

    def _in_turns(self, group: Group) -> bool:
        """Whether all its members have the very same GPUs, and no shim gives them their turns by class."""
        book = self._book
        same = {book.attempts[job].allocation for job in group.members}
        return len(same) == 1 and not any(book.jobs[job].spec.sharing_class for job in group.members)

    def _of(
        self, members: Iterable[int], allocation: Iterable[tuple[str, Iterable[int]]], *, on: bool
    ) -> dict[_Devices, Weaving]:
        jobs = tuple(members)
        found = {}
        for node, indices in allocation:
            gpus = tuple(sorted(indices))
            found[node, gpus] = Weaving(self._kind(node), gpus, jobs, on)
        return found

    def _kind(self, node: str) -> DeviceKind:
        record = self._book.nodes.get(node)
        return DeviceKind.GPU if record is None else record.kind

    def _holds(self, job: int, devices: _Devices) -> bool:
        attempt = self._book.attempts.get(job)
        node, gpus = devices
        return attempt is not None and any(
            name == node and tuple(sorted(held)) == gpus for name, held in attempt.allocation
        )
