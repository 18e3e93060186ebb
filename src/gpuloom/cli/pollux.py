"""`gpuloom pollux`: Pollux' and Sia's simulation of jobs that adapt their batch size."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.outputs import check_outputs, check_overwrites
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import InputError

if TYPE_CHECKING:
    from gpuloom.files.source import Source
    from gpuloom.goodput import PolluxResult

MOST_INTERVAL_S = 86_400
"""Jobs wait for the next allocation to begin: more than a day between two is a slip."""


@click.command()
@click.argument("workloads", nargs=-1, required=True, metavar="WORKLOAD...")
@click.option(
    "--policies",
    "rules",
    metavar="LIST",
    help="Policies, separated by commas [tiresias,optimus,goodput; on GPU models sia,goodput]. goodput has the "
    "parameters know=learnt, ends=known and explore=doubling; sia has know=told and p.",
)
@click.option(
    "--cluster",
    default="16x4",
    show_default=True,
    metavar="SPEC",
    help="NODESxGPUS, at most 16x4; or by GPU model, as measured: 6x4:aws,2x8:dgx-ext,3x8:rtx.",
)
@click.option(
    "--interval",
    type=Duration(),
    default="60",
    show_default=True,
    metavar="TIME",
    help="Time between allocations, 1 s to a day.",
)
@click.option(
    "--throughputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Profiles of the applications (profiles_traces.tar.gz of Pollux, profiles.tar.gz of Sia, or their folder); "
    "also looked for beside the workload.",
)
@click.option(
    "--restart-times",
    metavar="SPEC",
    help="Seconds a change of GPUs costs, at most a day: a number, APP=SECONDS,..., or a CSV file of both [30; on "
    "GPU models as Sia measured: cifar10=50,deepspeech2=25,bert=120,yolov3=80,imagenet=250,ncf=15].",
)
@click.option(
    "--slowdowns",
    metavar="SPEC",
    help="How many times longer than measured training takes, 0.001 to 100, in the same form [1; on GPU "
    "models Sia's calibration: cifar10=1.8,ncf=1.5, others 1.2].",
)
@click.option("--window", metavar="FIRST-END", help="Average over these jobs only, counted from 0 in the workload.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write the results as JSON; - prints nothing else.")
@click.option("--jobs-csv", "jobs_target", metavar="FILE|-", help="Write a row per workload, policy and job.")
def pollux(
    workloads: tuple[str, ...],
    rules: str | None,
    cluster: str,
    interval: float,
    throughputs: Path | None,
    restart_times: str | None,
    slowdowns: str | None,
    window: str | None,
    json_target: str | None,
    jobs_target: str | None,
) -> None:
    """Replay workloads of Pollux (OSDI '21) and Sia (SOSP '23) by the rules of their simulators.

    Jobs train for a number of epochs on measured applications. Larger batches run faster, but learn less per sample.
    tiresias and optimus give the published figures to the digit; sia is Sia's policy; goodput is gpuloom's own
    (docs/explanation/pollux.md). A WORKLOAD is a file, a folder, or a file in an archive (FILE.tar.gz::MEMBER).

    \b
    Examples:
      gpuloom pollux workload-6.csv --throughputs profiles_traces.tar.gz
      gpuloom pollux workloads.tar.gz::workloads/workload-6.csv --policies goodput,goodput:ends=known --json -
      gpuloom pollux workloads.tar.gz::workloads/philly/workload-1.csv --cluster 6x4:aws,2x8:dgx-ext,3x8:rtx
    """
    # The fits are of a few numbers each: threads of the linear algebra only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from gpuloom.files.load import expand, load
    from gpuloom.goodput import create_rule, load_applications, load_models, parse_cluster, read_submissions, simulate
    from gpuloom.goodput.costs import RESTARTS_S, SLOWDOWNS, read_values, with_costs
    from gpuloom.sim.window import check_window, parse_window

    # All that can be wrong is checked before the long work begins.
    if json_target == jobs_target == "-":
        raise InputError("only one of --json and --jobs-csv can go to standard output (-)")
    check_outputs([json_target, jobs_target], None)
    inputs = [path for path, _ in expand(workloads)]
    check_overwrites([json_target, jobs_target], map(Path, [*inputs, *([throughputs] if throughputs else [])]))
    if not 1 <= interval <= MOST_INTERVAL_S or interval != int(interval):
        raise InputError(f"--interval {interval:g}: must be a whole number of seconds, from 1 to {MOST_INTERVAL_S:,}")
    measured = None if window is None else parse_window(window)
    nodes = parse_cluster(cluster)
    models = [pool.model for pool in nodes.pools if pool.model]
    chosen = rules if rules is not None else "sia,goodput" if models else "tiresias,optimus,goodput"
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    if not names:
        raise InputError("--policies names no policy (tiresias, optimus, goodput, sia)")
    for name in names:
        create_rule(name, nodes)
    restarts = None if restart_times is None else read_values("--restart-times", restart_times, RESTARTS_S)
    slower = None if slowdowns is None else read_values("--slowdowns", slowdowns, SLOWDOWNS)
    sources = [load(path) for path, _ in expand(workloads)]
    read = [(source, read_submissions(source.data, source.name)) for source in sources]
    for _, jobs in read:
        if measured is not None:
            check_window(measured, len(jobs))
    where = throughputs or _beside(sources[0])
    applications = load_models(where, models) if models else {"": load_applications(where)}
    applications = with_costs(applications, restarts, slower)
    found: list[tuple[str, str, PolluxResult]] = []
    for source, jobs in read:
        for name in names:
            run = simulate(jobs, applications, create_rule(name, nodes), nodes, int(interval))
            found.append((source.stem, name, run))
    if json_target is not None:
        _write_json(found, cluster, int(interval), measured, json_target)
    if jobs_target is not None:
        _write_jobs(found, jobs_target)
    if "-" not in (json_target, jobs_target):
        _print(found, names, measured)
    for target in (json_target, jobs_target):
        if target is not None and target != "-":
            click.echo(f"wrote {target}", err=True)


def _beside(source: Source) -> Path:
    from gpuloom.traces.pollux import profiles_beside

    if (found := profiles_beside(source)) is not None:
        return found
    raise InputError(
        f"{source.name}: no profiles of the applications beside it: pass --throughputs FILE "
        "(profiles_traces.tar.gz of Pollux' artifact, profiles.tar.gz of Sia's, or the folder extracted from it)"
    )


def described(workload: str, policy: str, run: PolluxResult, window: tuple[int, int] | None = None) -> dict[str, Any]:
    """A result as plain values; averages over the jobs of the window."""
    import numpy as np

    jct = run.jct_s if window is None else run.jct_s[slice(*window)]
    return {
        "workload": workload,
        "policy": policy,
        "jobs": len(run.names),
        "window": None if window is None else list(window),
        "avg_jct_s": float(jct.mean()),
        "median_jct_s": float(np.median(jct)),
        "p99_jct_s": float(np.percentile(jct, 99)),
        "makespan_s": run.makespan_s,
        "gpu_hours": float(run.gpu_s.sum()) / 3600,
        "restarts": run.restarts,
    }


def _write_json(
    found: Sequence[tuple[str, str, PolluxResult]],
    cluster: str,
    interval_s: int,
    window: tuple[int, int] | None,
    target: str,
) -> None:
    from gpuloom.files.whole import text_output

    results = [described(*one, window) for one in found]
    with text_output(target) as file:
        data = {"cluster": cluster, "interval_s": interval_s, "results": results}
        file.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write_jobs(found: Sequence[tuple[str, str, PolluxResult]], target: str) -> None:
    from gpuloom.files.whole import text_output

    with text_output(target) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["workload", "policy", "job", "submit_s", "end_s", "jct_s", "gpu_s"])
        for workload, policy, run in found:
            columns = (run.submit_s, run.end_s, run.jct_s, run.gpu_s)
            for name, *values in zip(run.names, *(column.tolist() for column in columns), strict=True):
                writer.writerow([workload, policy, name, *(f"{value:.15g}" for value in values)])


def _print(
    found: Sequence[tuple[str, str, PolluxResult]], policies: Sequence[str], window: tuple[int, int] | None
) -> None:
    from rich.console import Console
    from rich.table import Table

    from gpuloom.sim.window import named

    table = Table(box=None, pad_edge=False)
    table.add_column("workload")
    table.add_column("policy")
    for title in ("avg JCT s", "median JCT s", "p99 JCT s", "makespan s", "GPU hours", "restarts"):
        table.add_column(title, justify="right")
    rows = [described(*one, window) for one in found]
    measures = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "gpu_hours", "restarts")
    for row in rows:
        table.add_row(row["workload"], row["policy"], *(_number(key, row[key]) for key in measures))
    if len(rows) > len(policies):
        for policy in dict.fromkeys(policies):
            of_it = [row for row in rows if row["policy"] == policy]
            means = (_number(key, sum(row[key] for row in of_it) / len(of_it)) for key in measures)
            table.add_row("mean", policy, *means)
    Console(highlight=False, width=None if Console().is_terminal else 120).print(table)
    if window is not None:
        click.echo(f"JCTs are of {named(window)}")


def _number(measure: str, value: float) -> str:
    return f"{value:,.1f}" if measure.endswith(("avg_jct_s", "hours")) else f"{value:,.0f}"
