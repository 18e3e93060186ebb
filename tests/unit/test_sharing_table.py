"""The table of a kernel profile that the shim reads: signatures, rows, means; what a user can name."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.errors import InputError
from gpuloom.sharing.profiles import KernelProfile, KernelRecord, collect, dumps
from gpuloom.sharing.shipped import shipped
from gpuloom.sharing.table import is_table, signature, table, table_of, write_table

# Names as a PyTorch trace, ncu or Orion's files write them, and what both sides know them by.
DEMANGLED = [
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)",
        "at::native::vectorized_elementwise_kernel",
    ),
    (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)",
        "at::native::(anonymous namespace)::vectorized_layer_norm_kernel",
    ),
    ("void at::native::<unnamed>::softmax<4>(float *)", "at::native::(anonymous namespace)::softmax"),
    ("void (anonymous namespace)::softmax<4>(float*)", "(anonymous namespace)::softmax"),
    ("void at::native::elementwise_kernel", "at::native::elementwise_kernel"),
    ("void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm>(cutlass::Params)", "cutlass::Kernel"),
    ("add(float*, int)", "add"),
    ("void gemm<128, true>(float const*)", "gemm"),
    ("abc::def()::{lambda()#1}::operator()() const", "abc::def"),
    ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu_0"),
    ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
    ("", ""),
    ("(", ""),
]


@pytest.mark.parametrize(("name", "expected"), DEMANGLED)
def test_signatures_of_demangled_names(name: str, expected: str) -> None:
    assert signature(name) == expected


def part(*names: str) -> str:
    """Identifiers as a mangled name holds them."""
    return "".join(f"{len(name)}{name}" for name in names)


@pytest.mark.parametrize(
    "mangled",
    [
        f"_ZN{part('at', 'native', 'vectorized_elementwise_kernel')}ILi4EfEEviT0_",
        f"_ZN{part('at', 'native', '_GLOBAL__N__3f1b2c4d_17_Norm_cu_a1b2c3d4', 'transform')}IffEEvT_",
        f"_ZN{part('at', '_GLOBAL__N_1', 'kernel')}IfEEvPT_",
        f"_ZL{part('copy_rows')}PfS_i",
        f"_ZNK{part('foo', 'bar')}IiEEvT_",
        f"_ZSt{part('sort')}IPiEvT_S1_",
        f"_Z{part('gemm')}ILi128ELb1EEvPKfPf",
        f"_ZN{part('outer')}IfE{part('run')}Ev",
        f"_ZN{part('a', 'b')}B5cxx11Ev",
    ],
)
def test_a_mangled_name_and_what_a_demangler_makes_of_it_have_one_signature(mangled: str) -> None:
    """The demangler of the C++ library, which PyTorch's profiler uses."""
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_char_p
    shown = demangle(mangled.encode(), None, None, None)
    assert shown is not None, "not a mangled name"
    assert signature(mangled) == signature(shown.decode()) != ""


@given(st.text(max_size=300) | st.text("_ZNILESt0123456789:<>() ab", max_size=60).map("_Z".__add__))
def test_any_text_has_a_signature_or_none(name: str) -> None:
    found = signature(name)
    assert len(found.encode("utf-8", "replace")) <= max(1023, len(name.encode("utf-8", "replace")))


def record(name: str, ns: int, *, klass: str = "compute", grid: int = 80, **more: object) -> KernelRecord:
    made = KernelRecord(name, 40, ns, 0.7, 0.2, klass, (grid, 1, 1), (256, 1, 1), grid, 256)
    return replace(made, **more)  # type: ignore[arg-type]


def rows(*records: KernelRecord, order: tuple[int, ...] = ()) -> dict[tuple[str, str, str], list[str]]:
    """Rows by name, first number of the grid, and shared memory: SMs, compute, dram, duration and class of each."""
    profile = KernelProfile("p", 108, records, order or tuple(range(len(records))))
    made = {}
    for line in table(profile).splitlines()[1:]:
        fields = line.split("\t")
        assert len(fields) == 13
        key = (fields[0], fields[1], fields[7])
        assert key not in made, "two rows with one key: one of them would be passed over"
        made[key] = fields[8:]
    return made


def test_a_plain_name_has_its_row_and_one_for_its_class() -> None:
    assert rows(record("axpy", 5000)) == {
        ("axpy", "80", "0"): ["40", "0.7000", "0.2000", "5000", "compute"],
        ("axpy", "0", "-"): ["0", "-", "-", "0", "compute"],
    }


def test_a_mangled_name_has_rows_by_its_own_name_and_by_its_signature() -> None:
    name = f"_ZN{part('at', 'k')}ILi4EEEvi"
    assert set(rows(record(name, 5000))) == {
        (name, "80", "0"), ("at::k", "80", "0"), (name, "0", "-"), ("at::k", "0", "-"),
    }  # fmt: skip


def test_records_of_one_signature_merge_weighted_by_launches() -> None:
    few = record("void at::k<4>(int)", 1000, compute_util=None)
    many = record("void at::k<2>(int)", 4000, sm_slots=41, compute_util=0.9)
    assert rows(few, many, order=(0, 1, 1)) == {
        ("at::k", "80", "0"): ["41", "0.9000", "0.2000", "3000", "compute"],
        ("at::k", "0", "-"): ["0", "-", "-", "0", "compute"],
    }


def test_a_class_by_signature_alone_needs_all_records_to_agree() -> None:
    found = rows(record("void at::k<4>(int)", 1000), record("void at::k<4>(int)", 9000, klass="memory", grid=8))
    assert set(found) == {("at::k", "80", "0"), ("at::k", "8", "0")}
    assert rows(record("f", 10, klass="unknown")).keys() == {("f", "80", "0")}


def test_shared_memory_that_a_trace_tells_as_a_sum_alone_is_unknown() -> None:
    assert ("f", "80", "-") in rows(record("f", 10, shared_bytes=4096))
    assert ("f", "80", "1024") in rows(record("f", 10, shared_bytes=4096, dynamic_shared_bytes=1024))


def test_records_without_a_grid_tell_only_their_class() -> None:
    orion = record("void at::k", 10, grid=0, block=(0, 0, 0))
    assert rows(orion) == {("at::k", "0", "-"): ["0", "-", "-", "0", "compute"]}


def test_names_that_would_break_a_line_are_left_out() -> None:
    assert rows(record("a\tb", 1), record("#c", 1), record("d\ne", 1), record("f", 1)).keys() == {
        ("f", "80", "0"), ("f", "0", "-"),
    }  # fmt: skip


@pytest.mark.slow
def test_a_profile_that_is_too_large_for_the_shim_is_refused() -> None:
    launches = [record(f"k{i}", 1, klass="unknown") for i in range(65_537)]
    with pytest.raises(InputError, match=r"65537 kernels, the shim takes 65536"):
        table(collect("big", 108, launches))


def test_the_shim_takes_so_many_rows_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = [record(f"k{i}", 1, klass="unknown") for i in range(4)]
    monkeypatch.setattr("gpuloom.sharing.table.MAX_ROWS", 4)
    assert len(table(collect("p", 108, launches)).splitlines()) == 5
    with pytest.raises(InputError, match="5 kernels, the shim takes 4"):
        table(collect("p", 108, [*launches, record("more", 1, klass="unknown")]))


TRACE = {
    "deviceProperties": [{"name": "A100", "numSms": 108, "computeMajor": 8, "computeMinor": 0}],
    "traceEvents": [
        {
            "ph": "X", "cat": "kernel", "name": "void at::k<4>(int)", "ts": 1, "dur": 5.5,
            "args": {"grid": [80, 1, 1], "block": [256, 1, 1], "registers per thread": 16, "shared memory": 0},
        }
    ],
}  # fmt: skip
NCU = (
    '"ID","Kernel Name","Block Size","Grid Size","CC","gpu__time_duration.sum","launch__registers_per_thread",'
    '"launch__shared_mem_per_block_dynamic"\n'
    '"","","","","","us","register/thread","Kbyte/block"\n'
    '"0","axpy","(256, 1, 1)","(80, 1, 1)","8.0","5.5","16","1.024"\n'
)


def test_whatever_is_a_profile_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "home"))
    own = dumps(KernelProfile("p", 108, (record("stored", 7000),), (0,)))
    (tmp_path / "home" / "kernels").mkdir(parents=True)
    (tmp_path / "home" / "kernels" / "mine.kernels.jsonl").write_text(own)
    files = {
        "own.kernels.jsonl": own,
        "trace.json": json.dumps(TRACE),
        "ncu.csv": NCU,
        "orion_fwd": "Name,Profile,Memory_footprint,SM_usage,Duration\nvoid at::k,1,0,40,9000\n",
        "made.tsv": "# a table\nf\t1\t1\t1\t32\t1\t1\t0\t1\t-1\t-1\t100\tmemory\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "stored\t80\t1\t1\t256\t1\t1\t0\t40\t0.7000\t0.2000\t7000\tcompute\n" in table_of("mine")
    assert table_of(str(tmp_path / "own.kernels.jsonl")) == table_of("mine").replace("mine", "p")
    assert "at::k\t80\t1\t1\t256\t1\t1\t0\t10\t-\t-\t5500\tunknown\n" in table_of(str(tmp_path / "trace.json"))
    assert "axpy\t80\t1\t1\t256\t1\t1\t1024\t10\t-\t-\t5500\tunknown\n" in table_of(str(tmp_path / "ncu.csv"))
    assert "at::k\t0\t0\t0\t0\t0\t0\t-\t0\t-\t-\t0\tcompute\n" in table_of(str(tmp_path / "orion_fwd"))
    assert table_of(str(tmp_path / "made.tsv")) == files["made.tsv"]
    assert table_of("resnet50") == table(shipped("resnet50"))
    with pytest.raises(InputError, match=r"no kernel profile other, .* there are mine, resnet50"):
        table_of("other")
    (tmp_path / "notes.txt").write_text("a\tb\n")
    with pytest.raises(InputError, match="no PyTorch trace"):
        table_of(str(tmp_path / "notes.txt"))


def test_a_table_is_known_by_its_first_row() -> None:
    assert is_table("# c\n\n" + "\t".join("a" * 13))
    assert not is_table("# c\n" + "\t".join("a" * 12))
    assert not is_table("")


def test_a_table_is_written_once_and_where_it_cannot_be_it_is_said(tmp_path: Path) -> None:
    path = write_table("text\n", tmp_path)
    before = path.stat().st_mtime_ns
    assert write_table("text\n", tmp_path) == path
    assert path.stat().st_mtime_ns == before
    path.write_text("te")  # cut short by a full disk
    assert write_table("text\n", tmp_path).read_text() == "text\n"
    assert write_table("other\n", tmp_path) != path
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InputError, match="can't be written"):
        write_table("text\n", tmp_path / "none")
