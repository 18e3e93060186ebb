"""What `gpuloom up` and `gpuloom observe` are given of a cluster. Light: the command line reads it, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ObserveOptions:
    """What `gpuloom observe` is given of the cluster. namespaces: none: all. gpu_resources: names under which nodes
    offer GPUs; none: the usual ones."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespaces: tuple[str, ...] = ()
    gpu_resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """What `gpuloom up` is given of the cluster.

    namespace: None: the context's own. image: of jobs that name none. pod_template: a file. runs_claim: 'CLAIM' or
    'CLAIM/FOLDER'. job_kind: a word of executors/kubernetes/kinds.py; None: what the home had, or the cluster has.
    queue: of Volcano. placement: 'gate' or 'bind'; None: gate. gpu_resources: names under which nodes offer GPUs; none:
    the usual ones. standby: wait while another scheduler acts for this home.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    image: str = ""
    pod_template: Path | None = None
    runs_claim: str = ""
    job_kind: str | None = None
    queue: str = "default"
    placement: str | None = None
    gpu_resources: tuple[str, ...] = ()
    standby: bool = False
