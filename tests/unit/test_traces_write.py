"""gpuloom's own format: columns, refusals, and that what is written reads back exactly."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuloom.core.errors import InputError, MissingDependencyError, TraceError
from gpuloom.core.workload import OPTIONAL_COLUMNS, Labels, Speeds, Workload
from gpuloom.traces import read_trace, write_trace
from tiers import examples

SUFFIXES = (".csv", ".csv.gz", ".parquet")


def small(**columns: object) -> Workload:
    return Workload(
        "small", np.asarray([0.0, 0.1 + 0.2]), np.asarray([1e-9, 1e9]), np.asarray([1, 8], np.int32), **columns
    )


def same(left: Workload, right: Workload) -> None:
    for name in ("submit_s", "duration_s", "gpus", *OPTIONAL_COLUMNS):
        a, b = getattr(left, name), getattr(right, name)
        if name == "line":
            continue
        if isinstance(a, Labels):
            assert [a[i] for i in range(len(a))] == [b[i] for i in range(len(b))]
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b
    if left.speeds is None:
        assert right.speeds is None
    else:
        assert left.speeds.models == right.speeds.models
        np.testing.assert_array_equal(left.speeds.factor, right.speeds.factor)


def finite(least: float = 0.0) -> st.SearchStrategy[float]:
    return st.floats(least, 1e15, allow_nan=False, exclude_min=least > 0)


# NUL and lone surrogates are no text that a CSV file can hold: refused (below).
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
unknown_or = st.one_of(st.just(float("nan")), finite())


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    n = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy, dtype: type = np.float64) -> np.ndarray | None:
        found = draw(st.none() | st.lists(values, min_size=n, max_size=n))
        return None if found is None else np.asarray(found, dtype=dtype)

    def labels() -> Labels | None:
        found = draw(st.none() | st.lists(words, min_size=n, max_size=n))
        return None if found is None else Labels.of(found)

    def floats(values: st.SearchStrategy) -> np.ndarray:
        return np.asarray(draw(st.lists(values, min_size=n, max_size=n)), dtype=np.float64)

    models = draw(st.lists(st.sampled_from(["V100", "A 100", "k,80"]), unique=True, max_size=3))
    ids = draw(st.none() | st.lists(words.filter(bool), min_size=n, max_size=n, unique=True))
    return Workload(
        name="w",
        submit_s=np.sort(floats(finite())),
        duration_s=floats(finite()),
        gpus=np.asarray(draw(st.lists(st.integers(1, 2**31 - 1), min_size=n, max_size=n)), dtype=np.int32),
        job_ids=None if ids is None else tuple(ids),
        model=labels(),
        user=labels(),
        group=labels(),
        gpu_type=labels(),
        gpu_milli=column(st.integers(1, 1000), np.int32),
        priority=column(st.integers(0, 9), np.int32),
        weight=column(finite(1e-9)),
        restart_overhead_s=column(unknown_or),
        estimate_s=column(unknown_or),
        gpu_memory_mib=column(st.one_of(st.just(float("nan")), st.floats(1.0, 1e6))),
        iteration_s=column(unknown_or),
        stage_s=column(st.one_of(st.just((float("nan"),) * 3), st.tuples(finite(), finite(), finite()))),
        speeds=Speeds(tuple(models), np.stack([floats(finite()) for _ in models], axis=1)) if models else None,
    )


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workload=workloads(), suffix=st.sampled_from(SUFFIXES))
def test_what_is_written_reads_back_exactly(workload: Workload, suffix: str, tmp_path_factory) -> None:
    file = tmp_path_factory.mktemp("w") / f"t{suffix}"
    write_trace(workload, file)
    result = read_trace(file)
    assert result.format == "gpuloom"
    same(workload, result.workload)
    assert [p.name for p in file.parent.iterdir()] == [file.name]  # nothing temporary stays


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_writing_twice_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    one, two = tmp_path / f"1{suffix}", tmp_path / f"2{suffix}"
    write_trace(small(), one)
    write_trace(small(), two)
    assert one.read_bytes() == two.read_bytes()


def test_csv_is_plain() -> None:
    import io

    from gpuloom.traces.write import write_csv

    stream = io.BytesIO()
    write_csv(small(user=Labels.of(["a,b", ""]), restart_overhead_s=np.asarray([np.nan, 2])), stream)
    assert stream.getvalue().decode() == (
        "submit_s,duration_s,gpus,user,restart_overhead_s\n"
        '0.0,1e-09,1,"a,b",\n'
        "0.30000000000000004,1000000000.0,8,,2.0\n"
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"weight": np.asarray([1.0, 0.0])}, "weight of job 1 is 0.0"),
        ({"job_ids": ("a", "a")}, "empty or used twice"),
        ({"job_ids": ("a", "")}, "empty or used twice"),
        ({"model": Labels.of(["a", "b\0"])}, "is not text"),
        ({"model": Labels.of(["a", "\ud800"])}, "is not text"),
        ({"speeds": Speeds(("a\nb",), np.ones((2, 1)))}, "can't be the name"),
        ({"gpu_milli": np.asarray([1, 2000], np.int32)}, "gpu_milli of job 1 is 2000"),
    ],
)
def test_a_workload_that_the_format_can_not_hold(tmp_path: Path, columns: dict, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        write_trace(small(**columns), tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())


def test_negative_submission_and_empty_workload_can_not_be_written(tmp_path: Path) -> None:
    early = Workload("e", np.asarray([-1.0]), np.asarray([1.0]), np.asarray([1], np.int32))
    with pytest.raises(InputError, match=r"submit_s of job 0 is -1\.0"):
        write_trace(early, tmp_path / "t.csv")
    with pytest.raises(InputError, match="holds no jobs"):
        write_trace(early.take([]), tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"must end with \.csv"):
        write_trace(small(), tmp_path / "t.txt")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.csv"
    write_trace(small(), file)
    before = file.read_bytes()

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("gpuloom.traces.write._write_csv", broken)
    with pytest.raises(OSError, match="disk full"):
        write_trace(small(), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_columns_in_any_order_and_spaces_kept(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        "# a comment\nmodel, gpus ,duration_s,speed:V100,submit_s,load_s,network_s,compute_s\n a ,2,3,0.5,1,1,3,2\n"
    )
    w = read_trace(file).workload
    assert (w.model[0], w.gpus[0], w.duration_s[0], w.submit_s[0]) == (" a ", 2, 3, 1)
    assert (w.speeds.models, w.speeds.factor.tolist(), w.stage_s.tolist()) == (("V100",), [[0.5]], [[1, 2, 3]])
    assert w.job_ids is None


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("submit_s,duration_s,gpus,modle", "unknown column 'modle'; did you mean 'model'"),
        ("submit_s,duration_s,gpus,zzz", "unknown column 'zzz'; known columns: submit_s"),
        ("submit_s,duration_s,gpus,speed:", "unknown column 'speed:'"),
        ("submit_s,duration_s,gpus,load_s", "has load_s but lacks compute_s, network_s"),
    ],
)
def test_headers_that_are_refused(tmp_path: Path, header: str, reason: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"{header}\n1,1,1,1\n")
    with pytest.raises(TraceError, match=reason):
        read_trace(file)


def parquet(path: Path, **columns: object) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_rows_are_checked_like_csv(tmp_path: Path) -> None:
    file = parquet(tmp_path / "t", submit_s=[0, 1, 2], duration_s=[1.0, None, -2.0], gpus=[1, 1, 1])
    with pytest.raises(TraceError, match="duration_s is nan, must be a finite number of at least 0") as caught:
        read_trace(file)
    assert caught.value.line == 2
    result = read_trace(file, skip_bad_rows=True)
    assert (len(result.workload), [error.line for error in result.bad_rows]) == (1, [2, 3])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"submit_s": ["a"], "duration_s": [1], "gpus": [1]}, "has type string, must be a number"),
        ({"submit_s": [0], "duration_s": [1], "gpus": [1], "model": [3]}, "has type int64, must be text"),
        ({"submit_s": [0], "duration_s": [1]}, "lacks column gpus"),
        ({"submit_s": [0], "duration_s": [1], "gpus": [1], "x": [1]}, "unknown column 'x'"),
        ({"submit_s": [0], "duration_s": [1], "gpus": [1], "job_id": [""]}, "job_id is empty"),
    ],
)
def test_parquet_that_is_refused(tmp_path: Path, columns: dict, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read_trace(parquet(tmp_path / "t", **columns))


def test_damaged_parquet(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(TraceError, match="not a readable Parquet file"):
        read_trace(file)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t"
    file.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"gpuloom\[parquet\]"):
        read_trace(file)
    with pytest.raises(MissingDependencyError, match=r"gpuloom\[parquet\]"):
        write_trace(small(), tmp_path / "o.parquet")
    assert list(tmp_path.iterdir()) == [file]
