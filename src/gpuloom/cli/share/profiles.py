"""`gpuloom share profiles`: kernel profiles, shipped and the user's own."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Group
from gpuloom.cli.live_tables import Column, show_table
from gpuloom.cli.outputs import overwrite_option
from gpuloom.core.errors import InputError
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.sharing.profiles import KernelProfile, KernelRecord

folder_option = click.option(
    "--profiles", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Files below DIR."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


COLUMNS: Sequence[Column[tuple[KernelProfile, str]]] = (
    Column("profile", lambda row: row[0].name),
    Column("GPU", lambda row: f"{row[0].device or 'unknown'} ({row[0].sm_count} SMs)", least=56),
    Column("kernels", lambda row: str(len(row[0].order)), right=True),
    Column("ms", lambda row: f"{row[0].duration_ns / 1e6:.3f}", right=True),
    Column("mean SMs", lambda row: f"{row[0].mean_sm:.0f}", right=True, least=74),
    Column("compute", lambda row: _part(row[0], "compute"), right=True, least=100),
    Column("memory", lambda row: _part(row[0], "memory"), right=True, least=100),
    Column("unknown", lambda row: _part(row[0], "unknown"), right=True, least=100),
    Column("from", lambda row: row[1], gives=True),
)


@click.group(cls=Group, aliases={"list": "ls"})
def profiles() -> None:
    """Show, compare and import kernel profiles: what one request or one training iteration launches."""


@profiles.command(short_help="List profiles.")
@folder_option
@json_option
def ls(folder: Path | None, as_json: bool) -> None:
    """List profiles: of your library and shipped ones, or those below a folder.

    \b
    Examples:
      gpuloom share profiles ls
      gpuloom share profiles ls --json
    """
    from gpuloom.sharing.find import profile_files, read_profile
    from gpuloom.sharing.profiles import SUFFIX, library_folder
    from gpuloom.sharing.shipped import SHIPPED, shipped

    found: list[tuple[KernelProfile, str]] = []
    refused = []
    if folder is not None and not folder.is_dir():
        raise InputError(f"--profiles {folder}: no such folder")
    own = folder if folder is not None else library_folder()
    files = profile_files(own) if folder is not None else sorted(own.glob(f"*{SUFFIX}")) if own.is_dir() else []
    for path in files:
        try:
            found.append((read_profile(path), str(path)))
        except InputError as error:
            refused.append(str(error))
    if folder is None:
        found += [(shipped(name), "shipped: an estimate, not measured") for name in SHIPPED]
    if as_json:
        click.echo(json.dumps([_summary(profile, where) for profile, where in found], indent=2, allow_nan=False))
    else:
        show_table(COLUMNS, found)
    for line in refused:
        click.echo(f"not read: {line}", err=True)


@profiles.command()
@click.argument("name")
@folder_option
@json_option
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Kernels, by time.")
@click.option("--each", is_flag=True, help="A row for each grid, block and shared memory, with all that is recorded.")
def show(name: str, folder: Path | None, as_json: bool, top: int, each: bool) -> None:
    """Show the kernels of a profile, longest first. NAME can be a file.

    \b
    Examples:
      gpuloom share profiles show resnet50 --top 10
      gpuloom share profiles show resnet50 --each
    """
    from gpuloom.sharing.find import find_profile

    profile, where = find_profile(name, folder)
    by_name = _by_name(profile)
    if as_json:
        told = _summary(profile, where) | {"by_kernel": [row | {"name": kernel} for kernel, row in by_name[:top]]}
        if each:
            told["records"] = [asdict(record) | {"launches": count} for record, count in _by_time(profile)[:top]]
        click.echo(json.dumps(told, indent=2, allow_nan=False))
        return
    click.echo(
        f"{profile.name}: {_kernels(profile)}, {profile.duration_ns / 1e6:.3f} ms, "
        f"{profile.device or 'unknown GPU'} of {profile.sm_count} SMs, {where}\n{profile.source}\n"
    )
    if each:
        _print_each(profile, top)
        return
    _print(
        ("kernel", "launches", "ms", "of time", "SMs", "longest us", "class"),
        [
            (
                kernel[:70],
                str(row["launches"]),
                f"{row['duration_ns'] / 1e6:.3f}",
                f"{row['duration_ns'] / profile.duration_ns:.1%}",
                str(row["sm_slots"]),
                f"{row['longest_ns'] / 1e3:.1f}",
                row["class"],
            )
            for kernel, row in by_name[:top]
        ],
        left=(0, 6),
    )
    _say_rest(len(by_name), top, "kernels")


@profiles.command()
@click.argument("one")
@click.argument("other")
@folder_option
@click.option(
    "--top", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Kernels, by difference."
)
@json_option
def diff(one: str, other: str, folder: Path | None, top: int, as_json: bool) -> None:
    """Compare two profiles kernel by kernel name.

    \b
    Example:
      gpuloom share profiles diff resnet50 resnet50-train
    """
    from gpuloom.sharing.find import find_profile

    before, after = find_profile(one, folder)[0], find_profile(other, folder)[0]
    left, right = dict(_by_name(before)), dict(_by_name(after))
    none = {"launches": 0, "duration_ns": 0}
    rows = [
        {
            "name": kernel,
            "launches": (left.get(kernel, none)["launches"], right.get(kernel, none)["launches"]),
            "duration_ns": (left.get(kernel, none)["duration_ns"], right.get(kernel, none)["duration_ns"]),
        }
        for kernel in sorted(left.keys() | right.keys())
    ]
    rows.sort(key=lambda row: -abs(row["duration_ns"][1] - row["duration_ns"][0]))
    if as_json:
        click.echo(json.dumps({"total_ns": (before.duration_ns, after.duration_ns), "kernels": rows[:top]}, indent=2))
        return
    ratio = after.duration_ns / before.duration_ns
    click.echo(
        f"before: {before.name}, {before.duration_ns / 1e6:.3f} ms, {before.device or 'unknown GPU'}\n"
        f"after:  {after.name}, {after.duration_ns / 1e6:.3f} ms, {after.device or 'unknown GPU'} (x {ratio:.3f})\n"
    )
    cells = [
        (
            str(r["name"])[:70],
            *(str(n) for n in r["launches"]),
            *(f"{ns / 1e6:.3f}" for ns in r["duration_ns"]),
            f"{(r['duration_ns'][1] - r['duration_ns'][0]) / 1e6:+z.3f}",
        )
        for r in rows[:top]
    ]
    _print(("kernel", "launches before", "after", "ms before", "after", "change"), cells, left=(0,))
    _say_rest(len(rows), top, "kernels")


@profiles.command("import", short_help="Add a profile to your library, from PyTorch or ncu.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name in the library [the file's].")
@click.option("--sm-count", type=click.IntRange(1), metavar="N", help="SMs of the GPU, where the file doesn't say.")
@click.option("--cc", metavar="X.Y", help="Its compute capability, where the file doesn't say.")
@click.option("--last-step", is_flag=True, help="PyTorch trace: only the last ProfilerStep.")
@overwrite_option("a profile of that name")
def import_(
    file: Path, name: str | None, sm_count: int | None, cc: str | None, last_step: bool, overwrite: bool
) -> None:
    """Add a profile to your library: a PyTorch profiler trace (.json), a CSV of ncu, or a file of gpuloom or Orion.

    \b
    Example:
      gpuloom share profiles import trace.json --name serve --sm-count 108 --cc 8.0
    """
    from gpuloom.sharing.imports import read_any, title_of
    from gpuloom.sharing.profiles import library_folder, read_text, save

    profile = read_any(file, read_text(file), name or title_of(file), sm_count, cc or "", last_step=last_step)
    path = save(profile, library_folder(), overwrite)
    click.echo(
        f"imported {profile.name}: {_kernels(profile)}, {profile.duration_ns / 1e6:.3f} ms, into {path}",
        err=True,
    )
    say_if_hidden(profile.name)


def say_if_hidden(name: str) -> None:
    """Say on stderr that a profile of the library hides one that comes with gpuloom."""
    from gpuloom.sharing.profiles import SUFFIX, library_folder
    from gpuloom.sharing.shipped import SHIPPED

    if name in SHIPPED:
        path = library_folder() / f"{name}{SUFFIX}"
        click.echo(
            f"gpuloom: {name} now names this profile instead of the shipped one, until {path} is removed", err=True
        )


def _summary(profile: KernelProfile, where: str) -> dict[str, Any]:
    return {
        "name": profile.name,
        "device": profile.device,
        "sm_count": profile.sm_count,
        "cc": profile.cc,
        "kernels": len(profile.order),
        "duration_ns": profile.duration_ns,
        "mean_sm": profile.mean_sm,
        "classes": {klass: profile.share_of_class(klass) for klass in ("compute", "memory", "unknown")},
        "source": profile.source,
        "from": where,
    }


def _part(profile: KernelProfile, klass: str) -> str:
    return f"{profile.share_of_class(klass):.0%}"


def _kernels(profile: KernelProfile) -> str:
    count = len(profile.order)
    return plural(count, "kernel")


def _by_name(profile: KernelProfile) -> list[tuple[str, dict[str, Any]]]:
    rows: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"launches": 0, "duration_ns": 0, "sm_slots": 0, "longest_ns": 0, "class": ""}
    )
    for kernel in profile.kernels:
        row = rows[kernel.name]
        row["launches"] += 1
        row["duration_ns"] += kernel.duration_ns
        row["sm_slots"] = max(row["sm_slots"], kernel.sm_slots)
        row["longest_ns"] = max(row["longest_ns"], kernel.duration_ns)
        row["class"] = kernel.klass if row["class"] in ("", kernel.klass) else "mixed"
    return sorted(rows.items(), key=lambda item: (-item[1]["duration_ns"], item[0]))


def _by_time(profile: KernelProfile) -> list[tuple[KernelRecord, int]]:
    """Records that run and how often, those that take longest in all first."""
    launches = Counter(profile.order)
    found = [(profile.records[index], count) for index, count in sorted(launches.items())]
    return sorted(found, key=lambda pair: -pair[0].duration_ns * pair[1])


def _print_each(profile: KernelProfile, top: int) -> None:
    found = _by_time(profile)
    titles = ("kernel", "launches", "us", "grid", "block", "registers", "shared", "SMs", "compute", "memory", "class")
    cells = [
        (
            r.name[:50],
            str(count),
            f"{r.duration_ns / 1e3:.1f}",
            "x".join(map(str, r.grid)) if r.blocks else "?",
            "x".join(map(str, r.block)) if r.threads_per_block else "?",
            str(r.registers) if r.registers else "?",
            str(r.shared_bytes),
            str(r.sm_slots),
            *("?" if value is None else f"{value:.0%}" for value in (r.compute_util, r.dram_util)),
            r.klass,
        )
        for r, count in found[:top]
    ]
    _print(titles, cells, left=(0, 10))
    _say_rest(len(found), top, "records")


def _say_rest(count: int, top: int, what: str) -> None:
    if count > top:
        click.echo(f"and {count - top} more {what} (--top)")


def _print(titles: tuple[str, ...], rows: list[tuple[str, ...]], left: tuple[int, ...]) -> None:
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    for row in (titles, *rows):
        cells = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        click.echo("  ".join(cells).rstrip())
