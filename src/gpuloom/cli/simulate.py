"""`gpuloom simulate` and `gpuloom compare`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpuloom.cli.outputs import check_outputs, check_overwrites
from gpuloom.cli.progress import task_progress
from gpuloom.cli.run_options import checked, run_options
from gpuloom.core.errors import InputError
from gpuloom.core.words import are

DEFAULT_POLICIES = "fifo,sjf,srtf,srsf,tiresias,gittins,themis,antman,muri-xs,muri-xl,weave"


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `simulate` and `compare` write, and how much they say."""
    options = [
        click.option(
            "--json", "json_target", metavar="FILE|-", help="Write the results as JSON; - prints nothing else."
        ),
        click.option("--csv", "csv_target", metavar="FILE|-", help="Write the table as CSV, with a row per policy."),
        click.option("--jobs-csv", "jobs_target", metavar="FILE|-", help="Write a CSV with a row per policy and job."),
        click.option(
            "--html",
            "html_target",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Write a report: one HTML page that needs no network.",
        ),
        click.option(
            "--plot",
            "plot_target",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Plot to FILE.png, .svg or .pdf.",
        ),
        click.option(
            "--window",
            metavar="FIRST-END",
            help="Average over these jobs only, counted from 0 in order of submission, END left out (4000-5000: 1,000 "
            "jobs); all run.",
        ),
        click.option("--quiet", "-q", is_flag=True, help="No progress, no notes."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that `simulate` and `compare` share."""
    return run_options(output_options(command))


@click.command()
@simulation_options
@click.option(
    "--policy",
    default="srtf",
    show_default=True,
    metavar="POLICY",
    help="Policy id, with parameters as in tiresias:thresholds=3250/7200 (see: gpuloom policies).",
)
@click.option(
    "--save-memory",
    "memory_target",
    metavar="FILE|-",
    help="Write what the policy has learnt, for use as rl:state=FILE.",
)
def simulate(policy: str, **options: Any) -> None:
    """Replay a trace on a cluster under one policy.

    \b
    Examples:
      gpuloom simulate jobs.csv --cluster 8x8 --policy srtf
      gpuloom simulate trace3.csv.gz --cluster 8x8 --policy tiresias --compat muri --json -
      gpuloom simulate traces/ --format itp --cluster 64x8 --policy fifo:backfill=easy --html report.html
    """
    _run([policy], processes=1, single=True, **options)


@click.command()
@simulation_options
@click.option(
    "--policies",
    default=DEFAULT_POLICIES,
    show_default=True,
    metavar="LIST",
    help="Policies, separated by commas (see: gpuloom policies).",
)
@click.option(
    "--jobs",
    "-j",
    "processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of processes to run at once.",
)
def compare(policies: str, processes: int, **options: Any) -> None:
    """Replay a trace on a cluster under several policies and compare them.

    If the trace says what really happened (gpuloom history export), the first row, "as it ran", shows that. After
    Ctrl-C the results so far are printed.

    \b
    Examples:
      gpuloom compare jobs.csv --cluster 8x8 --policies fifo,srtf,srsf,tiresias,themis,antman
      gpuloom compare jobs.csv --cluster 4x8:V100,16x4:K80 --speeds facts --policies srtf,gavel --html report.html
      gpuloom compare week.csv --policies fifo,tiresias,weave
      gpuloom compare week.csv --policies srtf,tiresias --preempt restart --preempt suspend
    """
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names:
        raise InputError("--policies names no policy (see: gpuloom policies)")
    _run(names, processes=processes, single=False, **options)


def _run(
    policies: list[str],
    *,
    processes: int,
    single: bool,
    json_target: str | None,
    csv_target: str | None,
    jobs_target: str | None,
    html_target: str | None,
    plot_target: str | None,
    window: str | None,
    quiet: bool,
    memory_target: str | None = None,
    **options: Any,
) -> None:
    from gpuloom.files.whole import text_output
    from gpuloom.policies.base import Policy
    from gpuloom.policies.registry import parse_policy
    from gpuloom.report.as_it_ran import as_it_ran, taken_at
    from gpuloom.sim.runner import run_all
    from gpuloom.sim.window import check_window, parse_window, windowed

    if [json_target, csv_target, jobs_target, memory_target].count("-") > 1:
        named = "--json, --csv, --jobs-csv and --save-memory" if single else "--json, --csv and --jobs-csv"
        raise InputError(f"only one of {named} can go to standard output (-)")
    # All that can be wrong is checked before the long work begins.
    measured = None if window is None else parse_window(window)
    run = checked(policies, **options)
    if single and len(run.ways) > 1:
        raise InputError(f"simulate takes one --preempt, not {len(run.ways)}: gpuloom compare shows several")
    targets = [json_target, csv_target, jobs_target, html_target, memory_target]
    check_outputs(targets, plot_target)
    # A table that learns on may be written to the file that it was read from.
    states = [Path(str(value)) for value in (parse_policy(policies[0])[1].get("state"),) if value is not None]
    ours = [target for target in (*targets, plot_target) if target is not memory_target]
    check_overwrites(ours, run.inputs)
    check_overwrites([memory_target], [path for path in run.inputs if path not in states])
    if memory_target is not None and type(run.policies[0]).saved is Policy.saved:
        raise InputError(f"--save-memory: {policies[0]} learns nothing that could be saved; rl does")
    whole, files = run.read(quiet=quiet)
    check_overwrites([*targets, plot_target], files)
    settings = {**run.settings_of(whole, quiet=quiet), "record_segments": html_target is not None}
    workload, chosen = run.fitting(whole, quiet=quiet), run.cluster
    if measured is not None:
        check_window(measured, len(workload))
    tasks = _tasks(workload, chosen, policies, run.ways)
    names = [task.name or task.policy for task in tasks]
    with task_progress([(name, len(workload)) for name in names], quiet=quiet) as report:
        outcome = run_all(tasks, settings, processes=processes, on_progress=report)
    results = outcome.done
    if results and not single and (past := as_it_ran(workload, taken_at(workload, chosen))) is not None:
        results = [past, *results]
    if measured is not None:
        results = [windowed(result, measured) for result in results]
    if results:
        shown = "-" not in (json_target, csv_target, jobs_target, memory_target)
        _write(results, single, json_target, csv_target, jobs_target, html_target, plot_target, shown, quiet)
        if memory_target is not None and results[0].saved is not None:
            with text_output(memory_target) as file:
                file.write(results[0].saved)
            if not quiet and memory_target != "-":
                click.echo(f"wrote {memory_target}", err=True)
    for name, error in zip(names, outcome.errors, strict=True):
        if error is not None:
            click.echo(f"gpuloom: policy {name}: {error}", err=True)
    if outcome.interrupted:
        ended = sum(not result.interrupted for result in results)
        of = are(len(tasks), "simulation", ("was", "were"))
        click.echo(f"interrupted: {ended} of {of} complete", err=True)
    failed = [error for error in outcome.errors if error is not None]
    if failed:
        sys.exit(max(error.exit_code for error in failed))
    if outcome.interrupted:
        sys.exit(1)


def _tasks(workload: Any, cluster: Any, policies: list[str], ways: tuple[str, ...]) -> list[Any]:
    """Every policy with every way in which jobs make way; of several ways each is named, all but the plain restart."""
    from gpuloom.sim.runner import Task
    from gpuloom.sim.suspend import RESTART

    return [
        Task(
            workload, cluster, policy, {"preempt": way}, "" if way == RESTART or len(ways) == 1 else f"{policy}, {way}"
        )
        for policy in policies
        for way in ways
    ]


def _write(
    results: list[Any],
    single: bool,
    json_target: str | None,
    csv_target: str | None,
    jobs_target: str | None,
    html_target: str | None,
    plot_target: str | None,
    shown: bool,
    quiet: bool,
) -> None:
    from gpuloom import report

    if shown:
        report.print_comparison(results)
    if json_target is not None:
        report.write_json(results[0] if single else results, json_target)
    if csv_target is not None:
        report.write_csv(results, csv_target)
    if jobs_target is not None:
        report.write_jobs_csv(results, jobs_target)
    if html_target is not None:
        report.write_html(results, html_target)
    if plot_target is not None:
        report.save_plot(results, Path(plot_target))
    if not quiet:
        for target in (json_target, csv_target, jobs_target, html_target, plot_target):
            if target is not None and target != "-":
                click.echo(f"wrote {target}", err=True)
