"""Pairs of a service and a training job on one GPU, from recorded kernels; rewrites a part of docs/results/sharing.md.

python bench/sharing_pairs.py                     nine pairs, all loads and rules (a few minutes), into the page
python bench/sharing_pairs.py --print             the first load only, print, change nothing
python bench/sharing_pairs.py --json F            write all outcomes as JSON, too
python bench/sharing_pairs.py --all --seeds 1-5   every service beside every training job, by load: how the targets hold
python bench/sharing_pairs.py --ablation          the same with each parameter switched off, at a load of 50 %
python bench/sharing_pairs.py --frontier          what training gains, and the tail pays, under fixed prices, at 50 %

--services and --trainings narrow the last three down, --nine to the page's pairs; --processes runs pairs side by side.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from multiprocessing import Pool
from pathlib import Path

from gpuloom.sharing.find import find_profile
from gpuloom.sharing.profiles import KernelProfile
from gpuloom.sharing.rule import COMPARED, Params
from gpuloom.sharing.simulate import Machine, Outcome, Pair, poisson_arrivals, request_alone_ns
from pages import with_part
from public_data import DATA, need

ROOT = Path(__file__).resolve().parents[1]
ORION = DATA / "orion"
PAGE = ROOT / "docs" / "results" / "sharing.md"
BEGIN, END = "<!-- pairs: begin -->", "<!-- pairs: end -->"
PAIRS = (
    ("resnet50_4_fwd", "resnet50_32_fb1"),
    ("resnet50_4_fwd", "mobilenetv2_32_fb1"),
    ("resnet101_4_fwd", "bert_8_fb1"),
    ("mobilenetv2_4_fwd", "bert_8_fb1"),
    ("mobilenetv2_4_fwd", "mobilenetv2_96_fb1"),
    ("bert_2_fwd", "transformer_xl_8_fb1"),
    ("bert_2_fwd", "resnet101_32_fb1"),
    ("transformer_xl_4_fwd", "mobilenetv2_64_fb1"),
    ("efficientnet_4_fwd", "resnet50_32_fb1"),
)
SERVICES = (
    *("bert_2_fwd", "efficientnet_4_fwd", "gnmt_128_fwd", "gnmt_16_fwd", "mobilenetv2_32_fwd", "mobilenetv2_4_fwd"),
    *("mobilenetv2_64_fwd", "resnet101_4_fwd", "resnet101_4_fwd_new", "resnet50_32_fwd", "resnet50_4_fwd"),
    *("retinanet_4_fwd", "transformer_xl_32_fwd", "transformer_xl_4_fwd"),
)
TRAININGS = (
    *("bert_8_fb1", "mobilenetv2_32_fb1", "mobilenetv2_64_fb1", "mobilenetv2_96_fb1", "resnet101_32_fb1"),
    *("resnet50_32_fb1", "resnet50_32_fb1_new", "transformer_xl_8_fb1"),
)
"""Every measured file; of files with equal rows (PROVENANCE.md), one."""
ABLATION: dict[str, dict[str, float]] = {
    "as it is": {},
    "no `price`: only what fits goes beside a request": {"price": 0.0},
    "no adaptation (`target`)": {"target": 0.0},
    "no `steepness`": {"steepness": 0.0},
    "no `confidence`": {"confidence": 0.0},
    "no room past p99 (`overrun`)": {"overrun": 0.0},
    "`budget` of any size": {"budget": 1e6},
    "`lone` 1: nothing while others wait": {"lone": 1},
    "no `launch_ns`": {"launch_ns": 0},
    "no `cache`": {"cache": 0.0},
    "no `least` price": {"least": 0.0},
    "no idle window": {"idle_window_ns": 0, "idle_window": 0.0},
    "no `look_ahead`": {"look_ahead": 0},
}
FRONTIER: dict[str, dict[str, float]] = {
    "as it is": {},
    **{
        f"fixed price {price:g}": {"target": 0.0, "begin": 1.0, "price": price}
        for price in (0.5, 1.0, 1.5, 2.0, 2.5, 5.0)
    },
}
LOADS = (0.5, 0.3, 0.7)
P99, SHARE = 1.05, 0.6


@dataclass(frozen=True, slots=True)
class Case:
    """A pair at a load and a seed."""

    service: str
    training: str
    load: float
    requests: int
    seed: int = 1


@cache
def profile(name: str) -> KernelProfile:
    return find_profile(name, ORION)[0]


def pair_of(case: Case) -> Pair:
    """The pair, with random arrivals."""
    high = profile(case.service)
    rate = case.load / (request_alone_ns(high, Machine()) / 1e9)
    return Pair(high, profile(case.training), poisson_arrivals(rate, case.requests, case.seed), seed=case.seed)


def run(case: Case) -> dict[str, Outcome]:
    """A pair under every rule."""
    pair = pair_of(case)
    return {rule: pair.outcome(rule) for rule in COMPARED}


def tried(variants: dict[str, dict[str, float]], case: Case) -> dict[str, tuple[float, float]]:
    """p99 and training over alone under Orion's rule, and under ours with parameters changed."""
    pair = pair_of(case)
    found = {"orion": pair.outcome("orion")}
    for name, changed in variants.items():
        found[name] = pair.outcome("gpuloom", replace(Params.default("gpuloom"), **changed))  # type: ignore[arg-type]
    return {name: (o.p99_over_alone, o.best_effort_over_alone) for name, o in found.items()}


def table(outcomes: dict[tuple[str, str], dict[str, Outcome]]) -> list[str]:
    """Markdown of one load, and whether the targets hold."""
    lines = [
        "| service | training | none | priority | orion | **gpuloom** | p99 ≤ 1.05 | ≥ orion |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (service, training), by_rule in outcomes.items():
        cells = [f"{o.p99_over_alone:.3f} / {o.best_effort_over_alone:.3f}" for o in by_rule.values()]
        ours, orion = by_rule["gpuloom"], by_rule["orion"]
        holds = (ours.p99_over_alone <= P99, ours.best_effort_over_alone >= orion.best_effort_over_alone)
        lines.append(
            f"| {service} | {training} | {' | '.join(cells)} | {' | '.join('yes' if h else 'NO' for h in holds)} |"
        )
    means = []
    for rule in COMPARED:
        found = [by_rule[rule] for by_rule in outcomes.values()]
        worst = max(o.p99_over_alone for o in found)
        means.append(f"{worst:.3f} / {sum(o.best_effort_over_alone for o in found) / len(found):.3f}")
    lines.append(f"| worst p99 / mean training | | {' | '.join(means)} | | |")
    return lines


def summary(name: str, rows: list[tuple[Case, dict[str, tuple[float, float]]]]) -> str:
    """One line of Markdown: how the targets hold over many pairs and seeds."""
    p99 = [by_rule[name][0] for _, by_rule in rows]
    training = [by_rule[name][1] for _, by_rule in rows]
    margins = [by_rule[name][1] - by_rule["orion"][1] for _, by_rule in rows]
    kept = sum(value <= P99 for value in p99) / len(rows)
    above = sum(value >= 0 for value in margins) / len(rows)
    cells = (f"{max(p99):.3f}", f"{sum(p99) / len(p99):.3f}", f"{kept:.1%}", f"{sum(training) / len(rows):.3f}")
    return f"| {name} | {' | '.join(cells)} | {min(margins):+.3f} | {above:.1%} |"


HEADER = (
    "| | worst p99 | mean p99 | p99 ≤ 1.05 | mean training | least margin over orion | ≥ orion |\n"
    "|---|---|---|---|---|---|---|"
)


def many(options: argparse.Namespace, variants: dict[str, dict[str, float]]) -> None:
    """Every service beside every training job, at all seeds; prints a table per load and the worst cases."""
    everything = []
    with Pool(options.processes) as pool:
        for load in options.loads:
            pairs = PAIRS if options.nine else product(options.services, options.trainings)
            cases = [Case(*pair, load, options.requests, seed) for pair, seed in product(pairs, options.seeds)]
            rows = list(zip(cases, pool.imap(partial(tried, variants), cases), strict=True))
            print(f"\n**Load {load:.0%}**, {len(rows)} pairs and seeds of {options.requests:,} requests:\n\n{HEADER}")
            for name in ("orion", *variants):
                print(summary(name, rows))
            name = next(iter(variants))
            for case, found in sorted(rows, key=lambda row: -row[1][name][0])[:8]:
                print(f"{case.service} + {case.training}, seed {case.seed}: p99 {found[name][0]:.3f}", end="; ")
                print(f"orion {found['orion'][0]:.3f}")
            for case, found in sorted(rows, key=lambda row: row[1][name][1] - row[1]["orion"][1])[:3]:
                print(f"{case.service} + {case.training}, seed {case.seed}: training {found[name][1]:.3f}", end="; ")
                print(f"orion {found['orion'][1]:.3f}", flush=True)
            everything += [asdict(case) | {"found": found} for case, found in rows]
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def nine(options: argparse.Namespace) -> None:
    """The pairs of the page."""
    text, rows = [], []
    for load in options.loads[:1] if options.only_print else options.loads:
        outcomes = {}
        for service, training in PAIRS:
            outcomes[service, training] = run(Case(service, training, load, options.requests, options.seeds[0]))
            named = {"service": service, "training": training, "asked_load": load}
            rows += [named | o.as_dict() for o in outcomes[service, training].values()]
        ours = [by_rule["gpuloom"] for by_rule in outcomes.values()]
        mean = sum(o.best_effort_over_alone for o in ours) / len(ours)
        kept = sum(o.p99_over_alone <= P99 for o in ours)
        text += [
            f"\n**Load {load:.0%}**, {options.requests:,} requests a pair. p99 over alone / training over alone:\n"
        ]
        text += table(outcomes)
        told = f" (target {SHARE}: {'holds' if mean >= SHARE else 'MISSED'})" if load == 0.5 else ""
        text.append(
            f"\np99 ≤ {P99} of alone on {kept} of {len(ours)} pairs; training at {mean:.3f} of alone on average{told}."
        )
    print("\n".join(text))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if not options.only_print:
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), BEGIN, END, "\n".join(text)), encoding="utf-8")


def seeds(text: str) -> Iterable[int]:
    """`3` or `1-5`."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print")
    parser.add_argument("--all", action="store_true", dest="all_pairs")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--frontier", action="store_true")
    parser.add_argument("--nine", action="store_true")
    parser.add_argument("--seeds", type=seeds, default=range(1, 2), metavar="FIRST-LAST")
    parser.add_argument("--services", nargs="+", default=SERVICES, metavar="NAME")
    parser.add_argument("--trainings", nargs="+", default=TRAININGS, metavar="NAME")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, metavar="SHARE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    need(DATA, "orion")
    if options.ablation:
        options.loads = options.loads[:1]
        many(options, ABLATION)
    elif options.frontier:
        options.loads = options.loads[:1]
        many(options, FRONTIER)
    elif options.all_pairs:
        many(options, {"gpuloom": {}})
    else:
        nine(options)


if __name__ == "__main__":
    main()
