"""Pages of which a part is written by a benchmark: the rest stays, and a page without its marks is refused."""

from __future__ import annotations

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
