"""What is filled in for commands that start processes on several GPUs and nodes, and what is left as it was given."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_views import attempt, record
from gpuloom.core.errors import InputError
from gpuloom.core.job import DeviceKind, Gpu, NodeRecord
from gpuloom.core.run_name import run_name_of
from gpuloom.core.spec import Launcher
from gpuloom.executors import launchers
from gpuloom.executors.launchers import launched, told
from gpuloom.executors.node import Peer, RunSpec
from gpuloom.executors.prepare import check_port, request_of
from gpuloom.executors.recognise import launcher_for, launcher_of, once_per_gpu
from gpuloom.live.dispatch import ports
from gpuloom.live.dispatch.launch import run_specs
from gpuloom.live.submission.spec import job_spec

HERE, THERE = Peer("a", "10.0.0.1", 2), Peer("b", "10.0.0.2", 3)


def member(*command: str, rank: int = 1, peers: tuple[Peer, ...] = (HERE, THERE), **given: Any) -> RunSpec:
    gpus = tuple(range(peers[rank].gpus))
    plain: dict[str, Any] = {
        "run": f"7.2{f'.{rank}' if rank else ''}-ab",
        "workdir": "/",
        "env": {},
        "gpus": gpus,
        "gpu_uuids": tuple(f"G{gpu}" for gpu in gpus),
        "port": 20_500,
    }
    return RunSpec(**{**plain, "command": command, "rank": rank, "peers": peers, **given})


def one(*command: str, **given: Any) -> RunSpec:
    return member(*command, rank=0, peers=(HERE,), **given)


def of_script(spec: RunSpec) -> dict[str, str]:
    return {name[4:]: text for name, text in told(spec).items() if name.startswith("PET_")}


def of_torchrun(spec: RunSpec) -> dict[str, str]:
    """Options that were filled in."""
    found = launched(spec, {})
    assert found[0] == "torchrun"
    assert found[len(found) - len(spec.command) + 1 :] == spec.command[1:]
    words = (word.removeprefix("--").partition("=") for word in found[1 : len(found) - len(spec.command) + 1])
    return {name: text for name, _, text in words}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("torchrun a.py", ("torchrun", 1)),
        ("/opt/env/bin/torchrun a.py", ("torchrun", 1)),
        ("python -m torch.distributed.run a.py", ("torchrun", 3)),
        ("python3.11 -u -m torch.distributed.launch a.py", ("torchrun", 4)),
        ("accelerate launch a.py", ("accelerate launch", 2)),
        ("accelerate-launch a.py", ("accelerate launch", 1)),
        ("accelerate config", ("", 0)),
        ("accelerate", ("", 0)),
        ("deepspeed a.py", ("deepspeed", 1)),
        ("horovodrun -np 2 a.py", ("horovodrun", 1)),
        ("python -m horovod.runner.launch a.py", ("horovodrun", 3)),
        ("python -m deepspeed.launcher.runner a.py", ("deepspeed", 3)),
        ("python a.py -m torch.distributed.run", ("", 0)),
        ("python -m pytest", ("", 0)),
        ("python -m", ("", 0)),
        ("pythonic -m torch.distributed.run a.py", ("", 0)),
        ("./torchrun.py", ("", 0)),
    ],
)
def test_which_launcher_it_is(command: str, found: tuple[str, int]) -> None:
    assert launcher_of(command.split()) == found


# -- variables -----------------------------------------------------------------------------------------------


def test_every_member_knows_where_it_stands() -> None:
    assert told(one("./a")) == {
        "GPULOOM_MEMBER": "0",
        "GPULOOM_NODE_RANK": "0",
        "GPULOOM_NODE_COUNT": "1",
        "GPULOOM_NODE_NAMES": "a",
    }
    gang = told(member("./a"))
    assert {name: text for name, text in gang.items() if not name.startswith("PET_")} == {
        "GPULOOM_MEMBER": "1",
        "GPULOOM_NODE_RANK": "1",
        "GPULOOM_NODE_COUNT": "2",
        "GPULOOM_NODE_NAMES": "a,b",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20500",
        "TF_CONFIG": '{"cluster": {"worker": ["10.0.0.1:20500", "10.0.0.2:20500"]}, '
        '"task": {"type": "worker", "index": 1}}',
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:20500",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }
    own = told(member("./a", env={"TF_CONFIG": "mine", "JAX_PROCESS_ID": "7"}))
    assert (own["TF_CONFIG"], own["JAX_PROCESS_ID"], own["JAX_NUM_PROCESSES"]) == ("mine", "7", "2")


GANG = {
    "nproc_per_node": "3",
    "rdzv_id": "7.2-ab",
    "master_addr": "10.0.0.1",
    "master_port": "20500",
    "nnodes": "2",
    "node_rank": "1",
    "rdzv_endpoint": "10.0.0.1:20500",
}
ALONE = {"nproc_per_node": "2", "rdzv_id": "7.2-ab", "master_addr": "127.0.0.1", "master_port": "20500"}


def test_torchrun_in_a_gang_gets_its_options_before_those_of_the_user() -> None:
    assert of_torchrun(member("torchrun", "--nproc-per-node=1", "a.py", "--nnodes", "1")) == GANG
    assert of_script(member("torchrun", "a.py")) == {}
    module = launched(member("python", "-m", "torch.distributed.run", "-m", "pkg"), {})
    assert module[:4] == ("python", "-m", "torch.distributed.run", "--nproc_per_node=3")
    assert module[-2:] == ("-m", "pkg")
    assert of_torchrun(member("torchrun", "a.py", rank=0))["rdzv_id"] == "7.2-ab"


def test_a_script_of_a_gang_finds_them_as_variables_of_torchrun() -> None:
    spec = member("sh", "train.sh")
    assert of_script(spec) == {name.upper(): text for name, text in GANG.items()}
    assert launched(spec, {}) == spec.command
    assert of_script(member("sh", "train.sh", env={"PET_NPROC_PER_NODE": "1"}))["NPROC_PER_NODE"] == "1"
    assert of_script(one("sh", "train.sh")) == {}
    assert "MASTER_PORT" not in told(one("sh", "train.sh"))


@pytest.mark.parametrize("option", ["--master-port=1", "--master_port", "--master_addr=x"])
def test_an_address_of_the_user_is_not_overruled(option: str) -> None:
    assert "rdzv_endpoint" not in of_torchrun(member("torchrun", option, "1", "a.py"))
    assert "rdzv_endpoint" in of_torchrun(member("torchrun", "--no-python", "a.py", option))


@pytest.mark.parametrize("option", ["--standalone", "--nnodes=1", "--nnodes 1:1"])
def test_who_wants_each_node_for_itself_gets_that(option: str) -> None:
    assert of_torchrun(member("torchrun", *option.split(), "a.py")) == {"nproc_per_node": "3"}


def test_torchrun_on_one_node() -> None:
    assert of_torchrun(one("torchrun", "--nproc_per_node", "1", "a.py")) == ALONE
    assert "nproc_per_node" not in of_torchrun(one("torchrun", "a.py", env={"PET_NPROC_PER_NODE": "1"}))
    assert launched(one("torchrun", "a.py", port=None), {}) == ("torchrun", "a.py")


def test_a_master_without_an_address_goes_by_its_name_and_ipv6_stands_in_brackets() -> None:
    named = told(member("./a", peers=(Peer("head", "", 1), THERE)))
    assert (named["MASTER_ADDR"], named["PET_RDZV_ENDPOINT"]) == ("head", "head:20500")
    six = told(member("./a", peers=(Peer("a", "fd00::1", 1), THERE)))
    assert (six["MASTER_ADDR"], six["PET_RDZV_ENDPOINT"]) == ("fd00::1", "[fd00::1]:20500")
    assert six["PET_MASTER_ADDR"] == "[fd00::1]"


# -- commands ------------------------------------------------------------------------------------------------


def test_accelerate_in_a_gang_gets_its_options_before_those_of_the_user() -> None:
    found = launched(member("accelerate", "launch", "--num_processes=4", "a.py", "--cpu"), {})
    assert found == (
        "accelerate",
        "launch",
        "--num_machines=2",
        "--machine_rank=1",
        "--num_processes=6",
        "--main_process_ip=10.0.0.1",
        "--main_process_port=20500",
        "--deepspeed_multinode_launcher=standard",
        "--num_processes=4",
        "a.py",
        "--cpu",
    )
    assert "--multi_gpu" in launched(member("accelerate-launch", "a.py"), {})
    for given in ("--use-deepspeed", "--use_fsdp", "--config_file=x"):
        assert "--multi_gpu" not in launched(member("accelerate", "launch", given, "a.py"), {})
    assert "--multi_gpu" in launched(member("accelerate-launch", "a.py", kind=DeviceKind.CPU), {})


def test_accelerate_on_one_node() -> None:
    found = launched(one("accelerate", "launch", "a.py"), {})
    assert found == ("accelerate", "launch", "--num_processes=2", "--main_process_port=20500", "a.py")
    for same in (
        one("accelerate", "launch", "--config_file", "c.yaml", "a.py"),
        one("accelerate", "launch", "a.py", kind=DeviceKind.CPU),
        one("accelerate", "launch", "a.py", gpus=(0,)),
        one("accelerate", "launch", "a.py", port=None),
    ):
        assert launched(same, {}) == same.command


def world(found: tuple[str, ...]) -> Any:
    text = next(word.partition("=")[2] for word in found if word.startswith("--world_info="))
    return json.loads(base64.urlsafe_b64decode(text))


def test_deepspeed_runs_its_program_for_one_node(tmp_path: Path) -> None:
    found = launched(
        member("deepspeed", "--hostfile", "h", "--no_local_rank", "--num_nodes=2", "a.py", "--x"), {"PATH": "/none"}
    )
    assert found[:4] == ("python3", "-u", "-m", "deepspeed.launcher.launch")
    assert world(found) == {"0:a": [0, 1], "1:b": ["G0", "G1", "G2"]}
    assert found[5:] == (
        *("--node_rank=1", "--master_addr=10.0.0.1", "--master_port=20500"),
        *("--no_local_rank", "a.py", "--x"),
    )
    fewer = launched(one("/e/bin/deepspeed", "--num_gpus", "1", "--module", "--master_port=9", "m", "-i"), {})
    assert fewer[0] == "/e/bin/python"
    assert world(fewer) == {"0:a": ["G0"]}
    assert fewer[-5:] == ("--master_port=20500", "--module", "--master_port=9", "m", "-i")
    (tmp_path / "python").write_text("")
    (tmp_path / "python").chmod(0o755)
    assert launched(one("deepspeed", "a.py"), {"PATH": str(tmp_path)})[0] == "python"
    assert launched(one("deepspeed", "a.py", venv="v"), {"PATH": "/none"})[0] == "python"
    assert launched(one("python3.9", "-m", "deepspeed.launcher.runner", "a.py"), {})[0] == "python3.9"


@pytest.mark.parametrize(
    "given", [("--autotuning", "run", "a.py"), ("--elastic_training", "a.py"), ("--help",), ("--num_gpus",)]
)
def test_deepspeed_is_left_alone_where_it_does_more_than_to_start(given: tuple[str, ...]) -> None:
    assert launched(member("deepspeed", *given), {}) == ("deepspeed", *given)


def test_deepspeed_on_slots_of_one_node_is_left_alone() -> None:
    spec = one("deepspeed", "a.py", kind=DeviceKind.CPU)
    assert launched(spec, {}) == spec.command
    assert world(launched(member("deepspeed", "-q", "a.py", kind=DeviceKind.CPU), {}))["1:b"] == [0, 1, 2]


def test_once_per_gpu() -> None:
    found = launched(member("python", "a.py", per_gpu=True), {})
    assert found[1:4] == ("-I", "-S", launchers.DIRECT)
    options = "--processes 3 --first 2 --world 5 --node 1 --nodes 2 --run 7.2-ab --port 20500 -- python a.py"
    assert " ".join(found[4:]) == options
    variables = told(member("python", "a.py", per_gpu=True))
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "20500")
    assert not [name for name in variables if name.startswith("PET_")]
    assert told(one("python", "a.py", per_gpu=True))["MASTER_ADDR"] == "127.0.0.1"
    with pytest.raises(InputError, match="torchrun starts a process for each GPU by itself: leave out per"):
        job_spec({"command": ["torchrun", "a.py"], "per": "gpu"})


def spec_of_job(command: str, **given: Any) -> Any:
    return job_spec({"command": command.split(), **given}).named().kept()


@pytest.mark.parametrize(
    ("command", "given", "found"),
    [
        ("python a.py", {}, None),
        ("python a.py", {"per": "gpu"}, "direct"),
        ("python a.py", {"launcher": "direct"}, "direct"),
        ("torchrun a.py", {}, "torchrun"),
        ("torchrun --nproc-per-node=2 --rdzv-backend c10d a.py", {"elastic": "1-3", "replica_gpus": 2}, "direct"),
        ("torchrun --nproc-per-node gpu a.py", {"elastic": "1-3"}, "direct"),
        ("torchrun --nproc-per-node=1 a.py", {"elastic": "1-3", "replica_gpus": 2}, "torchrun"),
        ("torchrun --nproc-per-node=cpu a.py", {"elastic": "1-3"}, "torchrun"),
        ("torchrun --tee 3 a.py", {"elastic": "1-3"}, "torchrun"),
        ("torchrun a.py", {"elastic": "1-3", "launcher": "torchrun"}, "torchrun"),
        ("torchrun", {"elastic": "1-3"}, "torchrun"),
        ("python -m torch.distributed.launch a.py", {"elastic": "1-3"}, "torchrun"),
        ("python -m torch.distributed.launch --use-env a.py", {"elastic": "1-3"}, "direct"),
        ("accelerate launch a.py", {"elastic": "1-3"}, "accelerate launch"),
        ("deepspeed a.py", {}, "deepspeed"),
        ("horovodrun -np 4 a.py", {}, "horovod"),
        ("python a.py", {"launcher": "tensorflow", "ps": 1}, "tensorflow"),
    ],
)
def test_the_launcher_follows_from_the_spec_and_the_command(command: str, given: dict[str, Any], found: str) -> None:
    spec = spec_of_job(command, **given)
    assert launcher_for(spec) == found
    assert once_per_gpu(spec) == (found in ("direct", "horovod"))


@pytest.mark.parametrize(
    ("command", "given", "words"),
    [
        ("torchrun --tee 3 a.py", {"launcher": "direct"}, "torchrun is given --tee, which only torchrun can do"),
        ("deepspeed a.py", {"launcher": "torchrun"}, "launcher is 'torchrun', but the command begins with deepspeed"),
        ("torchrun a.py", {"launcher": "tensorflow"}, "launcher is 'tensorflow', but the command begins with torchrun"),
        ("python a.py", {"launcher": "torchrun", "per": "gpu"}, "torchrun starts a process for each GPU by itself"),
        ("horovodrun --autotune a.py", {}, "horovodrun is given --autotune, but gpuloom starts the processes itself"),
        ("python a.py", {"ps": 1}, "ps is 1, which needs launcher 'tensorflow'"),
        ("python a.py", {"launcher": "mpi"}, "launcher is 'mpi'"),
    ],
)
def test_launchers_that_contradict_the_command(command: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        spec_of_job(command, **given)


def behind(found: tuple[str, ...]) -> str:
    """The command that direct.py runs."""
    assert found[1:4] == ("-I", "-S", launchers.DIRECT)
    return " ".join(found[found.index("--") + 1 :])


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("torchrun --nnodes 1:3 --nproc-per-node=2 a.py --nnodes", "python -u a.py --nnodes"),
        ("/e/bin/torchrun -m pkg.train", "/e/bin/python -u -m pkg.train"),
        ("torchrun --no-python ./a -x", "./a -x"),
        ("python3.9 -m torch.distributed.run -- a.py", "python3.9 -u a.py"),
        ("horovodrun -np 4 -H a:2,b:2 python a.py -np", "python a.py -np"),
    ],
)
def test_direct_starts_what_the_launcher_would(command: str, found: str) -> None:
    launcher = Launcher.HOROVOD if command.startswith("horovod") else Launcher.DIRECT
    assert behind(launched(one(*command.split(), launcher=launcher, per_gpu=True, venv="v"), {})) == found


def test_torchrun_for_a_command_that_does_not_name_it() -> None:
    found = launched(member("python3", "-u", "a.py", launcher=Launcher.TORCHRUN), {})
    assert found[:3] == ("python3", "-m", "torch.distributed.run")
    assert found[-4:] == ("--no-python", "python3", "-u", "a.py")
    assert {word.removeprefix("--").partition("=")[0] for word in found[3:-4]} == GANG.keys()
    assert launched(member("./a", launcher=Launcher.TORCHRUN), {})[0] == "torchrun"


def test_tensorflow_is_told_how_many_processes_each_node_has() -> None:
    given: dict[str, Any] = {"launcher": Launcher.TENSORFLOW, "ps": 1}
    by_node = " ".join(launched(member("./a", **given), {})[4:])
    assert by_node.startswith("--processes 1 --first 1 --world 2 --node 1 --nodes 2")
    assert "--kind tensorflow --counts 1,1 --addresses 10.0.0.1,10.0.0.2 --ps 1 -- ./a" in by_node
    by_gpu = " ".join(launched(member("./a", per_gpu=True, **given), {})[4:])
    assert by_gpu.startswith("--processes 3 --first 2 --world 5 --node 1 --nodes 2")
    assert "--counts 2,3 --addresses 10.0.0.1,10.0.0.2 --ps 1 --each gpu" in by_gpu
    assert launchers.ports_here(member("./a", rank=0, **given))[0] == 20_500
    # Of chief, worker and parameter server only the first two and the third are here: the other node has a worker.
    assert [len(launchers.ports_here(member("./a", rank=rank, **given))) for rank in (0, 1)] == [3, 1]


def test_in_a_container_it_has_the_launcher_and_in_gangs_the_machine_s_network(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    given: dict[str, Any] = {
        "container": "image",
        "env": {"PATH": str(tmp_path)},
        "per_gpu": True,
        "workdir": str(tmp_path),
    }
    argv = request_of(member("python", "a.py", **given), tmp_path).argv
    assert argv[argv.index("image") + 1 :][:4] == ("python3", "-I", "-S", launchers.DIRECT)
    assert f"type=bind,source={launchers.DIRECT},target={launchers.DIRECT}" in argv
    assert argv[argv.index("--network") + 1] == "host"
    alone = request_of(one("python", "a.py", **given), tmp_path).argv
    assert "--network" not in alone


def test_once_per_gpu_the_program_must_be_there(tmp_path: Path) -> None:
    for program in ("no-such-program", "./none", "/none"):
        with pytest.raises(InputError, match=f"can't run '{program}': there is no such program"):
            request_of(one(program, per_gpu=True, workdir=str(tmp_path)), tmp_path)
    (tmp_path / "there").write_text("")
    (tmp_path / "there").chmod(0o755)
    assert request_of(one("./there", per_gpu=True, workdir=str(tmp_path)), tmp_path).argv[-1] == "./there"


# -- ports ---------------------------------------------------------------------------------------------------


def test_a_port_follows_from_the_name_and_avoids_those_in_use() -> None:
    assert ports.port_of("12.1-9f3a02bc") == ports.port_of("12.1-9f3a02bc")
    found = {ports.port_of(f"{job}.1-ab") for job in range(5_000)}
    assert min(found) >= 20_000
    assert max(found) < 27_000
    assert len(found) > 3_000
    all_but_one = set(range(20_000, 27_000)) - {20_123}
    assert len(ports.new_identity(1, 1)) == 8
    free = ports.new_identity(1, 1, set(range(20_000, 26_000)))
    assert ports.port_of(f"1.1-{free}") >= 26_000
    assert ports.new_identity(1, 1, all_but_one | {20_123})


def test_an_attempt_gets_no_name_whose_port_another_on_its_master_has(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = ["00", "00", "00", "01", "00"]
    monkeypatch.setattr(ports.secrets, "token_hex", lambda size: drawn.pop(0))
    monkeypatch.setattr(ports, "port_of", lambda run: 20_000 + int(run[-1]))
    spec = job_spec({"command": ["torchrun", "a.py"]}).named().kept()
    jobs = {1: record(spec=spec), 2: record(id=2, spec=spec), 3: record(id=3)}
    held = {1: attempt(allocation=(("a", (0,)), ("b", (0,))), identity="00")}
    book: Any = SimpleNamespace(jobs=jobs, attempts=held)
    assert ports.identity_for(book, 2, (("b", (1,)),)) == "00"  # another master
    assert ports.identity_for(book, 3, (("a", (1,)),)) == "00"  # meets nowhere
    assert ports.identity_for(book, 2, (("a", (1,)),)) == "01"
    assert drawn == ["00"]


def test_a_port_in_use_keeps_the_master_from_starting(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use") as error:
            request_of(member("./a", rank=0, port=port), tmp_path)
        assert error.value.filename == f"port {port}"
        request_of(member("./a", rank=1, port=port), tmp_path)
        request_of(one("./a", port=port), tmp_path)
    check_port(port)


# -- members of an attempt -----------------------------------------------------------------------------------


def node(name: str, gpus: int, address: str = "") -> NodeRecord:
    return NodeRecord(name, tuple(Gpu(n, f"{name}{n}", "V100") for n in range(gpus)), address=address)


def test_an_attempt_has_a_spec_for_each_node() -> None:
    nodes = {"a": node("a", 2, "10.0.0.1"), "b": node("b", 4)}
    held = attempt(number=2, allocation=(("b", (0, 3)), ("a", (1,))), identity="ab")
    spec = job_spec({"command": ["./a"], "slurm_env": True, "per": "gpu", "gpus": 3, "retries": 1}).named().kept()
    first, second = run_specs(record(spec=spec, name="n"), held, nodes, resumes=True, environment={"A": "1"})
    assert (first.run, first.rank, first.gpus, first.gpu_uuids) == ("1.2-ab", 0, (0, 3), ("b0", "b3"))
    assert (second.run, second.rank, second.gpus, second.gpu_uuids) == ("1.2.1-ab", 1, (1,), ("a1",))
    assert first.peers == second.peers == (Peer("b", "", 2), Peer("a", "10.0.0.1", 1))
    assert first.port == second.port == ports.port_of("1.2-ab")
    assert (first.hold, first.per_gpu, first.resumes, first.env["A"]) == (True, True, True, "1")
    slurm = {name[6:]: text for name, text in second.env.items() if name.startswith("SLURM_")}
    assert (slurm["NNODES"], slurm["NTASKS"], slurm["TASKS_PER_NODE"], slurm["NODELIST"]) == ("2", "3", "2,1", "b,a")
    assert (slurm["NODEID"], slurm["PROCID"], slurm["GPUS"], slurm["GPUS_ON_NODE"]) == ("1", "2", "3", "1")
    assert (first.env["SLURMD_NODENAME"], second.env["SLURMD_NODENAME"]) == ("b", "a")
    for name in (first.run, second.run):
        assert run_name_of(name) is not None


def test_one_task_on_each_node_in_slurm_s_words() -> None:
    nodes = {name: node(name, 2) for name in "abc"}
    held = attempt(allocation=tuple((name, (0, 1)) for name in "abc"))
    spec = job_spec({"command": ["./a"], "slurm_env": True, "gpus": 6}).named().kept()
    specs = run_specs(record(spec=spec), held, nodes, resumes=False)
    assert [(s.env["SLURM_PROCID"], s.env["SLURM_NTASKS"], s.env["SLURM_TASKS_PER_NODE"]) for s in specs] == [
        (str(rank), "3", "1(x3)") for rank in range(3)
    ]


def test_a_node_or_gpu_that_is_gone() -> None:
    for allocation, words in ((("b", (0,)), "node b is no longer there"), (("a", (5,)), "node a no longer has GPU 5")):
        with pytest.raises(InputError, match=words):
            run_specs(record(), attempt(allocation=(allocation,)), {"a": node("a", 1)}, resumes=False)
