"""What the figures of a schedule mean: one definition, for simulated and for live ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "avg_jct_s": "Job completion time (JCT) is end − submission: waiting, running and restarting. Mean over the "
        "jobs that ended.",
        "median_jct_s": "The middle JCT of the jobs that ended, or the mean of the two in the middle.",
        "p99_jct_s": "With the JCTs of the n jobs that ended sorted upwards, the one at index int(0.99 n), counted "
        "from 0.",
        "makespan_s": "From the first submission to the end of the last job",
        "avg_queue_length": "Number of jobs that wait, averaged over time: a length that lasts twice as long weighs "
        "twice as much.",
        "blocking_index": "Mean over the waiting jobs of time waited / run time that remains (at least 1 s), averaged "
        "over time; 0 while no job waits. High when short jobs wait for long.",
        "utilization": "GPUs held by jobs, as a part of all GPUs, averaged over time.",
        "restarts": "How often a job that had run before was started again, over all jobs.",
    }
)
"""By name."""
