"""Small results to report on."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloom.sim.result import Segments, SimResult, Timeline


def make_timeline(times: Any, queue: Any, busy: Any) -> Timeline:
    return Timeline(np.asarray(times, np.float64), np.asarray(queue, np.int32), np.asarray(busy, np.int32))


def make_segments(rows: list[tuple[int, float, float, int, int]]) -> Segments:
    """From (job, start, end, node, mask)."""
    job, start, end, node, mask = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    masks = np.empty(len(rows), dtype=object)
    masks[:] = list(mask)
    return Segments(
        np.asarray(job, np.int32),
        np.asarray(start, np.float64),
        np.asarray(end, np.float64),
        np.asarray(node, np.int32),
        masks,
        np.zeros(len(rows), np.int32),
    )


def make_result(**overrides: Any) -> SimResult:
    """Three jobs on two nodes of four GPUs: a runs, b waits for it, c starts at once. Averages follow the arrays."""
    submit = np.asarray(overrides.get("submit_s", [0.0, 10.0, 20.0]), np.float64)
    start = np.asarray(overrides.get("start_s", [0.0, 100.0, 20.0]), np.float64)
    end = np.asarray(overrides.get("end_s", [100.0, 400.0, 80.5]), np.float64)
    jct = end - submit
    ended = np.sort(jct[np.isfinite(jct)])
    known = len(ended) > 0
    count = len(submit)
    values: dict[str, Any] = {
        "policy": "fifo",
        "trace": "tiny",
        "cluster": "2x4",
        "jobs": count,
        "gpus": 8,
        "avg_jct_s": float(ended.mean()) if known else np.nan,
        "median_jct_s": float(np.median(ended)) if known else np.nan,
        "p99_jct_s": float(ended[int(0.99 * len(ended))]) if known else np.nan,
        "makespan_s": float(np.nanmax(end) - submit.min()) if known else np.nan,
        "avg_queue_length": 0.225,
        "blocking_index": 0.3,
        "utilization": 0.625,
        "lower_bound_avg_jct_s": 110.0,
        "wall_s": 0.012,
        "restarts": 0,
        "moves": 0,
        "resizes": 0,
        "events": 2 * count,
        "finished": len(ended),
        "interrupted": False,
        "settings": {"restart_s": 30.0, "seed": 1},
        "job_ids": tuple("abcdefghijklmnopqrstuvwxyz"[:count])
        if count <= 26
        else tuple(f"job-{i}" for i in range(count)),
        "job_gpus": np.asarray([4, 8, 1] if count == 3 else [1] * count, np.int32),
        "held_gpu_s": np.asarray([[400.0], [2400.0], [60.5]] if count == 3 else [[1.0]] * count, np.float64),
        "gpu_models": ("GPU",),
        "starts": np.ones(count, np.int32),
        "timeline": make_timeline([0.0, 10.0, 20.0, 80.5, 100.0, 400.0], [0, 1, 1, 1, 0, 0], [4, 4, 5, 4, 8, 0]),
        "segments": make_segments(
            [(0, 0.0, 100.0, 0, 0b1111), (2, 20.0, 80.5, 1, 1), (1, 100.0, 400.0, 0, 15), (1, 100.0, 400.0, 1, 15)]
        ),
        "node_names": ("n0", "n1"),
    }
    values.update(overrides)
    values.update(submit_s=submit, start_s=start, end_s=end, jct_s=jct)
    return SimResult(**values)
