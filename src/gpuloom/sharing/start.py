"""Jobs that share a GPU kernel by kernel: whether this machine can, and how such a job is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuloom.core.job import DeviceKind, NodeRecord
from gpuloom.sharing.job_profile import TAKE, here
from gpuloom.sharing.shim import attach as shim


@dataclass(frozen=True, slots=True)
class Ability:
    """able: jobs may be placed beside each other. gated: their kernels are admitted by the shim. why: in words.

    environment: variables that all programs under the shim need alike, to find each other and the driver.
    """

    able: bool
    gated: bool
    why: str
    environment: Mapping[str, str] = field(default_factory=dict)


def ability(node: NodeRecord, environment: Mapping[str, str]) -> Ability:
    """What this machine can do. Compiles the shim where it must be; starts nothing else."""
    if node.kind == DeviceKind.CPU:
        return Ability(True, False, "CPU slots stand in for GPUs: jobs share them, and the high one is not protected")
    lacking = [found for found in shim.examine(environment) if found.needed and not found.ok]
    if lacking:
        what = "; ".join(f"{found.what}: {found.text}" for found in lacking)
        return Ability(False, False, f"the shim can't be active on this machine ({what})")
    folder = shim.shared_folder(environment)
    shared = {"GPULOOM_SHARE_DIR": str(folder)}
    shared |= {name: environment[name] for name in ("GPULOOM_SHARE_DRIVER",) if environment.get(name)}
    return Ability(True, True, f"the shim is active on this machine; programs meet in {folder}", shared)


NO_SHARING = Ability(False, False, "")


def under_the_shim(
    sharing: Ability, job: int, klass: str, profile: str, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and environment: of a job that may share its GPU by `gpuloom share run`, of others as they are.

    klass: the class with which it may share; '' if it may not. profile: a file's path or the name of a kernel profile,
    '' for none, or that it is to be taken. One that can't be read here is named in the job's log; the job runs without.
    """
    if not (klass and sharing.gated):
        return tuple(argv), dict(env)
    starter = [*_isolated(), "share", "run", "--class", klass, "--name", f"job {job}"]
    if profile.startswith(TAKE):
        starter += ["--take-profile", here(profile).removeprefix(TAKE)]
    elif profile:
        starter += ["--profile", here(profile), "--profile-if-there"]
    kept = {name: value for name, value in env.items() if name != "GPULOOM_SHARE"}  # the scheduler decides, not the job
    return (*starter, "--", *argv), {**kept, **sharing.environment}


def _isolated() -> list[str]:
    """gpuloom as it runs here, whatever PYTHONPATH the job has; our own names where we, or what we need, may lie."""
    ours = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if not ours:
        return [sys.executable, "-I", "-m", "gpuloom"]
    code = f"import sys; sys.path.extend({ours!r}); from gpuloom.cli.main import main; main()"
    return [sys.executable, "-I", "-c", code]
