"""How the shim is built: the ABI against cuda.h, CMake against the compiler alone, sanitizers, parsers fuzzed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuloom.sharing.shim import build, compiler, native
from gpuloom.sharing.table import signature
from shim_kit import SOURCES, Stage, built, cmake_program, configure, told

pytestmark = pytest.mark.slow

SANITIZERS = ("address", "undefined", "thread")
BUILDS = ("address", "thread")
"""Of the first is what the second sanitizer finds, too."""
MANGLED = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
    "_ZN2at6native49_GLOBAL__N__3f1b2c4d_17_Normalization_cu_a1b2c3d427batch_norm_transform_kernelIffEEvT_",
    "_ZN2at4cuda12_GLOBAL__N_15kerneIfEEvPT_",
    "_ZL9copy_rowsPfS_i",
    "_ZNK3foo3barIiEEvT_",
    "_ZSt4sortIPiEvT_S1_",
    "_ZZN3abc3defEvENKUlvE_clEv",
    "_Z4gemmILi128ELb1EEvPKfPf",
)


def headers() -> Path:
    """The folder of cuda.h of the wheel nvidia-cuda-runtime (-cu12), which the extra `dev` brings."""
    for folder in map(Path, sys.path):
        for inside in ("nvidia/cuda_runtime/include", "nvidia/cu13/include"):
            if (folder / inside / "cuda.h").is_file():
                return folder / inside
    pytest.fail("cuda.h is needed: pip install nvidia-cuda-runtime-cu12")


def abi_differs(sources: Path) -> bool:
    """Whether the compiler finds a difference between abi.h and cuda.h."""
    command = compiler.compiler()
    assert command is not None
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{headers()}"]
    done = subprocess.run(
        [*command, *flags, str(sources / "tests" / "test_abi.c")], capture_output=True, text=True, check=False
    )
    return done.returncode != 0


def abi_changes(text: str) -> Iterator[tuple[str, str]]:
    """What can be wrong with abi.h, one thing at a time: a value, a size, a field, a parameter."""
    for found in re.finditer(r"#define (CU\w+) (\d+)$", text, re.MULTILINE):
        yield found[1], text.replace(found[0], f"#define {found[1]} {int(found[2]) + 7}")
    for found in re.finditer(r"#define (CU_STREAM_\w+) \(\(CUstream\)0x(\d)\)", text):
        yield found[1], text.replace(found[0], f"#define {found[1]} ((CUstream)0x{int(found[2]) + 2})")
    for found in re.finditer(r"typedef (int|unsigned long long|uint64_t) (\w+);", text):
        yield found[2], text.replace(found[0], f"typedef char {found[2]};")
    yield "CUuuid", text.replace("bytes[16]", "bytes[12]")
    config = text[text.index("unsigned gridDimX") : text.index("} CUlaunchConfig")]
    for line in config.strip().split("\n"):
        yield line.strip(), text.replace(line, "", 1)
    for found in re.finditer(r"#define (P_\w+)\s*(?:\\\n)?\s*\((?:[^()]|\\\n)*\)", text):
        if found[1] != "P_VOID":
            yield (
                f"{found[1]} lacks one",
                text.replace(found[0], re.sub(r",[^,()]*\)$|\([^,()]*\)$", "(void)", found[0])),
            )
        yield (
            f"{found[1]} has one more",
            text.replace(
                found[0], found[0][:-1].replace("(void", "(") + ("" if found[1] == "P_VOID" else ", ") + "int more)"
            ),
        )


def test_the_abi_is_that_of_cuda_h_and_every_change_of_it_is_found(tmp_path: Path) -> None:
    assert not abi_differs(SOURCES)
    shutil.copytree(SOURCES, tmp_path / "native", ignore=shutil.ignore_patterns("fake"))
    text = (SOURCES / "abi.h").read_text()
    missed, tried = [], 0
    for what, changed in abi_changes(text):
        assert changed != text, what
        tried += 1
        (tmp_path / "native" / "abi.h").write_text(changed)
        if not abi_differs(tmp_path / "native"):
            missed.append(what)
    assert missed == []
    assert tried >= 80


def test_every_hook_is_compared_with_cuda_h() -> None:
    """By its own name, or by another form of the same function (_ptsz and _ptds have the same parameters)."""
    compared = set(re.findall(r"SIGNATURE\((\w+)", (SOURCES / "tests" / "test_abi.c").read_text()))
    hooked = re.findall(r"^HOOK\((\w+)", (SOURCES / "hooks.def").read_text(), re.MULTILINE)
    compared.add("cuStreamBeginCaptureToGraph")  # by begin_capture_to
    assert [name for name in hooked if re.sub("_pt[ds][sz]$", "", name) not in compared] == []


def test_cmake_and_the_compiler_alone_build_the_same(tmp_path: Path) -> None:
    """Sources and the flags that change what the code does."""
    configure(tmp_path, "-G", "Unix Makefiles")
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    made: dict[str, set[str]] = {}
    for entry in commands:
        target = re.search(r"CMakeFiles/(\w+)\.dir", entry["command"])
        assert target is not None
        made.setdefault(target[1], set()).add(Path(entry["file"]).name)
        if entry["file"].endswith(".c"):
            words = entry["command"].split()
            assert {"-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden"} <= set(words)
            assert [word for word in words if word.startswith(("-DN", "-O")) and word != "-O2"] == []
    assert made["gpuloom_shim"] == set(build.C_SOURCES)
    assert made["gpuloom_admission"] == {name for name in native.SOURCES if name.endswith(".c")}
    included = set()
    for name in (*build.C_SOURCES, *build.HEADERS):
        included |= set(re.findall(r'#include "([\w./]+)"', (SOURCES / name).read_text()))
    assert included | {"shim.map"} == set(build.HEADERS), "the cache is by what these files say"


def test_an_unknown_sanitizer_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [cmake_program(), "-S", str(SOURCES), "-B", str(tmp_path), "-DGPULOOM_SANITIZE=adress"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "must be address, undefined, thread" in done.stderr


@pytest.mark.parametrize("kind", BUILDS)
def test_the_shim_runs_under_each_sanitizer(kind: str, tmp_path: Path) -> None:
    """Two programs at once on the fake driver, and what a program can do alone. A finding ends the program."""
    stage = Stage(built(kind), tmp_path)
    try:
        plain = stage.run("", "hash", "100")
        service = stage.start("high", "serve", "5", "5", "50000", "1e6")
        training = stage.start("best-effort", "train", "2e8", "10", "50000")
        told(service)
        told(training)
        for klass in ("high", "best-effort"):
            assert stage.run(klass, "hash", "100") == plain
            for command in ("threads", "capture", "fork", "unload", "library", "errors"):
                stage.run(klass, command, *(["100"] if command == "threads" else []))
    finally:
        stage.end()


@pytest.mark.parametrize(
    ("kind", "body", "finding"),
    [
        ("address", "char *p = calloc(4, 1); return p[argc + 8];", "heap-buffer-overflow"),
        ("undefined", "int a = 2147483647; return a + argc > 0;", "signed integer overflow"),
        ("thread", "", "data race"),
    ],
    ids=SANITIZERS,
)
def test_a_sanitizer_build_does_find_faults(kind: str, body: str, finding: str, tmp_path: Path) -> None:
    """The options reach compiler and linker: a fault put into a test program is found by the same build."""
    source = tmp_path / "native"
    shutil.copytree(SOURCES, source)
    code = f"#include <stdlib.h>\nint main(int argc, char **argv) {{ (void)argv; (void)argc; {body} }}\n"
    if kind == "thread":
        code = (
            "#include <pthread.h>\nint n;\n"
            "static void *add(void *p) { for (int i = 0; i < 1000; i++) n++; return p; }\n"
            "int main(void) { pthread_t t; pthread_create(&t, 0, add, 0); add(0); pthread_join(t, 0); return 0; }\n"
        )
    (source / "tests" / "profiles.c").write_text(code)
    made = tmp_path / "made"
    options = [f"-DGPULOOM_SANITIZE={kind}", "-DGPULOOM_TESTS=ON"]
    compiler.run_compiler([cmake_program(), "-S", str(source), "-B", str(made), *options], source)
    compiler.run_compiler([cmake_program(), "--build", str(made), "--target", "profiles"], source)
    done = subprocess.run(
        [str(made / "profiles")], env={**os.environ, "LD_LIBRARY_PATH": str(made / "gpuloom_shim")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert finding in done.stderr


@pytest.fixture(scope="module")
def parser() -> Callable[..., list[str]]:
    """The shim's parsers under ASan and UBSan, by lines of input."""
    program = str(built("address").program("profiles"))

    def run(mode: str, lines: list[bytes], profile: Path | None = None) -> list[str]:
        environment = {"GPULOOM_SHARE_PROFILE": str(profile)} if profile else {}
        done = subprocess.run(
            [program, mode], input=b"\n".join(lines) + b"\n", env=environment, capture_output=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode("utf-8", "replace")
        return done.stdout.decode("utf-8", "replace").split("\n")[:-1]

    return run


def mutated(source: random.Random, text: bytes) -> bytes:
    """A text with some bytes changed, left out, repeated or set in."""
    made = bytearray(text)
    for _ in range(source.randint(1, 6)):
        at = source.randrange(len(made) + 1)
        match source.randrange(4):
            case 0:
                made[at : at + 1] = bytes([source.choice(b"_ZNILESt0123456789KVrROB\t-.x\xff\x80")])
            case 1:
                del made[at : at + source.randint(1, 8)]
            case 2:
                made[at:at] = made[at : at + source.randint(1, 8)]
            case _:
                made[at:at] = str(source.choice((0, 1, 9, 99, 1023, 1024, 2**31, 2**32, 2**64, 10**30))).encode()
    return bytes(made).replace(b"\n", b"").replace(b"\0", b"")


def test_mangled_names_are_cut_as_python_cuts_them_whatever_they_are(parser: Callable[..., list[str]]) -> None:
    source = random.Random(6)
    names = [name.encode() for name in MANGLED]
    names += [mutated(source, source.choice(names[:8])) for _ in range(20_000)]
    names += [
        b"_ZN" + b"1a" * 5000 + b"E",
        b"_Z" + b"9" * 5000,
        b"_ZN1000" + b"a" * 1000 + b"E",
        b"_ZN1023" + b"a" * 1023,
    ]
    found = parser("names", names)[:-1]
    assert len(found) == len(names)
    compared = 0
    for name, told_signature in zip(names, found, strict=True):
        try:
            text = name.decode("ascii")
        except UnicodeDecodeError:
            continue
        if text.startswith("_Z"):
            compared += 1
            assert signature(text) == told_signature, text
    assert compared > 10_000
    assert sum(bool(line) for line in found) > 5_000


ROW = b"_ZN2at4funcILi4EEEvi\t80\t1\t1\t256\t1\t1\t1024\t40\t0.7\t0.25\t15000\tcompute"


def test_tables_are_read_whatever_they_hold(parser: Callable[..., list[str]], tmp_path: Path) -> None:
    source = random.Random(7)
    path = tmp_path / "table.tsv"
    asked = [ROW.split(b"\t")[0] + b"\t80 1 1 256 1 1 1024"]
    for _ in range(40):
        rows = [mutated(source, ROW) for _ in range(200)]
        path.write_bytes(b"\n".join([*rows, ROW, b"# told", b"", rows[0][:50]]))
        answer, count = parser("find", asked, path)
        assert 1 <= int(count.removeprefix("rows=")) <= 201
        match, _, compute, dram, _, klass = answer.split()
        assert match == "1"
        assert 0 <= float(compute) <= 1 or float(compute) == -1
        assert 0 <= float(dram) <= 1 or float(dram) == -1
        assert klass in "012"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=4000))
def test_a_file_of_any_bytes_is_read_as_a_table(
    parser: Callable[..., list[str]], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "table.tsv"
    path.write_bytes(content)
    assert parser("find", [b"k\t1 1 1 1 1 1 0"], path)[0].startswith("0 ")


@pytest.mark.parametrize(
    "change",
    [
        (9, b"nan"), (9, b"inf"), (9, b"1.1"), (9, b"-0.1"), (10, b"0,3"), (1, b"-1"), (1, b"4294967296"), (7, b""),
        (8, b"x"), (11, b"1e5"), (11, b"9223372036854775808"), (12, b"Compute"), (12, b"compute\t"), (0, b""),
    ],
)  # fmt: skip
def test_a_line_with_a_value_that_cannot_be_is_passed_over(
    parser: Callable[..., list[str]], tmp_path: Path, change: tuple[int, bytes]
) -> None:
    fields = ROW.split(b"\t")
    fields[change[0]] = change[1]
    path = tmp_path / "table.tsv"
    path.write_bytes(b"\t".join(fields) + b"\n" + ROW + b"\n")
    asked = ROW.split(b"\t")[0] + b"\t80 1 1 256 1 1 1024"
    assert parser("find", [asked], path) == ["1 40 0.7000 0.2500 15000 1", "rows=1"]


def test_what_a_table_says_of_a_kernel_in_what_order(parser: Callable[..., list[str]], tmp_path: Path) -> None:
    """Name before signature, known shared memory before unknown, the first of two lines; last the class alone."""
    own, other = "_ZN2at4funcILi4EEEvi", "_ZN2at4funcILi8EEEvi"

    def row(name: str, shared: str, ns: int, grid: int = 80) -> str:
        block = 256 if grid else 0
        size = 1 if grid else 0
        return "\t".join(
            map(str, (name, grid, size, size, block, size, size, shared, 40, 0.5, 0.25, ns, "compute"))
        )  # fmt: skip

    path = tmp_path / "table.tsv"
    path.write_text(
        "\n".join(
            [
                row(own, "64", 1), row(own, "64", 2), row(own, "-", 3), row("at::func", "64", 4),
                row("at::func", "-", 5), row("at::func", "-", 6, grid=0),
            ]
        )
    )  # fmt: skip
    asked = [
        f"{name}\t{grid} 1 1 256 1 1 {shared}"
        for name, grid, shared in ((own, 80, 64), (own, 80, 65), (other, 80, 64), (other, 80, 65), (other, 9, 64))
    ]
    found = [line.split() for line in parser("find", [line.encode() for line in asked], path)[:-1]]
    assert [(line[0], line[4]) for line in found[:4]] == [("1", "1"), ("1", "3"), ("2", "4"), ("2", "5")]
    assert found[4] == ["3", "0", "-1.0000", "-1.0000", "0", "1"]
