"""Files for programs: they read back as they were, and appear whole or not at all."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from gpuloom.files.whole import binary_output, text_output
from gpuloom.report.export import JOB_COLUMNS, write_csv, write_jobs_csv, write_json
from report_builders import make_result

ODD = 0.1 + 0.2


def test_json_is_an_object_for_one_and_a_list_for_several(tmp_path: Path) -> None:
    result = make_result(
        avg_jct_s=ODD, settings={"n": np.float64(2.5), "bad": math.inf, "path": Path("x"), "k": {"a": [1]}}
    )
    write_json(result, tmp_path / "one.json")
    one = json.loads((tmp_path / "one.json").read_text())
    assert one["policy"] == "fifo"
    assert one["avg_jct_s"] == ODD
    assert one["settings"] == {"n": 2.5, "bad": None, "path": "x", "k": {"a": [1]}}
    write_json([result, make_result(policy="sjf", avg_jct_s=math.nan)], str(tmp_path / "two.json"))
    two = json.loads((tmp_path / "two.json").read_text())
    assert [entry["policy"] for entry in two] == ["fifo", "sjf"]
    assert two[1]["avg_jct_s"] is None
    assert set(two[0]) == set(result.to_dict())


def test_csv_reads_back(tmp_path: Path) -> None:
    results = [make_result(avg_jct_s=ODD, trace='a,"b"\nc'), make_result(policy="sjf", p99_jct_s=math.nan)]
    write_csv(results, tmp_path / "r.csv")
    with open(tmp_path / "r.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["fifo", "sjf"]
    assert float(rows[0]["avg_jct_s"]) == ODD
    assert rows[0]["trace"] == 'a,"b"\nc'
    assert rows[1]["p99_jct_s"] == ""
    assert json.loads(rows[0]["settings"]) == results[0].settings
    assert rows[0]["interrupted"] == "false"


def test_jobs_csv_reads_back_exactly(tmp_path: Path) -> None:
    result = make_result(submit_s=[0.0, ODD, 20.0], end_s=[100.0, math.nan, 1e9 / 3], job_ids=("a", "b,\n", "ü"))
    write_jobs_csv([result, make_result(policy="sjf")], tmp_path / "jobs.csv")
    with open(tmp_path / "jobs.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == JOB_COLUMNS
    assert len(rows) == 6
    for index, row in enumerate(rows[:3]):
        assert row["policy"] == "fifo"
        assert row["job_id"] == result.job_ids[index]
        assert int(row["gpus"]) == result.job_gpus[index]
        assert int(row["starts"]) == result.starts[index]
        for key in ("submit_s", "start_s", "end_s", "jct_s", "attained_gpu_s"):
            value = getattr(result, key)[index]
            assert row[key] == ("" if math.isnan(value) else repr(float(value)))


def test_dash_is_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(make_result(), "-")
    assert json.loads(capsys.readouterr().out)["policy"] == "fifo"
    write_csv([make_result()], "-")
    assert capsys.readouterr().out.startswith("policy,")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "r.txt"
    target.write_text("old")

    def fail() -> None:
        with text_output(target) as file:
            file.write("new")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "r.bin"
    with pytest.raises(OSError, match=r"r\.bin") as caught, binary_output(target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(target))
    assert list(tmp_path.iterdir()) == []


def test_bad_targets_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        write_json(make_result(), tmp_path / "no" / "r.json")
    assert missing.value.filename == str(tmp_path / "no" / "r.json")
    with pytest.raises(IsADirectoryError) as folder:
        write_json(make_result(), tmp_path)
    assert folder.value.filename == str(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_devices_are_written_to_and_not_replaced() -> None:
    with pytest.raises(OSError, match="/dev/full") as caught:
        write_json(make_result(), "/dev/full")
    assert caught.value.errno == errno.ENOSPC
    write_json(make_result(), "/dev/null")
    assert not Path("/dev/null").is_file()


def test_links_stay_links_and_modes_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    real.chmod(0o640)
    link.symlink_to(real)
    write_json(make_result(), link)
    assert link.is_symlink()
    assert json.loads(real.read_text())["policy"] == "fifo"
    assert real.stat().st_mode & 0o777 == 0o640
