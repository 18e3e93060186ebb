"""Profiles: look-up, the shipped ones, the user's library, and workloads that get their stage times from them."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.profile import Profile, Profiles
from gpuloom.core.workload import Labels
from gpuloom.facts import profiles as library
from gpuloom.facts.profile_tables import read_profiles
from gpuloom.facts.profiles import (
    add_profiles,
    as_csv,
    library_path,
    load_profiles,
    read_library,
    remove_profiles,
    shipped,
    with_profiles,
)

DATA = Path(os.environ.get("GPULOOM_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
TABLE = DATA / "muri" / "model_stage_profiles.csv"
HEADER = "model,gpus,iteration_s,load_s,compute_s,network_s\n"


def profile(model: str = "net", gpus: int = 1, **columns: object) -> Profile:
    return Profile(**{"model": model, "gpus": gpus, "iteration_s": 0.2, "stage_s": (0.1, 0.05, 0.02)} | columns)


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "none"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lib" / "profiles.csv"


# -- look-up ----------------------------------------------------------------------------------------------------------


def test_the_nearest_smaller_number_of_gpus_counts_else_the_smallest() -> None:
    known = Profiles(tuple(profile(gpus=gpus) for gpus in (2, 4, 16)))
    assert [known.find("net", gpus).gpus for gpus in (1, 2, 3, 4, 8, 15, 16, 64)] == [2, 2, 2, 4, 4, 4, 16, 16]
    assert known.find("other", 1) is None


def test_the_users_own_win_over_shipped_ones_of_as_many_gpus() -> None:
    known = Profiles((profile(gpus=1), profile(gpus=2)), (profile(gpus=2, iteration_s=9.0),))
    assert known.find("net", 1).iteration_s == 0.2
    assert known.find("net", 2).iteration_s == 9.0
    assert [(p.gpus, own) for p, own in known.all()] == [(1, False), (2, True)]


def test_speed_alone_is_of_these_very_gpus() -> None:
    own = (profile(iteration_s=0.5), profile(gpu_model="Tesla V100", iteration_s=0.25), profile(gpus=2))
    known = Profiles((profile(model="shipped"),), own)
    assert known.alone_it_per_s("net", 1, "tesla-v100") == 4.0
    assert known.alone_it_per_s("net", 1, "K80") == 2.0, "by the one that does not tell its GPU"
    assert known.alone_it_per_s("net", 4, "K80") is None
    assert known.alone_it_per_s("shipped", 1, "V100") is None, "measured elsewhere"
    assert Profiles((), own[1:]).alone_it_per_s("net", 1, "K80") is None


def test_batch_sizes() -> None:
    known = Profiles((profile(batch_size=64), profile(batch_size=16), profile(gpus=4)))
    assert known.find("net", 4, 16).key == ("net", 1, 16)
    assert known.find("net", 1).batch_size == 16
    assert known.find("net", 1, 32).key == ("net", 4, None), "of another batch size it would be wrong"
    assert Profiles((profile(batch_size=64),)).find("net", 1, 32) is None


def test_unknown_models_are_named_with_close_ones() -> None:
    with pytest.raises(InputError, match=r"'Bert'; did you mean 'bert'\?"):
        Profiles(shipped()).of("Bert")
    with pytest.raises(InputError, match="known are a2c, bert"):
        Profiles(shipped()).of("zzz")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"iteration_s": 0.0}, "iteration time is 0 s, must be finite and above 0"),
        ({"iteration_s": math.nan}, "iteration time is nan"),
        ({"stage_s": (0.1, -0.1, 0)}, "compute time is -0.1 s"),
        ({"stage_s": (0.1, math.inf, 0)}, "compute time is inf"),
        ({"stage_s": (0.1, 0.1)}, "2 stage times, must be 3"),
        ({"stage_s": (0, 0, 0)}, "all its stages take 0 s"),
        ({"gpus": 0}, "gpus is 0"),
        ({"gpu_memory_mib": 0}, "memory is 0"),
        ({"start_s": -1.0}, "start time is -1 s"),
        ({"model": " "}, "the model not empty"),
        ({"source": "a\nb"}, "printable"),
    ],
)
def test_profiles_that_cannot_be(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        profile(**wrong)


def test_four_stages_as_three_and_doubt() -> None:
    four = profile(stage_s=(0.05, 0.05, 0.06, 0.02))
    assert four.three_stages_s == (0.1, 0.06, 0.02)
    assert four.doubt is None
    assert "units" in profile(stage_s=(100.0, 50.0, 20.0)).doubt


# -- shipped ----------------------------------------------------------------------------------------------------------


def test_eight_models_ship_at_six_numbers_of_gpus_without_doubt() -> None:
    assert len(shipped()) == 48
    assert {p.gpus for p in shipped()} == {1, 2, 4, 8, 16, 32}
    assert all(p.doubt is None and p.gpu_memory_mib is None and p.source for p in shipped())
    assert shipped()[0] == Profile(
        "a2c", 1, 0.517, (0.514, 0.014, 0.0), 64, "V100", None, 38.0, "Muri artifact (SIGCOMM'22)"
    )


@pytest.mark.data
@pytest.mark.skipif(not TABLE.exists(), reason="no public traces here: see docs/reference/data.md")
def test_what_ships_is_the_artifacts_table() -> None:
    plain = [(p.key, p.iteration_s, p.stage_s, p.start_s) for p in shipped()]
    assert [(p.key, p.iteration_s, p.stage_s, p.start_s) for p in read_profiles(TABLE)] == plain


# -- the user's library -----------------------------------------------------------------------------------------------


def test_where_the_library_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "home"))
    assert library_path() == tmp_path / "home" / "profiles.csv"
    monkeypatch.setenv("GPULOOM_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert library_path() == tmp_path / "data" / "gpuloom" / "profiles.csv"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/invalid")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library_path() == tmp_path / ".local" / "share" / "gpuloom" / "profiles.csv"
    assert load_profiles().own == ()


def test_what_is_written_is_read_back(path: Path) -> None:
    four = profile('ünder, "quoted"', 8, stage_s=(1 / 3, 1e-9, 0.1, 0), batch_size=4, gpu_model="A100")
    full = profile("net", 2, gpu_memory_mib=12288, start_s=1.5, source="me, by hand")
    add_profiles(path, [four, full])
    assert read_library(path) == [full, four]
    assert load_profiles(path).own == (full, four)
    assert add_profiles(path, [profile("net", 2)], replacing=True) == 1
    assert read_library(path)[0] == profile("net", 2)
    assert remove_profiles(path, "net", 2) == 1
    assert remove_profiles(path, four.model) == 1
    assert read_library(path) == []
    assert load_profiles(path).own == ()


def test_adding_twice_needs_replacing_and_adds_all_or_none(path: Path) -> None:
    add_profiles(path, [profile()])
    with pytest.raises(InputError, match="has a profile of net on 1 GPU already; --overwrite"):
        add_profiles(path, [profile(gpus=2), profile(iteration_s=0.3)])
    assert read_library(path) == [profile()]


def test_removing_what_is_not_there(path: Path) -> None:
    add_profiles(path, [profile(gpus=2), profile(gpus=4)])
    with pytest.raises(InputError, match="no profile of net on 8 GPUs; there are 2, 4"):
        remove_profiles(path, "net", 8)
    with pytest.raises(InputError, match="shipped ones can't be removed"):
        remove_profiles(path, "bert")
    with pytest.raises(InputError, match="did you mean 'net'"):
        remove_profiles(path, "nett")


def test_comments_before_the_header_stay(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("# measured by hand\n" + HEADER + "a,1,0.2,0.1,0.1,0\n")
    add_profiles(path, [profile()])
    assert path.read_text().startswith("# measured by hand\nmodel,gpus,")
    assert [p.model for p in read_library(path)] == ["a", "net"]


def test_a_full_disk_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_profiles(path, [profile()])
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        add_profiles(path, [profile(gpus=2)])
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {"profiles.csv", ".profiles.csv.lock"}


def test_what_a_killed_writer_left_is_cleared_away(path: Path) -> None:
    add_profiles(path, [profile()])
    (path.parent / ".profiles.csv.0badcafe.tmp").write_text("half a li")
    add_profiles(path, [profile(gpus=2)])
    assert {file.name for file in path.parent.iterdir()} == {"profiles.csv", ".profiles.csv.lock"}
    assert len(read_library(path)) == 2


def _add_some(path: Path, writer: int) -> None:
    for gpus in range(1, 13):
        add_profiles(path, [profile(f"writer{writer}", gpus)])


@pytest.mark.slow
def test_two_writers_at_once_lose_no_rows(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_some, args=(path, number)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [p.key[:2] for p in read_library(path)] == [(f"writer{n}", gpus) for n in (0, 1) for gpus in range(1, 13)]


def test_a_library_that_is_held_is_waited_for_then_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    add_profiles(path, [profile()])
    monkeypatch.setattr(library, "LOCK_WAIT_S", 0.05)
    with (path.parent / ".profiles.csv.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(GpuloomError, match="another process has held"):
            add_profiles(path, [profile(gpus=2)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty: no profiles in it"),
        ("model,gpus,load_s,compute_s,network_s\na,1,1,1,1\n", "lacks column iteration_s"),
        ("model,gpus,iteration_s,load_s,compute_s\na,1,1,1,1\n", r"lacks the stage time network_s \(or in _ms\)"),
        ("model,gpus,iteration_s,storage_s,gpu_s,network_s\na,1,1,1,1,1\n", "lacks the stage time cpu_s"),
        (HEADER[:-1] + ",storage_s\na,1,1,1,1,1,1\n", "lacks the stage times .*: give load"),
        ("model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s,load_s\na,1,1,1,1,1,1,1\n", "lacks the stage"),
        ("model,gpus,iteration_s,network_s\na,1,1,1\n", "lacks the stage times load_s, compute_s "),
        ("gpus,iteration_s,load_s,compute_s,network_s\n1,1,1,1,1\n", "lacks column model"),
        (HEADER[:-1] + ",iteration_ms\na,1,1,1,1,1,5\n", "iteration_s and iteration_ms, which mean the same"),
        (HEADER[:-1] + ",wrong\na,1,1,1,1,1,5\n", "unknown column 'wrong'"),
        (HEADER + "a,1,1,1,1,1\na,x,1,1,1,1\n", r"bad.csv:3, column 'gpus': gpus is 'x', must be a whole number"),
        (HEADER + "a,1,0,1,1,1\n", r":2, column 'iteration_s': iteration_s is '0', must be a finite number above 0"),
        (HEADER + "a,1,nan,1,1,1\n", r":2, column 'iteration_s'"),
        (HEADER + "a,1,1,-1,1,1\n", r":2, column 'load_s': load_s is '-1'"),
        (HEADER + "a,1,,1,1,1\n", "iteration time is empty"),
        (HEADER + "a,1,1,,,\n", ":2: has no stage times"),
        (HEADER + "a,1,1,1,,1\n", ":2: has the stages load, network, must have"),
        (HEADER + "a,1,1,0,0,0\n", "all its stages take 0 s"),
        (HEADER + "a,1,1,1,1,1\na,1,2,1,1,1\n", "profile of a on 1 GPU is there twice"),
        (HEADER + "a,1,1,1,1\n", ":2: has 5 fields, must have 6"),
        ("PAR1\0\0", "is not a text file"),
        (HEADER, "holds no profiles, only a header"),
    ],
)
def test_files_that_cannot_be_read_say_where(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_profiles(file)


def test_milliseconds_and_mixed_stages(tmp_path: Path) -> None:
    file = tmp_path / "mixed.csv"
    file.write_text(
        "model,gpus,iteration_ms,load_ms,compute_ms,storage_ms,cpu_ms,gpu_ms,network_ms,start_s\n"
        "a,1,200,100,50,,,,20,\nb,2,200,,,40,60,50,20,7\n"
    )
    a, b = read_profiles(file)
    assert (a.stage_s, a.start_s) == ((0.1, 0.05, 0.02), None)
    assert (b.stage_s, b.start_s) == ((0.04, 0.06, 0.05, 0.02), 7.0)
    file.write_text(as_csv([a, b]))
    assert read_profiles(file) == [a, b]


# -- workloads --------------------------------------------------------------------------------------------------------


def test_jobs_without_stages_get_those_of_their_model() -> None:
    nan = math.nan
    own_stages = [1.0, 2.0, 3.0]
    workload = jobs(
        [(0, 10, 1), (0, 10, 4), (0, 10, 3), (0, 10, 1), (0, 10, 1)],
        model=Labels.of(["bert", "bert", "gpt2", "never heard of", "bert"]),
        stage_s=np.array([[nan] * 3] * 4 + [own_stages]),
        iteration_s=np.array([nan, nan, 0.928, nan, 7.0]),
    )
    filled = with_profiles(workload, load_profiles(None))
    assert filled.stage_s[0].tolist() == [0.0005, 0.16, 0.0]
    assert filled.stage_s[1].tolist() == [0.0005, 0.163, 0.018]
    assert filled.stage_s[2].tolist() == pytest.approx([0.0014, 0.832, 0.08]), "stretched to the trace's iteration"
    assert np.isnan(filled.stage_s[3]).all()
    assert filled.stage_s[4].tolist() == own_stages
    assert filled.iteration_s.tolist() == pytest.approx([0.178, 0.19, 0.928, nan, 7.0], nan_ok=True)
    assert filled.restart_overhead_s is None
    assert filled.notes == (
        "stage times of 3 of 5 jobs are from profiles by model: 3 from those shipped with gpuloom; "
        "1 measured on another number of GPUs",
    )
    assert np.isnan(workload.stage_s[0]).all(), "the trace itself is left as it is"


def test_own_profiles_also_bring_memory_and_start_times() -> None:
    own = profile("net", stage_s=(0.05, 0.05, 0.05, 0.02), gpu_memory_mib=1000, start_s=3.0)
    workload = jobs([(0, 10, 1), (0, 10, 1)], model=Labels.of(["net", "bert"]))
    filled = with_profiles(workload, Profiles(shipped(), (own,), "mine.csv"))
    assert filled.stage_s[0].tolist() == [0.1, 0.05, 0.02]
    assert filled.gpu_memory_mib.tolist() == pytest.approx([1000, math.nan], nan_ok=True)
    assert filled.restart_overhead_s.tolist() == pytest.approx([3.0, math.nan], nan_ok=True)
    assert "1 from mine.csv and 1 from those shipped" in filled.notes[0]


def test_a_workload_without_known_models_stays_as_it_is() -> None:
    plain = jobs([(0, 10, 1)])
    assert with_profiles(plain, load_profiles(None)) is plain
    unknown = with_profiles(jobs([(0, 10, 1)], model=Labels.of(["x"])), load_profiles(None))
    assert (unknown.stage_s, unknown.iteration_s, unknown.notes) == (None, None, ())
