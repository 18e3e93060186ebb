"""Control groups: one for each run, of version 2 or 1, where this user may make them.

Version 2 (the kernel's admin-guide/cgroup-v2): below the nearest ancestor of our own group that we may write to and
that hands `memory` and `cpu` down. A group with processes of its own can't hand controllers down, the root excepted.
Where none does, a group still ends and freezes its processes as a whole, which needs no controller.
Version 1: one directory each under `freezer`, `memory` and `cpu`, below our own place in each hierarchy, so that what
bounds us bounds the jobs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PERIOD_US = 100_000
WANTED = ("memory", "cpu")
MIB = 1 << 20
GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)
"""What is said of a group that has been removed, or is just being."""


def read(path: str) -> str:
    """A file's text, '' if it can't be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 20).decode()
    except OSError:
        return ""


def known(path: str) -> str:
    """A file's text, '' if its group is gone. Raises OSError: not known now."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 20).decode()
    except OSError as error:
        if error.errno in GONE:
            return ""
        raise


def write(path: str, text: str) -> None:
    """One write, as these files want it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _below(directory: str) -> list[str]:
    """The directory and all below it, deepest first; none if it is gone. Raises OSError: not known now."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in GONE:
            return []
        raise
    return [path for name in names for path in _below(name)] + [directory]


class Group:
    """The control group of one run.

    version: 1 or 2. places: directories by what they are for: 'freezer', 'memory', 'cpu'; in version 2 all the same.
    """

    def __init__(self, version: int, places: Mapping[str, str]) -> None:
        self.version = version
        self.places = dict(places)
        self._main = self.places["freezer"]

    def limit(self, *, cpus: float | None, memory_mib: int | None) -> None:
        """Set the limits that this group can hold. Raises OSError."""
        memory, cpu = self.places.get("memory"), self.places.get("cpu")
        if memory_mib is not None and memory is not None:
            size = str(memory_mib * MIB)
            if self.version == 2:
                write(f"{memory}/memory.max", size)
                # A job that is out of memory is ended as a whole, rather than left with a worker missing.
                for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                    if os.path.exists(f"{memory}/{name}"):
                        write(f"{memory}/{name}", value)
            else:
                write(f"{memory}/memory.limit_in_bytes", size)
                if os.path.exists(f"{memory}/memory.memsw.limit_in_bytes"):
                    write(f"{memory}/memory.memsw.limit_in_bytes", size)
        if cpus is not None and cpu is not None:
            quota = max(int(cpus * PERIOD_US), 1000)
            if self.version == 2:
                write(f"{cpu}/cpu.max", f"{quota} {PERIOD_US}")
            else:
                write(f"{cpu}/cpu.cfs_period_us", str(PERIOD_US))
                write(f"{cpu}/cpu.cfs_quota_us", str(quota))

    def add(self, pid: int) -> None:
        """Move a process in. Raises OSError: it is in none of its places, as far as that can be done."""
        inside: list[str] = []
        for place in dict.fromkeys(self.places.values()):
            try:
                write(f"{place}/cgroup.procs", str(pid))
            except OSError:
                for other in inside:  # version 1 alone has several
                    with contextlib.suppress(OSError):
                        write(f"{os.path.dirname(other)}/cgroup.procs", str(pid))
                raise
            inside.append(place)

    def exists(self) -> bool:
        """Whether it is still there."""
        return os.path.isdir(self._main)

    def pids(self) -> list[int]:
        """Processes in it and in groups below it. Raises OSError: not known now."""
        if self.version == 2 and "populated 0" in known(f"{self._main}/cgroup.events"):
            return []
        found: dict[int, None] = {}
        for place in _below(self._main):
            found.update(dict.fromkeys(int(pid) for pid in known(f"{place}/cgroup.procs").split()))
        return list(found)

    def kill(self) -> None:
        """SIGKILL to all in it, with no way to fork out of it."""
        if self.version == 2 and os.path.exists(f"{self._main}/cgroup.kill"):  # Linux 5.14
            write(f"{self._main}/cgroup.kill", "1")
            return
        self.freeze()
        for pid in self.pids():
            try:
                # Members of a frozen group can't end, so their numbers can't be given to others.
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.thaw()

    def freeze(self) -> None:
        """Ask for it to be frozen; `frozen` says when it is."""
        if self.version == 2:
            write(f"{self._main}/cgroup.freeze", "1")
        else:
            write(f"{self._main}/freezer.state", "FROZEN")

    def thaw(self) -> None:
        """Let it go on. Groups below that froze themselves stay so."""
        if self.version == 2:
            write(f"{self._main}/cgroup.freeze", "0")
        else:
            write(f"{self._main}/freezer.state", "THAWED")

    def frozen(self) -> bool:
        """Whether all of it stands still."""
        if self.version == 2:
            return _field(read(f"{self._main}/cgroup.events"), "frozen") == 1
        return read(f"{self._main}/freezer.state").strip() == "FROZEN"

    def oom_kills(self) -> int:
        """Processes of it that the kernel ended for want of memory. Raises OSError: not known now."""
        memory = self.places.get("memory")
        if memory is None:
            return 0
        return _field(known(f"{memory}/{'memory.events' if self.version == 2 else 'memory.oom_control'}"), "oom_kill")

    def cpu_s(self) -> float | None:
        """CPU time of all in it, seconds."""
        if self.version == 2 and (used := _field(read(f"{self._main}/cpu.stat"), "usage_usec")):
            return used / 1e6
        return None

    def remove(self) -> bool:
        """Remove it; False while it is busy."""
        gone = True
        for place in dict.fromkeys(self.places.values()):
            for directory in _below(place):
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    gone = False
        return gone


class Cgroups:
    """What can be had here. version: 2, 1 or 0 (none; `why` says why). bases: directory for each purpose."""

    def __init__(self, version: int, bases: Mapping[str, str], why: str = "") -> None:
        self.version, self.bases, self.why = version, dict(bases), why

    def create(self, run: str, *, cpus: float | None, memory_mib: int | None) -> Group | None:
        """A group for a run with its limits; None where there are none. Raises OSError."""
        if not self.version:
            return None
        wanted = dict(self.bases)
        if self.version == 1 and cpus is None:
            wanted.pop("cpu", None)
        group = Group(self.version, {name: f"{base}/{run}" for name, base in wanted.items()})
        try:
            for place in dict.fromkeys(group.places.values()):
                os.makedirs(place, exist_ok=True)
            group.limit(cpus=cpus, memory_mib=memory_mib)
        except OSError:
            group.remove()
            raise
        return group

    def stale(self, live: Collection[str]) -> list[Group]:
        """Groups left by runs that are not among `live`."""
        names: dict[str, dict[str, str]] = {}
        for purpose, base in self.bases.items():
            for place in _below(base)[:-1]:
                if os.path.dirname(place) == base:
                    names.setdefault(os.path.basename(place), {})[purpose] = place
        return [
            Group(self.version, {"freezer": next(iter(places.values())), **places})
            for name, places in names.items()
            if name not in live
        ]

    def close(self) -> None:
        """Leave nothing behind where no run is left."""
        for base in set(self.bases.values()):
            with contextlib.suppress(OSError):  # in use: then it is to stay
                os.rmdir(base)

    @property
    def limits_cpus(self) -> bool:
        """Whether a limit of CPUs is enforced."""
        return "cpu" in self.bases

    def limits(self) -> dict[str, str]:
        """The limits that are enforced, and how."""
        how = f"cgroup v{self.version}"
        missing = self.why or f"{how} without this controller"
        watched = "watched: the memory of its processes is added up twice a second"
        return {
            "processes": how if self.version else f"watched: {self.why}",
            "freezing": how if self.version else "SIGSTOP to each process",
            "memory": how if "memory" in self.bases else watched,
            "cpus": how if "cpu" in self.bases else f"not enforced: {missing}",
            "time": "runner",
        }


def none(why: str) -> Cgroups:
    """No groups."""
    return Cgroups(0, {}, why)


def find(
    home_id: str,
    *,
    mode: str = "auto",
    mountinfo: str | None = None,
    own: str | None = None,
    ours: Collection[int] = (),
) -> Cgroups:
    """The groups that this process may make.

    mode: 'auto', 'v2', 'v1' or 'off'. mountinfo, own: texts of /proc/self/mountinfo and /proc/self/cgroup.
    ours: processes that may be moved aside within our own group, so that it can hand controllers down.
    """
    if mode == "off":
        return none("control groups are switched off (GPULOOM_CGROUPS=off)")
    paths: dict[str, str] = {}
    for line in (read("/proc/self/cgroup") if own is None else own).splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    mounts = _mounts(read("/proc/self/mountinfo") if mountinfo is None else mountinfo)
    reasons = []
    # Version 1 first only where it has the freezer and the memory controller: in a mixed set-up v2 is empty.
    order = ("v1", "v2") if {"freezer", "memory"} <= set(mounts) else ("v2", "v1")
    for version in order:
        if mode in ("auto", version):
            found = (_version_1 if version == "v1" else _version_2)(home_id, mounts, paths, ours)
            if found.version:
                return found
            reasons.append(found.why)
    return none("; ".join(reasons))


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """By controller ('' for version 2): where the hierarchy is mounted, and which part of it."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 6 or len(kind) < 3 or not kind[0].startswith("cgroup"):
            continue
        mount = fields[4].encode().decode("unicode_escape") if "\\" in fields[4] else fields[4]
        for name in [""] if kind[0] == "cgroup2" else kind[2].split(","):
            found.setdefault(name, (mount, fields[3]))
    return found


def _place(mount: tuple[str, str], path: str) -> str | None:
    """Directory of a group, or None if it is not within what is mounted."""
    where, root = mount
    if root != "/":
        if path != root and not path.startswith(f"{root}/"):
            # In a container the mount shows a part of the hierarchy, and the path may be that of the outside.
            return where if path == "/" else None
        path = path[len(root) :]
    if ".." in path.split("/"):
        return None
    return where + path.rstrip("/")


def _writable(directory: str) -> bool:
    return os.access(directory, os.W_OK | os.X_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK)


def _version_1(
    home_id: str, mounts: Mapping[str, tuple[str, str]], paths: Mapping[str, str], ours: Collection[int]
) -> Cgroups:
    bases = {}
    for controller in ("freezer", *WANTED):
        if controller in mounts and controller in paths:
            place = _place(mounts[controller], paths[controller])
            if place is not None and _writable(place):
                base = f"{place}/gpuloom/{home_id}"
                try:
                    os.makedirs(base, exist_ok=True)
                except OSError:
                    continue
                bases[controller] = base
    if "freezer" not in bases:
        return none("no writable cgroup v1 freezer")
    return Cgroups(1, bases)


def _version_2(
    home_id: str, mounts: Mapping[str, tuple[str, str]], paths: Mapping[str, str], ours: Collection[int]
) -> Cgroups:
    if "" not in mounts or "" not in paths:
        return none("cgroup v2 is not mounted")
    top = mounts[""][0].rstrip("/")
    own = _place(mounts[""], paths[""])
    if own is None:
        return none(f"the scheduler's cgroup {paths['']} is not below {top}")
    best: tuple[int, str] | None = None
    place = own
    while True:
        if _writable(place):
            got = _handed_down(place, ours if place == own else ())
            if best is None or got > best[0]:
                best = got, place
            if got == len(WANTED):
                break
        if place == top:
            break
        place = os.path.dirname(place)
    if best is None:
        return none(
            f"the cgroup {own} belongs to another user: start gpuloom by "
            "`systemd-run --user --scope -p Delegate=yes gpuloom up`, or as a user service"
        )
    base = f"{best[1]}/gpuloom-{home_id}"
    try:
        os.makedirs(base, exist_ok=True)
        enabled = _enable(base)
    except OSError as error:
        return none(f"{base}: {error.strerror}")
    return Cgroups(2, dict.fromkeys(("freezer", *enabled), base))


def _handed_down(place: str, ours: Collection[int]) -> int:
    """How many of the wanted controllers groups below `place` get, after trying to hand them down."""
    if set(WANTED) <= set(read(f"{place}/cgroup.subtree_control").split()):
        return len(WANTED)
    root = not os.path.exists(f"{place}/cgroup.type")
    inside = [int(pid) for pid in read(f"{place}/cgroup.procs").split()]
    offered = [name for name in WANTED if name in read(f"{place}/cgroup.controllers").split()]
    if offered and (root or not inside or set(inside) <= set(ours)):
        try:
            if inside and not root:
                aside = f"{place}/gpuloom-main"
                os.makedirs(aside, exist_ok=True)
                for pid in inside:
                    write(f"{aside}/cgroup.procs", str(pid))
            return len(_enable(place))
        except OSError:
            pass  # not ours to hand down: what is enabled already counts, below
    return len([name for name in WANTED if name in read(f"{place}/cgroup.subtree_control").split()])


def _enable(place: str) -> list[str]:
    """Hand down what of the wanted controllers is offered. Raises OSError."""
    offered = [name for name in WANTED if name in read(f"{place}/cgroup.controllers").split()]
    missing = [name for name in offered if name not in read(f"{place}/cgroup.subtree_control").split()]
    if missing:
        write(f"{place}/cgroup.subtree_control", " ".join(f"+{name}" for name in missing))
    return offered


def settle(group: Group, *, timeout_s: float) -> bool:
    """Wait until a group that was asked to freeze is frozen, for at most `timeout_s` seconds."""
    end = time.monotonic() + timeout_s
    while not group.frozen():
        if time.monotonic() > end:
            return False
        if group.version == 1:
            group.freeze()  # v1 may stay 'FREEZING' until asked again
        time.sleep(0.001)
    return True
