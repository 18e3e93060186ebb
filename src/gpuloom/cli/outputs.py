"""Checks of a command's output files, before its long work starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from gpuloom.core.errors import InputError


class Overwrite(click.Option):
    """An option with names of before, which still work and are not shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        found = super().get_help_record(ctx)
        return None if found is None else (self.opts[0], found[1])


def overwrite_option(what: str) -> Callable[[Any], Any]:
    """--overwrite, as `overwrite`: what of the same name is there already is replaced. what: such as 'a file'."""
    return click.option(
        "--overwrite",
        "--force",
        "--replace",
        "overwrite",
        cls=Overwrite,
        is_flag=True,
        help=f"Replace {what} that exists already.",
    )


def check_outputs(targets: list[str | None], plot_target: str | None) -> None:
    """Refuse at once what would fail at the end."""
    files = [Path(target) for target in (*targets, plot_target) if target is not None and target != "-"]
    for index, file in enumerate(files):
        if any(_same(file, other) for other in files[:index]):
            raise InputError(f"two outputs name the same file {file.absolute()}")
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
        from gpuloom.report.picture import check_picture

        check_picture(Path(plot_target))


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
                raise InputError(f"{target}: is an input ({path}) and would be overwritten; choose another file")


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, by links of either kind, too."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)
