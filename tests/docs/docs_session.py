"""What a reader does with a page: a clone of their own, one shell and one Python from its top to its end."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import psutil
from docs_pages import ROOT, Block, comparable, console_steps

PATIENCE_S = 150.0
"""How long a block may take before it counts as hanging; the page says so of longer ones."""
HIDDEN = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "out")
AS_THEY_ARE = ("src", "tests")

PRELUDE = r"""
set -eE
trap 'code=$?; [ $code = 0 ] || echo "[exit code $code of: $BASH_COMMAND]"' EXIT
until_ctrl_c() {  # a command that goes on until it is interrupted: what it prints within some seconds
    set -m
    (eval "$1") > .until 2>&1 &
    local pid=$! tries=0 code=0
    while [ ! -s .until ] && kill -0 $pid 2>/dev/null && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
    kill -INT -- -$pid 2>/dev/null || true
    wait $pid || code=$?
    set +m
    cat .until
    rm .until
    [ $code = 0 ] || [ $code = 130 ]
}
"""
PYTHON = """
import sys
names = {"__name__": "__main__"}
sys.path.insert(0, "")
for line in sys.stdin:
    file = line.strip()
    with open(file + ".out", "w", buffering=1) as out:
        sys.stdout = sys.stderr = out
        exec(compile(open(file).read(), file, "exec"), names)
    print("done", file=sys.__stdout__, flush=True)
"""


class FailedError(AssertionError):
    """A block of a page did not do what the page says."""


def clone(folder: Path) -> None:
    """The files of the checkout that git knows, or would take; all of it where this is no checkout of git.

    `src` and `tests`, which no page changes, are those of the checkout: three files of four, for each page.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if listed.returncode or not listed.stdout:
        shutil.copytree(ROOT, folder, ignore=HIDDEN, dirs_exist_ok=True)
        return
    for name in AS_THEY_ARE:
        (folder / name).symlink_to(ROOT / name)
    for name in listed.stdout.decode().split("\0"):
        if name and name.split("/")[0] not in AS_THEY_ARE and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def environment_of(folder: Path) -> None:
    """A `.venv` in the clone as `make setup` would make it, without installing all of it again."""
    own = folder / ".venv"
    venv.create(own, symlinks=True)
    (site,) = own.glob("lib/python*/site-packages")
    # What is installed for the tests is found behind what the page installs itself.
    (site / "of_the_tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name, module in (("gpuloom", "gpuloom"), ("pip", "pip")):
        # The default port may be that of another suite, or of a scheduler of whoever runs this.
        extra = "if sys.argv[1:2] == ['up'] and '--port' not in sys.argv: sys.argv += ['--port', '0']\n"
        # pip would fetch the tools that build a package from the network; those of the extra dev do.
        if name == "pip":
            extra = "if 'install' in sys.argv: sys.argv += ['--no-build-isolation', '--no-index']\n"
        script = own / "bin" / name
        script.write_text(
            f"#!{own}/bin/python\nimport runpy, sys\n{extra}runpy.run_module({module!r}, run_name='__main__')\n"
        )
        script.chmod(0o755)
    (own / ".installed").touch()


class Session:
    """One reader of one page.

    Attributes:
        folder: their clone. base: all that is theirs.
    """

    def __init__(self, base: Path, data: Path) -> None:
        self.base, self.folder = base, base / "gpuloom"
        self.folder.mkdir()
        (base / "home").mkdir()
        (base / "steps").mkdir()
        clone(self.folder)
        environment_of(self.folder)
        kept = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "CC")
        path = f"{self.folder}/.venv/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {name: os.environ[name] for name in kept if name in os.environ} | {
            "PATH": path, "HOME": str(base / "home"), "USER": "ada", "TMPDIR": str(base), "GPULOOM_DATA": str(data),
            "COLUMNS": "100", "MPLBACKEND": "agg", "MPLCONFIGDIR": str(base / "home"), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self.shell = self._start("bash", "--norc", "--noprofile")
        self.python: subprocess.Popen[str] | None = None
        self.steps = 0
        self.printed = ""
        """Output of the blocks since the last heading that ran, for the ones that show it."""
        (base / "steps" / "prelude").write_text(PRELUDE)
        self._tell(self.shell, f". {base}/steps/prelude; echo done")

    def _start(self, *command: str, folder: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=folder or self.folder, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _tell(self, process: subprocess.Popen[str], line: str) -> str:
        """Have a session do something; what is wrong if it ended over it, or nothing."""
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        deadline, told = time.monotonic() + PATIENCE_S, ""
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            piece = process.stdout.readline()
            if piece == "done\n":
                return ""
            if not piece:
                return told or "[the shell ended]"
            told += piece
        os.killpg(process.pid, signal.SIGKILL)
        return f"{told}[still at it after {PATIENCE_S:.0f} s]"

    def sh(self, text: str, errors: str = "&1") -> str:
        """Run a few lines in the page's shell; what they print. The first that fails ends the page.

        Args:
            errors: where standard error goes, as the shell writes it.
        """
        self.steps += 1
        step = self.base / "steps" / str(self.steps)
        step.write_text(re.sub(r"^(.*\S) +# .*\buntil (?:q or )?Ctrl-C\b.*$", _interrupted, text, flags=re.MULTILINE))
        wrong = self._tell(self.shell, f". {step} </dev/null >{step}.out 2>{errors}; echo done")
        printed = Path(f"{step}.out").read_text(errors="replace")
        if wrong:
            told = Path(errors).read_text() if errors != "&1" else ""
            raise FailedError(f"{text}\n{printed[-3000:]}{told[-3000:]}\n{wrong}")
        return printed

    def run_python(self, text: str) -> str:
        """Run a block in the page's Python, which goes on where the last block ended."""
        self.steps += 1
        step = self.base / "steps" / f"{self.steps}.py"
        step.write_text(text)
        if self.python is None:
            place = self.sh("pwd").strip()
            self.python = self._start(f"{self.folder}/.venv/bin/python", "-c", PYTHON, folder=place)
        wrong = self._tell(self.python, str(step))
        printed = Path(f"{step}.out").read_text(errors="replace")
        if wrong:
            raise FailedError(f"{text}\n{printed[-3000:]}\n{wrong}")
        return printed

    def _console(self, command: str, shown: str) -> str:
        """What a command prints: results, or the error that the page shows in their place."""
        notes = self.base / "steps" / "notes"
        if shown.startswith("gpuloom: "):
            # It is to fail: exit code 1 or 2.
            self.sh(f"code=0\n{command} || code=$?\n[ $code = 1 ] || [ $code = 2 ]\n", str(notes))
            return notes.read_text()
        return self.sh(f"{command}\n", str(notes))

    def do(self, block: Block) -> None:
        """Do with a block what a reader does: run it, write the file that it is, or look whether it is right.

        Raises:
            FailedError: it does not run, or shows what is not printed.
        """
        if block.file:
            (Path(self.sh("pwd").strip()) / block.file).write_text(block.text)
        elif block.language == "sh":
            self.printed = self.sh(block.text)
        elif block.language == "python":
            self.printed = self.run_python(block.text)
        elif block.language == "console":
            self.printed = ""
            for command, shown in console_steps(block.text):
                printed = self._console(command, shown)
                self.printed += printed
                if shown and comparable(printed) != comparable(shown):
                    raise FailedError(f"{command}\nprints\n{printed}\nthe page shows\n{shown}")
        elif block.language == "text":
            # What depends on machine and moment has digits or is a path; headings and sentences are to agree.
            real = {" ".join(line.split()) for line in self.printed.splitlines()}
            for line in block.text.splitlines():
                if line.strip() and not re.search(r"[\d/]", line) and " ".join(line.split()) not in real:
                    raise FailedError(f"the page shows\n{line}\nprinted was\n{self.printed}")

    def end(self) -> None:
        """End what the page started, as it would itself, and make sure that nothing of it is left."""
        for process in (self.shell, self.python):
            if process is not None:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.close()
                process.wait(timeout=20)
                process.stdout.close()
        for record in [*self.base.glob("home/.local/share/*/server.json"), *self.base.glob("*/server.json")]:
            command = [f"{self.folder}/.venv/bin/gpuloom", "down", "--stop-jobs", "--home", str(record.parent)]
            subprocess.run(command, env=self.environment, capture_output=True, timeout=60, check=False)
        for process in _of(self.base):
            process.kill()


def _interrupted(match: re.Match[str]) -> str:
    command = match[1].replace("'", "'\\''")
    return f"until_ctrl_c '{command}'"


def _of(base: Path) -> list[psutil.Process]:
    """The processes that live in a reader's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("HOME") == str(base / "home"):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
