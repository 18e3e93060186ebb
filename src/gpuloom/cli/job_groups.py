"""Jobs that share GPUs, in `gpuloom ls --groups` and `show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuloom.cli.live import (
    ago,
    connect,
    plain,
    runs_of,
    say_json,
)
from gpuloom.cli.live_tables import (
    Column,
    show_table,
)

if TYPE_CHECKING:
    from gpuloom.live.views.cluster_answers import GroupMemberView, GroupView
    from gpuloom.live.views.job_answers import (
        ShowView,
    )


def say_groups(home: Path | None, *, as_json: bool) -> None:
    """Jobs that share GPUs, group by group."""
    with connect(home) as client:
        found = client.groups()
    if as_json:
        say_json(found)
        return
    if not found:
        click.echo("no job shares its GPUs with another one")
        return
    rows = [(number, group, member) for number, group in enumerate(found, 1) for member in group["members"]]
    columns: Sequence[Column[tuple[int, GroupView, GroupMemberView]]] = (
        Column("group", lambda row: str(row[0]), right=True),
        Column("id", lambda row: str(row[2]["job"]), right=True),
        Column("name", lambda row: plain(row[2]["name"]), gives=True),
        Column("user", lambda row: plain(row[2]["user"]), gives=True),
        Column("GPUs", lambda row: plain(where_of(row[1]["gpus"])), gives=True),
        Column("since", lambda row: ago(row[1]["since_s"])),
        Column("order", lambda row: _place_in(row[1]["order"], row[2]["job"]), right=True),
        Column("γ", lambda row: _rate(row[1]["efficiency"], ".2f"), right=True),
        Column("expected", lambda row: _rate(row[2]["expected_rate"], ".2f"), right=True),
        Column("measured", lambda row: _rate(row[2]["share"], ".2f"), right=True),
        Column("it/s", lambda row: _rate(_newest(row[2]), ".4g"), right=True),
        Column("alone", lambda row: _rate(row[2]["alone_it_per_s"], ".4g"), right=True),
        Column("gain", lambda row: _rate(row[1]["gain"], ".2f"), right=True),
    )
    show_table(columns, rows)
    click.echo("expected: part of its speed alone that the policy's model of sharing leaves to a job")
    if any(group["gain"] is not None for group in found):
        click.echo("measured: that part as it is; gain: the sum of a group, 1 is as much as one after another")
    if any(group["efficiency"] is not None for group in found):
        click.echo("order: whose stages come first; γ: how busy storage and CPU, GPU and network are, 0 to 1")


def _newest(member: GroupMemberView) -> float | None:
    """Its iterations per second beside the others, else all that it reports."""
    return member["it_per_s"] if member["beside_it_per_s"] is None else member["beside_it_per_s"]


def _place_in(order: Sequence[int] | None, job: int) -> str:
    return "-" if order is None else str(order.index(job) + 1)


def where_of(gpus: Mapping[str, Sequence[int]]) -> str:
    """'host:0,1;other:3'."""
    return ";".join(f"{node}:{','.join(map(str, indices))}" for node, indices in gpus.items())


def beside(found: ShowView, job: int) -> list[tuple[str, str]]:
    """With whom a job shares its GPUs, if with anybody."""
    if (group := found["group"]) is None:
        return []
    others = runs_of(sorted(member["job"] for member in group["members"] if member["job"] != job))
    fits = "" if group["efficiency"] is None else f", γ {group['efficiency']:.2f}"
    gain = "" if group["gain"] is None else f", together {group['gain']:.2f} of one alone"
    lines = [("shares with", f"{others}, since {ago(group['since_s'])}{fits}{gain} (gpuloom ls --groups)")]
    own = next((member for member in group["members"] if member["job"] == job), None)
    if own is not None and own["expected_rate"] is not None and own["expected_from"]:
        lines.append(("expected", f"{own['expected_rate']:.0%} of its speed alone ({own['expected_from']})"))
    return lines


def _rate(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
