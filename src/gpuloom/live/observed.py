"""A cluster that is watched only, as the API sees it: everything can be read, and nothing be done to its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuloom.core.errors import ConflictError
from gpuloom.core.job import NodeState
from gpuloom.executors.no_files import NoFiles
from gpuloom.executors.node import RunFiles
from gpuloom.live.facade import LiveService
from gpuloom.live.service import LogOf
from gpuloom.live.sights import Sights
from gpuloom.live.submission.actions import Action
from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.views.answers import StatusView
from gpuloom.live.views.cluster import executor_view, sharing_view
from gpuloom.live.views.cluster_answers import NodeView
from gpuloom.live.views.job_answers import JobView, ShowView, WhyView
from gpuloom.live.watching import Watching


def _refused(what: str) -> ConflictError:
    return ConflictError(f"the cluster is only observed, so {what}: use kubectl, or what you use there")


class ObservedService(LiveService):
    """Implements `Service` (live/service.py) on a scheduler that carries nothing out."""

    def __init__(self, watching: Watching, sights: Sights, **more: Any) -> None:
        """more: as LiveService has it."""
        super().__init__(watching.scheduler, sights, links=watching.problem, **more)
        self._watching = watching

    def why(self, job: int, *, forecast: bool = True) -> WhyView:
        view, record = super().why(job, forecast=forecast), self._watching.track_record.record
        if view["start_s_median"] is not None and view["start_s"] is None and record is not None:
            view["numbers"] = {**view["numbers"], "start_off_s": record.off_s}
            view["sentences"].append(record.sentence)
        return view

    def show(self, job: int) -> ShowView:
        view = super().show(job)
        namespace, pods = self._watching.scheduler.pods_of(job)
        view["log"] = f"kubectl logs -n {namespace} {pods[0]}" if pods else ""
        return view

    def submit(
        self, specs: Sequence[JobSpec], *, user: str, idempotency_key: str | None = None
    ) -> Sequence[Sequence[int]]:
        raise _refused("it takes no jobs")

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> Sequence[JobView]:
        raise _refused("it can't cancel jobs")

    def hold(self, jobs: Sequence[int]) -> Sequence[JobView]:
        raise _refused("it can't hold jobs")

    def release(self, jobs: Sequence[int]) -> Sequence[JobView]:
        raise _refused("it can't release jobs")

    def suspend(self, jobs: Sequence[int]) -> Sequence[JobView]:
        raise _refused("it can't suspend jobs")

    def resume(self, jobs: Sequence[int]) -> Sequence[JobView]:
        raise _refused("it can't resume jobs")

    def requeue(self, jobs: Sequence[int]) -> Sequence[JobView]:
        raise _refused("it can't requeue jobs")

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Sequence[JobView]:
        raise _refused("it can't change jobs")

    def move_to_top(self, jobs: Sequence[int]) -> Sequence[JobView]:
        raise _refused("it can't move jobs")

    def act_on_array(self, array: int, action: Action, *, grace_s: float | None = None) -> Mapping[str, int]:
        raise _refused("it can't act on jobs")

    def update_array(self, array: int, changes: Mapping[str, Any]) -> Mapping[str, int]:
        raise _refused("it can't change jobs")

    def set_node(self, node: str, state: NodeState, *, reason: str = "") -> NodeView:
        raise _refused("it can't open or close nodes")

    def stop(self, *, stop_jobs: bool) -> None:
        if stop_jobs:
            raise _refused("it can't stop jobs")
        super().stop(stop_jobs=False)

    def files_of(self, log: LogOf) -> RunFiles:
        return NoFiles(log.node, why="the cluster is only observed: kubectl logs has what its jobs write")

    def status(self) -> StatusView:
        view = super().status()
        told = view["executor"]
        view["executor"] = executor_view(f"Kubernetes, observed: {self._watching.cluster}", told["problem"], {})
        view["sharing"] = sharing_view(on=False, gated=False, text="nothing is started here")
        return view
