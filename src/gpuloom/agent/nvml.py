"""GPUs through NVML (the package nvidia-ml-py), as plain data.

A missing GPU, driver or library is treated alike; `Nvml.reason` says which it is. A value that the GPU or driver can't
give is None. An error that means that the GPU itself is gone is in `Reading.error`; nothing here raises an NVMLError.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20

UNREADABLE = 3
"""Readings in a row that must fail before a GPU counts as unreachable, unless NVML says itself that it is lost."""

RESERVED_SHARE = 0.02
"""Of a GPU's memory: what old drivers count as used although the driver keeps it for itself."""


@dataclass(frozen=True, slots=True)
class Device:
    """What does not change. bus: PCI address, '' if unknown. mig: it is divided into MIG instances."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    bus: str = ""
    mig: bool = False


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU. compute: it runs CUDA (else it draws)."""

    pid: int
    memory_mib: float | None
    compute: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU at one moment.

    ecc: uncorrectable errors since the driver was loaded. remap_failed: a row could not be remapped, ever.
    remap_pending, retirement_pending: active only after a reset. recovery: NVML's GPU recovery action (0: none).
    shutdown_c: temperature at which the GPU turns itself off. slowed: it runs slower because it is hot.
    error: why nothing could be read; lost: NVML says itself that the GPU is gone or needs a reset.
    """

    utilization: float | None = None
    memory_used_mib: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    ecc: int | None = None
    remap_failed: bool = False
    remap_pending: bool = False
    retirement_pending: bool = False
    recovery: int | None = None
    shutdown_c: float | None = None
    slowed: bool = False
    mig: bool = False
    error: str = ""
    lost: bool = False


class Nvml:
    """NVML, open until `close`. May be used from several threads.

    reason: why there are no GPUs, or ''. devices: GPUs in NVML's order (by PCI address).
    """

    def __init__(self, module: Any | None = None) -> None:
        """module: what to use in place of `pynvml` (tests)."""
        self.reason = ""
        self.devices: tuple[Device, ...] = ()
        self._lock = threading.RLock()
        self._handles: dict[str, Any] = {}
        self._by_handle: dict[object, str] = {}
        self._unsupported: set[tuple[str, str]] = set()
        self._events: Any = None
        self._open = False
        # Imported here: starting it costs time that CPU slots need not pay.
        self._nvml: Any = importlib.import_module("pynvml") if module is None else module
        self._begin()

    def _begin(self) -> None:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            self._open = True
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            self.reason = f"NVML: {error}"
            self.close()
            return
        found = []
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError as error:
                # A dead GPU takes no index from the others: those keep NVML's numbers.
                self.reason = f"NVML: GPU {index}: {error}"
                continue
            self._handles[uuid] = handle
            self._by_handle[_key(handle)] = uuid
            found.append(self._device(index, uuid, handle))
        if not self.devices:
            self.devices = tuple(found)
        if not found and not self.reason:
            self.reason = "NVML: the driver knows no GPU"
        elif found:
            self.reason = ""
        self._register()

    def keep(self, named: str) -> None:
        """Leave out GPUs that are not among these: indices or uuids as in CUDA_VISIBLE_DEVICES. Slurm names so what an
        allocation has of a node, and where it does not hide the others, NVML shows all. As many as there are: all."""
        words = [word.strip() for word in named.split(",") if word.strip()]
        if len(words) != len(self.devices):
            self.devices = tuple(
                device
                for device in self.devices
                if str(device.index) in words or any(device.uuid.startswith(word) for word in words if len(word) > 4)
            )
            self.reason = self.reason or ("" if self.devices else f"none of CUDA_VISIBLE_DEVICES={named} is there")

    def _device(self, index: int, uuid: str, handle: Any) -> Device:
        nvml = self._nvml
        memory = self._memory(uuid, handle)
        name = self._ask(uuid, "name", lambda: _text(nvml.nvmlDeviceGetName(handle)))
        bus = self._ask(uuid, "bus", lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        mib = None if memory is None else int(memory.total // MIB)
        return Device(index, uuid, name or "GPU", mib, bus or "", self._mig(uuid, handle))

    def _register(self) -> None:
        """Ask for XID errors of all GPUs that can report them."""
        nvml = self._nvml
        if not self._handles:
            return
        wanted = int(nvml.nvmlEventTypeXidCriticalError)
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            self._events = None
            return
        for uuid, handle in self._handles.items():
            kinds = self._ask(uuid, "events", lambda h=handle: int(nvml.nvmlDeviceGetSupportedEventTypes(h)))  # type: ignore[misc]
            if kinds and kinds & wanted:
                self._ask(uuid, "register", lambda h=handle: nvml.nvmlDeviceRegisterEvents(h, wanted, self._events))  # type: ignore[misc]

    def close(self) -> None:
        with self._lock:
            if not self._open:
                return
            nvml = self._nvml
            for what, given in (("nvmlEventSetFree", self._events), ("nvmlShutdown", None)):
                if what == "nvmlEventSetFree" and given is None:
                    continue
                try:
                    getattr(nvml, what)(*([given] if given is not None else []))
                except nvml.NVMLError as error:
                    self.reason = self.reason or f"NVML: {error}"
            self._events, self._open = None, False
            self._handles.clear()
            self._by_handle.clear()
            self._unsupported.clear()

    def reopen(self) -> None:
        """Reopen NVML: after a reset or a reload of the driver, old handles stay dead. `devices` stay as they are."""
        with self._lock:
            self.close()
            self.reason = ""
            self._begin()

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, uuid: str) -> Reading:
        """The GPU now."""
        with self._lock:
            handle = self._handles.get(uuid)
            if handle is None:
                return Reading(error=self.reason or "NVML no longer lists it", lost=True)
            nvml = self._nvml
            try:
                # Every GPU can tell its memory: what fails here is the GPU, not a missing feature.
                memory = self._memory_or_raise(uuid, handle)
            except nvml.NVMLError as error:
                return Reading(error=f"NVML: {error}", lost=_code(error) in self._dead())
            utilization = self._ask(uuid, "utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            sensor = nvml.NVML_TEMPERATURE_GPU
            temperature = self._ask(uuid, "temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, sensor))
            limit = nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
            shutdown = self._ask(uuid, "shutdown", lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, limit))
            power = self._ask(uuid, "power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
            ecc = self._ask(
                uuid,
                "ecc",
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
            )
            remapped = self._ask(uuid, "remapped", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
            retired = self._ask(uuid, "retired", lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
            slow = self._ask(uuid, "slow", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            return Reading(
                utilization=None if utilization is None else float(utilization),
                memory_used_mib=memory.used / MIB - self._reserved_mib(uuid, memory),
                temperature_c=None if temperature is None else float(temperature),
                power_w=None if power is None else power / 1000.0,
                processes=self._processes(uuid, handle),
                ecc=None if ecc is None else int(ecc),
                remap_failed=bool(remapped and remapped[3]),
                remap_pending=bool(remapped and remapped[2]),
                retirement_pending=bool(retired),
                recovery=self._recovery(uuid, handle),
                shutdown_c=None if shutdown is None else float(shutdown),
                slowed=bool((slow or 0) & int(nvml.nvmlClocksThrottleReasonHwThermalSlowdown)),
                mig=self._mig(uuid, handle),
            )

    def gpu_processes(self, uuids: Iterable[str]) -> dict[str, list[int]]:
        """Processes that run CUDA on these GPUs. A GPU that can't tell is left out."""
        found = {}
        with self._lock:
            for uuid in uuids:
                handle = self._handles.get(uuid)
                processes = None if handle is None else self._processes(uuid, handle)
                if processes is not None:
                    found[uuid] = sorted({process.pid for process in processes if process.compute})
        return found

    def xids(self) -> list[tuple[str, int]]:
        """XID errors since the last call: (uuid, number). A GPU that can't be named any more is ''."""
        nvml = self._nvml
        found: list[tuple[str, int]] = []
        with self._lock:
            # A storm of errors must not keep the caller for ever.
            while self._events is not None and len(found) < 1000:
                try:
                    event = nvml.nvmlEventSetWait(self._events, 0)
                except nvml.NVMLError as error:
                    if _code(error) != nvml.NVML_ERROR_TIMEOUT and not found:
                        # A lost GPU makes the whole set fail; its reading says so, and `reopen` makes a new set.
                        self._events = None
                    break
                if event.eventType & nvml.nvmlEventTypeXidCriticalError:
                    found.append((self._by_handle.get(_key(event.device), ""), int(event.eventData)))
        return found

    def links(self) -> tuple[tuple[int, int, str], ...]:
        """How pairs of GPUs are connected: (index, index, 'NVLINK' | 'PIX' | 'PXB' | 'PHB' | 'NODE' | 'SYS')."""
        nvml = self._nvml
        names = {
            nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
            nvml.NVML_TOPOLOGY_SINGLE: "PIX",
            nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
            nvml.NVML_TOPOLOGY_NODE: "NODE",
            nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
        }
        found = []
        with self._lock:
            linked = self._nvlinks()
            for place, one in enumerate(self.devices):
                for other in self.devices[place + 1 :]:
                    first, second = self._handles.get(one.uuid), self._handles.get(other.uuid)
                    if first is None or second is None:
                        continue
                    if frozenset({one.uuid, other.uuid}) in linked:
                        found.append((one.index, other.index, "NVLINK"))
                        continue
                    try:
                        level = nvml.nvmlDeviceGetTopologyCommonAncestor(first, second)
                    except nvml.NVMLError:
                        continue  # not told: the pair is left out
                    found.append((one.index, other.index, names.get(int(level), "SYS")))
        return tuple(found)

    def _nvlinks(self) -> set[frozenset[str]]:
        """Pairs of GPUs with an active NVLink, directly or through switches (which connect all that reach them)."""
        nvml = self._nvml
        by_bus = {device.bus.lower(): device.uuid for device in self.devices if device.bus}
        pairs: set[frozenset[str]] = set()
        switched = []
        for device in self.devices:
            handle = self._handles.get(device.uuid)
            for link in range(int(nvml.NVML_NVLINK_MAX_LINKS)) if handle is not None else ():
                try:
                    if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                        continue
                    bus = _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()
                except nvml.NVMLError:
                    break  # no such link, or none at all
                other = by_bus.get(bus)
                if other is None:
                    switched.append(device.uuid)
                elif other != device.uuid:
                    pairs.add(frozenset({device.uuid, other}))
        pairs.update(frozenset({a, b}) for a in set(switched) for b in set(switched) if a < b)
        return pairs

    # -- details ---------------------------------------------------------------------------------------------

    def _ask(self, uuid: str, what: str, call: Callable[[], Any]) -> Any:
        """What the call returns; None if this GPU can't tell. What is not supported is not asked again."""
        if (uuid, what) in self._unsupported:
            return None
        nvml = self._nvml
        try:
            return call()
        except nvml.NVMLError as error:
            if _code(error) in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._unsupported.add((uuid, what))
            return None

    def _memory_or_raise(self, uuid: str, handle: Any) -> Any:
        """Version 2 leaves out what the driver keeps for itself; old drivers know version 1 only."""
        nvml = self._nvml
        newer = getattr(nvml, "nvmlMemory_v2", None)
        if newer is not None and (uuid, "memory2") not in self._unsupported:
            try:
                return nvml.nvmlDeviceGetMemoryInfo(handle, newer)
            except nvml.NVMLError as error:
                if _code(error) in self._dead():
                    raise
                self._unsupported.add((uuid, "memory2"))
        return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _memory(self, uuid: str, handle: Any) -> Any:
        try:
            return self._memory_or_raise(uuid, handle)
        except self._nvml.NVMLError:
            return None

    def _reserved_mib(self, uuid: str, memory: Any) -> float:
        if hasattr(memory, "reserved"):
            return 0.0
        return float(min(memory.used, memory.total * RESERVED_SHARE) / MIB)

    def _processes(self, uuid: str, handle: Any) -> tuple[GpuProcess, ...] | None:
        nvml = self._nvml
        compute = self._ask(uuid, "compute", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if compute is None:
            return None
        shared = self._ask(uuid, "mps", lambda: nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)) or ()
        drawing = self._ask(uuid, "graphics", lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or ()
        found: dict[int, GpuProcess] = {}
        for processes, runs_cuda in ((drawing, False), (shared, True), (compute, True)):
            for process in processes:
                used = process.usedGpuMemory
                found[int(process.pid)] = GpuProcess(int(process.pid), None if used is None else used / MIB, runs_cuda)
        return tuple(found[pid] for pid in sorted(found))

    def _mig(self, uuid: str, handle: Any) -> bool:
        mode = self._ask(uuid, "mig", lambda: self._nvml.nvmlDeviceGetMigMode(handle))
        return bool(mode and mode[0])

    def _recovery(self, uuid: str, handle: Any) -> int | None:
        nvml = self._nvml
        field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if field is None:
            return None
        values = self._ask(uuid, "recovery", lambda: nvml.nvmlDeviceGetFieldValues(handle, [field]))
        if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            if values:
                self._unsupported.add((uuid, "recovery"))
            return None
        return int(values[0].value.uiVal)

    def _dead(self) -> tuple[int, ...]:
        """Errors that mean that the GPU is gone, or the driver under it."""
        nvml = self._nvml
        return (
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            nvml.NVML_ERROR_UNINITIALIZED,
        )


def _code(error: Any) -> int:
    return int(error.value)


def _text(value: object) -> str:
    """NVML's strings are bytes or text, by version of the package."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _key(handle: Any) -> object:
    """What tells handles apart: the address that they point to."""
    if isinstance(handle, ctypes._Pointer):
        return ctypes.cast(handle, ctypes.c_void_p).value
    return handle
