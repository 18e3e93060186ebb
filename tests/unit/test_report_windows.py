"""Which part of a run the page shows, and the chart of GPUs over time."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from builders import jobs
from gpuloom.report import windows
from gpuloom.report.gpu_chart import gpu_chart
from gpuloom.report.html import render
from gpuloom.report.windows import MOST_ROWS, MOST_RUNS, busiest, most_different_jobs, shown_nodes
from gpuloom.sim.result import SimResult
from gpuloom.sim.simulator import simulate
from report_builders import make_result, make_segments, make_timeline


def run(policy: str, cluster: str = "2x4:V100,1x2:K80") -> SimResult:
    rows = [(float(10 * i), 100.0 + 40 * (i % 7), 1 + i % 2) for i in range(80)]
    return simulate(jobs(rows), cluster, policy, restart_overhead_s=0.0, record_segments=True)


def test_nodes_are_from_all_over_a_large_cluster_and_of_each_model() -> None:
    found = shown_nodes([run("fifo")])
    assert [(node.name, node.model, node.gpus) for node in found] == [
        ("n0", "V100", 4),
        ("n1", "V100", 4),
        ("n2", "K80", 2),
    ]
    large = shown_nodes([run("fifo", "40x8:V100,20x4:K80")])
    assert sum(node.gpus for node in large) <= MOST_ROWS
    assert {node.model for node in large} == {"V100", "K80"}
    assert (large[0].number, large[-1].number) == (0, 59)
    unknown = make_result(cluster="a file", node_names=("x", "y"))  # what ran there tells how large they are
    assert [(node.name, node.gpus) for node in shown_nodes([unknown])] == [("x", 4), ("y", 4)]
    assert shown_nodes([make_result(segments=None)]) == []


def test_of_ten_thousand_nodes_not_every_number_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    spread = windows._spread

    def counted(total: int, count: int) -> list[int]:
        tried.append(count)
        return spread(total, count)

    monkeypatch.setattr(windows, "_spread", counted)
    found = shown_nodes([make_result(cluster="10000x2", node_names=tuple(map(str, range(10_000))))])
    assert [node.number for node in found[:2]] == [0, 323]
    assert (len(found), found[-1].number) == (32, 9999)
    assert len(tried) <= MOST_ROWS + 1


def test_the_time_is_that_of_the_longest_queue_and_runs_can_be_told_apart() -> None:
    times = np.arange(0.0, 4000.0, 1.0)
    queue = np.where((times > 3000) & (times < 3100), 50, 0)
    segments = make_segments([(0, float(t), float(t) + 1, 0, 1) for t in times])
    many = make_result(submit_s=[0.0], start_s=[0.0], end_s=[4000.0], segments=segments, job_gpus=np.ones(1, np.int32),
                       timeline=make_timeline(times, queue, np.ones(len(times))))  # fmt: skip
    begin, end = busiest([many], shown_nodes([many]))
    assert begin <= 3001
    assert end >= 3099
    inside = (segments.start_s < end) & (segments.end_s > begin)
    assert 50 < inside.sum() <= MOST_RUNS
    # Where nobody waits: most GPUs that work.
    idle = make_timeline(times, np.zeros(len(times)), np.where(queue > 0, 9, 1))
    begin, end = busiest([replace(many, timeline=idle)], shown_nodes([many]))
    assert begin <= 3001 < 3099 <= end
    few = run("fifo")
    assert busiest([few], shown_nodes([few])) == pytest.approx((0.0, float(few.end_s.max())))
    assert busiest([make_result(segments=None)], []) == (0.0, 1.0)


def test_the_jobs_are_those_that_policies_treat_most_differently() -> None:
    count = 300
    submit = np.arange(count, dtype=np.float64)
    same = {"submit_s": submit, "start_s": submit, "jobs": count}
    slow = submit + 10.0
    slow[200:260] += 500.0
    one, other = make_result(**same, end_s=submit + 10.0), make_result(policy="sjf", **same, end_s=slow)
    assert most_different_jobs([one, other], 60) == 200
    waits = submit.copy()
    waits[100:160] += 90.0
    assert most_different_jobs([make_result(submit_s=submit, start_s=waits, end_s=waits + 10.0)], 60) == 100
    assert most_different_jobs([one], count) == 0
    assert most_different_jobs([one, make_result()], 2) == 0  # not the same jobs


def test_every_gpu_second_that_is_shown_is_held() -> None:
    """The bars of the chart are as large as what the jobs held."""
    result = run("fifo")
    nodes = shown_nodes([result])
    window = busiest([result], nodes)
    svg = gpu_chart(result, "fifo", 0, nodes, window)
    found = re.findall(r'class="run" x="([\d.]+)" y="[\d.e+]+" width="([\d.]+)" height="([\d.]+)"', svg)
    plot = 1180 - 16 - float(re.search(r'class="node" x="(\d+)"', svg)[1])  # type: ignore[index]
    area = sum(float(width) / plot * (window[1] - window[0]) * float(height) / 9 for _, width, height in found)
    assert area == pytest.approx(result.attained_gpu_s.sum(), rel=0.01)
    assert "n2 K80" in svg


def test_jobs_that_share_a_gpu_have_a_part_of_its_row_for_as_long_as_they_do() -> None:
    segments = make_segments([(0, 0.0, 100.0, 0, 1), (1, 50.0, 100.0, 0, 1)])
    shared = make_result(segments=replace(segments, layer=np.array([0, 3], np.int32)))
    svg = gpu_chart(shared, "muri", 0, shown_nodes([shared]), (0.0, 100.0))
    found = re.findall(r'class="run" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg)
    left, middle = found[0][0], found[1][0]
    width = found[0][2]
    assert found == [(left, "10.0", width, "9"), (middle, "10.0", width, "4.5"), (middle, "14.5", width, "4.5")]


def test_the_page_names_the_nodes() -> None:
    page = render([run("fifo"), run("sjf")])
    assert "Who ran where, and when" in page
    assert page.count("n2 K80: 2 GPUs") == 2


def test_of_one_policy_alone_those_that_waited_longest_for_what_they_ran() -> None:
    queued = [(0.0, 10.0, 1)] * 10
    at_once = [(1000.0 * i, 500.0, 1) for i in range(1, 21)]
    result = simulate(jobs([*queued, *at_once]), "1x1", "fifo", restart_overhead_s=0.0)
    assert most_different_jobs([result], 5) == 5
