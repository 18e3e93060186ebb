"""A policy's own state, printed: `gpuloom policy show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from gpuloom.bounded.text import cut
from gpuloom.cli.live import ago, plain, short
from gpuloom.cli.live_tables import Column, show_table
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.live.views.cluster_answers import PolicyView
    from gpuloom.live.views.policy_answers import (
        ElasticPoolView,
        ElasticSizeView,
        ElasticStateView,
        HlasJobView,
        HlasStateView,
        LevelJobView,
        LevelsStateView,
        ParameterView,
        PolicyStateView,
        ResizedView,
        RlStateView,
        ShareJobView,
        SharesStateView,
    )

Row = TypeVar("Row")

ENTRIES = 3
"""Of each group of `rl`, so many placements are printed; --json has all."""
CHANGES = 10
"""So many changes of sizes are printed; --json has 50."""
WIDEST = 40
"""Characters of a value (facts about all GPU models may be one) that are printed; --json has all."""
WHY = {
    "below_expand_threshold": "the pool was used less than ET",
    "above_shrink_threshold": "the pool was used more than ST",
    "as_asked": "the size that it asks for was free",
    "gains": "it is faster so",
    "given_back": "a job that waited needed what it had borrowed",
}


def say_policy(found: PolicyView) -> None:
    """Parameters, what lacks, and the state."""
    if found["parameters"]:
        columns: Sequence[Column[ParameterView]] = (
            Column("parameter", lambda row: row["name"]),
            Column("value", lambda row: plain(cut(row["value"], WIDEST))),
            Column("default", lambda row: plain(cut(row["default"], WIDEST))),
            Column("what", lambda row: row["help"], gives=True, least=100),
        )
        click.echo()
        show_table(columns, found["parameters"])
    for lack in found["lacks"]:
        click.echo()
        click.echo(plain(f"lacks {lack['input']}: {lack['text']}"))
    click.echo()
    if found["state_problem"]:
        click.echo(plain(f"its state can't be told: {found['state_problem']}"))
    elif found["state"] is None:
        click.echo("it has not decided anything yet, so it has no state")
    else:
        say_state(found["state"])


def say_state(state: PolicyStateView) -> None:
    """Tables of a state."""
    if state["kind"] == "none":
        click.echo("it keeps no state of its own: it goes by who waits, who runs, and since when")
    elif state["kind"] == "hlas":
        _hlas(state)
    elif state["kind"] == "levels":
        _levels(state)
    elif state["kind"] == "shares":
        _shares(state)
    elif state["kind"] == "elastic":
        _elastic(state)
    else:
        _rl(state)


def _hlas(state: HlasStateView) -> None:
    click.echo(
        f"attained service: mean of the running jobs {state['mean']:,.1f}; above {state['threshold']:,.1f} "
        f"(× {state['priority_threshold_ratio']:g}) a running job is to be suspended"
    )
    if len(state["performance"]) > 1:
        click.echo("performance: " + ", ".join(f"{plain(m)} {p:g}" for m, p in state["performance"].items()))
    columns: Sequence[Column[HlasJobView]] = (
        Column("id", lambda row: str(row["job"]), right=True),
        Column("queue", lambda row: row["queue"]),
        Column("GPUs", lambda row: str(row["gpus"]), right=True),
        Column("model", lambda row: plain(row["gpu_model"]) or "-"),
        Column("attained", lambda row: f"{row['attained']:,.1f}" + (" over" if row["over"] else ""), right=True),
        Column("waited", lambda row: "-" if row["queue"] == "running" else short(row["waited_s"]), right=True),
        Column("ran", lambda row: short(row["ran_s"]), right=True),
        Column("to Q1 after", lambda row: short(row["promoted_after_s"]), right=True),
    )
    _jobs(columns, state["jobs"])


def _levels(state: LevelsStateView) -> None:
    limits = ", ".join(f"{limit:,.0f}" for limit in state["limits_gpu_s"])
    click.echo(f"levels of attained service end at {limits or 'no limit'} GPU-seconds")
    columns: Sequence[Column[LevelJobView]] = (
        Column("id", lambda row: str(row["job"]), right=True),
        Column("level", lambda row: "-" if row["level"] < 0 else str(row["level"]), right=True),
        Column("state", lambda row: "running" if row["running"] else "waiting"),
        Column("GPUs", lambda row: str(row["gpus"]), right=True),
        Column("attained, GPU-s", lambda row: f"{row['attained_gpu_s']:,.1f}", right=True),
    )
    _jobs(columns, state["jobs"])


def _shares(state: SharesStateView) -> None:
    stale = "; jobs have come or gone since" if state["stale"] else ""
    click.echo(f"shares made {ago(state['solved_s'])}{stale}; the next round begins {ago(state['round_at_s'])}")

    def of_model(place: int, model: str) -> Column[ShareJobView]:
        return Column(
            plain(model), lambda row: f"{row['share'][place]:.2f} ({short(row['received_s'][place])})", right=True
        )

    columns: Sequence[Column[ShareJobView]] = (
        Column("id", lambda row: str(row["job"]), right=True),
        Column("on", lambda row: plain(row["on"]) or "-"),
        *(of_model(place, model) for place, model in enumerate(state["gpu_models"])),
    )
    _jobs(columns, state["jobs"])


def _pool(pool: ElasticPoolView) -> None:
    t = "infinite" if pool["utilization"] is None else f"{pool['utilization']:.2f}"
    click.echo(
        f"pool: A {pool['cluster_gpus']} GPUs, a {pool['used_gpus']} in use, M {pool['pool_gpus']:g}, EU "
        f"{pool['elastic_gpus']}"
    )
    click.echo(
        f"t = EU / M = {t}, between ET {pool['expand_threshold']:g} and ST {pool['shrink_threshold']:g}: "
        f"{pool['action']}" + (f", budget {pool['budget_gpus']:g} GPUs" if pool["action"] != "hold" else "")
    )
    looked = "never looked at" if pool["checked_s"] is None else f"looked at {ago(pool['checked_s'])}"
    due = "once something happens" if pool["check_at_s"] is None else ago(pool["check_at_s"])
    click.echo(f"{looked}, next {due}")


def _elastic(state: ElasticStateView) -> None:
    if state["pool"] is not None:
        _pool(state["pool"])
    columns: Sequence[Column[ElasticSizeView]] = (
        Column("id", lambda row: str(row["job"]), right=True),
        Column("GPUs", lambda row: str(row["gpus"]), right=True),
        Column("fewest", lambda row: str(row["smallest"]), right=True),
        Column("asked", lambda row: str(row["asked"]), right=True),
        Column("most", lambda row: str(row["largest"]), right=True),
        Column("grew", lambda row: str(row["expansions"]), right=True),
        Column("shrank", lambda row: str(row["shrinks"]), right=True),
    )
    _jobs(columns, state["jobs"], "elastic jobs run")
    if state["changes"]:
        changes: Sequence[Column[ResizedView]] = (
            Column("when", lambda row: ago(row["at_s"])),
            Column("id", lambda row: str(row["job"]), right=True),
            Column("GPUs", lambda row: f"{row['from_gpus']} → {row['to_gpus']}"),
            Column("why", lambda row: WHY[row["why"]], gives=True),
        )
        click.echo()
        show_table(changes, state["changes"][-CHANGES:])
    click.echo()
    click.echo(plain(f"base policy: {state['base_policy']}"))
    if state["base"]["kind"] != "none":
        say_state(state["base"])


def _rl(state: RlStateView) -> None:
    size = f"{len(state['groups'])} × {state['placements']}"
    click.echo(
        f"table: {size} (groups × placements), {plural(state['tried'], 'entry', 'entries')} tried, "
        f"{plural(state['updates'], 'update')}; mean |ΔQ| of the last ones {state['mean_change']:.4f}"
    )
    click.echo(
        f"mode {plain(state['mode'])}, epsilon {state['epsilon']:.3f} after {plural(state['handled'], 'job')}; groups "
        f"are formed anew in {plural(state['regroups_in'], 'job')}"
    )
    if state["rewarded"]:
        click.echo(
            f"{plural(state['rewarded'], 'placement')} rewarded; mean reward of the last "
            f"ones {state['mean_reward']:.3f}"
        )
    for group in state["groups"]:
        ratio = "unknown" if group["ratio"] is None else f"{group['ratio']:.3g}"
        best = [
            f"{plain(entry['placement'])} {entry['value']:.3f} ({plural(round(entry['visits']), 'visit')})"
            for entry in group["entries"][:ENTRIES]
            if entry["value"] is not None
        ]
        click.echo(f"compute/communication {ratio}: {', '.join(best) or 'nothing tried yet'}")


def _jobs(columns: Sequence[Column[Row]], rows: Sequence[Row], what: str = "jobs wait or run") -> None:
    show_table(columns, rows) if rows else click.echo(f"no {what}")
