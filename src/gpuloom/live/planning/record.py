"""What is written down of the policy: its memory now and then, that it fails, that it works again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from gpuloom.live.planning.asking import Asking, Call, PolicyFailure
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.policy_memory import memory_to_bytes
from gpuloom.live.records.ledger import Ledger
from gpuloom.store.errors import StoreError

log = logging.getLogger("gpuloom.scheduler")

SAVE_MEMORY_S = 15.0


class PolicyRecord:
    """Used by the scheduler's thread alone.

    Attributes:
        unsaved: the policy has decided since its memory was last written down, at `saved_s`.
    """

    def __init__(self, planning: Planning, ledger: Ledger, again: Callable[[], None]) -> None:
        """again: have the scheduler look again at once."""
        self._planning, self._ledger, self._again = planning, ledger, again
        self.unsaved, self.saved_s = False, 0.0
        self._told: dict[str, float] = {}
        """Failures of the policy that are written down: since when."""

    def due_s(self) -> float:
        """When its memory is to be written down next; infinity: there is nothing to write."""
        return self.saved_s + SAVE_MEMORY_S if self.unsaved else math.inf

    def begin(self) -> None:
        """Another policy was set."""
        self._told.clear()
        self.unsaved = True

    def news(self, now: float) -> str:
        """Write down what has become of the policy, and say what is wrong: it fails, its memory can't be written down.

        Raises:
            StoreError: it can't be written down, and will be with the next turn.
        """
        planning, seat = self._planning, self._planning.seat
        standby = seat.standby
        if seat.caught is not None:
            failing = standby.failure
            first = failing is not None and failing.times == 1
            log.error(
                "policy %s failed: %s",
                seat.written,
                seat.caught,
                exc_info=seat.caught if first else None,
            )
            seat.caught = None
        for kind, failure in (("failure", standby.failure), ("unwritten", standby.unwritten)):
            if failure is None:
                self._told.pop(kind, None)
            elif self._told.get(kind) != failure.since_s:
                self._ledger.write([("policy.failed", None, failure.to_json())])
                self._told[kind] = failure.since_s
        if (over := standby.recovered(now)) is not None:
            self._ledger.write([("policy.recovered", None, {**over.to_json(), "serves": seat.written})])
            self._told.pop("failure", None)
            standby.reset()
        texts = [f"no decision can be made: {planning.failure}"] if planning.failed else []
        for failure in (standby.failure, standby.unwritten):
            if failure is not None:
                texts.append(failure.text(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(failure.since_s))))
        return "; ".join(texts)

    def save(self, now: float, *, force: bool = False) -> str:
        """Write down the policy's memory if it is time to; why the store can't do so, '' if it could."""
        if not self.unsaved or not (force or now >= self.saved_s + SAVE_MEMORY_S):
            return ""
        self.saved_s, self.unsaved = now, False
        planning, seat = self._planning, self._planning.seat
        if seat.standby.serving:
            return ""  # the fallback's is of no use, and the policy's is as it was
        try:
            with Asking(Call.WRITE_MEMORY, planning.policy):
                memory = memory_to_bytes(planning.worlds.memory(), planning.policy)
        except PolicyFailure as how:
            seat.standby.cannot_write(seat.written, how, now)
            self._again()  # a turn, in which it is said
            return ""
        seat.saved, seat.standby.unwritten = memory, None
        try:
            self._ledger.store.save_memory(seat.written, memory)
        except StoreError as error:
            self.unsaved = True
            return str(error)
        return ""
