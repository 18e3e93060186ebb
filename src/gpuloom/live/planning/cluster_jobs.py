"""What events say of a job that stands for objects of a cluster, which somebody else has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuloom.core.spec import Spec
from gpuloom.live.planning.estimates import Estimates, like_of
from gpuloom.live.records.ledger import Draft


def submitted(number: int, user: str, spec: Spec, name: str, estimates: Estimates) -> Draft:
    """It has come."""
    like = like_of(spec, user, spec.gpus, None)
    estimate = estimates.of(like, given_s=spec.estimate, time_limit_s=spec.time_limit)
    data = {
        "user": user,
        "spec": spec.to_json(),
        "first": number,
        "count": 1,
        "indices": None,
        "held": False,
        "after": [],
        "estimates": [[estimate.total_s, estimate.source.value]],
        "name": name,
    }
    return "jobs.submitted", number, data


def updated(number: int, user: str, spec: Spec, name: str, estimates: Estimates) -> Draft:
    """It asks for something else than before."""
    like = like_of(spec, user, spec.gpus, None)
    estimate = estimates.of(like, given_s=spec.estimate, time_limit_s=spec.time_limit)
    data: Mapping[str, Any] = {
        "spec": spec.to_json(),
        "after": [],
        "estimate_s": estimate.total_s,
        "estimate_from": estimate.source.value,
        "name": name,
    }
    return "job.updated", number, data
