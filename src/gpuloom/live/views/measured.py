"""What hooks measured of a job's run, as the API answers it."""

from __future__ import annotations

from gpuloom.core.measured import Measured
from gpuloom.facts.measured_profiles import DOUBTS, advice_of
from gpuloom.files.hook_records import Hooked
from gpuloom.live.views.job_answers import HooksView, MeasuredView


def hooks_view(hooked: Hooked) -> HooksView:
    """What is seen of its Python, and its profile."""
    return {
        "seen": hooked.sight.value,
        "iterations": 0 if hooked.training is None else hooked.training.iterations,
        "measured": None if hooked.measured is None else measured_view(hooked.measured),
        "links": [{"tracker": link.tracker.value, "where": link.where} for link in hooked.links],
        "log": [*hooked.refused, *hooked.log],
    }


def measured_view(measured: Measured) -> MeasuredView:
    """A profile; the names are those of `Measured`."""
    m, advice = measured, advice_of(measured)
    return {
        "framework": m.framework,
        "iterations": m.iterations,
        "first_step": m.first_step,
        "steps": m.steps,
        "began_s": m.began_s,
        "at_s": m.at_s,
        "timed": m.timed,
        "it_per_s": m.rate_per_s,
        "iteration_s": m.iteration_s,
        "storage_s": m.storage_s,
        "cpu_s": m.cpu_s,
        "gpu_s": m.gpu_s,
        "network_s": m.network_s,
        "turn_s": m.turn_s,
        "rest_s": m.rest_s,
        "stages_s": list(m.stages_s),
        "compute_ratio": m.compute_ratio,
        "noise": m.noise,
        "drift": m.drift,
        "prefetches": m.prefetches,
        "workers": m.workers,
        "batches": m.batches,
        "batch_size": m.batch_size,
        "memory_mib": m.memory_mib,
        "world_size": m.world_size,
        "cores": m.cores,
        "doubts": [doubt.value for doubt in m.doubts],
        "not_measured": [DOUBTS[doubt] for doubt in m.doubts],
        "advice": advice.text,
        "advice_saves": advice.saves,
    }
