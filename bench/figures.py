"""Write docs/results/weaving.md: the figures of the Muri paper and of gpuloom's own weaving, on the traces at hand.

    python bench/figures.py                 the whole grid (`make figures`)
    python bench/figures.py --only fig9,speed   some sections, printed
    python bench/figures.py --quick         trace3 and the 400-job trace only, printed

Results are kept in out/figures.json and used again until the code that made them changes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import grid
from charts import DASHED, Curve, Panel, lines, page, pairs
from fidelity import CLUSTER, METRICS, TRACES, difference, number, read_rows, shown, table
from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import Labels, Workload
from gpuloom.facts.profiles import Profiles, shipped, with_profiles
from gpuloom.policies.registry import policy_class, policy_ids
from gpuloom.report.axis import Ticks, linear_ticks
from gpuloom.report.picture import save_picture
from gpuloom.report.svg import Frame
from gpuloom.sim.compat import compat_mode
from gpuloom.traces import read_trace
from gpuloom.traces.generate import GeneratorConfig, generate
from grid import Figures, code_of, measured
from public_data import DATA, need

REPO = Path(__file__).resolve().parents[1]
BENCH = REPO / "bench"
KNOWN = {"SRTF": "srtf", "SRSF": "srsf"}
UNKNOWN = {"Tiresias": "tiresias", "Themis": "themis", "AntMan": "antman"}
MURI = {"Muri-S": "muri-s", "Muri-L": "muri-l"}
NAMES = {**KNOWN, **UNKNOWN, **MURI}
PHILLY = ("trace1", "trace3", "trace1_pr", "trace3_pr")
JOB_TYPES = ("job_type_1", "job_type_2", "job_type_3", "trace3")
LARGE = {
    "trace1_5755": "5,755 jobs drawn from trace1",
    "load3_5755": "5,755 jobs, generated, load 3",
}
MODES: dict[str, dict[str, Any]] = {
    "compat": {"compat": "muri"},
    "own": {},
    "rounds": {"schedule": "rounds", "interval_s": 360.0},
}
NOISE = (0.2, 0.4, 0.6, 0.8, 1.0)
SEEDS = {"trace3": 5, "trace1": 3}
PAPER = {"fig9": (1.13, 2.26), "fig10": (1.53, 6.15)}
"""Improvement of the average JCT that the paper reports."""

# Source: simulator/draw_fig11-13.py of the Muri artifact; average JCT and makespan, s.
FIG11 = {
    "Muri-L": ("muri-l", {"trace1": (1072009.71, 18593245.7), "trace3": (88686.97, 8174135.28)}),
    "worst order in groups": (
        "muri-l:ordering=worst",
        {"trace1": (1482465.078, 21797275.5), "trace3": (146324.4084, 8174135.28)},
    ),
    "without Blossom": (
        "muri-l:grouping=greedy",
        {"trace1": (1192784.955, 19653377.9), "trace3": (96016.95407, 8174135.28)},
    ),
}
FIG12 = {
    "AntMan": ("antman", {"trace1_pr": (9808250.677, 20285085.6), "trace3_pr": (2674393.018, 5799634.7)}),
    "Muri-L, 2 jobs": (
        "muri-l:group_size=2",
        {"trace1_pr": (2624732.58, 18845825.6), "trace3_pr": (1348968.422, 5244800.6)},
    ),
    "Muri-L, 3 jobs": (
        "muri-l:group_size=3",
        {"trace1_pr": (2738962.215, 17773101.8), "trace3_pr": (1242056.648, 5175874.98)},
    ),
    "Muri-L, 4 jobs": ("muri-l", {"trace1_pr": (2141936.535, 16639500.4), "trace3_pr": (921094.7449, 4403652.2)}),
}
FIG13 = {
    "SRTF": ("srtf", (192543.8569, 192494.5694, 192277.9859, 193081.796)),
    "Muri-S": ("muri-s", (182804.0161, 135643.09, 90861.63341, 85502.55387)),
    "Tiresias": ("tiresias", (346383.4174, 346280.513, 345883.8473, 347213.2481)),
    "Muri-L": ("muri-l", (342921.6979, 233034.5164, 101383.3536, 88686.97313)),
}
SECTIONS = ("reproduction", "fig9", "fig10", "testbed", "fig11", "fig12", "fig13", "fig14", "own", "x", "speed")
LIMITS_S = {"trace3": 3.0, "trace1": 20.0, "trace1_pr": 20.0, "trace3_pr": 20.0, **dict.fromkeys(LARGE, 60.0)}


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: a trace, a policy in its written form, a mode of `MODES`."""

    trace: str
    policy: str
    mode: str

    def __str__(self) -> str:
        return f"{self.trace} {self.policy} ({self.mode})"


@cache
def load(trace: str, folder: Path) -> Workload:
    if trace == "load3_5755":
        config = GeneratorConfig(jobs=5755, gpus=64, load=3.0, opportunistic=0.5, seed=1)
        return with_profiles(generate(config), Profiles(shipped(), (), ""))  # not the user's own
    if trace == "trace1_5755":
        return drawn(load("trace1", folder), 5755)
    return read_trace(folder / f"{TRACES[trace]}.csv.gz").workload


def drawn(workload: Workload, jobs: int) -> Workload:
    """A longer trace of the same kind: jobs and gaps between submissions drawn from a workload, with replacement."""
    rng = np.random.default_rng(1)
    rows = rng.integers(0, len(workload), jobs)
    gaps = rng.choice(np.diff(workload.submit_s, prepend=0.0), jobs)
    columns: dict[str, Any] = {}
    for name in ("model", "priority", "estimate_s", "iteration_s", "stage_s"):
        column = getattr(workload, name)
        if column is not None:
            columns[name] = column.take(rows) if isinstance(column, Labels) else column[rows]
    submit_s = np.cumsum(gaps)
    return Workload(f"{jobs:,} of {workload.name}", submit_s, workload.duration_s[rows], workload.gpus[rows], **columns)


class Grid(grid.Grid[Run]):
    """The runs of the page; see `grid.Grid`."""

    def __init__(self, folder: Path, store: Path) -> None:
        super().__init__(store)
        self.folder = folder

    def get(self, trace: str, policy: str, mode: str = "compat") -> Figures:
        return self.find(Run(trace, policy, mode))

    def policy_of(self, run: Run) -> str:
        return run.policy

    def code(self, run: Run) -> str:
        data = self.folder / f"{TRACES.get(run.trace, TRACES['trace1'])}.csv.gz"
        return f"{code_of(run.policy)} {_stamp(data)} {json.dumps(MODES[run.mode])}"

    def measure(self, run: Run) -> Figures | str:
        try:
            workload = load(run.trace, self.folder)
        except GpuloomError as error:
            return f"{type(error).__name__}: {error}"
        return measured(workload, CLUSTER, run.policy, **MODES[run.mode])


@cache
def _stamp(data: Path) -> str:
    return hashlib.sha256(data.read_bytes()).hexdigest()[:12] if data.is_file() else "-"


# -- writing ----------------------------------------------------------------------------------------------------------


def ratio(theirs: float, ours: float) -> float:
    return theirs / ours if math.isfinite(theirs) and math.isfinite(ours) and ours > 0 else math.nan


def times(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def seconds(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-"


def beside(value: float, other: float) -> str:
    """A figure, and in brackets how far it is from another."""
    return f"{shown(value)} ({difference(value, other)})" if math.isfinite(other) else shown(value)


def change(value: float, other: float) -> str:
    return f"{value / other - 1:+.1%}" if math.isfinite(value) and math.isfinite(other) else "-"


def span(values: Iterable[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    return f"{min(known):.2f}-{max(known):.2f}" if known else "-"


def mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def matchers() -> list[tuple[str, str]]:
    """What `--compat muri` pairs jobs by, and the other ways there are: (label, parameter as it is written)."""
    found = next((p for p in policy_class("muri-s").parameters if p.name == "matcher"), None)
    if found is None:
        return [("", "")]
    chosen = compat_mode("muri").parameters["muri-s"].get("matcher", found.default)
    others = [name for name in ("exact", "released") if name != chosen]
    return [("", ""), *((f", matcher={name}", f":matcher={name}") for name in others)]


def command(trace: str, policies: Iterable[str], *options: str) -> list[str]:
    """A fenced command line that shows figures of a table."""
    named = ",".join(policies)
    named = f"'{named}'" if ";" in named else named
    words = ["gpuloom compare", f"$GPULOOM_DATA/muri/{TRACES[trace]}.csv.gz", "--cluster", CLUSTER]
    note = "*Needs the public traces, see [data.md](../reference/data.md), and takes a minute.*"
    return [note, "", "```sh", " ".join([*words, "--policies", named, *options]), "```", ""]


@dataclass
class Page:
    """The page's sections. Each returns lines, and asks the grid for what it shows."""

    grid: Grid
    quick: bool = False
    bars: dict[str, list[tuple[str, float, float]]] = field(default_factory=dict)
    """What is plotted: by panel (label, ours, published)."""
    against: dict[tuple[str, str], str] = field(default_factory=dict)
    """Of our own policies, by mode: the mean change of the average JCT from the paper's."""

    def __post_init__(self) -> None:
        folder = self.grid.folder
        self.published = {(r["trace"], r["policy"]): r for r in read_rows(folder / "published_results.csv")}
        self.reference = {(r["trace"], r["policy"]): r for r in read_rows(folder / "reference_results.csv")}

    def traces(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.quick or name in {"trace3", "cluster_trace"}]

    def known(self, trace: str, name: str, attribute: str) -> float:
        """A published figure."""
        return number(self.published.get((trace, name), {}).get(attribute))

    # -- reproduction -----------------------------------------------------------------------------------------------

    def reproduction(self) -> list[str]:
        variants = {name + label: (name, policy + more) for label, more in matchers() for name, policy in MURI.items()}
        policies = [policy for _, policy in variants.values()]
        header = ["trace", "policy", *(f"{title} (s)" for title, _ in METRICS), "wall s", "CPU s"]
        lines = [REPRODUCTION, *command("trace3", policies, "--compat muri")]
        rows, off = [], []
        for trace in self.traces(("trace3", "cluster_trace", "job_type_1", "job_type_2", "job_type_3")):
            for label, (name, policy) in variants.items():
                theirs = self.reference[trace, name]
                row, apart = self._beside(trace, label, policy, {a: number(theirs[a]) for _, a in METRICS})
                rows.append([*row, seconds(number(theirs["cpu_s_here"]))])
                off += [text for text, relative in apart if abs(relative) > 0.02]
        lines += table([*header, "artifact, CPU s"], rows)
        lines += [f"More than 2 % off: {'; '.join(off) or 'none'}.", ""]
        lines += [PUBLISHED, *command("trace1", policies, "--compat muri")]
        rows, worse = [], []
        for trace in self.traces(PHILLY):
            for label, (name, policy) in variants.items():
                row, apart = self._beside(trace, label, policy, {a: self.known(trace, name, a) for _, a in METRICS})
                rows.append(row)
                worse += [text for text, relative in apart if relative > 0.02]
        lines += table(header, rows)
        return [*lines, f"More than 2 % worse than published: {'; '.join(worse) or 'none'}.", ""]

    def _beside(
        self, trace: str, label: str, policy: str, theirs: dict[str, float]
    ) -> tuple[list[str], list[tuple[str, float]]]:
        """A row of figures beside others, and of each how far it is off."""
        ours, cells, apart = self.grid.get(trace, policy), [], []
        for title, attribute in METRICS:
            value, other = getattr(ours, attribute), theirs[attribute]
            cells.append(beside(value, other))
            apart.append((f"{trace} {label}, {title} {difference(value, other)}", value / other - 1))
        return [trace, label, *cells, seconds(ours.wall_s), seconds(ours.cpu_s)], apart

    # -- figures 9 and 10 -------------------------------------------------------------------------------------------

    def fig9(self) -> list[str]:
        return [FIG9, *self._improvement("fig9", "Muri-S", KNOWN)]

    def fig10(self) -> list[str]:
        return [FIG10, *self._improvement("fig10", "Muri-L", UNKNOWN)]

    def _improvement(self, figure: str, name: str, baselines: dict[str, str]) -> list[str]:
        lines = command("trace1", [*baselines.values(), MURI[name]], "--compat muri")
        rows, ours_of, theirs_of = [], [], []
        bars = self.bars.setdefault(name, [])
        for trace in self.traces(PHILLY):
            for title, policy in baselines.items():
                base, muri = self.grid.get(trace, policy), self.grid.get(trace, MURI[name])
                cells = []
                for _, attribute in METRICS:
                    ours = ratio(getattr(base, attribute), getattr(muri, attribute))
                    theirs = ratio(self.known(trace, title, attribute), self.known(trace, name, attribute))
                    cells.append(f"{times(ours)} / {times(theirs)}")
                    if attribute == "avg_jct_s":
                        ours_of.append(ours)
                        theirs_of.append(theirs)
                        bars.append((f"{trace}\n{title}", ours, theirs))
                rows.append([trace, title, *cells])
        low, high = PAPER[figure]
        lines += table(("trace", f"{name} over", *(f"{t}, ours / published" for t, _ in METRICS)), rows)
        text = (
            f"Average JCT: ours {span(ours_of)} times, by the published figures of these traces {span(theirs_of)}, "
            f"by the paper {low}-{high} (four traces)."
        )
        return [*lines, text, ""]

    # -- testbed ----------------------------------------------------------------------------------------------------

    def testbed(self) -> list[str]:
        lines = [TESTBED]
        lines += command("cluster_trace", [*KNOWN.values(), "tiresias", *MURI.values()], "--schedule rounds")
        rows, figures = [], {}
        for name, policy in NAMES.items():
            files = [self.grid.folder / "testbed_results" / f"{n}_job.csv.gz" for n in (name, name.lower())]
            path = next((file for file in files if file.is_file()), None)
            if path is None:
                continue
            log = read_rows(path)
            jct = np.sort([float(row["JCT"]) for row in log])
            real = Figures(
                avg_jct_s=float(jct.mean()),
                p99_jct_s=float(jct[int(0.99 * len(jct))]),
                makespan_s=max(float(row["end_time"]) for row in log),
            )
            # The testbed ran the artifact's rule under the name of Themis, not leases.
            ruled = "themis:mode=muri" if policy == "themis" else policy
            ours = self.grid.get("cluster_trace", ruled, "rounds")
            compat = self.grid.get("cluster_trace", policy)
            figures[name] = (real, ours)
            for title, attribute in METRICS:
                value = getattr(real, attribute)
                cells = [beside(getattr(other, attribute), value) for other in (ours, compat)]
                rows.append([name, title, shown(value), *cells])
        lines += table(("policy", "metric (s)", "testbed", "gpuloom, rounds of 360 s", "`--compat muri`"), rows)
        rows = []
        for name, others in (("Muri-S", ("SRTF", "SRSF")), ("Muri-L", ("Tiresias", "Themis"))):
            for other in others:
                cells = []
                for _, attribute in METRICS:
                    pair = [
                        ratio(getattr(figures[other][i], attribute), getattr(figures[name][i], attribute))
                        for i in (0, 1)
                    ]
                    cells.append(f"{times(pair[1])} / {times(pair[0])}")
                rows.append([f"{name} over {other}", *cells])
        return [*lines, *table(("improvement", *(f"{t}, ours / testbed" for t, _ in METRICS)), rows)]

    # -- ablations --------------------------------------------------------------------------------------------------

    def fig11(self) -> list[str]:
        lines = [FIG11_TEXT]
        lines += command("trace1", ["muri-l", "muri-l:ordering=worst", "muri-l:grouping=greedy"], "--compat muri")
        rows = []
        for trace in self.traces(("trace1", "trace3")):
            base, base_known = self.grid.get(trace, "muri-l"), FIG11["Muri-L"][1][trace]
            for title, (policy, known) in FIG11.items():
                ours, (avg, last) = self.grid.get(trace, policy), known[trace]
                if title != "Muri-L":
                    pair = (ours.avg_jct_s / base.avg_jct_s, avg / base_known[0])
                    self.bars.setdefault("fig11", []).append((f"{trace}\n{title}", *pair))
                rows.append(
                    [
                        *(trace, title, shown(ours.avg_jct_s), change(ours.avg_jct_s, base.avg_jct_s)),
                        *(shown(avg), change(avg, base_known[0])),
                        *(shown(ours.makespan_s), change(ours.makespan_s, base.makespan_s)),
                        *(shown(last), change(last, base_known[1])),
                    ]
                )
        header = ("trace", "policy", "avg JCT (s)", "change", "published", "change")
        lines += table((*header, "makespan (s)", "change", "published", "change"), rows)
        lines += [MORE_TEXT]
        lines += command("trace3", MURI.values(), "--grouping exact", "--compat muri")
        rows = []
        variants = {
            "as it is": "",
            "worst order in groups": "ordering=worst",
            "no order chosen": "ordering=none",
            "groups in the queue's order (no matching)": "grouping=greedy",
            "exact grouping": "grouping=exact",
            "no overhead of sharing": "interleave_overhead=none",
            "one job a group": "group_size=1",
        }
        for trace in self.traces(("trace1", "trace3")):
            for name, policy in MURI.items():
                base = self.grid.get(trace, policy)
                for title, setting in variants.items():
                    ours = self.grid.get(trace, f"{policy}:{setting}" if setting else policy)
                    cells = [f"{shown(v := getattr(ours, a))} ({change(v, getattr(base, a))})" for _, a in METRICS]
                    rows.append([trace, name, title, *cells, seconds(ours.cpu_s)])
        return [*lines, *table(("trace", "policy", "variant", *(f"{t} (s)" for t, _ in METRICS), "CPU s"), rows)]

    def fig12(self) -> list[str]:
        traces = self.traces(("trace1_pr", "trace3_pr"))
        if not traces:
            return []
        lines = [FIG12_TEXT]
        lines += command("trace3_pr", ["muri-l"], "--group-size 2", "--compat muri")
        rows = []
        for trace in traces:
            known = {title: (policy, figures[trace]) for title, (policy, figures) in FIG12.items()}
            listed = {
                "AntMan": known["AntMan"],
                "Muri-L, 1 job": ("muri-l:group_size=1", (math.nan, math.nan)),
                **known,
            }
            base, (base_avg, base_last) = self.grid.get(trace, "antman"), known["AntMan"][1]
            for title, (policy, (avg, last)) in listed.items():
                ours = self.grid.get(trace, policy)
                pair = (ratio(base.avg_jct_s, ours.avg_jct_s), ratio(base_avg, avg))
                if title != "AntMan":
                    label = f"{trace}\n{title.removeprefix('Muri-L, ')}"
                    self.bars.setdefault("fig12", []).append((label, *pair))
                rows.append(
                    [
                        *(trace, title, shown(ours.avg_jct_s), shown(avg), f"{times(pair[0])} / {times(pair[1])}"),
                        *(shown(ours.makespan_s), shown(last)),
                        times(ratio(base.makespan_s, ours.makespan_s)) + " / " + times(ratio(base_last, last)),
                    ]
                )
        over = "over AntMan, ours / published"
        return [
            *lines,
            *table(("trace", "policy", "avg JCT (s)", "published", over, "makespan (s)", "published", over), rows),
        ]

    def fig13(self) -> list[str]:
        lines = [FIG13_TEXT]
        lines += command("job_type_2", ["srtf", "muri-s", "tiresias", "muri-l"], "--compat muri")
        rows = []
        for kinds, trace in enumerate(JOB_TYPES, start=1):
            if not self.traces([trace]):
                continue
            ours = {title: self.grid.get(trace, policy) for title, (policy, _) in FIG13.items()}
            cells = [
                f"{shown(ours[title].avg_jct_s)} / {shown(known[kinds - 1])}" for title, (_, known) in FIG13.items()
            ]
            for better, worse in (("Muri-S", "SRTF"), ("Muri-L", "Tiresias")):
                mine = ratio(ours[worse].avg_jct_s, ours[better].avg_jct_s)
                theirs = ratio(FIG13[worse][1][kinds - 1], FIG13[better][1][kinds - 1])
                cells.append(f"{times(mine)} / {times(theirs)}")
                self.bars.setdefault(f"fig13 {better}", []).append((str(kinds), mine, theirs))
            rows.append([f"{kinds}", trace, *cells])
        header = ("kinds", "trace", *(f"{title}, avg JCT (s)" for title in FIG13), "SRTF / Muri-S", "Tiresias / Muri-L")
        return [*lines, *table(header, rows), FIG13_AFTER]

    def fig14(self) -> list[str]:
        lines = [FIG14_TEXT]
        lines += command("trace3", ["muri-l:profile_noise=0.4;seed=1"], "--compat muri")
        rows = []
        for trace in self.traces(("trace3", "trace1")):
            seeds = 1 if self.quick else SEEDS[trace]
            for name, other in (("Muri-S", "srtf"), ("Muri-L", "tiresias")):
                policy, base = MURI[name], self.grid.get(trace, other).avg_jct_s
                exact = self.grid.get(trace, policy)
                rows.append([trace, name, "0", shown(exact.avg_jct_s), "", "", times(ratio(base, exact.avg_jct_s)), ""])
                self.bars.setdefault(f"fig14 {trace} {name}", []).append(("0", 1.0, 1.0))
                for noise in NOISE:
                    found = [
                        self.grid.get(trace, f"{policy}:profile_noise={noise:g};seed={seed}").avg_jct_s
                        for seed in range(1, seeds + 1)
                    ]
                    slower = [jct / exact.avg_jct_s for jct in found]
                    rows.append(
                        [
                            *(trace, name, f"{noise:g}", shown(mean(found)), change(mean(slower), 1.0)),
                            f"{change(min(slower), 1.0)} … {change(max(slower), 1.0)}",
                            *(times(ratio(base, mean(found))), f"{seeds}"),
                        ]
                    )
                    self.bars[f"fig14 {trace} {name}"].append((f"{noise:g}", mean(slower), max(slower)))
                    self.bars.setdefault(f"fig14 low {trace} {name}", []).append((f"{noise:g}", min(slower), 0))
        header = ("trace", "policy", "noise", "avg JCT (s), mean", "change", "range of seeds", "over SRTF, Tiresias")
        return [*lines, *table((*header, "seeds"), rows)]

    # -- our own ----------------------------------------------------------------------------------------------------

    def own(self) -> list[str]:
        lines = [OWN]
        lines += command("trace3", [*NAMES.values()])
        rows = []
        for trace in self.traces(TRACES):
            for name, policy in NAMES.items():
                ours, compat = self.grid.get(trace, policy, "own"), self.grid.get(trace, policy)
                cells = [shown(getattr(ours, attribute)) for _, attribute in METRICS]
                restarts = f"{ours.restarts:,.0f}" if math.isfinite(ours.restarts) else "-"
                against = change(ours.avg_jct_s, compat.avg_jct_s)
                rows.append([trace, name, cells[0], against, *cells[1:], restarts, seconds(ours.wall_s)])
        header = ("trace", "policy", "avg JCT (s)", "from `--compat muri`", "makespan (s)", "p99 JCT (s)")
        return [*lines, *table((*header, "restarts", "wall s"), rows)]

    def x(self) -> list[str]:
        ours = [name for name in ("muri-xs", "muri-xl") if name in policy_ids()]
        lines: list[str] = []
        if ours:
            lines.append(X)
        for policy in ours:
            paper, rivals = ("muri-s", ["srtf", "srsf"]) if policy == "muri-xs" else ("muri-l", ["tiresias", "antman"])
            for mode in ("own", "compat"):
                options = ["--compat muri"] if mode == "compat" else []
                lines += [f"### `{policy}`, {'gpuloom’s own semantics' if mode == 'own' else '`--compat muri`'}", ""]
                lines += command("trace3", [paper, policy, *rivals], *options)
                lines += self._against(policy, paper, rivals, mode)
        return [*lines, *part("muri-xs and muri-xl: what was tried", "weaving_tried.md")]

    def _against(self, policy: str, paper: str, rivals: Sequence[str], mode: str) -> list[str]:
        rows: list[list[str]] = []
        gains: dict[str, list[float]] = {attribute: [] for _, attribute in METRICS}
        for trace in self.traces(TRACES):
            mine, theirs = self.grid.get(trace, policy, mode), self.grid.get(trace, paper, mode)
            plain = {rival: self.grid.get(trace, rival, mode).avg_jct_s for rival in rivals}
            best = min(plain, key=lambda rival: plain[rival])
            cells = []
            for _, attribute in METRICS:
                one, two = getattr(mine, attribute), getattr(theirs, attribute)
                gains[attribute].append(one / two - 1)
                cells.append(f"{shown(one)} ({change(one, two)})")
            restarts = [f"{r:,.0f}" if math.isfinite(r) else "-" for r in (mine.restarts, theirs.restarts)]
            rows.append(
                [
                    *(trace, *cells, " / ".join(restarts)),
                    f"{best} {shown(plain[best])} ({change(mine.avg_jct_s, plain[best])})",
                    seconds(mine.cpu_s),
                ]
            )
        means = [f"{mean(gains[attribute]):+.1%}" for _, attribute in METRICS]
        rows.append(["**mean**", *(f"**{value}**" for value in means), "", "", ""])
        self.against[policy, mode] = means[0]
        header = (f"{t} (s), against {paper}" for t, _ in METRICS)
        return table(("trace", *header, f"restarts, {paper}'s", "best plain policy (avg JCT)", "CPU s"), rows)

    # -- speed ------------------------------------------------------------------------------------------------------

    def speed(self) -> list[str]:
        lines = [SPEED]
        rows, over = [], []
        ids = [*MURI.values(), *(name for name in ("muri-xs", "muri-xl") if name in policy_ids())]
        names = {policy: name for name, policy in MURI.items()}
        for trace in [*self.traces(("trace3", "cluster_trace", "trace1", "trace1_pr", "trace3_pr")), *LARGE]:
            if self.quick and trace in LARGE:
                continue
            for policy in ids:
                own, compat = self.grid.get(trace, policy, "own"), self.grid.get(trace, policy)
                limit = LIMITS_S.get(trace, math.nan)
                theirs = number(self.reference.get((trace, names.get(policy, "")), {}).get("cpu_s_here"))
                if max(own.cpu_s, compat.cpu_s) > limit:
                    over.append(f"{trace} {policy}")
                rows.append(
                    [
                        *(LARGE.get(trace, trace), policy, f"{own.jobs:,}", seconds(own.cpu_s), seconds(compat.cpu_s)),
                        *(seconds(own.wall_s), seconds(compat.wall_s), seconds(theirs)),
                        f"{theirs / compat.cpu_s:.0f}×" if math.isfinite(theirs / compat.cpu_s) else "-",
                        f"{limit:g}" if math.isfinite(limit) else "-",
                    ]
                )
        header = (
            "trace",
            "policy",
            "jobs",
            "CPU s, own semantics",
            "CPU s, `--compat muri`",
            "wall s",
            "wall s, compat",
        )
        lines += table((*header, "artifact, CPU s", "ratio", "limit, s"), rows)
        return [*lines, f"Above the limit: {'; '.join(over) or 'none'}.", ""]

    # -- all of it --------------------------------------------------------------------------------------------------

    def write(self, only: Sequence[str], pictures: str | None) -> str:
        self.bars.clear()
        whole = tuple(only) == SECTIONS
        body = {name: getattr(self, name)() for name in only}
        lines = [INTRODUCTION, *self._short()] if whole else []
        for name in SECTIONS:
            if name not in body:
                continue
            if whole and name == "reproduction":
                lines += ["## The paper's figures with `--compat muri`", ""]
            if whole and name == "fig9" and pictures:
                lines += [f"![Improvement of the average JCT, by trace and baseline]({pictures}/improvement.svg)", ""]
            if whole and name == "fig11":
                lines += [ABLATIONS]
                if pictures:
                    lines += [f"![Ablations, ours beside the published]({pictures}/ablations.svg)", ""]
            if whole and name == "speed":
                lines += part("How far the paper's heuristic is from the optimum", "weaving_grouping.md")
            lines += body[name]
        if self.grid.failed:
            lines += ["## Not run", ""]
            lines += table(("run", "why"), [[str(run), why] for run, why in self.grid.failed.items()])
        return "\n".join(lines).rstrip() + "\n"

    def _short(self) -> list[str]:
        """The main figures, from the same runs."""
        improved = {name: [ours for _, ours, _ in self.bars.get(name, [])] for name in MURI}
        rows = []
        for name, over in (("Muri-S", "SRTF, SRSF"), ("Muri-L", "Tiresias, Themis, AntMan")):
            known = [theirs for _, _, theirs in self.bars.get(name, [])]
            paper = "-".join(map(str, PAPER["fig9" if name == "Muri-S" else "fig10"]))
            rows.append([f"{name} over {over}", span(improved[name]), span(known), paper])
        lines = [SHORT, *table(("average JCT, times better", "gpuloom", "published, same traces", "paper"), rows)]
        for policy, paper in (("muri-xs", "muri-s"), ("muri-xl", "muri-l")):
            if (policy, "own") in self.against:
                own, compat = self.against[policy, "own"], self.against[policy, "compat"]
                lines += [
                    f"`{policy}`: average JCT {own} against `{paper}`, on average over eight traces "
                    f"({compat} with `--compat muri`).",
                    "",
                ]
        return lines


def part(title: str, name: str) -> list[str]:
    """A section whose text stands in a file of bench/, if it is there. Its headings become those of a section."""
    path = BENCH / name
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    text = re.sub(r"\A# .*\n+", "", text)
    headings = re.findall(r"^(##+) ", text, flags=re.MULTILINE)
    if deeper := 3 - min(map(len, headings), default=3):
        text = re.sub(r"^(##+) ", lambda found: f"{'#' * deeper}{found[0]}", text, flags=re.MULTILINE)
    return [f"## {title}", "", text, ""] if text else []


# -- plots ------------------------------------------------------------------------------------------------------------


def plots(bars: dict[str, list[tuple[str, float, float]]], folder: Path) -> list[Path]:
    """Two pictures, as SVG: improvement over the baselines, and the ablations. bars: as in `Page`."""
    wide, half = Frame(width=1000, height=270, bottom=46), Frame(width=500, height=280, bottom=46)
    known, unknown = (
        f"Durations {what}: average JCT of the baseline over {name}'s"
        for what, name in (("known", "Muri-S"), ("unknown", "Muri-L"))
    )
    improvement = [[pairs(wide, bars["Muri-S"], known, keys=False)], [pairs(wide, bars["Muri-L"], unknown)]]
    order = [(label.removesuffix(" in groups"), ours, theirs) for label, ours, theirs in bars["fig11"]]
    upper = [
        pairs(half, order, "Order and matching: average JCT over Muri-L's"),
        pairs(half, bars["fig12"], "Jobs in a group: AntMan's average JCT over Muri-L's"),
    ]
    ablations = [upper, [_kinds(bars, half), _noise(bars, half)]]
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, panels in (("improvement", improvement), ("ablations", ablations)):
        made.append(folder / f"{name}.svg")
        save_picture(page(panels), made[-1])
    return made


def _kinds(bars: dict[str, list[tuple[str, float, float]]], frame: Frame) -> Panel:
    curves = []
    for place, (name, over) in enumerate((("Muri-S", "SRTF"), ("Muri-L", "Tiresias"))):
        kinds, ours, theirs = zip(*bars[f"fig13 {name}"], strict=True)
        at = [float(kind) for kind in kinds]
        for series, whose, ys in ((place, "gpuloom", ours), (place + DASHED, "published", theirs)):
            curves.append(Curve(series, f"{name} over {over}, {whose}", at, ys, marked=True))
    title, below = "Kinds of jobs: average JCT, times better", "kinds of jobs (by bottleneck)"
    y = frame.y(0, 1.1 * max(value for curve in curves for value in curve.drawn))
    x_ticks, y_ticks = Ticks((1, 2, 3, 4), ("1", "2", "3", "4")), linear_ticks(0, y.high, 5)
    return lines(frame, title, curves, x_ticks, below, y, y_ticks, "times", one=True)


def _noise(bars: dict[str, list[tuple[str, float, float]]], frame: Frame) -> Panel:
    curves = []
    for dashed, trace in ((0, "trace3"), (DASHED, "trace1")):
        for place, name in enumerate(("Muri-S", "Muri-L")):
            noise, means, high = zip(*bars[f"fig14 {trace} {name}"], strict=True)
            low = [1.0, *(least for _, least, _ in bars[f"fig14 low {trace} {name}"])]
            at = [float(each) for each in noise]
            curves.append(Curve(place + dashed, f"{name}, {trace}", at, means, low, high, marked=True))
    title, unit = "Noise: average JCT over that without noise", "times (mean, range of seeds)"
    drawn = [value for curve in curves for value in curve.drawn]
    y = frame.y(min(drawn) - 0.05, max(drawn) + 0.05)
    y_ticks = linear_ticks(y.low, y.high, 6)
    return lines(frame, title, curves, linear_ticks(0, 1, 5), "profiling noise", y, y_ticks, unit, one=True)


# -- prose ------------------------------------------------------------------------------------------------------------

INTRODUCTION = """# Weaving, measured

What [weaving](../explanation/weaving.md) brings on Muri's traces, beside the figures that its authors (Zhao et al.,
"Multi-Resource Interleaving for Deep Learning Training", SIGCOMM'22) published. Written by one command, `make figures`,
from the traces in `muri/` of the [public traces](../reference/data.md). Results are kept in `out/figures.json` and used
again until the code that made them changes. Cluster: 8 nodes of 8 GPUs. Times in seconds.
"""

SHORT = """## In short
"""

REPRODUCTION = """### Beside the artifact, run again

`artifact` is what the released simulator computed when it was run again on a machine of this kind; in brackets how
far gpuloom is from it. The wall and CPU seconds are of the simulation alone.
"""

PUBLISHED = """### Beside the published figures

The artifact was not run under Muri on the `_pr` traces, nor to the end on trace1 (a fifth of it took 463 CPU
seconds); in brackets how far gpuloom is from what the authors published. Less is better: an exact matcher in place of
the released one is known to gain 9 % (Muri-S) and 5 % (Muri-L) on trace1.
"""

FIG9 = """### Durations known (the paper's figure 9)

How many times less Muri-S takes than each baseline, ours beside the ratio of the published figures.
"""

FIG10 = """### Durations unknown (the paper's figure 10)

How many times less Muri-L takes. The rule that the artifact runs as Themis has many optima; which one its solver takes
depends on its version. On the `_pr` traces our average of Themis itself differs from the published one by a factor of
more than 2 ([fidelity.md](fidelity.md)), and so do these ratios. AntMan is marked unfinished by the artifact's authors.
"""

TESTBED = """### The real testbed

The 400-job trace on 64 V100s, scheduled every 360 s, beside gpuloom in rounds of 360 s and under the artifact's rules;
in brackets how far from the testbed. For Themis the rounds run the artifact's rule (`themis:mode=muri`), as the
testbed did.
"""

ABLATIONS = """## Ablations (the paper's figures 11 to 14)

All with `--compat muri`. Published values: `simulator/draw_fig11-13.py` of the Muri artifact.
"""

FIG11_TEXT = """### Order in the groups and matching (figure 11)

"Without Blossom", groups are filled in the queue's order (`--grouping greedy`). On trace3 the artifact, run again,
gives 144,006.9 s with the worst order and 102,338.8 s without Blossom. The last job of trace3 comes so late that its
makespan is the same under all.
"""

MORE_TEXT = """And further variants, with the change from the policy as it is in brackets. `exact` finds the grouping
with the most normalised throughput; `none` as overhead is the promise of the stages alone.
"""

FIG12_TEXT = """### Jobs in a group (figure 12)

All jobs come at once. One job a group is 2D-LAS without weaving.
"""

FIG13_TEXT = """### Kinds of jobs (figure 13)

Traces with jobs of one to four kinds of bottleneck; each cell is ours / published.
"""

FIG13_AFTER = """With one kind weaving gains nothing, and Muri-L loses to Tiresias: it has no queues, so that jobs
that have attained much take turns instead of ending one after another. The released code does not give the published
figure for Muri-L with one kind, 342,921.7: run again, it gives 502,170.0. So the first ratio of Muri-L in the table
should be compared with 0.69, not 1.01.
"""

FIG14_TEXT = """### Profiling noise (figure 14)

Plans use stage times multiplied by a factor drawn evenly from 1 - noise to 1 + noise, once per profile and stage; jobs
run by the true times. Mean and range over seeds. The paper's raw numbers are not at hand; its figure shows that the
improvement falls slowly with noise.
"""

OWN = """## gpuloom's own semantics

The same policies without `--compat muri`: overheads are paid only at real starts, running jobs are stopped for others
every 360 s, and restarts of a group's members are charged. `themis` runs leases here.
"""

X = """## `muri-xs` and `muri-xl`

gpuloom's own weaving policies, durations known (`muri-xs`) and unknown (`muri-xl`), beside the paper's under our own
matcher, on all eight traces. In brackets the change from the paper's policy, less is better; in the last columns the
best plain policy that knows as much, and the change from it.
"""

SPEED = """## Speed

CPU seconds of one simulation in one process, reading the trace and start-up excluded, on a shared 2-core machine, where
figures vary by a third. The artifact's are from a machine of the same kind, and the ratio is that under its rules. Two
traces of 5,755 jobs stand for the artifact's largest, which is not at hand (see [speed.md](speed.md)). In the first,
jobs and gaps between submissions are drawn from trace1 with replacement; its queue grows to thousands. The second is
generated at three times the cluster's capacity, with stage times by model. The artifact would take hours.

*Needs the public traces, see [data.md](../reference/data.md), and takes ten minutes.*

```sh
python bench/figures.py --only speed
```
"""


def selected(text: str | None) -> tuple[str, ...]:
    """Names of sections, in the page's order."""
    if text is None:
        return SECTIONS
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := names - {*SECTIONS}:
        raise SystemExit(f"unknown sections {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")
    return tuple(name for name in SECTIONS if name in names)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--jobs", "-j", type=int, default=max(1, os.cpu_count() or 1), help="processes [all cores]")
    parser.add_argument(
        "--out", type=Path, help="page to write [docs/results/weaving.md; with --only and --quick: printed]"
    )
    parser.add_argument("--store", type=Path, default=REPO / "out" / "figures.json", help="where results are kept")
    parser.add_argument("--quick", action="store_true", help="trace3 and the 400-job trace only, one seed")
    parser.add_argument("--only", metavar="LIST", help=f"of {', '.join(SECTIONS)}")
    chosen = parser.parse_args(arguments)
    need(chosen.data, "muri")
    only = selected(chosen.only)
    whole = only == SECTIONS and not chosen.quick
    out: Path | None = chosen.out or (REPO / "docs" / "results" / "weaving.md" if whole else None)
    grid = Grid(chosen.data / "muri", chosen.store)
    page = Page(grid, chosen.quick)
    page.write(only, None)
    grid.run(max(1, chosen.jobs))
    text = page.write(only, "figures" if whole else None)
    if out is None:
        print(text)
        return
    made = plots(page.bars, out.parent / "figures") if whole else []
    out.write_text(text, encoding="utf-8")
    for path in (out, *made):
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
