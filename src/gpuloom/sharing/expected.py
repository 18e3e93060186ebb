"""What a service and a best-effort job can expect of each other on one GPU, by their kernel profiles.

The rule's own simulator (`simulate.py`) runs the pair at the service's load, twice with other random arrivals; the
means count. It takes a second or so, and is the same every time, so results are kept in the user's cache, by a hash of
all that they depend on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuloom import __version__
from gpuloom.core.errors import InputError
from gpuloom.core.kernel_load import Load, profile_and_load
from gpuloom.core.kernel_pairs import Beside, KernelPairs, kinds_of
from gpuloom.core.sums import sum_floats
from gpuloom.core.words import plural
from gpuloom.core.workload import Workload
from gpuloom.sharing.find import no_such, read_profile, stored_profile
from gpuloom.sharing.job_profile import is_file_name, job_profile
from gpuloom.sharing.profiles import KernelProfile, dumps
from gpuloom.sharing.shim import compiler, native
from gpuloom.sharing.simulate import Machine, Pair, poisson_arrivals, request_alone_ns

RULE = "gpuloom"
SEEDS = (0, 1)
MOST_REQUESTS, LEAST_REQUESTS = 1000, 100
MOST_KERNELS = 500_000
"""About so many kernels are simulated of a pair at most; of a service with long requests so much fewer of these."""
MOST_THREADS = 8


def expected(service: KernelProfile, best_effort: KernelProfile, load: Load | None) -> Beside:
    """The pair under the rule `gpuloom`: speed and p99 over alone, to three decimals.

    load: of the service; None: half busy.

    Raises:
        InputError: profiles of GPUs of different size, a rate that the service can't serve, or there is no compiler.
    """
    share = busy_share(service, load or Load())
    requests = _requests(service, best_effort, share)
    file = _cache_file(service, best_effort, share, requests)
    known = _kept(file)
    if known is not None:
        return known
    rate = share / (request_alone_ns(service, Machine()) / 1e9)
    runs = [
        Pair(service, best_effort, poisson_arrivals(rate, requests, seed), seed=seed).outcome(RULE) for seed in SEEDS
    ]
    speed = sum_floats(run.best_effort_over_alone for run in runs) / len(runs)
    found = Beside(round(speed, 3), round(sum_floats(run.p99_over_alone for run in runs) / len(runs), 3))
    _keep(file, found)
    return found


def busy_share(service: KernelProfile, load: Load) -> float:
    """Of the time, alone, to three decimals. Raises InputError: the service can't serve that rate."""
    if load.per_s is None:
        return load.share or 0.0
    share = round(load.per_s * request_alone_ns(service, Machine()) / 1e9, 3)
    if share >= 1:
        most = 1e9 / request_alone_ns(service, Machine())
        raise InputError(
            f"kernel profile {service.name}: {load.per_s:g} requests/s, but alone it serves at most {most:.4g}; "
            "give a lower rate"
        )
    return max(share, 0.001)


def profile_of(text: str, workdir: str = "") -> tuple[KernelProfile, Load | None]:
    """The profile and load of what a user writes: a file, or the name of a stored or shipped profile.

    Raises:
        InputError: there is none, or it can't be read.
    """
    try:
        name, load = profile_and_load(text)
    except ValueError as error:
        raise InputError(f"kernel_profile: {error}") from None
    found = job_profile(name, None, workdir)
    if is_file_name(found):
        path = Path(found)
        if not path.is_file():
            raise InputError(f"kernel profile {found}: no such file")
        return read_profile(path), load
    stored = stored_profile(found)
    if stored is None:
        raise no_such(name)
    return stored[0], load


def with_kernel_pairs(
    workload: Workload, read: Callable[[str], tuple[KernelProfile, Load | None]] = profile_of
) -> Workload:
    """The workload with what is expected of its jobs of one GPU beside each other, by their `kernel_profile`; as it is
    where no pair of them is known. read: profile and load of what the column says.

    Raises:
        InputError: a profile that is not there or can't be read, or a service that can't serve its rate.
    """
    if workload.kernel_profile is None or workload.share_class is None:
        return workload
    single = (workload.gpus == 1).tolist()
    rows = range(len(workload))
    of_job, kinds, pairs = kinds_of(
        [workload.kernel_profile[row] if single[row] else "" for row in rows],
        [workload.share_class[row] for row in rows],
    )
    if not pairs:
        return workload
    profiles = [read(kind) for kind in kinds]
    known, odd = _all(profiles, pairs)
    found = KernelPairs(of_job, kinds, known)
    speeds, tails = [pair.speed for pair in known.values()], [pair.p99 for pair in known.values()]
    notes = []
    if known:
        notes.append(
            f"kernel profiles: of {plural(len(known), 'pair')} of kinds, training at {min(speeds):.2f} to "
            f"{max(speeds):.2f} of alone, p99 of the services at {min(tails):.3f} to {max(tails):.3f} of alone"
        )
    if odd:
        one, two = odd[0]
        notes.append(
            f"kernel profiles: nothing is expected of {plural(len(odd), 'pair')} whose profiles were recorded on GPUs "
            f"of different size ({kinds[one]} and {kinds[two]}): there beside_speed counts"
        )
    return replace(workload, kernel_pairs=found, notes=(*workload.notes, *notes))


def _all(
    profiles: Sequence[tuple[KernelProfile, Load | None]], pairs: Sequence[tuple[int, int]]
) -> tuple[Mapping[tuple[int, int], Beside], list[tuple[int, int]]]:
    """What is expected of these pairs, and those whose profiles are not of one GPU model."""
    odd = [(one, two) for one, two in pairs if profiles[one][0].sm_count != profiles[two][0].sm_count]
    even = [pair for pair in pairs if pair not in set(odd)]
    native.library_path()  # compiled once, here
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda pair: expected(profiles[pair[0]][0], profiles[pair[1]][0], profiles[pair[0]][1]), even)
        return dict(zip(even, found, strict=True)), odd


def _requests(service: KernelProfile, best_effort: KernelProfile, share: float) -> int:
    beside = service.duration_ns / share / best_effort.duration_ns * len(best_effort.order)
    return round(min(MOST_REQUESTS, max(LEAST_REQUESTS, MOST_KERNELS / (len(service.order) + beside))))


def _cache_file(service: KernelProfile, best_effort: KernelProfile, share: float, requests: int) -> Path:
    rule = [__version__, native.VERSION, native.library_path().name, RULE, *SEEDS]
    words = [*map(str, rule), repr(share), str(requests), dumps(service), dumps(best_effort)]
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    return pairs_folder() / f"{digest}.json"


def pairs_folder() -> Path:
    """Where what was computed is kept."""
    return compiler.cache_folder() / "pairs"


def _kept(file: Path) -> Beside | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return Beside(float(data["speed"]), float(data["p99"]))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or of a machine that lost power while writing
        return None


def _keep(file: Path, found: Beside) -> None:
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):  # only a cache: the next one computes it again
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(found._asdict()), encoding="utf-8")
        part.replace(file)
