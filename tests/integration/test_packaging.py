"""The wheel and the sdist: what they hold, with and without a C compiler, and that they work outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("gpuloom/sharing/native/libgpuloom_admission.so", "gpuloom/sharing/native/gpuloom_shim/libcuda.so.1")
SIMULATE = ("share", "simulate", "--high", "resnet50:15rps", "--best-effort", "resnet50-train", "--requests", "20")
HIDDEN = shutil.ignore_patterns(".*", "build", "out", "dist", "__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, as a packager has it."""
    if find_spec("scikit_build_core") is None and os.environ.get("CI") != "true":
        pytest.skip("scikit-build-core is not installed (extra dev)")
    copy = tmp_path_factory.mktemp("packaging") / "gpuloom"
    shutil.copytree(ROOT, copy, ignore=HIDDEN)
    shutil.copyfile(ROOT / ".gitignore", copy / ".gitignore")
    return copy


def wheel(tree: Path, folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel of a tree as pip does; the file, and what was printed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # CMake and Ninja of the extra dev
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-index",
         "--disable-pip-version-check", "-w", str(folder), str(tree)],
        env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made, done.stdout + done.stderr


@pytest.fixture(scope="module")
def compiled(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel(tree, tmp_path_factory.mktemp("compiled"))[0]


@pytest.fixture(scope="module")
def plain(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return wheel(tree, tmp_path_factory.mktemp("plain"), CC="/nowhere/cc")


def held(made: Path) -> set[str]:
    with zipfile.ZipFile(made) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def carried(tree: Path) -> set[str]:
    """What every wheel must hold: the package's files, and the sources of the compiled parts."""
    package = {
        str(path.relative_to(tree / "src"))
        for package in ("gpuloom", "_gpuloom_hooks")
        for path in (tree / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    sources = {
        f"gpuloom/sharing/native/interposer/{path.name}"
        for path in (tree / "native" / "interposer").iterdir()
        if path.is_file()
    }
    return package | sources


def test_a_wheel_holds_all_files_and_both_libraries_for_this_platform(tree: Path, compiled: Path) -> None:
    names = held(compiled)
    code = {name for name in names if ".dist-info/" not in name}
    assert code == carried(tree) | set(PARTS)
    assert {name.rpartition("/")[2] for name in names - code} == {
        "METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE",
    }  # fmt: skip
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert compiled.name.endswith(f"-py3-none-{platform}.whl")
    with zipfile.ZipFile(compiled) as archive:
        told = archive.read(next(name for name in names if name.endswith("/WHEEL"))).decode()
    assert f"Tag: py3-none-{platform}" in told
    assert "Root-Is-Purelib: false" in told


def test_without_a_compiler_the_wheel_holds_all_else_for_any_platform_and_it_is_said(
    tree: Path, plain: tuple[Path, str]
) -> None:
    made, printed = plain
    assert {name for name in held(made) if ".dist-info/" not in name} == carried(tree)
    assert made.name.endswith("-py3-none-any.whl")
    assert "the shim and the admission rule were not compiled" in printed


class Installed:
    """A wheel, unpacked where pip would put it, and run away from the checkout."""

    def __init__(self, made: Path, folder: Path) -> None:
        self.folder = folder
        with zipfile.ZipFile(made) as archive:
            archive.extractall(folder / "site")

    def gpuloom(self, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
        code = (
            "import sys, gpuloom\n"
            f"assert gpuloom.__file__.startswith({str(self.folder)!r}), gpuloom.__file__\n"
            "from gpuloom.cli.main import main\nsys.argv[0] = 'gpuloom'\nmain()\n"
        )
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=self.folder,
            env={**kept, "PATH": path, "PYTHONPATH": str(self.folder / "site"), "HOME": str(self.folder)},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["with", "without"])
def test_an_installed_wheel_without_a_compiler_at_hand(
    kind: str, compiled: Path, plain: tuple[Path, str], tmp_path: Path
) -> None:
    here = Installed(compiled if kind == "with" else plain[0], tmp_path)
    simulated, doctor = here.gpuloom(*SIMULATE), here.gpuloom("share", "doctor")
    assert doctor.returncode == 1  # there is no driver
    if kind == "with":
        assert simulated.returncode == 0, simulated.stderr
        assert "gpuloom" in simulated.stdout
        assert doctor.stdout.count("(installed)") == 2
        assert not (tmp_path / ".cache").exists(), "nothing is compiled"
    else:
        assert simulated.returncode == 2
        assert "must be compiled once, and there is no C compiler (cc, gcc, clang); install gcc" in simulated.stderr
        lines = {line.split()[0]: line for line in doctor.stdout.splitlines()}
        assert "missing" in lines["rule"]
        assert "missing" in lines["shim"]
        assert here.gpuloom("policies").returncode == 0, "the rest works"


def test_an_installed_wheel_without_libraries_compiles_its_sources_where_it_can(
    plain: tuple[Path, str], tmp_path: Path
) -> None:
    here = Installed(plain[0], tmp_path)
    simulated = here.gpuloom(*SIMULATE, path=os.environ["PATH"])
    assert simulated.returncode == 0, simulated.stderr
    doctor = here.gpuloom("share", "doctor", path=os.environ["PATH"])
    assert doctor.stdout.count("(compiled here)") == 2, doctor.stdout
    assert list((tmp_path / ".cache" / "gpuloom").glob("shim-*/libcuda.so.1"))


def test_an_sdist_holds_what_a_build_and_the_tests_need(tree: Path, tmp_path: Path) -> None:
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=tree, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert not [name for name in names if name.startswith(("build/", "out/", ".venv"))]
        archive.extractall(tmp_path / "unpacked", filter="data")
    wanted = {f"src/{name}" for name in carried(tree) if "/native/" not in name} | {
        str(path.relative_to(tree)) for path in (tree / "native").rglob("*") if path.is_file()
    }
    assert wanted <= names
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert set(PARTS) <= held(wheel(unpacked, tmp_path / "wheels")[0])
