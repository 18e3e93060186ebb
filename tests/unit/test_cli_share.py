"""`gpuloom share`: what run refuses and where it goes on without the shim, how profile ends, what diff counts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from gpuloom.cli.main import cli
from gpuloom.cli.share import profile as share_profile
from gpuloom.cli.share import profiles as share_profiles
from gpuloom.cli.share import run as share_run
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.executors.runner import loop as runner_loop
from gpuloom.executors.runner.loop import Troubles
from gpuloom.sharing import find


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        *[("gpu", value, "") for value in ("0", "9999", "GPU-a1-b2", "MIG-GPU-a/1/0")],
        *[
            ("gpu", value, f"--gpu is {value!r}: must be one GPU's index or its UUID (GPU-..., MIG-...)")
            for value in ("", "0,1", "10000", "-1", "A100")
        ],
        *[("max_hold_s", value, "") for value in (0.001, 3600.0)],
        *[
            ("max_hold_s", value, f"--max-hold is {value:g} s: must be above 0 and at most an hour")
            for value in (0.0, -1.0, 3601.0)
        ],
        ("name", "job 1", ""),
        *[("name", value, f"--name is {value!r}: must be printable text, not empty") for value in ("", "  ", "a\nb")],
        ("log", Path("log"), ""),
        ("log", Path(), "--log .: can't be written (Is a directory); name another file"),
    ],
)
def test_what_run_refuses(option: str, value: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"gpu": None, "max_hold_s": None, "name": None, "log": None, option: value}
    if not said:
        share_run.check(**given)
        assert Path("log").exists() == (option == "log")
        return
    with pytest.raises(InputError) as error:
        share_run.check(**given)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("words", "driver", "control", "said", "environment"),
    [
        ([], Path("/d.so"), None, "", {"SHIM": "high /d.so "}),
        (["--gpu", "3", "--name", "n"], Path("/d.so"), None, "", {"SHIM": "high /d.so n", "CUDA_VISIBLE_DEVICES": "3"}),
        (["--mps"], Path("/d.so"), None, "gpuloom: without MPS: nvidia-cuda-mps-control or nvidia-cuda-mps-server is "
         "not on the PATH\n", {"SHIM": "high /d.so "}),
        (["--gpu-memory", "2GiB"], Path("/d.so"), None, "", {"SHIM": "high /d.so 2048"}),
        (["--mps"], Path("/d.so"), "/c", "gpuloom: without MPS: give one GPU (--gpu)\n", {"SHIM": "high /d.so "}),
        (["--no-mps", "--gpu", "3"], Path("/d.so"), "/c", "", {"SHIM": "high /d.so ", "CUDA_VISIBLE_DEVICES": "3"}),
        ([], None, None, "gpuloom: not shared: no NVIDIA driver (libcuda.so.1) was found; set GPULOOM_SHARE_DRIVER to "
         "where it is\n", {}),
    ],
)  # fmt: skip
def test_where_it_runs(
    words: list[str],
    driver: Path | None,
    control: str | None,
    said: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[Any] = []
    for name in ("GPULOOM_SHARE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(share_run.shim, "find_driver", lambda base: driver)
    monkeypatch.setattr(share_run.shim, "shared_folder", lambda base: Path("/s"))
    monkeypatch.setattr(
        share_run.shim,
        "program_environment",
        lambda settings, base, **how: {
            **base,
            "SHIM": f"{settings.klass} {how['driver']} {settings.name}{settings.memory_mib or ''}",
        },
    )
    monkeypatch.setattr(share_run.build, "shim_path", lambda driver: Path("/shim.so"))
    monkeypatch.setattr(share_run.mps, "control", lambda: control)
    monkeypatch.setattr(share_run.mps, "gpu_of", lambda made: made.get("CUDA_VISIBLE_DEVICES"))
    monkeypatch.setattr(share_run, "replace", lambda command, environment: ran.append((command, dict(environment))))
    given = ["share", "run", "--class", "high", *words, "--", "train", "--gpu", "x"]
    done = CliRunner().invoke(cli, given, catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, said)
    ((command, made),) = ran
    assert command == ("train", "--gpu", "x")
    assert {name: made[name] for name in ("SHIM", "CUDA_VISIBLE_DEVICES") if name in made} == environment
    if said:
        with pytest.raises(InputError) as error:
            CliRunner().invoke(cli, [*given[:4], "--require", *given[4:]], catch_exceptions=False)
        why = said.removeprefix("gpuloom: not shared: ").removeprefix("gpuloom: without MPS: ").strip()
        assert str(error.value) == (f"--mps: {why}; --no-mps goes without it" if "MPS" in said else why)


def test_a_class_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(cli, ["share", "run", "--", "train"])
    assert done.exit_code == 2
    assert "give --class, or what determines the class: --task-type, --importance, --real-time" in done.stderr
    classes: list[str] = []
    monkeypatch.setattr(share_run.shim, "find_driver", lambda base: Path("/d"))
    monkeypatch.setattr(share_run.shim, "shared_folder", lambda base: Path("/s"))
    monkeypatch.setattr(
        share_run.shim, "program_environment", lambda settings, base, **how: classes.append(settings.klass) or {}
    )
    monkeypatch.setattr(share_run.build, "shim_path", lambda driver: Path("/shim.so"))
    monkeypatch.setattr(share_run.mps, "control", lambda: None)
    monkeypatch.setattr(share_run, "replace", lambda command, environment: None)
    for words in (["--task-type", "training"], ["--importance", "high"], ["--real-time"]):
        assert CliRunner().invoke(cli, ["share", "run", *words, "--", "train"]).exit_code == 0
    assert classes == ["best-effort", "high", "high"]


@pytest.mark.parametrize(
    ("code", "error", "ends", "told"),
    [
        (0, None, 0, 0),
        (3, None, 3, 3),
        (-9, None, -9, 137),
        (0, "no trace", "no trace", 0),
        (3, "no trace", 3, 3),
    ],
)
def test_how_profile_ends(
    code: int,
    error: str | None,
    ends: Any,
    told: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Watch:
        def __init__(self, folder: Path, *how: Any) -> None:
            self.profile = None if error else SimpleNamespace(name="p")
            self.where, self.error = "/w", None
            self.ended = SimpleNamespace(set=lambda: done.append("set"))

        def start(self) -> None:
            done.append("start")

        def join(self) -> None:
            done.append("join")

    done: list[str] = []
    ended: list[int] = []
    monkeypatch.setattr(share_profile, "_Watch", Watch)
    monkeypatch.setattr(share_profile, "attend", lambda command, environment: done.append("ran") or code)
    monkeypatch.setattr(share_profile, "end_as", ended.append)
    monkeypatch.setattr(share_profile.profiler, "prepare", lambda folder, request, environment: {})
    monkeypatch.setattr(share_profile.profiler, "why_not", lambda folder, request: "no trace")
    monkeypatch.setattr(share_profiles, "_summary", lambda profile, where: {"name": profile.name, "from": where})
    call = share_profile.profile.callback
    assert call is not None
    given: dict[str, Any] = {
        "name": "p", "warm_up": 1, "iterations": 1, "seconds": None, "by": "auto", "class_threshold": 0.6,
        "output": tmp_path / "o", "overwrite": False, "as_json": True, "command": ("train",),
    }  # fmt: skip
    if isinstance(ends, str):
        with pytest.raises(GpuloomError, match=ends):
            call(**given)
        assert ended == []
    else:
        call(**given)
        assert ended == [ends]
    assert done == ["start", "ran", "set", "join"]
    said = capsys.readouterr()
    first = {"error": error} if error else {"name": "p", "from": "/w"}
    assert json.loads(said.out) == {**first, "exit_code": told}
    assert said.err == (f"gpuloom: no profile: {error}\n" if error and code else "")
    for change, text in (
        ({"seconds": 0.0}, "--seconds must be above 0"),
        ({"output": tmp_path / "none" / "o"}, f"--output {tmp_path}/none/o: there is no folder {tmp_path}/none"),
    ):
        with pytest.raises(InputError) as refused:
            call(**{**given, **change})
        assert str(refused.value) == text


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (("python", "a/serve.py", "b.py"), "serve"),
        (("python", "-m", "pkg.train"), "train"),
        (("python", "-m", "torch.distributed.run", "t.py"), "t"),
        (("python", "-m"), "python"),
        (("/bin/server", "x"), "server"),
    ],
)
def test_the_name_of_a_profile(command: tuple[str, ...], title: str) -> None:
    assert share_profile._title(command) == title


def kernels(name: str, *found: tuple[str, int]) -> Any:
    each = [SimpleNamespace(name=kernel, duration_ns=ns, sm_slots=4, klass="compute") for kernel, ns in found]
    return SimpleNamespace(name=name, kernels=each, duration_ns=sum(ns for _, ns in found), device="")


def test_profiles_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "one": kernels("one", ("a", 1_000_000), ("a", 1_000_000), ("b", 500_000), ("c", 3_000_000)),
        "two": kernels("two", ("a", 1_500_000), ("c", 3_000_000), ("d", 8_000_000)),
    }
    monkeypatch.setattr(find, "find_profile", lambda name, folder: (known[name], "here"))

    def run(*words: str) -> str:
        done = CliRunner().invoke(cli, ["share", "profiles", "diff", "one", "two", *words], catch_exceptions=False)
        return done.stdout

    assert json.loads(run("--json", "--top", "3")) == {
        "total_ns": [5_500_000, 12_500_000],
        "kernels": [
            {"name": "d", "launches": [0, 1], "duration_ns": [0, 8_000_000]},
            {"name": "a", "launches": [2, 1], "duration_ns": [2_000_000, 1_500_000]},
            {"name": "b", "launches": [1, 0], "duration_ns": [500_000, 0]},
        ],
    }
    assert run("--top", "2").splitlines() == [
        "before: one, 5.500 ms, unknown GPU",
        "after:  two, 12.500 ms, unknown GPU (x 2.273)",
        "",
        "kernel  launches before  after  ms before  after  change",
        "d                     0      1      0.000  8.000  +8.000",
        "a                     2      1      2.000  1.500  -0.500",
        "and 2 more kernels (--top)",
    ]
    assert "more" not in run("--top", "4")


def test_trouble_is_told_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(runner_loop, "log", logged.append)
    troubles, told = Troubles(), list[str]()
    troubles.changed = told.append
    for key, problem in (("a", "full"), ("a", "full"), ("b", "full"), ("b", ""), ("c", ""), ("a", "")):
        troubles.note(key, problem)
    assert told == ["full", ""]
    assert logged == ["full", "full", "in order again"]
