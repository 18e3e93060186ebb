"""The real shim on pairs of recorded kernels, on the fake driver's clock; for docs/results/sharing.md.

python bench/shim_pairs.py                 all pairs under three rules, beside the simulator, figures into the page
python bench/shim_pairs.py --print         print, change nothing
python bench/shim_pairs.py --learn         no profile: the shim learns durations, utilisations stay unknown
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pages import with_part
from public_data import DATA, need
from sharing_pairs import ORION, PAIRS
from shim_kit import built
from shim_pairs_kit import ShimPair

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "sharing.md"
BEGIN, END = "<!-- shim pairs: begin -->", "<!-- shim pairs: end -->"
RULES = ("none", "priority", "gpuloom")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print")
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    need(DATA, "orion")
    lines = [
        f"Load 50%, {options.requests:,} requests a pair. p99 over alone / training over alone:\n",
        f"| service | training | {' | '.join(RULES)} | simulator, gpuloom |",
        "|---|---|---|---|---|---|",
    ]
    ours = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, (service, training) in enumerate(PAIRS):
            folder = Path(scratch) / str(number)
            pair = ShimPair(
                built("plain"),
                folder,
                ORION,
                service,
                training,
                requests=options.requests,
                seed=options.seed,
                profiled=not options.learn,
            )
            found = [pair.under(rule) for rule in RULES]
            simulated = pair.simulated("gpuloom")
            ours.append(found[-1])
            cells = [f"{f.p99_over_alone:.3f} / {f.best_effort_over_alone:.3f}" for f in (*found, simulated)]
            lines.append(f"| {service} | {training} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    worst = max(f.p99_over_alone for f in ours)
    mean = sum(f.best_effort_over_alone for f in ours) / len(ours)
    lines.append(f"\nUnder gpuloom's rule: worst p99 {worst:.3f}, training at {mean:.3f} of alone on average.")
    text = "\n".join(lines)
    print(text)
    if not options.only_print:
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), BEGIN, END, text), encoding="utf-8")


if __name__ == "__main__":
    main()
