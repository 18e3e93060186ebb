"""`gpuloom cancel`, `hold`, `release`, `suspend`, `resume`, `requeue` and `update`: commands that change jobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Choice, Priority
from gpuloom.cli.job_options import speeds_of
from gpuloom.cli.jobs import ENDED, OPEN
from gpuloom.cli.live import JOBS_HELP, Memory, connect, live_options, numbers, plain, runs_of, say_json
from gpuloom.cli.run_options import Duration
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.client import Client
    from gpuloom.live.views.job_answers import ActionOnArray, JobView, StateOfJob


FEW = 10
"""Most jobs that are reported one by one."""
SO_ALREADY = "was changed: they have ended, or are so already"


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """JOB..., --all, --name."""
    for option in (
        click.option("--name", "names", multiple=True, metavar="PATTERN", help="Your jobs of this name, with * and ?."),
        click.option("--all", "every", is_flag=True, help="All your jobs in a state that this command applies to."),
        click.argument("jobs", nargs=-1, metavar="[JOB]..."),
    ):
        command = option(command)
    return live_options(command)


def selected_jobs(
    client: Client, jobs: Sequence[str], every: bool, names: Sequence[str], states: Sequence[str]
) -> list[int]:
    """The jobs to act on.

    Of ranges, arrays, names and --all only those in `states`: those named one by one are all taken, so that the
    scheduler says what is wrong with them.
    """
    if sum([bool(jobs), every, bool(names)]) != 1:
        raise click.UsageError("name jobs (12, 12-20, 12_), or give --all or --name PATTERN: one of the three")
    if every or names:
        from gpuloom.client.client import current_user

        return sorted(job["id"] for job in client.jobs(states=states, users=[current_user()], names=names))
    singles = numbers(client, [word for word in jobs if word.isdigit()], least=0)
    several = [job for job in client.numbers([w for w in jobs if not w.isdigit()]) if job not in set(singles)]
    if not several:
        return singles
    right = {job["id"] for job in client.jobs(ids=several, states=states)}
    if not right and not singles:
        click.echo(f"none of {', '.join(jobs)} is {' or '.join(states)}", err=True)
    return [*singles, *(job for job in several if job in right)]


def split_large_arrays(client: Client, jobs: Sequence[str], as_json: bool) -> tuple[list[int], list[str]]:
    """Split the jobs named: arrays too large to be reported job by job, and the others as written."""
    arrays: list[int] = []
    rest: list[str] = []
    for word in jobs:
        array = int(word[:-1]) if re.fullmatch(r"[0-9]{1,15}_", word) and not as_json else 0
        if array and len(list(client.jobs(array=array, limit=FEW + 1))) > FEW:
            arrays.append(array)
        else:
            rest.append(word)
    return arrays, rest


def act_on_arrays(
    arrays: Sequence[int], act: Callable[[int], Mapping[str, int]], said: Callable[[str], str], nothing: str
) -> None:
    """Do something to whole arrays, and print how many jobs were changed; said: by their new state. nothing: if none
    was."""
    for array in arrays:
        changed = act(array)
        if not changed:
            click.echo(f"none of {array}_ {nothing}", err=True)
            continue
        words = Counter[str]()
        for state, count in changed.items():
            words[said(state)] += count
        how = ", ".join(f"{count:,} {text}" for text, count in words.items()) if len(words) > 1 else next(iter(words))
        click.echo(f"{plural(sum(changed.values()), 'job')} of array {array}: {how}")


def report(jobs: Sequence[JobView], as_json: bool, done: Callable[[JobView], str]) -> None:
    """A line for each job that was changed; of many jobs, one for each array and one for all others."""
    if as_json:
        say_json(list(jobs))
        return
    groups: dict[int | None, list[JobView]] = {}
    for job in jobs:
        groups.setdefault(job["array_id"] if len(jobs) > FEW else job["id"], []).append(job)
    for array, group in groups.items():
        if len(group) == 1 or (array is None and len(group) <= FEW):
            for job in group:
                click.echo(plain(f"job {job['id']} {job['name']}: {done(job)}"))
            continue
        words = Counter(done(job) for job in group)
        how = ", ".join(f"{count:,} {text}" for text, count in words.items()) if len(words) > 1 else next(iter(words))
        what = "" if array is None else f" of array {array} {group[0]['name'].rpartition('[')[0]}"
        numbers = [job["id"] for job in group]
        which = runs_of(sorted(numbers))
        which = which if which.count(",") < FEW else f"{min(numbers)} to {max(numbers)}"
        click.echo(plain(f"{len(group):,} jobs{what} ({which}): {how}"))
    if not jobs:
        click.echo("no job that this applies to")


def _or_already(job: JobView, text: str) -> str:
    """Say what was done, or that it was so already."""
    return text if job["changed"] else f"{text} already"


def _act(
    action: ActionOnArray,
    selected: Mapping[str, Any],
    *,
    states: tuple[StateOfJob, ...],
    said: Callable[[str], str],
    done: Callable[[JobView], str],
) -> None:
    """Do something to the jobs of `selection_options`, and report it.

    Args:
        states: of jobs to which it can be done. said: of jobs of an array, by their new state. done: of one job.
    """
    as_json = selected["as_json"]
    with connect(selected["home"]) as client:
        arrays, named = split_large_arrays(client, selected["jobs"], as_json)
        act_on_arrays(arrays, lambda array: client.act_on_array(array, action), said, f"is {' or '.join(states)}")
        if arrays and not named:
            return
        found = selected_jobs(client, named, selected["every"], selected["names"], states)
        act: Callable[[Sequence[int]], list[JobView]] = getattr(client, action)
        changed = act(found)
    report(changed, as_json, done)


def _ended(job: JobView) -> str:
    if job["state"] in ENDED:
        return _or_already(job, job["state"])
    return _or_already(job, "told to stop")


@click.command(epilog=JOBS_HELP)
@selection_options
@click.option(
    "--grace",
    "grace_s",
    type=Duration(),
    metavar="TIME",
    help="Time between notice and kill, instead of the job's own; 0: kill at once.",
)
def cancel(
    jobs: tuple[str, ...],
    every: bool,
    names: tuple[str, ...],
    grace_s: float | None,
    as_json: bool,
    home: Path | None,
) -> None:
    """Cancel jobs. Waiting jobs leave the queue; running jobs get SIGTERM, and are killed after the grace period.

    \b
    Examples:
      gpuloom cancel 12 14-20
      gpuloom cancel --name 'sweep*' --grace 5s
      gpuloom cancel --all
    """
    with connect(home) as client:
        arrays, jobs_named = split_large_arrays(client, jobs, as_json)
        act_on_arrays(
            arrays,
            lambda array: client.act_on_array(array, "cancel", grace_s=grace_s),
            lambda state: "cancelled" if state == "cancelled" else "told to stop",
            f"is {' or '.join(OPEN)}",
        )
        if arrays and not jobs_named:
            return
        changed = client.cancel(selected_jobs(client, jobs_named, every, names, OPEN), grace_s=grace_s)
    report(changed, as_json, _ended)


@click.command(epilog=JOBS_HELP)
@selection_options
def hold(**selected: Any) -> None:
    """Hold waiting jobs until they are released.

    \b
    Example:
      gpuloom hold 12-20
    """
    _act("hold", selected, states=("queued",), said=str, done=lambda job: _or_already(job, "held"))


@click.command(epilog=JOBS_HELP)
@selection_options
def release(**selected: Any) -> None:
    """Release held jobs: they queue again.

    \b
    Example:
      gpuloom release 12_
    """

    def done(job: JobView) -> str:
        return job["state"] if job["changed"] else f"not held; it is {job['state']}"

    _act("release", selected, states=("held",), said=str, done=done)


@click.command(epilog=JOBS_HELP)
@selection_options
def suspend(**selected: Any) -> None:
    """Have running jobs leave their GPUs until they are resumed.

    They go on where they were, in the same attempt, and other jobs get their GPUs meanwhile. Their --on-preempt must be
    suspend (they give their GPU with all its memory), freeze (they stop computing), or auto (if gpuloom show says that
    they are suspended).

    \b
    Example:
      gpuloom suspend 12
    """

    def said(state: str) -> str:
        return "suspended" if state == "frozen" else "told to leave its GPUs"

    _act(
        "suspend",
        selected,
        states=("running", "frozen"),
        said=said,
        done=lambda job: _or_already(job, said(job["state"])),
    )


@click.command(epilog=JOBS_HELP)
@selection_options
def resume(**selected: Any) -> None:
    """Let suspended jobs go on, as soon as the policy gives them their GPUs again. Held jobs queue again.

    \b
    Example:
      gpuloom resume 12
    """

    def done(job: JobView) -> str:
        return "may go on" if job["changed"] else f"not suspended; it is {job['state']}"

    _act("resume", selected, states=("frozen", "running"), said=lambda _: "may go on", done=done)


@click.command(epilog=JOBS_HELP)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@live_options
def requeue(jobs: tuple[str, ...], as_json: bool, home: Path | None) -> None:
    """Put running or ended jobs back into the queue. They keep their numbers; the next run is a new attempt.

    \b
    Example:
      gpuloom requeue 12
    """
    with connect(home) as client:
        states = ("running", "starting", "frozen", *ENDED)
        arrays, jobs_named = split_large_arrays(client, jobs, as_json)
        act_on_arrays(
            arrays,
            lambda array: client.act_on_array(array, "requeue"),
            lambda state: "back in the queue" if state == "queued" else "told to stop; they queue again once stopped",
            f"is {' or '.join(states)}",
        )
        if arrays and not jobs_named:
            return
        changed = client.requeue(selected_jobs(client, jobs_named, False, (), states))
    report(
        changed,
        as_json,
        lambda job: _or_already(
            job, "back in the queue" if job["state"] == "queued" else "told to stop; it queues again once stopped"
        ),
    )


class OrNone(click.ParamType[Any]):
    """Another type, or the word none."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind, self.name = kind, f"{kind.name} or none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "none" if value == "none" else self.kind.convert(value, param, ctx)


@click.command(epilog=JOBS_HELP)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--name", metavar="TEXT", help="Name.")
@click.option("--priority", type=Priority(), metavar="N", help="Higher goes first; high is 10, low is -10.")
@click.option(
    "--time-limit", type=OrNone(Duration()), metavar="TIME|none", help="Running time after which the job is stopped."
)
@click.option("--estimate", type=OrNone(Duration()), metavar="TIME|none", help="Expected running time; none: learnt.")
@click.option("--retries", type=click.IntRange(0), metavar="N", help="How often to retry after a failure.")
@click.option("--grace", type=Duration(), metavar="TIME", help="Time between notice and kill.")
@click.option("--gpus", "-g", type=click.IntRange(1), metavar="N", help="GPUs (waiting jobs only).")
@click.option("--gpu-type", "gpu_types", metavar="MODELS|none", help="Acceptable GPU models (waiting jobs only).")
@click.option(
    "--gpu-memory", type=OrNone(Memory()), metavar="SIZE|none", help="Memory on each GPU (waiting jobs only)."
)
@click.option("--cpus", type=OrNone(click.FLOAT), metavar="N|none", help="CPU cores (waiting jobs only).")
@click.option("--memory", type=OrNone(Memory()), metavar="SIZE|none", help="Main memory (waiting jobs only).")
@click.option("--speed", "speeds", metavar="MODEL=X,…|none", help="How fast it is on GPU models; none: measured.")
@click.option(
    "--on-preempt",
    type=Choice(["auto", "checkpoint", "freeze", "suspend", "never"]),
    help="What preemption does.",
)
@click.option(
    "--suspend-limit", type=OrNone(Duration()), metavar="TIME|none", help="Longest time that it lies suspended."
)
@live_options
def update(jobs: tuple[str, ...], as_json: bool, home: Path | None, **fields: Any) -> None:
    """Change what jobs ask for. Of a running job only name, priority, time limit, estimate, retries, grace, speeds,
    what preemption does and the suspend limit can change.

    \b
    Examples:
      gpuloom update 12 --priority 10
      gpuloom update 12-20 --time-limit 8h --retries 2
      gpuloom update 12 --time-limit none
    """
    changes = {name: value for name, value in fields.items() if value is not None}
    if not changes:
        raise click.UsageError("name what to change, such as --priority 10 (gpuloom update --help lists all)")
    for name, value in changes.items():
        if name == "gpu_types":
            changes[name] = [] if value == "none" else [w.strip() for w in value.split(",") if w.strip()]
        elif name == "speeds":
            changes[name] = {} if value == "none" else speeds_of([value])
        elif value == "none" and name != "name":
            changes[name] = None
    names = ", ".join(name.replace("_", " ") for name in sorted(changes))
    with connect(home) as client:
        arrays, jobs_named = split_large_arrays(client, jobs, as_json)
        act_on_arrays(
            arrays, lambda array: client.update_array(array, changes), lambda state: f"{names} changed", SO_ALREADY
        )
        if arrays and not jobs_named:
            return
        changed = client.update(selected_jobs(client, jobs_named, False, (), OPEN), changes)
    report(changed, as_json, lambda job: f"{names} {'changed' if job['changed'] else 'already as asked'}")
