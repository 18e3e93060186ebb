"""Hooks enter every job that gpuloom starts, unless the job or its environment switches them off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_views import attempt, record
from gpuloom.core.job import Gpu, NodeRecord
from gpuloom.executors.node import RunSpec
from gpuloom.executors.prepare import request_of
from gpuloom.live.dispatch.launch import run_specs
from gpuloom.live.submission.spec import job_spec
from gpuloom.training.inject import DOOR, PACKAGE, within


def one(*command: str, **given: Any) -> RunSpec:
    plain: dict[str, Any] = {"run": "7.2-ab", "workdir": "/", "env": {}, "gpus": (0,), "gpu_uuids": ("G0",)}
    return RunSpec(**{**plain, "command": command or ("python", "a.py"), **given})


def hooks_of(spec: RunSpec, runs: Path) -> tuple[str | None, str | None]:
    env = request_of(spec, runs).env
    return env.get("PYTHONPATH"), env.get("GPULOOM_HOOKS")


def test_a_job_gets_them_before_its_own_path(tmp_path: Path) -> None:
    folder = f"{request_of(one(), tmp_path).directory}/hooks"
    assert hooks_of(one(), tmp_path) == (str(DOOR), folder)
    assert hooks_of(one(env={"PYTHONPATH": "/mine"}), tmp_path) == (f"{DOOR}:/mine", folder)


@pytest.mark.parametrize("given", [{"hooks": False}, {"env": {"GPULOOM_HOOKS": "off"}}])
def test_who_switches_them_off_has_none(given: dict[str, Any], tmp_path: Path) -> None:
    assert hooks_of(one(**given), tmp_path) == (None, "off")


def test_a_job_submitted_from_within_another_gets_no_folder_of_that(tmp_path: Path) -> None:
    outer = {"GPULOOM_HOOKS": "/outer", "PYTHONPATH": str(DOOR)}
    assert hooks_of(one(env=outer), tmp_path)[1] == f"{request_of(one(), tmp_path).directory}/hooks"
    assert hooks_of(one(env=outer, hooks=False), tmp_path)[1] == "off"


def test_the_field_of_a_job_reaches_its_run() -> None:
    node = NodeRecord("a", (Gpu(0, "G0", "V100"),))
    for asked in (None, True, False):
        spec = job_spec({"command": ["./a"], "hooks": asked}).named().kept()
        (found,) = run_specs(record(spec=spec), attempt(allocation=(("a", (0,)),)), {"a": node}, resumes=False)
        assert found.hooks is asked


def test_a_container_has_them_only_where_asked_for(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    given: dict[str, Any] = {"container": "image", "env": {"PATH": str(tmp_path)}, "workdir": str(tmp_path)}
    left_out = request_of(one(**given), tmp_path)
    assert left_out.env["GPULOOM_HOOKS"] == "off"
    assert str(PACKAGE) not in " ".join(left_out.argv)
    asked = request_of(one(**given, hooks=True), tmp_path)
    assert f"type=bind,source={PACKAGE},target={PACKAGE}" in asked.argv
    assert asked.argv[asked.argv.index("image") + 1] == "/bin/sh"
    assert "PYTHONPATH" not in asked.env  # or the image's own would be lost


@pytest.mark.parametrize("of_image", ["", "/image"])
def test_within_a_container_the_path_of_the_image_stays_behind_ours(of_image: str) -> None:
    command = within([sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"])
    env = {"PYTHONPATH": of_image} if of_image else {}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == str(DOOR) + (f":{of_image}" if of_image else "") + "\n", done.stderr
