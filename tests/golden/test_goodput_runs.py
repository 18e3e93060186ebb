"""What each rule of Pollux' simulation does with ten jobs of two made-up applications on 3 nodes of 4 GPUs.

As in test_schedules.py, nobody worked these out by hand: `python tests/golden/test_goodput_runs.py` prints them anew
after a change that is meant to change them.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpuloom.goodput import Application, Nodes, PolluxResult, Submission, create_rule, load_applications, simulate
from tiers import mostly_slow

pytest.importorskip("scipy")

KEPT = {
    "tiresias": ([3840, 2055, 2327, 4666, 4666, 4607, 4080, 6615, 4666, 7710], 1, 19.123),
    "optimus": ([3861, 5071, 4142, 4424, 4446, 4596, 4080, 5165, 4982, 4920], 33, 16.883),
    "goodput": ([3582, 3281, 3675, 3375, 3385, 3804, 3571, 3047, 3491, 4100], 24, 12.936),
    "goodput:ends=known": ([3174, 2460, 3398, 2460, 2881, 3606, 3670, 3896, 4021, 4209], 22, 12.897),
    "goodput:explore=doubling": ([3780, 2827, 3706, 3360, 2935, 3703, 3659, 3510, 3605, 4165], 26, 12.915),
}
"""By rule: ends of the jobs in seconds, restarts, and GPU-hours."""
AVERAGES = {
    "goodput:know=learnt": 3147.6,
    "sia": 3259.2,
    "sia:know=told": 3124.8,
    "sia:know=told;p=0.5": 3112.0,
}
"""Of rules that fit curves, or choose by an integer program: which of several best answers is found may differ from
version to version of what solves it, so averages are compared."""


def applications(folder: Path) -> dict[str, Application]:
    """`fast` scales well; `slow` loses much to synchronisation, and is worth more at large batches."""
    for name, sync_s, noise in (("fast", 0.02, 1.0), ("slow", 0.15, 4.0)):
        place = folder / name
        place.mkdir(parents=True)
        rows = ["placement,local_bsz,step_time,sync_time"]
        for nodes in (1, 2, 3):
            for gpus in combinations_with_replacement((1, 2, 3, 4), nodes):
                sync = 0.0 if sum(gpus) == 1 else sync_s * (1 + 0.1 * sum(gpus)) * nodes
                rows += [
                    f"{''.join(map(str, gpus))},{size},{0.1 + size / 40 + sync:.4f},{sync:.4f}" for size in (8, 16, 32)
                ]
        (place / "placements.csv").write_text("\n".join(rows) + "\n")
        wide = [
            f"{n},{4 * n},{size},{0.1 + size / 40 + sync_s * 6},{sync_s * 6}" for n in (4, 8) for size in (8, 16, 32)
        ]
        (place / "scalability.csv").write_text(
            "\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *wide]) + "\n"
        )
        for size, iterations in ((16, 1500), (32, 860), (64, 490), (128, 300)):
            epochs = [f"{1500 * n},{iterations * n},0.5,1,{noise * n}" for n in range(1, 6)]
            (place / f"validation-{size}.csv").write_text(
                "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *epochs]) + "\n"
            )
    return load_applications(folder)


WORKLOAD = [
    Submission(f"job-{i}", 70 * i * (i % 3), "fast" if i % 2 else "slow", (1, 2, 4, 6)[i % 4], (16, 32, 64, 128)[i % 4])
    for i in range(10)
]


def made(rule: str, folder: Path) -> PolluxResult:
    nodes = Nodes(3, 4)
    return simulate(
        sorted(WORKLOAD, key=lambda one: one.submit_s), applications(folder), create_rule(rule, nodes), nodes
    )


def told(result: PolluxResult) -> tuple[list[int], int, float]:
    return [round(s) for s in result.end_s.tolist()], result.restarts, round(float(result.gpu_s.sum()) / 3600, 3)


@pytest.mark.parametrize("rule", KEPT)
def test_the_run_is_as_before(rule: str, tmp_path: Path) -> None:
    assert told(made(rule, tmp_path)) == KEPT[rule]


@pytest.mark.parametrize("rule", mostly_slow(AVERAGES, "sia:know=told", "sia:know=told;p=0.5"))
def test_the_average_is_as_before(rule: str, tmp_path: Path) -> None:
    assert made(rule, tmp_path).avg_jct_s == pytest.approx(AVERAGES[rule], rel=0.03)


if __name__ == "__main__":
    for name in (*KEPT, *AVERAGES):
        with tempfile.TemporaryDirectory() as place:
            run = made(name, Path(place))
        print(f'    "{name}": {told(run) if name in KEPT else round(run.avg_jct_s, 1)},')
