"""Slurm's variables in a job's environment, for scripts that read them (`slurm_env` of a job).

Source of the names: sbatch(1) and srun(1), "Output environment variables", Slurm 22.05. A job runs its command once on
each of its nodes: one task on each, numbered as they are. Where it runs once for each GPU there is a task for each, and
direct.py gives each its number.
"""

from __future__ import annotations

from itertools import groupby

from gpuloom.core.job import Attempt, DeviceKind, Job, NodeRecord
from gpuloom.executors.recognise import once_per_gpu


def slurm_variables(job: Job, attempt: Attempt, node: NodeRecord, rank: int, cwd: str) -> dict[str, str]:
    """By name. rank: of the member on this node. cwd: its working directory."""
    spec = job.spec
    gpus = attempt.allocation[rank][1]
    counts = [len(held) for _, held in attempt.allocation]
    tasks = counts if once_per_gpu(spec) else [1] * len(counts)
    names = ",".join(attempt.nodes)
    found = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(job.id)),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(len(counts))),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(sum(tasks))),
        "SLURM_PROCID": str(sum(tasks[:rank])),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(rank),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), names),
        "SLURMD_NODENAME": node.name,
        "SLURM_JOB_NAME": job.name if job.array_index is None else spec.name,
        "SLURM_JOB_USER": job.user,
        "SLURM_SUBMIT_DIR": cwd,
        "SLURM_RESTART_COUNT": str(attempt.number - 1),
    }
    if node.kind is DeviceKind.GPU:
        found["SLURM_GPUS_ON_NODE"], found["SLURM_GPUS"] = str(len(gpus)), str(sum(counts))
        found["SLURM_JOB_GPUS"] = ",".join(map(str, gpus))
    if sum(tasks) > 1:
        found["SLURM_TASKS_PER_NODE"] = _per_node(tasks)
    if (cpus := spec.cpus_beside(len(gpus))) is not None:
        found["SLURM_CPUS_PER_TASK"] = found["SLURM_CPUS_ON_NODE"] = f"{max(cpus, 1):.0f}"
    if (memory := spec.memory_beside(len(gpus))) is not None:
        found["SLURM_MEM_PER_NODE"] = str(memory)
    if job.array_index is not None:
        found["SLURM_ARRAY_JOB_ID"] = str(job.array_id)
        found["SLURM_ARRAY_TASK_ID"] = str(job.array_index)
    return found


def _per_node(tasks: list[int]) -> str:
    """As Slurm writes it: '4(x2),2'."""
    runs = [(count, len(list(same))) for count, same in groupby(tasks)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
