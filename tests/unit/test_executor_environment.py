"""Virtual environments, conda and containers become command lines and variables."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from gpuloom.core.errors import InputError
from gpuloom.executors.containers import limited, named_container
from gpuloom.executors.environment import prepared

ARGV = ("python", "train.py", "--lr", "0.1")


def program(place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("#!/bin/sh\n")
    place.chmod(0o755)
    return place


def test_nothing_asked_nothing_changed(tmp_path: Path) -> None:
    env = {"PATH": "/bin", "X": "1"}
    assert prepared(ARGV, env, cwd=str(tmp_path)) == (ARGV, env)


def test_venv(tmp_path: Path) -> None:
    program(tmp_path / "venv" / "bin" / "python")
    env = {"PATH": "/bin", "PYTHONHOME": "/odd"}
    argv, found = prepared(ARGV, env, venv="venv", cwd=str(tmp_path))
    assert argv == ARGV
    assert found == {"PATH": f"{tmp_path}/venv/bin:/bin", "VIRTUAL_ENV": f"{tmp_path}/venv"}
    assert env["PYTHONHOME"] == "/odd"
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a virtual environment: it has no bin/python"):
        prepared(ARGV, {}, venv="empty", cwd=str(tmp_path))
    with pytest.raises(InputError, match=r"there is no directory .*create it with `python -m venv"):
        prepared(ARGV, {}, venv="missing", cwd=str(tmp_path))


def test_conda_by_directory(tmp_path: Path) -> None:
    program(tmp_path / "torch" / "bin" / "python")
    _, env = prepared(ARGV, {"PATH": "/bin"}, conda="./torch", cwd=str(tmp_path))
    assert env["CONDA_PREFIX"] == f"{tmp_path}/torch"
    assert env["PATH"] == f"{tmp_path}/torch/bin:/bin"
    (tmp_path / "empty").mkdir()
    for name, text in (("./missing", "there is no directory"), ("./empty", "it has no bin")):
        with pytest.raises(InputError, match=text):
            prepared(ARGV, {"PATH": "/bin"}, conda=name, cwd=str(tmp_path))


def test_conda_by_name(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": str(tmp_path / "none")}
    listed = program(tmp_path / "far" / "listed" / "bin" / "python").parents[1]
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{listed}\n/gone/listed\n")
    _, env = prepared(ARGV, home, conda="listed", cwd="/")
    assert (env["CONDA_PREFIX"], env["CONDA_DEFAULT_ENV"]) == (str(listed), "listed")
    conda = program(tmp_path / "conda" / "bin" / "conda")
    program(tmp_path / "conda" / "envs" / "jax" / "bin" / "python")
    _, env = prepared(ARGV, {**home, "CONDA_EXE": str(conda)}, conda="jax", cwd="/")
    assert env["CONDA_PREFIX"] == f"{tmp_path}/conda/envs/jax"
    (tmp_path / "conda" / "condabin").mkdir()
    (tmp_path / "conda" / "conda-meta").mkdir()
    _, env = prepared(ARGV, {**home, "CONDA_EXE": str(conda)}, conda="base", cwd="/")
    assert env["CONDA_PREFIX"] == f"{tmp_path}/conda"
    argv, _ = prepared(ARGV, {**home, "PATH": str(conda.parent)}, conda="other", cwd="/")
    assert argv == (str(conda), "run", "--no-capture-output", "-n", "other", *ARGV)
    with pytest.raises(InputError, match="environment 'other' was not found"):
        prepared(ARGV, home, conda="other", cwd="/")


def test_apptainer(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "apptainer")
    env = {"PATH": str(tool.parent)}
    argv, found = prepared(ARGV, env, container="torch.sif", cwd="/data/me", gpus=(0, 1), gpu_uuids=("GPU-a", "GPU-b"))
    assert argv == (str(tool), "exec", "--nv", "--bind", "/data/me:/data/me", "--pwd", "/data/me", "torch.sif", *ARGV)
    assert found == env
    argv, _ = prepared(ARGV, env, container="torch.sif", cwd="/data/me", gpus=(0,), kind="cpu", directory="/runs/1")
    assert "--nv" not in argv
    assert argv[2:6] == ("--bind", "/data/me:/data/me", "--bind", "/runs/1:/runs/1")
    assert named_container(argv) is None
    assert limited(argv, cpus=2, memory_mib=10) == argv


def test_a_mount_with_a_comma_or_a_quote_stands_in_quotes(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "podman")
    env = {"PATH": str(tool.parent)}
    for place, field in (('/a"b', '"/a""b"'), ("/a b", "/a b"), ("/a,b", '"/a,b"')):
        argv, _ = prepared(ARGV, env, container="torch", cwd=place, run="12.1")
        assert ("--mount", f"type=bind,source={field},target={field}") in list(pairwise(argv))


def test_docker(tmp_path: Path) -> None:
    tool = program(tmp_path / "bin" / "docker")
    env = {"PATH": str(tool.parent), "HOME": "/home/me", "EPOCHS": "3"}
    argv, _ = prepared(ARGV, env, container="torch", cwd="/a,b", gpus=(0, 1), gpu_uuids=("GPU-a", "GPU-b"), run="12.1")
    assert argv[:2] == (str(tool), "run")
    assert argv[-5:] == ("torch", *ARGV)
    words = list(pairwise(argv))
    assert ("--gpus", '"device=GPU-a,GPU-b"') in words
    assert ("--mount", 'type=bind,source="/a,b",target="/a,b"') in words
    assert ("--user", f"{os.getuid()}:{os.getgid()}") in words
    for name in ("EPOCHS", "GPULOOM_RUN", "GPULOOM_NOTICE_FILE", "CUDA_VISIBLE_DEVICES"):
        assert ("--env", name) in words
    assert ("--env", "HOME") not in words
    named = named_container(argv)
    assert named is not None
    assert named[0] == str(tool)
    assert named[1].startswith("gpuloom-12.1-")
    assert named[1] != (named_container(prepared(ARGV, env, container="torch", cwd="/", run="12.1")[0]) or ("", ""))[1]
    bounded = limited(argv, cpus=1.5, memory_mib=512)
    assert named_container(bounded) == named
    assert bounded[6:12] == ("--cpus", "1.5", "--memory", "512m", "--memory-swap", "512m")
    indexed, _ = prepared(ARGV, {**env, "CUDA_VISIBLE_DEVICES": "7"}, container="torch", cwd="/", gpus=(2, 3))
    assert '"device=2,3"' in indexed
    assert "CUDA_VISIBLE_DEVICES" not in indexed  # within, they are 0 and 1


def test_podman_comes_before_docker(tmp_path: Path) -> None:
    program(tmp_path / "docker")
    tool = program(tmp_path / "podman")
    argv, _ = prepared(
        ARGV, {"PATH": str(tmp_path)}, container="torch", cwd="/", gpus=(0, 3), gpu_uuids=("GPU-a", "GPU-b")
    )
    assert argv[0] == str(tool)
    assert "nvidia.com/gpu=GPU-a" in argv
    assert "nvidia.com/gpu=GPU-b" in argv


def test_no_container_tool(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of apptainer, singularity, podman, docker is in PATH"):
        prepared(ARGV, {"PATH": str(tmp_path)}, container="torch", cwd="/")


def test_names_of_others_are_no_containers_of_ours() -> None:
    assert named_container(("docker", "run", "--rm", "--init", "--name", "mine", "image")) is None
    assert named_container(("docker", "ps")) is None
    assert named_container(ARGV) is None
