"""A policy that forgets: what only its caches knew is lost, at chosen calls."""

import pickle
from typing import Any

from gpuloom.core.decision import Decision
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.base import Policy


class Forgetful(Policy):
    """A policy that is replaced by a fresh one at chosen calls; only its memory goes on.

    through_store: its memory is written down and read again. calm: not where jobs ended or nodes came and went.
    """

    id = "forgetful"

    def __init__(self, text: str, at: frozenset[int], *, through_store: bool = False, calm: bool = False) -> None:
        self._text, self._at, self._calls, self._store, self._calm = text, at, 0, through_store, calm
        self._inner = load_policy(text)
        self.stands_for(self._inner)
        self.replaced = 0

    def new_memory(self, workload: Workload, cluster: Any) -> Any:
        return self._inner.new_memory(workload, cluster)

    def sharing(self, workload: Workload) -> Sharing | None:
        return self._inner.sharing(workload)

    def saved(self, memory: Any) -> str | None:
        return self._inner.saved(memory)

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        self._calls += 1
        stirred = snapshot.finished or snapshot.evicted or snapshot.nodes_down or snapshot.nodes_up
        if self._calls in self._at and not (self._calm and stirred):
            self._inner = load_policy(self._text)
            self.replaced += 1
            if self._store:
                memory = pickle.loads(pickle.dumps(memory))
        return self._inner.decide(snapshot, memory)
