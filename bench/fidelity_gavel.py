"""Write the section on Gavel of docs/results/fidelity.md: gpuloom beside Gavel's own simulator.

python bench/fidelity_gavel.py [--data ../shared/data] [--output docs/results/fidelity.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fidelity import REPO, difference, read_rows, table
from gpuloom.sim import SimResult, simulate
from gpuloom.traces import read_trace
from pages import with_part
from public_data import DATA, need

BEGIN, END = "<!-- Gavel: bench/fidelity_gavel.py -->", "<!-- end of Gavel -->"
CLUSTERS = {"homo": "1x24:V100"}
MIXED = "1x12:V100,1x12:P100,1x12:K80"
OBJECTIVES = {
    "max_min_fairness_perf": "",
    "allox": ";objective=allox",
    "finish_time_fairness_perf": ";objective=finish_time_fairness",
    "max_sum_throughput_perf": ";objective=max_sum_throughput",
    "min_total_duration_perf": ";objective=makespan",
    "max_min_fairness": ";blind",
    "max_min_fairness_perf + 1e-4 throughput term": ";throughput_term=1e-4",
}
"""What is written after gavel:released for the names of Gavel's code."""
OWN = ("gavel", "gavel:reset=0", "gavel:queue=global", "gavel:objective=water_filling")


class Report:
    """Runs what is asked for once."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "gavel"
        self._results: dict[tuple[str, str], SimResult] = {}

    def rows(self) -> list[dict[str, str]]:
        """What Gavel's own simulator computed."""
        return read_rows(self._folder / "side_by_side" / "results.csv")

    def run(self, trace: str, policy: str) -> SimResult:
        key = (trace, policy)
        if key not in self._results:
            print(f"{trace} under {policy} …", flush=True)
            workload = read_trace(
                self._folder / "side_by_side" / f"{trace}.trace",
                throughputs=self._folder / "simulation_throughputs.json.gz",
            ).workload
            settings: dict[str, object] = {"schedule": "rounds"} if policy == "fifo" else {}
            cluster = CLUSTERS.get(trace, MIXED)
            self._results[key] = simulate(workload, cluster, policy, restart_overhead_s=0.0, **settings)
        return self._results[key]

    def released(self) -> list[str]:
        """Gavel's figures beside those of gavel:released."""
        rows = []
        for row in self.rows():
            name, between = row["policy"], row["seconds_between_allocations"]
            if name in OBJECTIVES:
                policy = "gavel:released" + OBJECTIVES[name]
                policy += "" if between == "1920" else f";reset={between}s"
                policy += ";queue=global" if row["queue"] == "global" else ""
            elif (name, row["trace"], between) == ("fifo_perf", "homo", "1"):
                policy = "fifo"
            else:
                continue
            result = self.run(row["trace"], policy)
            figures = []
            for ours, theirs in (
                (result.avg_jct_s, row["avg_jct_h"]),
                (result.median_jct_s, row["median_jct_h"]),
                (result.p99_jct_s, row["p99_jct_h"]),
                (result.makespan_s, row["makespan_h"]),
            ):
                figures.append(difference(ours / 3600, float(theirs)))
            average = [row["avg_jct_h"], f"{result.avg_jct_s / 3600:.2f}"]
            rows.append([row["trace"], f"`{name}`", between, row["queue"], f"`{policy}`", *average, *figures])
        header = (
            "trace",
            "Gavel's policy",
            "s between allocations",
            "queue",
            "gpuloom's",
            "avg JCT, h: Gavel",
            "gpuloom",
        )
        return table([*header, "difference", "median", "p99", "makespan"], rows)

    def own(self) -> list[str]:
        """The released rounds beside gpuloom's own."""
        rows = []
        for trace in ("homo", "single", "multi"):
            released = self.run(trace, "gavel:released").avg_jct_s
            averages = [self.run(trace, policy).avg_jct_s for policy in OWN]
            cells = [f"{average / 3600:.2f} ({difference(average, released)})" for average in averages]
            rows.append([trace, f"{released / 3600:.2f}", *cells])
        return table(["trace", "`gavel:released`", *(f"`{policy}`" for policy in OWN)], rows)

    def section(self) -> str:
        return "\n".join([TEXT, *self.released(), DIFFERENCES, *self.own()])


TEXT = """
## Gavel

Gavel's own simulator (its released code, cvxpy with ECOS), run on three traces that its own generator drew, with its
measured throughputs: 24 V100 (`homo`), and 12 each of V100, P100 and K80, with jobs of one GPU (`single`) and of
Philly's sizes (`multi`). It has no restart costs and no nodes. This section is written by `make fidelity` (alone:
`python bench/fidelity_gavel.py`); a row by

```
pip install 'gpuloom[gavel]'
gpuloom simulate multi.trace --throughputs simulation_throughputs.json.gz --cluster 1x12:V100,1x12:P100,1x12:K80 \\
    --restart-overhead 0 --policy gavel:released
```

with `--schedule rounds`, too, the averages stay within 0.2 %.
"""

DIFFERENCES = """What is left, by reason:

- `max_min_fairness_perf`, with and without a term for throughput (an edit of Gavel's program, not of its rounds): the
  same rules, step by step; what differs is how ECOS rounds (here it is called without
  cvxpy, which orders the program otherwise), and what follows from that over thousands of rounds. Gavel ends a job
  for good of which, five times in a row, fewer steps are left than it has GPUs; here it does those steps. While
  nothing runs Gavel waits for the next job of the trace before it makes a new allocation, or makes one at once if
  none is to come; here, where the future is not known, it waits for `reset`.
- The other objectives agree as closely: ECOS solves their programs as Gavel states them (finish-time fairness with the
  time that a job would have run alone counted from allocation to allocation; `min_total_duration_perf` by bisection of
  the makespan to within 5 %). `allox` is an assignment, of which equal ones are many. The average of
  `min_total_duration_perf` on `multi` leaves out a job that Gavel ended for good.
- `max_min_fairness` (Gavel's name for the one that does not look at throughputs): Gavel shuffles the GPU models
  before every round, and normalises by raw GPU counts; `blind` walks V100, P100, K80.
- `fifo_perf` on one model is the same to the hundredth of an hour. On mixed clusters it does not compare: Gavel
  places everybody anew at each allocation, free of charge.

gpuloom's own `gavel` keeps the ledger of these rounds (time since the last allocation from half a round on, ties by
deficits, a queue for each model) and differs on purpose: what the program leaves over goes by weight where it adds
most (an interior point spreads it); GPUs that fall free between two rounds go to waiting jobs at once; rounds begin
at multiples of their length; nobody holds GPUs without running; a job that has not yet worked for as long as its
start took is left alone. In brackets the difference from the released rules:
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=REPO / "docs" / "results" / "fidelity.md")
    arguments = parser.parse_args()
    need(arguments.data, "gavel")
    page = arguments.output.read_text(encoding="utf-8")
    arguments.output.write_text(with_part(page, BEGIN, END, Report(arguments.data).section()), encoding="utf-8")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
