"""What is run for an attempt of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuloom.core.errors import InputError
from gpuloom.core.job import Attempt, DeviceKind, Job, NodeRecord, gpus_in
from gpuloom.core.spec import Launcher, OnPreempt
from gpuloom.core.sums import sum_ints
from gpuloom.executors.node import Peer, RunSpec
from gpuloom.executors.recognise import launcher_for, once_per_gpu
from gpuloom.live.dispatch.ports import port_of
from gpuloom.live.dispatch.slurm_env import slurm_variables
from gpuloom.sharing.job_profile import job_profile
from gpuloom.sharing.shim.attach import MEMORY


class OddPlaceError(InputError):
    """A job's pods don't fit on the GPUs that it was given."""


def run_specs(
    job: Job,
    attempt: Attempt,
    nodes: Mapping[str, NodeRecord],
    *,
    resumes: bool,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
    in_place: bool = False,
    rehearse_s: float | None = None,
) -> tuple[RunSpec, ...]:
    """What to run for this attempt: one for each of its members, in the order of ranks.

    nodes: by name, those of its allocation among them. resumes: it has run before. environment: values of the
    job's own environment variables; None: they are not kept any more. limit_s: it may run for so long. in_place: its
    members may go on in the next attempt. rehearse_s: as in `RunRequest`.

    Raises:
        OddPlaceError: it can't be run there, as its pods are not to be cut.
        InputError: it can't be run any more; says why.
    """
    if environment is None and job.spec.env:
        raise InputError("the values of its environment variables are no longer kept: submit it again")
    members, each = attempt.allocation, job.spec.replica_gpus
    if job.spec.adopted and (odd := next((one for one in members if len(one[1]) != each), None)) is not None:
        given = sum_ints(len(gpus) for node, gpus in members if node == odd[0])
        raise OddPlaceError(f"its pods have {each} GPUs each, and node {odd[0]} has {given} for it")
    own = {**(environment or {}), **_said_to_every_job(job), **_said_of_sizes(job, gpus_in(members))}
    uuids = tuple(_uuids(nodes, name, gpus) for name, gpus in members)
    peers = tuple(Peer(name, nodes[name].address, len(gpus)) for name, gpus in members)
    specs = tuple(
        _member(
            job,
            attempt,
            nodes[name],
            rank,
            uuids[rank],
            peers,
            own,
            resumes=resumes,
            limit_s=limit_s,
            rehearse_s=rehearse_s,
        )
        for rank, (name, _) in enumerate(members)
    )
    if not in_place or job.spec.replicas is None:
        return specs
    sizes = (job.spec.replicas.least, job.spec.replicas.most)
    if job.spec.adopted:
        return tuple(replace(one, sizes=sizes) for one in specs)
    return tuple(replace(one, launcher=Launcher.TORCHRUN, per_gpu=False, sizes=sizes) for one in specs)


def _said_to_every_job(job: Job) -> dict[str, str]:
    # The number alone could be that of a job of another home, whose checkpoints lie in the same place.
    said = {"GPULOOM_JOB_NAME": job.name, "GPULOOM_JOB_KEY": f"{job.id}-{round(job.submitted_s * 1000):x}"}
    if job.array_index is not None:
        said |= {"GPULOOM_ARRAY_ID": str(job.array_id), "GPULOOM_ARRAY_INDEX": str(job.array_index)}
    return said


def _said_of_sizes(job: Job, gpus: int) -> dict[str, str]:
    replicas = job.spec.replicas
    if replicas is None:
        return {}
    return {
        "GPULOOM_REPLICAS": str(replicas.of(gpus)),
        "GPULOOM_MIN_REPLICAS": str(replicas.least),
        "GPULOOM_MAX_REPLICAS": str(replicas.most),
    }


def _uuids(nodes: Mapping[str, NodeRecord], name: str, gpus: Sequence[int]) -> tuple[str, ...]:
    """Raises InputError: the node is not there any more, or one of these GPUs."""
    if name not in nodes:
        raise InputError(f"node {name} is no longer there")
    by_index = {gpu.index: gpu.uuid for gpu in nodes[name].gpus}
    missing = [gpu for gpu in gpus if gpu not in by_index]
    if missing:
        raise InputError(f"node {name} no longer has GPU {missing[0]}")
    return tuple(by_index[gpu] for gpu in gpus)


def _member(
    job: Job,
    attempt: Attempt,
    node: NodeRecord,
    rank: int,
    uuids: tuple[str, ...],
    peers: tuple[Peer, ...],
    environment: Mapping[str, str],
    *,
    resumes: bool,
    limit_s: float | None,
    rehearse_s: float | None,
) -> RunSpec:
    spec = job.spec
    gpus = attempt.allocation[rank][1]
    env = dict(environment)
    if spec.slurm_env:
        cwd = spec.workdir or env.get("HOME") or os.environ.get("HOME") or "/"
        env |= slurm_variables(job, attempt, node, rank, cwd)
    if spec.sharing_class and spec.gpu_memory is not None:
        env[MEMORY] = str(spec.gpu_memory)
    return RunSpec(
        run=attempt.runs[rank],
        command=spec.command,
        workdir=spec.workdir,
        env=env,
        gpus=gpus,
        gpu_uuids=uuids,
        kind=node.kind,
        venv=spec.venv,
        conda=spec.conda,
        container=spec.container,
        limit_s=limit_s,
        grace_s=spec.grace,
        cpus=spec.cpus_beside(len(gpus)),
        memory_mib=spec.memory_beside(len(gpus)),
        sharing_class=spec.sharing_class,
        kernel_profile=job_profile(spec.kernel_profile, spec.model, spec.workdir) if spec.sharing_class else "",
        resumes=resumes,
        peers=peers,
        rank=rank,
        port=port_of(attempt.run),
        hooks=spec.hooks,
        per_gpu=once_per_gpu(spec),
        launcher=launcher_for(spec),
        ps=spec.ps,
        hold=len(peers) > 1,
        suspends=spec.on_preempt in (OnPreempt.AUTO, OnPreempt.SUSPEND)
        and len(peers) == 1
        and node.kind is DeviceKind.GPU
        and not spec.container,
        rehearse_s=rehearse_s,
    )
