"""Kernel profiles of simulated jobs: from the trace's column, or given by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpuloom.core.errors import InputError

if TYPE_CHECKING:
    from gpuloom.core.workload import Workload
    from gpuloom.policies.base import Policy


def with_kernels(workload: Workload, of_model: dict[str, str], policies: list[Policy], *, quiet: bool) -> Workload:
    """The workload with the kernel profiles that were given by model, and, for policies that put jobs beside each other
    kernel by kernel, what is expected of pairs.

    Raises:
        InputError: no job has this model, or a profile can't be had.
    """
    from gpuloom.core.workload import Labels

    models = workload.model
    if lacking := [model for model in of_model if models is None or model not in models.names]:
        raise InputError(f"--kernel-profile {lacking[0]}=…: {workload.name} has no job of model {lacking[0]!r}")
    if of_model and models is not None:
        own = workload.kernel_profile
        texts = [(own[job] if own is not None else "") or of_model.get(models[job], "") for job in range(len(workload))]
        workload = replace(workload, kernel_profile=Labels.of(texts))
    if workload.kernel_profile is None or not any(policy.pairs for policy in policies):
        return workload
    from gpuloom.sharing.expected import with_kernel_pairs

    made = with_kernel_pairs(workload)
    for note in () if quiet else made.notes[len(workload.notes) :]:
        click.echo(f"note: {note}", err=True)
    return made


def profiles_by_model(texts: Sequence[str]) -> dict[str, str]:
    """Kernel profiles by the model of jobs, of MODEL=NAME each. Raises InputError: one is not of that form."""
    found = {}
    for text in texts:
        model, equals, name = text.partition("=")
        if not (model.strip() and equals and name.strip()):
            raise InputError(f"--kernel-profile {text}: write MODEL=NAME, such as resnet50=resnet50:30%")
        found[model.strip()] = name.strip()
    return found
