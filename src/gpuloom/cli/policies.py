"""`gpuloom policies`."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.argument("policy", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(policy: str | None, as_json: bool) -> None:
    """List the scheduling policies, or show the parameters of one."""
    from gpuloom.policies.registry import policy_class, policy_ids

    rows = [describe(policy_class(name), name) for name in ([policy] if policy else policy_ids())]
    if as_json:
        click.echo(json.dumps(rows[0] if policy else rows, indent=2))
        return
    if policy:
        row = rows[0]
        click.echo(f"{row['id']}: {row['summary']} ({row['paper']})")
        click.echo(f"knows: {row['knows']}; preemptive: {row['preemptive']}")
        for parameter in row["parameters"]:
            click.echo(f"  {parameter['name']} = {parameter['default']}: {parameter['help']}")
        if not row["parameters"]:
            click.echo("  no parameters")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("policy", "what", "needs to know", "preemptive", "GPU models", "shares GPUs"):
        table.add_column(title, no_wrap=title == "policy")
    for row in rows:
        table.add_row(
            row["id"],
            row["summary"],
            row["knows"],
            row["preemptive"],
            "yes" if row["heterogeneity"] else "no",
            "yes" if row["sharing"] else "no",
        )
    Console(highlight=False).print(table)
    click.echo("\nParameters of one: gpuloom policies ID; to set them: ID:name=value;name=value")
    click.echo("With beside=yes, those that don't share GPUs put best-effort jobs beside high-priority ones.")


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
