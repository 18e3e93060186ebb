"""The shim's Python parts one by one: what the doctor says, shared files, libraries, MPS, and what is compiled when."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.core.errors import InputError
from gpuloom.sharing.shim import attach, build, compiler, mps, native, shm
from gpuloom.sharing.shim.attach import Finding, ShimSettings


def refuses(text: str) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise InputError(text)

    return call


def said(call: Callable[[], object]) -> str:
    """What it answers, or why it does not."""
    try:
        return str(call())
    except InputError as error:
        return str(error)


# -- the doctor --------------------------------------------------------------------------------------------------------


def test_the_switch() -> None:
    off = "GPULOOM_SHARE=off: the shim passes everything through; unset it"
    assert attach._kill_switch({"GPULOOM_SHARE": "off"}) == Finding("switch", False, off, needed=True)
    assert attach._kill_switch({"GPULOOM_SHARE": "on"}) == Finding("switch", True, "GPULOOM_SHARE is not off", True)


def test_the_compiler_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compiler", lambda: ["gcc", "-m64"])
    assert attach._compiler() == Finding("compiler", True, "gcc -m64")
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    monkeypatch.setattr(compiler, "no_compiler", lambda: "there is none")
    text = "there is none; only what gpuloom brings compiled can be used"
    assert attach._compiler() == Finding("compiler", None, text)


def test_the_rule_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library_path", lambda: Path("/l.so"))
    for installed, origin in ((Path("/l.so"), "installed"), (Path("/m.so"), "compiled here"), (None, "compiled here")):
        monkeypatch.setattr(native, "installed_library", lambda installed=installed: installed)
        assert attach._rule() == Finding("rule", True, f"/l.so ({origin})")
    monkeypatch.setattr(native, "library_path", refuses("gone"))
    assert attach._rule() == Finding("rule", False, "share simulate won't work: gone")


def test_the_shim_in_a_line_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    shim, driver = Path("/shim.so"), Path("/driver.so")
    names = {driver: {"cuA", "cuB", "cuC", "cuD", "cuE"}, shim: {"cuC"}}
    monkeypatch.setattr(build, "shim_path", lambda driver: shim)
    monkeypatch.setattr(build, "installed_shim", lambda: shim)
    monkeypatch.setattr(build, "exported", lambda path: frozenset(names[path]))
    assert attach._shim(None) == [Finding("shim", True, "/shim.so (installed)", needed=True)]
    monkeypatch.setattr(build, "installed_shim", lambda: None)
    text = "the shim lacks 4 functions of the driver (cuA, cuB, cuD, …): a compiler is needed"
    assert attach._shim(driver) == [
        Finding("shim", True, "/shim.so (compiled here)", needed=True),
        Finding("libraries", False, text),
    ]
    names[shim] |= names[driver]
    assert attach._shim(driver)[1] == Finding("libraries", True, "the shim has every function of the driver")
    monkeypatch.setattr(build, "shim_path", refuses("no sources"))
    assert attach._shim(driver) == [Finding("shim", False, "no sources", needed=True)]


def test_mps_and_profiling_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mps, "control", lambda: "/bin/mps")
    assert attach._mps() == Finding("MPS", True, "/bin/mps: programs' kernels can run at the same time")
    monkeypatch.setattr(mps, "control", lambda: None)
    text = "nvidia-cuda-mps-control not found: programs' contexts take turns; best effort runs between requests"
    assert attach._mps() == Finding("MPS", None, text)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert attach._profiling() == Finding("profiling", True, "root: ncu may read performance counters")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(attach, "NVIDIA_PARAMETERS", tmp_path / "params")
    text = "no NVIDIA kernel module here; profiles can be imported"
    assert attach._profiling() == Finding("profiling", None, text)
    (tmp_path / "params").write_text("A: 1\nRmProfilingAdminOnly: 0\n")
    assert attach._profiling() == Finding("profiling", True, "ncu may read performance counters")
    (tmp_path / "params").write_text("A: 0\nRmProfilingAdminOnly: 1\n")
    text = "ncu needs administrator rights here (RmProfilingAdminOnly); PyTorch's profiler does not"
    assert attach._profiling() == Finding("profiling", None, text)


def test_the_shim_is_active_where_all_that_it_needs_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needed, not_needed = Finding("a", False, "", needed=True), Finding("b", False, "")
    assert attach.active([not_needed, Finding("c", True, "", needed=True)])
    assert not attach.active([needed])
    assert not attach.active([Finding("d", None, "", needed=True)])
    assert attach.active([])
    for name in ("_compiler", "_rule", "_mps", "_profiling"):
        monkeypatch.setattr(attach, name, lambda name=name: Finding(name, None, ""))
    shims: list[Path | None] = []
    monkeypatch.setattr(attach, "_shim", lambda driver: shims.append(driver) or [])
    monkeypatch.setattr(attach, "find_driver", lambda environment: Path("/d.so"))
    monkeypatch.setattr(attach, "shared_folder", lambda environment: tmp_path)
    found = {one.what: one for one in attach.examine({})}
    assert list(found) == ["switch", "driver", "_compiler", "_rule", "shared memory", "_mps", "_profiling"]
    assert found["driver"] == Finding("driver", True, "/d.so", needed=True)
    assert found["shared memory"] == Finding("shared memory", True, str(tmp_path), needed=True)
    monkeypatch.setattr(attach, "find_driver", lambda environment: None)
    monkeypatch.setattr(attach, "shared_folder", refuses("others may write"))
    found = {one.what: one for one in attach.examine({})}
    text = "no libcuda.so.1 found: install NVIDIA's driver, or set GPULOOM_SHARE_DRIVER"
    assert found["driver"] == Finding("driver", False, text, needed=True)
    assert found["shared memory"] == Finding("shared memory", False, "others may write", needed=True)
    monkeypatch.setattr(attach, "find_driver", refuses("no such file"))
    assert attach.examine({})[1] == Finding("driver", False, "no such file", needed=True)
    assert shims == [Path("/d.so"), None, None]


# -- programs under it -------------------------------------------------------------------------------------------------


def test_a_folder_in_which_the_drivers_names_are_the_shim(tmp_path: Path) -> None:
    shim = tmp_path / "shim.so"
    shim.write_text("x")
    folder = attach.library_folder(tmp_path, shim)
    seen = shim.stat()
    assert folder.name == f"lib-{seen.st_dev:x}-{seen.st_ino:x}-{seen.st_mtime_ns:x}"
    (folder / "libcuda.so").unlink()
    (folder / "libcuda.so").symlink_to("elsewhere")
    kept = (folder / "libcuda.so.1").lstat().st_ino
    (folder / f".libcuda.so.{os.getpid()}").write_text("of one that was killed")
    assert attach.library_folder(tmp_path, shim) == folder
    assert sorted(os.listdir(folder)) == ["libcuda.so", "libcuda.so.1"]
    assert {(folder / name).readlink() for name in os.listdir(folder)} == {shim}
    assert (folder / "libcuda.so.1").lstat().st_ino == kept


def test_variables_of_a_program(tmp_path: Path) -> None:
    shim = tmp_path / "shim.so"
    shim.write_text("x")
    libraries = str(attach.library_folder(tmp_path, shim))

    def made(settings: ShimSettings, **base: str) -> dict[str, str]:
        return attach.program_environment(settings, base, shim=shim, driver=Path("/d.so"), shared=tmp_path)

    plain = {"GPULOOM_SHARE_CLASS": "high", "GPULOOM_SHARE_DRIVER": "/d.so", "GPULOOM_SHARE_DIR": str(tmp_path)}
    assert made(ShimSettings("high")) == {**plain, "LD_LIBRARY_PATH": libraries}
    more = ShimSettings("high", "3", "job 1", "orion", 0.0125, Path("/p"), Path("/l"))
    assert made(more, A="1", GPULOOM_SHARE="off", LD_LIBRARY_PATH=f"/a::{libraries}:/b") == {
        **plain,
        "A": "1",
        "LD_LIBRARY_PATH": f"{libraries}:/a:/b",
        "CUDA_VISIBLE_DEVICES": "3",
        "GPULOOM_SHARE_NAME": "job 1",
        "GPULOOM_SHARE_RULE": "orion",
        "GPULOOM_SHARE_MAX_HOLD_MS": "12.5",
        "GPULOOM_SHARE_PROFILE": "/p",
        "GPULOOM_SHARE_LOG": "/l",
    }
    assert made(ShimSettings("high", max_hold_s=0.0))["GPULOOM_SHARE_MAX_HOLD_MS"] == "0"
    assert made(ShimSettings("high", memory_mib=512))[attach.MEMORY] == "512"
    assert made(ShimSettings("high"), **{attach.MEMORY: "256"})[attach.MEMORY] == "256", "as the scheduler has set it"


def elf(*symbols: tuple[str, int, int, int], dynamic: int = 11) -> bytes:
    """A library of symbols (name, type, binding, section)."""
    strings, entries = b"\0", b""
    for name, kind, binding, section in symbols:
        entries += struct.pack("<IBBHQQ", len(strings), binding << 4 | kind, 0, section, 0, 0)
        strings += name.encode() + b"\0"
    at = 64 + 3 * 64
    sections = [(0,) * 10, (0, dynamic, 0, 0, at, len(entries), 2, 0, 0, 24)]
    sections.append((0, 3, 0, 0, at + len(entries), len(strings), 0, 0, 0, 0))
    head = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", 64)
    head = head.ljust(58, b"\0") + struct.pack("<HH", 64, 3) + b"\0\0"
    return head + b"".join(struct.pack("<IIQQQQIIQQ", *one) for one in sections) + entries + strings


def test_functions_that_a_library_exports(tmp_path: Path) -> None:
    library = tmp_path / "l.so"
    data = elf(
        ("cuInit", 2, 1, 7), ("cuWeak", 2, 2, 7), ("cuChosen", 10, 1, 7), ("cudbgMain", 2, 1, 7),
        ("cuData", 1, 1, 7), ("cuLocal", 2, 0, 7), ("cuNotHere", 2, 1, 0), ("printf", 2, 1, 7), ("cudaMalloc", 2, 1, 7),
    )  # fmt: skip
    library.write_bytes(data)
    assert build.exported(library) == {"cuInit", "cuWeak", "cuChosen", "cudbgMain"}
    assert attach.is_driver(library)
    library.write_bytes(data + b"gpuloom_shim_version")
    assert not attach.is_driver(library)
    library.write_bytes(elf(("cuOther", 2, 1, 7)))
    assert not attach.is_driver(library)
    library.write_bytes(elf(("cuInit", 2, 1, 7), dynamic=2))
    assert build.exported(library) == frozenset()
    library.write_bytes(data[:70])
    assert build.exported(library) == frozenset()
    library.write_bytes(b"\x7fELF\x01" + data[5:])
    assert build.exported(library) == frozenset()
    assert attach._raw_names(tmp_path / "none") == ""
    with library.open("wb") as file:
        file.truncate(4_000_000)
    assert attach._raw_names(library) == ""
    with library.open("wb") as file:
        file.truncate(3_999_999)
    assert len(attach._raw_names(library)) == 3_999_999


def test_drivers_that_the_loader_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "2 libs found\n\tlibcuda.so.1 (libc6,x86-64) => /a/libcuda.so.1\n\tlibcuda.so (libc6) => /b/libcuda.so\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=listed))
    assert attach._from_loader_cache() == [Path("/a/libcuda.so.1")]
    for error in (OSError(), subprocess.TimeoutExpired("x", 1)):

        def fails(*_: object, error: Exception = error, **__: object) -> Any:
            raise error

        monkeypatch.setattr(subprocess, "run", fails)
        assert attach._from_loader_cache() == []


# -- shared files ------------------------------------------------------------------------------------------------------


def shared_file(path: Path, slots: dict[int, dict[str, Any]], **head: int) -> Path:
    data = bytearray(shm.TOTAL_BYTES)
    first = {"magic": shm.MAGIC, "version": 1, "header": 4096, "client": 4096, "clients": 64, "total": shm.TOTAL_BYTES}
    struct.pack_into("<QIIIIQ16sI", data, 0, *({**first, **head}).values(), bytes(range(16)), 132)
    for slot, values in slots.items():
        at = 4096 + slot * 4096
        state, klass, busy, held = values["hot"]
        struct.pack_into("<IIIIQQQQqQ", data, at, state, klass, busy, held, 0, 0, 0, 21, 0, 22)
        counters = (1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 4321, 0, b"train\0x")
        struct.pack_into("<QQQQQQQQQQQQII64s", data, at + 64, *counters)
        struct.pack_into("<32Q", data, at + 232, *[10 if code in (0, 9) else 0 for code in range(32)])
    path.write_bytes(data)
    return path


def test_programs_of_a_shared_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared_file(
        tmp_path / "g.share",
        {0: {"hot": (2, 1, 1, 0)}, 5: {"hot": (2, 2, 0, 9)}, 6: {"hot": (1, 2, 0, 0)}, 63: {"hot": (2, 7, 0, 1)}},
    )
    monkeypatch.setattr(shm, "_held", lambda descriptor, slot: slot != 0)
    found = shm.read(path)
    assert (found.uuid, found.sm_count, found.problem) == ("00010203-0405-0607-0809-0a0b0c0d0e0f", 132, "")
    assert [(one.slot, one.klass, one.busy, one.held_as) for one in found.programs] == [
        (5, "best-effort", False, 8), (63, "?", False, 0),
    ]  # fmt: skip
    assert found.programs[0] == shm.Program(
        slot=5, name="train", pid=4321, klass="best-effort", busy=False, held_as=8, held_since_ns=22, kernels=1,
        graphs=2, captured=3, holds=4, held_ns=5, longest_held_ns=8, gpu_ns=6, requests=7, request_ns=21, attached_ns=9,
        reasons={0: 10, 9: 10},
    )  # fmt: skip
    for field in ("magic", "version", "header", "client", "clients", "total"):
        odd = shm.read(shared_file(tmp_path / "odd.share", {}, **{field: 2}))
        assert odd.programs == ()
        assert odd.problem == f"layout version {2 if field == 'version' else 1} (this gpuloom reads version 1)"
    path.write_bytes(path.read_bytes() + b"x")
    text = f"{shm.TOTAL_BYTES + 1} bytes, not {shm.TOTAL_BYTES}: a file of another version, or an unfinished one"
    assert shm.read(path).problem == text
    assert shm.read(tmp_path / "no.share").problem == os.strerror(errno.ENOENT)
    assert shm.files(tmp_path) == [path, tmp_path / "odd.share"]
    assert shm.files(tmp_path / "none") == []


def test_a_slot_is_held_by_a_lock_of_another_file_handle(tmp_path: Path) -> None:
    path = shared_file(tmp_path / "g.share", {})
    ours, theirs = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(theirs, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, shm.LOCK_BASE + 3, 1, 0))
        assert [shm._held(ours, slot) for slot in (2, 3, 4)] == [False, True, False]
    finally:
        os.close(theirs)
    os.close(ours)
    assert shm._held(ours, 3), "where it can't be asked a program counts as living"


# -- MPS ---------------------------------------------------------------------------------------------------------------


def test_mps_needs_both_of_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {mps.CONTROL: "/c", mps.SERVER: "/s"}
    monkeypatch.setattr(shutil, "which", there.get)
    assert mps.control() == "/c"
    del there[mps.SERVER]
    assert mps.control() is None
    there[mps.SERVER] = there.pop(mps.CONTROL)
    assert mps.control() is None


@pytest.mark.parametrize(
    ("environment", "gpus", "found"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, 4, "3"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 1, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, None),
        ({}, 1, "0"),
        ({}, 2, None),
        ({}, 0, None),
        ({}, None, None),
    ],
)
def test_the_one_gpu_of_a_program(
    environment: dict[str, str], gpus: int | None, found: str | None, tmp_path: Path
) -> None:
    listed = tmp_path / "gpus"
    for number in range(gpus or 0):
        (listed / str(number)).mkdir(parents=True)
    if gpus == 0:
        listed.mkdir()
    assert mps.gpu_of(environment, listed) == found


@pytest.mark.parametrize(
    ("gpu", "klass", "device", "priority"), [("2", "high", "0", "0"), ("GPU-1", "best-effort", "GPU-1", "1")]
)
def test_variables_of_a_program_under_mps(gpu: str, klass: str, device: str, priority: str) -> None:
    assert mps.client_environment(Path("/m"), gpu, klass) == {
        "CUDA_VISIBLE_DEVICES": device,
        "CUDA_MPS_PIPE_DIRECTORY": "/m/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/m/log",
        "CUDA_MPS_CLIENT_PRIORITY": priority,
    }
    assert mps.folder_of(Path("/b"), "GPU-a/b:1") == Path("/b/mps-GPU-a_b_1")


def test_mps_begins_with_its_first_user_and_ends_with_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    there = [False]

    def run(argv: Sequence[str], *, env: dict[str, str], input: str = "", **_: Any) -> Any:  # noqa: A002
        told.append(argv[1] if len(argv) > 1 else input.strip())
        assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        assert "CUDA_MPS_CLIENT_PRIORITY" not in env
        there[0] = {"-d": True, "quit": False}.get(told[-1], there[0])
        return SimpleNamespace(returncode=0 if there[0] or told[-1] == "quit" else 1, stdout="", stderr="")

    monkeypatch.setattr(mps, "control", lambda: "/c")
    monkeypatch.setattr(subprocess, "run", run)
    base = {"A": "1", "CUDA_MPS_CLIENT_PRIORITY": "1"}
    with mps.private(tmp_path, "GPU-1", base) as one:
        with mps.private(tmp_path, "GPU-1", base) as two:
            assert one == two == tmp_path / "mps-GPU-1"
            assert told == ["get_server_list", "-d", "get_server_list", "get_server_list"]
        assert told[4:] == []
    assert told[4:] == ["quit"]
    for code, stderr, text in ((1, "no\nGPU", "no"), (0, "", "no message")):
        done = SimpleNamespace(returncode=code, stdout="", stderr=stderr)
        answers = {"-d": done, "get_server_list": SimpleNamespace(returncode=1)}

        def failing(argv: Sequence[str], *, input: str = "", answers: Any = answers, **_: Any) -> Any:  # noqa: A002
            return answers[argv[-1] if len(argv) > 1 else input.strip()]

        monkeypatch.setattr(subprocess, "run", failing)
        with pytest.raises(mps.MpsError) as failed, mps.private(tmp_path, "GPU-1", base):
            pass
        log = tmp_path / "mps-GPU-1" / "log"
        assert str(failed.value) == f"/c -d failed: {text}; its log is in {log}; go without MPS (--no-mps)"
    monkeypatch.setattr(mps, "control", lambda: None)
    with pytest.raises(mps.MpsError) as error, mps.private(tmp_path, "GPU-1", base):
        pass
    assert str(error.value) == "nvidia-cuda-mps-control is not installed; go without MPS (--no-mps)"
    monkeypatch.setattr(mps, "control", lambda: "/c")
    length = mps.SOCKET_LIMIT - len(os.fsencode(tmp_path / "x" / "mps-0" / "pipe"))
    fits, too_long = tmp_path / ("x" * (length + 1)), tmp_path / ("x" * (length + 2))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stdout="", stderr=""))
    with mps.private(fits, "0", base):
        pass
    with pytest.raises(mps.MpsError, match="too long a path for MPS' sockets"), mps.private(too_long, "0", base):
        pass


# -- what is compiled when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cc", "there", "found", "why"),
    [
        ("", "gcc clang", ["gcc"], ""),
        ("", "cc gcc", ["cc"], ""),
        ("my-cc -m64", "my-cc cc", ["my-cc", "-m64"], ""),
        ("my-cc", "cc", None, "CC=my-cc was not found; set CC to a C compiler, or unset it"),
        ("", "", None, "there is no C compiler (cc, gcc, clang); install gcc or clang, or point CC at one"),
    ],
)
def test_the_compiler(cc: str, there: str, found: list[str] | None, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", cc)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there.split() else None)
    assert compiler.compiler() == found
    if why:
        assert compiler.no_compiler() == why


def test_what_was_compiled_is_kept_by_all_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.c").write_text("1")
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("library")

    def compiled(*command: str, name: str = "a.c") -> Path:
        return compiler.compiled_once("k-{}/l.so", "shim", tmp_path, [name], command, make)

    first = compiled("cc")
    assert (first, len(made)) == (compiled("cc"), 1)
    assert first.parent.parent == tmp_path / "cache" / "gpuloom"
    assert first.parent.name.startswith("k-")
    assert len(first.parent.name) == 22
    assert first.read_text() == "library"
    assert compiled("cc", "-m64") != first
    (tmp_path / "a.c").write_text("2")
    assert compiled("cc") != first
    assert len(made) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/h")
    assert compiler.cache_folder() == Path("/h/.cache/gpuloom")


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(stderr: str) -> str:
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr=stderr))
        with pytest.raises(InputError) as error:
            compiler.run_compiler(["cc", "-x"], Path("/src"))
        return str(error.value)

    assert fails("") == "cc could not compile /src: no message"
    assert fails("a\nb\nc\nd\n") == "cc could not compile /src: a | b | c"
    assert fails("a\nerror: b\nc\n") == "cc could not compile /src: error: b"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stderr="error"))
    compiler.run_compiler(["cc"], Path("/src"))


@pytest.mark.parametrize(
    ("installed", "folder", "command", "lacks", "found"),
    [
        (True, True, True, False, "/installed"),
        (True, True, True, True, "/compiled"),
        (True, False, True, True, "/installed"),
        (True, True, False, True, "/installed"),
        (False, True, True, False, "/compiled"),
        (False, False, True, False, "the shim is not installed, and its sources are missing; install gpuloom again, or "
        "run from a checkout"),
        (False, True, False, False, "the shim must be compiled once, and there is none"),
    ],
)  # fmt: skip
def test_which_shim(
    installed: bool, folder: bool, command: bool, lacks: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra: list[frozenset[str]] = []
    names = {Path("/driver"): {"cuA", "cuB"}, Path("/installed"): {"cuA"} if lacks else {"cuA", "cuB"}}
    monkeypatch.setattr(build, "installed_shim", lambda: Path("/installed") if installed else None)
    monkeypatch.setattr(build, "source_folder", lambda: Path("/src") if folder else None)
    monkeypatch.setattr(build, "compiler", lambda: ["cc"] if command else None)
    monkeypatch.setattr(build, "no_compiler", lambda: "there is none")
    monkeypatch.setattr(build, "known", lambda folder: frozenset({"cuB"}))
    monkeypatch.setattr(build, "exported", lambda path: frozenset(names[path]))
    monkeypatch.setattr(build, "compiled", lambda folder, command, more: extra.append(more) or Path("/compiled"))
    assert said(lambda: build.shim_path(Path("/driver"))) == found
    assert extra == ([{"cuB"} if installed else {"cuA"}] if found == "/compiled" else [])
    if found != "/installed" or lacks:
        return
    assert build.shim_path() == Path("/installed")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    with pytest.raises(InputError) as refused:
        build.shim_path()
    assert str(refused.value) == "the shim is for Linux on x86_64 and aarch64; this is riscv64"


@pytest.mark.parametrize(
    ("installed", "folder", "command", "found"),
    [
        (True, "/checkout", True, "/cached"),
        (True, "/checkout", False, "/installed"),
        (True, "/package", True, "/installed"),
        (True, None, True, "/installed"),
        (False, "/package", True, "/cached"),
        (False, "/package", False, "the admission rule must be compiled once, and there is none"),
        (False, None, True, "the compiled admission rule is missing, and so are its sources; install gpuloom again, or "
        "run from a checkout"),
    ],
)  # fmt: skip
def test_which_rule(
    installed: bool, folder: str | None, command: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "installed_library", lambda: Path("/installed") if installed else None)
    monkeypatch.setattr(native, "source_folder", lambda names: None if folder is None else Path(folder))
    monkeypatch.setattr(native, "checkout", lambda: Path("/checkout"))
    monkeypatch.setattr(native, "compiler", lambda: ["cc"] if command else None)
    monkeypatch.setattr(native, "no_compiler", lambda: "there is none")
    ran: list[Sequence[str]] = []
    monkeypatch.setattr(native, "run_compiler", lambda command, folder: ran.append(command))

    def compiled_once(kept: str, what: str, folder: Path, names: Any, command: Any, make: Any) -> Path:
        make(Path("/made"))
        assert (kept, what, names) == ("admission-{}.so", "admission rule", native.SOURCES)
        assert command == ("cc", *native.FLAGS)
        return Path("/cached")

    monkeypatch.setattr(native, "compiled_once", compiled_once)
    assert said(native.library_path) == found
    sources = [f"{folder}/admission.c", f"{folder}/virtual_gpu.c"]
    assert ran == ([["cc", *native.FLAGS, *sources, "-o", "/made", "-lm"]] if found == "/cached" else [])


def test_a_library_that_can_not_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str) -> Any:
        raise OSError("wrong machine")

    monkeypatch.setattr(native, "library_path", lambda: Path("/l.so"))
    monkeypatch.setattr(ctypes, "CDLL", fails)
    with pytest.raises(InputError) as error:
        native.library.__wrapped__()
    text = "/l.so: can't be loaded (wrong machine); delete it, or install gpuloom again on this machine"
    assert str(error.value) == text
