"""Which tests run which line: measured once, kept in .mutants/map.db, and measured anew for test files that changed."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing, suppress
from functools import cached_property, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".mutants"
MEASURED = ROOT / "tests" / "measured"
KINDS = ("unit", "contract", "property", "golden", "integration")
DOCUMENTS = "tests/unit/test_docs.py"
SCHEMA = """
create table if not exists files (path text primary key, hash text);
create table if not exists tests (id integer primary key, file text, name text unique, seconds real);
create table if not exists lines (test integer, source text, hash text, bits blob, count integer);
create table if not exists sources (hash text primary key, text text);
create index if not exists by_source on lines (source);
create index if not exists by_test on lines (test);
create index if not exists by_file on tests (file);
"""


def environment(root: Path, **more: str) -> dict[str, str]:
    """The environment of tests of a copy of this repository: its own source."""
    data = os.environ.get("GPULOOM_DATA", str(ROOT.parent / "shared" / "data"))
    return {**os.environ, "PYTHONPATH": str(root / "src"), "GPULOOM_DATA": data, **more}


class Map:
    """Which tests run which line, and how long each takes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.seconds: dict[str, float] = dict(db.execute("select name, seconds from tests"))

    @classmethod
    def of_now(cls, only: list[str] | None = None, *, stale: bool = False) -> Map:
        """The map of the tests as they are now; what is missing is measured. only: of these test files."""
        PLACE.mkdir(exist_ok=True)
        db = sqlite3.connect(PLACE / "map.db", check_same_thread=False)
        db.executescript(SCHEMA)
        now = {
            str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
            for kind in KINDS
            for path in sorted((ROOT / "tests" / kind).glob("test_*.py"))
        }
        known = dict(db.execute("select path, hash from files"))
        for path in known.keys() - now.keys():
            _forget(db, path)
        changed = [path for path, value in now.items() if known.get(path) != value and (not only or path in only)]
        if changed and not stale:
            print(f"measuring which lines {len(changed)} test files run (kept in {PLACE.name})", flush=True)
            _measure(changed)
            take(db, PLACE / "raw", {path: now[path] for path in changed})
            shutil.rmtree(PLACE / "raw")
        db.commit()
        return cls(db)

    def tests(
        self, path: str, source: str, first: int, last: int, near_s: float, most_s: float
    ) -> tuple[list[str], list[str]]:
        """The tests that run these lines: those that run little else, `near_s` seconds of them, and the others.

        What stands outside of functions runs once, as whichever test imports it first, and what comes of it shows
        wherever it is used. There, all tests count that run some function of the file or some line that uses what
        these lines define, first those whose file imports the module; and those that compare the documents with the
        program.
        """
        wanted = {path: set(range(first, last + 1))}
        imported = first not in (functions := _functions(source))
        scores: dict[str, float] = defaultdict(float)
        if imported:
            wanted = {**self._uses(path, first), path: wanted[path] | functions}
            asking = _asking(path)
            scores.update({name: 1.0 for name in self.seconds if name.partition("::")[0] in asking})
        for place, lines_there in wanted.items():
            there = source if place == path else self._text(place)
            for name, lines, count in self._lines(place, there):
                if common := lines & lines_there:
                    scores[name] += (len(lines) if place == path else len(common)) / count
        near, others, spent = [], [], 0.0
        for name in sorted(scores, key=lambda name: (-scores[name], name)):
            spent += self.seconds[name]
            if not near or (spent <= near_s and len(near) < 150):
                near.append(name)
            elif spent <= most_s and len(others) < 600:
                others.append(name)
        if imported:
            near += [name for name in self.seconds if name.startswith(DOCUMENTS) and name not in scores]
        return near, others

    @lru_cache(maxsize=64)  # noqa: B019 - there is one map
    def _uses(self, path: str, line: int) -> dict[str, set[int]]:
        """The lines of functions that use what this line outside of functions defines, by file.

        What else outside of functions uses it defines something by it, whose uses count, too, and so on.
        """
        found: dict[str, set[int]] = defaultdict(set)
        left = [_defined(self._text(path), line)]
        known: set[str] = set()
        for _ in range(4):
            names = set().union(*left) - known
            known |= names
            left = []
            for place in _sources():
                inside, outside = _mentioned(self._text(place), frozenset(names))
                if inside:
                    found[place] |= inside
                left += [_defined(self._text(place), one) for one in outside]
        return found

    @lru_cache(maxsize=1000)  # noqa: B019
    def _text(self, path: str) -> str:
        return (ROOT / path).read_text()

    @lru_cache(maxsize=64)  # noqa: B019
    def _lines(self, path: str, source: str) -> list[tuple[str, set[int], int]]:
        """(test, the lines of this source that it runs, how many lines it runs in all)"""
        found = []
        moved: dict[str, dict[int, int]] = {}
        rows = self._db.execute(
            "select tests.id, name, hash, bits from lines join tests on tests.id = test where source = ?", (path,)
        ).fetchall()
        for test, name, digest, bits in rows:
            if name not in self.seconds or test not in self._counts:
                continue  # measured by another run of this program since this one began
            if digest not in moved:
                moved[digest] = self._moved(digest, source)
            lines = {moved[digest][line] for line in unpacked(bits) if line in moved[digest]}
            found.append((name, lines, self._counts[test]))
        return found

    @cached_property
    def _counts(self) -> dict[int, int]:
        return dict(self._db.execute("select test, sum(count) from lines group by test"))

    def _moved(self, digest: str, source: str) -> dict[int, int]:
        """Where each line of that source stands now; a changed line takes the place of those that it replaces."""
        (before,) = self._db.execute("select text from sources where hash = ?", (digest,)).fetchone()
        if before == source:
            return {line: line for line in range(1, source.count("\n") + 2)}
        found = {}
        matcher = difflib.SequenceMatcher(None, before.splitlines(), source.splitlines(), autojunk=False)
        for _, low, high, new, end in matcher.get_opcodes():
            for line in range(low, high):
                found[line + 1] = min(new + line - low, max(end - 1, new)) + 1
        return found


@lru_cache(maxsize=8)
def _functions(source: str) -> set[int]:
    """The lines inside of functions."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return found


@lru_cache(maxsize=1)
def _sources() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "src").rglob("*.py"))]


@lru_cache(maxsize=1000)
def _names(source: str) -> dict[str, set[int]]:
    """Where each name stands, as itself or after a dot; types of parameters and variables don't count."""
    found: dict[str, set[int]] = defaultdict(set)
    left: list[ast.AST] = [ast.parse(source)]
    while left:
        node = left.pop()
        match node:
            case ast.Name(name) | ast.Attribute(_, name):
                found[name].add(node.lineno)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "type_params"):
                left += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST)]
    return found


def _mentioned(source: str, names: frozenset[str]) -> tuple[set[int], set[int]]:
    """The lines with one of these names, inside of functions and outside."""
    stand = _names(source)
    lines = set().union(*(stand[name] for name in names if name in stand))
    inside = lines & _functions(source) if lines else set()
    return inside, lines - inside


@lru_cache(maxsize=1000)
def _defined(source: str, line: int) -> set[str]:
    """The names that the statement outside of functions on this line defines: of a class, it and the attribute."""
    found: set[str] = set()
    body = ast.parse(source).body
    while holder := [node for node in body if _first(node) <= line <= (node.end_lineno or node.lineno)]:
        node, body = holder[0], []
        match node:
            case ast.ClassDef(name):
                found.add(name)
                body = node.body
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) if not name.startswith("__"):
                found.add(name)
            case ast.AnnAssign(ast.Name(name)):
                found.add(name)
            case ast.Assign(targets):
                found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            case ast.If() | ast.Try() | ast.With():
                body = [one for one in ast.walk(node) if isinstance(one, ast.stmt) and one is not node]
    return found


def _first(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


@lru_cache(maxsize=64)
def _asking(path: str) -> set[str]:
    """The test files that import this module."""
    module = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    return {test for test, (modules, members) in _imports().items() if module in modules or (package, name) in members}


@lru_cache(maxsize=1)
def _imports() -> dict[str, tuple[set[str], set[tuple[str, str]]]]:
    """What each test file imports: modules, and what from which module."""
    found = {}
    for kind in KINDS:
        for path in sorted((ROOT / "tests" / kind).glob("test_*.py")):
            modules, members = set(), set()
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Import(names):
                        modules |= {name.name for name in names}
                    case ast.ImportFrom(str(module), names):
                        modules.add(module)
                        members |= {(module, name.name) for name in names}
            found[str(path.relative_to(ROOT))] = modules, members
    return found


def unpacked(bits: bytes) -> list[int]:
    """The numbers of a bit set, as coverage writes them."""
    return [8 * index + bit for index, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]


def _measure(files: list[str]) -> None:
    """Run these test files, measured; slow tests are left out."""
    raw = PLACE / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "4", "-p", "by_test", "-m", "not slow", "--timeout", "900", *files],
        cwd=ROOT,
        env=environment(ROOT, PYTHONPATH=str(MEASURED), GPULOOM_COVERAGE=str(raw)),
        check=False,  # a test that fails is left out of the map
    )
    if not (raw / "ended.json").is_file():
        raise SystemExit("Nothing was measured: pytest did not run to its end, and says why above.")


def _forget(db: sqlite3.Connection, path: str) -> None:
    db.execute("delete from lines where test in (select id from tests where file = ?)", (path,))
    db.execute("delete from tests where file = ?", (path,))
    db.execute("delete from files where path = ?", (path,))


def take(db: sqlite3.Connection, raw: Path, files: dict[str, str]) -> None:
    """Put what was measured in place of what was known of these test files."""
    for path in files:
        _forget(db, path)
    ended = json.loads((raw / "ended.json").read_text())
    for name, (seconds, outcome) in ended.items():
        if outcome == "passed":
            db.execute(
                "insert into tests (file, name, seconds) values (?, ?, ?)", (name.partition("::")[0], name, seconds)
            )
    numbers = dict(db.execute("select name, id from tests"))
    seen: dict[tuple[int, str], int] = defaultdict(int)
    for part in raw.glob("lines.*"):
        with closing(sqlite3.connect(part)) as one, suppress(sqlite3.DatabaseError):  # of a process killed as it wrote
            rows = one.execute(
                "select context, path, numbits from line_bits join context on context.id = context_id "
                "join file on file.id = file_id"
            )
            for context, path, bits in rows:
                if context in numbers:
                    seen[numbers[context], path] |= int.from_bytes(bits, "little")
    digests: dict[str, str] = {}
    for (test, place), value in seen.items():
        path = Path(place)
        if place not in digests:
            text = path.read_text()
            digests[place] = hashlib.sha256(text.encode()).hexdigest()
            db.execute("insert or ignore into sources values (?, ?)", (digests[place], text))
        bits = value.to_bytes((value.bit_length() + 7) // 8, "little")
        relative = path.parts[path.parts.index("src") :]
        db.execute(
            "insert into lines values (?, ?, ?, ?, ?)",
            (test, "/".join(relative), digests[place], bits, value.bit_count()),
        )
    db.executemany("insert or replace into files values (?, ?)", files.items())
