"""The inventory of this machine: GPUs through NVML, or CPU slots in their place."""

from __future__ import annotations

import csv
import os
import re
import socket
from functools import cache
from importlib import resources
from pathlib import Path

import psutil

from gpuloom.agent.nvml import Device, Nvml
from gpuloom.core.cluster import MODEL, plain_model
from gpuloom.core.errors import InputError
from gpuloom.core.job import DeviceKind, Gpu, GpuState, NodeRecord

MAX_SLOTS = 10_000
CPU = "CPU"
"""The model of CPU slots."""
MIG_TEXT = "in MIG mode, which gpuloom does not support: turn it off (nvidia-smi -i {} -mig 0) to use the whole GPU"

_FORM = re.compile(r"\d+GB|PCIE|SXM\d*|HBM\d*E?|NVLINK", re.IGNORECASE)
"""Words after a model's name that say how it is built or how much memory it has."""

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def inventory(*, slots: int | None, nvml: Nvml, slot_model: str = CPU) -> NodeRecord:
    """This machine.

    slots: so many CPU slots in place of GPUs (whatever GPUs there are); None: its GPUs. slot_model: the GPU model that
    they pretend to be.

    Raises:
        InputError: no GPUs and no slots, or an impossible number of slots.
    """
    if slots is not None and not 1 <= slots <= MAX_SLOTS:
        raise InputError(f"--slots {slots}: must be between 1 and {MAX_SLOTS:,}")
    if slots is None and not nvml.devices:
        raise InputError(
            f"no GPU found on this machine ({nvml.reason}): to schedule CPU slots instead, start with --slots N, "
            f"such as --slots {cpus()}"
        )
    # What the kernel says, not what DNS makes of it: this must not wait for a network.
    name = socket.gethostname().partition(".")[0] or "localhost"
    if slots is not None:
        gpus = tuple(Gpu(index, f"cpu-{index}", slot_model) for index in range(slots))
        return NodeRecord(name, gpus, cpus=cpus(), memory_mib=memory_mib(), kind=DeviceKind.CPU)
    gpus = tuple(_gpu(device) for device in nvml.devices)
    return NodeRecord(name, gpus, cpus=cpus(), memory_mib=memory_mib(), kind=DeviceKind.GPU, topology=nvml.links())


def checked_model(name: str) -> str:
    """A name that may be that of a GPU model. Raises InputError."""
    if not re.fullmatch(MODEL, name):
        raise InputError(f"--slot-model {name}: must be a name such as V100 or A100-80GB")
    return name


def _gpu(device: Device) -> Gpu:
    model = model_name(device.name, device.memory_mib)
    if device.mig:
        text = MIG_TEXT.format(device.index)
        return Gpu(device.index, device.uuid, model, device.memory_mib, GpuState.UNHEALTHY, text)
    return Gpu(device.index, device.uuid, model, device.memory_mib)


def cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_mib() -> int:
    """Main memory, or what the container in which we run may use of it."""
    total = psutil.virtual_memory().total
    for path in _LIMITS:
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return int(total >> 20)


SHARE = "SHARED"
"""The last word of the product label where the device plugin offers each GPU several times."""


def model_name(name: str, memory_mib: int | None) -> str:
    """A model as users write it ('V100', 'A100-80GB') from the driver's name ('NVIDIA A100-SXM4-80GB').

    Names that data/gpus.csv does not know are kept, without the maker's name: 'Quadro-RTX-6000'. A share of a GPU, as
    Kubernetes' nodes offer it ('NVIDIA-A100-SXM4-80GB-SHARED'), is a model of its own: 'A100-80GB-SHARED'.

    Args:
        memory_mib: of the whole GPU.
    """
    words = [word for word in re.split(r"[\s\-_]+", name) if word]
    if len(words) > 1 and words[-1] == SHARE:
        return f"{model_name(' '.join(words[:-1]), memory_mib)}-{SHARE}"
    while len(words) > 1 and words[0].lower() in ("nvidia", "tesla", "geforce"):
        words = words[1:]
    known = _models()
    for end in range(len(words), 0, -1):
        if not all(_FORM.fullmatch(word) for word in words[end:]):
            break
        models = known.get(plain_model("".join(words[:end])), ())
        if memory_mib is not None:
            # The driver shows up to a tenth less than the data sheet (ECC, its own share).
            models = tuple(entry for entry in models if abs(entry[1] - memory_mib) < 0.12 * entry[1])
        if models:
            return models[0][0]
    return "-".join(words) or "GPU"


@cache
def _models() -> dict[str, tuple[tuple[str, int], ...]]:
    """(model, memory in MiB) by plain name and alias; the model whose own name it is comes first."""
    text = resources.files("gpuloom").joinpath("data/gpus.csv").read_text(encoding="utf-8")
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        entry = (row["model"], round(float(row["memory_gib"]) * 1024))
        for name in dict.fromkeys(map(plain_model, (row["model"], *filter(None, row["aliases"].split("|"))))):
            found[name] = (*found.get(name, ()), entry)
    return found
