"""What is there of each attempt, kept up to date object by object, and of which attempts something has changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from gpuloom.executors.kubernetes.pods import Group, Job, Pod, job_of_adopted
from gpuloom.executors.kubernetes.wanted import Seen

T = TypeVar("T")


class There:
    """Whoever uses it locks it.

    Attributes:
        touched: attempts of which something has changed; whoever looks at them empties it.
    """

    def __init__(self) -> None:
        self.touched: set[str] = set()
        self._pods: dict[str, dict[str, Pod]] = {}
        """By attempt, as their labels say, and uid."""
        self._of_job: dict[str, dict[str, Pod]] = {}
        """Of Jobs whose pods may go on in the next attempt: by the uid of the Job, and theirs."""
        self._made_by: dict[str, str] = {}
        """By the uid of such a pod, that of the Job that has made it."""
        self._jobs: dict[str, dict[str, Job]] = {}
        """By attempt and uid: one may be going away when the next one of its name is there."""
        self._groups: dict[str, Group] = {}
        """By the uid of their Job."""
        self._attempt_of: dict[str, str] = {}
        """By the uid of its Job. Of one that is gone, as long as pods of it are there that might have gone on in the
        next attempt: their labels may still be those of the attempt before."""
        self._left: dict[str, str] = {}
        """By attempt, the uid of its Job that is gone while such pods are there."""

    def pod(self, before: Pod | None, after: Pod | None) -> None:
        """A pod has come, changed or gone."""
        if before is not None:
            stays = after is not None and after.attempt == before.attempt
            self._lost(self._pods, before.attempt, before.uid, stays=stays)
            job = self._job_of(before)
            self.touched |= {before.attempt, self._attempt_of.get(job, before.attempt)}
            if after is None and before.uid in self._of_job.get(job, ()):
                self._lost(self._of_job, job, before.uid, stays=False)
                self._made_by.pop(before.uid, None)
                attempt = self._attempt_of.get(job, "")
                if job not in self._of_job and self._left.get(attempt) == job:
                    del self._left[attempt], self._attempt_of[job]
        if after is not None:
            self._pods.setdefault(after.attempt, {})[after.uid] = after
            if after.in_place and after.job:
                self._made_by[after.uid] = after.job
            job = self._job_of(after)
            if after.in_place and job:
                self._of_job.setdefault(job, {})[after.uid] = after
            self.touched |= {after.attempt, self._attempt_of.get(job, after.attempt)}

    def _job_of(self, pod: Pod) -> str:
        """The uid of the Job that has made it, though somebody may have made an orphan of it since."""
        return self._made_by.get(pod.uid, pod.job)

    def job(self, before: Job | None, after: Job | None) -> None:
        """A Job has come, changed or gone."""
        if before is not None:
            stays = after is not None and after.attempt == before.attempt
            self._lost(self._jobs, before.attempt, before.uid, stays=stays)
            self.touched.add(before.attempt)
            if after is None and before.uid in self._of_job:
                self._left[before.attempt] = before.uid
            elif after is None:
                self._attempt_of.pop(before.uid, None)
        if after is not None:
            self._jobs.setdefault(after.attempt, {})[after.uid] = after
            self._attempt_of[after.uid] = after.attempt
            self.touched.add(after.attempt)

    def group(self, before: Group | None, after: Group | None) -> None:
        """A PodGroup has come, changed or gone; it may come before its Job is seen."""
        for one in (before, after):
            if one is not None and one.owner in self._attempt_of:
                self.touched.add(self._attempt_of[one.owner])
        if before is not None and self._groups.get(before.owner) == before:
            del self._groups[before.owner]
        if after is not None:
            self._groups[after.owner] = after

    def of(self, attempt: str) -> Seen:
        """All that is there of an attempt; of two Jobs the one that came last. A pod that may go on in another attempt
        is of that of its Job, while that is there."""
        job = next(reversed(self._jobs.get(attempt, {}).values()), None)
        named = self._pods.get(attempt, {}).values()
        if job is not None and job.in_place:
            members = len(job.members)
            pods = _by_rank(pod for pod in self._of_job.get(job.uid, {}).values() if pod.rank < members)
        else:
            left = self._left.get(attempt) if job is None else None
            of_job = () if left is None else self._of_job.get(left, {}).values()
            mine = (pod for pod in named if self._attempt_of.get(self._job_of(pod), attempt) == attempt)
            pods = _by_rank((*of_job, *mine))
        alone = (pod for pod in pods.values() if pod.adopted and not pod.in_place)
        if job is None and (adopted := next(alone, None)) is not None:
            job = job_of_adopted(adopted)
        return Seen(job, None if job is None else self._groups.get(job.uid), pods)

    def _lost(self, kept: dict[str, dict[str, T]], attempt: str, uid: str, *, stays: bool) -> None:
        if stays:
            return
        of_attempt = kept.get(attempt, {})
        of_attempt.pop(uid, None)
        if not of_attempt:
            kept.pop(attempt, None)


def _by_rank(pods: Iterable[Pod]) -> dict[int, Pod]:
    """Of two pods of a rank the one that came last; but before one that waits at its gate, one whose end is still to be
    taken down: Indexed Jobs make another one meanwhile."""
    found: dict[int, Pod] = {}
    for pod in pods:
        before = found.get(pod.rank)
        if before is not None and before.gated != pod.gated:
            begun, waits = (pod, before) if before.gated else (before, pod)
            pod = begun if begun.held or not begun.over else waits
        found[pod.rank] = pod
    return found
