"""From what a user asks for (a virtual environment, conda, a container) to a run's command line and environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.executors.containers import contained

CONDA_TOOLS = ("conda", "mamba", "micromamba")


def prepared(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    venv: str | None = None,
    conda: str | None = None,
    container: str | None = None,
    cwd: str,
    gpus: Sequence[int] = (),
    gpu_uuids: Sequence[str] = (),
    kind: str = "gpu",
    run: str = "run",
    directory: str = "",
    mounts: Sequence[str] = (),
    host_network: bool = False,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Program and arguments, and the environment, with which a run is to be started.

    At most one of venv (a directory, relative to `cwd` or absolute), conda (a name or a directory) and container (an
    image) is given. gpus, gpu_uuids, kind, run and directory are those of the RunRequest to come; only containers need
    them. mounts: other files that a container is to have, at the same places. host_network: others must reach its
    ports at this machine's address.

    Raises:
        InputError: what is missing, and what would be right.
    """
    words, variables = tuple(argv), dict(env)
    if venv:
        return words, _venv(venv, variables, cwd)
    if conda:
        return _conda(conda, words, variables, cwd)
    if container:
        words = contained(
            words,
            variables,
            image=container,
            cwd=cwd,
            gpus=gpus,
            gpu_uuids=gpu_uuids,
            kind=kind,
            run=run,
            directory=directory,
            mounts=mounts,
            host_network=host_network,
        )
    return words, variables


def _with_path(env: dict[str, str], directory: Path) -> dict[str, str]:
    env["PATH"] = f"{directory}{os.pathsep}{env.get('PATH') or os.defpath}"
    return env


def _venv(venv: str, env: dict[str, str], cwd: str) -> dict[str, str]:
    place = Path(cwd, Path(venv).expanduser())
    if not place.is_dir():
        raise InputError(f"venv: there is no directory {place}: create it with `python -m venv {place}`")
    if not (place / "bin" / "python").exists():
        raise InputError(f"venv: {place} is not a virtual environment: it has no bin/python")
    env.pop("PYTHONHOME", None)
    env["VIRTUAL_ENV"] = str(place)
    return _with_path(env, place / "bin")


def _conda(conda: str, argv: tuple[str, ...], env: dict[str, str], cwd: str) -> tuple[tuple[str, ...], dict[str, str]]:
    if "/" in conda or conda.startswith("~"):
        prefix = Path(cwd, Path(conda).expanduser())
        if not prefix.is_dir():
            raise InputError(f"conda: there is no directory {prefix}: create it with `conda create -p {prefix} python`")
        if not (prefix / "bin").is_dir():
            raise InputError(f"conda: {prefix} is not a conda environment: it has no bin")
        return argv, _in_prefix(prefix, str(prefix), env)
    looked = _places(env)
    for prefix in looked:
        root = "conda-meta" if conda == "base" else ""
        if ((conda == "base" and (prefix / "condabin").is_dir()) or prefix.name == conda) and (prefix / root).is_dir():
            return argv, _in_prefix(prefix, conda, env)
    path = env.get("PATH", os.defpath)
    for tool in CONDA_TOOLS:
        program = shutil.which(tool, path=path)
        if program is not None:
            flags = [] if tool == "micromamba" else ["--no-capture-output"]
            return (program, "run", *flags, "-n", conda, *argv), env
    raise InputError(
        f"conda: environment {conda!r} was not found (~/.conda/environments.txt, CONDA_EXE, CONDA_ENVS_PATH), and "
        f"none of {', '.join(CONDA_TOOLS)} is in PATH ({path}): give the directory of the environment instead"
    )


def _in_prefix(prefix: Path, name: str, env: dict[str, str]) -> dict[str, str]:
    env.pop("PYTHONHOME", None)
    env.update(CONDA_PREFIX=str(prefix), CONDA_DEFAULT_ENV=name)
    return _with_path(env, prefix / "bin")


def _places(env: Mapping[str, str]) -> list[Path]:
    """Directories that may be conda environments, those that the user's own settings name first."""
    found: list[Path] = []
    for folder in (env.get("CONDA_ENVS_PATH") or env.get("CONDA_ENVS_DIRS") or "").split(os.pathsep):
        if folder:
            found += _inside(Path(folder))
    program = env.get("CONDA_EXE")
    if program:
        root = Path(program).parent.parent
        found += [root, *_inside(root / "envs")]
    home = Path(env.get("HOME") or Path.home())
    try:
        listed = (home / ".conda" / "environments.txt").read_text()
    except OSError:
        listed = ""  # most users have none
    found += [Path(line.strip()) for line in listed.splitlines() if line.strip()]
    return [place for place in found if (place / "bin").is_dir()]


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(place for place in folder.iterdir() if place.is_dir())
    except OSError:
        return []  # named, but not there
