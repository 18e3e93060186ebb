"""How an attempt on several nodes starts, freezes and ends: a machine without a clock and without a connection.

What happens to the members goes in, what is to be done comes out as orders. Rules:

- All members are prepared before any of them begins. One that can't be has the others stopped at once.
- The attempt runs, or stands still, when all members do that have not ended.
- The first member that ends badly decides how the attempt ends; the others are told to end, reason PEER.
- Exit 0 of the master (rank 0) ends it well once the others have ended well. They have the grace period for it, from
  when all are known to have begun; then they are stopped, reason PEER, and that does not count against them.
- After it was told to end, the end of its master counts; but one whose master had ended well before has only ended well
  if no other member was stopped by that.
- A member that goes with its node while the others end by themselves is what made them end: then that is the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.gang_ends import BEGINNING, gone, good, message_of, ran, spoils, unseen_end
from gpuloom.executors.orders import Freeze, Go, Order, ReadLog, Start, Stop, Tell, Thaw
from gpuloom.executors.port import Cause, MemberStatus, RunExit, RunPhase, RunStatus

LOG_WAIT_S = 2.0
"""How long the end of an attempt waits for the last lines of the log that explains it."""
SAME_S = 1e-3
_ORDER = {RunPhase.STARTING: 0, RunPhase.PREPARED: 1}


@dataclass(slots=True)
class _Member:
    """status: what was heard last. asked: it was asked for. lost: its node has gone; nothing is asked of it any more.
    went, froze, deadline: what it was told last; None: nothing of the kind."""

    run: str
    node: str
    status: RunStatus | None = None
    asked: bool = False
    lost: bool = False
    went: bool = False
    froze: bool | None = None
    deadline: float | None = None

    @property
    def phase(self) -> RunPhase:
        return RunPhase.STARTING if self.status is None else self.status.phase

    @property
    def exit(self) -> RunExit | None:
        return None if self.status is None else self.status.exit

    @property
    def over(self) -> bool:
        """It has ended, or is not there and was not asked for."""
        return self.phase is RunPhase.EXITED or (self.status is None and not self.asked)


class Gang:
    """Times are seconds on any clock that does not go back, the same for all calls; of exits, since the epoch."""

    def __init__(
        self,
        run: str,
        members: Sequence[tuple[str, str]],
        grace_s: float,
        epoch_s: float = 0.0,
        *,
        apart: bool = False,
    ) -> None:
        """members: (run, node) of each, in the order of ranks. grace_s: the job's, between notice and end. epoch_s:
        what the clock's 0 is, in seconds since the epoch. apart: once all have begun, the end of one is nothing to the
        others, be it good or bad."""
        self.run, self.grace_s, self._epoch_s, self._apart = run, grace_s, epoch_s, apart
        self._members = [_Member(*one) for one in members]
        self._phases = Counter[RunPhase | None]({None: len(self._members)})
        """How many members are in each phase; None: nothing was heard of them."""
        self._went = 0
        """How many members were told to begin."""
        self._wanted = False
        """It was asked for."""
        self._begun = False
        """All members were prepared, and told to begin."""
        self._decided: int | None = None
        """The rank whose end decided; its exit is the attempt's."""
        self._stop: tuple[EndReason, float] | None = None
        """Told from outside to end: why, and by when."""
        self._keep = 0
        """So many members, from the first on, go on in the next attempt."""
        self._stopped = False
        """It was told so, by us or by the scheduler before."""
        self._peers_end_s: float | None = None
        """By when those that are left are to end."""
        self._patience_s: float | None = None
        """After the master's good end, and once all others have begun: until when they may take."""
        self._still = False
        """It is to stand still."""
        self._log: str | None = None
        """The last lines of the log that explains its end; None: they are being read, or not wanted."""
        self._log_due_s: float | None = None
        self._ended_s = 0.0
        self._final: RunExit | None = None
        """How it ended, as it was told: it ends once."""
        self._told: RunStatus | None = None

    # What happens

    def start(self, now: float) -> list[Order]:
        """It is asked for, maybe again: members that are there are taken as they are."""
        self._wanted = True
        orders: list[Order] = []
        if not self._ending:
            for rank, member in enumerate(self._members):
                if member.status is None and not member.lost:
                    member.asked = True
                    orders.append(Start(rank))
        return orders + self._step(now)

    def adopt(
        self,
        found: Mapping[int, RunStatus],
        lost: Mapping[int, RunExit],
        *,
        began: bool,
        stopping: bool,
        frozen: bool,
        restarted: Collection[int],
        now: float,
    ) -> list[Order]:
        """It was started by the scheduler before. found: what its nodes know of its members, by rank. lost: members on
        nodes that are gone. began, stopping, frozen: as the records have it. restarted: ranks whose machines
        were, since they began."""
        self._stopped, self._still = self._stopped or stopping, frozen
        self._begun = began or any(ran(status) for status in found.values())
        for rank, how in lost.items():
            self._members[rank].lost = True
            self._take(rank, RunStatus(self._members[rank].run, RunPhase.EXITED, exit=how), now)
        # What ended by itself comes first: of what was ended as a peer, the scheduler before knew why.
        ends = {rank: status.exit for rank, status in found.items() if status.exit is not None}
        peers = [rank for rank, how in ends.items() if how.reason is EndReason.PEER]
        for rank in sorted(ends.keys() - set(peers), key=lambda rank: ends[rank].at_s):
            self._take(rank, found[rank], now)
        if began:
            for rank, member in enumerate(self._members):
                if member.status is None and rank not in found:
                    self._take(rank, self._unseen(member, now, restarted=rank in restarted), now)
        for rank in (*peers, *(found.keys() - ends.keys())):
            self._take(rank, found[rank], now)
        living = self._living()
        if living and all(member.phase is RunPhase.FROZEN for member in living):
            self._still = True
        return self._step(now)

    def heard(self, rank: int, status: RunStatus, now: float) -> list[Order]:
        """The node of a member says something of it, maybe late or again."""
        member = self._members[rank]
        if member.lost:
            return []
        before = member.status
        if before is not None:
            if before.phase is RunPhase.EXITED and (status.phase is not RunPhase.EXITED or gone(before)):
                return []
            if _ORDER.get(status.phase, 2) < _ORDER.get(before.phase, 2):
                return []
        self._take(rank, status, now)
        return self._step(now)

    def absent(self, rank: int, now: float, *, restarted: bool) -> list[Order]:
        """The node of a member was met anew and does not know it. restarted: its machine was."""
        member = self._members[rank]
        if member.lost or member.over:
            return []
        if member.status is None:  # asked for, and nothing was heard: the request was lost, or the answer
            orders: list[Order] = [] if self._ending else [Start(rank)]
            if self._ending:
                member.asked = False
            return orders + self._step(now)
        self._take(rank, self._unseen(member, now, restarted=restarted), now)
        return self._step(now)

    def renewed(self, rank: int, now: float) -> list[Order]:
        """The node of a member was met anew: what it was told may not have come through."""
        member = self._members[rank]
        self._went -= member.went
        member.went, member.froze, member.deadline = False, None, None
        return self._step(now)

    def lost(self, rank: int, how: RunExit, now: float) -> list[Order]:
        """The node of a member is gone. how: the end of what ran there."""
        member = self._members[rank]
        if member.lost:
            return []
        member.lost = True
        if member.exit is not None:  # what was left of it is gone as well
            assert member.status is not None  # noqa: S101 - it has an exit
            member.status = replace(member.status, exit=replace(member.exit, released=True))
        elif not member.over or not self._ending:  # else nobody waits for it
            before = member.status or RunStatus(member.run, RunPhase.EXITED)
            self._take(rank, replace(before, phase=RunPhase.EXITED, exit=how), now)
        return self._step(now)

    def stop(self, reason: EndReason, grace_s: float, now: float) -> list[Order]:
        """It is to end. Asked again with less grace, the earlier deadline counts."""
        deadline = now + grace_s
        if self._stop is not None:
            reason, deadline = self._stop[0], min(deadline, self._stop[1])
        self._stop, self._stopped, self._keep = (reason, deadline), True, 0
        return self._step(now)

    def resize(self, keep: int, grace_s: float, now: float) -> list[Order]:
        """It is to end, and its first `keep` members go on in the next attempt, if all is well with it."""
        well = self._begun and self._stop is None and self._decided is None and self._peers_end_s is None
        if not well or any(member.phase is not RunPhase.RUNNING for member in self._members):
            return self.stop(EndReason.PREEMPTED, grace_s, now)
        self._stop, self._stopped, self._keep = (EndReason.PREEMPTED, now + grace_s), True, keep
        return self._step(now)

    def freeze(self, now: float) -> list[Order]:
        """It is to stand still; one that is starting does so as soon as it runs."""
        return self._stand(True, now)

    def thaw(self, now: float) -> list[Order]:
        """It is to go on."""
        return self._stand(False, now)

    def log_read(self, text: str, now: float) -> list[Order]:
        """The last lines of the log that was asked for; '' for none."""
        self._log = text
        return self._step(now)

    def look(self, now: float) -> list[Order]:
        """The time has come that `due_s` names."""
        return self._step(now)

    @property
    def due_s(self) -> float | None:
        """When to `look`; None: not needed."""
        times = (self._patience_s, self._log_due_s if self._log is None else None)
        return min((at for at in times if at is not None), default=None)

    # What is known

    @property
    def status(self) -> RunStatus:
        """Of the attempt: the process is its master's."""
        phase = self._phase()
        master = self._members[0].status
        how = self._exit() if phase is RunPhase.EXITED else None
        members = tuple(
            MemberStatus(rank, one.node, one.status or RunStatus(one.run, RunPhase.STARTING))
            for rank, one in enumerate(self._members)
        )
        if master is None or not self._begun:
            return RunStatus(self.run, phase, exit=how, members=members)
        process = (master.pid, master.start_ticks, master.boot_id)
        restarts = sum(one.status.restarts for one in members)
        return RunStatus(self.run, phase, *process, how, members, pod=master.pod, restarts=restarts)

    @property
    def known(self) -> bool:
        """Whether anything is known of any member, or was asked for."""
        return self._wanted or any(member.status is not None for member in self._members)

    def is_lost(self, rank: int) -> bool:
        """Whether this member was given up with its node."""
        return self._members[rank].lost

    def last(self, rank: int) -> RunStatus | None:
        """What was heard of this member last."""
        return self._members[rank].status

    def alive(self, rank: int) -> bool:
        """Whether this member is there, or was asked for, and has not ended."""
        member = self._members[rank]
        return not member.lost and not member.over

    # How it ends

    @property
    def _well(self) -> bool:
        """What decided is the master's good end."""
        how = None if self._decided is None else self._members[self._decided].exit
        return how is not None and self._decided == 0 and good(how)

    @property
    def _ending(self) -> bool:
        """Those that are left are to end now."""
        return self._stopped or (self._decided is not None and not self._well) or self._peers_end_s is not None

    def _living(self) -> list[_Member]:
        return [member for member in self._members if not member.over]

    def _take(self, rank: int, status: RunStatus, now: float) -> None:
        member = self._members[rank]
        first = member.exit is None
        self._phases[None if member.status is None else member.status.phase] -= 1
        self._phases[status.phase] += 1
        member.status = status
        if status.exit is not None and first:
            self._ended(rank, status.exit, now)

    def _ended(self, rank: int, how: RunExit, now: float) -> None:
        if self._stopped or (self._apart and self._begun and how.reason is not EndReason.NOT_STARTED):
            return
        if self._decided is None:
            if not good(how):
                self._end_peers(rank, now)
            elif rank == 0:
                self._decided = 0
        elif self._well:
            if spoils(self._members[rank].status):
                self._end_peers(rank, now)
        elif how.reason is EndReason.NODE:
            before = self._members[self._decided].exit
            if before is not None and before.reason is None:  # it ended because this one was gone
                self._decided, self._log = rank, ""

    def _end_peers(self, rank: int, now: float) -> None:
        how = self._members[rank].exit
        assert how is not None  # noqa: S101 - it has just ended
        self._decided, self._patience_s = rank, None
        began = self._begun and how.reason is not EndReason.NOT_STARTED
        end_s = now + (self.grace_s if began else 0.0)
        self._peers_end_s = end_s if self._peers_end_s is None else min(end_s, self._peers_end_s)
        explains = began and how.reason in (None, EndReason.OUT_OF_MEMORY)
        self._log, self._log_due_s = (None, None) if explains else ("", None)

    def _unseen(self, member: _Member, now: float, *, restarted: bool) -> RunStatus:
        how = unseen_end(self._epoch_s + now, begun=self._begun, restarted=restarted)
        return replace(member.status or RunStatus(member.run, RunPhase.EXITED), phase=RunPhase.EXITED, exit=how)

    @property
    def _decider(self) -> int:
        """Whose end is the gang's. One that was told to stop ends as its master did; but if the master ended well by
        itself, before it was told, a member that failed by itself decides, or else one that was stopped."""
        if self._decided is not None and not self._well:
            return self._decided
        master = self._members[0].exit
        if master is None or not good(master):
            return 0
        bad = [rank for rank, member in enumerate(self._members) if spoils(member.status)]
        return min(bad, key=lambda rank: (not self._by_itself(rank), rank), default=0)

    def _by_itself(self, rank: int) -> bool:
        how = self._members[rank].exit
        return how is not None and how.reason is None

    def _exit(self) -> RunExit:
        """How it ended, once all members have."""
        released = all(member.exit.released for member in self._members if member.exit is not None)
        if self._final is not None:
            return replace(self._final, released=self._final.released or released)
        ends = [member.exit for member in self._members if member.exit is not None]
        rank = self._decider
        how, text = self._members[rank].exit, ""
        if self._decided is None and (how is None or not self._begun):  # it was told to end before it began
            told = [end.reason for end in ends if end.reason not in (None, EndReason.PEER)]
            reason = self._stop[0] if self._stop is not None else next(iter(told), EndReason.LOST)
            how, text = RunExit(None, None, reason, "", 0.0), "it was stopped before it began"
            if reason is EndReason.NOT_STARTED:  # what kept a member from starting is to blame, not the job
                causes = [end.cause for end in ends if end.reason is reason and end.cause is not Cause.NONE]
                how = replace(how, cause=next(iter(causes), Cause.EXECUTOR))
        elif how is None:
            raise AssertionError("unreachable: who decided has ended")
        elif (
            how.reason in (EndReason.LOST, EndReason.PEER) and not self._begun
        ):  # whatever became of it: none was told to begin
            how = replace(how, reason=EndReason.NOT_STARTED, cause=Cause.EXECUTOR)
            text = message_of(rank, self._members[rank].node, how, "")
        elif how.reason is EndReason.PEER:
            # Who decided then is not known any more: only a lost node takes its members' ends with it.
            how = RunExit(None, None, EndReason.NODE, "", how.at_s, cause=Cause.NODE)
            text = "a node of it was lost, and its other members were ended"
        elif not good(how) and (self._decided is not None or rank or how.message):
            text = message_of(rank, self._members[rank].node, how, self._log or "")
        peaks = [end.peak_memory_mib for end in ends if end.peak_memory_mib is not None]
        used = [end.cpu_s for end in ends if end.cpu_s is not None]
        return replace(
            how,
            message=text,
            at_s=max((end.at_s for end in ends), default=self._ended_s),
            peak_memory_mib=max(peaks, default=None),
            cpu_s=sum(used) if used else None,
            released=released,
            member=rank,
        )

    # What is to be done

    def _stand(self, still: bool, now: float) -> list[Order]:
        self._still = still
        self._patience_s = None  # who stands still can't end
        for member in self._members:
            if (member.phase is RunPhase.FROZEN) != still:
                member.froze = None  # asked again
        return self._step(now)

    @property
    def _waits(self) -> bool:
        """It starts, and nothing is to be done before more is heard. Without a look at each member: there may be
        many, and each says two things."""
        if self._ending or self._decided is not None:
            return False
        if not self._begun:
            return self._phases[None] + self._phases[RunPhase.STARTING] > 0
        return self._went == len(self._members) and self._phases[RunPhase.PREPARED] > 0

    def _step(self, now: float) -> list[Order]:
        if self._waits:
            return []
        orders: list[Order] = []
        living = self._living()
        if living:
            self._ended_s = self._epoch_s + now
        self._be_patient(living, now)
        if self._ending:
            orders += self._stops(now)
        elif not self._begun:
            self._begun = True
        if self._begun and not self._ending:
            orders += self._goes()
            orders += self._stills()
        if self._decided is not None and self._log is None and not self._well:
            if self._log_due_s is None:
                self._log_due_s = now + LOG_WAIT_S
                orders.append(ReadLog(self._decided))
            elif now >= self._log_due_s:
                self._log = ""
        return orders + self._tells()

    def _be_patient(self, living: Sequence[_Member], now: float) -> None:
        """After the master's good end."""
        if not self._well or self._ending or self._still or self._apart or not living:
            self._patience_s = None
        elif self._patience_s is None and not any(member.phase in BEGINNING for member in living):
            self._patience_s = now + self.grace_s
        elif self._patience_s is not None and now >= self._patience_s:
            self._patience_s, self._peers_end_s = None, now + self.grace_s

    def _stops(self, now: float) -> list[Order]:
        wanted: list[tuple[EndReason, float]] = [] if self._stop is None else [self._stop]
        if self._peers_end_s is not None:
            wanted.append((EndReason.PEER, self._peers_end_s))
        if not wanted:
            return []
        reason, deadline = min(wanted, key=lambda one: one[1])
        orders: list[Order] = []
        for rank, member in enumerate(self._members):
            if not member.over and (member.deadline is None or deadline < member.deadline - SAME_S):
                member.deadline = deadline
                grace_s = max(deadline - now, 0.0) if self._begun else 0.0
                orders.append(Stop(rank, EndReason.RESIZED if rank < self._keep else reason, grace_s))
        return orders

    def _goes(self) -> list[Order]:
        orders: list[Order] = []
        for rank, member in enumerate(self._members):
            if member.phase is RunPhase.PREPARED and not member.went:
                member.went = True
                self._went += 1
                orders.append(Go(rank))
        return orders

    def _stills(self) -> list[Order]:
        living = self._living()
        if any(member.phase in BEGINNING for member in living):
            return []
        orders: list[Order] = []
        for rank, member in enumerate(self._members):
            if member.over:
                continue
            if self._still and member.phase is RunPhase.RUNNING and member.froze is not True:
                member.froze = True
                orders.append(Freeze(rank))
            elif not self._still and member.froze is not False and (member.phase is RunPhase.FROZEN or member.froze):
                member.froze = False
                orders.append(Thaw(rank))
        return orders

    def _phase(self) -> RunPhase:
        living = self._living()
        if not living and self.known and not self._missing:
            return RunPhase.STOPPING if self._log_wanted else RunPhase.EXITED
        if self._ending:
            return RunPhase.STOPPING
        phases = {member.phase for member in living}
        if not self._begun or phases & BEGINNING or self._missing:
            return RunPhase.STARTING
        if len(phases) == 1:
            return phases.pop()
        if RunPhase.STOPPING in phases:
            return RunPhase.STOPPING
        before = None if self._told is None else self._told.phase
        if before in (RunPhase.RUNNING, RunPhase.FROZEN):
            return before
        return RunPhase.FROZEN if self._still else RunPhase.RUNNING

    @property
    def _missing(self) -> bool:
        """Members are neither there nor asked for, and it is not to end: it has to be asked for again."""
        return not self._ending and any(m.status is None and not m.asked for m in self._members)

    @property
    def _log_wanted(self) -> bool:
        return self._decided is not None and not self._well and self._log is None

    def _tells(self) -> list[Order]:
        phase, told = self._phase(), self._told
        restarted = told is not None and any(one.status and one.status.restarts for one in self._members)
        alike = told is not None and phase is told.phase and phase is not RunPhase.EXITED
        if not self.known or (alike and not restarted):
            return []
        status = self.status
        if told is not None and (status.phase, status.exit, status.restarts) == (told.phase, told.exit, told.restarts):
            return []
        if status.phase is RunPhase.STARTING and (self._told is None or self._told.phase is RunPhase.STARTING):
            return []
        self._told, self._final = status, status.exit
        return [Tell(status)]
