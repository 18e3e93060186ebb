"""Kernel profiles of jobs: what a spec may name, what is found, and what the node makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuloom
from fake_views import attempt, record
from gpuloom.core.book import Book
from gpuloom.core.errors import InputError
from gpuloom.core.job import DeviceKind, Gpu, NodeRecord, NodeSource
from gpuloom.live.dispatch.launch import run_specs
from gpuloom.live.submission.admission import Admission
from gpuloom.live.submission.spec import job_spec
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.sharing.job_profile import check_job_profile, here, job_profile, named_profile
from gpuloom.sharing.profiles import library_folder, save
from gpuloom.sharing.shipped import shipped
from gpuloom.sharing.start import Ability, under_the_shim

GATED = Ability(True, True, "")
NODE = NodeRecord("a", (Gpu(0, "G0", "V100"),), kind=DeviceKind.GPU)


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with one profile of the user's."""
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "library"))
    return save(replace(shipped("resnet50-train"), name="bert"), library_folder())


def test_what_a_job_goes_by(library: Path) -> None:
    assert job_profile("k/a.kernels.jsonl", None, "/w") == "/w/k/a.kernels.jsonl"
    assert job_profile("a.kernels.jsonl", "bert", "/w") == "/w/a.kernels.jsonl"
    assert job_profile("./trace.json", None, "/w") == "/w/./trace.json"
    assert job_profile("/k/trace.json", None, "/w") == "/k/trace.json"
    assert job_profile("bert", "resnet50", "/w") == str(library)
    assert job_profile("resnet50", None, "/w") == "resnet50"
    assert job_profile(None, "bert", "/w") == str(library)
    assert job_profile("bert:30%", None, "/w") == str(library)
    assert job_profile("k/a.kernels.jsonl:15rps", None, "/w") == "/w/k/a.kernels.jsonl"
    for model in (None, "vgg", "resnet50", "a/b", "../library/kernels/bert", "\0", "é" * 200):
        assert job_profile(None, model, "/w") == ""


def test_as_a_user_would_write_it_anywhere() -> None:
    assert named_profile("k/a.kernels.jsonl:15rps", None, "/w") == "/w/k/a.kernels.jsonl:15rps"
    assert named_profile("bert:30%", "vgg", "/w") == "bert:30%"
    assert (named_profile(None, "bert", "/w"), named_profile(None, "vgg", "/w")) == ("bert", "")


def test_one_that_is_taken_while_the_job_runs(library: Path, tmp_path: Path) -> None:
    there = library.with_name("vgg.kernels.jsonl")
    assert job_profile("auto", "bert", "/w") == job_profile("auto:30%", "bert", "/w") == str(library)
    assert job_profile("auto", "vgg", "/w") == f"take:{there}"
    assert (named_profile("auto:30%", "bert", "/w"), named_profile("auto", "vgg", "/w")) == ("bert:30%", "")
    check_job_profile("auto", "/w")
    # A node that does not see the head's library keeps it in its own.
    assert here(f"take:{there}") == here("take:/of/the/head/vgg.kernels.jsonl") == f"take:{there}"
    argv, _ = under_the_shim(GATED, 7, "high", f"take:{there}", ["a"], {})
    assert argv[-4:] == ("--take-profile", str(there), "--", "a")
    for model, told in ((None, "give model"), ("a/b", "can't be a profile's name")):
        with pytest.raises(InputError, match=told):
            job_spec({"command": ["x"], "share_class": "high", "kernel_profile": "auto:30%", "model": model})


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("brt", "no kernel profile brt, and no file of that name; did you mean 'bert'?"),
        ("a.kernels.jsonl", "kernel_profile a.kernels.jsonl: no such file in {work}; gpuloom share profile --output"),
        ("/no/a.kernels.jsonl", "kernel_profile /no/a.kernels.jsonl: no such file; gpuloom"),
        ("./bad.kernels.jsonl", "bad.kernels.jsonl"),
        ("./", "no such file"),
    ],
)
def test_what_is_refused_when_it_is_submitted(named: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "bad.kernels.jsonl").write_text('{"format": "gpuloom-kernels"}\n')
    book = Book()
    book.nodes["a"] = replace(NODE, source=NodeSource.HERE)
    spec = job_spec({"command": ["x"], "share_class": "high", "kernel_profile": named, "workdir": str(tmp_path)})
    with pytest.raises(InputError) as caught:
        Admission(book, lambda job: None).checks().spec(spec, "job 'x'")
    assert str(caught.value).startswith("job 'x': ")
    assert told.format(work=tmp_path) in str(caught.value)
    # Where no job runs on this machine, what it has says nothing.
    book.nodes["a"] = replace(NODE, source=NodeSource.JOINED)
    Admission(book, lambda job: None).checks().spec(spec, "job 'x'")


def test_what_is_taken(tmp_path: Path) -> None:
    save(replace(shipped("resnet50"), name="own"), tmp_path)
    for named in (
        "bert",
        "bert:20%",
        "resnet50",
        "own.kernels.jsonl",
        "own.kernels.jsonl:3rps",
        str(tmp_path / "own.kernels.jsonl"),
    ):
        check_job_profile(named, str(tmp_path))


def run_of(**fields: Any) -> str:
    """The profile in what is sent to the node."""
    spec = job_spec({"command": ["x"], "workdir": "/w", **fields}).kept()
    job = record(spec=spec)
    (one,) = run_specs(job, attempt(allocation=(("a", (0,)),)), {"a": NODE}, resumes=False)
    return one.kernel_profile


def test_what_is_sent_to_the_node(library: Path) -> None:
    assert run_of(share_class="high", kernel_profile="a.kernels.jsonl") == "/w/a.kernels.jsonl"
    assert run_of(task_type="training", model="bert") == str(library)
    assert run_of(task_type="training") == ""
    assert run_of(model="bert") == ""  # shares no GPU
    assert run_of(task_type="training", model="bert", container="image") == ""


def test_a_node_that_does_not_see_the_file_has_its_own_of_that_name(library: Path) -> None:
    def profile(found: str) -> list[str]:
        argv, _ = under_the_shim(GATED, 7, "high", found, ["a"], {})
        head = [sys.executable, "-I", "-m", "gpuloom", "share", "run", "--class", "high", "--name", "job 7"]
        assert list(argv[: len(head)]) == head
        return list(argv[len(head) :])

    assert profile("/of/the/head/bert.kernels.jsonl") == ["--profile", str(library), "--profile-if-there", "--", "a"]
    assert profile("resnet50") == ["--profile", "resnet50", "--profile-if-there", "--", "a"]
    assert profile("") == ["--", "a"]
    assert here("/of/the/head/vgg.kernels.jsonl") == "/of/the/head/vgg.kernels.jsonl"
    assert here("/of/the/head/resnet50.kernels.jsonl") == "resnet50"
    assert here(str(library)) == str(library)


def test_a_model_that_is_no_name_of_a_file_stops_no_scheduler() -> None:
    it = Rehearsal("fifo", models=["V100"] * 2)
    jobs = it.submit({"model": "\ud800", "share_class": "high"}, {"command": ["b"]})
    assert [it.service.job(job)["state"] for job in jobs] == ["running", "running"]


def test_a_job_finds_gpuloom_where_the_scheduler_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PYTHONPATH, too, though the starter heeds nothing of the job's environment."""
    source = Path(gpuloom.__file__).parents[1]
    monkeypatch.chdir(source.parent)
    monkeypatch.setenv("PYTHONPATH", os.path.relpath(source))
    argv, _ = under_the_shim(GATED, 7, "high", "", ["true"], {"PYTHONPATH": str(tmp_path)})
    (tmp_path / "gpuloom").mkdir()
    (tmp_path / "gpuloom" / "__init__.py").write_text("raise SystemExit('the job has another one')\n")
    head = argv[: argv.index("share")]
    assert str(source) in head[-1]
    done = subprocess.run([*head, "--version"], cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("gpuloom, version")
