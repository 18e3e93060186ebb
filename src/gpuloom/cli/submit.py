"""`gpuloom submit`."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.job_options import KEY_OF_ARGUMENTS, KEY_OF_COMMAND, SubmitCommand, environment, fields_of, job_options
from gpuloom.cli.live import connect, live_options, numbers, runs_of, say_json, say_json_line
from gpuloom.cli.sbatch import sbatch_of
from gpuloom.cli.scripts import JOB_FILES, command_of
from gpuloom.core.errors import InputError
from gpuloom.core.words import did_you_mean, plural

if TYPE_CHECKING:
    from gpuloom.client import Client

KEY_OF_SBATCH = "gpuloom.sbatch"
"""The #SBATCH lines of the script stand among the options already."""


@click.command(cls=SubmitCommand)
@click.argument("given", nargs=-1, metavar="[JOB.YAML|SCRIPT] [-- COMMAND...]")
@job_options
@click.option(
    "--watch", "-w", is_flag=True, help="Follow state and log to the end; exit code 0 if it finished well, else 1."
)
@click.option(
    "--idempotency-key", metavar="TEXT", help="Submit only once, however often this is run with the same key."
)
@click.option(
    "--profile",
    type=click.Choice(["live", "dry"]),
    default="live",
    show_default=True,
    help="How a new script is measured. live: while its first job runs. dry: before it is submitted, by 40 iterations "
    "on each idle GPU model; it writes its files then, too.",
)
@click.option("--dry-run", is_flag=True, help="Check the job and print what would be sent, as JSON.")
@live_options
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    given: tuple[str, ...],
    watch: bool,
    idempotency_key: str | None,
    profile: str,
    dry_run: bool,
    as_json: bool,
    home: Path | None,
    after: tuple[str, ...],
    after_any: tuple[str, ...],
    env: tuple[str, ...],
    env_file: tuple[Path, ...],
    export: str,
    **flags: Any,
) -> None:
    """Submit a command, a script, or the jobs of a YAML file (- for standard input).

    The command stands after --, so that its options are not taken for those of gpuloom. No shell reads it; for a shell
    line write -- sh -c '…'. It runs in the folder where it was submitted, with the environment of this shell unless
    --export none is given. All its GPUs are given at once. A script alone needs no --: one with #! is run by the
    program named there, .py by python, .sh by sh. Its #SBATCH lines count as options, unless the command line says
    otherwise. A YAML file holds one job, a list, or several documents; options override its fields (gpuloom schema
    lists them).

    \b
    Examples:
      gpuloom submit -- python train.py --lr 0.1
      gpuloom submit -g 2 --gpu-type A100,V100 --time-limit 4h --retries 2 --venv .venv -- python train.py
      gpuloom submit --array 0-9%3 --name sweep -- python train.py
      gpuloom submit --after 12,13 --watch -- python evaluate.py
      gpuloom submit -g 2 train.sh
      gpuloom submit train.sbatch --time-limit 8h
      gpuloom submit job.yaml --priority 10
    """
    command, arguments = ctx.meta.get(KEY_OF_COMMAND), ctx.meta[KEY_OF_ARGUMENTS]
    script = _script(given, command, arguments, flags)
    if script is not None and not ctx.meta.get(KEY_OF_SBATCH):
        told = {**flags, "after": after, "after_any": after_any, "export": None if export == "all" else export}
        if options := _sbatch(given[0], fields_of(told)):
            with submit.make_context(ctx.info_name, [*options, *arguments], parent=ctx.parent) as again:
                again.meta[KEY_OF_SBATCH] = True
                submit.invoke(again)
            return
    if script is not None:
        click.echo(f"note: {given[0]} is a program: it runs as {shlex.join(script)}", err=True)
        flags["name"] = flags["name"] or Path(given[0]).stem
        given, command = (), script
    _check(given, command, arguments)
    own = {**fields_of(flags), **({"command": list(command)} if command else {})}
    extra = environment(env_file, env)
    with connect(home, follows=watch) as client:
        for name, words in (("after", after), ("after_any", after_any)):
            if written := [word for text in words for word in text.split(",") if word.strip()]:
                own[name] = numbers(client, [word.strip() for word in written])
        shell = shell_environment() if export == "all" else {}
        if given:
            from gpuloom.cli.submit_files import read_jobs

            try:
                specs = read_jobs(given[0], own, extra, shell)
            except InputError as error:
                if given[0] == "-" or given[0].lower().endswith(JOB_FILES):
                    raise
                hint = f"if it is a program, not a job file: gpuloom submit -- PROGRAM {given[0]}"
                raise InputError(f"{error}; {hint}") from None
            if command is not None and len(specs) > 1:
                raise click.UsageError(
                    f"{given[0]} holds {len(specs)} jobs, and the command after -- would replace that of each: leave "
                    f"it out, or submit a file with one job"
                )
        else:
            specs = [{"workdir": os.getcwd(), **own, "env": {**shell, **extra}}]
        if dry_run:
            from gpuloom.live.submission.spec import job_spec

            checked = [job_spec(spec).model_dump(mode="json", exclude_defaults=True) for spec in specs]
            say_json(checked[0] if len(checked) == 1 else checked)
            return
        for program in missing_programs(specs):
            near = did_you_mean(program, [name for name in ("python", "python3") if shutil.which(name)])
            click.echo(f"note: no program {program!r} is on this shell's PATH, which the job gets{near}", err=True)
        if profile == "dry":
            from gpuloom.cli.dry_runs import profile_first

            profile_first(client, specs)
        submitted = client.submit(specs, idempotency_key=idempotency_key)
        jobs = [job for group in submitted for job in group]
        if as_json:
            (say_json_line if watch else say_json)({"jobs": jobs, "submitted": submitted})
        else:
            say_submitted(submitted, err=watch)
        if watch:
            ctx.exit(0 if _watch(client, jobs, as_json) else 1)


def _script(
    given: Sequence[str], command: Sequence[str] | None, arguments: Sequence[str], flags: Mapping[str, Any]
) -> list[str] | None:
    """The command of the script that was given in the place of a job file, if one was."""
    if not given:
        return None
    has_own = any(flags[name] for name in ("venv", "conda", "container"))
    found = command_of(given[0], own_python=has_own)
    if found is None:
        return None
    if command is not None:
        line = shlex.join(["--", *(command if given[0] in command else [*found, *command])])
        raise click.UsageError(f"{given[0]} is a script and takes no command after --; write: gpuloom submit {line}")
    if len(given) > 1:
        raise click.UsageError(f"arguments of the script must stand after --: {_instead(arguments)}")
    return found


def _sbatch(file: str, given: Collection[str]) -> list[str]:
    """Options in place of the script's #SBATCH lines, but for fields that are given; what is made of them is said."""
    asked = sbatch_of(file)
    words = asked.instead(given)
    if words:
        click.echo(f"note: {file}: its #SBATCH lines are read as {shlex.join(words)}", err=True)
    if asked.unlike:
        click.echo(f"note: {file}: not followed of its #SBATCH lines: {asked.not_followed}", err=True)
    return words


def _instead(arguments: Sequence[str]) -> str | None:
    command = click.get_current_context().command
    return command.instead(arguments) if isinstance(command, SubmitCommand) else None


def _check(given: Sequence[str], command: Sequence[str] | None, arguments: Sequence[str]) -> None:
    if command is not None and not command:
        raise click.UsageError("no command after --")
    if not given and command is None:
        raise click.UsageError("name what to run: gpuloom submit -- COMMAND..., or gpuloom submit job.yaml")
    if not given:
        return
    first = given[0]
    if first != "-" and not first.lower().endswith(JOB_FILES) and not (len(given) == 1 and Path(first).is_file()):
        if not shutil.which(first) and not Path(first).is_file():
            raise click.UsageError(f"there is no file {first} here, and no program of that name")
        line = _instead(arguments) or f"gpuloom submit [OPTIONS] -- {shlex.join(given)}"
        raise click.UsageError(f"write -- before the command: {line}")
    if len(given) > 1:
        raise click.UsageError(f"one file at a time: {first}, and {plural(len(given) - 1, 'word')} more ({given[1]} …)")


def missing_programs(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Programs of the jobs that are not on the PATH that they are given; of what has its own nothing is known."""
    found = []
    for spec in specs:
        path = (spec.get("env") or {}).get("PATH")
        program = str(spec["command"][0])
        if path and "/" not in program and not any(spec.get(name) for name in ("venv", "conda", "container")):
            found += [program] if shutil.which(program, path=path) is None else []
    return list(dict.fromkeys(found))


def say_submitted(submitted: Sequence[Sequence[int]], *, err: bool = False) -> None:
    """A line for each job or array."""
    for group in submitted:
        array = f" (array of {len(group):,}; all of it: {group[0]}_)" if len(group) > 1 else ""
        noun = "jobs" if len(group) > 1 else "job"
        click.echo(f"submitted {noun} {runs_of(group)}{array}", err=err)


def shell_environment() -> dict[str, str]:
    """The environment of this process, but for what says something of this shell alone.

    CUDA_VISIBLE_DEVICES is left out: which GPUs the job sees is decided when it starts.
    """
    kept, odd = {}, []
    for name, value in os.environ.items():
        if name in ("_", "PWD", "OLDPWD", "SHLVL", "CUDA_VISIBLE_DEVICES", "GPULOOM_TOKEN_FILE"):
            continue
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError:  # bytes that are no UTF-8 can't be sent
            odd.append(name)
            continue
        kept[name] = value
    if odd:
        click.echo(f"note: these variables are not UTF-8 and were not sent: {', '.join(map(ascii, odd))}", err=True)
    return kept


def _watch(client: Client, jobs: Sequence[int], as_json: bool) -> bool:
    """Follow the jobs to their end. Whether all finished well."""
    try:
        return watch_one(client, jobs[0], as_json) if len(jobs) == 1 else watch_many(client, jobs, as_json)
    except KeyboardInterrupt:
        which = runs_of(jobs)
        click.echo(
            f"\njob {which} keeps running; follow it: gpuloom logs -f {jobs[0]}; end it: gpuloom cancel {which}",
            err=True,
        )
        return False


def watch_one(client: Client, job: int, as_json: bool) -> bool:
    """State changes on standard error, log on standard output."""
    from gpuloom.cli.jobs import ENDED, ended_line
    from gpuloom.cli.live_tables import short_reason
    from gpuloom.cli.logs import follow_log

    view = client.job(job)
    told = None
    if view["state"] in ("queued", "held"):
        last = client.last_event()
        events = client.follow_events(after=last, job=job)
        while (view := client.job(job))["state"] in ("queued", "held"):
            if (now := f"{view['state']}: {short_reason(view)}") != told:
                told = now
                say_json_line(view) if as_json else click.echo(f"gpuloom: job {job} {now}", err=True)
            next(events)
        events.close()
    if view["state"] not in ENDED:
        say_json_line(view) if as_json else click.echo(
            f"gpuloom: job {job} {view['state']} on {view['where']}", err=True
        )
    follow_log(client, job, as_json=as_json, whole=True)
    view = client.job(job)
    say_json_line(view) if as_json else click.echo(f"gpuloom: {ended_line(view)}", err=True)
    return bool(view["state"] == "finished")


def watch_many(client: Client, jobs: Sequence[int], as_json: bool) -> bool:
    """A line for each change of state."""
    from gpuloom.cli.jobs import ENDED, ended_line
    from gpuloom.cli.live_tables import short_reason

    good = True
    for view in client.follow_jobs(jobs):
        if as_json:
            say_json_line(view)
        elif view["state"] in ENDED:
            click.echo(ended_line(view))
        else:
            text = view["where"] or short_reason(view)
            click.echo(f"job {view['id']} {view['name']}: {view['state']}{f' ({text})' if text else ''}")
        if view["state"] in ENDED:
            good &= view["state"] == "finished"
    return good
