"""Would the tests notice? Put small faults into the program, one at a time, and run the tests that cover the line.

    python scripts/mutants.py -n 60 [--seed 7] [PATH | PATH:LINE | PATH:LINE-LINE]... [--tests FILE...]   (make mutants)

Faults are drawn at random over src, or over the files and lines named. What covers a line is measured once, kept in
.mutants, and measured anew for test files that have changed; lines of the program that have moved are found again.
Measured are the tests that are not slow. A fault that none of them sees is shown to slow ones, too: of the files whose
names and imports are nearest to it.
A fault that no test sees is printed as a diff: either it changes nothing that matters, or a test is missing.

Why not a library: mutmut (3.8) makes all mutants at once, draws no sample, and knows which tests call a function only
within its own process, so it can't see the runner and what the scheduler's processes do; cosmic-ray (8.7) runs the
whole suite for each mutant, and takes no sample either.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import psutil
from mutants_map import ROOT, Map, environment

FIRST_S, MOST_S = 12.0, 90.0
"""Seconds' worth of tests that a fault is tried with: of those nearest to the line, and then of the others."""
SLOW_FILES, SLOW_S = 4, 240.0
"""Files of slow tests that a fault is tried with, and for how long all of them."""


@dataclass(frozen=True)
class Mutant:
    """One fault: `text` in place of what stands from `start` to `end` in the file (in bytes)."""

    path: str
    line: int
    last: int
    kind: str
    start: int
    end: int
    text: str

    def put_into(self, source: str) -> str:
        """The source with it."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


# -- which faults there are -------------------------------------------------------------------------------------------

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


def changed(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What could wrongly stand for an expression, and what kind of fault that is."""
    match node:
        case ast.Compare(left, [operator, *more], [right, *others]):
            for other in COMPARED[type(operator)]:
                yield "comparison", ast.Compare(left, [other(), *more], [right, *others])
        case ast.BinOp(left, operator, right) if type(operator) in COUNTED and not texts(left, right):
            yield "arithmetic", ast.BinOp(left, COUNTED[type(operator)](), right)
        case ast.BoolOp(operator, values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield "boolean", rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield "boolean" if isinstance(node.op, ast.Not) else "arithmetic", operand
        case ast.IfExp(test, body, orelse):
            yield "exchange", ast.IfExp(test, orelse, body)
        case ast.Call(function, [first, second, *rest], keywords) if ast.dump(first) != ast.dump(second):
            if not any(isinstance(one, ast.Starred) for one in (first, second)):
                yield "exchange", ast.Call(function, [second, first, *rest], keywords)
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", ast.Constant(value + 1)
            if value not in (0, -1):
                yield "constant", ast.Constant(0 if isinstance(value, int) else value / 2)


def texts(*nodes: ast.expr) -> bool:
    """Some of these is a text: + and % put texts together."""
    return any(
        isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str)) for n in nodes
    )


def instead(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What could wrongly stand for a statement."""
    match node:
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", "return None"
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield "statement", "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()], _):
            yield "statement", "pass"


IDLE = ("TYPE_CHECKING", "__name__", "__all__")


def mutants(path: str, source: str) -> list[Mutant]:
    """All small faults of a file."""
    lines = [0]
    for text in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(text))
    found = []

    def add(node: ast.stmt | ast.expr, kind: str, text: str) -> None:
        last = node.end_lineno or node.lineno
        start, end = lines[node.lineno - 1] + node.col_offset, lines[last - 1] + (node.end_col_offset or 0)
        found.append(Mutant(path, node.lineno, last, kind, start, end, text))

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id in IDLE:
            return
        if isinstance(node, ast.JoinedStr | ast.Raise):  # words
            if isinstance(node, ast.Raise):
                add(node, "statement", "pass")
            return
        if isinstance(node, ast.expr):
            for kind, other in changed(node):
                add(node, kind, f"({ast.unparse(other)})")
        if isinstance(node, ast.stmt):
            for kind, text in instead(node):
                add(node, kind, text)
        if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Compare | ast.BoolOp | ast.Constant):
            add(node.test, "condition", f"(not ({ast.unparse(node.test)}))")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    visit(one)

    visit(ast.parse(source))
    return found


# -- trying them ------------------------------------------------------------------------------------------------------


def copy(folder: Path) -> Path:
    """A copy of the working tree, to break."""
    names = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def seen_by(folder: Path, tests: Sequence[str], most_s: float, timeout_s: int = 40) -> str:
    """The first of these tests that fails, or what else showed that something is wrong; nothing: all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb", "line"]
    command += ["--timeout", str(timeout_s)]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=folder,
            env=environment(folder, CI="true"),
            capture_output=True,
            text=True,
            timeout=most_s,
        )
    except subprocess.TimeoutExpired:
        return "it doesn't end"
    finally:
        end_left(folder)
    if done.returncode == 0:
        return ""
    if by := failed_in(done.stdout):
        return by
    if gone := not_there(tests, folder, done.stdout + done.stderr):  # some have another name by now (--stale)
        there = [test for test in tests if test not in gone]
        return seen_by(folder, there, most_s) if there else ""
    return f"pytest ended with {done.returncode}"


def end_left(folder: Path) -> None:
    """End what tests of this copy have left: with a fault in the program their own end of it may not work."""
    source = str(folder / "src")
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PYTHONPATH") == source or any(source in word for word in process.cmdline()):
                process.kill()


def failed_in(said: str) -> str:
    """The first test, or the first file that can't be imported, in what pytest printed; '' for none."""
    lines = [line for line in said.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    return lines[0].partition(" - ")[0] if lines else ""


def not_there(tests: Sequence[str], folder: Path, said: str) -> set[str]:
    """Those of these tests that pytest did not find."""
    return {test for test in tests if any(f"not found: {name}\n" in said for name in (test, folder / test))}


def tried(mutant: Mutant, folder: Path, covered: Map) -> str:
    """What sees this fault; nothing: no test does. A test that fails without it, too, has seen nothing."""
    file = folder / mutant.path
    source = file.read_text()
    for tests in covered.tests(mutant.path, source, mutant.line, mutant.last, FIRST_S, MOST_S):
        left = list(tests)
        while left:
            file.write_text(mutant.put_into(source))
            try:
                by = seen_by(folder, left, allowed_s(left, covered))
            finally:
                file.write_text(source)
            test = by.partition(" ")[2]
            if test not in left or not seen_by(folder, [test], allowed_s([test], covered)):
                if by:
                    return by
                break
            left.remove(test)
    return ""


def slow_sees(mutant: Mutant, folder: Path) -> str:
    """What slow test sees this fault; nothing: none of those that were tried in the time there is."""
    files = near(mutant.path)
    if not files:
        return ""
    file = folder / mutant.path
    source = file.read_text()
    file.write_text(mutant.put_into(source))
    try:
        by = seen_by(folder, ["-m", "slow", *files], SLOW_S, timeout_s=120)
    finally:
        file.write_text(source)
    test = by.partition(" ")[2]
    return by if "::" in test and not seen_by(folder, [test], SLOW_S, timeout_s=120) else ""


def near(path: str) -> list[str]:
    """Files of slow tests by how near they are to a file of the program: those first that import it, then those whose
    names have most words in common with its path."""
    of_program = {word.rstrip("s") for word in re.split(r"[/_.]", path)} - {"src", "gpuloom", "py", ""}
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    scores: dict[str, int] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        words = {word.rstrip("s") for word in file.stem.split("_")}
        score = 3 * (f"{module} import" in text) + len(words & of_program)
        if score and "slow" in text and file.parent.name not in ("docs", "training"):
            scores[str(file.relative_to(ROOT))] = score
    return sorted(scores, key=lambda name: (-scores[name], name))[:SLOW_FILES]


def allowed_s(tests: Sequence[str], covered: Map) -> float:
    """How long these tests may take on a machine that has other things to do, too."""
    return 30 + 6 * sum(covered.seconds[test] for test in tests)


def drawn(where: Sequence[str], count: int, seed: int, covered: Map) -> list[Mutant]:
    """Faults at random, all lines alike; only where some test comes by."""
    asked: list[tuple[Path, range]] = []
    for text in where or ["src"]:
        path, _, lines = text.partition(":")
        low, _, high = lines.partition("-")
        span = range(int(low), int(high or low) + 1) if lines else range(sys.maxsize)
        place = ROOT / path
        asked += [(file, span) for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for file, span in asked:
        path = str(file.relative_to(ROOT))
        for mutant in mutants(path, file.read_text()):
            if mutant.line in span:
                by_line.setdefault((path, mutant.line), []).append(mutant)
    chosen: list[Mutant] = []
    unseen = 0
    choice = random.Random(seed)
    places = sorted(by_line)
    choice.shuffle(places)
    for place in places:
        mutant = choice.choice(by_line[place])
        if len(chosen) < count:
            if covered.tests(mutant.path, (ROOT / mutant.path).read_text(), mutant.line, mutant.last, 1, 1)[0]:
                chosen.append(mutant)
            else:
                unseen += 1
    if where and any(":" in text for text in where):  # lines: all faults there are
        chosen = [mutant for place in sorted(by_line) for mutant in by_line[place]][:count]
    elif unseen:
        print(f"{unseen} of {unseen + len(chosen)} lines drawn are run by no test, and left out")
    return chosen


def main() -> int:
    """Draw, try, print what was not seen. 1: too many were not."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("where", nargs="*", metavar="PATH[:LINE[-LINE]]", help="files, folders or lines (default: src)")
    parser.add_argument("-n", type=int, default=60, help="how many faults (default: 60)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="which sample (default: any)")
    parser.add_argument("--least", type=float, default=80.0, help="per cent to be seen (80: a tenth changes nothing)")
    parser.add_argument("--at-once", type=int, default=2, help="faults tried at the same time (default: 2)")
    parser.add_argument("--tests", nargs="*", metavar="FILE", help="test files to measure (default: all)")
    parser.add_argument("--stale", action="store_true", help="take the map of the tests as it is")
    given = parser.parse_args()
    covered = Map.of_now(given.tests, stale=given.stale)
    chosen = drawn(given.where, given.n, given.seed, covered)
    print(f"{len(chosen)} faults, seed {given.seed}", flush=True)
    began = time.monotonic()
    folders: SimpleQueue[Path] = SimpleQueue()
    missed: list[Mutant] = []

    def work(mutant: Mutant) -> None:
        folder = folders.get()
        try:
            by = tried(mutant, folder, covered) or slow_sees(mutant, folder)
        finally:
            folders.put(folder)
        print(f"{'seen  ' if by else 'UNSEEN'} {mutant.path}:{mutant.line} {mutant.kind}  {by}", flush=True)
        if not by:
            missed.append(mutant)

    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(given.at_once) as pool:
        for number in range(given.at_once):
            folders.put(copy(Path(place) / str(number) / "gpuloom"))
        list(pool.map(work, chosen))
    for mutant in sorted(missed, key=lambda one: (one.path, one.line)):
        source = (ROOT / mutant.path).read_text()
        diff = difflib.unified_diff(
            source.splitlines(), mutant.put_into(source).splitlines(), mutant.path, "with the fault", "", "", 2, ""
        )
        print("\n" + "\n".join(diff))
    share = 100 * (1 - len(missed) / max(len(chosen), 1))
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} seen ({share:.0f} %), in {time.monotonic() - began:.0f} s")
    return int(share < given.least)


if __name__ == "__main__":
    sys.exit(main())
