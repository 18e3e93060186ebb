"""Draw the pictures of the README and the docs, all from what the program itself prints and draws.

python scripts/pictures.py        (make pictures)

The terminal shows `gpuloom ls` and `gpuloom why` on a scheduler on paper, whose clock stands. The report is the top of
the page that `gpuloom compare --html` writes. The others are made by `--plot`. The same program draws the same.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDTH = 116
MORNING_S = 1_800_000_000.0
"""When the scheduler on paper begins: a day at eight, UTC."""
TRACE = "trace generate --jobs 2000 --gpus 64 --load 0.95 --max-duration 12h --seed 1 --output jobs.csv"
COMPARE = "compare jobs.csv --cluster 8x8 --policies fifo,srtf,tiresias,weave"
JOBS: Sequence[dict[str, Any]] = (
    {"name": "resnet", "gpus": 4, "estimate": "2h"},
    {"name": "bert", "gpus": 2, "estimate": "5h"},
    {"name": "llama", "gpus": 8, "estimate": "9h"},
    {"name": "vit", "gpus": 2, "estimate": "1h"},
    {"name": "gpt2", "gpus": 4, "estimate": "3h"},
)
"""Submitted ten minutes apart to a machine of eight GPUs."""


# -- a terminal -------------------------------------------------------------------------------------------------------


class OnPaper:
    """What the commands call of a client, answered by a service in this process."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def numbers(self, written: Sequence[str]) -> list[int]:
        return [int(word) for word in written]

    def why(self, job: int, *, forecast: bool) -> Any:
        return json.loads(json.dumps(self._service.why(job, forecast=forecast)))

    def status(self) -> Any:
        return json.loads(json.dumps(self._service.status()))

    def jobs(self, *, states: Sequence[str], **_: Any) -> Any:
        from gpuloom.core.job import Phase
        from gpuloom.store.port import JobQuery

        found = self._service.jobs(JobQuery(phases=tuple(Phase(state) for state in states)))
        return json.loads(json.dumps(found))


def typed(*commands: str) -> list[tuple[str, str]]:
    """(command, what it prints) of commands on a scheduler that has the jobs above."""
    from gpuloom.cli.main import cli
    from gpuloom.live.trial.rehearsal import Rehearsal

    paper = Rehearsal("fifo:backfill=easy", models=["V100"] * 8)
    paper.now_s = MORNING_S
    for job in JOBS:
        paper.submit(job)
        paper.later(600.0)

    @contextmanager
    def connect(*_: Any, **__: Any) -> Iterator[OnPaper]:
        yield OnPaper(paper.service)

    shown = []
    for command in commands:
        printed = io.StringIO()
        with (
            patch("gpuloom.cli.why.connect", connect),
            patch("gpuloom.cli.jobs.connect", connect),
            patch.dict(os.environ, {"COLUMNS": str(WIDTH), "TZ": "UTC"}),
            redirect_stdout(printed),
        ):
            time.tzset()
            cli.main(command.split(), prog_name="gpuloom", standalone_mode=False)
        shown.append((command, printed.getvalue()))
    time.tzset()
    return shown


def terminal(title: str, *commands: str) -> str:
    """A picture of a terminal, without fonts from elsewhere."""
    from rich.console import Console
    from rich.text import Text

    lines: list[Text] = []
    for command, printed in typed(*commands):
        prompt = Text.assemble(("$ ", "green"), (f"gpuloom {command}", "bold"))
        lines += [prompt, *map(Text, printed.splitlines()), Text()]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines[:-1]:
        console.print(line, soft_wrap=False)
    drawn = console.export_svg(title=title, unique_id="terminal")
    plain = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return plain.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")


def why() -> str:
    return terminal("gpuloom", "ls", "why 3")


# -- the report -------------------------------------------------------------------------------------------------------


def report(page: str) -> str:
    """The top of a report as one SVG: its title, its facts and its four charts."""
    style = re.search(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    title = re.search(r"<h1>(.*?)</h1>", page, flags=re.DOTALL)
    told = re.search(r'class="facts">(.*?)</p>', page, flags=re.DOTALL)
    assert style is not None
    assert title is not None
    assert told is not None
    parts = [
        '<rect width="1280" height="820" rx="10" style="fill:var(--ground)"/>',
        f'<text x="30" y="48" class="head">{title[1]}</text><text x="30" y="76" class="told">{told[1]}</text>',
    ]
    for place, key in enumerate(("jct", "relative", "queue", "busy")):
        found = re.search(rf'<svg id="{key}".*?</svg>', page, flags=re.DOTALL)
        assert found is not None, f"the report has no chart {key}"
        words = re.search(r"<title[^>]*>(.*?)</title>", found[0])
        x, y = 20 + place % 2 * 630, 96 + place // 2 * 362
        parts.append(f'<rect x="{x}" y="{y}" width="610" height="346" rx="10" class="card"/>')
        parts.append(f'<text x="{x + 20}" y="{y + 28}" class="sub">{words[1] if words else ""}</text>')
        placed = f'<svg x="{x + 8}" y="{y + 38}" width="594" height="304"'
        parts.append(found[0].replace("<svg", placed, 1).replace('class="chart"', 'class="chart" font-size="13"'))
    own = (
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif}"
        ".head{font-size:26px;font-weight:700;fill:var(--ink)}.told{font-size:15px;fill:var(--soft)}.sub{font-size:16px;font-weight:700;fill:var(--ink)}"
        ".card{fill:var(--card);stroke:var(--rule)}"
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1280 820" width="1280" height="820">'
        f"<style>{style[1]}{own}</style>{''.join(parts)}</svg>\n"
    )


# -- all --------------------------------------------------------------------------------------------------------------


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:

        def run(command: str) -> None:
            program = [sys.executable, "-m", "gpuloom", *command.replace("EXAMPLES", str(ROOT / "examples")).split()]
            subprocess.run(program, cwd=folder, check=True, capture_output=True)

        run(TRACE)
        run(f"{COMPARE} --html report.html")
        run("weave EXAMPLES/weave/jobs.csv --plot groups.png")
        run("share simulate --high resnet50 --load 0.5 --best-effort resnet50-train --rule gpuloom --plot sharing.png")
        run(f"{COMPARE} --plot compare.png")
        made = {
            "why.svg": why().encode(),
            "report.svg": report((Path(folder) / "report.html").read_text(encoding="utf-8")).encode(),
            **{name: fewer_colours(Path(folder) / name) for name in ("groups.png", "sharing.png", "compare.png")},
        }
    for name, content in made.items():
        (PICTURES / name).write_bytes(content)
        print(f"wrote docs/pictures/{name}: {len(content) / 1024:,.0f} KiB")


def fewer_colours(path: Path) -> bytes:
    """A PNG with a palette: a third of the bytes, and no eye sees it."""
    from PIL import Image

    packed = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(packed, "PNG", optimize=True)
    return packed.getvalue()


if __name__ == "__main__":
    main()
