"""Write the figures of docs/results/elastic.md: fixed sizes, elastic by thresholds, elastic by marginal throughput.

python bench/elastic.py [--data ../shared/data] [--output docs/results/elastic.md] [--processes 1]

The text of the document stands between the marks and is kept; what lies between `<!-- figures -->` and
`<!-- end -->` is written anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpuloom.core.cluster import parse_cluster
from gpuloom.core.units import format_duration
from gpuloom.core.workload import Workload
from gpuloom.facts.speeds import from_facts
from gpuloom.sim import SimResult
from gpuloom.sim.runner import Task, run_all
from gpuloom.traces import read_trace
from gpuloom.traces.elastic import Range, make_elastic
from gpuloom.traces.generate import GeneratorConfig, generate
from pages import with_part
from public_data import DATA, need

REPO = Path(__file__).resolve().parents[1]
START, END = "<!-- figures -->", "<!-- end -->"
OPEN = "literal;proportion=1;expand_threshold=0.8;shrink_threshold=1.1"
POLICIES = {
    "tiresias": "tiresias",
    "srtf": "srtf",
    "elastic:literal": "elastic:literal",
    "elastic:literal, wide pool": f"elastic:{OPEN}",
    "elastic": "elastic",
    "elastic, a fifth in reserve": "elastic:proportion=0.8",
    "elastic, srtf": "elastic:base=srtf",
    "elastic-goodput": "elastic-goodput",
    "elastic-goodput, gittins": "elastic-goodput:base=gittins",
    "elastic-goodput, srtf": "elastic-goodput:base=srtf;weight=remaining;alpha=0.5",
}
MIXED = (
    "tiresias",
    "tiresias:upgrade=no",
    "hlas",
    "gavel",
    "elastic:literal",
    "elastic",
    "elastic-goodput",
    "elastic-goodput:base=srtf;weight=remaining;alpha=0.5",
    "weave",
)


def workloads(data: Path) -> list[tuple[str, str, Workload]]:
    """(name, cluster, jobs)."""
    found = []
    flow = read_trace(data / "elasticflow" / "philly_103959.csv.gz").workload
    # As the trace is, its cluster would stand idle; so the load is raised by smaller clusters.
    for cluster in ("16x8", "4x8", "3x8"):
        found.append(("ElasticFlow, 876 jobs, 1 GPU to the fastest size", cluster, flow))
    found.append(("ElasticFlow, half to twice the GPUs asked for", "4x8", make_elastic(flow, Range(0.5, 2.0, True))))
    eight = pollux(data)
    for load in (1.0, 2.0):
        for number in (1, 6):
            jobs = replace(eight[number - 1], submit_s=eight[number - 1].submit_s / load)
            found.append((f"Pollux workload {number}, arrivals {load:g}×", "16x4", jobs))
    for load in (0.6, 0.9, 1.2):
        jobs = generate(GeneratorConfig(jobs=2000, gpus=64, load=load, seed=1))
        found.append((f"generated, load {load:g}, 1 to 16 GPUs", "8x8", make_elastic(jobs, Range(1, 16, False))))
    return found


def pollux(data: Path) -> list[Workload]:
    """Pollux' eight workloads."""
    archive = data / "pollux" / "workloads.tar.gz"
    return [read_trace(f"{archive}::workloads/workload-{i}.csv").workload for i in range(1, 9)]


def simulated(tasks: list[Task], processes: int) -> list[SimResult]:
    outcome = run_all(tasks, {}, processes=processes)
    for error in outcome.errors:
        if error is not None:
            raise error
    return outcome.done


def all_of_pollux(data: Path, processes: int) -> list[str]:
    """A table over the eight workloads as they are."""
    cluster = parse_cluster("16x4")
    tasks = [Task(jobs, cluster, text) for text in POLICIES.values() for jobs in pollux(data)]
    average = np.array([result.avg_jct_s for result in simulated(tasks, processes)]).reshape(len(POLICIES), -1)
    ratio = average / average[0]
    return [
        "## Pollux, all eight workloads, 16x4",
        "",
        "| policy | mean of the average JCTs | to tiresias: mean | best | worst |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {format_duration(float(average[row].mean()))} | {ratio[row].mean():.2f} | "
            f"{ratio[row].min():.2f} | {ratio[row].max():.2f} |"
            for row, name in enumerate(POLICIES)
        ),
        "",
    ]


def mixed(processes: int) -> list[str]:
    """Tables on clusters of two GPU models: generated jobs of 1 to 16 GPUs, speeds from facts."""
    lines = []
    for count, gpus, spec, load in ((160, 64, "8x4:V100,8x4:A100", 0.8), (500, 64, "8x4:V100,8x4:A100", 1.1)):
        cluster = parse_cluster(spec)
        jobs = make_elastic(generate(GeneratorConfig(jobs=count, gpus=gpus, load=load, seed=1)), Range(1, 16, False))
        jobs = from_facts(jobs, cluster)
        done = simulated([Task(jobs, cluster, text) for text in MIXED], processes)
        title = f"Two GPU models: generated, load {load:g}, 1 to 16 GPUs, {spec}"
        lines += section(title, f"{len(jobs):,} jobs.", dict(zip(MIXED, done, strict=True)))
    return lines


def section(title: str, said: str, results: Mapping[str, SimResult]) -> list[str]:
    """A heading, a sentence and a table, relative to the first result."""
    first = next(iter(results.values()))
    return [
        f"## {title}",
        "",
        said,
        "",
        "| policy | average JCT | to tiresias | p99 | GPUs in use | resizes | restarts | run time to tiresias |",
        "|---|---|---|---|---|---|---|---|",
        *(row(name, result, first.avg_jct_s, first.wall_s) for name, result in results.items()),
        "",
    ]


def row(name: str, result: SimResult, fixed_s: float, wall_s: float) -> str:
    return (
        f"| {name} | {format_duration(result.avg_jct_s)} | {result.avg_jct_s / fixed_s:.2f} | "
        f"{format_duration(result.p99_jct_s)} | {result.utilization:.0%} | {result.resizes:,} | "
        f"{result.restarts:,} | {result.wall_s / wall_s:.1f} |"
    )


def figures(data: Path, processes: int) -> str:
    lines = []
    for title, spec, jobs in workloads(data):
        cluster = parse_cluster(spec)
        done = simulated([Task(jobs, cluster, text) for text in POLICIES.values()], processes)
        offered = float(jobs.duration_s @ jobs.gpus) / float(np.ptp(jobs.submit_s)) / cluster.gpus
        said = f"{len(jobs):,} jobs; offered load at the sizes asked for {offered:.2f}."
        lines += section(f"{title}, {spec}", said, dict(zip(POLICIES, done, strict=True)))
    return "\n".join([*lines, *all_of_pollux(data, processes), *mixed(processes)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=REPO / "docs" / "results" / "elastic.md")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    need(options.data, "elasticflow", "pollux")
    text = options.output.read_text(encoding="utf-8")
    with_part(text, START, END, "")  # a page without the marks is refused before the work
    written = figures(options.data, options.processes)
    options.output.write_text(with_part(text, START, END, f"\n{written}"), encoding="utf-8")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
