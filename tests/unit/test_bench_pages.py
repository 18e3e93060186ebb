"""Pages of which a part is written by a benchmark: the rest stays, and a page without its marks is refused."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(BENCH))
    sys.modules.pop("pages", None)
    import pages

    return pages


def test_only_what_lies_between_the_marks_changes(pages: object) -> None:
    page = "by hand\n<a>\nold\n<end>\nmore\n<b>\nkept\n<end>\n"
    once = pages.with_part(page, "<a>", "<end>", "new\n")  # type: ignore[attr-defined]
    assert once == "by hand\n<a>\nnew\n<end>\nmore\n<b>\nkept\n<end>\n"
    assert pages.with_part(once, "<a>", "<end>", "new\n") == once  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", ["no marks", "<a> only", "<end>\n<a>", "<a>\n<a>\n<end>"])
def test_a_page_without_its_marks_is_refused(pages: object, page: str) -> None:
    with pytest.raises(SystemExit, match="must hold <a> once, and <end> after it"):
        pages.with_part(page, "<a>", "<end>", "new")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("script", "name", "page"),
    [
        ("learning", "TEXT", "learning"),
        ("pollux", "TEXT", "pollux"),
        ("sia", "TEXT", "pollux"),
        ("figures", "INTRODUCTION", "weaving"),
    ],
)
def test_a_page_that_is_written_whole_has_the_words_of_its_script(script: str, name: str, page: str) -> None:
    """Whoever edits one of the two must edit the other: the next run would undo it."""
    tree = ast.parse((BENCH / f"{script}.py").read_text())
    (text,) = (
        ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and names(node) == [name]
    )
    words = [re.escape(piece.replace("{{", "{").replace("}}", "}")) for piece in re.split(r"(?<!{){\w+}(?!})", text)]
    made = (BENCH.parent / "docs" / "results" / f"{page}.md").read_text()
    begin = made.find(text.splitlines()[0])
    assert re.match("(.+?)".join(words), made[begin:], flags=re.DOTALL), (
        f"docs/results/{page}.md and bench/{script}.py differ"
    )


def names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]
