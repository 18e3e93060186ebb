"""Write the layout table of docs/explanation/architecture.md from what each package says of itself.

python scripts/layout.py        (make reference)
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "src" / "gpuloom"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- layout: begin -->", "<!-- layout: end -->"
ROOMS = ("live", "executors", "sharing", "cli")
"""Packages whose inner rooms have lines of their own."""


def told(package: Path) -> tuple[str, str]:
    """What a package is for, and what it may import: its docstring's first paragraph and line `May import: …`."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    allowed = re.search(r"May import: (.*?)\.?(?:\n\n|\Z)", text, flags=re.DOTALL)
    return " ".join(text.partition("\n\n")[0].split()), " ".join(allowed[1].split()) if allowed else ""


def packages() -> list[Path]:
    found = []
    for package in sorted(path.parent for path in PACKAGES.glob("*/__init__.py")):
        found.append(package)
        if package.name in ROOMS:
            found += sorted(path.parent for path in package.glob("*/__init__.py"))
    return found


def table() -> str:
    """A row for each package: name, what it is for, what it may import."""
    rows = ["| package | what | may import |", "|---|---|---|"]
    for package in packages():
        what, allowed = told(package)
        rows.append(f"| `{package.relative_to(PACKAGES)}` | {what.replace('|', chr(92) + '|')} | {allowed} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
