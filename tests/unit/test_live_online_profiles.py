"""Profiles of jobs that run: taken once they are known, kept over a restart, and never in place of the user's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuloom.core.measured import Measured
from gpuloom.core.profile import Profile, Profiles
from gpuloom.executors.no_files import NoFiles
from gpuloom.executors.node import RunFiles
from gpuloom.facts.profiles import add_profiles, read_library
from gpuloom.files.hook_records import Hooked, Sight
from gpuloom.live.records.online import AGAIN_S, LOOK_S, PATIENCE_S, OnlineProfiles, Watched

STEADY = Measured(
    framework="pytorch",
    iterations=60,
    first_step=0,
    steps=None,
    began_s=0.0,
    at_s=1.0,
    timed=40,
    iteration_s=0.100,
    storage_s=0.030,
    cpu_s=0.0,
    gpu_s=0.070,
    network_s=0.0,
    turn_s=0.0,
    rest_s=0.0,
    stages_s=(0.030, 0.0, 0.070, 0.0),
    noise=0.02,
    drift=None,
    prefetches=False,
    workers=0,
    batches=1.0,
    batch_size=32,
    memory_mib=900,
    world_size=1,
    cores=8,
)
RUN = Watched("1.1-ab", "a", "train --width 8", 1, "V100", alone=True)


class Files(NoFiles):
    def __init__(self) -> None:
        super().__init__("a")
        self.measured: Measured | None = STEADY
        self.asked = 0

    def hooks(self, run: str) -> Hooked:
        self.asked += 1
        return Hooked(Sight.NONE if self.measured is None else Sight.PROFILE, None, self.measured)


class Kit:
    """Runs that are looked at, by a clock by hand."""

    def __init__(self, folder: Path, own: tuple[Profile, ...] = (), library: str = "") -> None:
        self.files, self.runs, self.now_s = Files(), [RUN], 0.0
        self.there = True
        self.taken: list[Profiles] = []
        self.online = OnlineProfiles(
            folder / "measured.csv",
            Profiles(own=own, library=library),
            watched=lambda: self.runs,
            files=self._files,
            take=self.taken.append,
            now=lambda: self.now_s,
        )

    def _files(self, node: str) -> RunFiles:
        return self.files if self.there else NoFiles(node)

    def look(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.online.look()


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def test_a_steady_run_gives_a_profile_that_outlives_a_restart(kit: Kit, tmp_path: Path) -> None:
    kit.look()
    (profiles,) = kit.taken
    profile = profiles.find("train --width 8", 1)
    assert profile is not None
    assert (profile.stage_s, profile.gpu_model, profile.gpu_memory_mib) == (STEADY.stages_s, "V100", 900)
    assert profile.source == "40 iterations of run 1.1-ab"
    again = Kit(tmp_path)
    assert again.online.all().find("train --width 8", 1) == profile


def test_a_run_is_asked_often_until_it_is_known_and_seldom_after(kit: Kit) -> None:
    kit.files.measured = replace(STEADY, timed=5)
    kit.look()
    kit.look(LOOK_S / 2)
    assert (kit.files.asked, kit.taken) == (1, [])
    kit.files.measured = STEADY
    kit.look(LOOK_S)
    kit.look(LOOK_S * 9)
    assert (kit.files.asked, len(kit.taken)) == (2, 1)
    kit.look(AGAIN_S)
    assert (kit.files.asked, len(kit.taken)) == (3, 1)  # it is as before: no news
    kit.files.measured = replace(STEADY, iteration_s=0.15, stages_s=(0.080, 0.0, 0.070, 0.0))
    kit.look(AGAIN_S)
    assert len(kit.taken) == 2
    found = kit.taken[-1].find("train --width 8", 1)
    assert found is not None
    assert found.iteration_s == 0.15


def test_a_program_that_hooks_do_not_see_is_not_asked_for_ever(kit: Kit) -> None:
    kit.files.measured = None
    kit.look()
    kit.look(PATIENCE_S + 1)
    asked = kit.files.asked
    kit.look(LOOK_S * 5)
    assert kit.files.asked == asked
    kit.runs = []
    kit.look()
    kit.runs = [RUN]  # the same name again: as new
    kit.look()
    assert kit.files.asked == asked + 1


def test_of_very_many_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloom.live.records.online.MOST_KEPT", 10)
    file = tmp_path / "measured.csv"
    add_profiles(file, [Profile(f"job {n}", 1, 0.1, STEADY.stages_s, date=f"2026-01-{28 - n}") for n in range(10)])
    kit = Kit(tmp_path)
    kit.look()
    kept = {profile.model for profile in read_library(file)}
    assert kept == {RUN.key, *(f"job {n}" for n in range(8))}
    assert {profile.model for profile in kit.taken[-1].own} == kept


def test_a_run_that_never_goes_evenly_is_not_asked_for_ever(kit: Kit) -> None:
    kit.files.measured = replace(STEADY, noise=0.9)
    kit.look()
    kit.look(PATIENCE_S + 1)
    asked = kit.files.asked
    kit.look(LOOK_S * 5)
    assert kit.files.asked == asked
    kit.files.measured = STEADY
    kit.look(AGAIN_S)
    assert len(kit.taken) == 1


@pytest.mark.parametrize("change", [{"noise": 0.9}, {"timed": 15}])
def test_what_is_no_steady_measurement_is_none(kit: Kit, change: dict[str, float]) -> None:
    kit.files.measured = replace(STEADY, **change)  # type: ignore[arg-type]
    kit.look()
    assert kit.taken == []


def test_a_run_beside_others_and_one_on_a_node_that_is_gone_are_not_measured(kit: Kit) -> None:
    kit.runs = [replace(RUN, alone=False)]
    kit.look()
    assert kit.files.asked == 0
    kit.runs, kit.there = [RUN], False
    kit.look()
    assert kit.taken == []
    kit.there = True
    kit.look(LOOK_S)
    assert len(kit.taken) == 1


def test_the_user_s_own_profile_goes_first(tmp_path: Path) -> None:
    own = Profile("train --width 8", 1, 0.5, (0.1, 0.3, 0.1), source="by hand")
    kit = Kit(tmp_path, (own,))
    kit.look()
    assert kit.taken[-1].find("train --width 8", 1) == own
    kit.runs = [replace(RUN, run="2.1-cd", gpus=4)]
    kit.look()
    found = kit.taken[-1].find("train --width 8", 4)
    assert found is not None
    assert found.gpus == 4


def test_a_file_that_can_not_be_read_or_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "measured.csv").write_text("no,profiles\n1,2\n")
    kit = Kit(tmp_path)
    kit.look()
    assert "can't be written" in kit.online.problem
    assert kit.taken[-1].find("train --width 8", 1) is not None


def test_the_library_is_taken_as_it_is_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    library = tmp_path / "profiles.csv"
    kit = Kit(tmp_path, library=str(library))
    kit.online.refresh()
    assert kit.taken == []
    add_profiles(library, [Profile("a", 1, iteration_s=0.5, stage_s=(0.1, 0.3, 0.1), gpu_model="K80")])
    kit.online.refresh()
    kit.online.refresh()
    assert [[one.model for one in profiles.own] for profiles in kit.taken] == [["a"]]
    kit.look()
    assert [one.model for one in kit.taken[-1].own] == ["a", "train --width 8"]
    library.write_text("no,profiles\n1,2\n")
    kit.online.refresh()
    assert "can't be read, and is used as it was" in caplog.text
    assert len(kit.taken) == 2
    library.unlink()
    kit.online.refresh()
    assert [one.model for one in kit.taken[-1].own] == ["train --width 8"]
