"""`gpuloom top`: GPUs and running jobs on the screen, or a job to the top of the queue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from gpuloom.cli.control import SO_ALREADY, act_on_arrays, report, split_large_arrays
from gpuloom.cli.job_groups import where_of
from gpuloom.cli.live import JOBS_HELP, connect, live_options, numbers, plain
from gpuloom.cli.live_tables import busy_gpus, gpu_columns, is_slots, rate_columns, troubles
from gpuloom.cli.run_options import Duration
from gpuloom.cli.screen import Screen, Tables
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.live.views.answers import StatusView
    from gpuloom.live.views.cluster_answers import GroupView, NodeView
    from gpuloom.live.views.job_answers import JobView


class _Look(TypedDict):
    """What `top` looks at."""

    status: StatusView
    nodes: list[NodeView]
    jobs: list[JobView]
    groups: list[GroupView]


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
            arrays, jobs_named = split_large_arrays(client, jobs, as_json)
            act_on_arrays(
                arrays,
                lambda array: client.act_on_array(array, "top"),
                lambda state: "first in the queue",
                SO_ALREADY,
            )
            if arrays and not jobs_named:
                return
            changed = client.top(numbers(client, jobs_named))
        report(changed, as_json, _moved)
        return
    if once or (times is None and (as_json or not sys.stdout.isatty())):
        times = 1
    with connect(home, follows=times != 1) as client:

        def look() -> _Look:
            running = list(client.jobs(states=("running", "starting", "stopping", "frozen"), oldest_first=True))
            groups = client.groups()
            return {"status": client.status(), "nodes": client.nodes(), "jobs": running, "groups": groups}

        Screen(every_s=every_s, as_json=as_json, times=times).run(look, _tables, _heads)


def _moved(job: JobView) -> str:
    if job["state"] in ("running", "starting"):
        return "runs already; top moves waiting jobs"
    return f"first in the queue{'' if job['changed'] else ' already'} (priority {job['priority']})"


def _tables(found: _Look) -> Tables:
    nodes = found["nodes"]
    gpus = [(node, gpu) for node in nodes for gpu in node["gpus"]]
    return [(gpu_columns(nodes), gpus), (rate_columns(nodes, found["status"]["now_s"], found["jobs"]), found["jobs"])]


def _heads(found: _Look) -> list[str]:
    status = found["status"]
    counts = status["jobs"]
    waiting = counts.get("queued", 0)
    up = format_duration(max(round(status["now_s"] - status["started_s"]), 0))
    lines = [
        *troubles(status),
        f"gpuloom {status['version']}, up {up}, policy {status['policy']}; "
        f"{plural(len(found['jobs']), 'job')} on GPUs, {waiting:,} queued, {counts.get('held', 0):,} held",
    ]
    for node in found["nodes"]:
        total = len(node["gpus"])
        what = "CPU slots" if is_slots(node) else "GPUs"
        used, whole = node["memory_used_mib"], node["memory_mib"]
        parts = [f"{node['name']} {node['state']}", f"{busy_gpus(node)} of {total} {what} busy"]
        if node["cpu_percent"] is not None:
            parts.append(f"CPU {node['cpu_percent']:.0f}% of {node['cpus'] or '?'} cores")
        if used is not None and whole:
            parts.append(f"memory {used / 1024:.1f} of {whole / 1024:.1f} GiB")
        if node["load"] is not None:
            parts.append(f"load {node['load']:.1f}")
        if node["reason"]:
            parts.append(node["reason"])
        lines.append(", ".join(parts))
    return [*lines, *map(_group, found["groups"])]


def _group(group: GroupView) -> str:
    """'together on host:0: 12 (0.81), 13 (0.62), gain 1.43': members in the order of their stages."""
    members = {member["job"]: member["share"] for member in group["members"]}
    said = [
        str(job) if (share := members[job]) is None else f"{job} ({share:.2f})" for job in group["order"] or members
    ]
    gain = "not measured yet" if group["gain"] is None else f"measured gain {group['gain']:.2f}"
    return plain(f"together on {where_of(group['gpus'])}: jobs {', '.join(said)}, {gain}")
