"""Sets up the environment of a program for `gpuloom share run`, and checks the machine for `share doctor`.

The program finds the shim as `libcuda.so.1` by `LD_LIBRARY_PATH`; the shim finds the real driver by
`GPULOOM_SHARE_DRIVER`, the shared memory in `GPULOOM_SHARE_DIR`, and its class in `GPULOOM_SHARE_CLASS`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.sharing.shim import build, compiler, mps, native

PLACES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia", "/usr/local/cuda/compat",
)  # fmt: skip
MEMORY = "GPULOOM_SHARE_MEMORY_MIB"
"""The GPU memory that a program may have, by the driver's calls: the shim lets it have no more."""
NVIDIA_PARAMETERS = Path("/proc/driver/nvidia/params")


def find_driver(environment: Mapping[str, str]) -> Path | None:
    """The real `libcuda.so.1`: $GPULOOM_SHARE_DRIVER, else first of $LD_LIBRARY_PATH, loader's cache, usual folders.

    Relative folders in $LD_LIBRARY_PATH are passed over, as the shim does: they mean another place for each program.

    Raises:
        InputError: GPULOOM_SHARE_DRIVER names no file, no library that exports `cuInit`, or the shim.
    """
    named = environment.get("GPULOOM_SHARE_DRIVER", "")
    if named:
        if not Path(named).is_file():
            raise InputError(f"GPULOOM_SHARE_DRIVER={named}: no such file; unset it, or name the real libcuda.so")
        if not is_driver(Path(named)):
            raise InputError(
                f"GPULOOM_SHARE_DRIVER={named}: no driver (must be a 64-bit ELF library that exports cuInit, and not "
                "gpuloom's shim); unset it, or name the real libcuda.so"
            )
        return Path(named).resolve()
    named_folders = environment.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    candidates = [
        *(Path(folder) / "libcuda.so.1" for folder in named_folders if folder.startswith("/")),
        *_from_loader_cache(),
        *(Path(folder) / "libcuda.so.1" for folder in PLACES),
    ]
    for path in candidates:
        if path.is_file() and is_driver(path):
            return path.resolve()
    return None


def is_driver(path: Path) -> bool:
    """Whether a file is a library that exports `cuInit`, and not the shim."""
    return "gpuloom_shim_version" not in _raw_names(path) and "cuInit" in build.exported(path)


def _raw_names(path: Path) -> str:
    """Enough of a library to tell a shim from a driver: shims are small."""
    try:
        return path.read_bytes().decode("latin-1") if path.stat().st_size < 4_000_000 else ""
    except OSError:
        return ""


def _from_loader_cache() -> list[Path]:
    tool = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        done = subprocess.run([tool, "-p"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [Path(found) for found in re.findall(r"^\s*libcuda\.so\.1 .*=> (.+)$", done.stdout, re.MULTILINE)]


def shared_folder(environment: Mapping[str, str]) -> Path:
    """Where the GPUs' shared files are; makes the folder. Containers that share a GPU mount one and name it.

    Raises:
        InputError: it is not this user's, or can't be made.
    """
    named = environment.get("GPULOOM_SHARE_DIR", "")
    run = environment.get("XDG_RUNTIME_DIR", "")
    if named:
        folder = Path(named).absolute()
    elif run and Path(run).is_dir() and os.access(run, os.W_OK):
        folder = Path(run) / "gpuloom-share"
    else:
        folder = Path(f"/dev/shm/gpuloom-share-{os.geteuid()}")  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=0o700, parents=bool(named), exist_ok=True)
        seen = folder.lstat()
    except OSError as error:
        raise InputError(f"{folder}: can't be made ({error.strerror}); name another in GPULOOM_SHARE_DIR") from error
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
        raise InputError(f"{folder}: not a folder of this user; name another in GPULOOM_SHARE_DIR")
    if not named and seen.st_mode & 0o022:
        raise InputError(f"{folder}: others may write in it; chmod 700 it, or name another in GPULOOM_SHARE_DIR")
    return folder


def library_folder(shared: Path, shim: Path) -> Path:
    """A folder in which `libcuda.so.1` and `libcuda.so` are this shim."""
    seen = shim.stat()
    folder = shared / f"lib-{seen.st_dev:x}-{seen.st_ino:x}-{seen.st_mtime_ns:x}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in ("libcuda.so.1", "libcuda.so"):
        link, scratch = folder / name, folder / f".{name}.{os.getpid()}"
        if link.is_symlink() and link.readlink() == shim:
            continue
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(shim)
        scratch.replace(link)
    return folder


@dataclass(frozen=True, slots=True)
class ShimSettings:
    """How a program takes part. Empty and None: the shim's defaults."""

    klass: str
    gpu: str = ""
    name: str = ""
    rule: str = ""
    max_hold_s: float | None = None
    profile: Path | None = None
    log: Path | None = None
    memory_mib: int | None = None


def program_environment(
    settings: ShimSettings, base: Mapping[str, str], *, shim: Path, driver: Path, shared: Path
) -> dict[str, str]:
    """The environment in which a program runs under the shim."""
    made = {key: value for key, value in base.items() if key != "GPULOOM_SHARE"}
    libraries = str(library_folder(shared, shim))
    before = [part for part in base.get("LD_LIBRARY_PATH", "").split(":") if part and part != libraries]
    made["LD_LIBRARY_PATH"] = ":".join([libraries, *before])
    made["GPULOOM_SHARE_CLASS"] = settings.klass
    made["GPULOOM_SHARE_DRIVER"] = str(driver)
    made["GPULOOM_SHARE_DIR"] = str(shared)
    if settings.gpu:
        made["CUDA_VISIBLE_DEVICES"] = settings.gpu
    if settings.name:
        made["GPULOOM_SHARE_NAME"] = settings.name
    if settings.rule:
        made["GPULOOM_SHARE_RULE"] = settings.rule
    if settings.max_hold_s is not None:
        made["GPULOOM_SHARE_MAX_HOLD_MS"] = f"{settings.max_hold_s * 1000:g}"
    if settings.memory_mib is not None:
        made[MEMORY] = str(settings.memory_mib)
    if settings.profile is not None:
        made["GPULOOM_SHARE_PROFILE"] = str(settings.profile.absolute())
    if settings.log is not None:
        made["GPULOOM_SHARE_LOG"] = str(settings.log.absolute())
    return made


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: `ok` None means neither good nor bad. `needed`: without it the shim is not active."""

    what: str
    ok: bool | None
    text: str
    needed: bool = False


def examine(environment: Mapping[str, str]) -> list[Finding]:
    """What this machine offers for sharing a GPU. Starts nothing and changes nothing but the compile cache."""
    findings = [_kill_switch(environment)]
    driver: Path | None = None
    try:
        driver = find_driver(environment)
        text = f"{driver}" if driver else "no libcuda.so.1 found: install NVIDIA's driver, or set GPULOOM_SHARE_DRIVER"
        findings.append(Finding("driver", driver is not None, text, needed=True))
    except InputError as error:
        findings.append(Finding("driver", False, str(error), needed=True))
    findings.append(_compiler())
    findings.append(_rule())
    findings.extend(_shim(driver))
    try:
        findings.append(Finding("shared memory", True, str(shared_folder(environment)), needed=True))
    except InputError as error:
        findings.append(Finding("shared memory", False, str(error), needed=True))
    findings.append(_mps())
    findings.append(_profiling())
    return findings


def _kill_switch(environment: Mapping[str, str]) -> Finding:
    if environment.get("GPULOOM_SHARE") == "off":
        return Finding("switch", False, "GPULOOM_SHARE=off: the shim passes everything through; unset it", needed=True)
    return Finding("switch", True, "GPULOOM_SHARE is not off", needed=True)


def _compiler() -> Finding:
    command = compiler.compiler()
    if command:
        return Finding("compiler", True, " ".join(command))
    return Finding("compiler", None, f"{compiler.no_compiler()}; only what gpuloom brings compiled can be used")


def _rule() -> Finding:
    try:
        library = native.library_path()
    except InputError as error:
        return Finding("rule", False, f"share simulate won't work: {error}")
    origin = "installed" if library == native.installed_library() else "compiled here"
    return Finding("rule", True, f"{library} ({origin})")


def _shim(driver: Path | None) -> list[Finding]:
    try:
        shim = build.shim_path(driver)
    except InputError as error:
        return [Finding("shim", False, str(error), needed=True)]
    origin = "installed" if shim == build.installed_shim() else "compiled here"
    found = [Finding("shim", True, f"{shim} ({origin})", needed=True)]
    if driver is not None:
        lacking = sorted(build.exported(driver) - build.exported(shim))
        text = (
            f"the shim lacks {len(lacking)} functions of the driver ({', '.join(lacking[:3])}, …): a compiler is needed"
            if lacking
            else "the shim has every function of the driver"
        )
        found.append(Finding("libraries", not lacking, text))
    return found


def _mps() -> Finding:
    program = mps.control()
    if program:
        return Finding("MPS", True, f"{program}: programs' kernels can run at the same time")
    return Finding(
        "MPS", None, f"{mps.CONTROL} not found: programs' contexts take turns; best effort runs between requests"
    )


def _profiling() -> Finding:
    if os.geteuid() == 0:
        return Finding("profiling", True, "root: ncu may read performance counters")
    try:
        limited = re.search(r"RmProfilingAdminOnly:\s*1", NVIDIA_PARAMETERS.read_text()) is not None
    except OSError:
        return Finding("profiling", None, "no NVIDIA kernel module here; profiles can be imported")
    if limited:
        return Finding(
            "profiling", None, "ncu needs administrator rights here (RmProfilingAdminOnly); PyTorch's profiler does not"
        )
    return Finding("profiling", True, "ncu may read performance counters")


def active(findings: list[Finding]) -> bool:
    """Whether `share run` would put the shim to work."""
    return all(finding.ok for finding in findings if finding.needed)
