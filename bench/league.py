"""The league table: every policy on every trace, written into docs/results/league.md (`make league`).

    python bench/league.py                                  all of it, and the page
    python bench/league.py --only-traces muri,itp/cluster05 --only-policies srsf,weave      printed only
    python bench/league.py --json > league.rows.json        a row per run

Results are kept in out/league.json and used again until the trace or the code behind them changes, so that a second
command runs only what changed. A run that takes longer than --time-limit CPU seconds is ended and shown as such.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import grid
from fidelity import table
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import Workload
from gpuloom.policies.base import Traits
from gpuloom.policies.registry import BUILT_IN, policy_class
from gpuloom.policies.upgrading import UPGRADE
from gpuloom.traces import read_trace
from grid import Figures, code_of, measured
from pages import with_part
from public_data import DATA, need

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs" / "results" / "league.md"
BEGIN, END = "<!-- league:begin -->", "<!-- league:end -->"
HEADING = "## League table"
OURS = "weave"
YARDSTICK = "tiresias"
TAILS = ("srsf", "tiresias")
EQUAL = 0.005
"""Averages closer than this count as equal."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A trace on a cluster. `path` is below the data folder and may hold wildcards; `first`: only so many jobs."""

    family: str
    name: str
    path: str
    cluster: str
    first: int | None = None

    def __str__(self) -> str:
        return f"{self.family}/{self.name}"

    @property
    def gpus(self) -> int:
        return parse_cluster(self.cluster).gpus


def contests() -> list[Contest]:
    """All traces at hand, on clusters on which jobs have to wait."""
    found = [
        Contest("muri", name, f"muri/{name}.csv.gz", "8x8")
        for name in (
            *("trace1", "trace1_pr", "trace3", "trace3_pr", "cluster_exp_400jobs"),
            *("job_type_1", "job_type_2", "job_type_3"),
        )
    ]
    itp = {
        "cluster01": "8x8",
        "cluster02": "12x8",
        "cluster03": "20x8",
        "cluster05": "2x8",
        "cluster06": "12x8",
        "cluster08": "10x8",
        "cluster10": "2x8",
        "elasticflow_195job": "16x8",
    }
    found += [Contest("itp", name, f"itp/{name}.csv.gz", cluster) for name, cluster in itp.items()]
    # 46 nodes: the cluster of whole nodes whose offered load is nearest to 90 %.
    found.append(Contest("philly", "first-8000", "philly/philly_jobs_pollux.csv.gz", "46x8", 8000))
    found.append(Contest("alibaba", "openb_default", "alibaba/openb_pod_list_default.csv.gz", "3x8"))
    three = "4x4:V100,4x4:P100,4x4:K80"
    large = "8x8:V100,8x8:P100,8x8:K80"
    found += [
        Contest("gavel", name, f"gavel/traces_physical/{name}.trace", three)
        for name in ("max_min_fairness", "minimize_makespan")
    ]
    msr = (
        ("103959-24", "103959", "1x4:V100,2x4:P100,3x4:K80"),
        ("103959-48", "103959", three),
        ("b436b2", "b436b2", "8x8:V100,8x8:P100,16x8:K80"),
        ("7f04ca", "7f04ca", "4x8:V100,4x8:P100,4x8:K80"),
        ("6c71a0", "6c71a0", large),
        ("ee9e8c", "ee9e8c", large),
    )
    found += [Contest("gavel", name, f"gavel/traces_msr_seed0/{file}.trace.gz", on) for name, file, on in msr]
    shockwave = (("120", "120_*", "8x4"), ("220", "220_*", "16x4"), ("460", "460_*", "32x4"))
    for name, start, cluster in (*shockwave, ("900", "900_0.2_5_1000_*", "64x4")):
        found.append(Contest("shockwave", name, f"shockwave/{start}.trace.gz", cluster))
    for i in range(1, 9):
        path = f"pollux/workloads.tar.gz::workloads/workload-{i}.csv"
        found.append(Contest("pollux", f"workload-{i}", path, "16x4"))
    found.append(Contest("elasticflow", "philly_103959", "elasticflow/philly_103959.csv.gz", "3x8"))
    found.append(Contest("tiresias", "60_job", "tiresias/60_job.csv", "2x8"))
    found.append(Contest("synergy", "dynamic_srtf", "synergy/deploy_trace_dynamic_srtf.csv", "16x8"))
    return found


FAMILIES = {
    "muri": "muri",
    "itp": "itp",
    "philly": "philly, alibaba",
    "alibaba": "philly, alibaba",
    "gavel": "gavel",
    "shockwave": "shockwave",
    "pollux": "pollux",
    "elasticflow": "elasticflow",
    "tiresias": "tiresias, synergy",
    "synergy": "tiresias, synergy",
}


# -- traces -----------------------------------------------------------------------------------------------------------


def where(contest: Contest, data: Path) -> tuple[Path, str] | None:
    """The contest's file and, of an archive, `::` and its member; None: it is not here.

    Raises:
        SystemExit: several files answer to the name.
    """
    path, colons, member = contest.path.partition("::")
    found = sorted(data.glob(path))
    if len(found) > 1:
        raise SystemExit(f"{contest}: several files answer to {data / path}: {', '.join(map(str, found))}")
    return (found[0], colons + member) if found else None


@cache
def load(contest: Contest, data: Path) -> Workload:
    """The jobs of a contest; rows that can't be read are passed over."""
    found = where(contest, data)
    if found is None:
        raise SystemExit(f"{contest}: {data / contest.path} is missing")
    workload = read_trace(f"{found[0]}{found[1]}", skip_bad_rows=True).workload
    return workload if contest.first is None else workload.take(np.arange(min(contest.first, len(workload))))


@cache
def stamp(contest: Contest, data: Path) -> str:
    """A hash of all that is known of the jobs, whatever file or reader it came from."""
    digest = hashlib.sha256()
    _feed(digest, load(contest, data))
    return digest.hexdigest()[:12]


def _feed(digest: Any, value: object) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in {"name", "notes", "line"}:  # which change no figure
                digest.update(field.name.encode())
                _feed(digest, getattr(value, field.name))
    elif isinstance(value, tuple):
        digest.update(f"({len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode() + b"\0")


def load_of(workload: Workload, gpus: int) -> float:
    """GPU-seconds that the jobs bring per GPU-second from the first submission to the last; inf: all at once."""
    span_s = float(workload.submit_s[-1] - workload.submit_s[0])
    work = float((workload.duration_s * workload.gpus).sum()) / gpus
    return work / span_s if span_s * 100 > work else math.inf


# -- running ----------------------------------------------------------------------------------------------------------


class Match(NamedTuple):
    """One simulation."""

    contest: Contest
    policy: str

    def __str__(self) -> str:
        return f"{self.contest} on {self.contest.cluster} under {self.policy}"


class League(grid.Grid[Match]):
    """All matches of a command; see `grid.Grid`."""

    def __init__(self, data: Path, store: Path, limit_s: float) -> None:
        super().__init__(store, limit_s)
        self.data = data

    def policy_of(self, run: Match) -> str:
        return run.policy

    def code(self, run: Match) -> str:
        # The trace's content stands for the readers that it came through.
        used = code_of(run.policy, ("gpuloom.sim.simulator",), ("gpuloom.traces",))
        return f"{used} {stamp(run.contest, self.data)}"

    def measure(self, run: Match) -> Figures | str:
        return measured(load(run.contest, self.data), run.contest.cluster, run.policy)


@dataclass(frozen=True, slots=True)
class Row:
    """A trace: its size, and the figures of every policy. `short`: what to show where there is no figure."""

    name: str
    family: str
    cluster: str
    jobs: int
    gpus: int
    load: float
    figures: Mapping[str, Figures]
    short: Mapping[str, str]

    def ratios(self, attribute: str, judges: Iterable[str]) -> dict[str, float]:
        """Of every policy, the figure relative to the best of the judges; NaN where there is none."""
        best = self.best(attribute, judges)
        return {policy: getattr(found, attribute) / best for policy, found in self.figures.items()}

    def best(self, attribute: str, judges: Iterable[str]) -> float:
        known = [getattr(self.figures[policy], attribute) for policy in judges if policy in self.figures]
        return min((value for value in known if math.isfinite(value)), default=math.nan)


def rows_of(league: League, chosen: Sequence[Contest], policies: Sequence[str]) -> list[Row]:
    rows = []
    for contest in chosen:
        workload = load(contest, league.data)
        figures, short = {}, {}
        for policy in policies:
            match = Match(contest, policy)
            figures[policy] = league.find(match)
            if match in league.failed:
                short[policy] = "failed"
            elif league.too_long(match):
                short[policy] = f"> {league.limit_s:g} s"
        load_ = load_of(workload, contest.gpus)
        size = (contest.cluster, len(workload), contest.gpus, load_)
        rows.append(Row(str(contest), FAMILIES[contest.family], *size, figures, short))
    return rows


def traits(policy: str) -> Traits:
    return policy_class(policy).traits


def textbook(league: League, chosen: Sequence[Contest], policies: Sequence[str]) -> dict[str, list[float]]:
    """Of policies that move jobs to faster idle GPUs: average JCT without that over that with it, by trace on a cluster
    of several GPU models; NaN where there is no figure."""
    found: dict[str, list[float]] = {}
    mixed = [contest for contest in chosen if len(parse_cluster(contest.cluster).models) > 1]
    for policy in policies:
        if any(parameter is UPGRADE for parameter in policy_class(policy).parameters):
            found[policy] = [
                league.find(Match(contest, f"{policy}:upgrade=no")).avg_jct_s
                / league.find(Match(contest, policy)).avg_jct_s
                for contest in mixed
            ]
    return found


def knows_durations(policy: str) -> bool:
    return traits(policy).knows.startswith(("durations", "distribution"))


# -- figures of many rows ---------------------------------------------------------------------------------------------


def known(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def geometric(values: Iterable[float]) -> float:
    """Geometric mean of what is known and above 0."""
    logs = [math.log(value) for value in known(values) if value > 0]
    return math.exp(fmean(logs)) if logs else math.nan


def shown(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"


@dataclass(frozen=True, slots=True)
class Duel:
    """Ours against a rival over the rows that both have: counts, and the geometric mean of ours over the rival's."""

    rows: int
    better: int
    equal: int
    worse: int
    mean: float
    tail_better: int
    tail_worse: int
    tail: float


def duel(rows: Sequence[Row], ours: str, rival: str) -> Duel:
    def over(attribute: str) -> list[float]:
        return known(getattr(r.figures[ours], attribute) / getattr(r.figures[rival], attribute) for r in rows)

    mean, tail = over("avg_jct_s"), over("p99_jct_s")
    better, worse = sum(x < 1 - EQUAL for x in mean), sum(x > 1 + EQUAL for x in mean)
    return Duel(
        rows=len(mean),
        better=better,
        equal=len(mean) - better - worse,
        worse=worse,
        mean=geometric(mean),
        tail_better=sum(x < 1 - EQUAL for x in tail),
        tail_worse=sum(x > 1 + EQUAL for x in tail),
        tail=geometric(tail),
    )


# -- writing ----------------------------------------------------------------------------------------------------------


class Writer:
    """Tables of the rows. `blind` are the policies that know no durations, by whose best all are measured."""

    def __init__(
        self,
        rows: Sequence[Row],
        policies: Sequence[str],
        ours: str,
        limit_s: float,
        textbook: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.rows, self.policies, self.ours, self.limit_s = rows, policies, ours, limit_s
        self.textbook = textbook or {}
        self.blind = [policy for policy in policies if not knows_durations(policy)]
        self.told = [policy for policy in policies if knows_durations(policy)]

    def page(self) -> str:
        lines = [self._introduction(), ""]
        for title, attribute in (("Average JCT", "avg_jct_s"), ("p99 JCT", "p99_jct_s")):
            lines += [f"## {title}", "", "Policies that are told no durations:", ""]
            lines += self.ratios(attribute, self.blind, size=attribute == "avg_jct_s")
            if self.told:
                lines += ["Policies that are told durations or their distribution, relative to the same best:", ""]
                lines += self.ratios(attribute, self.told, size=False)
        lines += ["## By family of traces", "", "Geometric means of the ratios above, average JCT:", ""]
        lines += self.families("avg_jct_s")
        lines += ["p99 JCT:", "", *self.families("p99_jct_s")]
        lines += [f"## `{self.ours}` and its rivals", "", *self.rivals()]
        lines += ["## CPU time", "", *self.cost()]
        if any(map(known, self.textbook.values())):
            lines += ["## Textbook policies on mixed clusters", "", *self.without_upgrades()]
        return "\n".join(lines).rstrip() + "\n"

    def _introduction(self) -> str:
        return (
            f"{len(self.rows)} traces, {len(self.policies)} policies, all with their default parameters and settings "
            f"(preemption every 360 s). A figure is relative to the best policy of its row among those that are told "
            f"no durations: 1.00 (bold) is the best of these, 2.00 twice as long. `> {self.limit_s:g} s`: ended after "
            "so much CPU time. *Load* is the work of the jobs, each at its speed on the trace's own GPU model, over "
            "what the cluster's GPUs could do from the first submission to the last."
        )

    def ratios(self, attribute: str, policies: Sequence[str], *, size: bool) -> list[str]:
        lines = []
        for row in self.rows:
            ratio = row.ratios(attribute, self.blind)
            best = row.best(attribute, self.blind)
            load_ = "at once" if math.isinf(row.load) else f"{row.load:.2f}"
            about = [f"{row.jobs:,}", row.cluster.replace(",", ", "), load_] if size else []
            cells = [self._cell(row, policy, ratio[policy]) for policy in policies]
            lines.append([row.name, *about, shown(best / 3600), *cells])
        about = ["jobs", "cluster", "load"] if size else []
        return table(("trace", *about, "best, h", *(f"`{policy}`" for policy in policies)), lines)

    def _cell(self, row: Row, policy: str, ratio: float) -> str:
        if policy in row.short:
            return row.short[policy]
        text = shown(ratio)
        return f"**{text}**" if text == "1.00" and ratio <= 1 and policy in self.blind else text

    def families(self, attribute: str) -> list[str]:
        by_family: dict[str, list[Row]] = {}
        for row in self.rows:
            by_family.setdefault(row.family, []).append(row)
        lines = []
        for name, rows in (*by_family.items(), ("all", list(self.rows))):
            cells = []
            for policy in (*self.blind, *self.told):
                values = known(row.ratios(attribute, self.blind)[policy] for row in rows)
                some = f" ({len(values)})" if 0 < len(values) < len(rows) else ""
                cells.append(shown(geometric(values)) + some)
            lines.append([name, f"{len(rows)}", *cells])
        names = [f"`{policy}`" for policy in self.blind] + [f"`{policy}` (told)" for policy in self.told]
        return table(("traces", "of them", *names), lines)

    def rivals(self) -> list[str]:
        if self.ours not in self.policies:
            return [f"`{self.ours}` was not run.", ""]
        lines = []
        for rival in (*self.blind, *self.told):
            if rival == self.ours:
                continue
            d = duel(self.rows, self.ours, rival)
            counts = [f"{d.rows}", f"{d.better}", f"{d.equal}", f"{d.worse}", shown(d.mean)]
            told = " (told)" if rival in self.told else ""
            lines.append([f"`{rival}`{told}", *counts, f"{d.tail_better}", f"{d.tail_worse}", shown(d.tail)])
        header = ("rival", "traces", "better", "equal", "worse", "average JCT, ratio")
        tails = []
        for rival in TAILS:
            if rival in self.policies and rival != self.ours:
                d = duel(self.rows, self.ours, rival)
                tails.append(f"worse than `{rival}`'s on {d.tail_worse} of {d.rows} traces")
        text = f"The p99 JCT of `{self.ours}` is {' and '.join(tails)}." if tails else ""
        about = (
            f"Traces on which `{self.ours}` has the better and the worse average JCT (equal: within {EQUAL:.1%}), and "
            "the geometric mean of its figure over the rival's, below 1 if it is better; then the same for p99."
        )
        return [about, "", *table((*header, "p99 better", "p99 worse", "p99, ratio"), lines), text, ""]

    def without_upgrades(self) -> list[str]:
        """What policies lose that leave jobs on slow GPUs beside idle fast ones."""
        lines = []
        for policy, ratios in self.textbook.items():
            values = known(ratios)
            least, most = shown(min(values, default=math.nan)), shown(max(values, default=math.nan))
            lines.append([f"`{policy}:upgrade=no`", f"{len(values)}", shown(geometric(values)), least, most])
        about = (
            "All tables above show policies as they are by default: jobs may move to faster GPUs that stand idle. "
            "Here the average JCT with `upgrade=no`, the textbook's policy, over that: above 1 the textbook is worse."
        )
        return [about, "", *table(("policy", "traces", "geometric mean", "least", "most"), lines)]

    def cost(self) -> list[str]:
        lines = []
        for policy in self.policies:
            spent = {row.name: row.figures[policy].cpu_s for row in self.rows}
            over = sum(policy in row.short and row.short[policy].startswith(">") for row in self.rows)
            total = shown(sum(known(spent.values())), 1)
            ratio: dict[str, float] = {}
            if YARDSTICK in self.policies:
                ratio = {row.name: spent[row.name] / row.figures[YARDSTICK].cpu_s for row in self.rows}
            ratio = {name: value for name, value in ratio.items() if math.isfinite(value)}
            most = max(ratio, key=ratio.__getitem__, default="")
            worst = f"{shown(ratio[most], 1)} ({most})" if most and policy != YARDSTICK else "-"
            slowest = max((n for n in spent if math.isfinite(spent[n])), key=spent.__getitem__, default="")
            longest = f"{shown(spent[slowest], 1)} ({slowest})" if slowest else "-"
            lines.append([f"`{policy}`", shown(geometric(ratio.values())), worst, longest, total, f"{over}"])
        header = ("policy", f"relative to `{YARDSTICK}`", "most", "longest run, s", "all runs, s", "over the limit")
        about = "CPU time of the simulation, reading the trace excluded: geometric mean over the traces, and the most."
        return [about, "", *table(header, lines)]


def plain(lines: Iterable[str]) -> str:
    """Markdown tables among the lines as aligned columns, for a terminal."""
    out: list[str] = []
    pending: list[list[str]] = []
    for line in (*lines, ""):
        if line.startswith("|"):
            if not line.startswith("|---"):
                cells = line.strip("|").split("|")
                pending.append([cell.strip().replace("**1.00**", "1.00*").replace("`", "") for cell in cells])
            continue
        widths = [max(map(len, column)) for column in zip(*pending, strict=True)]
        for cells in pending:
            first, *rest = (cell.rjust(w) for cell, w in zip(cells, widths, strict=True))
            out.append("  ".join([cells[0].ljust(len(first)), *rest]).rstrip())
        pending = []
        out.append(line)
    return "\n".join(out).strip() + "\n"


def terminal(writer: Writer) -> str:
    """What is printed: average JCT, summary, duels and cost."""
    lines = ["Average JCT relative to the best that is told no durations (*)", ""]
    lines += writer.ratios("avg_jct_s", [*writer.blind, *writer.told], size=False)
    lines += ["p99 JCT, by family: geometric means", "", *writer.families("p99_jct_s")]
    lines += ["Average JCT, by family: geometric means", "", *writer.families("avg_jct_s")]
    return plain([*lines, *writer.rivals(), *writer.cost()])


def as_json(rows: Sequence[Row], policies: Sequence[str], limit_s: float) -> str:
    blind = [policy for policy in policies if not knows_durations(policy)]
    found = []
    for row in rows:
        ratios = {name: row.ratios(name, blind) for name in ("avg_jct_s", "p99_jct_s")}
        for policy in policies:
            values = asdict(row.figures[policy]) | {"jobs": row.jobs}
            finite = {k: v if math.isfinite(v) else None for k, v in values.items()}
            shares = {f"{name.removesuffix('_s')}_ratio": ratio[policy] for name, ratio in ratios.items()}
            found.append(
                {
                    "trace": row.name,
                    "family": row.family,
                    "cluster": row.cluster,
                    "gpus": row.gpus,
                    "load": row.load if math.isfinite(row.load) else None,
                    "policy": policy,
                    "knows_durations": knows_durations(policy),
                    **finite,
                    **{name: value if math.isfinite(value) else None for name, value in shares.items()},
                    "status": _status(row, policy),
                }
            )
    return json.dumps({"time_limit_s": limit_s, "runs": found}, indent=1)


def _status(row: Row, policy: str) -> str:
    if math.isfinite(row.figures[policy].avg_jct_s):
        return "ok"
    return {"failed": "failed", "": "not run"}.get(row.short.get(policy, ""), "over the time limit")


def with_section(page: str, section: str) -> str:
    """A page with the text between the marks replaced; without marks, with a section at its end."""
    if BEGIN not in page and END not in page:
        page = f"{page.rstrip()}\n\n{HEADING}\n\n{BEGIN}\n{END}\n"
    return with_part(page, BEGIN, END, section)


# -- the command ------------------------------------------------------------------------------------------------------


def chosen_contests(text: str | None) -> list[Contest]:
    """Those named by a list of families, 'family/name' or wildcards; all without one."""
    every = contests()
    if text is None:
        return every
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not any(fnmatch(str(c), name) or c.family == name for c in every):
            raise SystemExit(f"no trace answers to {name!r}; known: {', '.join(map(str, every))}")
    return [c for c in every if any(fnmatch(str(c), name) or c.family == name for name in names)]


def chosen_policies(text: str | None) -> list[str]:
    if text is None:
        return list(BUILT_IN)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in BUILT_IN]:
        raise SystemExit(f"no such policy: {', '.join(unknown)}; known: {', '.join(BUILT_IN)}")
    return [name for name in BUILT_IN if name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of traces")
    parser.add_argument("--only-traces", metavar="LIST", help="families, family/name, wildcards: muri,itp/cluster0*")
    parser.add_argument("--only-policies", metavar="LIST", help="ids of policies")
    parser.add_argument("--jobs", "-j", type=int, default=max(1, os.cpu_count() or 1), help="processes [all cores]")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S", help="CPU seconds of a run [120]")
    parser.add_argument("--ours", default=OURS, metavar="ID", help=f"policy that is set against its rivals [{OURS}]")
    parser.add_argument("--store", type=Path, default=REPO / "out" / "league.json", help="where results are kept")
    parser.add_argument("--out", type=Path, help="page to write [docs/results/league.md; with --only-…: none]")
    parser.add_argument("--known", action="store_true", help="run nothing: show what is known")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON")
    asked = parser.parse_args(arguments)
    if not (math.isfinite(asked.time_limit) and asked.time_limit > 0) or asked.jobs < 1:
        parser.error("--time-limit must be above 0, --jobs at least 1")
    os.environ["GPULOOM_HOME"] = str(REPO / "out" / "no-profiles-of-the-user")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end, end as by Ctrl-C
    policies = chosen_policies(asked.only_policies)
    chosen: list[Contest] = []
    missing: list[Contest] = []
    for contest in chosen_contests(asked.only_traces):
        (chosen if where(contest, asked.data) else missing).append(contest)
    if not chosen:
        need(asked.data, *sorted({Path(contest.path).parts[0] for contest in missing}))
        raise SystemExit(f"no trace of the league is in {asked.data}")
    for contest in missing:
        print(f"left out: {contest} ({asked.data / contest.path} is missing)", file=sys.stderr)

    league = League(asked.data, asked.store, asked.time_limit)
    for contest in chosen:
        load(contest, asked.data)  # once, here: the processes of the runs share it
    rows, plain_ones = rows_of(league, chosen, policies), textbook(league, chosen, policies)
    if not asked.known:
        league.run(asked.jobs)
        rows, plain_ones = rows_of(league, chosen, policies), textbook(league, chosen, policies)
    writer = Writer(rows, policies, asked.ours, asked.time_limit, plain_ones)
    whole = not (missing or asked.only_traces or asked.only_policies or asked.known)
    out: Path | None = asked.out or (PAGE if whole else None)
    if out is not None:
        out.write_text(with_section(out.read_text(encoding="utf-8"), writer.page()), encoding="utf-8")
        print(f"wrote {out}", file=sys.stderr)
    print(as_json(rows, policies, asked.time_limit) if asked.json else terminal(writer))
    for run, why in league.failed.items():
        print(f"failed: {run}: {why}", file=sys.stderr)
    return 1 if league.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GpuloomError as error:
        sys.exit(f"league: {error}")
    except BrokenPipeError:  # the reader of our output went away (| head)
        sys.stderr.close()
        sys.exit(1)
