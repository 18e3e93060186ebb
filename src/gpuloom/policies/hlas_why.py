"""How `hlas` explains its moves: codes, numbers, sentences. Used only for jobs that are being explained."""

from __future__ import annotations

from collections.abc import Mapping

from gpuloom.core.columns import ints
from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8


class Explanations:
    """Reasons of one pass. `about`: jobs to be explained; `why`: what was said of them."""

    def __init__(self, snapshot: Snapshot, per_gpu: F8, about: frozenset[int], *, iterations: bool) -> None:
        self._workload, self._models = snapshot.workload, snapshot.cluster.models
        self._per_gpu, self.about = per_gpu, about
        self._unit = "it/s" if iterations else "GPUs at full worth"
        self.why: dict[int, Reason] = {}

    def _add(self, job: int, code: str, text: str, numbers: Mapping[str, float]) -> None:
        before = self.why.get(job)
        if before is not None:
            text, numbers = f"{before.text} {text}", {**before.numbers, **numbers}
        self.why[job] = Reason(code, text, numbers)

    def demoted(self, job: int, service: float, limit: float, ratio: float, *, needed: bool) -> None:
        text = (
            f"Its attained service {service:.4g} is above {ratio:g} times {limit / ratio:.4g}, the mean of the running "
            "jobs" + (", and a job of Q1 needs its GPUs" if needed else "") + ": it is suspended to Q2."
        )
        numbers = {"attained": service, "mean": limit / ratio, "limit": limit, "priority_threshold_ratio": ratio}
        self._add(job, "demoted", text, numbers)

    def promoted(self, job: int, waited_s: float, ran_s: float, ratio: float) -> None:
        text = (
            f"It waited {waited_s:.0f} s in Q2, more than {ratio:g} times the {ran_s:.0f} s that it ran: it is in Q1 "
            "again, with its service reset to 0."
        )
        self._add(job, "promoted", text, {"waited_s": waited_s, "ran_s": ran_s, "starve_threshold_ratio": ratio})

    def placed(self, job: int, onto: int, attained: float, *, from_q2: bool) -> None:
        text = f"Of the GPU models with room for it {self._models[onto]} is where it is fastest; " + (
            "Q1 could not use these GPUs, so Q2 was offered them." if from_q2 else "no swap with a running job gains."
        )
        self._add(job, "placed_from_q2" if from_q2 else "placed_from_q1", text, {"attained": attained})

    def swapped(self, job: int, other: int, onto: int, pool: int, gain: float) -> None:
        """`other` moves from `pool` to `onto`, and `job` takes its place."""
        if not self.about & {job, other}:
            return
        gpus = ints(self._workload.gpus)
        n_i, n_s = gpus[other], gpus[job]
        i_k, i_j = float(self._per_gpu[other, onto]), float(self._per_gpu[other, pool])
        s_j, s_k = float(self._per_gpu[job, pool]), float(self._per_gpu[job, onto])
        k, j = self._models[onto], self._models[pool]
        formula = f"{n_i}·({i_k:.4g} - {i_j:.4g}) + {n_s}·({s_j:.4g} - {s_k:.4g}) = {gain:.4g} {self._unit}"
        numbers = {"gain": gain, "n_i": n_i, "n_s": n_s, "i_on_k": i_k, "i_on_j": i_j, "s_on_j": s_j, "s_on_k": s_k}
        if job in self.about:
            text = (
                f"It could have started on {k}. Job {self._workload.job_id(other)} moved there from {j} instead and "
                f"made room: total throughput gains {formula}."
            )
            self._add(job, "swapped_in", text, {**numbers, "other": other})
        if other in self.about:
            text = (
                f"It moves from {j} to free {k}, and job {self._workload.job_id(job)} takes its place: total "
                f"throughput gains {formula}."
            )
            self._add(other, "swapped_out", text, {**numbers, "other": job})

    def upgraded(self, job: int, pool: int, onto: int, gain: float) -> None:
        text = (
            f"No waiting job could use the free {self._models[onto]} GPUs. It gains {gain:.4g} {self._unit} over "
            f"{self._models[pool]} there, more than the restart costs."
        )
        self._add(job, "upgraded", text, {"gain": gain})


def waits_in_q2(why: Reason, waited_s: float, ran_s: float, limit_s: float) -> Reason:
    """Why a job of Q2 waits; `why` says so for any job."""
    return Reason(
        why.code if why.code == WaitCode.NOT_ENOUGH_FREE_GPUS else "demoted",
        f"It was suspended to Q2 {waited_s:.0f} s ago, as it had more service than others, and returns to Q1 once it "
        f"has waited {limit_s:.0f} s there. {why.text}",
        {**why.numbers, "waited_s": waited_s, "ran_s": ran_s, "rises_after_s": limit_s},
    )
