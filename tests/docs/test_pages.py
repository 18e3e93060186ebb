"""Every example of the documents runs as written: page by page, in order, each page in a clone of its own.

A block that not every reader can run says so in the line above it, in italics: *Needs a GPU.*, *Needs the public
traces, see data.md.*, *Takes 20 minutes.* It is skipped with those very words; nothing else is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from docs_pages import NEEDS, PAGES, ROOT, RUN, SHOWN, Block, blocks, comparable, console_steps
from docs_session import FailedError, Session

DATA = Path(os.environ.get("GPULOOM_DATA", ROOT.parent / "shared" / "data"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def runnable(path: Path) -> list[Block]:
    return [block for block in blocks(path) if block.language in RUN and not block.file]


SKIPPED = [(path, block) for path in PAGES for block in runnable(path) if block.needs]


def can_be_done(block: Block) -> bool:
    alone = re.fullmatch(r"Needs the public traces, see \[data\.md\]\([\w./]+\)\.", block.needs)
    return not block.needs or (alone is not None and DATA.is_dir())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", [path for path in PAGES if runnable(path)], ids=name_of)
def test_the_page_runs_as_written(path: Path, tmp_path: Path) -> None:
    """With the extras that `make setup` installs, and the programs that the page names."""
    for module in ("gymnasium", "matplotlib", "pandas", "setuptools"):
        pytest.importorskip(module)
    text = "".join(block.text for block in runnable(path) if can_be_done(block))
    for program in ("bash", "curl", "hostname", "make"):
        if (program == "bash" or re.search(rf"\b{program}\b", text)) and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    session = Session(tmp_path, DATA)
    try:
        for block in blocks(path):
            if not can_be_done(block):
                session.printed = ""
                continue
            try:
                session.do(block)
            except FailedError as error:
                pytest.fail(f"{name_of(path)}:{block.line}\n{error}", pytrace=False)
    finally:
        session.end()


@pytest.mark.not_everywhere
@pytest.mark.parametrize(
    ("path", "block"), [pytest.param(path, block, id=f"{name_of(path)}:{block.line}") for path, block in SKIPPED]
)
def test_the_block_says_what_it_needs(path: Path, block: Block) -> None:
    """Fails if it is no reason that we know; else it is what `pytest -rs` shows of blocks that are not run."""
    assert NEEDS.fullmatch(block.needs), f"{name_of(path)}:{block.line}: {block.needs}"
    if not can_be_done(block):
        pytest.skip(block.needs)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_blocks_are_of_languages_that_we_know(path: Path) -> None:
    for block in blocks(path):
        where = f"{name_of(path)}:{block.line}"
        assert block.language in RUN | SHOWN | {"indented"}, where
        # A command in an indented block would be run by nobody.
        if block.language == "indented":
            assert not re.match(r"(\$ )?(gpuloom|python3?|make|pip|systemd-run|\.venv/\S+) ", block.text), where
        if block.language == "json":
            json.loads(block.text)


# -- the runner itself ------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path):
    session = Session(tmp_path, DATA)
    yield session
    session.end()


def test_a_block_that_fails_fails_the_page(session: Session) -> None:
    session.do(Block(1, "sh", "cd docs\n", ""))
    session.do(Block(1, "sh", "test -e index.md && x=$PWD\n", ""))
    assert session.sh("echo $x") == f"{session.folder}/docs\n"
    with pytest.raises(FailedError, match="exit code 3"):
        session.do(Block(1, "sh", "(exit 3)\necho never\n", ""))


def test_python_goes_on_where_it_was_and_its_errors_fail_the_page(session: Session) -> None:
    session.do(Block(1, "python", "x = 1\n", ""))
    session.do(Block(1, "python", "print(x + 1)\n", ""))
    assert session.printed == "2\n"
    with pytest.raises(FailedError, match="ZeroDivisionError"):
        session.do(Block(1, "python", "x / 0\n", ""))


def test_what_a_console_shows_is_what_is_printed(session: Session) -> None:
    session.do(Block(1, "console", "$ echo one\none\n$ cat docs/none || echo two\n", ""))
    with pytest.raises(FailedError, match="the page shows"):
        session.do(Block(1, "console", "$ echo one\ntwo\n", ""))
    session.do(Block(1, "sh", "printf 'id  name\\n 1  a\\n'\n", ""))
    session.do(Block(1, "text", "id name\n 7 b\n", ""))
    with pytest.raises(FailedError, match="user"):
        session.do(Block(1, "text", "id name user\n 7 b\n", ""))


def test_what_goes_on_until_interrupted_is_interrupted(session: Session) -> None:
    assert session.sh("yes | sed 's/y/on/' | cat   # on and on, until Ctrl-C\necho after\n").endswith("after\n")
    with pytest.raises(FailedError, match="exit code"):
        session.sh("false    # until Ctrl-C\n")


def test_a_page_is_read_as_a_reader_does(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Say:\n\n*Needs a GPU.*\n\n```sh\na\n```\n\n```sh\nb\n```\n\nThe file `x.csv`:\n\n```\n1\n```\n\n"
        "- A list.\n  *Needs root.*\n\n  ```console\n  $ c\n  d\n  ```\n\n```yaml\n# y.yaml\nk: 1\n```\n"
    )
    found = blocks(page)
    assert [block.text for block in found] == ["a\n", "b\n", "1\n", "$ c\nd\n", "# y.yaml\nk: 1\n"]
    assert [block.needs for block in found] == ["Needs a GPU.", "", "", "Needs root.", ""]
    assert [block.file for block in found] == ["", "", "x.csv", "", "y.yaml"]
    assert found[0].line == 5
    assert console_steps(found[3].text) == [("c", "d\n")]


def test_wall_times_are_not_compared() -> None:
    one = "policy  JCT   wall\n──────\nfifo   1h    0.1s\nsrtf   2h   1.0 s\ntrace jobs"
    other = "policy  JCT    wall\n───────\nfifo   1h   0.076s\nsrtf   2h  10.0 s\ntrace jobs"
    assert comparable(one) == comparable(other)
    assert comparable(one) != comparable(other.replace("2h", "3h"))
