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

        What stands outside of functions runs once, as whichever test imports it first: there, all tests count that
        run some function of the file, and those that compare the documents with the program.
        """
        wanted = set(range(first, last + 1))
        imported = first not in (functions := _functions(source))
        if imported:
            wanted |= functions
        scores: dict[str, float] = {}
        for name, lines, count in self._lines(path, source):
            if not lines.isdisjoint(wanted):
                scores[name] = len(lines) / count
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

    @lru_cache(maxsize=8)  # noqa: B019 - there is one map
    def _lines(self, path: str, source: str) -> list[tuple[str, set[int], int]]:
        """(test, the lines of this source that it runs, how many lines it runs in all)"""
        found = []
        moved: dict[str, dict[int, int]] = {}
        rows = self._db.execute(
            "select tests.id, name, hash, bits from lines join tests on tests.id = test where source = ?", (path,)
        ).fetchall()
        for test, name, digest, bits in rows:
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


def unpacked(bits: bytes) -> list[int]:
    """The numbers of a bit set, as coverage writes them."""
    return [8 * index + bit for index, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]


def _measure(files: list[str]) -> None:
    """Run these test files, measured; slow tests are left out."""
    raw = PLACE / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "by_test", "-m", "not slow", "--timeout", "900", *files],
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
