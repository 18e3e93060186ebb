"""`gpuloom policies`."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gpuloom.cli.live_tables import Column, show_table
from gpuloom.core.errors import PolicyError


def _shares(row: Mapping[str, Any]) -> str:
    """Whether a policy shares GPUs."""
    if row["sharing"]:
        return "yes"
    return f"with {row['sharing_with']}" if row["sharing_with"] else "no"


COLUMNS: Sequence[Column[Mapping[str, Any]]] = (
    Column("policy", lambda row: str(row["id"])),
    Column("what", lambda row: str(row["summary"]), gives=True),
    Column("needs to know", lambda row: str(row["knows"]), gives=True, least=128),
    Column("preemptive", lambda row: str(row["preemptive"]), least=142),
    Column("GPU models", lambda row: "yes" if row["heterogeneity"] else "no", least=156),
    Column("weights", lambda row: str(row["weights"]) or "ignored", gives=True, least=184),
    Column("shares GPUs", _shares, least=170),
)
"""Without a terminal, all are printed."""


@click.command()
@click.argument("policy", required=False)
@click.argument("checked", required=False, metavar="[NAME]")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="With check: the policy to check.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(policy: str | None, checked: str | None, seed: int, as_json: bool) -> None:
    """List the scheduling policies, or show the parameters of one and what it needs to know.

    `policies check NAME` tries a policy, yours or a shipped one, as the simulator and the live scheduler use it: with
    restarts, renumbered jobs, GPUs that come and go, and policy swaps. NAME is an id with its parameters, or a class
    (my_package.policies:Mine, mine.py:Mine). Exit code 1: a check failed.

    \b
    Examples:
      gpuloom policies
      gpuloom policies tiresias
      gpuloom policies check 'user-fair:charge=job'
      gpuloom policies check ./mine.py:Mine
    """
    from gpuloom.policies.registry import create_policy, parse_policy, policy_class, policy_ids

    if policy == "check":
        if checked is None:
            raise click.UsageError("check needs the name of a policy: gpuloom policies check tiresias")
        _check(checked, seed, as_json)
        return
    if checked is not None:
        raise click.UsageError(f"{checked!r} is one argument too many (gpuloom policies check NAME)")

    name, values = parse_policy(policy) if policy else ("", {})
    if values:  # what it is with these parameters
        rows = [describe(create_policy(policy or ""), name)]
    else:
        rows = [describe(policy_class(one), one) for one in ([name] if policy else policy_ids())]
    if as_json:
        click.echo(json.dumps(rows[0] if policy else rows, indent=2))
    elif policy:
        _show(rows[0])
    else:
        show_table(COLUMNS, rows)
        click.echo("\nMore on one: gpuloom policies ID. Which to take: docs/reference/policies.md")


def _check(name: str, seed: int, as_json: bool) -> None:
    from gpuloom.live.trial.check import check_policy

    said = logging.getLogger("gpuloom")
    level = said.level
    said.setLevel(logging.CRITICAL + 1)  # what the scheduler on paper says is in the findings
    findings = []
    try:
        for found in check_policy(_known(name), seed=seed):
            findings.append(found)
            if not as_json:
                why = f": {found.why}" if found.why else ""
                at = f" ({found.where})" if found.where and found.where not in found.why else ""
                click.echo(f"{found.outcome:<8}{found.check}{why}{at}")
    finally:
        said.setLevel(level)
    failed = sum(found.outcome == "failed" for found in findings)
    if as_json:
        click.echo(json.dumps({"policy": name, "ok": not failed, "checks": [f.view() for f in findings]}, indent=2))
    else:
        skipped = sum(found.outcome == "skipped" for found in findings)
        held = len(findings) - failed - skipped
        click.echo(
            f"\n{name}: {held} of {len(findings) - skipped} checks hold" + f", {skipped} skipped" * (skipped > 0)
        )
    if failed:
        raise click.exceptions.Exit(1)


def _known(name: str) -> str:
    """What `load_policy` takes for this policy; a class that no package adds is made known first."""
    from gpuloom.policies.registry import ALIASES, give, policy_ids

    source, _, cls = name.rpartition(":")
    if not source or not cls.isidentifier() or name.partition(":")[0] in (*policy_ids(), *ALIASES):
        return name
    try:
        if source.endswith(".py"):
            # Under a name of its own: random.py must not take the place of the standard library's.
            spec = importlib.util.spec_from_file_location(f"gpuloom_policy_{Path(source).stem}", source)
            assert spec is not None  # noqa: S101 - of a .py file there always is one
            assert spec.loader is not None  # noqa: S101
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # dataclasses look their module up
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(source)
        found = getattr(module, cls)
    except (Exception, SystemExit) as error:
        raise PolicyError(f"policy {name!r} can't be loaded: {type(error).__name__}: {error}") from error
    return give(found, f"policy {name!r}")


def _show(row: Mapping[str, Any]) -> None:
    lines = [
        ("policy", f"{row['id']}: {row['summary']}"),
        ("by", row["paper"]),
        ("needs to know", row["knows"]),
        ("preemptive", row["preemptive"]),
        ("GPU models", "tells them apart" if row["heterogeneity"] else "are all equally fast to it"),
        ("shares GPUs", _shares(row)),
        ("weights", row["weights"] or "it ignores them"),
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
    from gpuloom.policies.beside import BESIDE, P99, SPEED

    return () if cls.max_jobs_per_gpu > 1 or cls.resizes else (BESIDE, SPEED, P99)


def describe(cls: Any, name: str) -> dict[str, Any]:
    """A policy, a class or one with its parameters, as plain values."""
    traits = cls.traits
    return {
        "id": name,
        "summary": traits.summary,
        "knows": traits.knows,
        "preemptive": traits.preemptive,
        "heterogeneity": traits.heterogeneity,
        "sharing": traits.sharing,
        "sharing_with": "" if traits.sharing else cls.shares_with,
        "paper": traits.paper,
        "weights": traits.weights,
        "parameters": [
            {"name": p.name, "default": p.default if p.shown is None else p.shown, "help": p.help}
            for p in (*cls.parameters, *pair_parameters(cls))
        ],
    }
