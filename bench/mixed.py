"""Write the part `mixed` of docs/results/heterogeneity.md: weave beside each of its parts on mixed clusters.

    python bench/mixed.py [--seeds 3,4] [--only elastic] [--data ../shared/data]

Traces are drawn anew: by `gpuloom trace generate`, and by bench/gavel_traces.py where Gavel's throughputs are at hand.
What weave does was chosen on seeds 1 and 2 of each kind; the page shows seeds 3 and 4. (In pairs, on Gavel's traces of
one GPU, it was chosen on seeds 3, 4, 11 and 12.) Takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from click.testing import CliRunner

import gavel_traces
from gpuloom.cli.main import cli
from heterogeneous import REPO, table
from pages import with_part
from public_data import DATA, need

POLICIES = ("hlas", "gavel", "gavel:packed", "elastic-goodput", "weave")
PAGE = REPO / "docs" / "results" / "heterogeneity.md"
TWO, THREE, GAVEL = "4x8:V100,4x8:K80", "4x4:V100,4x4:P100,4x4:K80", "1x12:V100,1x12:P100,1x12:K80"
FACTS = "8x8:V100,8x8:A100"


@dataclass(frozen=True)
class Kind:
    """Traces of one kind on one cluster; `lam_s`: of Gavel's generator, else `made` is for gpuloom's."""

    name: str
    cluster: str
    made: str = ""
    lam_s: float = 0.0
    multi: bool = False
    options: str = ""


ROUNDS = "--restart-overhead 0 --schedule rounds"
KINDS = (
    *(
        Kind(
            f"V100 and K80, load {load}",
            TWO,
            f"--jobs 500 --gpus 64 --load {load} --max-duration 12h --gpu-models V100,K80",
        )
        for load in (0.5, 0.8, 1.1)
    ),
    *(
        Kind(
            f"V100, P100, K80, load {load}",
            THREE,
            f"--jobs 500 --gpus 48 --load {load} --max-duration 2d --gpu-models V100,P100,K80",
        )
        for load in (0.5, 0.8, 1.1)
    ),
    *(
        Kind(
            f"speeds by facts, load {load}",
            FACTS,
            f"--jobs 1000 --gpus 128 --load {load} --max-duration 2d",
            options="--speeds facts",
        )
        for load in (1.0, 1.5)
    ),
    Kind(
        "the same without stage times",
        FACTS,
        "--jobs 1000 --gpus 128 --load 1.5 --max-duration 2d --models none=1",
        options="--speeds facts",
    ),
    *(
        Kind(
            f"elastic 1-16, load {load}",
            "8x4:V100,8x4:A100",
            f"--jobs 160 --gpus 64 --load {load} --elastic 1-16",
            options="--speeds facts",
        )
        for load in (0.5, 0.8, 1.2)
    ),
    Kind(
        "elastic 1-16 without stage times",
        "2x8:V100,2x8:K80",
        "--jobs 160 --gpus 22 --load 1.0 --max-duration 1d --gpu-models V100,K80 --models none=1 --elastic 1-16",
    ),
    Kind(
        "one node of A100 among K80, load 0.5",
        "1x4:A100,7x4:K80",
        "--jobs 300 --gpus 10 --load 0.5 --max-gpus 8 --max-duration 1d --gpu-models A100,K80",
    ),
    Kind(
        "restarts of 300 s, load 1.0",
        "2x8:V100,2x8:K80",
        "--jobs 300 --gpus 22 --load 1.0 --max-gpus 8 --max-duration 1d --gpu-models V100,K80",
        options="--restart-overhead 300",
    ),
    Kind("Gavel's generator, one GPU, lam 2,000 s", GAVEL, lam_s=2000, options=ROUNDS),
    Kind("Gavel's generator, one GPU, lam 1,500 s", GAVEL, lam_s=1500, options=ROUNDS),
    Kind("Gavel's generator, 1 to 8 GPUs, lam 4,000 s", GAVEL, lam_s=4000, multi=True, options=ROUNDS),
)


def ran(*words: str) -> str:
    """What `gpuloom` with these words prints."""
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    if result.exit_code:
        raise SystemExit(f"gpuloom {' '.join(words)}: {result.stderr}")
    return result.stdout


def averages(kind: Kind, seed: int, folder: Path, data: Path) -> dict[str, float]:
    """Average JCT in hours, by policy."""
    path = folder / f"{abs(hash(kind))}-{seed}.{'trace' if kind.lam_s else 'csv'}"
    options = kind.options.split()
    if kind.lam_s:
        throughputs = data / "gavel" / "simulation_throughputs.json.gz"
        rows = gavel_traces.draw(throughputs, 400, kind.lam_s, seed, multi=kind.multi)
        path.write_text(gavel_traces.written(rows), encoding="utf-8")
        options += ["--throughputs", str(throughputs), "--format", "gavel"]
    else:
        ran("trace", "generate", *kind.made.split(), "--seed", str(seed), "--output", str(path))
    words = ["--cluster", kind.cluster, "--policies", ",".join(POLICIES), *options, "--quiet", "--json", "-"]
    found = json.loads(ran("compare", str(path), *words))
    return {name: one["avg_jct_s"] / 3600 for name, one in zip(POLICIES, found, strict=True)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; write it into the page if all of it was made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", default="3,4")
    parser.add_argument("--only", default="", help="kinds whose name holds this, printed only")
    options = parser.parse_args(arguments)
    need(options.data, "gavel")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            if options.only not in kind.name:
                continue
            runs = [averages(kind, seed, Path(folder), options.data) for seed in seeds]
            ratio = fmean(run["weave"] / min(run[name] for name in POLICIES[:-1]) for run in runs)
            worst = max(worst, *(run["weave"] / min(run[name] for name in POLICIES[:-1]) for run in runs))
            rows.append([kind.name, *(f"{fmean(run[name] for run in runs):.2f}" for name in POLICIES), f"{ratio:.3f}"])
            print(rows[-1], flush=True)
    head = ["average JCT, h", *(f"`{name}`" for name in POLICIES), "weave / best other"]
    text = (
        table(head, rows)
        + f"\n\nMeans over seeds {' and '.join(map(str, seeds))}; the worst single ratio is {worst:.3f}."
    )
    print(text)
    if not options.only and options.seeds == parser.get_default("seeds"):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_part(page, "<!-- figures: mixed -->", "<!-- end -->", text), encoding="utf-8")


if __name__ == "__main__":
    main()
