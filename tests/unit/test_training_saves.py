"""`preemptible` of the frameworks: which hooks it asks for, and where it leaves things as they are."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from gpuloom.training import hf, keras, lightning, saves

hooks: Any = importlib.import_module("_gpuloom_hooks")
kept: Any = importlib.import_module("_gpuloom_hooks.kept")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[tuple[str, str]]]:
    """What is asked for, call by call."""
    found: list[set[tuple[str, str]]] = []
    for name in ("GPULOOM_SAVES", "GPULOOM_NOTICE_FILE", "GPULOOM_HOOKS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(saves, "_waits_for", set())
    monkeypatch.setattr(hooks, "started", False)
    monkeypatch.setattr(hooks, "after_import", lambda rows: found.append({row[:2] for row in rows}))
    return found


def test_each_asks_for_the_hooks_that_save_its_framework(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {
        ("torch.utils.data.dataloader", "loaders"),
        ("torch.utils.data._utils.signal_handling", "notice"),
    }
    lightning.preemptible(tmp_path / "a" / "b")
    assert os.environ["GPULOOM_SAVES"] == str(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert not Path(os.environ["GPULOOM_NOTICE_FILE"]).exists()
    assert asked[0] >= shared
    assert {where for _, where in asked[0]} == {"loaders", "notice", "saving_lightning"}
    for number, (module, hook, rows) in enumerate(((hf, "saving_hf", 1), (keras, "saving_keras", 3)), 1):
        monkeypatch.delenv("GPULOOM_SAVES")
        module.preemptible(tmp_path)
        assert [where for _, where in asked[number]] == [hook] * rows, "what was asked for once is there"


def test_where_hooks_save_nothing_changes(asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_SAVES", "/scratch/7-1")
    hf.preemptible(tmp_path / "runs")
    assert (os.environ["GPULOOM_SAVES"], asked, list(tmp_path.iterdir())) == ("/scratch/7-1", [], [])
    monkeypatch.setenv("GPULOOM_SAVES", "off")  # hooks are there, and were told to save nothing
    monkeypatch.setattr(hooks, "started", True)
    hf.preemptible(tmp_path / "runs")
    assert (os.environ["GPULOOM_SAVES"], asked) == (str(tmp_path / "runs"), [])


def test_a_folder_that_can_not_be_made(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        keras.preemptible(tmp_path / "file" / "runs")
    assert (os.environ.get("GPULOOM_SAVES"), asked) == (None, [])


def test_without_gpuloom_saves_go_when_all_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULOOM_HOOKS", raising=False)
    monkeypatch.setenv("GPULOOM_SAVES", str(tmp_path))
    for name in ("keras-0-aa.1-7", "keras-0-bb.1-7"):
        (tmp_path / name).mkdir()
    kept.mark_ended("keras-0-aa")
    assert [one.name for one in tmp_path.iterdir()] == ["keras-0-bb.1-7"]
    (tmp_path / "hooks").mkdir()
    monkeypatch.setenv("GPULOOM_HOOKS", str(tmp_path / "hooks"))
    kept.mark_ended("keras-0-bb")
    assert (tmp_path / "keras-0-bb.1-7").exists(), "gpuloom does it, when the job has ended"


def test_without_a_log_it_is_said_aloud(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULOOM_HOOKS", raising=False)
    hooks.say("saving", "Keras:\nsaved at step 3")
    assert capsys.readouterr().err == "gpuloom: Keras: saved at step 3\n"
