"""Commands that start processes on several GPUs or nodes: what they need to find each other is filled in.

Of what a user gave nothing is changed. How each is told, and where that is written down:

- **torchrun** (also `python -m torch.distributed.run`), **accelerate launch**: by options before those of the user, of
  which the last one counts (argparse). Scripts of gangs may call torchrun: they have the variables PET_* from which
  it takes the value of each option that is not given (torch/distributed/argparse_util.py).
- **deepspeed**: it would connect to the other nodes by ssh, and can't read GPUs named by uuid. So its own program for
  one node is run, as it does itself (deepspeed/launcher/runner.py): `python -m deepspeed.launcher.launch`.
- **per GPU** (`--per gpu`): by direct.py.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from gpuloom.core.job import DeviceKind
from gpuloom.core.run_name import run_name_of
from gpuloom.executors import direct
from gpuloom.executors.node import RunSpec

TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate launch", "deepspeed"
MODULES: Mapping[str, str] = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
_PYTHON = re.compile(r"python[0-9.]*")
LOOPBACK = "127.0.0.1"
DIRECT = str(Path(direct.__file__).resolve())


def launcher_of(command: Sequence[str]) -> tuple[str, int]:
    """Which launcher a command begins with, and the number of words that say so; ('', 0): none that is known."""
    program = PurePath(command[0]).name
    if program in (TORCHRUN, DEEPSPEED):
        return program, 1
    if program == "accelerate-launch":
        return ACCELERATE, 1
    if program == "accelerate" and list(command[1:2]) == ["launch"]:
        return ACCELERATE, 2
    if _PYTHON.fullmatch(program):
        for at, word in enumerate(command[1:-1], 1):
            if word == "-m":
                found = MODULES.get(command[at + 1], "")
                return (found, at + 2) if found else ("", 0)
            if not word.startswith("-"):
                break
    return "", 0


def meets(command: Sequence[str], nodes: int, *, per_gpu: bool) -> bool:
    """Whether processes of a job on so many nodes meet at a port of the master."""
    return nodes > 1 or per_gpu or launcher_of(command)[0] != ""


def needs_port(spec: RunSpec) -> bool:
    """The same of a member."""
    return meets(spec.command, len(spec.peers), per_gpu=spec.per_gpu)


def told(spec: RunSpec) -> dict[str, str]:
    """The variables that tell a member where it stands; for gangs and launchers also where the master is."""
    found = {"GPULOOM_MEMBER": str(spec.rank), "GPULOOM_NODE_RANK": str(spec.rank)}
    found["GPULOOM_NODE_COUNT"] = str(max(len(spec.peers), 1))
    if spec.peers:
        found["GPULOOM_NODE_NAMES"] = ",".join(peer.node for peer in spec.peers)
    if spec.port is None or not needs_port(spec):
        return found
    found |= {"MASTER_ADDR": _master(spec), "MASTER_PORT": str(spec.port)}
    if spec.per_gpu or launcher_of(spec.command)[0]:
        return found
    # A script may call torchrun, which takes from these what its command line leaves out.
    said = {f"PET_{name.upper()}": text for name, text in _of_torchrun(spec).items()}
    return {**found, **said, **{name: spec.env[name] for name in said if name in spec.env}}


def launched(spec: RunSpec, env: Mapping[str, str]) -> tuple[str, ...]:
    """The command with what its launcher needs. env: in which it will run."""
    if spec.port is None:
        return spec.command
    if spec.per_gpu:
        return _direct(spec)
    launcher, words = launcher_of(spec.command)
    if launcher == TORCHRUN:
        return _torchrun(spec, words)
    if launcher == ACCELERATE:
        return _accelerate(spec, words)
    if launcher == DEEPSPEED:
        return _deepspeed(spec, words, env)
    return spec.command


def _master(spec: RunSpec) -> str:
    if len(spec.peers) < 2:
        return LOOPBACK
    return spec.peers[0].address or spec.peers[0].node


def _attempt(spec: RunSpec) -> str:
    name = run_name_of(spec.run)
    return spec.run if name is None else str(name._replace(member=0))


def _options(words: Sequence[str], flags: frozenset[str]) -> tuple[list[tuple[str, str]], Sequence[str]]:
    """The options before a script, by name without dashes, and the script with its arguments. flags: those that take
    no value."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, text = words[at].lstrip("-").partition("=")
        name = name.replace("-", "_")
        at += 1
        if not equals and name not in flags and at < len(words):
            text, at = words[at], at + 1
        found.append((name, text))
    return found, words[at:]


_TORCHRUN_FLAGS = frozenset({"standalone", "m", "module", "no_python", "run_path", "use_env", "virtual_local_rank"})


def _of_torchrun(spec: RunSpec) -> dict[str, str]:
    """Its options, spelled as all its versions know them: rendezvous, nodes, and one process for each GPU."""
    master = _master(spec)
    host = f"[{master}]" if ":" in master else master
    found = {"nproc_per_node": str(len(spec.gpus)), "rdzv_id": _attempt(spec)}
    found |= {"master_addr": host, "master_port": str(spec.port)}
    if len(spec.peers) > 1:
        found |= {"nnodes": str(len(spec.peers)), "node_rank": str(spec.rank), "rdzv_endpoint": f"{host}:{spec.port}"}
    return found


def _torchrun(spec: RunSpec, words: int) -> tuple[str, ...]:
    """Before the user's options, of which the last one counts; what its variables say (PET_*) is given as well."""
    filled = _of_torchrun(spec)
    given = dict(_options(spec.command[words:], _TORCHRUN_FLAGS)[0])
    if "standalone" in given or given.get("nnodes") in ("1", "1:1"):  # each node for itself
        filled = {"nproc_per_node": filled["nproc_per_node"]}
    elif any(name.startswith("master_") for name in given):
        filled.pop("rdzv_endpoint", None)  # it would go before the user's
    told = [f"--{name}={text}" for name, text in filled.items() if f"PET_{name.upper()}" not in spec.env]
    return (*spec.command[:words], *told, *spec.command[words:])


def _direct(spec: RunSpec) -> tuple[str, ...]:
    counts = [peer.gpus for peer in spec.peers] or [len(spec.gpus)]
    asked = {
        "processes": len(spec.gpus),
        "first": sum(counts[: spec.rank]),
        "world": sum(counts),
        "node": spec.rank,
        "nodes": len(counts),
        "run": _attempt(spec),
    }
    # A container has a Python of its own, at a place of its own.
    python = "python3" if spec.container else sys.executable
    options = (word for name, value in asked.items() for word in (f"--{name}", str(value)))
    return (python, "-I", "-S", DIRECT, *options, "--", *spec.command)


_OTHER_WAYS = frozenset({"--cpu", "--multi_gpu", "--tpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm"})
"""Of accelerate: at most one of these may be given."""


def _accelerate(spec: RunSpec, words: int) -> tuple[str, ...]:
    """On one node it counts the GPUs itself, and takes what is in its file of settings, unless that file is named."""
    nodes, here = len(spec.peers), len(spec.gpus)
    given = {word.partition("=")[0].replace("-", "_").replace("__", "--", 1) for word in spec.command[words:]}
    start, rest = spec.command[:words], spec.command[words:]
    if nodes < 2:
        if here < 2 or spec.kind is DeviceKind.CPU or "--config_file" in given:
            return spec.command
        return (*start, f"--num_processes={here}", f"--main_process_port={spec.port}", *rest)
    filled = [
        f"--num_machines={nodes}",
        f"--machine_rank={spec.rank}",
        f"--num_processes={here * nodes}",  # it divides by the number of machines; torchrun adds up who is there
        f"--main_process_ip={_master(spec)}",
        f"--main_process_port={spec.port}",
        "--deepspeed_multinode_launcher=standard",
    ]
    if not given & {*_OTHER_WAYS, "--config_file"}:
        filled.append("--multi_gpu")
    return (*start, *filled, *rest)


_DEEPSPEED_SAME_FLAGS = frozenset({"module", "no_python", "no_local_rank", "bind_cores_to_rank", "quiet"})
_DEEPSPEED_FLAGS = _DEEPSPEED_SAME_FLAGS | {
    "no_ssh_check",
    "no_ssh",
    "force_multi",
    "save_pid",
    "elastic_training",
    "q",
}
_DEEPSPEED_KEPT = _DEEPSPEED_SAME_FLAGS | {"bind_core_list", "enable_each_rank_log", "log_level"}
_DEEPSPEED_KEPT |= {"master_port", "master_addr"}
"""Its options that the program for one node has too."""
_DEEPSPEED_OWN = frozenset({"autotuning", "elastic_training", "h", "help"})
"""With these it does something else than to start processes."""


def _deepspeed(spec: RunSpec, words: int, env: Mapping[str, str]) -> tuple[str, ...]:
    """Its options that say on which nodes and GPUs are left out: they are those of the job. --num_gpus: so many of
    them on each node."""
    options, script = _options(spec.command[words:], _DEEPSPEED_FLAGS)
    named = {name for name, _ in options}
    one_node_of_slots = len(spec.peers) < 2 and spec.kind is DeviceKind.CPU
    if not script or named & _DEEPSPEED_OWN or one_node_of_slots:
        return spec.command
    most = next(
        (int(text) for name, text in options if name in ("num_gpus", "num_accelerators") and text.isdecimal()), 0
    )
    here: Sequence[str | int] = spec.gpu_uuids if spec.kind is DeviceKind.GPU and all(spec.gpu_uuids) else spec.gpus
    world: dict[str, list[str | int]] = {}
    for rank, peer in enumerate(spec.peers):
        of_node: Sequence[str | int] = here if rank == spec.rank else range(peer.gpus)
        world[f"{rank}:{peer.node}"] = list(of_node[: most or None])
    encoded = base64.urlsafe_b64encode(json.dumps(world or {"here": here[: most or None]}).encode()).decode()
    kept = [f"--{name}={text}" if text else f"--{name}" for name, text in options if name in _DEEPSPEED_KEPT]
    told = [f"--world_info={encoded}", f"--node_rank={spec.rank}"]
    told += [f"--master_addr={_master(spec)}", f"--master_port={spec.port}"]
    return (_python_of(spec, env), "-u", "-m", "deepspeed.launcher.launch", *told, *kept, *script)


def _python_of(spec: RunSpec, env: Mapping[str, str]) -> str:
    """The Python of the launcher that the command names."""
    if _PYTHON.fullmatch(PurePath(spec.command[0]).name):
        return spec.command[0]
    folder = PurePath(spec.command[0]).parent
    if str(folder) != ".":
        return str(folder / "python")
    outside = not (spec.container or spec.conda or spec.venv)
    return "python3" if outside and shutil.which("python", path=env.get("PATH")) is None else "python"
