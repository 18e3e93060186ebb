"""What a user asks for, as records hold it: the checked fields of a submission, and the default of each.

`live/submission/spec.py` reads and checks what users write; here it is plain values. Specs of older stores, in which
a field is missing, get its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from gpuloom.core.share_class import job_class


class OnPreempt(StrEnum):
    """What happens to a job that is preempted."""

    CHECKPOINT = "checkpoint"
    """It is given notice, ends, and starts again later."""
    FREEZE = "freeze"
    """It is frozen in place and goes on later."""
    NEVER = "never"
    """Nothing: once started it runs to its end."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a job asks for. Times are seconds, memory is MiB; docs/reference/job-fields.md says what each field means.

    env: names of environment variables; their values are kept apart (core/masked.py). The order of the fields is that
    of the JSON form, and the same as in `JobSpec`.
    """

    command: tuple[str, ...]
    name: str = ""
    gpus: int = 1
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
    on_preempt: OnPreempt = OnPreempt.CHECKPOINT
    grace: float = 30.0
    checkpoint: str | None = None
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    venv: str | None = None
    conda: str | None = None
    container: str | None = None
    model: str | None = None
    share_class: str | None = None
    task_type: str | None = None
    importance: str | None = None
    real_time: bool = False
    hold: bool = False

    @property
    def at_once(self) -> int | None:
        """How many jobs of its array may run at once; None: any number, or it is no array."""
        _, _, most = (self.array or "").partition("%")
        return int(most) if most else None

    @property
    def sharing_class(self) -> str:
        """The class with which the job may share a GPU: 'high', 'best-effort', or '' if it may not.

        Only jobs of one GPU, and not in containers, which the shim does not reach (docs/explanation/sharing.md).
        """
        if self.gpus != 1 or self.container:
            return ""
        return job_class(self.share_class, self.task_type, self.importance, real_time=self.real_time)

    def to_json(self) -> dict[str, Any]:
        """Every field, as events and the store hold it."""
        found = dict(zip(_NAMES, _values(self), strict=True))
        for name in _LISTS:
            found[name] = list(found[name])
        found["env"] = dict(self.env)
        found["on_preempt"] = self.on_preempt.value
        return found


_NAMES = tuple(each.name for each in fields(Spec))
_values = attrgetter(*_NAMES)
_LISTS: Mapping[str, type] = {"command": str, "gpu_types": str, "after": int, "after_any": int}
"""What may be in them."""
_NUMBER, _NONE = (int, float), type(None)
_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    **dict.fromkeys(_LISTS, (list, tuple)),
    **dict.fromkeys(("name", "workdir", "on_preempt"), (str,)),
    **dict.fromkeys(("gpus", "priority", "retries"), (int,)),
    **dict.fromkeys(("gpu_memory", "memory"), (int, _NONE)),
    **dict.fromkeys(("cpus", "time_limit", "estimate"), (*_NUMBER, _NONE)),
    **dict.fromkeys(("array", "checkpoint", "venv", "conda", "container", "model"), (str, _NONE)),
    **dict.fromkeys(("share_class", "task_type", "importance"), (str, _NONE)),
    **dict.fromkeys(("real_time", "hold"), (bool,)),
    "grace": _NUMBER,
    "env": (dict,),
}


def spec_of(data: Mapping[str, Any]) -> Spec:
    """From its JSON form. Fields that are missing get their defaults; those of another gpuloom are passed over.

    Raises:
        ValueError: a field holds what it can't (no gpuloom wrote it), or there is no command.
    """
    found: dict[str, Any] = {}
    for name, value in data.items():
        if (may := _TYPES.get(name)) is None:
            continue
        of = _LISTS.get(name, object)
        if not isinstance(value, may) or (of is not object and any(type(each) is not of for each in value)):
            raise ValueError(f"{name} of a job can't be {value!r:.80}")
        found[name] = value
    if not found.get("command"):
        raise ValueError("a job has no command")
    for name in _LISTS.keys() & found.keys():
        found[name] = tuple(found[name])
    if "env" in found:
        found["env"] = dict(found["env"])
    if "on_preempt" in found:
        found["on_preempt"] = OnPreempt(found["on_preempt"])
    return Spec(**found)


DEFAULTS = Spec(("",))
"""The spec of a job that gives only its command: the defaults."""
