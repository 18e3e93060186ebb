"""What a user asks for: one model behind `gpuloom submit`, job.yaml, its JSON schema, the API and the Python client."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gpuloom.bounded.text import cut, shown
from gpuloom.core.cluster import plain_model
from gpuloom.core.errors import InputError
from gpuloom.core.job import Needed
from gpuloom.core.kernel_load import profile_and_load
from gpuloom.core.masked import masked
from gpuloom.core.replicas import replicas_of
from gpuloom.core.share_class import INTERACTIVE, job_class
from gpuloom.core.spec import DEFAULTS, Spec, spec_of
from gpuloom.core.words import plural
from gpuloom.executors.recognise import misfit
from gpuloom.live.submission.fields import (
    LEAST_CPUS,
    LONGEST_MODEL,
    LONGEST_S,
    LONGEST_WORD,
    MOST_AFTER,
    MOST_BYTES,
    MOST_CPUS,
    MOST_MIB,
    MOST_SPEED,
    SHORTEST_S,
    SPEED,
    Grace,
    JobNumber,
    Mib,
    Seconds,
    Words,
    dependencies_of,
)

MAX_ARRAY = 100_000
_ARRAY = r"^[0-9]{1,9}(-[0-9]{1,9}(:[0-9]{1,9})?)?(,[0-9]{1,9}(-[0-9]{1,9}(:[0-9]{1,9})?)?)*(%[0-9]{1,9})?$"


class JobSpec(BaseModel):
    """A job. Durations are seconds or text ('90s', '4h'), memory is MiB or text ('12GiB')."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=False, validate_default=False)

    command: list[str] = Field(min_length=1, description="Program and arguments. Never passed through a shell.")
    name: str = Field("", max_length=200, description="Name shown in lists; by default the script's file name.")
    gpus: int = Field(
        DEFAULTS.gpus,
        strict=True,
        ge=1,
        le=1_000_000,
        description="Number of GPUs, all given at once, on one machine or several; CPU slots where there are no GPUs. "
        "Of an elastic job: its size under policies that don't resize (by default its fewest replicas).",
    )
    elastic: str | None = Field(
        None,
        max_length=30,
        pattern=r"^\s*[0-9]{1,9}\s*-\s*[0-9]{1,9}\s*$",
        description="Fewest and most replicas (1-8): policies that resize jobs change their number while it runs. It "
        "saves, ends and starts again with the new ones; in pods those that stay train on, where torchrun starts it.",
    )
    replica_gpus: int | None = Field(
        None, strict=True, ge=1, le=1_000_000, description="GPUs of one replica of an elastic job; by default 1."
    )
    replica_cpus: float | None = Field(
        None, strict=True, ge=LEAST_CPUS, le=MOST_CPUS, description="CPU cores for each replica (in place of cpus)."
    )
    replica_memory: Mib | None = Field(None, description="Main memory for each replica (in place of memory).")
    per: Literal["node", "gpu"] = Field(
        DEFAULTS.per.value,
        description="How often the command runs. node: once on each node on which it has GPUs; gpu: once for each GPU, "
        "with RANK, LOCAL_RANK, WORLD_SIZE and the other variables of torchrun.",
    )
    launcher: Literal["direct", "torchrun", "horovod", "tensorflow"] | None = Field(
        None,
        description="What starts its processes. direct: the command once for each GPU, with all of torchrun's "
        "variables; torchrun: torchrun; horovod: once for each GPU, with Horovod's variables and rendezvous; "
        "tensorflow: with TF_CONFIG. None: as the command says.",
    )
    ps: int = Field(
        DEFAULTS.ps,
        strict=True,
        ge=0,
        le=1000,
        description="With launcher tensorflow: parameter servers, which need no GPU. A chief comes with them, and the "
        "job ends with it.",
    )
    gpu_types: Words = Field(default_factory=list, description="Acceptable GPU models, best first; none: any.")
    gpu_memory: Mib | None = Field(
        None, description="Memory that the job needs on each GPU; one that shares its GPU has no more."
    )
    cpus: float | None = Field(
        None,
        strict=True,
        ge=LEAST_CPUS,
        le=MOST_CPUS,
        description="CPU cores that the job may use on each machine (enforced by cgroup).",
    )
    memory: Mib | None = Field(None, description="Main memory that the job may use on each machine (enforced).")
    priority: int = Field(DEFAULTS.priority, strict=True, ge=-1_000_000, le=1_000_000, description="Higher goes first.")
    after: Annotated[list[JobNumber], BeforeValidator(dependencies_of)] = Field(
        default_factory=list, max_length=MOST_AFTER, description="Wait until these jobs have succeeded."
    )
    after_any: Annotated[list[JobNumber], BeforeValidator(dependencies_of)] = Field(
        default_factory=list, max_length=MOST_AFTER, description="Wait until these jobs have ended, in whatever way."
    )
    array: str | None = Field(
        None,
        pattern=_ARRAY,
        max_length=100_000,
        description="Indices: '0-9', '0-99:10', '1,5,7', with '%3' for at most three at once.",
    )
    time_limit: Seconds | None = Field(None, description="Running time after which the job is ended.")
    estimate: Seconds | None = Field(None, description="Expected running time; learnt from earlier runs if not given.")
    retries: int = Field(
        DEFAULTS.retries, strict=True, ge=0, le=1000, description="How often to retry after a failure."
    )
    on_preempt: Literal["auto", "checkpoint", "freeze", "suspend", "never"] = Field(
        DEFAULTS.on_preempt.value,
        description="What happens when it makes way. checkpoint: notice, then stop, and start again later; freeze: "
        "freeze in place and go on later; suspend: the same, and its GPU memory waits in the machine's memory; auto: "
        "suspend where the machine can and the program was seen to bear it, else checkpoint; never: run to the end.",
    )
    suspend_limit: Seconds | None = Field(
        None,
        description="Longest time that it lies suspended or frozen. Then it ends, and begins anew from its last "
        "checkpoint on any GPUs; it has its notice first where its own are free. None: no limit.",
    )
    grace: Grace = Field(DEFAULTS.grace, description="Time between notice and kill.")
    checkpoint: str | None = Field(
        None,
        max_length=4096,
        description="Where the job saves to: a file, a folder or a pattern (* and **), relative to workdir. If it is "
        "newer than the notice, the job has saved.",
    )
    workdir: str = Field(
        "",
        description="Working directory, absolute. `gpuloom submit` and the Python client send their own; "
        "without them, the default is the home directory of the user who started the scheduler.",
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables.")
    venv: str | None = Field(None, description="A virtual environment to run in.")
    conda: str | None = Field(None, description="A conda environment, by name or path.")
    container: str | None = Field(None, description="An image to run in (apptainer, podman or docker).")
    model: str | None = Field(None, description="Name of the training model, for profiles (`gpuloom profiles`).")
    speeds: dict[str, Annotated[float, Field(gt=0, le=MOST_SPEED, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        max_length=100,
        description="How fast the job is on GPU models, as ratios or iterations per second ({V100: 4, K80: 1}), until "
        "its own runs have shown it. job.yaml may have `speed:MODEL` for each instead.",
    )
    share_class: Literal["high", "best-effort", "interactive"] | None = Field(
        None,
        description="May share its GPU kernel by kernel: high keeps its latency, best-effort takes what high leaves. "
        "interactive: as task_type interactive. job.yaml may call it `class`. None: it follows from task_type, "
        "importance and real_time, if one is given.",
    )
    task_type: Literal["inference", "interactive", "training", "batch"] | None = Field(
        None,
        description="inference and interactive make it class high, training and batch best-effort. For an interactive "
        "job with a time limit of an hour or less running jobs of a lower priority that lose nothing are suspended.",
    )
    importance: Literal["high", "low"] | None = Field(
        None, description="Importance to the business: high makes it class high, whatever the task type."
    )
    real_time: bool = Field(
        False,
        strict=True,
        description="It must answer in real time: this makes it class high, whatever task type and importance. A "
        "given class takes precedence.",
    )
    kernel_profile: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Profile of its kernels, for sharing its GPU: a file (with a slash, or ending in .kernels.jsonl), "
        "relative to workdir, or the name of a stored or shipped one (`gpuloom share profiles ls`); of a service with "
        "its load, resnet50:30% or resnet50:15rps, if it is not half busy. auto: one of the name of its model, and "
        "where there is none it is taken while the job runs. Without it, one of the name of its model counts, if "
        "there is one.",
    )
    slurm_env: bool = Field(
        False,
        strict=True,
        description="Set Slurm's variables too (SLURM_JOB_ID, SLURM_ARRAY_TASK_ID, …), for scripts that read them.",
    )
    hooks: bool | None = Field(
        None,
        strict=True,
        description="Whether gpuloom's hooks enter the job's Python, to time its stages. None: unless it runs in a "
        "container; true: there as well (the image needs /bin/sh).",
    )
    hold: bool = Field(False, strict=True, description="Hold it until it is released.")

    @model_validator(mode="before")
    @classmethod
    def _speeds(cls, data: Any) -> Any:
        """`speed:MODEL` of each model as `speeds`."""
        if not isinstance(data, Mapping):
            return data
        named = {key: value for key, value in data.items() if isinstance(key, str) and key.startswith(SPEED)}
        if not named:
            return data
        others = {key: value for key, value in data.items() if key not in named}
        speeds = others.get("speeds", {})
        if not isinstance(speeds, Mapping):
            return data
        return {**others, "speeds": {**speeds, **{key[len(SPEED) :]: value for key, value in named.items()}}}

    @model_validator(mode="before")
    @classmethod
    def _interactive(cls, data: Any) -> Any:
        """The class interactive is a type of task."""
        if not isinstance(data, Mapping) or data.get("share_class") != INTERACTIVE:
            return data
        if data.get("task_type") not in (None, INTERACTIVE):
            raise ValueError(f"class is 'interactive', but task_type is {shown(data['task_type'])}: give one of them")
        return {**data, "share_class": None, "task_type": INTERACTIVE}

    @model_validator(mode="before")
    @classmethod
    def _smallest(cls, data: Any) -> Any:
        """An elastic job that names no number of GPUs asks for its fewest replicas."""
        if not isinstance(data, Mapping) or not isinstance(data.get("elastic"), str) or "gpus" in data:
            return data
        each = data.get("replica_gpus")
        if not (each is None or (isinstance(each, int) and not isinstance(each, bool) and each >= 1)):
            return data  # a check of its own says so
        try:
            return {**data, "gpus": replicas_of(data["elastic"], each or 1).sizes[0]}
        except ValueError:
            return data

    @field_validator("elastic")
    @classmethod
    def _elastic(cls, value: str | None) -> str | None:
        return None if value is None else str(replicas_of(value))

    @field_validator("speeds")
    @classmethod
    def _models(cls, value: dict[str, float]) -> dict[str, float]:
        for model in value:
            if not plain_model(model) or len(model) > LONGEST_MODEL:
                raise ValueError(f"{shown(model)} can't be the name of a GPU model")
        return value

    @field_validator("command")
    @classmethod
    def _command(cls, value: list[str]) -> list[str]:
        if not value[0]:
            raise ValueError("the program's name is empty")
        for word in value:
            _check_text(word)
        return value

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if not key or "=" in key or "\0" in key or "\0" in text:
                raise ValueError(f"{shown(key)} can't be an environment variable")
            _check_text(f"{key}={text}")
        return value

    @field_validator("kernel_profile")
    @classmethod
    def _kernel_profile(cls, value: str | None) -> str | None:
        if value is not None:
            _check_text(value)
            profile_and_load(value)
        return value

    @field_validator("workdir")
    @classmethod
    def _workdir(cls, value: str) -> str:
        if value and not os.path.isabs(value):
            raise ValueError("must be an absolute path")
        return value

    @field_validator("array")
    @classmethod
    def _array(cls, value: str | None) -> str | None:
        if value is not None:
            indices_of(value)
        return value

    @model_validator(mode="after")
    def _together(self) -> JobSpec:
        given = [name for name in ("venv", "conda", "container") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"give only one of {' and '.join(given)}")
        if wrong := misfit(self.command, self.launcher, per_gpu=self.per == "gpu", ps=self.ps):
            raise ValueError(wrong)
        if wrong := _not_elastic(self):
            raise ValueError(wrong)
        if self.kernel_profile and not job_class(
            self.share_class, self.task_type, self.importance, real_time=self.real_time
        ):
            raise ValueError(
                "kernel_profile is of jobs that may share their GPU: give class or task_type as well, or leave it out"
            )
        if self.kernel_profile and profile_and_load(self.kernel_profile)[0] == "auto":
            _check_kept_as(self.model)
        size = sum(map(len, self.command)) + sum(len(key) + len(text) for key, text in self.env.items())
        if size > MOST_BYTES:
            raise ValueError(
                f"command and env have {size:,} characters, at most {MOST_BYTES:,} are allowed: put the rest into a "
                f"file"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """As events hold it: the values of environment variables are not in it."""
        return masked(vars(self))  # every field's value is plain JSON as it is

    def kept(self) -> Spec:
        """As records hold it."""
        return spec_of(self.to_json())

    def dependencies(self) -> list[tuple[int, Needed]]:
        """(job, what is needed of it) for each job that it waits for."""
        return [(job, Needed.OK) for job in self.after] + [(job, Needed.ANY) for job in self.after_any]

    def indices(self) -> list[int] | None:
        """Of an array, one for each of its jobs; None: it is one job."""
        return None if self.array is None else indices_of(self.array)[0]

    def named(self) -> JobSpec:
        """The same with a name."""
        return self if self.name else self.model_copy(update={"name": default_name(self.command)})


def _check_kept_as(model: str | None) -> None:
    """Raises ValueError: a profile that is taken while the job runs can't be kept under this name."""
    from gpuloom.sharing.profiles import check_name  # few jobs need it

    if not model:
        raise ValueError("kernel_profile is 'auto', which is kept under the name of the job's model: give model")
    try:
        check_name(model)
    except InputError as error:
        raise ValueError(f"kernel_profile is 'auto', which is kept under the name of the model: {error}") from None


def _not_elastic(spec: JobSpec) -> str:
    """What of a spec contradicts the sizes that it gives, or gives none; '' if nothing does."""
    each = [name for name in ("replica_gpus", "replica_cpus", "replica_memory") if getattr(spec, name) is not None]
    if spec.elastic is None:
        return f"{each[0]} is of elastic jobs: give elastic as well (1-8), or leave it out" if each else ""
    replicas = replicas_of(spec.elastic, spec.replica_gpus or 1)
    least, most = replicas.sizes[0], replicas.sizes[-1]
    if not least <= spec.gpus <= most or spec.gpus % replicas.gpus:
        right = f"a multiple of {replicas.gpus} from {least} to {most}" if replicas.gpus > 1 else f"{least} to {most}"
        return (
            f"gpus is {spec.gpus}, but {replicas} replicas of {plural(replicas.gpus, 'GPU')} each were asked for: it "
            f"must be {right}, or be left out"
        )
    for name, other in (("cpus", "replica_cpus"), ("memory", "replica_memory")):
        if getattr(spec, name) is not None and getattr(spec, other) is not None:
            return f"give only one of {name} (on each machine) and {other} (for each replica)"
    if spec.on_preempt in ("freeze", "suspend"):
        return (
            f"an elastic job is resized by saving, ending and starting again, but on_preempt is '{spec.on_preempt}': "
            "give 'checkpoint', or 'never' for a job that keeps the size at which it starts"
        )
    if job_class(spec.share_class, spec.task_type, spec.importance, real_time=spec.real_time):
        return "an elastic job has its GPUs for itself: leave out class, task_type, importance and real_time"
    return ""


def said_of(entry: Mapping[str, object]) -> str:
    """What a failed check of pydantic says, for people; the patterns are those of sizes and of indices."""
    if entry["type"] == "string_pattern_mismatch" and "elastic" in str(entry["loc"]):
        return "must be the fewest and the most replicas, such as 1-8"
    if entry["type"] == "string_pattern_mismatch":
        return "must be indices: 0-9, 0-99:10 or 1,5,7, with %3 behind them for three at once"
    return str(entry["msg"]).removeprefix("Value error, ")


def _check_text(word: str) -> None:
    if "\0" in word:
        raise ValueError("holds a NUL character")
    try:
        size = len(os.fsencode(word))
    except UnicodeEncodeError:
        raise ValueError(
            f"{shown(word)} contains half a character (a lone surrogate), which can't be passed to a program"
        ) from None
    if size > LONGEST_WORD:
        raise ValueError(
            f"{shown(word, 40)} has {size:,} bytes, at most {LONGEST_WORD:,} are allowed: put it into a file"
        )


_BOUNDS: dict[str, tuple[float, float]] = {
    "gpus": (1, 1_000_000),
    "ps": (0, 1000),
    "gpu_memory": (1, MOST_MIB),
    "memory": (1, MOST_MIB),
    "cpus": (LEAST_CPUS, MOST_CPUS),
    "replica_gpus": (1, 1_000_000),
    "replica_cpus": (LEAST_CPUS, MOST_CPUS),
    "replica_memory": (1, MOST_MIB),
    "priority": (-1_000_000, 1_000_000),
    "retries": (0, 1000),
    "time_limit": (SHORTEST_S, LONGEST_S),
    "estimate": (SHORTEST_S, LONGEST_S),
    "suspend_limit": (SHORTEST_S, LONGEST_S),
    "grace": (0.0, 86_400.0),
}


def within_bounds(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec of a store with numbers that are taken: they may be from before they had bounds."""
    found = dict(spec)
    for name, (least, most) in _BOUNDS.items():
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            near = min(max(value, least), most)
            found[name] = value if near == value else type(value)(near)
    return found


def default_name(command: list[str]) -> str:
    """The script's file name without its ending, else the program's."""
    for word in command[1:]:
        if re.search(r"\.(py|sh|pl|jl|R|lua)$", word):
            return PurePath(word).stem[:200]
    return PurePath(command[0]).name[:200] or command[0][:200]


def indices_of(array: str) -> tuple[list[int], int | None]:
    """Indices of an array, in order, and how many may run at once (None: any number).

    Raises:
        ValueError: what is wrong with it.
    """
    text, _, throttle = array.partition("%")
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            raise ValueError(f"{shown(part)} is not an index or a range: write 0-9, 0-99:10 or 1,5,7")
        low = int(match[1])
        high, step = int(match[2] or low), int(match[3] or 1)
        if high < low or step < 1:
            raise ValueError(f"{shown(part)} is an empty range")
        if (high - low) // step + 1 + len(found) > MAX_ARRAY:
            raise ValueError(f"more than {MAX_ARRAY:,} jobs in one array")
        for index in range(low, high + 1, step):
            if index in found:
                raise ValueError(f"index {index} is given twice")
            found[index] = None
    if throttle and int(throttle) < 1:
        raise ValueError("%0 would never start a job: write %1 or more")
    return list(found), int(throttle) if throttle else None


def job_spec(data: object, *, source: str = "job") -> JobSpec:
    """A checked spec from plain data.

    Raises:
        InputError: names the source, the field, what is wrong and what would be right.
    """
    try:
        return JobSpec.model_validate(data).named()
    except ValidationError as error:
        raise InputError("; ".join(first(f"{source}: {text}" for text in problems(error)))) from None


MOST_PROBLEMS = 20


def first(problems: Iterable[str]) -> list[str]:
    """The first of many problems, and how many more there are."""
    found = list(problems)
    more = len(found) - MOST_PROBLEMS
    return [*found[:MOST_PROBLEMS], f"and {more:,} more"] if more > 0 else found


def problems(error: ValidationError) -> list[str]:
    """One sentence for each thing that is wrong."""
    known = ", ".join(JobSpec.model_fields)
    found = []
    for entry in error.errors(include_url=False):
        where = ".".join(str(part) for part in entry["loc"] if not str(part).startswith("function-"))
        where = cut(where, 100)
        if entry["type"] == "extra_forbidden":
            found.append(f"unknown field {where!r}; known: {known}")
            continue
        message = said_of(entry)
        if entry["type"] == "missing":
            found.append(f"{where} is missing")
        elif (where and where in JobSpec.model_fields) or "." in where:
            found.append(f"{where} is {shown(entry['input'])}: {cut(message)}")
        else:
            found.append(cut(message))
    return found


def json_schema() -> dict[str, Any]:
    """The published JSON schema of job.yaml."""
    schema = JobSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "gpuloom job"
    # Read by the command line, which puts what the file holds into `env`.
    schema["properties"]["class"] = {
        **schema["properties"]["share_class"],
        "title": "Class",
        "description": "share_class.",
    }
    schema["properties"]["env_file"] = {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "default": None,
        "description": "A file of NAME=VALUE lines, relative to this file.",
        "title": "Env File",
    }
    return schema
