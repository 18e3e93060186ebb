"""Pilots as the API shows them."""

from __future__ import annotations

import math
from typing import Literal, TypedDict, cast

from gpuloom.slurm.pilots import Controller, Pilot
from gpuloom.slurm.script import Request

StateOfPilot = Literal["asked", "pending", "running", "ending"]


class PilotView(TypedDict):
    """An allocation of Slurm. job: its number there, once it is known. nodes: their names, once it has them. gpus: GPUs
    or slots in all. reason: why it waits, in Slurm's word, or why it is given back. until_s: when it ends."""

    job: int | None
    state: StateOfPilot
    node_count: int
    nodes: list[str]
    gpus: int
    reason: str
    since_s: float
    until_s: float | None
    idle_since_s: float | None


class PilotsView(TypedDict):
    """Pilots. on: whether there can be any (`gpuloom up --slurm`). partition: '' for Slurm's default. most_nodes: that
    are asked for at a time; 0 in an allocation that was there before. idle_s: after which an idle one is given back;
    None: never. refused: why the last request failed, in Slurm's words; next_ask_s: when it is tried again. problem:
    why Slurm can't be asked; '' if it can."""

    on: bool
    partition: str
    gpus_per_node: int
    most_nodes: int
    idle_s: float | None
    refused: str
    next_ask_s: float | None
    problem: str
    pilots: list[PilotView]


NO_PILOTS: PilotsView = {
    "on": False,
    "partition": "",
    "gpus_per_node": 0,
    "most_nodes": 0,
    "idle_s": None,
    "refused": "",
    "next_ask_s": None,
    "problem": "",
    "pilots": [],
}
"""Of a scheduler that asks Slurm for nothing."""


def pilots_view(controller: Controller, request: Request, problem: str) -> PilotsView:
    """All that there are. problem: of the thread that looks after them."""
    limits = controller.limits
    return {
        "on": True,
        "partition": request.partition or "",
        "gpus_per_node": limits.gpus_per_node,
        "most_nodes": limits.nodes,
        "idle_s": limits.idle_s if math.isfinite(limits.idle_s) else None,
        "refused": controller.words,
        "next_ask_s": controller.not_before_s if controller.words else None,
        "problem": controller.unseen_words or problem,
        "pilots": [_pilot_view(pilot, limits.gpus_per_node) for pilot in controller.pilots],
    }


def _pilot_view(pilot: Pilot, gpus_per_node: int) -> PilotView:
    return {
        "job": pilot.job,
        "state": cast("StateOfPilot", pilot.state),
        "node_count": pilot.node_count,
        "nodes": list(pilot.nodes),
        "gpus": pilot.node_count * gpus_per_node,
        "reason": pilot.reason,
        "since_s": pilot.since_s,
        "until_s": pilot.until_s,
        "idle_since_s": pilot.idle_since_s,
    }
