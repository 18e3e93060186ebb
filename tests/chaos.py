"""Chaos: jobs on a head and its nodes, of which one thing or another dies, is cut off or runs full at random moments.

    python tests/chaos.py --seeds 1,2,3 --jobs 500
    python tests/chaos.py --slurm --seeds 1 --jobs 200

The nodes are three that joined (chaos_nodes.py), or pilots on a Slurm that is started for it (chaos_slurm.py). Jobs,
and what must be true of them: chaos_jobs.py.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from chaos_base import Outcome
from chaos_nodes import JoinedChaos
from chaos_slurm import SlurmChaos


def chaos(folder: Path, seed: int, jobs: int, *, slurm: bool = False, keep: Path | None = None) -> Outcome:
    """One seed, in an empty folder. keep: where the homes are copied to if something is wrong."""
    with ExitStack() as stack:
        outcome = (SlurmChaos if slurm else JoinedChaos)(folder, seed, jobs, stack).run()
        if keep is not None and outcome.wrong:
            shutil.copytree(folder, keep, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        return outcome


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", default="1,2,3", help="seeds, with commas")
    options.add_argument("--jobs", type=int, default=500, help="jobs of each seed")
    options.add_argument("--slurm", action="store_true", help="nodes are pilots on a Slurm that is started for it")
    options.add_argument("--keep", type=Path, help="a folder for the homes of seeds in which something is wrong")
    told = options.parse_args()
    bad = 0
    for seed in map(int, told.seeds.split(",")):
        with tempfile.TemporaryDirectory(prefix="gpuloom-chaos-", ignore_cleanup_errors=True) as folder:
            outcome = chaos(Path(folder), seed, told.jobs, slurm=told.slurm, keep=told.keep and told.keep / str(seed))
            print(outcome, flush=True)
            bad += bool(outcome.wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
