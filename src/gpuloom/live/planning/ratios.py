"""Stage times by which a policy that learns tells jobs apart: compute over communication."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuloom.core.profile import Profiles
from gpuloom.core.workload import Workload


def with_communication(workload: Workload, profiles: Profiles) -> Workload:
    """The workload with those stage times of elastic jobs that were measured on the most GPUs that they may have: on
    one GPU nothing is synchronised, and all jobs would look alike."""
    scaling, stage_s = workload.scaling, workload.stage_s
    if scaling is None or stage_s is None or workload.model is None:
        return workload
    found = stage_s.copy()
    most = scaling.max_gpus
    for row in np.flatnonzero(most > scaling.min_gpus).tolist():
        profile = profiles.find(workload.model[row], int(most[row])) if workload.model[row] else None
        if profile is not None:
            found[row] = profile.three_stages_s
    return replace(workload, stage_s=found)
