"""`gpuloom policy`: the policy of the running scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Group
from gpuloom.cli.live import ago, connect, live_options, plain, say_json, short
from gpuloom.cli.run_options import Duration

if TYPE_CHECKING:
    from gpuloom.live.views.answers import StatusView
    from gpuloom.live.views.cluster_answers import PolicyView


@click.group(cls=Group, aliases={"list": "ls"})
def policy() -> None:
    """Show or swap the policy of the running scheduler.

    \b
    Examples:
      gpuloom policy get
      gpuloom policy show
      gpuloom policy set muri-l
      gpuloom policy set 'fifo:backfill=easy' --interval 30s
      gpuloom policy ls
    """


@policy.command("get")
@live_options
def get_policy(as_json: bool, home: Path | None) -> None:
    """Show the policy in use."""
    with connect(home) as client:
        found = client.policy()
    say_json(found) if as_json else _say(found)


@policy.command("show")
@live_options
def show_policy(as_json: bool, home: Path | None) -> None:
    """Show its parameters, what it lacks, and its own state.

    \b
    What it has of states:
      hlas                            queues, attained service of each job against mean and threshold
      elastic, elastic-goodput, weave the pool, sizes of jobs, who grew and shrank and why
      rl                              its table, epsilon, visits, how much it still changes
      tiresias, gittins               levels of attained service
      gavel                           shares by GPU model
    """
    from gpuloom.cli.policy_state import say_policy

    with connect(home) as client:
        found = client.policy(state=True)
    if as_json:
        say_json(found)
        return
    _say(found)
    say_policy(found)


@policy.command("set")
@click.argument("written", metavar="POLICY")
@click.option("--interval", type=Duration(), metavar="TIME", help="New time between preemptions.")
@live_options
def set_policy(written: str, interval: float | None, as_json: bool, home: Path | None) -> None:
    """Swap the policy. Running jobs keep running, and no job is lost.

    POLICY is written as for gpuloom simulate: ID, or ID:name=value;name=value.
    """
    if not written.strip():
        raise click.UsageError("which policy? gpuloom policies lists them")
    from gpuloom.facts.inputs import with_whole_paths

    with connect(home) as client:
        if "=" in written:  # the scheduler, which reads the files that are named, has a folder of its own
            written = with_whole_paths(written, Path.cwd())
        found = client.set_policy(written, interval_s=interval)
    say_json(found) if as_json else _say(found)


@policy.command("ls")
@live_options
def list_policies(as_json: bool, home: Path | None) -> None:
    """List the policies that can be set, and mark the one in use."""
    from gpuloom.cli.live_tables import Column, show_table
    from gpuloom.cli.policies import describe
    from gpuloom.policies.registry import policy_class, policy_ids

    with connect(home) as client:
        present = client.policy()["policy"]
    rows = [describe(policy_class(name), name) for name in policy_ids()]
    for row in rows:
        row["decides"] = row["id"] == present.partition(":")[0]
    if as_json:
        say_json(rows)
        return
    columns: Sequence[Column[dict[str, Any]]] = (
        Column("", lambda row: "*" if row["decides"] else ""),
        Column("policy", lambda row: str(row["id"])),
        Column("needs to know", lambda row: str(row["knows"]), gives=True),
        Column("preemptive", lambda row: str(row["preemptive"]), least=80),
        Column("what", lambda row: str(row["summary"]), gives=True),
    )
    show_table(columns, rows)
    click.echo()
    click.echo(plain(f"* in use: {present}. Parameters of one: gpuloom policies ID"))


def preempts(found: PolicyView | StatusView) -> str:
    """'srtf, preempts at most every 6m 00s', 'fifo, never preempts': of a policy that is set, with its interval."""
    from gpuloom.core.errors import PolicyError
    from gpuloom.policies.base import Preemptive
    from gpuloom.policies.registry import create_policy, parse_policy

    written, interval = found["policy"], short(found["interval_s"])
    try:
        policy = create_policy(written)
    except PolicyError:  # one that only the scheduler knows
        return f"{written}, interval {interval}"
    when = policy.traits.preemptive
    if when is Preemptive.NO:
        moves = policy.moves_running and "upgrade" in parse_policy(written)[1]
        return f"{written}, never preempts" + (", but moves jobs to faster GPUs that stand idle" if moves else "")
    if policy.preempts_at_intervals and found["interval_s"]:
        return f"{written}, preempts at most every {interval}"
    at_times = when in (Preemptive.AT_ROUNDS, Preemptive.AT_LEASE_ENDS)
    return f"{written}, preempts {when}" if at_times else f"{written}, preempts"


def _say(found: PolicyView) -> None:
    text = f"{preempts(found)}, set {ago(found['since_s'])}"
    if found["previous"]:
        text += f"; before: {found['previous']}"
    if found["serves"] != found["policy"]:
        text += f". It fails: {found['serves']} is used in its place (gpuloom status says why)"
    click.echo(plain(text))
