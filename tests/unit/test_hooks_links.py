"""Where trackers have a run: from the script's own calls into a file, and from there into `gpuloom show`."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.files.hook_records import Hooked, Link, Tracker, hooked
from gpuloom.live.views.measured import hooks_view

links: Any = importlib.import_module("_gpuloom_hooks.links")
hooks: Any = importlib.import_module("_gpuloom_hooks")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPULOOM_HOOKS", str(tmp_path))
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(links, "_told", set())
    monkeypatch.setattr(hooks, "switched_off", set())
    return tmp_path


def read(place: Path) -> list[tuple[str, str]]:
    return [(link.tracker.value, link.where) for link in hooked(str(place)).links]


def test_wandb_by_its_address_or_its_folder_where_it_is_offline(place: Path) -> None:
    runs = [SimpleNamespace(url="https://wandb.ai/a/b/runs/c", dir="/d"), SimpleNamespace(url=None, dir="/d"), None]
    module = SimpleNamespace(init=lambda **_: runs.pop(0))
    links.install_wandb(module)
    assert module.init(project="a").url.startswith("https")
    module.init()
    assert module.init() is None
    assert read(place) == [("wandb", "https://wandb.ai/a/b/runs/c"), ("wandb", "/d")]


def test_mlflow_by_its_server_without_a_password(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(info=SimpleNamespace(experiment_id="7", run_id="ab"))

    class MlflowClient:
        tracking_uri = "https://me:secret@ml.example:5000/mlflow/"

        def create_run(self, experiment: str) -> Any:
            return run

    links.install_mlflow(SimpleNamespace(MlflowClient=MlflowClient))
    assert MlflowClient().create_run("7") is run
    fluent = SimpleNamespace(start_run=lambda run_id=None: run)
    monkeypatch.setitem(links.sys.modules, "mlflow", SimpleNamespace(get_tracking_uri=lambda: "file:///x/mlruns"))
    links.install_mlflow_start(fluent)
    fluent.start_run(run_id="ab")
    assert read(place) == [
        ("mlflow", "https://ml.example:5000/mlflow/#/experiments/7/runs/ab"),
        ("mlflow", "file:///x/mlruns run ab"),
    ]


def test_tensorboard_by_its_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)

    class SummaryWriter:
        def __init__(self, log_dir: Any) -> None:
            self.log_dir = log_dir

    links.install_tensorboard(SimpleNamespace(SummaryWriter=SummaryWriter))
    for where in ("runs/a", Path("runs/b"), "gs://bucket/c", "runs/a"):
        SummaryWriter(where)
    module = SimpleNamespace(create_file_writer_v2=lambda logdir: None)
    links.install_tensorflow(module)
    module.create_file_writer_v2(str(place / "tf"))
    module.create_file_writer_v2(object())
    expected = [str(place / "runs/a"), str(place / "runs/b"), "gs://bucket/c", str(place / "tf")]
    assert read(place) == [("tensorboard", where) for where in expected]


def test_later_ranks_tell_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    links.tell("wandb", "https://x")
    monkeypatch.setenv("RANK", "0")
    links.tell("wandb", "")
    monkeypatch.delenv("GPULOOM_HOOKS")
    links.tell("wandb", "https://x")
    assert list(place.iterdir()) == []


def test_a_fault_in_one_tracker_s_hook_stops_neither_the_script_nor_the_others(place: Path) -> None:
    module = SimpleNamespace(MlflowClient=type("MlflowClient", (), {"create_run": lambda self: "no run"}))
    links.install_mlflow(module)
    assert module.MlflowClient().create_run() == "no run"
    assert "links of mlflow: switched off" in (place / "hooks.log").read_text()
    wandb = SimpleNamespace(init=lambda: SimpleNamespace(url="https://x"))
    links.install_wandb(wandb)
    wandb.init()
    assert read(place) == [("wandb", "https://x")]


def test_what_a_job_wrote_there_is_read_with_care(place: Path) -> None:
    told = [f"wandb\thttps://{number}" for number in range(12)]
    (place / "links").write_text("\n".join(["nonsense", "visdom\thttp://v", "wandb\t", *told, told[5], "wandb\thalf"]))
    assert read(place) == [("wandb", f"https://{number}") for number in (*range(4, 5), *range(6, 12), 5)]
    (place / "links").write_bytes(b"wandb\t\xff\xfe\n")
    assert read(place) == [("wandb", "��")]
    (place / "links").unlink()
    os.mkfifo(place / "links")
    assert read(place) == []


def test_as_it_is_answered() -> None:
    found = Hooked(links=(Link(Tracker.MLFLOW, "http://m"),))
    assert hooks_view(found)["links"] == [{"tracker": "mlflow", "where": "http://m"}]
