"""What Python does around the shim: classes, environments, the reader of shared memory, MPS, doctor, top, run."""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.cli.share import top
from gpuloom.cli.share.group import share
from gpuloom.core.errors import InputError
from gpuloom.sharing.rule import reason_name
from gpuloom.sharing.shim import attach as shim
from gpuloom.sharing.shim import build, compiler, mps, shm
from shim_kit import SOURCES, Stage, built, told


def offsets(tmp_path: Path) -> dict[str, int]:
    """The layout as the C compiler sees it."""
    fields = [
        "state", "klass", "busy", "held", "launches", "busy_ns", "end_ns", "request_ns", "slack_ns", "held_since_ns",
        "kernels", "graphs", "captured", "holds", "held_ns", "gpu_ns", "requests", "max_held_ns", "attached_ns",
        "start_ticks", "price_scale", "load", "pid", "generation", "name", "reasons", "ring",
    ]  # fmt: skip
    lines = "".join(f'printf("{f} %zu\\n", offsetof(struct gls_client, {f}));' for f in fields)
    source = tmp_path / "offsets.c"
    source.write_text(
        f'#include "shm.h"\n#include <stdio.h>\nint main(void) {{ {lines} printf("total %zu\\n", GLS_TOTAL);'
        'printf("lock %d\\n", GLS_LOCK_BASE); printf("version %u\\n", GLS_VERSION); return 0; }'
    )
    command = compiler.compiler()
    assert command is not None
    compiler.run_compiler([*command, f"-I{SOURCES}", str(source), "-o", str(tmp_path / "offsets")], SOURCES)
    out = subprocess.run([str(tmp_path / "offsets")], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


def test_the_reader_knows_the_layout_that_the_compiler_makes(tmp_path: Path) -> None:
    found = offsets(tmp_path)
    assert (found["total"], found["lock"], found["version"]) == (shm.TOTAL_BYTES, shm.LOCK_BASE, shm.VERSION)
    hot = ["state", "klass", "busy", "held", "launches", "busy_ns", "end_ns", "request_ns", "slack_ns", "held_since_ns"]
    assert [found[name] for name in hot] == [0, 4, 8, 12, 16, 24, 32, 40, 48, 56]
    names = [
        "kernels", "graphs", "captured", "holds", "held_ns", "gpu_ns", "requests", "max_held_ns", "attached_ns",
        "start_ticks", "price_scale", "load",
    ]  # fmt: skip
    assert [found[name] for name in names] == list(range(64, 64 + 96, 8))
    assert [found[name] for name in ("pid", "generation", "name", "reasons", "ring")] == [160, 164, 168, 232, 512]


@given(st.binary(max_size=300), st.integers(0, shm.TOTAL_BYTES - 300))
def test_no_content_of_a_file_upsets_the_reader(tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int) -> None:
    head = struct.pack("<QIIIIQ16sI", shm.MAGIC, 1, 4096, 4096, 64, shm.TOTAL_BYTES, bytes(16), 80)
    data = bytearray(head + b"\x02\0\0\0" * (shm.TOTAL_BYTES // 4))[: shm.TOTAL_BYTES]
    data[at : at + len(junk)] = junk
    path = tmp_path_factory.getbasetemp() / "junk.share"
    path.write_bytes(data)
    assert shm.read(path).programs == (), "no lock is held, so nobody lives"


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.share").write_bytes(b"short")
    (tmp_path / "b.share").symlink_to(tmp_path / "a.share")
    (tmp_path / "c.txt").write_text("")
    assert [p.name for p in shm.files(tmp_path)] == ["a.share", "b.share"]
    assert "5 bytes" in shm.read(tmp_path / "a.share").problem
    assert shm.read(tmp_path / "b.share").problem
    assert shm.read(tmp_path / "none.share").problem
    assert shm.files(tmp_path / "nowhere") == []


@pytest.mark.parametrize("more", [-1, 0, 1, 4096])
def test_a_file_of_another_length_or_layout_is_not_read(more: int, tmp_path: Path) -> None:
    layout = [shm.MAGIC, shm.VERSION, shm.HEADER_BYTES, shm.CLIENT_BYTES, shm.CLIENTS, shm.TOTAL_BYTES]
    path = tmp_path / "a.share"
    for wrong in (None, *range(len(layout))):
        numbers = [number + (place == wrong) for place, number in enumerate(layout)]
        head = struct.pack("<QIIIIQ16sI", *numbers, bytes(range(16)), 80)
        path.write_bytes((head + bytes(shm.TOTAL_BYTES + 4096))[: shm.TOTAL_BYTES + more])
        found = shm.read(path)
        if more:
            assert f"{shm.TOTAL_BYTES + min(more, 1)} bytes, not {shm.TOTAL_BYTES}" in found.problem
        elif wrong is None:
            assert (found.problem, found.sm_count, found.programs) == ("", 80, ())
            assert found.uuid == "00010203-0405-0607-0809-0a0b0c0d0e0f"
        else:
            assert f"(this gpuloom reads version {shm.VERSION})" in found.problem


def test_the_shared_folder_is_private_and_is_refused_when_others_may_write(tmp_path: Path) -> None:
    folder = shim.shared_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert folder == tmp_path / "gpuloom-share"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(InputError, match="others may write"):
        shim.shared_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="GPULOOM_SHARE_DIR"):
        shim.shared_folder({"GPULOOM_SHARE_DIR": str(tmp_path / "file")})
    given_folder = tmp_path / "a" / "b"
    assert shim.shared_folder({"GPULOOM_SHARE_DIR": str(given_folder)}) == given_folder


def test_where_the_system_keeps_no_folder_of_the_user_shared_files_are_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for environment in (
        {},
        {"XDG_RUNTIME_DIR": ""},
        {"XDG_RUNTIME_DIR": str(tmp_path / "none")},
        {"XDG_RUNTIME_DIR": str(tmp_path / "file")},
    ):
        assert shim.shared_folder(environment) == Path(f"/dev/shm/gpuloom-share-{os.geteuid()}")


def test_the_environment_of_a_program(tmp_path: Path) -> None:
    library, driver = tmp_path / "shim.so", tmp_path / "driver.so"
    library.write_text("shim")
    settings = shim.ShimSettings("high", "1", "name", "orion", 0.05, Path("p.tsv"), Path("/l"))
    made = shim.program_environment(
        settings, {"LD_LIBRARY_PATH": "/x::/y", "GPULOOM_SHARE": "off"}, shim=library, driver=driver, shared=tmp_path
    )
    first, *rest = made["LD_LIBRARY_PATH"].split(":")
    assert rest == ["/x", "/y"]
    assert {p.name: p.readlink() for p in Path(first).iterdir()} == {"libcuda.so.1": library, "libcuda.so": library}
    assert "GPULOOM_SHARE" not in made
    assert made["GPULOOM_SHARE_MAX_HOLD_MS"] == "50"
    assert made["CUDA_VISIBLE_DEVICES"] == "1"
    assert made["GPULOOM_SHARE_PROFILE"] == str(Path.cwd() / "p.tsv")
    again = shim.program_environment(settings, made, shim=library, driver=driver, shared=tmp_path)
    assert again["LD_LIBRARY_PATH"] == made["LD_LIBRARY_PATH"], "the shim's folder is there once"


def test_the_driver_is_found_but_never_a_shim(tmp_path: Path) -> None:
    made = built("plain")
    path = f"{made.shim.parent}:{made.fake.parent}"
    assert shim.find_driver({"LD_LIBRARY_PATH": path}) == made.fake
    assert shim.find_driver({"GPULOOM_SHARE_DRIVER": str(made.fake)}) == made.fake
    with pytest.raises(InputError, match="no such file"):
        shim.find_driver({"GPULOOM_SHARE_DRIVER": str(tmp_path / "none")})
    for other in (Path("/etc/passwd"), made.shim):
        with pytest.raises(InputError, match="exports cuInit"):
            shim.find_driver({"GPULOOM_SHARE_DRIVER": str(other)})
    (tmp_path / "libcuda.so.1").write_text("not a library")
    assert shim.find_driver({"LD_LIBRARY_PATH": f"{tmp_path}:{path}"}) == made.fake


def test_exported_names_of_what_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content in (b"", b"text", b"\x7fELF\x02\x01" + b"\xff" * 200, built("plain").shim.read_bytes()[:3000]):
        path.write_bytes(content)
        assert build.exported(path) == frozenset()


@pytest.mark.slow
def test_a_shim_is_compiled_for_a_driver_with_further_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "new.c"
    source.write_text("int cuInit(unsigned f) { return (int)f; }\nint cuBrandNew_v9(int x) { return x + 1; }\n")
    driver = tmp_path / "libcuda.so.1"
    command = compiler.compiler()
    assert command is not None
    compiler.run_compiler([*command, "-shared", "-fPIC", str(source), "-o", str(driver)], tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = build.shim_path(driver)
    assert build.exported(made) == build.known(SOURCES) | {"cuBrandNew_v9"}
    assert build.shim_path(driver) == made, "the second time it comes from the cache"
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cuBrandNew_v9(41))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(made)],
        env={"GPULOOM_SHARE_DRIVER": str(driver), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42\n"


def test_without_a_compiler_or_with_a_broken_one_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "installed_shim", lambda: None)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="no-such-compiler was not found"):
        build.shim_path()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(InputError, match="could not compile"):
        build.shim_path()
    monkeypatch.setattr(build, "source_folder", lambda: None)
    with pytest.raises(InputError, match="the shim is not installed, and its sources are missing"):
        build.shim_path()


def invoke(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run a sub-command in this process."""
    for name in [name for name in os.environ if name.startswith("GPULOOM_SHARE")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(share, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_doctor_says_what_is_there_and_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"GPULOOM_SHARE_DRIVER": str(built("plain").fake), "GPULOOM_SHARE_DIR": str(tmp_path)}
    monkeypatch.setattr(build, "shim_path", lambda driver=None: built("plain").shim)
    code, text = invoke(monkeypatch, good, "doctor", "--json")
    found = json.loads(text)
    assert (code, found["active"]) == (0, True)
    names = {"switch", "driver", "compiler", "rule", "shim", "libraries", "shared memory", "MPS", "profiling"}
    assert {finding["what"] for finding in found["findings"]} == names | {"suspending"}
    told = next(finding["text"] for finding in found["findings"] if finding["what"] == "suspending")
    assert told == "no: the driver can't suspend programs: it must be 570 or later (better 580)"
    code, text = invoke(monkeypatch, {**good, "GPULOOM_SHARE": "off"}, "doctor")
    assert (code, "not be active: switch" in text) == (1, True)
    monkeypatch.delenv("GPULOOM_SHARE")
    code, text = invoke(monkeypatch, {**good, "GPULOOM_SHARE_DRIVER": "/none"}, "doctor")
    assert (code, "not be active: driver" in text) == (1, True)
    code, text = invoke(monkeypatch, {**good, "GPULOOM_SHARE_DRIVER": "/etc/passwd"}, "doctor")
    assert (code, "exports cuInit" in text) == (1, True)


def gpuloom(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `gpuloom share …` as a process of its own."""
    code = "import sys\nfrom gpuloom.cli.main import main\nsys.argv.insert(1, 'share')\nmain()"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULOOM_SHARE")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_run_gives_the_program_the_shim_and_its_exit_code(tmp_path: Path) -> None:
    stage = Stage(built("plain"), tmp_path)
    stage.shared.mkdir()
    environment = {"GPULOOM_SHARE_DRIVER": str(stage.made.fake), "GPULOOM_SHARE_DIR": str(stage.shared)}
    program = [str(stage.made.program()), "dlopen", "hash", "300"]
    done = gpuloom("run", "--task-type", "inference", "--no-mps", "--", *program, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "result=10496471317674553444\n", "")
    assert len(list(stage.shared.glob("*.share"))) == 1
    assert gpuloom("run", "--class", "high", "--", "sh", "-c", "exit 7", **environment).returncode == 7
    with_options = gpuloom("run", "--class", "high", "--", "printf", "%s", "--class", **environment)
    assert with_options.stdout == "--class"
    missing = gpuloom("run", "--class", "high", "--", "/no/such/program", **environment)
    assert "/no/such/program: No such file" in missing.stderr


def test_run_goes_on_without_the_shim_where_it_cannot_be_unless_it_is_required(tmp_path: Path) -> None:
    environment = {"GPULOOM_SHARE_DRIVER": str(tmp_path / "none"), "GPULOOM_SHARE_DIR": str(tmp_path)}
    done = gpuloom("run", "--class", "high", "--", "echo", "ran", **environment)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "not shared: GPULOOM_SHARE_DRIVER" in done.stderr
    assert gpuloom("run", "--class", "high", "--require", "--", "echo", "ran", **environment).stdout == ""


def on_the_fake(tmp_path: Path) -> dict[str, str]:
    """An environment in which the shim would be active, without MPS."""
    return {
        "GPULOOM_SHARE_DRIVER": str(built("plain").fake),
        "GPULOOM_SHARE_DIR": str(tmp_path / "s"),
        "PATH": "/usr/bin:/bin",
    }


@pytest.mark.parametrize(
    ("more", "options", "why"),
    [
        ({"GPULOOM_SHARE": "off"}, (), "GPULOOM_SHARE=off"),
        ({"GPULOOM_SHARE_DRIVER": "/etc/passwd"}, (), "exports cuInit"),
        ({}, ("--mps", "--gpu", "0"), f"{mps.CONTROL} or {mps.SERVER} is not on the PATH"),
    ],
)
def test_what_is_asked_for_and_is_not_there_is_said_or_refused(
    more: dict[str, str], options: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    environment = on_the_fake(tmp_path) | more
    done = gpuloom("run", "--class", "high", *options, "--", "echo", "ran", **environment)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert why in done.stderr
    done = gpuloom("run", "--class", "high", *options, "--require", "--", "echo", "ran", **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--gpu", "0,1"), ("--gpu", ""), ("--gpu", "first"), ("--name", ""), ("--name", "a\nb"), ("--name", "\x1b[2J"),
        ("--max-hold", "0"), ("--max-hold", "61m"), ("--log", "/no/such/folder/log"),
    ],
)  # fmt: skip
def test_run_refuses_before_the_start(options: tuple[str, str], tmp_path: Path) -> None:
    done = gpuloom("run", "--class", "high", *options, "--", "echo", "ran", **on_the_fake(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gpuloom: {options[0]} ")


def test_a_program_that_is_missing_or_cannot_be_run_ends_as_with_env(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    for program, code in (("/no/such/program", 127), (str(tmp_path / "text"), 126), (str(tmp_path), 126)):
        done = gpuloom("run", "--class", "high", "--no-mps", "--", program, **on_the_fake(tmp_path))
        assert done.returncode == code
        assert f"gpuloom: {program}: " in done.stderr


@pytest.mark.parametrize("every", ["0", "0.05", "2d"])
def test_top_refuses_to_look_too_often_or_too_seldom(every: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--every is"):
        invoke(monkeypatch, {}, "top", "--once", "--every", every)


def test_run_must_know_the_class() -> None:
    result = CliRunner().invoke(share, ["run", "--", "true"])
    assert result.exit_code == 2
    assert "--task-type" in result.output


FAKE_MPS = """#!/bin/sh
# Stands for nvidia-cuda-mps-control: a daemon is a file; each command is noted.
state="$CUDA_MPS_PIPE_DIRECTORY/daemon"
if [ "$1" = -d ]; then
  [ "$FAKE_MPS_BROKEN" = 1 ] && { echo "cannot start" >&2; exit 1; }
  [ "$FAKE_MPS_BROKEN" = 2 ] && { echo; echo "is in use"; exit 1; }
  [ "$FAKE_MPS_BROKEN" = 3 ] && exit 1
  [ "$FAKE_MPS_BROKEN" = 4 ] && exit 0
  echo "start $CUDA_VISIBLE_DEVICES" >> "$FAKE_MPS_LOG"; : > "$state"; exit 0
fi
read -r word
[ -e "$state" ] || exit 1
[ "$word" = quit ] && { echo quit >> "$FAKE_MPS_LOG"; rm "$state"; }
exit 0
"""


@pytest.fixture
def fake_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control daemon on the PATH; what it was told is in the file."""
    (tmp_path / "bin").mkdir()
    for name in (mps.CONTROL, mps.SERVER):
        (tmp_path / "bin" / name).write_text(FAKE_MPS)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_MPS_LOG", str(tmp_path / "mps.log"))
    return tmp_path / "mps.log"


def test_mps_is_private_shared_by_users_of_a_gpu_and_ended_by_the_last(fake_mps: Path, tmp_path: Path) -> None:
    base = tmp_path / "s"
    with mps.private(base, "GPU-1", os.environ) as first:
        with mps.private(base, "GPU-1", os.environ) as second, mps.private(base, "GPU-2", os.environ) as other:
            assert first == second != other
        assert fake_mps.read_text().split("\n") == ["start GPU-1", "start GPU-2", "quit", ""]
        assert mps.client_environment(first, "GPU-1", "high")["CUDA_MPS_CLIENT_PRIORITY"] == "0"
        assert mps.client_environment(first, "GPU-1", "best-effort")["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert fake_mps.read_text().count("quit") == 2


def test_mps_is_for_programs_that_see_one_gpu(tmp_path: Path) -> None:
    for found, environment in (
        ("2", {"CUDA_VISIBLE_DEVICES": "2"}),
        ("GPU-ab", {"CUDA_VISIBLE_DEVICES": "GPU-ab"}),
        (None, {"CUDA_VISIBLE_DEVICES": "0,1"}),
        (None, {"CUDA_VISIBLE_DEVICES": ""}),
        (None, {}),
    ):
        assert mps.gpu_of(environment, tmp_path) == found
    assert mps.gpu_of({}, tmp_path / "none") is None
    (tmp_path / "0000:01:00.0").mkdir()
    assert mps.gpu_of({}, tmp_path) == "0"


def test_mps_that_does_not_start_or_has_no_room_is_told(
    fake_mps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for how, says in (("1", "cannot start"), ("2", "is in use"), ("3", "no message"), ("4", "no message")):
        monkeypatch.setenv("FAKE_MPS_BROKEN", how)
        with pytest.raises(mps.MpsError, match=f"-d failed: {says}; its log is in"):
            mps.private(tmp_path / "s", "0", os.environ).__enter__()
    with pytest.raises(mps.MpsError, match="too long"), mps.private(tmp_path / ("x" * 90), "0", os.environ):
        pass
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(mps.MpsError, match="not installed"), mps.private(tmp_path / "s", "0", os.environ):
        pass


def test_under_mps_run_passes_signals_on_and_tears_down(fake_mps: Path, tmp_path: Path) -> None:
    stage = Stage(built("plain"), tmp_path)
    stage.shared.mkdir()
    code = "import sys\nfrom gpuloom.cli.share.group import share\nsys.exit(share(standalone_mode=False))"
    environment = {
        **os.environ, "GPULOOM_SHARE_DRIVER": str(stage.made.fake), "GPULOOM_SHARE_DIR": str(stage.shared),
    }  # fmt: skip
    script = 'trap "exit 5" TERM; echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES"; while :; do sleep 0.05; done'
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", "--class", "high", "--gpu", "3", "--", "sh", "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{stage.shared}/mps-3/pipe 0\n", "the daemon's only GPU is its number 0"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 5
    assert fake_mps.read_text() == "start 3\nquit\n"


def test_a_row_of_top_counts_since_the_look_before() -> None:
    began = shm.Program(
        0, "training", 7, "best-effort", False, None, 0, 100, 10, 5, 2, 3_000_000, 2_000_000, 10**8, 4, 10**6, 10**9,
        reasons={1: 3, 7: 2, 8: 5, 9: 6},
    )  # fmt: skip
    now = replace(
        began, kernels=300, graphs=20, gpu_ns=6 * 10**8, held_ns=5 * 10**8, held_as=8, held_since_ns=29 * 10**8
    )

    def at(second: float, *programs: shm.Program) -> shm.Shared:
        return shm.Shared(Path("gpu.share"), "GPU-a", 132, int(second * 1e9), programs)

    (row,) = top.rows_of(at(3.0, now), at(2.0, began))
    assert (row["kernels_per_s"], row["gpu_share"]) == (pytest.approx(210.0), pytest.approx(0.5))
    assert (row["held_share"], row["held_s"]) == (pytest.approx(0.597), pytest.approx(0.6))
    assert (row["longest_hold_ms"], row["request_ms"]) == (2.0, 1.0)
    assert sum(row["admitted"].values()) == 5
    assert sum(row["held_for"].values()) == 11
    assert set(row["admitted"]) == {reason_name(1), reason_name(7)}
    (row,) = top.rows_of(at(3.0, now), None)
    assert row["kernels_per_s"] == pytest.approx(160.0), "since it began, at second 1"
    (row,) = top.rows_of(at(3.0, now), at(2.0, replace(began, pid=8)))
    assert row["kernels_per_s"] == pytest.approx(160.0), "another had its place before"


def test_top_shows_rates_held_time_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(built("plain"), tmp_path)
    service = stage.start("high", "serve", "300", "10", "30000", "2000000", GPULOOM_SHARE_NAME="service")
    training = stage.start("best-effort", "train", "7e8", "20", "20000", GPULOOM_SHARE_NAME="training")
    while len(stage.programs()) < 2:
        time.sleep(0.01)
    code, text = invoke(
        monkeypatch, {"GPULOOM_SHARE_DIR": str(stage.shared)}, "top", "--once", "--json", "--every", "0.2"
    )
    rows = {row["program"]: row for row in json.loads(text)["programs"]}
    assert code == 0
    assert (rows["service"]["class"], rows["training"]["class"]) == ("high", "best-effort")
    assert rows["service"]["requests"] > 5
    assert rows["training"]["kernels_per_s"] > 100
    assert 0 < rows["training"]["held_share"] <= 1
    assert set(rows["training"]["admitted"]) | set(rows["training"]["held_for"]) >= {"idle", "window"}
    assert "no program shares" in invoke(monkeypatch, {"GPULOOM_SHARE_DIR": str(tmp_path / "e")}, "top", "--once")[1]
    told(training)
    service.kill()
    service.communicate()


def test_the_overhead_is_measured_in_one_run() -> None:
    script = Path(__file__).parents[2] / "bench" / "shim_overhead.py"
    done = subprocess.run(
        [sys.executable, str(script), "--batches", "10", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = json.loads(done.stdout)["rows"]
    assert [row["mode"] for row in rows] == ["pass-through", "high", "best-effort", "best-effort beside a service"]
    assert all(row["hooked_ns"] > row["unhooked_ns"] > 0 for row in rows)
