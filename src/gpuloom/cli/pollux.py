"""`gpuloom pollux`: Pollux' simulation of jobs that adapt their batch size."""

from __future__ import annotations

import csv
import json
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


@click.command()
@click.argument("workloads", nargs=-1, required=True, metavar="WORKLOAD...")
@click.option(
    "--policies",
    "rules",
    default="tiresias,optimus,goodput",
    show_default=True,
    metavar="LIST",
    help="Policies, separated by commas; goodput has the parameters ends=known and explore=doubling.",
)
@click.option(
    "--cluster", default="16x4", show_default=True, metavar="SPEC", help="Cluster, at most 16x4 (NODESxGPUS)."
)
@click.option(
    "--interval", type=Duration(), default="60", show_default=True, metavar="TIME", help="Time between allocations."
)
@click.option(
    "--throughputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Profiles of the applications (profiles_traces.tar.gz, or its folder); also looked for beside the workload.",
)
@click.option("--json", "json_target", metavar="FILE|-", help="Write the results as JSON; - prints nothing else.")
@click.option("--jobs-csv", "jobs_target", metavar="FILE|-", help="Write a row per workload, policy and job.")
def pollux(
    workloads: tuple[str, ...],
    rules: str,
    cluster: str,
    interval: float,
    throughputs: Path | None,
    json_target: str | None,
    jobs_target: str | None,
) -> None:
    """Replay workloads of Pollux (OSDI '21) by the rules of its simulator.

    Jobs train for a number of epochs on measured applications. Larger batches run faster, but learn less per sample.
    tiresias and optimus give the published figures to the digit; goodput is gpuloom's own (docs/explanation/pollux.md).
    A WORKLOAD is a file, a folder, or a file in an archive (FILE.tar.gz::MEMBER).

    \b
    Examples:
      gpuloom pollux workload-6.csv --throughputs profiles_traces.tar.gz
      gpuloom pollux workloads.tar.gz::workloads/workload-6.csv --policies goodput,goodput:ends=known --json -
    """
    from gpuloom.files.load import expand, load
    from gpuloom.goodput import Nodes, create_rule, load_applications, read_submissions, simulate

    # All that can be wrong is checked before the long work begins.
    if json_target == jobs_target == "-":
        raise InputError("only one of --json and --jobs-csv can go to standard output (-)")
    check_outputs([json_target, jobs_target], None)
    inputs = [path for path, _ in expand(workloads)]
    check_overwrites([json_target, jobs_target], map(Path, [*inputs, *([throughputs] if throughputs else [])]))
    if interval < 1 or interval != int(interval):
        raise InputError(f"--interval {interval:g}: must be a whole number of seconds, at least 1")
    nodes = Nodes.parse(cluster)
    names = [name.strip() for name in rules.split(",") if name.strip()]
    if not names:
        raise InputError("--policies names no policy (tiresias, optimus, goodput)")
    for name in names:
        create_rule(name, nodes)
    sources = [load(path) for path, _ in expand(workloads)]
    read = [(source, read_submissions(source.data, source.name)) for source in sources]
    applications = load_applications(throughputs or _beside(sources[0]))
    found: list[tuple[str, str, PolluxResult]] = []
    for source, jobs in read:
        for name in names:
            run = simulate(jobs, applications, create_rule(name, nodes), nodes, int(interval))
            found.append((source.stem, name, run))
    if json_target is not None:
        _write_json(found, cluster, int(interval), json_target)
    if jobs_target is not None:
        _write_jobs(found, jobs_target)
    if "-" not in (json_target, jobs_target):
        _print(found, names)
    for target in (json_target, jobs_target):
        if target is not None and target != "-":
            click.echo(f"wrote {target}", err=True)


def _beside(source: Source) -> Path:
    from gpuloom.traces.pollux import PROFILES

    for folder in source.companions():
        if (folder / PROFILES).is_file():
            return folder / PROFILES
        if any(folder.glob("*/placements.csv")):
            return folder
    raise InputError(
        f"{source.name}: no profiles of the applications beside it: pass --throughputs FILE ({PROFILES} of Pollux' "
        "artifact, or the folder extracted from it)"
    )


def described(workload: str, policy: str, run: PolluxResult) -> dict[str, Any]:
    """A result as plain values."""
    import numpy as np

    return {
        "workload": workload,
        "policy": policy,
        "jobs": len(run.names),
        "avg_jct_s": run.avg_jct_s,
        "median_jct_s": float(np.median(run.jct_s)),
        "p99_jct_s": run.p99_jct_s,
        "makespan_s": run.makespan_s,
        "gpu_hours": float(run.gpu_s.sum()) / 3600,
        "restarts": run.restarts,
    }


def _write_json(found: Sequence[tuple[str, str, PolluxResult]], cluster: str, interval_s: int, target: str) -> None:
    from gpuloom.files.whole import text_output

    data = {"cluster": cluster, "interval_s": interval_s, "results": [described(*one) for one in found]}
    with text_output(target) as file:
        file.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write_jobs(found: Sequence[tuple[str, str, PolluxResult]], target: str) -> None:
    from gpuloom.files.whole import text_output

    with text_output(target) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["workload", "policy", "job", "submit_s", "end_s", "jct_s", "gpu_s"])
        for workload, policy, run in found:
            columns = (run.submit_s, run.end_s, run.jct_s, run.gpu_s)
            for name, *values in zip(run.names, *(column.tolist() for column in columns), strict=True):
                writer.writerow([workload, policy, name, *(f"{value:.0f}" for value in values)])


def _print(found: Sequence[tuple[str, str, PolluxResult]], policies: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("workload")
    table.add_column("policy")
    for title in ("avg JCT s", "median JCT s", "p99 JCT s", "makespan s", "GPU hours", "restarts"):
        table.add_column(title, justify="right")
    rows = [described(*one) for one in found]
    measures = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "gpu_hours", "restarts")
    for row in rows:
        table.add_row(row["workload"], row["policy"], *(_number(key, row[key]) for key in measures))
    if len(rows) > len(policies):
        for policy in dict.fromkeys(policies):
            of_it = [row for row in rows if row["policy"] == policy]
            means = (_number(key, sum(row[key] for row in of_it) / len(of_it)) for key in measures)
            table.add_row("mean", policy, *means)
    Console(highlight=False, width=None if Console().is_terminal else 120).print(table)


def _number(measure: str, value: float) -> str:
    return f"{value:,.1f}" if measure.endswith(("avg_jct_s", "hours")) else f"{value:,.0f}"
