"""`gpuloom top`: GPUs and running jobs on the screen, or a job to the top of the queue."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpuloom.cli.control import report
from gpuloom.cli.live import JOBS_HELP, connect, live_options, numbers
from gpuloom.cli.live_tables import GPU_COLUMNS, RATE_COLUMNS, busy_gpus, columns_for, is_slots, troubles
from gpuloom.cli.run_options import Duration
from gpuloom.cli.screen import Screen, Tables
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural


@click.command(epilog=JOBS_HELP)
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--once", is_flag=True, help="Show it once, and exit.")
@click.option("--times", "-n", type=click.IntRange(1), metavar="N", help="Show it N times, and exit.")
@click.option("--every", "every_s", type=Duration(), default="2", show_default=True, metavar="TIME", help="How often.")
@live_options
def top(jobs: tuple[str, ...], once: bool, times: int | None, every_s: float, as_json: bool, home: Path | None) -> None:
    """Watch GPUs and running jobs with their rates, like top(1); or, with JOB, move it to the top of the queue.

    q or Ctrl-C quits. A moved job gets a priority above all other waiting jobs; a priority is never lowered. --json
    prints one object per update, and exits after one unless --times is given.

    \b
    Examples:
      gpuloom top
      gpuloom top --once
      gpuloom top 12
    """
    if jobs:
        if once or times is not None:
            raise click.UsageError("--once and --times are for gpuloom top without a job")
        with connect(home) as client:
            changed = client.top(numbers(client, jobs))
        report(changed, as_json, _moved)
        return
    if once or (times is None and (as_json or not sys.stdout.isatty())):
        times = 1
    with connect(home, follows=times != 1) as client:

        def look() -> dict[str, Any]:
            running = list(client.jobs(states=("running", "starting", "stopping", "frozen"), oldest_first=True))
            return {"status": client.status(), "nodes": client.nodes(), "jobs": running}

        Screen(every_s=every_s, as_json=as_json, times=times).run(look, _tables, _heads)


def _moved(job: Mapping[str, Any]) -> str:
    if job["state"] in ("running", "starting"):
        return "runs already; top moves waiting jobs"
    return f"first in the queue{'' if job['changed'] else ' already'} (priority {job['priority']})"


def _tables(found: Mapping[str, Any]) -> Tables:
    gpus = [(node, gpu) for node in found["nodes"] for gpu in node.get("gpus") or []]
    nodes = found["nodes"]
    return [(columns_for(GPU_COLUMNS, nodes), gpus), (columns_for(RATE_COLUMNS, nodes), found["jobs"])]


def _heads(found: Mapping[str, Any]) -> list[str]:
    status = found["status"]
    counts = status.get("jobs") or {}
    waiting = counts.get("queued", 0)
    up = format_duration(max(round(status["now_s"] - status["started_s"]), 0))
    lines = [
        *troubles(status),
        f"gpuloom {status['version']}, up {up}, policy {status['policy']}; "
        f"{plural(len(found['jobs']), 'job')} on GPUs, {waiting:,} queued, {counts.get('held', 0):,} held",
    ]
    for node in found["nodes"]:
        total = len(node.get("gpus") or [])
        what = "CPU slots" if is_slots(node) else "GPUs"
        used, whole = node.get("memory_used_mib"), node.get("memory_mib")
        parts = [f"{node['name']} {node['state']}", f"{busy_gpus(node)} of {total} {what} busy"]
        if node.get("cpu_percent") is not None:
            parts.append(f"CPU {node['cpu_percent']:.0f}% of {node.get('cpus') or '?'} cores")
        if used is not None and whole:
            parts.append(f"memory {used / 1024:.1f} of {whole / 1024:.1f} GiB")
        if node.get("load") is not None:
            parts.append(f"load {node['load']:.1f}")
        if node.get("reason"):
            parts.append(str(node["reason"]))
        lines.append(", ".join(parts))
    return lines
