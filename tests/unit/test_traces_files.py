"""Files, folders, archives and tables: what does not depend on one format."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.workload import Labels
from gpuloom.files import load, table
from gpuloom.traces import Head, Part, Reader, ReadOptions, Source, formats, read_trace, registry

HEADER = "submit_s,duration_s,gpus,job_id\n"
ITP = "job_id,submission_time,duration,num_gpu\n"


def own(*rows: str) -> str:
    return HEADER + "".join(row + "\n" for row in rows)


def test_gzip_is_found_by_content(tmp_path: Path) -> None:
    file = tmp_path / "plain.csv"
    file.write_bytes(gzip.compress(own("1,2,3,a").encode()))
    result = read_trace(file)
    assert (len(result.workload), result.workload.name, result.files) == (1, "plain", (file,))


@pytest.mark.parametrize("cut", [5, -9])
def test_damaged_gzip(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(own("1,2,3,a").encode())[:cut])
    with pytest.raises(TraceError, match="damaged gzip file"):
        read_trace(file)


@pytest.mark.slow
def test_what_unpacks_to_far_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(own("1,2,3,a").encode() + b"\n" * 10**6))
    assert len(read_trace(file).workload) == 1
    monkeypatch.setattr(load, "DENSE_BYTES", 10**5)
    with pytest.raises(TraceError, match=r"t\.csv\.gz: holds more than 0 MiB, packed it is .* \(gunzip\)"):
        read_trace(file)
    monkeypatch.setattr(load, "MOST_TIMES", 2000)
    assert len(read_trace(file).workload) == 1
    monkeypatch.setattr(load, "MOST_BYTES", 10**6)
    with pytest.raises(TraceError, match="holds more than 0 MiB"):
        read_trace(file)


def test_a_file_of_holes_in_an_archive_is_refused(tmp_path: Path) -> None:
    """GNU's sparse files: their size is what their header says."""
    archive = tmp_path / "t.tar"
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("t.csv")
        info.type = tarfile.GNUTYPE_SPARSE
        tar.addfile(info)
    data = bytearray(archive.read_bytes())
    data[483:495] = b"%011o\0" % 2**30  # its real size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    archive.write_bytes(data)
    with pytest.raises(TraceError, match=r"t\.csv says that it is larger than the archive"):
        read_trace(f"{archive}::t.csv")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    data = types.SimpleNamespace(buffer=io.BytesIO(own("1,2,3,a").encode()))
    monkeypatch.setattr(sys, "stdin", data)
    result = read_trace("-")
    assert (result.workload.gpus.tolist(), str(result.files[0])) == ([3], "<stdin>")


def test_several_files_are_merged_by_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(own("5,1,1,x", "1,1,1,y"))
    (tmp_path / "b.csv").write_text(own("3,1,2,z"))
    w = read_trace([tmp_path / "a.csv", tmp_path / "b.csv"]).workload
    assert w.job_ids == ("y", "z", "x")
    assert w.gpus.tolist() == [1, 2, 1]
    assert w.name == "a+b"


def test_clashing_ids_get_the_file_in_front(tmp_path: Path) -> None:
    for folder, stem in (("p", "a"), ("p", "b"), ("q", "a")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{stem}.csv").write_text(own("1,1,1,x"))
    w = read_trace(tmp_path / "p").workload
    assert w.job_ids == ("a:x", "b:x")
    assert any("same job ids" in note for note in w.notes)
    same_name = read_trace([tmp_path / "p/a.csv", tmp_path / "q/a.csv"]).workload
    assert len(set(same_name.job_ids)) == 2


def test_columns_that_only_some_files_have(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("submit_s,duration_s,gpus,model,weight,job_id\n0,1,1,m,2,seven\n")
    (tmp_path / "b.csv").write_text("submit_s,duration_s,gpus,iteration_s\n1,1,1,0.5\n2,1,1,\n")
    w = read_trace(tmp_path).workload
    assert [w.model[i] for i in range(3)] == ["m", "", ""]
    assert w.weight.tolist() == [2, 1, 1]
    np.testing.assert_array_equal(w.iteration_s, [np.nan, 0.5, np.nan])
    assert w.job_ids == ("seven", "0", "1")


def test_speeds_for_different_models_are_not_merged(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("submit_s,duration_s,gpus,speed:A,speed:B\n0,1,1,1,2\n")
    (tmp_path / "b.csv").write_text("submit_s,duration_s,gpus,speed:B,speed:A\n1,1,1,2,1\n")
    w = read_trace(tmp_path).workload
    assert (w.speeds.models, w.speeds.factor.tolist()) == (("A", "B"), [[1, 2], [1, 2]])
    (tmp_path / "c.csv").write_text("submit_s,duration_s,gpus\n1,1,1\n")
    with pytest.raises(InputError, match="different GPU models"):
        read_trace(tmp_path)


def test_a_folder_leaves_out_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(own("1,2,3,a"))
    (tmp_path / "LICENSE").write_text("All rights given.")
    (tmp_path / "samples.csv").write_text("duration\n1\n")
    (tmp_path / ".hidden").write_text("x")
    result = read_trace(tmp_path)
    assert result.files == (tmp_path / "t.csv",)
    assert result.workload.name == tmp_path.name
    (note,) = result.workload.notes
    assert "LICENSE, samples.csv (samples of GPU time" in note
    assert "hidden" not in note


def test_a_folder_of_several_formats_needs_a_choice(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(own("1,2,3,a"))
    (tmp_path / "i.csv").write_text(ITP + "j,1,2,3\n")
    with pytest.raises(InputError, match=r"--format") as caught:
        read_trace(tmp_path)
    assert "i.csv: itp" in str(caught.value)
    assert "t.csv: gpuloom" in str(caught.value)
    result = read_trace(tmp_path, format="itp")
    assert (len(result.workload), result.workload.job_ids) == (1, ("j",))
    assert any("t.csv (format gpuloom)" in note for note in result.workload.notes)


def test_folders_without_traces(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with pytest.raises(InputError, match="no files; it has the folders inner"):
        read_trace(tmp_path)
    (tmp_path / "LICENSE").write_text("All rights given.")
    with pytest.raises(InputError, match="holds no trace; it holds LICENSE"):
        read_trace(tmp_path)


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(own("1,2,3,a"))
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(InputError, match="given twice"):
        read_trace([file, tmp_path])
    with pytest.raises(InputError, match="no trace given"):
        read_trace([])
    with pytest.raises(InputError, match=r"unknown trace format 'x' \(known: gpuloom, muri"):
        read_trace(file, format="x")


def test_an_archive_needs_a_member(tmp_path: Path) -> None:
    archive = tmp_path / "all.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("in/one.csv", "in/two.csv"):
            data = own(f"1,2,3,{name}").encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(TraceError, match=r"all\.tar\.gz::in/one\.csv"):
        read_trace(archive)
    result = read_trace(f"{archive}::in/two.csv")
    assert (result.workload.job_ids, result.workload.name, result.files) == (("in/two.csv",), "two", (archive,))
    with pytest.raises(TraceError, match=r"holds no file 'nix\.csv'; it has in/one\.csv, in/two\.csv"):
        read_trace(f"{archive}::nix.csv")
    (tmp_path / "t.csv").write_text(own("1,2,3,a"))
    assert any("all.tar.gz (is an archive" in note for note in read_trace(tmp_path).workload.notes)


def test_an_ambiguous_member_must_be_named_in_full(tmp_path: Path) -> None:
    archive = tmp_path / "all.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("a/w.csv", "b/w.csv"):
            data = own("1,2,3,x").encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(TraceError, match=r"a/w\.csv, b/w\.csv"):
        read_trace(f"{archive}::w.csv")


def test_calendar_times_and_seconds_are_not_mixed(tmp_path: Path) -> None:
    """Two plug-ins or two files of one format could differ; the merge itself must refuse."""
    from gpuloom.traces.merge import merge

    one = np.ones(1)
    sources = [Source("a", "a", b""), Source("b", "b", b"")]
    gpus = np.ones(1, dtype=np.int32)
    with pytest.raises(InputError, match="one clock"):
        merge("m", sources, [Part(one, one, gpus), Part(one, one, gpus, calendar=True)])


def test_undecodable_bytes(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(own("1,2,3,a").encode() + b"2,2,3,\xff\xfe\n3,2,3,\xc3\xa9\n")
    with pytest.raises(TraceError, match="not UTF-8") as caught:
        read_trace(file)
    assert caught.value.line == 3
    result = read_trace(file, skip_bad_rows=True)
    assert (result.workload.job_ids, len(result.bad_rows)) == (("a", "é"), 1)


def test_byte_order_mark_comments_empty_lines_and_crlf(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(
        b"\xef\xbb\xbf# made by hand\r\n\r\n" + own("1,2,3,a", "", "2,2,3,b").replace("\n", "\r\n").encode()
    )
    w = read_trace(file).workload
    assert (w.job_ids, w.line.tolist()) == (("a", "b"), [4, 6])


def test_lines_are_counted_across_quoted_line_breaks(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(own('1,2,3,"two\nlines"', "2,2,3,b", "3,oops,3,c"))
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert caught.value.line == 5
    assert read_trace(file, skip_bad_rows=True).workload.line.tolist() == [2, 4]


def test_broken_quotes(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(own("1,2,3,a", '2,2,3,"b"x', "3,2,3,c"))
    with pytest.raises(TraceError, match="not a row of a CSV file") as caught:
        read_trace(file)
    assert caught.value.line == 3
    assert read_trace(file, skip_bad_rows=True).workload.job_ids == ("a", "c")


def test_an_unclosed_quote_is_named_where_it_opens(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(own("1,2,3,a", '2,2,3,"b', "3,2,3,c"))
    with pytest.raises(TraceError, match="not a row of a CSV file") as caught:
        read_trace(file)
    assert caught.value.line == 3


@pytest.mark.parametrize("rows", [1, 7])
def test_chunks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(table, "CHUNK_ROWS", rows)
    file = tmp_path / "t.csv"
    file.write_text(own(*(f"{i},{i}.5,{i % 4 + 1},j{i}" for i in range(20)), "20,bad,1,j20"))
    result = read_trace(file, skip_bad_rows=True)
    assert result.workload.job_ids == tuple(f"j{i}" for i in range(20))
    assert result.workload.duration_s.tolist() == [i + 0.5 for i in range(20)]
    assert result.workload.line.tolist() == list(range(2, 22))
    assert [error.line for error in result.bad_rows] == [22]


def _plugin(reader: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("trace_plugin_for_tests")
    module.READER = reader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = EntryPoint("plug", "trace_plugin_for_tests:READER", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.GROUP else [])
    registry._plugins.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_plugins():
    yield
    registry._plugins.cache_clear()


def _read_toy(source: Source, options: ReadOptions) -> Part:
    rows = [line.split() for line in source.data.decode().splitlines()[1:]]
    columns = np.asarray(rows, dtype=np.float64).T
    return Part(columns[0], columns[1], columns[2].astype(np.int32), {"model": Labels.of("m" for _ in rows)})


TOY = Reader("toy", "Toy", "A plug-in.", lambda head: head.lines[:1] == ("TOY",), _read_toy)


def test_a_plugin_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plugin(TOY, monkeypatch)
    file = tmp_path / "t"
    file.write_text("TOY\n3 4 1\n1 2 8\n")
    assert "toy" in formats()
    for options in ({}, {"format": "toy"}):
        result = read_trace(file, **options)
        assert (result.format, result.workload.gpus.tolist()) == ("toy", [8, 1])


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        ("not a reader", "must be a gpuloom.traces.Reader"),
        (Reader("muri", "x", "x", lambda head: False, _read_toy), "which is in use"),
    ],
)
def test_a_bad_plugin_is_named(reader: object, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _plugin(reader, monkeypatch)
    with pytest.raises(InputError, match=reason):
        formats()
    assert registry.find("muri").title.startswith("Muri")  # built-in formats stay usable


def test_a_plugin_that_can_not_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("plug", "no_such_module_at_all:READER", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    registry._plugins.cache_clear()
    with pytest.raises(InputError, match=r"'plug'.*can't be loaded"):
        formats()


def test_head_of_binary_data_has_no_lines() -> None:
    assert Head.of(b"a,b\0c\n").lines == ()
    assert Head.of(b"").header == {""}


def test_a_reader_id_is_a_word() -> None:
    with pytest.raises(InputError, match="trace format id"):
        Reader("a b", "x", "x", lambda head: False, _read_toy)


def test_throughputs_that_the_format_has_no_use_for_are_told(tmp_path: Path) -> None:
    trace, measured = tmp_path / "jobs.csv", tmp_path / "measured.json"
    trace.write_text(own("0,10,1,a"))
    measured.write_text("{}")
    assert read_trace(trace).workload.notes == ()
    (note,) = read_trace(trace, throughputs=measured).workload.notes
    assert note == f"{measured}: not used, as traces of the format 'gpuloom' need no throughputs"
    takes = {id_ for id_, reader in formats().items() if reader.throughputs}
    assert takes == {"gavel", "shockwave", "pollux", "elasticflow"}


def test_of_what_is_no_text_no_lines_are_looked_at() -> None:
    """Neither of a Parquet file, whose first block may look like text, nor of anything with a NUL byte."""
    assert Head.of(b"PAR1\njob_id,gpus\n1,2\n").lines == ()
    assert Head.of(b"job_id,gpus\n1,\0\n").lines == ()
    text = b"\xef\xbb\xbf# a comment\n\n job_id,gpus\n" + b"1,2\n" * 20
    assert Head.of(text).lines == (" job_id,gpus", *["1,2"] * 7)
    assert Head.of(text).start == text
    assert Head.of(b"x" * 70_000).start == b"x" * 65_536
