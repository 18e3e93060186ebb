"""Commands that start processes on several GPUs or nodes: what they need to find each other is filled in.

Of what a user gave nothing is changed. How each is told, and where that is written down:

- **torchrun** (also `python -m torch.distributed.run`), **accelerate launch**: by options before those of the user, of
  which the last one counts (argparse). Scripts of gangs may call torchrun: they have the variables PET_* from which
  it takes the value of each option that is not given (torch/distributed/argparse_util.py).
- **deepspeed**: it would connect to the other nodes by ssh, and can't read GPUs named by uuid. So its own program for
  one node is run, as it does itself (deepspeed/launcher/runner.py): `python -m deepspeed.launcher.launch`.
- **direct**, **horovod**, **tensorflow**: the processes are started and told by direct.py. So is what torchrun or
  horovodrun would start.

Which of them it is, is recognise.py's to say.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from gpuloom.core.job import DeviceKind
from gpuloom.core.run_name import run_name_of
from gpuloom.core.spec import Launcher
from gpuloom.executors import direct
from gpuloom.executors.node import RunSpec
from gpuloom.executors.recognise import PYTHON, TORCHRUN_FLAGS, bare, launcher_of, options, recognised

LOOPBACK = "127.0.0.1"
RENDEZVOUS = "last_call_timeout=3,keep_alive_interval=3,keep_alive_max_attempt=3"
"""Seconds: so long torchrun waits for more members once it has the fewest (who comes later joins all the same), and
after three times as long as this without a word a member is gone."""
RESTARTS = 20
"""Failures that torchrun forgives where members may leave."""
DIRECT = str(Path(direct.__file__).resolve())
_KINDS = {
    Launcher.DIRECT: direct.TORCH,
    Launcher.HOROVOD: direct.HOROVOD,
    Launcher.TENSORFLOW: direct.TENSORFLOW,
}


def launcher_in(spec: RunSpec) -> Launcher | None:
    """What starts the processes of a member; a head of before says so by its command alone."""
    return spec.launcher or (Launcher.DIRECT if spec.per_gpu else recognised(spec.command))


def is_direct(spec: RunSpec) -> bool:
    """Whether direct.py starts the member's processes."""
    return launcher_in(spec) in _KINDS


def needs_port(spec: RunSpec) -> bool:
    """Whether processes of a member's job meet at a port of the master."""
    return len(spec.peers) > 1 or launcher_in(spec) is not None


def ports_here(spec: RunSpec) -> list[int]:
    """The ports at which something of this member will listen, as far as gpuloom chose them."""
    if spec.port is None or not needs_port(spec):
        return []
    if launcher_in(spec) is Launcher.TENSORFLOW:
        return [one.port for one in _tasks(spec) if one.node == spec.rank]
    return [spec.port] if spec.rank == 0 else []


def told(spec: RunSpec) -> dict[str, str]:
    """The variables that tell a member where it stands; for gangs and launchers also where the master is."""
    found = {"GPULOOM_MEMBER": str(spec.rank), "GPULOOM_NODE_RANK": str(spec.rank)}
    found["GPULOOM_NODE_COUNT"] = str(max(len(spec.peers), 1))
    if spec.peers:
        found["GPULOOM_NODE_NAMES"] = ",".join(peer.node for peer in spec.peers)
    if spec.port is None or not needs_port(spec):
        return found
    found |= {"MASTER_ADDR": _master(spec), "MASTER_PORT": str(spec.port)}
    if spec.sizes is not None:
        # Where torchrun shares the store of its rendezvous, whoever comes later waits for an address that nobody says
        # again (torch 2.13, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py: next_rendezvous).
        found["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if launcher_in(spec) is not None:
        return found
    # One process on each node is what TensorFlow and JAX start with, too.
    tasks = _tasks(spec)
    said = {"TF_CONFIG": direct.tf_config(tasks, tasks[spec.rank])}
    said |= direct.jax_environment(_master(spec), spec.port, len(spec.peers), spec.rank)
    # A script may call torchrun, which takes from these what its command line leaves out.
    said |= {f"PET_{name.upper()}": text for name, text in _of_torchrun(spec).items()}
    return {**found, **said, **{name: spec.env[name] for name in said if name in spec.env}}


def launched(spec: RunSpec, env: Mapping[str, str]) -> tuple[str, ...]:
    """The command with what its launcher needs. env: in which it will run."""
    if spec.port is None:
        return spec.command
    launcher, words = launcher_in(spec), launcher_of(spec.command)[1]
    if launcher in _KINDS:
        return _direct(spec, env)
    if launcher is Launcher.TORCHRUN:
        return _torchrun(spec, words) if words else _by_torchrun(spec)
    if launcher is Launcher.ACCELERATE:
        return _accelerate(spec, words)
    if launcher is Launcher.DEEPSPEED:
        return _deepspeed(spec, words, env)
    return spec.command


def _master(spec: RunSpec) -> str:
    if len(spec.peers) < 2 and spec.sizes is None:
        return LOOPBACK
    return spec.peers[0].address or spec.peers[0].node


def _attempt(spec: RunSpec) -> str:
    name = run_name_of(spec.run)
    return spec.run if name is None else str(name._replace(member=0))


def _of_torchrun(spec: RunSpec) -> dict[str, str]:
    """Its options, spelled as all its versions know them: rendezvous, nodes, and one process for each GPU."""
    master = _master(spec)
    host = f"[{master}]" if ":" in master else master
    found = {"nproc_per_node": str(len(spec.gpus)), "rdzv_id": _attempt(spec)}
    if spec.sizes is not None:
        least, most = spec.sizes
        found |= {"nnodes": f"{least}:{most}", "rdzv_backend": "c10d", "rdzv_endpoint": f"{host}:{spec.port}"}
        # Whoever leaves makes the others' communication fail, which counts as a failure of theirs.
        return {**found, "rdzv_conf": RENDEZVOUS, "max_restarts": str(RESTARTS)}
    found |= {"master_addr": host, "master_port": str(spec.port)}
    if len(spec.peers) > 1:
        found |= {"nnodes": str(len(spec.peers)), "node_rank": str(spec.rank), "rdzv_endpoint": f"{host}:{spec.port}"}
    return found


def _torchrun(spec: RunSpec, words: int) -> tuple[str, ...]:
    """Before the user's options, of which the last one counts; what its variables say (PET_*) is given as well."""
    filled = _of_torchrun(spec)
    given = dict(options(spec.command[words:], TORCHRUN_FLAGS)[0])
    if "standalone" in given or given.get("nnodes") in ("1", "1:1"):  # each node for itself
        filled = {"nproc_per_node": filled["nproc_per_node"]}
    elif any(name.startswith("master_") for name in given):
        filled.pop("rdzv_endpoint", None)  # it would go before the user's
    told = [f"--{name}={text}" for name, text in filled.items() if f"PET_{name.upper()}" not in spec.env]
    return (*spec.command[:words], *told, *spec.command[words:])


def _by_torchrun(spec: RunSpec) -> tuple[str, ...]:
    """A command that does not name torchrun, started by it: that of its own Python, where it names one."""
    program = spec.command[0]
    start = (program, "-m", "torch.distributed.run") if PYTHON.fullmatch(PurePath(program).name) else ("torchrun",)
    told = [f"--{name}={text}" for name, text in _of_torchrun(spec).items()]
    return (*start, *told, "--no-python", *spec.command)


def _tasks(spec: RunSpec) -> list[direct.Task]:
    """The processes of a job of TensorFlow."""
    counts = [peer.gpus for peer in spec.peers] or [len(spec.gpus)]
    workers = counts if spec.per_gpu else [1] * len(counts)
    return direct.tasks_of(workers, _addresses(spec), spec.port or 0, spec.ps)


def _addresses(spec: RunSpec) -> list[str]:
    if len(spec.peers) < 2:
        return [LOOPBACK]
    return [peer.address or peer.node for peer in spec.peers]


def _direct(spec: RunSpec, env: Mapping[str, str]) -> tuple[str, ...]:
    kind = _KINDS[launcher_in(spec) or Launcher.DIRECT]
    counts = [peer.gpus for peer in spec.peers] or [len(spec.gpus)]
    if kind == direct.TENSORFLOW and not spec.per_gpu:
        counts = [1] * len(counts)
    asked = {
        "processes": counts[spec.rank],
        "first": sum(counts[: spec.rank]),
        "world": sum(counts),
        "node": spec.rank,
        "nodes": len(counts),
        "run": _attempt(spec),
        "port": spec.port,
    }
    if kind != direct.TORCH:
        asked |= {"kind": kind, "counts": ",".join(map(str, counts)), "addresses": ",".join(_addresses(spec))}
    if spec.ps:
        asked["ps"] = spec.ps
    if kind == direct.TENSORFLOW and spec.per_gpu:
        asked["each"] = "gpu"
    # A container has a Python of its own, at a place of its own.
    python = "python3" if spec.container else sys.executable
    words = (word for name, value in asked.items() for word in (f"--{name}", str(value)))
    return (python, "-I", "-S", DIRECT, *words, "--", *started(spec, env))


def started(spec: RunSpec, env: Mapping[str, str]) -> tuple[str, ...]:
    """The command that direct.py runs: without torchrun or horovodrun."""
    return bare(spec.command, _python_of(spec, env))


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
    given, script = options(spec.command[words:], _DEEPSPEED_FLAGS)
    named = {name for name, _ in given}
    one_node_of_slots = len(spec.peers) < 2 and spec.kind is DeviceKind.CPU
    if not script or named & _DEEPSPEED_OWN or one_node_of_slots:
        return spec.command
    most = next((int(text) for name, text in given if name in ("num_gpus", "num_accelerators") and text.isdecimal()), 0)
    here: Sequence[str | int] = spec.gpu_uuids if spec.kind is DeviceKind.GPU and all(spec.gpu_uuids) else spec.gpus
    world: dict[str, list[str | int]] = {}
    for rank, peer in enumerate(spec.peers):
        of_node: Sequence[str | int] = here if rank == spec.rank else range(peer.gpus)
        world[f"{rank}:{peer.node}"] = list(of_node[: most or None])
    encoded = base64.urlsafe_b64encode(json.dumps(world or {"here": here[: most or None]}).encode()).decode()
    kept = [f"--{name}={text}" if text else f"--{name}" for name, text in given if name in _DEEPSPEED_KEPT]
    told = [f"--world_info={encoded}", f"--node_rank={spec.rank}"]
    told += [f"--master_addr={_master(spec)}", f"--master_port={spec.port}"]
    return (_python_of(spec, env), "-u", "-m", "deepspeed.launcher.launch", *told, *kept, *script)


def _python_of(spec: RunSpec, env: Mapping[str, str]) -> str:
    """The Python of the launcher that the command names."""
    if PYTHON.fullmatch(PurePath(spec.command[0]).name):
        return spec.command[0]
    folder = PurePath(spec.command[0]).parent
    if str(folder) != ".":
        return str(folder / "python")
    outside = not (spec.container or spec.conda or spec.venv)
    return "python3" if outside and shutil.which("python", path=env.get("PATH")) is None else "python"
