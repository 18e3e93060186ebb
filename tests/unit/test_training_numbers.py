"""The sample job's numbers, of which the docs show some, and the times that a training script goes by."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from gpuloom.training import job, sample


def test_the_first_losses_of_a_small_network() -> None:
    x, y = sample.spirals(0)
    assert (x.shape, y[:6].tolist()) == ((2000, 2), [1, 1, 1, 0, 0, 0])
    assert x[:2].ravel().tolist() == pytest.approx([0.0461822386, 0.0302203945, -0.9105879785, 0.1917971832])
    network = sample.Network(3, 4)
    losses = [network.train(x[:64], y[:64], 0.01) for _ in range(4)]
    assert losses == pytest.approx([0.6862323952, 0.6835997743, 0.6811852234, 0.6789814380], rel=1e-9)
    assert int(network.state["step"]) == 4


def test_what_it_does_unless_told_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--checkpoint", str(tmp_path / "new" / "a.npz"), "--steps", "3", "--step-seconds", "0"]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert sample.main(words) == pytest.approx(0.6961669738, rel=1e-9)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().out.splitlines()[0] == "saved at step 3"
    with np.load(tmp_path / "new" / "a.npz") as saved:
        assert (int(saved["step"]), saved["wb"].shape) == (3, (32, 32))


def test_a_certain_and_wrong_guess_costs_much_but_not_all() -> None:
    assert sample.cross_entropy(np.array([0.0, 0.5, 1.0]), np.ones(3)) == pytest.approx(9.441389432)


def test_times_and_codes_that_scripts_go_by() -> None:
    assert (job.EXIT_PREEMPTED, job.REPORT_EVERY_S, sample.BATCH) == (85, 1.0, 64)
    assert [job._finite(number) for number in (1.0, -1e308, float("inf"), float("-inf"), float("nan"))] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert [job._plain(value) for value in (True, 3, "x", np.float32(0.5), float("nan"), "y" * 300, {"z" * 300})] == [
        True, 3, "x", 0.5, "nan", "y" * 300, "{'" + "z" * 198,
    ]  # fmt: skip


@pytest.mark.parametrize(("grace", "deadline"), [("30", 1030.0), ("", None), ("x", None), ("inf", None)])
def test_when_a_process_will_be_ended(grace: str, deadline: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_notice", job._Notice())
    monkeypatch.setenv("GPULOOM_GRACE_S", grace)
    monkeypatch.delenv("GPULOOM_NOTICE_FILE", raising=False)
    assert job.deadline_s() is None
    monkeypatch.setattr("time.time", lambda: 1000.0)
    job._notice.see()
    monkeypatch.setattr("time.time", lambda: 2000.0)
    job._notice.see()
    assert job.deadline_s() == deadline


def test_without_a_time_between_saves_only_the_end_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, new in (("_notice", job._Notice()), ("_progress", job._Progress()), ("should_stop", lambda: False)):
        monkeypatch.setattr(job, name, new)
    monkeypatch.delenv("GPULOOM_PROGRESS_FILE", raising=False)
    saved: list[int] = []
    assert list(job.steps(3, save=saved.append, every_s=None)) == [0, 1, 2]
    assert saved == [3]
    assert list(job.steps(3, save=saved.append, every_s=0.0)) == [0, 1, 2]
    assert saved == [3, 1, 2, 3]
