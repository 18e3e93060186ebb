# ruff: noqa: N802 - the names are NVML's
"""A machine with GPUs as the module `pynvml` shows it: its functions, constants and errors, by plain Python objects."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1 << 20


@dataclass(eq=False)
class FakeGpu:
    """One GPU. Memory in MiB. Features in `missing` answer 'not supported'; `error` (a code) makes every call fail."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    memory: int = 81_920
    reserved: int = 600
    utilization: int = 0
    temperature: int = 40
    shutdown: int = 92
    power_mw: int = 60_000
    processes: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    hidden: int = 0
    ecc: int = 0
    remap: tuple[int, int, int, int] = (0, 0, 0, 0)
    retirement_pending: int = 0
    recovery: int = 0
    slowed: int = 0
    mig: int = 0
    error: int | None = None
    missing: frozenset[str] = frozenset()
    bus: str = ""
    links: list[str] = field(default_factory=list)
    """PCI addresses at the other ends of its NVLinks."""
    node: int = 0

    @property
    def used(self) -> int:
        return self.hidden + sum(mib or 0 for mib in (*self.processes.values(), *self.graphics.values()))


class FakeNvml:
    """See the module. calls: how often each function was called. init_error, wait_error: what these calls answer."""

    def __init__(self, *gpus: FakeGpu, init_error: int | None = None, memory_v2: bool = True) -> None:
        self.gpus, self.init_error = list(gpus), init_error
        for place, gpu in enumerate(self.gpus):
            gpu.bus = gpu.bus or f"00000000:{place + 1:02X}:00.0"
        self.events: list[tuple[FakeGpu, int]] = []
        self.wait_error: int | None = None
        self.opened = 0
        self.registered: list[str] = []
        self.calls: dict[str, int] = {}
        if not memory_v2:
            self.nvmlMemory_v2 = None
        self._serial = itertools.count()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML_", "nvmlEventType", "nvmlClocks", "NVMLError", "nvmlMemory_v2")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _gpu(self, handle: Any, feature: str) -> FakeGpu:
        self.calls[feature] = self.calls.get(feature, 0) + 1
        gpu, opened = handle
        if opened != self.opened or gpu not in self.gpus:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if gpu.error is not None:
            raise pynvml.NVMLError(gpu.error)
        if feature in gpu.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        # Handles are of one session: those of before are dead, as they are after a reset.
        self.opened = next(self._serial) + 1

    def nvmlShutdown(self) -> None:
        self.opened = 0

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return (self.gpus[index], self.opened)

    def nvmlDeviceGetUUID(self, handle: Any) -> bytes:
        return self._gpu(handle, "uuid").uuid.encode()

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return self._gpu(handle, "name").name.encode()

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        return SimpleNamespace(busId=self._gpu(handle, "pci").bus.encode())

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        gpu = self._gpu(handle, "memory2" if version else "memory")
        if version:
            return SimpleNamespace(total=gpu.memory * MIB, used=gpu.used * MIB, reserved=gpu.reserved * MIB)
        return SimpleNamespace(total=gpu.memory * MIB, used=(gpu.used + gpu.reserved) * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=self._gpu(handle, "utilization").utilization, memory=0)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return self._gpu(handle, "temperature").temperature

    def nvmlDeviceGetTemperatureThreshold(self, handle: Any, threshold: int) -> int:
        return self._gpu(handle, "shutdown").shutdown

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return self._gpu(handle, "power").power_mw

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> int:
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return self._gpu(handle, "ecc").ecc

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]:
        return self._gpu(handle, "remap").remap

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any) -> int:
        return self._gpu(handle, "retired").retirement_pending

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return self._gpu(handle, "slow").slowed

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        mode = self._gpu(handle, "mig").mig
        return [mode, mode]

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int]) -> list[Any]:
        gpu = self._gpu(handle, "fields")
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        known = "recovery" not in gpu.missing
        code = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=gpu.recovery))]

    @staticmethod
    def _listed(processes: dict[int, int | None]) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB) for pid, mib in processes.items()
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return self._listed(self._gpu(handle, "compute").processes)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        return self._listed(self._gpu(handle, "graphics").graphics)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> list[Any]:
        self._gpu(handle, "mps")
        return []

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> int:
        first, second = self._gpu(one, "topology"), self._gpu(other, "topology")
        return pynvml.NVML_TOPOLOGY_HOSTBRIDGE if first.node == second.node else pynvml.NVML_TOPOLOGY_SYSTEM

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:
        gpu = self._gpu(handle, "nvlink")
        if link >= len(gpu.links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(bool(gpu.links[link]))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:
        return SimpleNamespace(busId=self._gpu(handle, "nvlink").links[link].encode())

    def nvmlEventSetCreate(self) -> list[FakeGpu]:
        return []

    def nvmlEventSetFree(self, events: list[FakeGpu]) -> None:
        events.clear()

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int:
        self._gpu(handle, "events")
        return int(pynvml.nvmlEventTypeXidCriticalError)

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, events: list[FakeGpu]) -> None:
        events.append(self._gpu(handle, "register"))

    def nvmlEventSetWait(self, events: list[FakeGpu], timeout_ms: int) -> Any:
        assert timeout_ms == 0  # a look must not wait
        if self.wait_error is not None:
            raise pynvml.NVMLError(self.wait_error)
        for place, (gpu, xid) in enumerate(self.events):
            if gpu in events:
                del self.events[place]
                kind = pynvml.nvmlEventTypeXidCriticalError
                return SimpleNamespace(device=(gpu, self.opened), eventType=kind, eventData=xid)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
