"""One import of PyTorch for all ranks: a pretended torch that tells of each import, and real processes."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gpuloom.executors import direct
from gpuloom.training.inject import DOOR

forking: Any = import_module("_gpuloom_hooks.forking")

WHERE = ("--processes", "3", "--first", "2", "--world", "7", "--node", "1", "--nodes", "3", "--run", "12.1-ab")
TORCH = """
import os, time
os.write(2, b"torch %d\\n" % os.getpid())
exec(os.environ.get("IN_TORCH", ""))
class cuda:
    @staticmethod
    def _is_in_bad_fork(first=os.getpid()):
        return "BAD" in os.environ and os.getpid() != first
"""
SCRIPT = """
import os, random, sys
import torch
from torch import optim
say = lambda *words: os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
TELLS = """
say(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], os.getsid(0) == os.getpid(), sys.argv[1:])
"""


class Job:
    """A script beside nothing, with a torch on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.script = folder, folder / "job" / "train.py"
        (folder / "lib" / "torch" / "_dynamo").mkdir(parents=True)
        (folder / "job").mkdir()
        (folder / "lib" / "torch" / "__init__.py").write_text(TORCH)
        (folder / "lib" / "torch" / "optim.py").write_text("")
        (folder / "lib" / "torch" / "_dynamo" / "__init__.py").write_text("import os\nos.write(2, b'dynamo\\n')\n")

    def start(self, script: str, *flags: str, **env: str) -> subprocess.Popen[str]:
        self.script.write_text(script)
        return subprocess.Popen(
            (
                sys.executable,
                "-I",
                "-S",
                direct.__file__,
                *WHERE,
                "--",
                sys.executable,
                *flags,
                self.script,
                "a",
                "b c",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{DOOR}:{self.folder / 'lib'}",
                "GPULOOM_HOOKS": str(self.folder / "hooks"),
                "GPULOOM_GRACE_S": "20",
                **env,
            },
        )

    def run(self, script: str, *flags: str, **env: str) -> tuple[int, list[str], list[str], int]:
        """Exit code, what was said, what else was said on stderr, and how often torch was imported."""
        process = self.start(script, *flags, **env)
        out, err = process.communicate(timeout=60)
        lines = err.splitlines()
        imports = [line for line in lines if line.startswith("torch ")]
        return process.returncode, sorted(out.splitlines()), [one for one in lines if one not in imports], len(imports)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


ALL = [f"{2 + local} {local} 7 True ['a', 'b c']" for local in range(3)]


def test_three_ranks_import_once_and_are_as_ranks_that_were_started(job: Job) -> None:
    assert job.run(SCRIPT + TELLS) == (0, ALL, ["dynamo"], 1)
    assert job.run(SCRIPT + TELLS, "-u", "-B") == (0, ALL, ["dynamo"], 1)


@pytest.mark.parametrize(
    ("script", "env", "flags"),
    [
        ("import os\nos.environ['TORCH_X'] = '1'\n" + SCRIPT, {}, ()),  # it may mean to have a say
        ("import beside\n" + SCRIPT, {}, ()),
        (SCRIPT, {"GPULOOM_FORKS": "off"}, ()),
        (SCRIPT, {"GPULOOM_HOOKS": "off"}, ()),
        (SCRIPT, {"OMP_NUM_THREADS": "2"}, ()),
        (SCRIPT, {"LD_PRELOAD": ""}, ()),
        (SCRIPT, {"GPULOOM_SHARE_DIR": "/x"}, ()),
        (SCRIPT, {}, ("-Wignore",)),
    ],
    ids=["own words first", "own module first", "off", "no hooks", "threads", "preloaded", "shared GPU", "other flags"],
)
def test_where_it_may_make_a_difference_each_imports_by_itself(
    script: str, env: dict[str, str], flags: tuple[str, ...], job: Job
) -> None:
    (job.folder / "lib" / "beside.py").write_text("")
    assert job.run(script + TELLS, *flags, **env) == (0, ALL, [], 3)


@pytest.mark.parametrize(
    ("words", "text", "may"),
    [
        (["/usr/bin/python3.12", "-u", "a.py"], "import torch", True),
        (["python", "a.py", "b"], "import torch", True),
        (["python", "a.py"], "import tensorflow", False),
        (["python", "-m", "a"], "import torch", False),
        (["python", "-E", "a.py"], "import torch", False),
        (["python", "none.py"], "import torch", False),
        (["python"], "import torch", False),
        (["./a.py"], "import torch", False),
        (["bash", "a.py"], "import torch", False),
    ],
)
def test_who_is_asked(words: list[str], text: str, may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(text)
    asked = direct.Asked(WHERE)
    env = {"GPULOOM_HOOKS": "/x", "OMP_NUM_THREADS": "1"}
    assert direct.may_fork(asked, words, [env] * 3) is may
    assert not direct.may_fork(asked, words, [env])
    assert not direct.may_fork(asked, words, [env, {**env, "MORE": "1"}])
    asked.kind = direct.HOROVOD
    assert not direct.may_fork(asked, words, [env] * 3)


def test_a_file_beside_the_script_that_has_a_library_s_name(job: Job) -> None:
    (job.folder / "job" / "random.py").write_text("import os\nos.write(1, b'mine\\n')\n")
    assert job.run(SCRIPT + TELLS) == (0, sorted([*ALL, *["mine"] * 3]), [], 3)


def test_a_file_beside_the_script_goes_before_what_libraries_import(job: Job) -> None:
    (job.folder / "lib" / "needed.py").write_text("import os\nos.write(1, b'not this one\\n')\n")
    (job.folder / "job" / "needed.py").write_text("import os\nos.write(1, b'mine\\n')\n")
    assert job.run(SCRIPT + TELLS, IN_TORCH="import needed") == (0, sorted([*ALL, "mine"]), ["dynamo"], 1)


@pytest.mark.parametrize(
    ("in_torch", "imports"),
    [
        ("import threading; threading.Thread(target=time.sleep, args=(3,), daemon=True).start()", 3),
        ("if os.environ['RANK'] == '2' and not os.path.exists('fell'): open('fell', 'w').close(), 1 / 0", 4),
    ],
    ids=["a thread", "an error the first time"],
)
def test_what_comes_up_while_it_imports(in_torch: str, imports: int, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job.folder)
    code, said, _, found = job.run(SCRIPT + TELLS, IN_TORCH=in_torch)
    assert (code, said, found) == (0, ALL, imports)


def test_where_the_gpus_were_begun_the_others_are_started(job: Job) -> None:
    assert job.run(SCRIPT + TELLS, BAD="1") == (0, ALL, ["dynamo"], 3)


def test_who_is_killed_while_it_imports_ends_the_others(job: Job) -> None:
    kills = "if os.environ['RANK'] == '2': os.kill(os.getpid(), 9)"
    code, said, rest, _ = job.run(SCRIPT + "import time\nwhile True: time.sleep(0.05)\n", IN_TORCH=kills)
    assert (code, said) == (-9, [])
    assert rest == ["gpuloom: rank 2 (local rank 0) was killed by signal 9; the other 2 here are ended"]


def test_a_notice_while_it_imports_is_passed_on(job: Job) -> None:
    handles = "import signal; signal.signal(15, lambda *_: (os.write(1, b'noticed\\n'), os._exit(85))); "
    process = job.start(SCRIPT, IN_TORCH=handles + "os.write(1, b'up\\n'); time.sleep(30)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=25)
    assert process.returncode in (85, -signal.SIGTERM)


def test_ends_and_signals_of_forked_ranks_are_seen(job: Job) -> None:
    code, _, rest, imports = job.run(
        SCRIPT + "import time\nif os.environ['LOCAL_RANK'] == '1': sys.exit(7)\nwhile True: time.sleep(0.05)\n"
    )
    assert (code, imports) == (7, 1)
    assert rest[-1] == "gpuloom: rank 3 (local rank 1) ended with exit code 7; the other 2 here are ended"
    process = job.start(
        SCRIPT + "import signal, time\nsignal.signal(15, lambda *_: sys.exit(85))\nsay('up')\n"
        "while True: time.sleep(0.05)\n"
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["up\n"] * 3
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=25)
    assert process.returncode == 85


def test_random_numbers_are_each_rank_s_own(job: Job) -> None:
    (job.folder / "lib" / "numpy").mkdir()
    (job.folder / "lib" / "numpy" / "__init__.py").write_text("")
    (job.folder / "lib" / "numpy" / "random.py").write_text(
        "import os\nstate = [1]\ndef seed():\n    state[0] = os.getpid()\n"
    )
    numbers = "import numpy.random\n" + SCRIPT + "say(random.random(), numpy.random.state[0])\n"
    _, said, _, imports = job.run(numbers)
    assert (imports, len({one.split()[0] for one in said}), len({one.split()[1] for one in said})) == (1, 3, 3)


def test_all_are_children_of_the_launcher_from_their_first_line(job: Job) -> None:
    process = job.start(SCRIPT + "say(os.getppid())\n")
    out, err = process.communicate(timeout=60)
    assert (out.split(), err.count("torch ")) == ([str(process.pid)] * 3, 1)


def test_what_was_printed_before_is_printed_once(job: Job) -> None:
    code, said, _, _ = job.run(SCRIPT + TELLS, IN_TORCH="print('once', flush=False)")
    assert (code, said) == (0, sorted([*ALL, "once"]))


@pytest.mark.slow
def test_who_says_nothing_is_not_waited_for(job: Job) -> None:
    """A Python in which our hooks are not."""
    begun = "ticks = int(open('/proc/self/stat').read().rpartition(')')[2].split()[19])\n"
    waits = f"import time\nif os.environ['RANK'] == '2': time.sleep({direct.HEARD_S + 2})\n"
    script = SCRIPT + begun + waits + "say(os.environ['RANK'], ticks / os.sysconf('SC_CLK_TCK'))\n"
    code, said, _, imports = job.run(script, PYTHONPATH=str(job.folder / "lib"))
    assert (code, [line[0] for line in said], imports) == (0, ["2", "3", "4"], 3)
    first, *others = (float(line.split()[1]) for line in said)
    assert min(others) - first >= direct.HEARD_S - 0.1


@pytest.mark.parametrize(
    ("text", "head", "dynamo"),
    [
        ("'''x'''\nfrom __future__ import annotations\nimport os, torch.nn as nn\nx = 1\nimport sys", 3, False),
        ("import torch\nfrom torch.optim import SGD\n", 2, True),
        (
            "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nimport gpuloom.training",
            2,
            True,
        ),
        ("import torch\nimport lightning\ntorch.optim", 1, False),  # it may set what it will
        ("import torch\nfrom . import mine\ntorch.optim", 1, False),
        ("import torch, os\ntorch.optim\nos.environ['TORCHDYNAMO_DISABLE'] = '1'", 1, False),
        ("import torch\ntorch.optim\ntorch._dynamo.config.x = 1", 1, False),
        ("import os\ntry:\n    import torch\nexcept ImportError: pass", None, False),
        ("import os\nimport transformers\nimport torch", None, False),
        ("import numpy", None, False),
        ("import torch\n1 +", None, False),
    ],
)
def test_what_is_imported(
    text: str, head: int | None, dynamo: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text(text)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "a.py")])
    found, too = forking.planned()
    assert (None if found is None else len(found.body), too) == (head, dynamo)
    assert found is None or isinstance(found, ast.Module)


@pytest.mark.parametrize("word", ["-c", "-m", "", "/no/such/file.py"])
def test_what_is_no_script(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [word])
    assert forking.planned() == (None, False)
