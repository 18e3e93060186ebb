"""Which runs are whose and where: from what nodes say to what the scheduler is told, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from gpuloom.core.end_reason import EndReason
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.gang import Gang
from gpuloom.executors.gang_ends import gone, unseen_end
from gpuloom.executors.known import Expected, Single, Team
from gpuloom.executors.node import NodePort
from gpuloom.executors.orders import Freeze, Go, Order, ReadLog, Start, Stop, Tell, Thaw
from gpuloom.executors.outbox import Outbox
from gpuloom.executors.port import MemberStatus, RunExit, RunPhase, RunStatus
from gpuloom.executors.procs import REMEDY

log = logging.getLogger("gpuloom.gangs")


class Roster:
    """Each call with the lock of whoever owns it held; what is to be told goes to the outbox.

    Attributes:
        nodes: ports of the nodes that there are, by name. singles, teams: attempts with one member and with several.
        members: of which attempt a run is a member, and its rank. dues: when to look at which attempt.
        on_node: by node, the runs that are expected or were started there.
    """

    def __init__(
        self,
        outbox: Outbox,
        clock: Callable[[], float],
        epoch_s: float,
        *,
        say: Callable[[RunStatus], None],
        read_log: Callable[[str, int], None],
    ) -> None:
        """epoch_s: the clock's 0, since the epoch. say: tells the scheduler. read_log: reads the log of the member of
        this rank of an attempt some time."""
        self._outbox, self._clock, self._epoch_s, self._say, self._read_log = outbox, clock, epoch_s, say, read_log
        self.nodes: dict[str, NodePort] = {}
        self.singles: dict[str, Single] = {}
        self.teams: dict[str, Team] = {}
        self.members: dict[str, tuple[str, int]] = {}
        self.on_node: dict[str, set[str]] = {}
        self.dues: dict[str, float] = {}
        self._strangers: dict[str, tuple[str, bool]] = {}
        """Runs that nobody asked for: their node, and whether something of them is there."""
        self._leftovers: dict[tuple[str, str], str] = {}
        """(node, run) of what was given up with its node, and runs there again; and what is said of why it does not
        end."""

    # Who there is

    def place(self, run: str, node: str) -> Single:
        """An attempt with one member, on this node."""
        one = self.singles.get(run)
        if one is None:
            one = self.singles[run] = Single(node)
            self.on_node.setdefault(node, set()).add(run)
            self._strangers.pop(run, None)
        return one

    def team(
        self,
        places: Sequence[tuple[str, str]],
        grace_s: float,
        expected: Expected | None = None,
        *,
        apart: bool = False,
    ) -> Team:
        """An attempt with several members. places: (run, node) of each. apart: as `Gang` has it."""
        run = places[0][0]
        team = Team(Gang(run, places, grace_s, self._epoch_s, apart=apart), places, expected)
        if expected is not None:
            team.unmet = set(range(len(places)))
        self.teams[run] = team
        for rank, (member, node) in enumerate(places):
            self.members[member] = (run, rank)
            self.on_node.setdefault(node, set()).add(member)
            self._strangers.pop(member, None)
        return team

    def nodes_of(self, run: str) -> list[str]:
        """Where the members of an attempt are, or a strange run."""
        if (team := self.teams.get(run)) is not None:
            return [node for _, node in team.places]
        one = self.singles.get(run)
        return [self._strangers.get(run, ("", False))[0] if one is None else one.node]

    def port_of(self, run: str) -> NodePort | None:
        """Where an attempt with one member is, or a strange run; None: it is not there."""
        one = self.singles.get(run)
        return None if one is not None and one.over else self.nodes.get(self.nodes_of(run)[0])

    def strange(self, node: str) -> tuple[str, ...]:
        """What runs there and is no attempt's."""
        left = {run for where, run in self._leftovers if where == node}
        return tuple(sorted(left | {run for run, (where, alive) in self._strangers.items() if where == node and alive}))

    def unclean(self) -> dict[str, str]:
        """Nodes on which something goes on that was given up with them, and what."""
        found: dict[str, str] = {}
        for (node, run), why in sorted(self._leftovers.items()):
            what = f"run {run}, which was given up with it,"
            text = f"{what} does not end there: {why}; {REMEDY}" if why else f"{what} is being ended there"
            found.setdefault(node, text)
        return found

    def statuses(self, attempts: Collection[str] | None) -> list[RunStatus]:
        """Of attempts with several members of which all is known that there is to know, and of those that were lost."""
        over = [one.last for run, one in self.singles.items() if one.over and (attempts is None or run in attempts)]
        return [status for status in over if status is not None] + [
            team.gang.status
            for run, team in self.teams.items()
            if team.whole and team.gang.known and (attempts is None or run in attempts)
        ]

    def forget(self, run: str) -> list[tuple[str, str]]:
        """An attempt whose end is written down, or a strange run; its runs and where they are."""
        name, _ = self._strangers.pop(run, ("", False))
        places = [(run, name)]
        if (one := self.singles.pop(run, None)) is not None:
            self.on_node[one.node].discard(run)
            places = [(run, "" if one.over else one.node)]
        if (team := self.teams.pop(run, None)) is not None:
            self.dues.pop(run, None)
            for member, node in team.places:
                del self.members[member]
                self.on_node[node].discard(member)
            places = [(member, node) for rank, (member, node) in enumerate(team.places) if not team.gang.is_lost(rank)]
        return places

    def forget_node(self, node: str) -> None:
        """It is not there any more."""
        self.nodes.pop(node, None)
        self._leftovers = {key: why for key, why in self._leftovers.items() if key[0] != node}
        self._strangers = {run: place for run, place in self._strangers.items() if place[0] != node}

    # What nodes say

    def take(self, port: NodePort, status: RunStatus) -> None:
        """A node says something of a run."""
        run = status.run
        if run in self.members:
            self._take_member(port, status)
            return
        one = self.singles.get(run)
        if one is None:
            self._strangers[run] = (port.name, not gone(status))
            self._say(named(port.name, status))
        elif one.over or one.node != port.name:
            self._leave(port, status)
        elif one.last is None or not (one.last == status or gone(one.last)):  # not late, nor again
            one.spec, one.last = None, status
            self._say(status)

    def met(
        self,
        port: NodePort,
        found: Iterable[RunStatus],
        known: Iterable[str],
        boot: str,
        newer: Collection[str],
    ) -> None:
        """A node was met, for the first time or anew. found: what it knows. known: runs that were expected or started
        there before it was asked. boot: the present start of its machine. newer: of which it has said more since."""
        there = set(newer)
        for status in found:
            there.add(status.run)
            if status.run not in newer:
                self.take(port, status)
        for run in sorted(known):
            if run in self.members:
                self._member_met(run, run in there, boot)
            elif (one := self.singles.get(run)) is not None and not one.over:
                if run in there:
                    for wish in (one.wishes or {}).values():
                        self._outbox.tell(port.name, partial(wish, port))
                elif one.spec is not None:  # nothing was heard: the request was lost, or the answer
                    self._outbox.tell(port.name, partial(port.start, one.spec))
                elif one.last is not None and not gone(one.last):
                    begun = one.last.phase is not RunPhase.STARTING
                    how = unseen_end(self.epoch_now, begun=begun, restarted=rebooted(one.last.boot_id, boot))
                    self.over(run, one, how)

    def known(
        self, port: NodePort, found: Iterable[RunStatus], attempts: Collection[str] | None, newer: Collection[str]
    ) -> list[RunStatus]:
        """Of what a node knows, the attempts with one member, and strange runs; what it says of other members is taken
        as news. attempts: these alone. newer: runs of which more was said since."""
        told: list[RunStatus] = []
        for status in found:
            one = self.singles.get(status.run)
            if status.run in self.members:
                if status.run not in newer:
                    self.take(port, status)
            elif attempts is not None and status.run not in attempts:
                continue
            elif one is None:
                told.append(named(port.name, status))
            elif one.node == port.name and not one.over:
                told.append((one.last if status.run in newer else None) or status)
        return told

    def lose(self, node: str, how: RunExit) -> None:
        """A node is gone. how: the end of what ran there."""
        for run in sorted(self.on_node.get(node, ())):
            if run in self.members:
                self._lose_member(run, how)
            elif not (one := self.singles[run]).over and (one.last is None or not gone(one.last)):
                self.over(run, one, how)

    def over(self, run: str, one: Single, how: RunExit) -> None:
        """An attempt with one member has ended without its node's saying so."""
        one.over, one.spec, one.wishes = True, None, None
        before = one.last or RunStatus(run, RunPhase.EXITED)
        if before.exit is not None:  # what was left of it is gone as well
            how = replace(before.exit, released=True)
        one.last = replace(before, phase=RunPhase.EXITED, exit=how)
        self._say(one.last)

    def _take_member(self, port: NodePort, status: RunStatus) -> None:
        run, rank = self.members[status.run]
        team = self.teams[run]
        if team.places[rank][1] != port.name or team.gang.is_lost(rank) or rank in team.lost:
            self._leave(port, status)
        elif team.whole:
            self.do(run, team.gang.heard(rank, status, self._clock()))
        else:
            team.found[rank] = status

    def _member_met(self, member: str, there: bool, boot: str) -> None:
        run, rank = self.members[member]
        team, now = self.teams[run], self._clock()
        if not team.whole:
            boots = team.expected.boots if team.expected is not None else ()
            if rank < len(boots) and rebooted(boots[rank], boot):
                team.restarted.add(rank)
            if not there:
                team.found.pop(rank, None)
            team.unmet.discard(rank)
            self._adopt(run, team)
        elif there:
            self.do(run, team.gang.renewed(rank, now))
            self.tell_limit(team, rank)
        else:
            last = team.gang.last(rank)
            restarted = last is not None and rebooted(last.boot_id, boot)
            self.do(run, team.gang.absent(rank, now, restarted=restarted))

    def _lose_member(self, member: str, how: RunExit) -> None:
        run, rank = self.members[member]
        team = self.teams[run]
        if team.whole:
            self.do(run, team.gang.lost(rank, how, self._clock()))
            return
        before = team.found.pop(rank, None)
        if before is not None and before.exit is not None:
            how = replace(before.exit, released=True)
        team.lost[rank] = how
        team.unmet.discard(rank)
        self._adopt(run, team)

    def _adopt(self, run: str, team: Team) -> None:
        """If all of its nodes have been met, or are lost."""
        if team.unmet or team.expected is None:
            return
        known = team.expected
        orders = team.gang.adopt(
            team.found,
            team.lost,
            began=known.began,
            stopping=known.stopping,
            frozen=known.frozen,
            restarted=team.restarted,
            now=self._clock(),
        )
        team.found, team.lost = {}, {}
        self.do(run, orders)
        for rank in range(len(team.places)):
            self.tell_limit(team, rank)

    def _leave(self, port: NodePort, status: RunStatus) -> None:
        """What was given up with its node is there again: it is ended."""
        key = (port.name, status.run)
        if gone(status):
            self._leftovers.pop(key, None)
            self._outbox.tell(port.name, partial(port.acknowledge, status.run))
        elif key not in self._leftovers:
            log.warning("run %s goes on at node %s, which was given up: it is ended", status.run, port.name)
            self._leftovers[key] = ""
            self._outbox.tell(port.name, partial(port.stop, status.run, reason=EndReason.NODE, grace_s=0.0))
        if key in self._leftovers and status.exit is not None:
            self._leftovers[key] = status.exit.message

    # What gangs want

    def do(self, run: str, orders: Iterable[Order]) -> None:
        """Do what an attempt's gang says."""
        team = self.teams[run]
        for order in orders:
            match order:
                case Tell(status):
                    self._say(status)
                case ReadLog(rank):
                    self._read_log(run, rank)
                case _:
                    self._tell(team, order)
        due = team.gang.due_s
        if due is None:
            self.dues.pop(run, None)
        else:
            self.dues[run] = due

    def tell_limit(self, team: Team, rank: int) -> None:
        """Its time limit, if it was changed."""
        run, node = team.places[rank]
        port = self.nodes.get(node)
        if team.limit is not None and port is not None and team.gang.alive(rank):
            self._outbox.tell(node, partial(port.limit, run, *team.limit))

    def _tell(self, team: Team, order: Start | Go | Stop | Freeze | Thaw) -> None:
        run, node = team.places[order.rank]
        port = self.nodes.get(node)
        if port is None:  # it is lost in a moment, or comes again: then it is told anew
            return
        match order:
            case Start(rank):
                message = partial(port.start, team.specs[rank])
            case Go():
                message = partial(port.go, run)
            case Stop(_, reason, grace_s):
                message = partial(port.stop, run, reason=reason, grace_s=grace_s)
            case Freeze():
                message = partial(port.freeze, run)
            case Thaw():
                message = partial(port.thaw, run)
        self._outbox.tell(node, message)

    @property
    def epoch_now(self) -> float:
        """Now, since the epoch."""
        return self._epoch_s + self._clock()


def named(node: str, status: RunStatus) -> RunStatus:
    """The status of a run that nobody asked for, with its node."""
    name = run_name_of(status.run)
    return replace(status, members=(MemberStatus(0 if name is None else name.member, node, status),))


def rebooted(before: str | None, now: str) -> bool:
    """Whether a machine was restarted between these boot ids; '' and None: not known, so it counts as not."""
    return bool(before and now) and before != now
