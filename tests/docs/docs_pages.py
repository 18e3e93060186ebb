"""The code blocks of the documents, as a reader meets them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("**/*.md"),
        *(ROOT / "examples").glob("*/README.md"),
    ]
)
SHOWN = {"", "text", "json", "toml", "csv", "yaml"}
"""Languages of blocks that are shown, or are the content of a file, but never run."""
RUN = {"sh", "console", "python"}
_DATA = r"the public traces, see \[data\.md\]\([\w./]+\)"
_MACHINES = "several machines|a Slurm cluster|a Kubernetes cluster|root|Docker|systemd|PyTorch"
_TIME = r"(an?|two|five|ten|[0-9]+) (second|minute|hour)s?"
NEEDS = re.compile(rf"(Needs (a GPU|{_MACHINES}|{_DATA})(, and takes {_TIME})?|Takes {_TIME})\.")
"""What may stand, in italics, as the last line above a block: why a reader may not be able to run it."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: of the document, from 1. language: as fenced. text: what is in it.
        above: the paragraph that stands directly above it, or nothing.
    """

    line: int
    language: str
    text: str
    above: str

    @property
    def needs(self) -> str:
        """What the line above says that it needs, as `Needs a GPU.`; nothing if it says nothing."""
        match = re.fullmatch(r"\*(?P<reason>(?:Needs|Takes) .+)\*", self.above.rpartition("\n")[2])
        return match["reason"] if match else ""

    @property
    def file(self) -> str:
        """The file whose content this is: its first line names it (`# job.yaml`), or the end of what stands above."""
        first = re.match(r"# ([\w./-]+\.\w+)\n", self.text)
        said = re.search(r"`([\w./-]+\.\w+)`:$", self.above)
        if self.language in SHOWN - {"json"} or self.language == "python":
            if first:
                return first[1]
            if said and self.language in SHOWN:
                return said[1]
        return ""


_STRUCTURE = MarkdownIt("commonmark").disable("inline")
"""Paragraphs as they are written: what is in a line does not matter, and takes most of the time."""


@cache
def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found, above = [], ""
    for token in _STRUCTURE.parse(path.read_text()):
        if token.type == "fence":
            assert token.map is not None
            found.append(Block(token.map[0] + 1, token.info.split(" ")[0], token.content, above))
        elif token.type == "code_block":
            assert token.map is not None
            found.append(Block(token.map[0] + 1, "indented", token.content, above))
        if token.type == "inline":
            above = token.content
        elif token.type not in {"paragraph_open", "paragraph_close"}:
            above = ""
    return found


def console_steps(text: str) -> list[tuple[str, str]]:
    """(command, output shown) of a console block."""
    steps: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif steps and steps[-1][0].endswith("\\") and line.startswith("> "):
            steps[-1] = (f"{steps[-1][0]}\n{line[2:]}", "")
        else:
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}{line}\n")
    return steps


def comparable(printed: str) -> list[str]:
    """Output without what differs from run to run: the column of wall times, its width, and trailing blanks."""
    lines, cut = [], False
    for line in printed.rstrip().splitlines():
        if line.rstrip().endswith(" wall"):
            cut = True
        elif not line.strip():
            cut = False
        if set(line) == {"─"}:
            lines.append("─")
        elif cut and re.search(r" [\d.]+ ?(ms|s)$|wall$", line):
            lines.append(re.sub(r" +\S+( ?(ms|s))?$", "", line))
        else:
            lines.append(line.rstrip())
    return lines
