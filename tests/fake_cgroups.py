"""A tree of plain files that behaves like the kernel's control groups (version 2), for a process that is given it.

New groups have the files that the kernel makes, a group can be removed with them, and its members are the processes
with its run's name in their environment, once one was put into it. Freezing does nothing, and is always done.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

from gpuloom.executors.runner import cgroups

FILES = {
    "cgroup.type": "domain\n",
    "cgroup.controllers": "cpu memory pids",
    "cgroup.subtree_control": "",
    "cgroup.procs": "",
    "cgroup.events": "populated 1\nfrozen 1\n",
    "cgroup.freeze": "0",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "cpu.max": "max 100000",
}
# As they were: what stands for the kernel is not to fail on purpose.
_open, _read, _write, _close, _listdir = os.open, os.read, os.write, os.close, os.listdir
_unlink, _makedirs, _rmdir, _known, _find = os.unlink, os.makedirs, os.rmdir, cgroups.known, cgroups.find


def install(top: str) -> None:
    """From now on this process finds its control groups below `top`."""
    _new(f"{top}/scope", {**FILES, "cgroup.subtree_control": "cpu memory"})
    mount = f"31 23 0:28 / {top} rw,relatime shared:1 - cgroup2 cgroup2 rw\n"
    found: Any = functools.partial(_find, mountinfo=mount, own="0::/scope\n")

    def makedirs(path: str, *args: Any, **more: Any) -> None:
        _makedirs(path, *args, **more)
        if path.startswith(top):
            _new(path, FILES)

    def rmdir(path: str) -> None:
        if path.startswith(top) and not members(path):
            for name in FILES:
                with contextlib.suppress(FileNotFoundError):
                    _unlink(f"{path}/{name}")
        _rmdir(path)

    def known(path: str) -> str:
        text = _known(path)
        if not text or not path.startswith(top) or not path.endswith("/cgroup.procs"):
            return text
        return "\n".join(map(str, members(os.path.dirname(path))))

    for owner, name, value in (
        (cgroups, "find", found), (cgroups, "known", known), (os, "makedirs", makedirs), (os, "rmdir", rmdir),
    ):  # fmt: skip
        setattr(owner, name, value)


def members(group: str) -> list[int]:
    """Processes of the run that this group is named after."""
    path = Path(group)
    marker = f"GPULOOM_RUN={path.parent.name.removeprefix('gpuloom-')}:{path.name}\0".encode()
    return carrying(marker)


def carrying(mark: bytes) -> list[int]:
    """Processes with this in their environment."""
    return [int(name) for name in _listdir("/proc") if name.isdigit() and mark in _content(f"/proc/{name}/environ")]


def _new(path: str, files: dict[str, str]) -> None:
    _makedirs(path, exist_ok=True)
    for name, text in files.items():
        with contextlib.suppress(FileExistsError):
            file = _open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            _write(file, text.encode())
            _close(file)


def _content(path: str) -> bytes:
    with contextlib.suppress(OSError):
        file = _open(path, os.O_RDONLY)
        try:
            return _read(file, 1 << 20)
        finally:
            _close(file)
    return b""
