"""`gpuloom share top`: the programs that share GPUs, live."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from gpuloom.cli.live import plain, say_json_line, short
from gpuloom.cli.live_tables import Column, show_table
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import InputError
from gpuloom.sharing.rule import reason_name
from gpuloom.sharing.shim import attach as shim
from gpuloom.sharing.shim import shm

LEAST_EVERY_S, MOST_EVERY_S = 0.1, 86_400.0
ADMISSIONS = 8
"""From this code on a reason is one to hold (enum gl_reason in admission.h)."""
COLUMNS: Sequence[Column[Mapping[str, Any]]] = [
    Column("gpu", lambda row: row["gpu"], gives=True),
    Column("program", lambda row: plain(row["program"]), gives=True),
    Column("pid", lambda row: str(row["pid"]), right=True),
    Column("class", lambda row: row["class"]),
    Column("state", lambda row: row["state"]),
    Column("kernels/s", lambda row: f"{row['kernels_per_s']:,.0f}", right=True),
    Column("gpu share", lambda row: f"{row['gpu_share']:.0%}", right=True),
    Column("held", lambda row: f"{row['held_share']:.0%}", right=True),
    Column("held in all", lambda row: short(row["held_s"]), right=True),
    Column("longest", lambda row: f"{row['longest_hold_ms']:.1f} ms", right=True),
    Column("admitted", lambda row: reasons_text(row["admitted"]), gives=True),
    Column("held for", lambda row: reasons_text(row["held_for"]), gives=True),
]


@click.command()
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per update, one per line.")
@click.option("--every", "every_s", type=Duration(), default="1", show_default=True, metavar="TIME", help="How often.")
def top(once: bool, as_json: bool, every_s: float) -> None:
    """Show, for each program on a shared GPU: kernels/s, share of the GPU, held time, and why launches were held.

    Rates are averages between two updates; the share of the GPU is by predicted kernel durations. `admitted` counts
    launches since the program started, by why they were admitted; `held for` counts those that had to wait, by their
    first reason.

    \b
    Examples:
      gpuloom share top
      gpuloom share top --once --json
    """
    if not LEAST_EVERY_S <= every_s <= MOST_EVERY_S:
        raise InputError(f"--every is {every_s:g} s, must be from {LEAST_EVERY_S:g} s to a day")
    folder = shim.shared_folder(os.environ)
    before = look(folder)
    while True:
        time.sleep(every_s)
        after = look(folder)
        rows = [row for path, now in after.items() for row in rows_of(now, before.get(path))]
        problems = [f"{path}: {now.problem}" for path, now in after.items() if now.problem]
        if as_json:
            say_json_line({"folder": str(folder), "programs": rows, "problems": problems})
        else:
            if not once:
                click.clear()
            show_table(COLUMNS, rows) if rows else click.echo(f"no program shares a GPU ({folder})")
            for problem in problems:
                click.echo(problem, err=True)
        if once:
            return
        before = after


def look(folder: Any) -> dict[str, shm.Shared]:
    """The GPUs' files by path."""
    return {str(path): shm.read(path) for path in shm.files(folder)}


def rows_of(now: shm.Shared, before: shm.Shared | None) -> list[dict[str, Any]]:
    """A row for each program of a GPU; rates since `before`, or since the program began if it was not there."""
    earlier = {(p.slot, p.pid, p.attached_ns): p for p in before.programs} if before else {}
    rows = []
    for program in now.programs:
        old = earlier.get((program.slot, program.pid, program.attached_ns))
        from_ns = before.at_ns if before is not None and old is not None else program.attached_ns
        took_s = max((now.at_ns - from_ns) / 1e9, 1e-9)
        waits = max(now.at_ns - program.held_since_ns, 0) if program.held_as is not None else 0
        done = asdict(old) if old else {"kernels": 0, "graphs": 0, "gpu_ns": 0, "held_ns": 0}
        launches = program.kernels + program.graphs - done["kernels"] - done["graphs"]
        rows.append(
            {
                "gpu": now.uuid,
                "program": program.name,
                "pid": program.pid,
                "class": program.klass,
                "state": state_of(program),
                "kernels": program.kernels,
                "graphs": program.graphs,
                "captured": program.captured,
                "kernels_per_s": launches / took_s,
                "gpu_share": min((program.gpu_ns - done["gpu_ns"]) / 1e9 / took_s, 1.0),
                "held_share": min((program.held_ns + waits - done["held_ns"]) / 1e9 / took_s, 1.0),
                "held_s": (program.held_ns + waits) / 1e9,
                "holds": program.holds,
                "longest_hold_ms": program.longest_held_ns / 1e6,
                "requests": program.requests,
                "request_ms": program.request_ns / 1e6,
                "admitted": {reason_name(code): n for code, n in program.reasons.items() if code < ADMISSIONS},
                "held_for": {reason_name(code): n for code, n in program.reasons.items() if code >= ADMISSIONS},
            }
        )
    return rows


def state_of(program: shm.Program) -> str:
    """The state of a program in a word or two."""
    if program.held_as is not None:
        return f"held: {reason_name(program.held_as)}"
    if program.klass == "high":
        return "in a request" if program.busy else "idle"
    return "passing" if program.klass == "exempt" else "running"


def reasons_text(reasons: dict[str, int]) -> str:
    """The reasons with their counts, most frequent first."""
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,}" for name, count in ordered)
