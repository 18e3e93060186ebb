"""The loader of hooks in a job's Python: enters by the environment, waits for imports, breaks nothing of the job's."""

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuloom.training.inject import DOOR, environment

PACKAGE = DOOR.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]

WAIT = """
import sys, types, _gpuloom_hooks as hooks
ours = types.ModuleType("_gpuloom_hooks.ours")
ours.install = lambda module: print("hooked", module.__name__, sorted(vars(module).keys() & {"first", "last"}))
def fails(module):
    raise ValueError("an unusual\\nframework")
ours.fails = fails
sys.modules["_gpuloom_hooks.ours"] = ours
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "hooks"
    place.mkdir()
    return place


@pytest.fixture
def run(tmp_path: Path, folder: Path) -> Run:
    """Run a program as a job's Python would, with modules of its own beside it."""

    def run(code: str, *flags: str, path: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
        own = {key: value for key, value in os.environ.items() if key not in ("GPULOOM_HOOKS", "PYTHONPATH")}
        own |= {key: value for key, value in more.items() if key.isupper()}
        if path:
            own["PYTHONPATH"] = path
        own |= environment(own, folder)
        (tmp_path / "program.py").write_text(code)
        return subprocess.run(
            [sys.executable, *flags, "program.py"], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=60
        )

    (tmp_path / "framework.py").write_text("first = 1\nimport json\nlast = 2\n")
    (tmp_path / "nest").mkdir()
    (tmp_path / "nest" / "__init__.py").write_text("")
    (tmp_path / "nest" / "inner.py").write_text("first = last = 1\n")
    return run


def test_a_hook_is_called_once_with_the_whole_module(run: Run) -> None:
    done = run(
        WAIT
        + """
hooks.after_import([("framework", "ours", "install"), ("nest.inner", "ours", "install"), ("absent", "ours", "install")])
import importlib.util
assert importlib.util.find_spec("framework") is not None
print("looked")
import framework
import importlib
importlib.reload(framework)
from nest import inner
import framework
assert type(framework.__loader__).__name__ == "SourceFileLoader"
"""
    )
    assert (done.stdout, done.stderr) == (
        "looked\nhooked framework ['first', 'last']\nhooked nest.inner ['first', 'last']\n",
        "",
    )


def test_what_is_imported_already_is_hooked_at_once(run: Run) -> None:
    done = run(WAIT + "import framework\nhooks.after_import([('framework', 'ours', 'install')])\nprint('then')\n")
    assert (done.stdout, done.stderr) == ("hooked framework ['first', 'last']\nthen\n", "")


def test_what_fails_in_a_hook_is_logged_in_one_line_and_the_next_is_called(run: Run, folder: Path) -> None:
    rows = "[('framework', 'ours', 'fails'), ('framework', 'none', 'install'), ('framework', 'ours', 'install')]"
    done = run(WAIT + f"hooks.after_import({rows})\nimport framework\nprint(framework.last)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hooked framework ['first', 'last']\n2\n", "")
    first, second = (folder / "hooks.log").read_text().splitlines()
    assert "ours: switched off: ValueError: an unusual framework (program.py:6)" in first
    assert "none: switched off: ModuleNotFoundError" in second


def test_a_guarded_function_does_nothing_after_its_hook_has_failed(run: Run, folder: Path) -> None:
    code = "calls = []\ndef f(x):\n    calls.append(x)\n    return 7 // x\ng = hooks.guarded('some', f)\n"
    done = run(WAIT + code + "print(g(1), g(0), g(2), calls)\n")
    assert (done.stdout, done.stderr) == ("7 None None [1, 0]\n", "")
    assert len((folder / "hooks.log").read_text().splitlines()) == 1


def test_an_import_that_fails_fails_as_without_hooks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import framework\nraise RuntimeError('of the job')\n")
    done = run(WAIT + "hooks.after_import([('broken', 'ours', 'install')])\nimport broken\n")
    assert done.returncode == 1
    assert "RuntimeError: of the job" in done.stderr
    assert "hooked" not in done.stdout


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_a_python_that_ignores_the_environment_leaves_no_mark(run: Run, folder: Path, flag: str) -> None:
    assert run("print('ran')", flag).stdout == "ran\n"
    assert list(folder.iterdir()) == []
    assert run("print('ran')").stdout == "ran\n"
    assert [path.name for path in folder.iterdir()] == ["seen"]


def test_a_user_switches_hooks_off(run: Run, folder: Path) -> None:
    assert environment({"GPULOOM_HOOKS": "off", "PYTHONPATH": "/a"}, folder) == {}
    done = run("import sys\nprint('_gpuloom_hooks' in sys.modules)", GPULOOM_HOOKS="off")
    assert (done.stdout, list(folder.iterdir())) == ("False\n", [])


def test_the_first_python_makes_the_folder_and_one_that_cannot_harms_nobody(run: Run, folder: Path) -> None:
    folder.rmdir()
    done = run("print('ran')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert [path.name for path in folder.iterdir()] == ["seen"]
    (folder / "seen").unlink()
    folder.rmdir()
    folder.write_text("a file")
    done = run("print('ran')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_the_path_of_the_job_stays_behind_ours(folder: Path) -> None:
    assert environment({}, folder) == {"PYTHONPATH": str(DOOR), "GPULOOM_HOOKS": str(folder)}
    assert environment({"PYTHONPATH": "/a::/b"}, folder)["PYTHONPATH"] == f"{DOOR}:/a::/b"
    again = {"PYTHONPATH": f"{DOOR}:{DOOR}:/a", "GPULOOM_HOOKS": "/elsewhere"}
    assert environment(again, folder) == {"PYTHONPATH": f"{DOOR}:/a", "GPULOOM_HOOKS": str(folder)}
    assert environment({"PYTHONPATH": str(DOOR)}, folder)["PYTHONPATH"] == str(DOOR)


def test_a_sitecustomize_behind_ours_runs_and_is_the_module_of_that_name(run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(f"import sys\nsys.chained = [{name!r}]\nNAME = {name!r}\n")
    done = run(
        "import sys, sitecustomize\nprint(sys.chained, sitecustomize.NAME, '_gpuloom_hooks' in sys.modules)",
        path=f"{tmp_path / 'one'}:{tmp_path / 'two'}",
    )
    assert (done.stdout, done.stderr) == ("['one'] one True\n", "")


def test_a_sitecustomize_that_chains_all_others_does_not_go_round_for_ever(run: Run, tmp_path: Path) -> None:
    (tmp_path / "round").mkdir()
    (tmp_path / "round" / "sitecustomize.py").write_text(
        "import sys, os, importlib.machinery as m, importlib.util as u\n"
        "sys.times = getattr(sys, 'times', 0) + 1\n"
        "spec = m.PathFinder.find_spec('sitecustomize', [p for p in sys.path if p != os.path.dirname(__file__)])\n"
        "spec.loader.exec_module(u.module_from_spec(spec))\n"
    )
    done = run("import sys\nprint(sys.times)", path=str(tmp_path / "round"))
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_what_fails_in_a_sitecustomize_behind_ours_is_told_as_without_us(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    done = run("import sys\nprint('_gpuloom_hooks' in sys.modules)", path=str(tmp_path / "one"))
    assert "ValueError: theirs" in done.stderr
    assert done.stdout == "True\n"


def test_the_hooks_of_a_kernel_profile_and_ours_chain_each_other(run: Run, folder: Path, tmp_path: Path) -> None:
    source = importlib.import_module("gpuloom.sharing.injected").__file__
    assert source is not None
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "sitecustomize.py").write_text(Path(source).read_text())
    code = "import sys\nprint('_gpuloom_hooks' in sys.modules, sys.modules['sitecustomize'].__file__)"
    kernel = str(tmp_path / "kernel")
    done = run(code, path=kernel)
    assert (done.stdout, done.stderr) == (f"True {kernel}/sitecustomize.py\n", "")
    own = {**os.environ, "PYTHONPATH": f"{kernel}:{DOOR}", "GPULOOM_HOOKS": str(folder)}
    out = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, timeout=60)
    assert (out.stdout, out.stderr) == (f"True {DOOR}/sitecustomize.py\n", "")


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_it_is_written_for_old_pythons_and_the_standard_library(file: Path) -> None:
    """Users' Pythons vary; what a framework has is got from the module that the job imported."""
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert names - {"_gpuloom_hooks"} <= set(sys.stdlib_module_names), f"{file} imports {names}"
