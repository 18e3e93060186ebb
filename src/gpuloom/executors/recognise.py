"""What starts a job's processes: as its spec says, or as its command begins.

`launcher_for` decides for a job, `misfit` refuses what can't be, and `bare` takes the launcher off a command that
gpuloom starts itself. What is filled in for each launcher is in launchers.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gpuloom.core.spec import Launcher, Per, Spec

TORCHRUN, ACCELERATE, DEEPSPEED, HOROVODRUN = "torchrun", "accelerate launch", "deepspeed", "horovodrun"
_MODULES: Mapping[str, str] = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
    "horovod.runner.launch": HOROVODRUN,
}
_LAUNCHERS = {
    TORCHRUN: Launcher.TORCHRUN,
    ACCELERATE: Launcher.ACCELERATE,
    DEEPSPEED: Launcher.DEEPSPEED,
    HOROVODRUN: Launcher.HOROVOD,
}
PYTHON = re.compile(r"python[0-9.]*")

TORCHRUN_FLAGS = frozenset({"standalone", "m", "module", "no_python", "run_path", "use_env", "virtual_local_rank"})
"""Options of torchrun that take no value."""
_TORCHRUN_FILLED = frozenset(
    {
        *("nnodes", "nproc_per_node", "node_rank", "standalone", "max_restarts", "monitor_interval"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "master_port", "local_addr"),
        *("m", "module", "no_python", "use_env"),
    }
)
"""What of torchrun's options says where its processes are, how many, and how they meet: gpuloom says that itself."""
_FIXED = frozenset({"standalone", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr"})
"""Options of torchrun that say how many nodes there are, or where they meet."""
_HOROVOD_FLAGS = frozenset({"gloo", "verbose"})
_HOROVOD_FILLED = _HOROVOD_FLAGS | {
    *("np", "num_proc", "H", "hosts", "hostfile", "p", "ssh_port", "i", "ssh_identity_file", "start_timeout"),
    *("min_np", "min_num_proc", "max_np", "max_num_proc", "slots_per_host", "elastic_timeout", "reset_limit"),
    "host_discovery_script",
}
"""The same of horovodrun's."""


def launcher_of(command: Sequence[str]) -> tuple[str, int]:
    """Which launcher a command begins with, and the number of words that say so; ('', 0): none that is known."""
    program = PurePath(command[0]).name
    if program in (TORCHRUN, DEEPSPEED, HOROVODRUN):
        return program, 1
    if program == "accelerate-launch":
        return ACCELERATE, 1
    if program == "accelerate" and list(command[1:2]) == ["launch"]:
        return ACCELERATE, 2
    if PYTHON.fullmatch(program):
        for at, word in enumerate(command[1:-1], 1):
            if word == "-m":
                found = _MODULES.get(command[at + 1], "")
                return (found, at + 2) if found else ("", 0)
            if not word.startswith("-"):
                break
    return "", 0


def recognised(command: Sequence[str]) -> Launcher | None:
    """The launcher that a command begins with."""
    return _LAUNCHERS.get(launcher_of(command)[0])


def launcher_for(spec: Spec) -> Launcher | None:
    """What starts the processes of a job; None: its command runs once on each node, as it is.

    An elastic job whose torchrun is told nothing but where its processes are, and no other number of them than one for
    each GPU, is started directly: so a resize takes half the time, and its exit code is that of the script.
    """
    if spec.launcher is not None:
        return spec.launcher
    if spec.per is Per.GPU:
        return Launcher.DIRECT
    found = recognised(spec.command)
    if found is Launcher.TORCHRUN and spec.elastic is not None and not _kept_options(spec.command):
        given = dict(options(spec.command[launcher_of(spec.command)[1] :], TORCHRUN_FLAGS)[0])
        if given.get("nproc_per_node", "gpu") in ("gpu", "auto", str(spec.replica_gpus or 1)):
            return Launcher.DIRECT
    return found


def once_per_gpu(spec: Spec) -> bool:
    """Whether gpuloom runs the job's command once for each of its GPUs."""
    return spec.per is Per.GPU or launcher_for(spec) in (Launcher.DIRECT, Launcher.HOROVOD)


def may_resize(spec: Spec) -> bool:
    """Whether members of an elastic job may come and go while others train, where its nodes can do that: torchrun
    starts it, and nothing that it is given says how many nodes there are, or where they meet. Whoever has made its pods
    knows how they meet."""
    if spec.adopted:
        return spec.elastic is not None
    if spec.elastic is None or spec.per is Per.GPU or spec.launcher not in (None, Launcher.TORCHRUN):
        return False
    name, words = launcher_of(spec.command)
    if name != TORCHRUN:
        return spec.launcher is Launcher.TORCHRUN
    given = {one for one, _ in options(spec.command[words:], TORCHRUN_FLAGS)[0]}
    return given.isdisjoint(_FIXED)


def misfit(command: Sequence[str], given: str | None, *, per_gpu: bool, ps: int) -> str:
    """What contradicts what of a spec's command, launcher, per and ps; '' if nothing does."""
    name = launcher_of(command)[0]
    if ps and given != Launcher.TENSORFLOW:
        return f"ps is {ps}, which needs launcher 'tensorflow': other launchers have no parameter servers"
    if per_gpu and (given == Launcher.TORCHRUN or (given is None and name)):
        return f"per is 'gpu', but {name or given} starts a process for each GPU by itself: leave out per"
    if name == HOROVODRUN and given in (None, Launcher.HOROVOD) and (kept := _kept_options(command)):
        return (
            f"horovodrun is given {_dashed(kept)}, but gpuloom starts the processes itself: set the variable for it "
            "(HOROVOD_…) instead"
        )
    if given is None or not name:
        return ""
    if given == Launcher.DIRECT and name == TORCHRUN:
        if kept := _kept_options(command):
            return (
                f"launcher is 'direct', but torchrun is given {_dashed(kept)}, which only torchrun can do: leave out "
                "one of them"
            )
        return ""
    if _LAUNCHERS[name] != given:
        return f"launcher is {given!r}, but the command begins with {name}: leave out one of them"
    return ""


def _dashed(name: str) -> str:
    return f"{'-' if len(name) < 2 else '--'}{name.replace('_', '-')}"


def _kept_options(command: Sequence[str]) -> str:
    """The first option of torchrun or horovodrun that means more than where processes are; '': there is none, and the
    command behind it can be started without it."""
    name, words = launcher_of(command)
    flags, filled = (_HOROVOD_FLAGS, _HOROVOD_FILLED) if name == HOROVODRUN else (TORCHRUN_FLAGS, _TORCHRUN_FILLED)
    given, script = options(command[words:], flags)
    if command[words - 1] == "torch.distributed.launch" and "use_env" not in dict(given):
        return "local_rank"  # it tells each script by an argument
    return next((one for one, _ in given if one not in filled), "" if script else "help")


def options(words: Sequence[str], flags: frozenset[str]) -> tuple[list[tuple[str, str]], Sequence[str]]:
    """The options before a script, by name without dashes, and the script with its arguments. flags: those that take
    no value."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, text = words[at].lstrip("-").partition("=")
        name = name.replace("-", "_")
        at += 1
        if not name and not equals:  # --: the script follows
            break
        if not equals and name not in flags and at < len(words):
            text, at = words[at], at + 1
        found.append((name, text))
    return found, words[at:]


def bare(command: Sequence[str], python: str) -> tuple[str, ...]:
    """The command that torchrun or horovodrun would start. python: the launcher's own."""
    name, words = launcher_of(command)
    if name == HOROVODRUN:
        return tuple(options(command[words:], _HOROVOD_FLAGS)[1])
    if name != TORCHRUN:
        return tuple(command)
    given, script = options(command[words:], TORCHRUN_FLAGS)
    named = dict(given)
    if "no_python" in named:
        return tuple(script)
    return (python, "-u", *(("-m",) if named.keys() & {"m", "module"} else ()), *script)
