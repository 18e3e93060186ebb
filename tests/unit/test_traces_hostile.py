"""Whatever a file holds, reading it ends with jobs or with an error that gpuloom raises on purpose."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuloom.core.errors import InputError
from gpuloom.traces import read_trace
from test_traces_formats import RATES, SAMPLES, _profiles
from tiers import examples

TEXTS = [(format_id, text) for format_id, texts in SAMPLES.items() for text in texts]
PIECES = [
    b'"', b",", b"\n", b"\r", b"\t", b"nan", b"-", b"1e400", b"9" * 20, b"\xff", b"\0", b"#", b'"a\nb"', b" ",
    b"9999-12-31 23:59:59", b"0001-01-01 00:00:00+14:00", b"\xef\xbb\xbf",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("hostile")
    (path / "rates.json").write_text(json.dumps(RATES))
    _profiles(path / "profiles")
    return path


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sample=st.sampled_from(TEXTS),
    cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), st.sampled_from(PIECES)), max_size=3),
    forced=st.booleans(),
    skip=st.booleans(),
)
def test_a_damaged_trace_never_crashes(folder, sample, cuts, forced: bool, skip: bool) -> None:
    format_id, text = sample
    data = bytearray(text.encode())
    for start, length, piece in cuts:
        data[start : start + length] = piece
    file = folder / "trace"
    file.write_bytes(bytes(data))
    throughputs = folder / ("profiles" if format_id == "pollux" else "rates.json")
    try:
        read = read_trace(file, format=format_id if forced else None, skip_bad_rows=skip, throughputs=throughputs)
    except InputError:
        return
    w = read.workload
    assert len(w) > 0
    assert (np.diff(w.submit_s) >= 0).all()
    assert skip or not read.bad_rows
