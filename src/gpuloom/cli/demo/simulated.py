"""`gpuloom demo --simulate`: policies compared on the traces that are available."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gpuloom.cli.progress import task_progress
from gpuloom.cli.simulate import DEFAULT_POLICIES
from gpuloom.core.words import plural

POLICIES = tuple(DEFAULT_POLICIES.split(","))
REAL = Path("muri/trace3.csv.gz")
CLUSTER = "8x8"


def data_folder() -> Path | None:
    """The folder with real traces: $GPULOOM_DATA, or ../shared/data beside the checkout."""
    told = os.environ.get("GPULOOM_DATA")
    places = [Path(told)] if told else [Path("../shared/data"), Path(__file__).parents[5] / "shared/data"]
    return next((place for place in places if place.is_dir()), None)


def compare_policies(jobs: int, load: float, seed: int, output: Path) -> None:
    """Compare policies on a generated Philly-like trace and, where ../shared/data exists, a real one."""
    from gpuloom import report
    from gpuloom.core.cluster import parse_cluster
    from gpuloom.sim.runner import Task, run_all
    from gpuloom.traces import read_trace
    from gpuloom.traces.generate import GeneratorConfig, generate

    cluster = parse_cluster(CLUSTER)
    workloads = [
        generate(
            GeneratorConfig(
                jobs=jobs,
                gpus=cluster.gpus,
                load=load,
                duration="philly",
                duration_max_s=86_400.0,
                gpu_mix="philly",
                arrival="diurnal",
                opportunistic=0.5,
                seed=seed,
            )
        )
    ]
    data = data_folder()
    if data is not None and (data / REAL).is_file():
        workloads.append(read_trace(data / REAL).workload)
    else:
        click.echo(f"no real trace found ({REAL} in ../shared/data or $GPULOOM_DATA): only the generated one is used")
    for workload in workloads:
        click.echo(f"{workload.name}: {plural(len(workload), 'job')} on {plural(cluster.gpus, 'GPU')} ({CLUSTER})")
    tasks = [Task(workload, cluster, policy) for workload in workloads for policy in POLICIES]
    bars = [(f"{task.policy} · {task.workload.name}", len(task.workload)) for task in tasks]
    with task_progress(bars, quiet=False) as on_progress:
        outcome = run_all(
            tasks, {"record_segments": True}, processes=min(os.cpu_count() or 1, 2), on_progress=on_progress
        )
    report.print_comparison(outcome.done)
    output.mkdir(parents=True, exist_ok=True)
    page = output / "demo.html"
    report.write_html(outcome.done, page)
    click.echo(f"report: {page.resolve().as_uri()}")
    for error in outcome.errors:
        if error is not None:
            raise error
    if outcome.interrupted:
        raise click.Abort
