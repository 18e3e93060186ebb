"""Kernel profiles: formats, imports, the library, finding by name; hostile files are InputErrors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.cli.share.group import share
from gpuloom.core.errors import InputError
from gpuloom.sharing.find import find_profile
from gpuloom.sharing.imports import parse_ncu, parse_torch
from gpuloom.sharing.orion import HEADER, parse_orion
from gpuloom.sharing.profiles import KernelProfile, KernelRecord, classify, collect, dumps, library_folder, loads, save
from gpuloom.sharing.shipped import SHIPPED, shipped
from tiers import examples

COLUMNS = (
    ("ID", "", "0", "1"),
    ("Process ID", "", "9", "9"),
    ("Kernel Name", "", "gemm(int, float)", "add"),
    ("CC", "", "8.0", "8.0"),
    ("Block Size", "", "(256, 1, 1)", "(128, 1, 1)"),
    ("Grid Size", "", "(432, 1, 1)", "(1024, 1, 1)"),
    ("gpu__time_duration.sum", "usecond", "12.5", "3"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "81.0", "10"),
    ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%", "20.5", "92"),
    ("launch__registers_per_thread", "register/thread", "64", "16"),
    ("launch__shared_mem_per_block_static", "Kbyte/block", "1.024", "0"),
    ("launch__shared_mem_per_block_dynamic", "byte/block", "0", "0"),
    ("device__attribute_multiprocessor_count", "", "108", "108"),
)
NCU = "==PROF== Connected\n" + "".join(
    ",".join(f'"{cell}"' for cell in row) + "\n" for row in zip(*COLUMNS, strict=True)
)


def event(name: str, ts: float, dur: float, **args: object) -> dict[str, object]:
    base = {"grid": [432, 1, 1], "block": [256, 1, 1], "registers per thread": 64, "shared memory": 0}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": base | args}


def trace(*events: dict[str, object]) -> str:
    properties = [{"name": "NVIDIA A100", "numSms": 108, "computeMajor": 8, "computeMinor": 0}]
    return json.dumps({"deviceProperties": properties, "traceEvents": list(events)})


def test_orion_splits_from_the_right() -> None:
    profile = parse_orion(f"{HEADER}\nvoid f<a, b>(c, d),1,0,98,100480\nConv,0,0,4,500\nx,-1,0,0,7\n", "r")
    first, second, third = profile.kernels
    assert (first.name, first.klass, first.sm_slots, first.duration_ns) == ("void f<a, b>(c, d)", "compute", 98, 100480)
    assert (first.compute_util, first.dram_util) == (0.8, 0.3)
    assert (second.klass, second.dram_util, third.klass, third.compute_util) == ("memory", 0.8, "unknown", None)
    assert second.compute_util == pytest.approx(0.3 * 4 / 80)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{HEADER}\na,-1,1,1,7\n", "placeholder"),
        (f"{HEADER}\na,2,0,1,700\n", "column 'Profile'"),
        (f"{HEADER}\na,1,0,1.5,700\n", "column 'SM_usage'"),
        (f"{HEADER}\na,1,0,1,-700\n", "column 'Duration'"),
        (f"{HEADER}\n1,0,1,700\n", "4 columns"),
        (f"{HEADER}\n", "no kernels"),
        ("Name,Duration\n", "must begin with"),
    ],
)
def test_orion_refuses(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_orion(text, "x")


def test_fb0_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="placeholder"):
        parse_orion(f"{HEADER}\na,1,0,1,700\n", "bert_8_fb0")


def test_ncu() -> None:
    profile = parse_ncu(NCU, "serve", 1, "")
    gemm, add = profile.kernels
    assert (profile.sm_count, profile.cc) == (108, "8.0")
    assert (gemm.duration_ns, gemm.compute_util, gemm.dram_util, gemm.klass) == (12500, 0.81, 0.205, "compute")
    assert (gemm.shared_bytes, gemm.registers, gemm.blocks, gemm.sm_slots) == (1024, 64, 432, 108)
    assert (add.klass, add.sm_slots) == ("memory", 64)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"12.5"', '"twelve"', "row 1, column 'gpu__time_duration.sum'"),
        ('"12.5"', '""', "lasts 0 ns"),
        ('"(432, 1, 1)"', '"432"', "Grid Size"),
        ('"8.0","(256', '"3.5","(256', "capability '3.5'"),
        ('"ID",', '"Id",', "must hold a line"),
        ('"ID",', '"ID","Metric Name",', "details page"),
    ],
)
def test_ncu_refuses(old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_ncu(NCU.replace(old, new, 1), "serve", 1, "")


def ncu(*columns: tuple[str, str, str]) -> str:
    """A raw page with one kernel: columns by name, unit, value."""
    fixed = [("ID", "", "1"), ("Kernel Name", "", "k"), ("Block Size", "", "(256, 1, 1)"),
             ("Grid Size", "", "(80, 1, 1)"), ("CC", "", "8.0")]  # fmt: skip
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in zip(*fixed, *columns, strict=True)) + "\n"


@pytest.mark.parametrize(
    ("unit", "value", "ns"),
    [
        ("ns", "4,512.00", 4512), ("nsecond", "4512", 4512), ("us", "4.51", 4510), ("usecond", "4.512", 4512),
        ("ms", "1.5", 1_500_000), ("msecond", "1.5", 1_500_000), ("s", "0.002", 2_000_000), ("second", "1", 10**9),
        ("", "4512", 4512),
    ],
)  # fmt: skip
def test_ncu_durations_by_unit(unit: str, value: str, ns: int) -> None:
    (kernel,) = parse_ncu(ncu(("gpu__time_duration.sum", unit, value)), "x", 1, "").kernels
    assert kernel.duration_ns == ns


@pytest.mark.parametrize(
    ("unit", "value", "count"),
    [
        ("byte/block", "1,040", 1040), ("Kbyte/block", "34.816000", 34816), ("Kbyte/block", "98.30", 98304),
        ("Kbyte/block", "1.02", 1024), ("Kbyte/block", "1.04", 1040), ("byte/block", "1001", 1001), ("", "0", 0),
    ],
)  # fmt: skip
def test_ncu_shared_memory_by_unit_and_as_it_was_before_rounding(unit: str, value: str, count: int) -> None:
    columns = ("gpu__time_duration.sum", "us", "5"), ("launch__shared_mem_per_block_dynamic", unit, value)
    (kernel,) = parse_ncu(ncu(*columns), "x", 1, "").kernels
    assert (kernel.dynamic_shared_bytes, kernel.shared_bytes) == (count, count)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([("gpu__time_duration.sum", "cycle", "5")], "the unit is 'cycle', must be one of ns, nsecond, us"),
        ([("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "5")], "no column gpu__time_duration.sum; record"),
        (
            [
                ("gpu__time_duration.sum", "us", "5"),
                ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "inst/cycle", "5"),
            ],
            "the unit is 'inst', must be one of %",
        ),
    ],
)
def test_ncu_refuses_units_it_does_not_know(columns: list[tuple[str, str, str]], told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_ncu(ncu(*columns), "x", 1, "")


def test_torch_trace_in_order_of_time_and_last_step() -> None:
    step = [{"name": f"ProfilerStep#{n}", "ts": 100 * n, "dur": 90} for n in (1, 2)]
    text = trace(event("late", 250, 5), event("f", 210, 2), event("f", 220, 4), event("warm-up", 110, 9), *step)
    profile = parse_torch(text, "serve", 1, "", steps=1)
    assert [kernel.name for kernel in profile.kernels] == ["f", "f", "late"]
    assert [kernel.duration_ns for kernel in profile.kernels] == [
        3000,
        3000,
        5000,
    ]  # one kernel: the mean of two samples
    assert (profile.sm_count, profile.cc, profile.device, profile.records[0].samples) == (108, "8.0", "NVIDIA A100", 2)
    assert profile.records[0].sm_slots == 108
    assert len(parse_torch(text, "serve", 1, "").order) == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "must be an object"),
        ("{}", "must be an object"),
        (trace(), "holds no kernel"),
        (trace(event("f", 1, 0)), "above 0"),
        (trace(event("f", 1, 2, grid=[0, 1, 1])), "grid"),
        (trace(event("f", 1, 2, block=[4096, 1, 1])), "4096 threads"),
    ],
)
def test_torch_refuses(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_torch(text, "serve", 1, "")


def test_classes() -> None:
    assert [classify(0.6, 0.9), classify(0.59, 0.6), classify(0.5, 0.5), classify(None, None)] == [
        "compute",
        "memory",
        "unknown",
        "unknown",
    ]


names = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
records = st.builds(
    KernelRecord,
    names,
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**62),
    st.none() | st.floats(0, 1),
    st.none() | st.floats(0, 1),
    st.sampled_from(("compute", "memory", "unknown")),
)


@given(st.lists(records, min_size=1, max_size=8), names, names)
def test_written_and_read_again(kernels: list[KernelRecord], name: str, source: str) -> None:
    profile = KernelProfile(name, 80, tuple(kernels), tuple(range(len(kernels)))[::-1], source=source)
    assert loads(dumps(profile)) == profile


def test_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    mine = collect("mine", 80, [KernelRecord("f", 3, 1000)])
    path = save(mine, library_folder())
    assert find_profile("mine") == (mine, str(path))
    with pytest.raises(InputError, match="--overwrite"):
        save(mine, library_folder())
    save(collect("resnet50", 80, [KernelRecord("g", 3, 1000)]), library_folder())
    assert find_profile("resnet50")[0].records[0].name == "g"  # the user's wins over the shipped one
    with pytest.raises(InputError, match="mine, resnet50, resnet50, resnet50-train"):
        find_profile("other")
    for bad in ("", "../x", ".x", "a:b", " x"):
        with pytest.raises(InputError, match="can't be a profile's name"):
            save(KernelProfile(bad, 80, mine.records, mine.order), library_folder())


def test_found_below_a_folder(tmp_path: Path) -> None:
    text = f"{HEADER}\nf,1,0,9,7000\n"
    for folder, what in (("model_kernels", text), ("profiles", text), ("old", text.replace("7000", "8000"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a_fwd").write_text(what)
    (tmp_path / "LICENSE").write_text("no profile")
    profile, where = find_profile("a_fwd", tmp_path)
    assert profile.duration_ns == 7000
    assert where == f"{tmp_path}/model_kernels/a_fwd (not {tmp_path}/old/a_fwd)"
    with pytest.raises(InputError, match=r"no profile b below .*; there are a_fwd"):
        find_profile("b", tmp_path)


def test_the_shipped_are_what_their_layers_come_to() -> None:
    """ResNet-50 has 53 convolutions, each followed by an elementwise kernel, and a dense layer; an image takes 3.8
    billion multiplications (He et al., CVPR 2016, table 1)."""
    one, training = shipped("resnet50"), shipped("resnet50-train")
    assert (len(one.kernels), len(training.kernels)) == (2 * 53 + 1, 6 * 53 + 3)
    peak = 15.7e12
    for profile, images, passes in ((one, 4, 1), (training, 32, 3)):
        flops = sum(k.compute_util * k.duration_ns for k in profile.kernels if not k.name.startswith("bn")) * peak / 1e9
        assert flops / images / passes / 2 == pytest.approx(3.86e9, rel=0.03)
    assert (one.duration_ns, training.duration_ns) == (3_915_591, 108_074_726)
    first = one.kernels[0]  # 4 x 64 x 112 x 112 outputs, 2,048 a block; 0.65 of the peak
    assert (first.blocks, first.sm_slots, first.compute_util) == (1568, 784, 0.65)
    assert first.duration_ns == pytest.approx(1e9 * 2 * 4 * 64 * 112**2 * 3 * 7**2 / (0.65 * peak), abs=1)
    totals = [(sum(k.blocks for k in p.kernels), sum(k.sm_slots for k in p.kernels)) for p in (one, training)]
    assert totals == [(31_016, 15_517), (513_572, 256_788)]
    dram = [sum(k.dram_util for k in p.kernels) for p in (one, training)]
    assert dram == pytest.approx([41.0332853, 115.4311059])


def test_shipped_are_estimates_that_say_so() -> None:
    for name in SHIPPED:
        profile = shipped(name)
        assert "not measured" in profile.source
        assert all(k.duration_ns > 0 and k.sm_slots > 0 for k in profile.kernels)
    # He et al.: 3.8 billion multiply-adds for an image in the convolutions; training does three times the work.
    assert 50 < shipped("resnet50-train").duration_ns / 1e6 < 200
    assert 2 < shipped("resnet50").duration_ns / 1e6 < 10


hostile = st.text(max_size=60) | st.sampled_from(
    ["-1", "nan", "1e999", "٣", "9" * 5000, '"', "\x00", "null", "[]", "true"]
)


def refused_or_sound(read: Callable[[], KernelProfile]) -> None:
    """A profile that is taken can be used, written and read again; any other is an InputError."""
    try:
        profile = read()
    except InputError:
        return
    assert profile.kernels
    assert profile.sm_count >= 1
    assert profile.duration_ns == sum(kernel.duration_ns for kernel in profile.kernels)
    for kernel in profile.records:
        assert kernel.duration_ns >= 0
        assert kernel.sm_slots >= 0
        assert kernel.klass in ("compute", "memory", "unknown")
    assert loads(dumps(profile)) == profile


@given(st.lists(st.lists(hostile, max_size=6).map(",".join), max_size=4))
@settings(max_examples=examples(100))
def test_orion_fuzzed(lines: list[str]) -> None:
    refused_or_sound(lambda: parse_orion("\n".join([HEADER, *lines]), "fuzz"))


@given(st.sampled_from(NCU.split('"')[1::2]), hostile)
@settings(max_examples=examples(300))
def test_ncu_fuzzed(old: str, new: str) -> None:
    refused_or_sound(lambda: parse_ncu(NCU.replace(old, new, 1), "fuzz", 1, "8.0"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(("ph", "cat", "name", "ts", "dur", "args")), values),
    st.dictionaries(st.sampled_from(("grid", "block", "registers per thread", "shared memory")), values),
    values,
)
@settings(max_examples=examples(300))
def test_torch_fuzzed(change: dict[str, object], args: dict[str, object], properties: object) -> None:
    text = json.dumps({"deviceProperties": properties, "traceEvents": [event("f", 1, 2, **args) | change]})
    refused_or_sound(lambda: parse_torch(text, "fuzz", 1, "8.0", steps=1))


FIELDS = (
    "name",
    "klass",
    "sm_slots",
    "duration_ns",
    "compute_util",
    "grid",
    "samples",
    "blocks",
    "order",
    "sm_count",
    "cc",
)


@given(st.integers(0, 2), st.sampled_from(FIELDS), values)
@settings(max_examples=examples(300))
def test_own_format_fuzzed(line: int, field: str, value: object) -> None:
    lines = dumps(collect("p", 80, [KernelRecord("f", 3, 1000)])).splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | {field: value})
    refused_or_sound(lambda: loads("\n".join(lines)))


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    for parse in (
        lambda: loads(text),
        lambda: parse_torch(text, "x", 1, "8.0"),
        lambda: parse_ncu(text, "x", 1, "8.0"),
    ):
        with pytest.raises(InputError):
            parse()


TRACE_OF_ONE = json.dumps(
    {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2,
                      "args": {"grid": [1, 1, 1], "block": [32, 1, 1]}}]}
)  # fmt: skip


def share_profiles(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(share, ["profiles", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_show_each_tells_all_that_is_recorded_and_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    (tmp_path / "serve.csv").write_text(NCU)
    assert share_profiles("import", str(tmp_path / "serve.csv"))[0] == 0
    lines = [line.split() for line in share_profiles("show", "serve", "--each", "--top", "1")[1].splitlines()]
    assert lines[-2][-10:] == ["1", "12.5", "432x1x1", "256x1x1", "64", "1024", "108", "81%", "20%", "compute"]
    assert lines[-1] == ["and", "1", "more", "records", "(--top)"]
    (first, second) = json.loads(share_profiles("show", "serve", "--each", "--json")[1])["records"]
    assert (first["blocks"], first["threads_per_block"], first["registers"], first["launches"]) == (432, 256, 64, 1)
    assert second["klass"] == "memory"


def test_diff_names_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    text = share_profiles("diff", "resnet50", "resnet50-train", "--top", "1")[1].splitlines()
    assert text[0].startswith("before: resnet50, 3.9")
    assert text[1].startswith("after:  resnet50-train, 108.")
    assert text[3].split() == ["kernel", "launches", "before", "after", "ms", "before", "after", "change"]
    assert text[-1].endswith("more kernels (--top)")


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("{", (), "not JSON"),
        ('{"traceEvents": []}', (), "holds no kernel"),
        (TRACE_OF_ONE, (), "compute capability of the GPU is missing: .* --cc"),
        (TRACE_OF_ONE, ("--cc", "8.0"), "--sm-count"),
        (TRACE_OF_ONE, ("--cc", "3.0", "--sm-count", "8"), "capability '3.0' is not known"),
        ("name,time\n", (), "no PyTorch trace .* no CSV of ncu"),
    ],
)
def test_import_says_what_is_missing(
    text: str, options: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=told):
        share_profiles("import", str(tmp_path / "x.json"), *options)
    assert not (tmp_path / "kernels").exists()
