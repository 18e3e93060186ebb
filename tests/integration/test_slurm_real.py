"""Slurm's commands and a pilot's script on a real Slurm."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuloom.slurm.commands import Slurm, SlurmError
from gpuloom.slurm.script import TOKEN, Request, options_of, script_of
from slurm_kit import CPUS, GPUS, NODES, RealSlurm, wait

pytestmark = pytest.mark.slow

REQUEST = Request("gpuloom-test", "http://127.0.0.1:1", sys.executable, GPUS, life_s=600.0)


def test_nodes_and_partitions(slurm: RealSlurm) -> None:
    there = Slurm(env=slurm.env)
    assert there.default_partition() == "gpu"
    nodes = there.nodes("urgent")
    assert [(node.name, node.cpus) for node in nodes] == [(f"n{number}", CPUS) for number in range(NODES)]
    assert {node.gpus for node in nodes} == {GPUS if slurm.gpus else 0}
    assert set(nodes[0].partitions) == {"gpu", "urgent"}
    assert there.nodes("nope") == []
    assert "slurm" in there.version()
    assert not there.ends_all(), "it follows processes by their parents (ProctrackType)"


def test_a_job_by_json_and_as_a_table(slurm: RealSlurm) -> None:
    there = Slurm(env=slurm.env)
    number = there.submit("#!/bin/sh\nsleep 600\n", ["--job-name=two", "-N2", "--time=5", "--output=/dev/null"], {})
    running = wait(lambda: next((job for job in there.jobs("two") if job.running), None), "its start")
    assert (running.id, running.nodes, running.limit_s) == (number, ("n0", "n1"), 300.0)
    assert there.job(number) == replace(running, gpus=None)
    there.cancel(number)
    ended = wait(lambda: next((job for job in there.jobs("two") if job.ended), None), "its end")
    assert ended.states[0] == "CANCELLED"
    there.cancel(number)  # ended already: no error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "nope"], "invalid partition specified: nope"),
        (["--gres=gpu:9"], "Requested node configuration is not available"),
        (["--time=soon"], "Invalid --time specification"),
    ],
)
def test_what_slurm_refuses(slurm: RealSlurm, options: list[str], words: str) -> None:
    if "gres" in options[0] and not slurm.gpus:
        pytest.skip("no devices here that stand in for GPUs")
    with pytest.raises(SlurmError, match=words):
        Slurm(env=slurm.env).submit("#!/bin/sh\ntrue\n", options, {})


def test_each_node_of_a_pilot_runs_the_node_process_with_its_name_devices_and_token(
    slurm: RealSlurm, tmp_path: Path
) -> None:
    """In place of the node process something that writes down what it was given."""
    stub = tmp_path / "python"
    stub.write_text(
        "#!/bin/sh\n"
        f"for word; do case $word in /*/token) token=$word;; esac; done\n"
        f'echo "$(cat $token) $(stat -c %a $token) $CUDA_VISIBLE_DEVICES ${{{TOKEN}:-unset}} $*"'
        f" > {tmp_path}/$SLURMD_NODENAME.tmp\n"
        f"mv {tmp_path}/$SLURMD_NODENAME.tmp {tmp_path}/$SLURMD_NODENAME\n"
        "exec sleep 600\n"
    )
    stub.chmod(0o755)
    request = replace(REQUEST, python=str(stub), slots=not slurm.gpus)
    number = Slurm(env=slurm.env).submit(script_of(request), options_of(request, 2), {TOKEN: "secret"})
    for name in ("n0", "n1"):
        wait(lambda name=name: (tmp_path / name).exists(), f"the step on {name}")
        token, mode, *rest = (tmp_path / name).read_text().split()
        assert (token, mode) == ("secret", "600")
        if slurm.gpus:
            assert rest[0] == "0,1"
        assert "unset" in rest, "the token does not stay in the environment"
        assert rest[rest.index("--name") + 1] == name
    Slurm(env=slurm.env).cancel(number)
    wait(lambda: slurm.state(number) == "CANCELLED", "its end")
