"""Chaos: jobs on a head and its nodes, of which one thing or another dies, is cut off or runs full at random moments.

    python tests/chaos.py --seeds 1,2,3 --jobs 500
    python tests/chaos.py --on slurm --seeds 1 --jobs 200
    python tests/chaos.py --on pods --seeds 1 --jobs 200

The nodes are three that joined (chaos_nodes.py), pilots on a Slurm that is started for it (chaos_slurm.py), or twenty
of a fake Kubernetes cluster (chaos_pods.py). Jobs, and what must be true of them: chaos_jobs.py.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from chaos_base import Chaos, Outcome
from chaos_nodes import JoinedChaos
from chaos_pods import PodsChaos
from chaos_slurm import SlurmChaos

KINDS: Mapping[str, type[Chaos]] = {"nodes": JoinedChaos, "slurm": SlurmChaos, "pods": PodsChaos}


def chaos(folder: Path, seed: int, jobs: int, *, on: str = "nodes", keep: Path | None = None) -> Outcome:
    """One seed, in an empty folder. on: of KINDS. keep: where the homes are copied to if something is wrong."""
    with ExitStack() as stack:
        outcome = KINDS[on](folder, seed, jobs, stack).run()
        if keep is not None and outcome.wrong:
            shutil.copytree(folder, keep, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        return outcome


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", default="1,2,3", help="seeds, with commas")
    options.add_argument("--jobs", type=int, default=500, help="jobs of each seed")
    options.add_argument("--on", choices=list(KINDS), default="nodes", help="joined nodes, pilots of Slurm, or pods")
    options.add_argument("--keep", type=Path, help="a folder for the homes of seeds in which something is wrong")
    told = options.parse_args()
    bad = 0
    for seed in map(int, told.seeds.split(",")):
        with tempfile.TemporaryDirectory(prefix="gpuloom-chaos-", ignore_cleanup_errors=True) as folder:
            outcome = chaos(Path(folder), seed, told.jobs, on=told.on, keep=told.keep and told.keep / str(seed))
            print(outcome, flush=True)
            bad += bool(outcome.wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
