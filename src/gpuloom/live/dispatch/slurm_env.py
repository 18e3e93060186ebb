"""Slurm's variables in a job's environment, for scripts that read them (`slurm_env` of a job).

Source of the names: sbatch(1), "Output environment variables", Slurm 22.05. A job runs its command once, on one node:
one task, number 0.
"""

from __future__ import annotations

from gpuloom.core.job import Attempt, DeviceKind, Job, NodeRecord


def slurm_variables(job: Job, attempt: Attempt, node: NodeRecord, gpus: tuple[int, ...], cwd: str) -> dict[str, str]:
    """By name. gpus: indices on the node. cwd: its working directory."""
    spec = job.spec
    found = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(job.id)),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NPROCS"), "1"),
        **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURMD_NODENAME"), node.name),
        "SLURM_JOB_NAME": job.name if job.array_index is None else spec.name,
        "SLURM_JOB_USER": job.user,
        "SLURM_SUBMIT_DIR": cwd,
        "SLURM_RESTART_COUNT": str(attempt.number - 1),
    }
    if node.kind is DeviceKind.GPU:
        found["SLURM_GPUS_ON_NODE"] = found["SLURM_GPUS"] = str(len(gpus))
        found["SLURM_JOB_GPUS"] = ",".join(map(str, gpus))
    if spec.cpus is not None:
        found["SLURM_CPUS_PER_TASK"] = found["SLURM_CPUS_ON_NODE"] = f"{max(spec.cpus, 1):.0f}"
    if spec.memory is not None:
        found["SLURM_MEM_PER_NODE"] = str(spec.memory)
    if job.array_index is not None:
        found["SLURM_ARRAY_JOB_ID"] = str(job.array_id)
        found["SLURM_ARRAY_TASK_ID"] = str(job.array_index)
    return found
