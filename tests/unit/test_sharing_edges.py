"""Kernel profiles, their sources and the sharing rule at the edges of what they take, and what is said beyond."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuloom.core.errors import InputError
from gpuloom.core.job import DeviceKind
from gpuloom.sharing import find, imports, operators, orion, profiles, rule, simulate, start, table
from gpuloom.sharing.profiles import KernelProfile, KernelRecord, collect, dumps, loads

RECORD = KernelRecord("k", 4, 1000, 0.5, 0.25, "compute", (4, 1, 1), (64, 1, 1), 4, 64, 32, 128, 64, 2)
PROFILE = KernelProfile(
    "p", 80, (RECORD, replace(RECORD, name="m", klass="memory", sm_slots=100)), (0, 1, 1), "V", "7.0"
)


def kernel(name: str, ts: float, dur: float, **args: object) -> dict[str, Any]:
    given = {"grid": [64, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0, **args}
    return {"ph": "X", "cat": "Kernel", "name": name, "ts": ts, "dur": dur, "args": given}


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": ts, "dur": dur}


# -- other formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title"),
    [("a.kernels.jsonl", "a"), ("b.pt.trace.json", "b"), ("c.csv", "c"), ("d.txt", "d.txt"), ("e.json.csv", "e.json")],
)
def test_titles(name: str, title: str) -> None:
    assert imports.title_of(Path("/x") / name) == title


def torch(*events: Any, **properties: object) -> str:
    known = {"name": "A100", "numSms": 108, "computeMajor": 8, "computeMinor": 0, **properties}
    return json.dumps({"deviceProperties": [known], "traceEvents": events})


def test_what_a_file_is_is_told_by_its_beginning() -> None:
    at = Path("f.pt.trace.json")
    one = torch(kernel("k", 1, 2))
    assert imports.read_any(at, one).name == "f"
    assert imports.read_any(at, "\n " + one, "n", 5).sm_count == 108
    assert imports.read_any(at, dumps(PROFILE)) == PROFILE
    assert imports.read_any(at, dumps(PROFILE), "n").name == "n"
    row = f"{orion.HEADER}\nk,1,0,4,500\n"
    assert [imports.read_any(at, row, name).name for name in ("", "n")] == ["f.pt.trace.json", "n"]
    with pytest.raises(InputError, match="not a kernel profile: none of gpuloom"):
        imports.read_any(at, "x\n")
    unknown = torch(kernel("k", 1, 2), numSms=0)
    assert imports.read_any(at, unknown, need_sm_count=False).sm_count == 1
    assert [imports.read_any(at, unknown, sm_count=n).sm_count for n in (1, 7)] == [1, 7]
    with pytest.raises(InputError, match="does not say how many SMs"):
        imports.read_any(at, unknown)


def test_the_last_step_of_a_trace_alone() -> None:
    text = torch(kernel("a", 9, 1), step(1, 10, 5), kernel("b", 10, 1), kernel("c", 12, 1), step(0, 3, 5))
    assert [k.name for k in imports.read_any(Path("f"), text, last_step=True).kernels] == ["b", "c"]
    assert [k.name for k in imports.read_any(Path("f"), text).kernels] == ["a", "b", "c"]


def test_values_of_a_trace() -> None:
    found = imports.parse_torch(torch(kernel("k", 1, 2.5, **{"shared memory": 32})), "n", 1, "").records[0]
    assert (found.grid, found.block, found.blocks, found.threads_per_block) == ((64, 1, 1), (256, 1, 1), 64, 256)
    assert (found.registers, found.shared_bytes, found.dynamic_shared_bytes, found.duration_ns) == (32, 32, 0, 2500)
    text = torch({**kernel("k", 1, 2), "dur": "0.0004"}, name=3, computeMajor="8")
    other = imports.parse_torch(text, "n", 4, "9.0")
    assert (other.device, other.cc, other.sm_count, other.records[0].duration_ns) == ("", "9.0", 108, 1)
    assert other.source == "PyTorch profiler; utilisations unknown"


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({**kernel("k", 1, 2), "args": 3}, "f: event 0: a kernel without name or args"),
        ({**kernel("k", 1, 2), "name": 3}, "a kernel without name or args"),
        ({**kernel("k", 1, 2), "ts": "x"}, "ts is 'x', must be a number"),
        ({**kernel("k", 1, 2), "dur": 1e300}, "dur is 1e\\+300, must be a number"),
        (kernel("k", 1, 2, grid=[1, 1]), "grid is \\[1, 1\\], must be three whole numbers from 1"),
        (kernel("k", 1, 2, block=[1, 1, True]), "must be three whole numbers from 1"),
        (kernel("k", 1, 2, **{"shared memory": -1}), "shared memory is -1, must be a whole number"),
        (kernel("k", 1, 2, **{"registers per thread": 1.5}), "must be a whole number"),
        (kernel("\ud800", 1, 2), "the kernel's name is not text"),
        (kernel("k", 1, 2, grid=[2**32 - 1, 2**32 - 1, 1]), "larger than any GPU takes"),
    ],
)
def test_traces_that_are_refused(event: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        imports.parse_torch(torch(event), "n", 1, "", "f")


CSV = {
    "ID": ("", "0"), "Kernel Name": ("", "k"), "CC": ("", ""), "Grid Size": ("", "(8,1,1)"),
    "Block Size": ("", "32, 1, 1"),
    "gpu__time_duration.sum": ("us", "1.5"), "launch__registers_per_thread": ("", "40"),
    "launch__shared_mem_per_block_static": ("byte", "16"), "launch__shared_mem_per_block_dynamic": ("Kbyte", "1.02"),
    "device__attribute_display_name": ("", "T4"), "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "120"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "n/a"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("", "1"),
}  # fmt: skip


def ncu(units: bool = True, **changes: str) -> str:
    cells = {name: (unit, changes.get(name, value)) for name, (unit, value) in CSV.items()}
    rows = [list(cells), [unit for unit, _ in cells.values()], [value for _, value in cells.values()]]
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in (rows if units else rows[::2])) + "\n\n"


def test_a_csv_of_ncu() -> None:
    found = imports.parse_ncu("of the program\n" + ncu(), "n", 3, "7.5")
    assert (found.sm_count, found.cc, found.device) == (3, "7.5", "T4")
    assert found.source == "Nsight Compute, imported from its CSV"
    (one,) = found.records
    assert (one.duration_ns, one.registers, one.shared_bytes, one.dynamic_shared_bytes) == (1500, 40, 1040, 1024)
    assert (one.compute_util, one.dram_util, one.klass, one.grid, one.block) == (
        0.01,
        1.0,
        "memory",
        (8, 1, 1),
        (32, 1, 1),
    )
    assert imports.parse_ncu(ncu(CC="8.0"), "n", 3, "7.5").cc == "8.0"
    (plain,) = imports.parse_ncu(ncu(units=False, **{"gpu__time_duration.sum": "7"}), "n", 3, "7.5").records
    assert (plain.duration_ns, plain.dynamic_shared_bytes) == (7, 1)
    with pytest.raises(InputError, match="row 1 has 12 columns, must have 13"):
        imports.parse_ncu(ncu().replace('"k",', "", 1), "n", 3, "7.5")
    for value in ("-1", "x", "1e19"):
        with pytest.raises(
            InputError, match=r"row 1, column 'launch__registers_per_thread': '.*', must be a number from 0"
        ):
            imports.parse_ncu(ncu(launch__registers_per_thread=value), "n", 3, "7.5")
    with pytest.raises(InputError, match="the compute capability of the GPU is missing"):
        imports.parse_ncu(ncu(), "n", 3, "")


def test_orions_numbers() -> None:
    found = orion.parse_orion(f"{orion.HEADER}\r\na,1,0,0,0\r\n\nb,0,0,160,200\nc,-1,0,40,99\n", "r")
    assert [(k.sm_slots, k.duration_ns, k.compute_util, k.dram_util) for k in found.kernels] == [
        (1, 1, 0.8 * (1 / 80), 0.3 * (1 / 80)), (160, 200, 0.3, 0.8), (40, 99, None, None),
    ]  # fmt: skip
    assert (found.sm_count, found.cc, found.device, found.order) == (80, "7.0", "V100", (0, 1, 2))
    assert found.source.endswith("0.8 of what bounds it, 0.3 of the other")
    assert orion.parse_orion(f"{orion.HEADER}\na,-1,0,1,100\n", "r").kernels[0].duration_ns == 100
    for row, told in (("a,-2,0,1,1", "'-2', must be a whole number from -1 to 1"), ("a,1,0,1,--1", "'--1', must be"),
                      ("a,1,0,1,00000000000000000001", "must be"), ("a,1,0,2147483648,1", "to 214748364")):  # fmt: skip
        with pytest.raises(InputError, match=f"r:2, column .*{told}"):
            orion.parse_orion(f"{orion.HEADER}\n{row}\n", "r")


def test_work_of_attention_and_of_gradients() -> None:
    dims: list[Any] = [[2, 3, 4, 8], [2, 5, 4, 8], [2, 5, 4, 8], *[[]] * 6]
    types = ["c10::Half"] * 3 + ["Scalar"] * 6
    for causal, part in (("True", 0.5), ("False", 1.0)):
        given = {"Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * 8 + [causal]}
        work = operators.work_of("aten::_flash_attention_forward", given)
        assert work == operators.Work("mm:c10::Half", part * 4 * 2 * 4 * 3 * 5 * 8, 2 * (2 * 192 + 2 * 320))
    for mask, wanted in (("[True, True, True]", 2), ("[False, True, True]", 1), ("[True, False, False]", 1), ("", 2)):
        given = {"Input Dims": [[2, 4, 3, 3], [2, 2, 3, 3], [4, 2, 1, 1], *[[]] * 8],
                 "Input type": ["float"] * 3 + [""] * 8,
                 "Concrete Inputs": [""] * 10 + [mask]}  # fmt: skip
        work = operators.work_of("aten::convolution_backward", given)
        assert work == operators.Work("conv:float", 2.0 * 72 * 2 * wanted, 4 * (72 * wanted + 2 * (36 + 8)))
    for name in ("baddbmm", "_addmm_activation", "addmm_"):
        given = {"Input Dims": [[], [3, 8, 4], [3, 4, 2]], "Input type": ["double"] * 3}
        assert operators.work_of(f"aten::{name}", given) == operators.Work("mm:double", 384, 8 * 3 * 56)
    given = {"Input Dims": [[2, 1], [2, 3], []], "Input Types": ["bool", "int", "Scalar"]}
    assert operators.work_of("aten::where", given) == operators.Work("mm:float", 6, 2 + 24 + 24)
    assert operators.work_of("aten::sum", given) == operators.Work("mm:float", 6, 26)
    assert operators.work_of("aten::sum", {"Input Dims": [[]], "Input type": ["Scalar"]}) is None


# -- the format of its own, the library -------------------------------------------------------------------------------


def test_what_a_profile_tells() -> None:
    assert (PROFILE.duration_ns, PROFILE.mean_sm, PROFILE.share_of_class("memory")) == (3000, (4 + 80 + 80) / 3, 2 / 3)
    assert RECORD.as_kernel() == rule.Kernel(4, "compute", 0.5, 0.25, 1000)
    assert RECORD.key == ("k", (4, 1, 1), (64, 1, 1), 64)
    assert loads(dumps(PROFILE)) == PROFILE
    several = [replace(RECORD, samples=3, duration_ns=10), replace(RECORD, samples=1, duration_ns=20)]
    assert [(r.duration_ns, r.samples) for r in collect("c", 1, several).records] == [(12, 4)]
    for sm_count, order, told in ((0, (0,), "sm_count is 0"), (2**32, (0,), "sm_count is"), (1, (), "holds no kernel"),
                                  (1, (1,), "names a record"), (1, (-1,), "names a record")):  # fmt: skip
        with pytest.raises(InputError, match=told):
            KernelProfile("p", sm_count, (RECORD,), order)
    assert KernelProfile("p", 2**32 - 1, (RECORD,), (0,)).duration_ns == 1000


@pytest.mark.parametrize(
    ("line", "change", "told"),
    [
        (0, {"format": "x"}, "f: not a kernel profile"),
        (0, {"version": 2}, "f:1: version 2 of the format, this gpuloom reads 1"),
        (0, {"name": 3}, "f:1: name is 3, must be text"),
        (0, {"sm_count": 0}, "f:1: sm_count is 0, must be a whole number from 1 to 4294967295"),
        (1, {"name": "\ud800"}, "f:2: name is .* must be text"),
        (1, {"klass": "x"}, "f:2: klass is 'x', must be one of unknown, compute, memory"),
        (1, {"sm_slots": 0}, "sm_slots is 0, must be a whole number from 1 to"),
        (1, {"duration_ns": 0}, "duration_ns is 0, must be a whole number from 1"),
        (1, {"duration_ns": 2**63}, "must be a whole number from 1"),
        (1, {"samples": 0}, "samples is 0, must be a whole number from 1"),
        (1, {"blocks": -1}, "blocks is -1, must be a whole number from 0"),
        (1, {"compute_util": 1.01}, "compute_util is 1.01, must be from 0 to 1, or null"),
        (1, {"dram_util": -0.1}, "dram_util is -0.1"),
        (1, {"dram_util": True}, "dram_util is True"),
        (1, {"grid": [1, 2]}, "grid is \\[1, 2\\], must be three whole numbers"),
        (1, {"block": [1, 2, -1]}, "block is"),
        (3, {"order": [0, "1"]}, 'f:4: the last line must be {"order"'),
        (3, {"order": [2]}, "f: profile p: order names a record"),
    ],
)
def test_files_of_profiles_that_are_refused(line: int, change: dict[str, Any], told: str) -> None:
    lines = dumps(PROFILE).splitlines()
    lines[line] = json.dumps({**json.loads(lines[line]), **change})
    with pytest.raises(InputError, match=told):
        loads("\n".join(lines), "f")


def test_edges_of_what_a_profile_holds() -> None:
    lines = dumps(PROFILE).splitlines()
    least = {"name": "", "sm_slots": 1, "duration_ns": 1, "compute_util": 0, "dram_util": 1, "grid": [0, 0, 2**32 - 1]}
    lines[1] = json.dumps(least)
    record = loads("\n".join(lines)).records[0]
    assert record == KernelRecord("", 1, 1, 0.0, 1.0, grid=(0, 0, 2**32 - 1))
    assert (record.klass, record.samples, record.blocks, record.block) == ("unknown", 1, 0, (0, 0, 0))
    lines[1] = json.dumps({**least, "duration_ns": 2**63 - 1, "sm_slots": 2**32 - 1})
    assert loads("\n".join(lines)).records[0].sm_slots == 2**32 - 1


def test_where_profiles_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    for gpuloom, data, folder in (("/g", "/d", "/g/kernels"), ("~/g", "/d", "/home/ada/g/kernels"),
                                  ("", "/d", "/d/gpuloom/kernels"),
                                  ("", "d", "/home/ada/.local/share/gpuloom/kernels")):  # fmt: skip
        monkeypatch.setenv("GPULOOM_HOME", gpuloom)
        monkeypatch.setenv("XDG_DATA_HOME", data)
        assert profiles.library_folder() == Path(folder)
    for name in ("", " a", "a/b", "a:b", "a\\b", ".a", "a\n", "a" * 101):
        with pytest.raises(InputError, match="can't be a profile's name"):
            profiles.check_name(name)
    profiles.check_name("a" * 100)
    big = tmp_path / "big"
    big.write_bytes(b"\xef\xbb\xbfa")
    assert profiles.read_text(big) == "a"
    monkeypatch.setattr(profiles, "MAX_BYTES", 3)
    with pytest.raises(InputError, match="4 bytes, a profile has at most 3"):
        profiles.read_text(big)
    monkeypatch.setattr(profiles, "MAX_BYTES", 4)
    assert profiles.read_text(big) == "a"
    big.write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"not text in UTF-8 \(byte 2\)"):
        profiles.read_text(big)
    with pytest.raises(InputError, match="No such file"):
        profiles.read_text(tmp_path / "none")


def test_profiles_below_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = dumps(PROFILE)
    for place in ("b/p.kernels.jsonl", "a/c/p.kernels.jsonl", "q.kernels.jsonl", "readme"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text if place != "readme" else "x")
    (tmp_path / "r_fb1").write_text(f"{orion.HEADER}\nk,1,0,4,500\n")
    names = [path.relative_to(tmp_path).as_posix() for path in find.profile_files(tmp_path)]
    assert names == ["q.kernels.jsonl", "r_fb1", "b/p.kernels.jsonl", "a/c/p.kernels.jsonl"]
    assert find.find_profile("p", tmp_path) == (PROFILE, str(tmp_path / "b/p.kernels.jsonl"))
    (tmp_path / "a/c/p.kernels.jsonl").write_text(text + "\n")
    note = f"{tmp_path}/b/p.kernels.jsonl (not {tmp_path}/a/c/p.kernels.jsonl)"
    assert find.find_profile("p.kernels.jsonl", tmp_path)[1] == note
    with pytest.raises(InputError, match=r"no profile pq below .*; there are p, q$"):
        find.find_profile("pq", tmp_path)
    with pytest.raises(InputError, match=r"there are p, q, r_fb1$"):
        find.find_profile("z", tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        find.find_profile("p", tmp_path / "none")
    assert find.MAX_FILES == 20_000
    monkeypatch.setattr(find, "MAX_FILES", 8)
    assert len(find.profile_files(tmp_path)) == 4
    monkeypatch.setattr(find, "MAX_FILES", 7)
    with pytest.raises(InputError, match="holds more than 7 files"):
        find.profile_files(tmp_path)


# -- the rule, the virtual GPU, the start -----------------------------------------------------------------------------


def test_parameters_of_rules() -> None:
    plain = rule.Params.default("gpuloom").as_c()
    assert (plain.rule, rule.Params("orion").as_c().rule, rule.RULES.index("orion")) == (3, 2, 2)
    with pytest.raises(InputError, match="no sharing rule 'x'; there are none, priority, orion, gpuloom"):
        rule.Params.default("x")
    with pytest.raises(InputError, match="no sharing rule 'x'"):
        rule.Params("x").as_c()
    for change, told in (({"price": -1.0}, "price of a sharing rule is -1.0"), ({"price": float("inf")}, "is inf"),
                         ({"look_ahead": 2}, "look_ahead is 2, must be from 0 to 1"), ({"lone": 2**32}, "lone is"),
                         ({"max_hold_ns": -1}, "max_hold_ns is -1"), ({"max_hold_ns": 2**64}, "max_hold")):  # fmt: skip
        with pytest.raises(InputError, match=told):
            rule.Params("none", **change).as_c()
    most = rule.Params("none", look_ahead=1, lone=2**32 - 1, max_hold_ns=2**64 - 1, price=0.0).as_c()
    assert (most.look_ahead, most.lone, most.max_hold_ns) == (1, 2**32 - 1, 2**64 - 1)
    made = rule.Kernel(2**32 - 1, "memory", None, 0.5, 7).as_c()
    assert (made.sm, made.klass, made.compute, made.dram, made.duration_ns) == (2**32 - 1, 2, -1.0, 0.5, 7)
    assert rule.Kernel(1, "compute", 0.25).as_c().dram == -1.0
    for kernel_ in (rule.Kernel(2**32), rule.Kernel(1, "x"), rule.Kernel(-1)):
        with pytest.raises(InputError):
            kernel_.as_c()


def test_the_machine_of_the_virtual_gpu() -> None:
    usual = simulate.Machine()
    assert (usual.launch_us, usual.submit_us, usual.gap_us, usual.wake_us) == (4.0, 2.0, 1.0, 3.0)
    assert (usual.cache_interference, usual.jitter, usual.queue_depth) == (0.05, 0.05, 1024)
    fine = {"submit_us": 0.0, "gap_us": 0.0, "wake_us": 0.0, "cache_interference": 0.0, "jitter": 0.0, "queue_depth": 1}
    simulate.Machine(**fine)  # type: ignore[arg-type]
    simulate.Machine(jitter=0.999, cache_interference=2.0, queue_depth=2**20, launch_us=1e-3)
    for change in ({"jitter": 1.0}, {"gap_us": -1e-9}, {"wake_us": 1e6}, {"submit_us": float("nan")},
                   {"launch_us": 0.0},
                   {"launch_us": 1e6}, {"queue_depth": 0}, {"queue_depth": 2**20 + 1}):  # fmt: skip
        with pytest.raises(InputError, match=f"{next(iter(change))} is"):
            simulate.Machine(**change)


def test_arrivals() -> None:
    for rate, count in ((0.0, 1), (float("inf"), 1), (1.0, 0), (1.0, 10_000_001)):
        with pytest.raises(InputError):
            simulate.poisson_arrivals(rate, count, 0)
    assert len(simulate.poisson_arrivals(5.0, 1, 0)) == 1
    assert simulate.poisson_arrivals(5.0, 4000, 1)[-1] == pytest.approx(800, rel=0.05)
    for gaps in ([], [0.0, 0.0], [-1.0, 2.0], [float("nan")], [86_400.1]):
        with pytest.raises(InputError):
            simulate.trace_arrivals(gaps, 3)
    assert simulate.trace_arrivals([86_400.0, 0.0], 3).tolist() == [86_400.0, 86_400.0, 172_800.0]
    assert simulate.trace_arrivals([1.0, 3.0], 3, 2.0).tolist() == [0.25, 1.0, 1.25]
    for wrong in ([], [-0.1], [1.0, 0.5], [float("inf")]):
        with pytest.raises(InputError, match="arrivals must be at least one, finite, from 0, ascending"):
            simulate.Pair(PROFILE, PROFILE, np.array(wrong))
    with pytest.raises(InputError, match="both must be of one GPU model"):
        simulate.Pair(PROFILE, replace(PROFILE, sm_count=81), np.array([0.0]))
    with pytest.raises(InputError, match=r"1 requests arrive over 8\.641e"):
        simulate.Pair(PROFILE, PROFILE, np.array([86_410.0]))


def test_a_pairs_outcome_has_all_its_figures() -> None:
    pair = simulate.Pair(PROFILE, PROFILE, np.array([0.0, 0.0, 1e-4]), simulate.Machine(jitter=0.0))
    alone = 1e-6 * simulate.request_alone_ns(PROFILE, pair.machine)
    found = pair.outcome("none", trace_s=(0.0, 1e-5))
    assert (found.rule, found.requests, found.held_launches, found.held_ms) == ("none", 3, 0, {})
    assert found.alone_p50_ms == pytest.approx(alone, rel=0.2)
    assert found.p99_over_alone == found.p99_ms / found.alone_p99_ms
    assert found.best_effort_over_alone == pytest.approx(found.best_effort_it_per_s / found.best_effort_alone_it_per_s)
    assert (len(found.served), found.sm_utilisation >= found.sm_utilisation_high > 0) == (2, True)
    assert found.served[0][0] == 0.0 <= found.served[0][1] < found.served[0][2] <= found.served[1][2]
    assert sum(found.admitted.values()) > 0 == len(found.held_first)
    assert {span.kind for span in found.spans} == {"high", "best-effort"}
    assert "spans" not in found.as_dict()
    assert pair.load == pytest.approx(3 * alone / 1e3 / 1e-4, rel=0.5)
    assert pair.outcome("none").served == ()


def test_what_a_machine_can_share() -> None:
    cpu: Any = SimpleNamespace(kind=DeviceKind.CPU)
    found = start.ability(cpu, {})
    assert (found.able, found.gated, found.environment) == (True, False, {})
    lacking = [SimpleNamespace(needed=True, ok=False, what="compiler", text="none"),
               SimpleNamespace(needed=False, ok=False),
               SimpleNamespace(needed=True, ok=True)]  # fmt: skip
    gpu: Any = SimpleNamespace(kind=DeviceKind.GPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuloom.sharing.shim.attach.examine", lambda environment: lacking)
        found = start.ability(gpu, {})
        assert (found.able, found.gated, found.why) == (
            False, False, "the shim can't be active on this machine (compiler: none)",
        )  # fmt: skip
        patch.setattr("gpuloom.sharing.shim.attach.examine", lambda environment: lacking[1:])
        patch.setattr("gpuloom.sharing.shim.attach.shared_folder", lambda environment: Path("/s"))
        found = start.ability(gpu, {"GPULOOM_SHARE_DRIVER": "/d", "A": "1"})
        assert (found.able, found.gated) == (True, True)
        assert found.environment == {"GPULOOM_SHARE_DIR": "/s", "GPULOOM_SHARE_DRIVER": "/d"}
        assert start.ability(gpu, {"GPULOOM_SHARE_DRIVER": ""}).environment == {"GPULOOM_SHARE_DIR": "/s"}
    gated = replace(found, environment={"B": "2"})
    argv, env = start.under_the_shim(gated, 7, "high", "", ["a", "b"], {"GPULOOM_SHARE": "off", "A": "1"})
    assert argv == (
        sys.executable,
        "-I",
        "-m",
        "gpuloom",
        "share",
        "run",
        "--class",
        "high",
        "--name",
        "job 7",
        "--",
        "a",
        "b",
    )
    assert env == {"A": "1", "B": "2"}
    for one, klass in ((gated, ""), (start.NO_SHARING, "high")):
        assert start.under_the_shim(one, 7, klass, "resnet50", ["a"], {"GPULOOM_SHARE": "off"}) == (
            ("a",),
            {"GPULOOM_SHARE": "off"},
        )
    assert (start.NO_SHARING.able, start.NO_SHARING.gated) == (False, False)


def test_rows_of_the_shims_table() -> None:
    records = [
        replace(RECORD, compute_util=None, duration_ns=1),
        replace(RECORD, sm_slots=7, duration_ns=4, klass="memory"),
    ]
    profile = KernelProfile("a b", 80, tuple(records), (0, 1, 1))
    assert table.table(profile).splitlines() == [
        "# a b: made by gpuloom share run",
        "k\t4\t1\t1\t64\t1\t1\t64\t6\t0.5000\t0.2500\t3\tunknown",
    ]
    assert table.signature("x" * 1023) == "x" * 1023
    assert table.signature("void f<int>(x)") == "f"
