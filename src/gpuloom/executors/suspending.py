"""Gives a CUDA program's GPU memory to the machine's memory, and back, by the driver's checkpoint calls.

    python -I suspending.py check
    python -I suspending.py suspend|resume --folder DIR [--gpus UUID,…] [--memory-max FILE] PID…

A program of its own, as the calls run in the driver: they can hang (they do, and heed no time-out, where the process
stands still), and whoever waits for them must be able to go on. It says how it went in one line of JSON, `outcome`.
Killed and begun again it goes on from where things are: the driver keeps the state of each process. What was seen of
the driver, and on which GPU: docs/explanation/suspending.md.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

RECORD = "suspended.json"
"""In the run's folder: what it had on its GPUs when it was suspended: {mib, each, limit}; each: on each of them."""
LOCK = "suspending.lock"
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
OK, NOT_INITIALIZED, OUT_OF_MEMORY, OS_ERROR, NOT_READY, NOT_SUPPORTED = 0, 3, 2, 304, 600, 801
LOCK_MS = 20_000
"""For what the program has submitted to be done; after that it goes on unharmed."""
FREE_S, ROOM_S = 15.0, 60.0
"""Until GPU memory counts as not given back, or as not to be had."""
LONGEST_S = 600
"""Then this program ends itself, whatever the driver does."""
KEEP_MIB = 1024
"""Of the machine's memory, left for others."""
MIB = 1 << 20
FIRST_NAMESPACE = "pid:[4026531836]"
"""Of process ids, on every Linux (include/linux/proc_ns.h: PROC_PID_INIT_INO)."""


def outcome(**said: Any) -> dict[str, Any]:
    """How it went: ok. mib: GPU memory that moved. took_s. why: not, in words. lost: the program can't go on.
    suspended: its GPU memory is in the machine's memory. machine: what hindered it was not the program's doing."""
    found = {"ok": False, "mib": 0.0, "took_s": 0.0, "why": "", "lost": False, "suspended": False, "machine": False}
    return {**found, **said}


class CantError(Exception):
    """It can't be done. lost: the program can't go on any more; suspended: it still is; machine: another time it may
    be."""

    def __init__(self, why: str, *, lost: bool = False, suspended: bool = False, machine: bool = False) -> None:
        super().__init__(why)
        self.lost, self.suspended, self.machine = lost, suspended, machine


class _LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


class Driver:
    """The calls (CUDA driver API, "Checkpointing"; since driver 570). Raises CantError: there is none that has them."""

    CALLS = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")

    def __init__(self) -> None:
        path = os.environ.get("GPULOOM_SHARE_DRIVER") or "libcuda.so.1"
        try:
            self._library = ctypes.CDLL(path)
        except OSError:
            raise CantError("no NVIDIA driver (libcuda.so.1) is here") from None
        if any(not hasattr(self._library, f"cuCheckpointProcess{name}") for name in self.CALLS):
            raise CantError("the driver can't suspend programs: it must be 570 or later (better 580)")

    def state(self, pid: int) -> tuple[int, int]:
        """Result code, and state of the process."""
        found = ctypes.c_int(-1)
        return int(self._library.cuCheckpointProcessGetState(pid, ctypes.byref(found))), found.value

    def lock(self, pid: int) -> int:
        arguments = _LockArguments(timeout_ms=LOCK_MS)
        return int(self._library.cuCheckpointProcessLock(pid, ctypes.byref(arguments)))

    def checkpoint(self, pid: int) -> int:
        return int(self._library.cuCheckpointProcessCheckpoint(pid, None))

    def restore(self, pid: int) -> int:
        return int(self._library.cuCheckpointProcessRestore(pid, None))

    def unlock(self, pid: int) -> int:
        return int(self._library.cuCheckpointProcessUnlock(pid, None))


class Gpus:
    """Memory of GPUs, by NVML. Raises CantError: NVML does not answer."""

    def __init__(self, uuids: Sequence[str]) -> None:
        try:
            import pynvml
        except ImportError:
            raise CantError("nvidia-ml-py is missing: install gpuloom again", machine=True) from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except pynvml.NVMLError as error:
            raise CantError(f"NVML does not tell what is on the GPUs ({error})", machine=True) from None

    def driver(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def of_processes(self) -> dict[int, list[float]]:
        """MiB on each GPU by process, of those that have a CUDA context there."""
        found: dict[int, list[float]] = {}
        for at, handle in enumerate(self._handles):
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                each = found.setdefault(process.pid, [0.0] * len(self._handles))
                each[at] += (process.usedGpuMemory or 0) / MIB
        return found

    def free_mib(self) -> list[float]:
        """What each of them has free."""
        return [self._nvml.nvmlDeviceGetMemoryInfo(handle).free / MIB for handle in self._handles]

    def mig(self) -> bool:
        """Whether one of them is divided."""
        for handle in self._handles:
            try:
                if self._nvml.nvmlDeviceGetMigMode(handle)[0]:
                    return True
            except self._nvml.NVMLError:  # a model that has none
                continue
        return False


def suspend(driver: Driver, gpus: Gpus, pids: Sequence[int], folder: str, memory_max: str) -> float:
    """Move the program's GPU memory to the machine's. Returns MiB.

    Raises:
        CantError: it goes on as if nothing had been, unless `lost`.
    """
    if gpus.mig():
        raise CantError("its GPU is divided (MIG), and the driver suspends no program there", machine=True)
    on_gpus = gpus.of_processes()
    users = [pid for pid in pids if pid in on_gpus]
    before = [pid for pid in pids if pid not in on_gpus and driver.state(pid) in ((OK, LOCKED), (OK, CHECKPOINTED))]
    if before:  # whoever began this was killed
        for pid in before:
            if driver.state(pid)[1] == LOCKED:
                _checkpoint(driver, pid)
        return float(_read(folder).get("mib", 0.0))
    if not users:
        if not _sees_all() and any(driver.state(pid) == (OK, RUNNING) for pid in pids):
            text = "NVML does not show its processes: gpuloom has process ids of its own here (a container)"
            raise CantError(text, machine=True)
        return 0.0
    if len(users) > 1:
        raise CantError(f"{len(users)} of its processes use CUDA; one alone can be suspended")
    pid, each = users[0], on_gpus[users[0]]
    mib = sum(each)
    code, state = driver.state(pid)
    if code == OS_ERROR:
        raise CantError("the driver lets only the program's own user suspend it", machine=True)
    if code != OK:
        raise CantError(f"the driver does not know its process {pid} (error {code})")
    room = _available_mib()
    if room < mib + KEEP_MIB:
        text = f"it has {mib:,.0f} MiB on its GPUs, and the machine has only {room:,.0f} MiB of memory left"
        raise CantError(text, machine=True)
    record = _write(folder, {"mib": mib, "each": each, "limit": _limit(memory_max)})
    _set_limit(memory_max, str(record["limit"]), mib)
    if state == RUNNING:
        _lock(driver, pid)
    _checkpoint(driver, pid)
    end = time.monotonic() + FREE_S
    while pid in gpus.of_processes():
        if time.monotonic() > end:
            _restore(driver, pid)
            raise CantError(f"its GPU memory did not come free within {FREE_S:.0f} s", machine=True)
        time.sleep(0.02)
    return mib


def resume(driver: Driver, gpus: Gpus, pids: Sequence[int], folder: str, memory_max: str) -> float:
    """Bring it back. Returns MiB.

    Raises:
        CantError: it stays suspended, or is lost.
    """
    there = [(pid, driver.state(pid)[1]) for pid in pids]
    for pid in (pid for pid, state in there if state == LOCKED):
        driver.unlock(pid)
    away = [pid for pid, state in there if state == CHECKPOINTED]
    record = _read(folder)
    mib = float(record.get("mib", 0.0))
    if away:
        # A restore that finds too little memory loses the program: no other try is to be had.
        end = time.monotonic() + ROOM_S
        free_mib = gpus.free_mib()
        each = record.get("each", [mib] * len(free_mib))  # an older gpuloom noted only the sum
        while any(free < needed for free, needed in zip(free_mib, each, strict=True)):
            if not all(os.path.exists(f"/proc/{pid}") for pid in away):
                raise CantError("it has ended", suspended=True)
            if time.monotonic() > end:
                needs, has = (", ".join(f"{mib:,.0f}" for mib in some) for some in (each, free_mib))
                raise CantError(f"it needs {needs} MiB on its GPU, and {has} are free", suspended=True)
            time.sleep(0.05)
            free_mib = gpus.free_mib()
    for pid in away:
        _restore(driver, pid)
    _set_limit(memory_max, str(record.get("limit", "")))
    return mib if away else 0.0


def back(driver: Driver, pids: Sequence[int]) -> bool:
    """Have them all run on, however far it came; whether they do."""
    try:
        for pid in pids:
            code, state = driver.state(pid)
            if (code, state) == (OK, CHECKPOINTED):
                _restore(driver, pid)
            elif (code, state) == (OK, LOCKED) and driver.unlock(pid) != OK:
                return False
    except CantError:
        return False
    return True


def _lock(driver: Driver, pid: int) -> None:
    code = driver.lock(pid)
    if code == OK:
        return
    if code == NOT_SUPPORTED:
        raise CantError("the driver does not suspend it (error 801: a client of MPS, or a driver before 575)")
    if driver.state(pid) == (OK, LOCKED):
        driver.unlock(pid)
    if code == NOT_READY:
        raise CantError(f"what it had given to its GPU was not done within {LOCK_MS // 1000} s", machine=True)
    raise CantError(f"the driver could not hold it (error {code})")


def _checkpoint(driver: Driver, pid: int) -> None:
    code = driver.checkpoint(pid)
    if code == OK:
        return
    if driver.state(pid) == (OK, LOCKED) and driver.unlock(pid) == OK:
        raise CantError(f"the driver could not move its GPU memory (error {code})")
    raise CantError(f"the driver lost it while it moved its GPU memory (error {code})", lost=True)


def _restore(driver: Driver, pid: int) -> None:
    code = driver.restore(pid)
    if code == OK:
        code = driver.unlock(pid)
    if code != OK:
        raise CantError(f"the driver could not bring back its GPU memory (error {code})", lost=True)


def _sees_all() -> bool:
    """Whether our process ids are those of the machine, as NVML tells them."""
    return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE


def _available_mib() -> float:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _limit(memory_max: str) -> str:
    """The job's memory limit, bytes; '' if it has none."""
    if not memory_max:
        return ""
    with open(memory_max, encoding="ascii") as file:
        found = file.read().strip()
    return found if found.isdigit() else ""


def _set_limit(memory_max: str, limit: str, more_mib: float = 0.0) -> None:
    """That limit, and so much more: what is copied counts as the program's own memory. '': there is none to set."""
    if not (memory_max and limit):
        return
    # Of version 1 of control groups: memory and swap together, which may never be the smaller one.
    together = memory_max.replace("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    files = [memory_max, *([together] if together != memory_max and os.path.exists(together) else [])]
    for path in reversed(files) if more_mib else files:
        with open(path, "w", encoding="ascii") as file:
            file.write(str(int(limit) + (int((more_mib + 64) * MIB) if more_mib else 0)))


def _read(folder: str) -> dict[str, Any]:
    try:
        with open(f"{folder}/{RECORD}", encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(folder: str, record: dict[str, Any]) -> dict[str, Any]:
    """Returns what was written: of one that was killed after this, the limit is the one of before."""
    before = _read(folder)
    record = {**record, "limit": before.get("limit", record["limit"])}
    with open(f"{folder}/{RECORD}.new", "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.rename(f"{folder}/{RECORD}.new", f"{folder}/{RECORD}")
    return record


def check() -> dict[str, Any]:
    """Whether programs can be suspended on this machine."""
    try:
        Driver()
        version = Gpus(()).driver()
    except CantError as error:
        return outcome(why=str(error))
    return outcome(ok=True, driver=version)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("check", "suspend", "resume"))
    parser.add_argument("--folder", default=".")
    parser.add_argument("--gpus", default="")
    parser.add_argument("--memory-max", default="")
    parser.add_argument("pids", nargs="*", type=int)
    given = parser.parse_intermixed_args(words)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the calls return to no handler of ours
    signal.alarm(LONGEST_S)
    begin = time.monotonic()
    if given.what == "check":
        told = check()
    else:
        lock = os.open(f"{given.folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # one that an ended runner left at work comes to its end first
        work = suspend if given.what == "suspend" else resume
        driver = None
        try:
            driver, gpus = Driver(), Gpus([uuid for uuid in given.gpus.split(",") if uuid])
            mib = work(driver, gpus, given.pids, given.folder, given.memory_max)
            told = outcome(ok=True, mib=mib, suspended=given.what == "suspend")
        except CantError as error:
            told = outcome(why=str(error), lost=error.lost, suspended=error.suspended, machine=error.machine)
        except Exception as error:  # of NVML, of a file
            text = f"{type(error).__name__}: {error}"
            told = outcome(why=text, suspended=given.what == "resume", machine=True)
            if given.what == "suspend" and driver is not None:
                told["lost"] = not back(driver, given.pids)
        if given.what == "suspend" and not told["ok"] and not told["lost"]:  # it runs on, as it was
            with contextlib.suppress(OSError):
                _set_limit(given.memory_max, str(_read(given.folder).get("limit", "")))
        if (given.what == "resume") == bool(told["ok"]) and not told["suspended"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{given.folder}/{RECORD}")
    told["took_s"] = round(time.monotonic() - begin, 3)
    print(json.dumps(told), flush=True)
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
