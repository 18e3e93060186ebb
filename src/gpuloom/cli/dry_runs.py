"""Runs of a script for some iterations on GPU models of the running scheduler, to measure it there.

For `gpuloom profiles measure --on` and `gpuloom submit --profile dry`. Each is a job of its own, which ends when enough
is known.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.core.cluster import plain_model
from gpuloom.core.measured import WARM_UP, Measured
from gpuloom.core.script_key import script_key
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.client import Client
    from gpuloom.core.profile import Profile

LOOK_S = 0.5
MOST_OF_NAME = 180
ITERATIONS, TIMEOUT_S = 40, 600.0
"""Of a dry run before a job is submitted."""
ENDED = ("finished", "failed", "cancelled")
_NOT_OF_A_DRY_RUN = ("array", "elastic", "replica_gpus", "replica_cpus", "replica_memory", "hold")
"""Fields of a job's spec that its dry runs don't have."""


@dataclass(frozen=True, slots=True)
class Result:
    """A measurement. where: 'here', or a GPU model. source: what told. why: what hooks could not see, and why; ''."""

    where: str
    measured: Measured | None
    it_per_s: float | None
    source: str
    why: str = ""


def dry_spec(spec: Mapping[str, Any], gpus: int, key: str) -> dict[str, Any]:
    """The spec of a job's dry runs: the same command, surroundings and priority, at the size that it asks for.

    key: of its script.
    """
    kept = {name: value for name, value in spec.items() if name not in _NOT_OF_A_DRY_RUN}
    name = f"{str(spec.get('name') or key)[:MOST_OF_NAME]} (dry run)"
    return {**kept, "name": name, "gpus": gpus, "retries": 0, "on_preempt": "checkpoint"}


def idle_models(nodes: Sequence[Mapping[str, Any]], gpus: int, accepted: Collection[str] = ()) -> list[str]:
    """GPU models of which so many stand idle, in the order of their names.

    nodes: as the API answers. accepted: names of models, whatever their case; none: all.
    """
    free: Counter[str] = Counter()
    for node in nodes:
        if node["state"] == "up" and not node["cut"] and not node["shut"]:
            free.update(gpu["model"] for gpu in node["gpus"] if gpu["state"] == "ok" and not gpu["jobs"])
    wanted = {plain_model(name) for name in accepted}
    enough = [model for model, count in free.items() if count >= gpus]
    return sorted(model for model in enough if not wanted or plain_model(model) in wanted)


def profile_first(client: Client, specs: Sequence[Mapping[str, Any]]) -> None:
    """Measure each script of these jobs on the GPU models that are idle now and of which it has no profile, and keep
    the profiles in the user's library. Says on standard error what it does, and where nothing could be measured why.

    Raises:
        KeyboardInterrupt: the dry runs have been ended.
    """
    from gpuloom.facts.profiles import library_path, read_library
    from gpuloom.live.submission.spec import job_spec

    seen: set[tuple[str, int]] = set()
    for spec in specs:
        checked = job_spec(spec)
        key = checked.model or script_key(checked.command)
        if (key, checked.gpus) in seen:
            continue
        seen.add((key, checked.gpus))
        if checked.after or checked.after_any:  # what it reads may not be there yet
            click.echo(f"{key} waits for other jobs: it is measured while it runs", err=True)
            continue
        rows = [row for row in read_library(library_path()) if (row.model, row.gpus) == (key, checked.gpus)]
        if known := sorted({row.gpu_model or "GPUs" for row in rows}):
            where = ", ".join(known)
            click.echo(f"{key} was measured before on {where}: gpuloom profiles show {shlex.quote(key)}", err=True)
        models = idle_models(client.nodes(), checked.gpus, checked.gpu_types)
        models = [model for model in models if model not in known]
        if not models:
            if not known:
                click.echo(f"{key}: no GPU model is idle: it is measured while it runs", err=True)
            continue
        dry = dry_spec(spec, checked.gpus, key)
        results = measured_on(client, dry, models, ITERATIONS, TIMEOUT_S, _say_begun(key))
        kept = keep(results, key, checked.gpus, checked.command, None, save=True)
        for one in results:
            if one.it_per_s is None:
                click.echo(f"{key} on {one.where}: nothing measured: {one.why or 'hooks saw no iteration'}", err=True)
            else:
                click.echo(f"{key} on {one.where}: {one.it_per_s:.4g} it/s", err=True)
        if kept:
            click.echo(f"kept {plural(len(kept), 'profile')} of {key!r}", err=True)


def _say_begun(key: str) -> Callable[[Mapping[int, str]], None]:
    def say(jobs: Mapping[int, str]) -> None:
        which = ", ".join(f"job {job} on {model}" for job, model in jobs.items())
        click.echo(f"{key}: dry run of {ITERATIONS} iterations: {which}", err=True)

    return say


def measured_on(
    client: Client,
    spec: Mapping[str, Any],
    models: Sequence[str],
    iterations: int,
    timeout_s: float,
    begun: Callable[[Mapping[int, str]], None] = lambda jobs: None,
) -> list[Result]:
    """A job for each GPU model, all submitted at once, each ended when it is known.

    spec: of the job, without `gpu_types`. begun: is told the jobs, by number, and their models.
    """
    submitted = client.submit([{**spec, "gpu_types": [model]} for model in models])
    jobs = {group[0]: model for group, model in zip(submitted, models, strict=True)}
    begun(jobs)
    found: dict[int, Result] = {}
    until_s = time.monotonic() + timeout_s
    try:
        while len(found) < len(jobs) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            for job in jobs.keys() - found.keys():
                result = _look(client, job, jobs[job], iterations)
                if result is not None:
                    found[job] = result
                    _end(client, job)
    finally:
        for job in jobs.keys() - found.keys():
            _end(client, job)
    late = [job for job in jobs if job not in found]
    for job in late:
        found[job] = _look(client, job, jobs[job], 0) or Result(
            jobs[job], None, None, "nothing", f"job {job} was not measured in {timeout_s:g} s: gpuloom show {job}"
        )
    return [found[job] for job in jobs]


def _end(client: Client, job: int) -> None:
    from gpuloom.client import ConflictError

    with suppress(ConflictError):  # it has ended by itself
        client.cancel([job], grace_s=0.0)


def _look(client: Client, job: int, model: str, iterations: int) -> Result | None:
    """What is known of it by now; None: it goes on."""
    from gpuloom.fleet.codec import of_plain

    view = client.show(job)
    hooks, over = view["hooks"], view["job"]["state"] in ENDED
    measured = None if hooks is None else hooks["measured"]
    if measured is not None and (over or iterations == 0 or measured["iterations"] > iterations + WARM_UP):
        return Result(model, of_plain(Measured, dict(measured)), measured["it_per_s"], "hooks")
    if not over:
        return None
    speed = next((a["it_per_s"] for a in reversed(view["attempts"]) if a["it_per_s"] is not None), None)
    why = (
        f"job {job} ended ({view['job']['message'] or view['job']['state']}) before it was measured: gpuloom logs {job}"
    )
    return Result(model, None, speed, "progress reports" if speed is not None else "nothing", why)


def keep(
    results: Sequence[Result], key: str, gpus: int, command: Sequence[str], library: Path | None, *, save: bool
) -> list[Profile]:
    """The profiles that were measured, by GPU model; in the user's library from now on, if they are to be saved."""
    from gpuloom.facts.measured_profiles import profile_of
    from gpuloom.facts.profiles import add_profiles, library_path

    date = datetime.now(UTC).date().isoformat()
    found = []
    for one in results:
        if one.measured is None:
            continue
        source = f"{one.measured.timed} iterations of {shlex.join(command)}"[:300]
        model = None if one.where == "here" else one.where
        profile = profile_of(one.measured, key, gpus=gpus, gpu_model=model, date=date, source=source)
        if profile is not None:
            found.append(profile)
    if found and save:
        add_profiles(library or library_path(), found, replacing=True)
    return found if save else []
