"""Pairs of a service and a training job on one GPU, from Orion's recorded kernels; rewrites a part of docs/sharing.md.

python bench/sharing_pairs.py            all pairs, loads and rules (a few minutes), figures into docs/sharing.md
python bench/sharing_pairs.py --print    the first load only, print, change nothing
python bench/sharing_pairs.py --json F   write all outcomes as JSON, too
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from gpuloom.sharing.find import find_profile
from gpuloom.sharing.rule import RULES
from gpuloom.sharing.simulate import Machine, Outcome, Pair, poisson_arrivals, request_alone_ns
from pages import with_part

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("GPULOOM_DATA", ROOT.parent / "shared" / "data")) / "orion"
PAGE = ROOT / "docs" / "sharing.md"
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
LOADS = (0.5, 0.3, 0.7)
P99, SHARE = 1.05, 0.6


def run(service: str, training: str, load: float, requests: int, seed: int = 1) -> dict[str, Outcome]:
    """A pair under every rule."""
    high, best = find_profile(service, DATA)[0], find_profile(training, DATA)[0]
    rate = load / (request_alone_ns(high, Machine()) / 1e9)
    pair = Pair(high, best, poisson_arrivals(rate, requests, seed), seed=seed)
    return {rule: pair.outcome(rule) for rule in RULES}


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
    for rule in RULES:
        found = [by_rule[rule] for by_rule in outcomes.values()]
        worst = max(o.p99_over_alone for o in found)
        means.append(f"{worst:.3f} / {sum(o.best_effort_over_alone for o in found) / len(found):.3f}")
    lines.append(f"| worst p99 / mean training | | {' | '.join(means)} | | |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, metavar="SHARE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not DATA.is_dir():
        raise SystemExit(f"{DATA}: Orion's profiles are not here")
    text, rows = [], []
    for load in options.loads[:1] if options.only_print else options.loads:
        outcomes = {}
        for service, training in PAIRS:
            outcomes[service, training] = run(service, training, load, options.requests)
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


if __name__ == "__main__":
    main()
