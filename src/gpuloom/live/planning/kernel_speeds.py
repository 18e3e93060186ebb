"""What is expected of jobs beside each other by their kernel profiles: computed aside, as no decision waits for it.

A pair takes a second or so in the rule's own simulator (`sharing/expected.py`). So long it is not formed; where it has
been formed, or takes longer than `PATIENCE_S` because many pairs come at once, the policy goes by its number for all
pairs. Then planning is told, and the next decision goes by what was found.

A service's load is what its user said. Else it is half busy, until the shim has counted its requests for a while: then
the pairs are computed for that load, to the next ten per cent, and count once they are known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.kernel_load import Load, profile_and_load
from gpuloom.core.kernel_pairs import Beside, KernelPairs, kinds_of
from gpuloom.core.share_class import HIGH
from gpuloom.sharing.expected import busy_share, expected, profile_of
from gpuloom.sharing.profiles import KernelProfile
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.scheduler")

AGAIN_S = 60.0
"""A pair of which nothing could be found out is tried again after so long: its profile may be there by then."""
PATIENCE_S = 30.0
"""For so long a job waits for what is expected of it."""
LOOK_S = 60.0
"""How often the requests of services are looked at."""
LEAST_LOAD, MOST_LOAD = 0.1, 0.9
TOLD_EVERY = 10
"""While many pairs are computed, planning is told after so many."""

Pair = tuple[str, str]
"""Profile and load of a service, and profile of a best-effort job."""


class KernelSpeeds:
    """From any thread.

    Args:
        news: called from a thread of its own when more is known. None: nothing is computed, and no thread started.
        rates: requests per second of services that run, by job.
        read: profile and load of what a job says. compute: what is expected of a pair; both may raise GpuloomError.

    Attributes:
        problems: why nothing is known of a pair, by its profiles.
    """

    def __init__(
        self,
        news: Callable[[], None] | None = None,
        *,
        rates: Callable[[], Mapping[int, float]] = dict,
        read: Callable[[str], tuple[KernelProfile, Load | None]] = profile_of,
        compute: Callable[[KernelProfile, KernelProfile, Load | None], Beside] = expected,
    ) -> None:
        self._news, self._rates, self._read, self._compute = news, rates, read, compute
        self._loads: dict[int, float] = {}
        """Measured, of services by job."""
        self._services: dict[int, str] = {}
        """Profiles of services whose load nobody has said, by job."""
        self._trainings: tuple[str, ...] = ()
        self._known: dict[Pair, Beside] = {}
        self._failed_s: dict[Pair, float] = {}
        self._wanted: dict[Pair, float] = {}
        """Since when; the one that is computed now among them."""
        self.problems: dict[Pair, str] = {}
        self._lock, self._wake, self._ended = threading.Lock(), threading.Event(), False
        self._worker = Worker("kernel pairs", self._work)

    def of(self, jobs: Sequence[int], profiles: Sequence[str], classes: Sequence[str]) -> KernelPairs | None:
        """What is known now of jobs by their kernel profiles ('' for none) and classes; the rest is computed from now
        on. None: no two of them can be a pair."""
        unsaid = {
            job: profile
            for job, profile, klass in zip(jobs, profiles, classes, strict=True)
            if klass == HIGH and profile and profile_and_load(profile)[1] is None
        }
        loads = self._loads
        loaded = [
            _with_load(profile, loads[job]) if job in unsaid and job in loads else profile
            for job, profile in zip(jobs, profiles, strict=True)
        ]
        of_job, kinds, able = kinds_of(loaded, classes)
        if not able:
            return None
        self._services, self._trainings = unsaid, tuple({kinds[two]: None for _, two in able})
        pairs = {(one, two): (kinds[one], kinds[two]) for one, two in able}
        with self._lock:
            now_s = time.monotonic()
            known = {kind: self._known[pair] for kind, pair in pairs.items() if pair in self._known}
            for pair in pairs.values():
                if pair not in self._known and now_s - self._failed_s.get(pair, -AGAIN_S) >= AGAIN_S:
                    self._wanted.setdefault(pair, now_s)
            patient = [kind for kind, pair in pairs.items() if now_s - self._wanted.get(pair, -PATIENCE_S) < PATIENCE_S]
            work = bool(self._wanted)
        works = work and self._news is not None and self._worker.start()
        self._wake.set()
        return KernelPairs(of_job, kinds, known, frozenset(patient) if works else frozenset())

    def close(self) -> None:
        """Compute nothing more."""
        self._ended = True
        self._wake.set()

    def _work(self) -> None:
        look_s = time.monotonic() + LOOK_S
        while not self._ended:
            self._wake.wait(max(look_s - time.monotonic(), 0.0))
            self._wake.clear()
            if time.monotonic() >= look_s:  # however often it was woken since
                self._measure()
                look_s = time.monotonic() + LOOK_S
            done = 0
            while not self._ended and (pair := next(iter(self._wanted), None)) is not None:
                try:
                    self._find(pair)
                finally:
                    with self._lock:
                        del self._wanted[pair]
                done += 1
                if done % TOLD_EVERY == 0 or not self._wanted:
                    self._tell()  # of failures as well: nobody waits for these pairs any more

    def _tell(self) -> None:
        if self._news is not None:
            self._news()

    def _measure(self) -> None:
        """Look how busy services are, and find out what that means before it counts."""
        rates, services, found = self._rates(), self._services, {}
        for job, profile in services.items():
            if job in rates and (share := self._share(profile, rates[job])) is not None:
                found[job] = share
        changed = {job: share for job, share in found.items() if self._loads.get(job) != share}
        if not changed:
            return
        for pair in {(_with_load(services[job], found[job]), two) for job in changed for two in self._trainings}:
            if pair not in self._known:
                self._find(pair)
        self._loads = found
        self._tell()

    def _share(self, profile: str, rate: float) -> float | None:
        """Share of the time that a service is busy, to the next tenth; None: there is no profile to know it by."""
        try:
            service, _ = self._read(profile)
        except InputError:  # told where pairs are computed
            return None
        try:
            return min(max(round(busy_share(service, Load(None, rate)), 1), LEAST_LOAD), MOST_LOAD)
        except InputError:  # more than it can serve by its profile
            return MOST_LOAD

    def _find(self, pair: Pair) -> None:
        try:
            (service, load), (best_effort, _) = self._read(pair[0]), self._read(pair[1])
            found = self._compute(service, best_effort, load)
        except GpuloomError as error:
            with self._lock:
                if self.problems.get(pair) != str(error):
                    log.warning("%s beside %s: nothing is expected of the pair: %s", *pair, error)
                self.problems[pair], self._failed_s[pair] = str(error), time.monotonic()
            return
        with self._lock:
            self._known[pair] = found
            self.problems.pop(pair, None)


def _with_load(profile: str, share: float) -> str:
    return f"{profile}:{share:.0%}"
