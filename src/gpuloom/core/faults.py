"""Faults of the environment (disk, processes, file handles): what to do about them, by errno. One place for all."""

from __future__ import annotations

import errno

_MOUNT = "its file system can't be reached: see `mount`, and mount it again"
_ADVICE = {
    errno.ENOSPC: "free space or files there (`df -h`, `df -i`)",
    errno.EDQUOT: "the quota is used up: free space or files there (`quota -s`)",
    errno.EMFILE: "too many files are open: raise the limit (`ulimit -n`)",
    errno.ENFILE: "too many files are open on this machine: stop programs, or raise `sysctl fs.file-max`",
    errno.EAGAIN: "no process can be created: stop some, or raise the limit (`ulimit -u`, `pids.max` of the control "
    "group)",
    errno.ENOMEM: "the machine is out of memory: stop programs (`free -m`)",
    errno.EIO: "the disk fails: see `dmesg`",
    errno.EROFS: "the file system is mounted read-only: see `dmesg`, then `mount -o remount,rw`",
    errno.EACCES: "it must belong to you and be writable (`ls -ld`)",
    errno.EPERM: "it must belong to you and not be immutable (`lsattr -d`)",
    errno.ENOLCK: "the file system has no locks: use a local disk",
    errno.ESTALE: _MOUNT,
    errno.ENODEV: _MOUNT,
    errno.ENXIO: _MOUNT,
    errno.ENOTCONN: _MOUNT,
    errno.ETIMEDOUT: _MOUNT,
    errno.EHOSTDOWN: _MOUNT,
}


def advice(number: int | None) -> str:
    """What to do about it; '' if nothing is known to help."""
    return _ADVICE.get(number or 0, "")


def fault_text(what: str, error: BaseException) -> str:
    """A sentence for people: what could not be done, why, and what to do. `what` such as "can't write /x/run.json"."""
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, "Cannot allocate memory")
    number, why = (error.errno, error.strerror) if isinstance(error, OSError) else (None, "")
    why = why or str(error) or type(error).__name__
    help_ = advice(number)
    return f"{what}: {why}; {help_}" if help_ else f"{what}: {why}"
