"""`gpuloom nodes`, `drain`, `cordon` and `uncordon`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuloom.cli.groups import Choice
from gpuloom.cli.live import connect, live_options, plain, runs_of, say_json
from gpuloom.cli.live_tables import gpu_columns, node_columns, show_table
from gpuloom.core.errors import InputError

if TYPE_CHECKING:
    from gpuloom.live.views.cluster_answers import NodeView

STATES = {"up": "up", "cordon": "cordoned", "cordoned": "cordoned", "drain": "draining", "draining": "draining"}


@click.command()
@click.argument("node", required=False)
@click.argument("state", required=False, type=Choice(list(STATES)), metavar="[up|cordon|drain]")
@click.option("--reason", default="", metavar="TEXT", help="With a state: the reason, shown to others.")
@live_options
def nodes(node: str | None, state: str | None, reason: str, as_json: bool, home: Path | None) -> None:
    """Show nodes and GPUs: what is in use, by whom, and what is out of service and why. Of a NODE also how limits are
    kept there. With a state: set it.

    \b
    Examples:
      gpuloom nodes
      gpuloom nodes node7 --json
      gpuloom nodes node7 up
    """
    if state is not None and node is not None:
        _set(node, STATES[state], reason, as_json, home)
        return
    if reason:
        raise click.UsageError("--reason goes with a state: gpuloom nodes NODE drain --reason TEXT")
    with connect(home) as client:
        found = client.nodes()
    if node is not None:
        known = ", ".join(n["name"] for n in found)
        found = [n for n in found if n["name"] == node]
        if not found:
            raise InputError(f"there is no node {node!r}; nodes: {known}")
    if as_json:
        say_json(found[0] if node is not None else found)
        return
    show_table(node_columns(found), found)
    if gpus := [(n, gpu) for n in found for gpu in n["gpus"]]:
        click.echo()
        show_table(gpu_columns(found), gpus)
    for n in found:
        if links := n["topology"]:
            click.echo(f"\n{plain(n['name'])}: " + ", ".join(f"{a}-{b} {link}" for a, b, link in links))
    if node is not None and found[0]["limits"]:
        click.echo(f"\nhow limits are kept on {plain(node)}:")
        for what, how in found[0]["limits"].items():
            click.echo(f"  {what:<10} {plain(how)}")


def _set(node: str, state: str, reason: str, as_json: bool, home: Path | None) -> None:
    with connect(home) as client:
        changed = client.set_node(node, state, reason=reason)
    _say(changed, as_json)


def _say(node: NodeView, as_json: bool) -> None:
    if as_json:
        say_json(node)
        return
    held = sorted({job for gpu in node["gpus"] for job in gpu["jobs"]})
    state, one = node["state"], len(held) == 1
    text = f"{node['name']}: {state}"
    if state in ("cordoned", "draining"):
        text += "; no new job starts there"
        verb = "keep running" if state == "cordoned" else "move"
        if one:
            verb = "keeps running" if state == "cordoned" else "moves"
        text += f", {'job' if one else 'jobs'} {runs_of(held)} {verb}" if held else ""
    click.echo(plain(text))


@click.command()
@click.argument("node")
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown to others.")
@live_options
def drain(node: str, reason: str, as_json: bool, home: Path | None) -> None:
    """Take a node out of service: no job starts there, and its jobs are preempted and go on elsewhere.

    \b
    Example:
      gpuloom drain node7 --reason 'new driver'
    """
    _set(node, "draining", reason, as_json, home)


@click.command()
@click.argument("node")
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown to others.")
@live_options
def cordon(node: str, reason: str, as_json: bool, home: Path | None) -> None:
    """Start nothing new on a node; jobs that run there keep running.

    \b
    Example:
      gpuloom cordon node7
    """
    _set(node, "cordoned", reason, as_json, home)


@click.command()
@click.argument("node")
@live_options
def uncordon(node: str, as_json: bool, home: Path | None) -> None:
    """Put a cordoned or drained node back into service.

    \b
    Example:
      gpuloom uncordon node7
    """
    _set(node, "up", "", as_json, home)
