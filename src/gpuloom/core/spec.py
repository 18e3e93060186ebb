"""What a user asks for, as records hold it: the checked fields of a submission, and the default of each.

`live/submission/spec.py` reads and checks what users write; here it is plain values. Specs of older stores, in which
a field is missing, get its default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from gpuloom.core.replicas import Replicas, replicas_of
from gpuloom.core.share_class import job_class


class OnPreempt(StrEnum):
    """What happens to a job that is preempted."""

    AUTO = "auto"
    """As SUSPEND where its program was seen to bear that (live/records/rehearsals.py), else as CHECKPOINT."""
    CHECKPOINT = "checkpoint"
    """It is given notice, ends, and starts again later."""
    FREEZE = "freeze"
    """It is frozen in place and goes on later."""
    SUSPEND = "suspend"
    """It is frozen in place, its GPU memory is moved to the machine's memory, and it goes on later."""
    NEVER = "never"
    """Nothing: once started it runs to its end."""


class Per(StrEnum):
    """How often a job's command runs."""

    NODE = "node"
    """Once on each node on which the job has GPUs."""
    GPU = "gpu"
    """Once for each of its GPUs."""


class Launcher(StrEnum):
    """What starts a job's processes and tells each where it stands."""

    DIRECT = "direct"
    """gpuloom: the command once for each GPU, with the whole environment of torchrun."""
    TORCHRUN = "torchrun"
    HOROVOD = "horovod"
    """gpuloom: the command once for each GPU, with Horovod's environment and its rendezvous."""
    TENSORFLOW = "tensorflow"
    """gpuloom: the command with TF_CONFIG, once for each node or GPU, and as parameter servers."""
    ACCELERATE = "accelerate launch"
    DEEPSPEED = "deepspeed"
    ADOPTED = "pods"
    """Somebody else: its pods are there, and wait at our gate (live/adopting.py). A replica of it is a pod."""


GIVEN_LAUNCHERS = (Launcher.DIRECT, Launcher.TORCHRUN, Launcher.HOROVOD, Launcher.TENSORFLOW)
"""Those that a job may name; the others are recognised by its command."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a job asks for. Times are seconds, memory is MiB; docs/reference/job-fields.md says what each field means.

    elastic: fewest and most replicas ('1-8'); replica_…: what one of them has.
    env: names of environment variables; their values are kept apart (core/masked.py). speeds: relative speeds by GPU
    model. The order of the fields is that
    of the JSON form, and the same as in `JobSpec`.
    """

    command: tuple[str, ...]
    name: str = ""
    gpus: int = 1
    elastic: str | None = None
    replica_gpus: int | None = None
    replica_cpus: float | None = None
    replica_memory: int | None = None
    per: Per = Per.NODE
    launcher: Launcher | None = None
    ps: int = 0
    gpu_types: tuple[str, ...] = ()
    gpu_memory: int | None = None
    cpus: float | None = None
    memory: int | None = None
    priority: int = 0
    after: tuple[int, ...] = ()
    after_any: tuple[int, ...] = ()
    array: str | None = None
    time_limit: float | None = None
    estimate: float | None = None
    retries: int = 0
    on_preempt: OnPreempt = OnPreempt.AUTO
    suspend_limit: float | None = None
    grace: float = 30.0
    checkpoint: str | None = None
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    venv: str | None = None
    conda: str | None = None
    container: str | None = None
    model: str | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    share_class: str | None = None
    task_type: str | None = None
    importance: str | None = None
    real_time: bool = False
    kernel_profile: str | None = None
    slurm_env: bool = False
    hooks: bool | None = None
    hold: bool = False

    @property
    def adopted(self) -> bool:
        """It was made with kubectl, or by something else than gpuloom: its pods are there already, and each has
        `replica_gpus` GPUs."""
        return self.launcher is Launcher.ADOPTED

    @property
    def at_once(self) -> int | None:
        """How many jobs of its array may run at once; None: any number, or the job is not in an array."""
        _, _, most = (self.array or "").partition("%")
        return int(most) if most else None

    @property
    def replicas(self) -> Replicas | None:
        """The sizes of an elastic job; None: it has one size."""
        return None if self.elastic is None else replicas_of(self.elastic, self.replica_gpus or 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs that an elastic job may have in all, fewest first; () for any other."""
        found = self.replicas
        return () if found is None else found.sizes

    def cpus_beside(self, gpus: int) -> float | None:
        """CPU cores on a machine where it has so many GPUs."""
        return self.cpus if self.replica_cpus is None else self.replica_cpus * gpus / (self.replica_gpus or 1)

    def memory_beside(self, gpus: int) -> int | None:
        """Main memory on a machine where it has so many GPUs, MiB."""
        if self.replica_memory is None:
            return self.memory
        return math.ceil(self.replica_memory * gpus / (self.replica_gpus or 1))

    @property
    def sharing_class(self) -> str:
        """The class with which the job may share a GPU: 'high', 'best-effort', or '' if it may not.

        Only jobs of one GPU that stay so, and not in containers, which the shim does not reach
        (docs/explanation/sharing.md).
        """
        if self.gpus != 1 or self.container or self.elastic is not None:
            return ""
        return job_class(self.share_class, self.task_type, self.importance, real_time=self.real_time)

    def to_json(self) -> dict[str, Any]:
        """Every field, as events and the store hold it."""
        found = dict(zip(_NAMES, _values(self), strict=True))
        for name in _LISTS:
            found[name] = list(found[name])
        found["env"] = dict(self.env)
        found["speeds"] = dict(self.speeds)
        found["on_preempt"] = self.on_preempt.value
        found["per"] = self.per.value
        found["launcher"] = None if self.launcher is None else self.launcher.value
        return found


_NAMES = tuple(each.name for each in fields(Spec))
_values = attrgetter(*_NAMES)
_LISTS: Mapping[str, type] = {"command": str, "gpu_types": str, "after": int, "after_any": int}
"""What may be in them."""
_NUMBER, _NONE = (int, float), type(None)
_TYPES: Mapping[str, frozenset[type[Any]]] = {
    **dict.fromkeys(_LISTS, frozenset({list, tuple})),
    **dict.fromkeys(("name", "workdir"), frozenset({str})),
    "on_preempt": frozenset({str, OnPreempt}),
    "per": frozenset({str, Per}),
    "launcher": frozenset({str, Launcher, _NONE}),
    **dict.fromkeys(("gpus", "ps", "priority", "retries"), frozenset({int})),
    **dict.fromkeys(("gpu_memory", "memory", "replica_gpus", "replica_memory"), frozenset({int, _NONE})),
    **dict.fromkeys(("cpus", "replica_cpus", "time_limit", "estimate", "suspend_limit"), frozenset({*_NUMBER, _NONE})),
    **dict.fromkeys(("elastic", "array", "checkpoint", "venv", "conda", "container", "model"), frozenset({str, _NONE})),
    **dict.fromkeys(("share_class", "task_type", "importance", "kernel_profile"), frozenset({str, _NONE})),
    **dict.fromkeys(("real_time", "slurm_env", "hold"), frozenset({bool})),
    "hooks": frozenset({bool, _NONE}),
    "grace": frozenset(_NUMBER),
    "env": frozenset({dict}),
    "speeds": frozenset({dict}),
}

MOST_SHAPES = 1000
_SOUND: set[tuple[object, ...]] = set()
"""Names and types of fields that were found to be sound."""


def spec_of(data: Mapping[str, Any]) -> Spec:
    """From its JSON form. Missing fields get their defaults; unknown ones, of another version, are ignored.

    Raises:
        ValueError: a field has an impossible value (gpuloom did not write it), or there is no command.
    """
    # A queue may hold a hundred thousand specs: the types of equal ones are checked only once.
    shape = (*data, *map(type, data.values()))
    found = dict(data) if shape in _SOUND else _checked(data)
    if len(found) == len(data) and len(_SOUND) < MOST_SHAPES:
        _SOUND.add(shape)
    for name, of in _LISTS.items():
        if values := found.get(name):
            if any(type(each) is not of for each in values):
                raise _odd(name, values)
            found[name] = tuple(values)
        elif name == "command":
            raise ValueError("a job has no command")
        else:
            found[name] = ()
    if "env" in found:
        found["env"] = dict(found["env"])
    if "speeds" in found:
        found["speeds"] = {str(model): float(speed) for model, speed in found["speeds"].items()}
    if "on_preempt" in found:
        found["on_preempt"] = OnPreempt(found["on_preempt"])
    if "per" in found:
        found["per"] = Per(found["per"])
    if found.get("launcher") is not None:
        found["launcher"] = Launcher(found["launcher"])
    return Spec(**found)


def _checked(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are known. Raises ValueError."""
    for name, value in data.items():
        if name in _TYPES and type(value) not in _TYPES[name]:
            raise _odd(name, value)
    return {name: value for name, value in data.items() if name in _TYPES}


def _odd(name: str, value: object) -> ValueError:
    return ValueError(f"{name} of a job can't be {value!r:.80}")


DEFAULTS = Spec(("",))
"""The spec of a job that gives only its command: the defaults."""
