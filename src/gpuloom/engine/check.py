"""The check that every plan passes before anything is applied."""

from __future__ import annotations

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import ints
from gpuloom.core.decision import Placement
from gpuloom.core.errors import PlanError
from gpuloom.core.workload import Workload
from gpuloom.placement.shapes import model_allowed


class PlanCheck:
    """Gangs whole, GPUs that exist, one GPU model, and one that the job accepts.

    That no GPU is given twice is checked by the state itself when the placement is taken.
    """

    def __init__(self, workload: Workload, cluster: Cluster, layers: int) -> None:
        self._workload, self._cluster, self._layers = workload, cluster, layers
        self._gpus = ints(workload.gpus)
        self._full = [(1 << node.gpus) - 1 for node in cluster.nodes]
        self._one_model = len(cluster.models) == 1 and workload.gpu_type is None

    def __call__(self, job: int, placement: Placement) -> None:
        """Raises PlanError when the placement breaks a rule."""
        nodes, masks = placement.nodes, placement.masks
        total = 0
        for node, mask in zip(nodes, masks, strict=True):
            if not 0 <= node < len(self._full) or mask <= 0 or mask > self._full[node]:
                self._fail(job, placement, f"node {node} has no GPUs {mask:#x}")
            total += mask.bit_count()
        if total != self._gpus[job]:
            self._fail(job, placement, f"it needs {self._gpus[job]} GPUs at once and was given {total}")
        if len(nodes) > 1 and len(set(nodes)) != len(nodes):
            self._fail(job, placement, "a node is named twice")
        if not 0 <= placement.layer < self._layers:
            self._fail(job, placement, f"the policy declared {self._layers} sharing layers")
        if not self._one_model:
            self._check_model(job, placement)

    def _check_model(self, job: int, placement: Placement) -> None:
        models = {self._cluster.nodes[node].gpu_model for node in placement.nodes}
        if len(models) > 1:
            self._fail(job, placement, f"a gang stays on one GPU model, not {sorted(models)}")
        wanted = self._workload.gpu_type[job] if self._workload.gpu_type is not None else ""
        if not model_allowed(wanted, models.pop()):
            self._fail(job, placement, f"it accepts only {wanted}")

    def _fail(self, job: int, placement: Placement, why: str) -> None:
        raise PlanError(f"bad plan for job {self._workload.job_id(job)}, {placement}: {why}")
