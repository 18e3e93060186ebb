"""Checks of the files that a command is to write, before the long work begins."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gpuloom.core.errors import InputError


def check_outputs(targets: list[str | None], plot_target: str | None) -> None:
    """Refuse at once what would fail at the end."""
    files = [Path(target) for target in (*targets, plot_target) if target is not None and target != "-"]
    for index, file in enumerate(files):
        if any(_same(file, other) for other in files[:index]):
            raise InputError(f"two outputs go to the same file {file.absolute()}")
    for target in (*targets, plot_target):
        if target is None or target == "-":
            continue
        if not Path(target).absolute().parent.is_dir():
            raise InputError(f"{target}: the folder {Path(target).parent} does not exist")
        if Path(target).is_dir():
            raise InputError(f"{target} is a folder, must be a file to write")
        if not os.access(target if Path(target).exists() else Path(target).absolute().parent, os.W_OK):
            raise InputError(f"{target}: no permission to write there")
    if plot_target is not None:
        from gpuloom.sim.report.plot import SUFFIXES

        if Path(plot_target).suffix.lower() not in SUFFIXES:
            raise InputError(f"{plot_target}: a plot is written to a file that ends in {', '.join(SUFFIXES)}")


def check_overwrites(targets: Iterable[str | None], inputs: Iterable[Path]) -> None:
    """Refuse to write a file that the command reads.

    Args:
        inputs: files; what does not exist, or is no regular file, is passed over. `ARCHIVE::MEMBER` is the archive.
    """
    read = [path for given in inputs if (path := Path(str(given).partition("::")[0])).is_file()]
    for target in targets:
        if target is None or target == "-":
            continue
        for path in read:
            if _same(Path(target), path):
                raise InputError(f"{target}: is an input ({path}), and would be overwritten; choose another file")


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, by links of either kind, too."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)
