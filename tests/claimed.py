"""What the states of claims mean in the records."""

from __future__ import annotations

from collections.abc import Mapping

from gpuloom.core.job import Phase
from gpuloom.live.planning.claims import State

PHASE: Mapping[State, Phase | None] = {
    State.WITHOUT: None,
    **dict.fromkeys((State.WRITTEN, State.ASKED, State.STARTING), Phase.STARTING),
    **dict.fromkeys((State.RUNNING, State.FREEZING), Phase.RUNNING),
    **dict.fromkeys((State.FROZEN, State.THAWING, State.REFREEZING), Phase.FROZEN),
    **dict.fromkeys((State.DOUBTFUL, State.STOPPING), Phase.STOPPING),
}
"""The phase in which the records have the attempt (None: there is none)."""
