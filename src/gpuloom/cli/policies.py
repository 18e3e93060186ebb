"""`gpuloom policies`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

import click

from gpuloom.cli.live_tables import Column, show_table

COLUMNS = (
    Column("policy", lambda row: str(row["id"])),
    Column("what", lambda row: str(row["summary"]), gives=True),
    Column("needs to know", lambda row: str(row["knows"]), gives=True, least=128),
    Column("preemptive", lambda row: str(row["preemptive"]), least=142),
    Column("GPU models", lambda row: "yes" if row["heterogeneity"] else "no", least=156),
    Column("shares GPUs", lambda row: "yes" if row["sharing"] else "no", least=170),
)
"""Where no terminal is, all are printed."""


@click.command()
@click.argument("policy", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(policy: str | None, as_json: bool) -> None:
    """List the scheduling policies, or show what one needs to know, and its parameters.

    \b
    Examples:
      gpuloom policies
      gpuloom policies tiresias
    """
    from gpuloom.policies.registry import policy_class, policy_ids

    rows = [describe(policy_class(name), name) for name in ([policy] if policy else policy_ids())]
    if as_json:
        click.echo(json.dumps(rows[0] if policy else rows, indent=2))
    elif policy:
        _show(rows[0])
    else:
        show_table(COLUMNS, rows)
        click.echo("\nMore on one: gpuloom policies ID. Which to take: docs/policies.md")


def _show(row: Mapping[str, Any]) -> None:
    lines = [
        ("policy", f"{row['id']}: {row['summary']}"),
        ("by", row["paper"]),
        ("needs to know", row["knows"]),
        ("preemptive", row["preemptive"]),
        ("GPU models", "tells them apart" if row["heterogeneity"] else "are all alike to it"),
        ("shares GPUs", "yes" if row["sharing"] else "no"),
        ("parameters", "none" if not row["parameters"] else f"{row['id']}:name=value;name=value"),
    ]
    for title, text in lines:
        click.echo(f"{title + ':':<15}{text}")
    for parameter in row["parameters"]:
        click.echo(f"  {parameter['name']} = {parameter['default']}")
        for line in textwrap.wrap(str(parameter["help"]), 72):
            click.echo(f"      {line}")


def pair_parameters(cls: Any) -> tuple[Any, ...]:
    """The parameters of pairs of jobs on one GPU, for a policy that takes them."""
    from gpuloom.policies.beside import BESIDE, SPEED

    return () if cls.max_jobs_per_gpu > 1 or cls.resizes else (BESIDE, SPEED)


def describe(cls: Any, name: str) -> dict[str, Any]:
    """A policy as plain values."""
    traits = cls.traits
    return {
        "id": name,
        "summary": traits.summary,
        "knows": traits.knows,
        "preemptive": traits.preemptive,
        "heterogeneity": traits.heterogeneity,
        "sharing": traits.sharing,
        "paper": traits.paper,
        "parameters": [
            {"name": p.name, "default": p.default if p.shown is None else p.shown, "help": p.help}
            for p in (*cls.parameters, *pair_parameters(cls))
        ],
    }
