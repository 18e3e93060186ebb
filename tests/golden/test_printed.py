"""What the commands that need no scheduler print and write, for three small traces, letter by letter.

`python tests/golden/test_printed.py` writes it anew after a change that is meant to change it, and the difference tells
what else has changed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import test_schedules

from gpuloom.cli.main import cli
from gpuloom.core.errors import GpuloomError
from gpuloom.traces.write import write_trace
from test_traces_formats import RATES, SAMPLES, _profiles

KEPT = Path(__file__).with_name("printed.json")
EXAMPLE = Path(__file__).parents[2] / "examples" / "weave" / "jobs.csv"
PLAIN = "--cluster 2x4,1x8 --interval 60"
MIXED = "--cluster 2x4:V100,1x4:P100,2x2:K80 --interval 60"
RATED = " --throughputs rates.json"
BESIDE = {"gavel": RATED, "shockwave": RATED, "pollux": " --throughputs profiles"}
COMMANDS = [
    f"compare plain.csv {PLAIN} --policies fifo,srtf,tiresias:thresholds=600/2000,muri-s",
    f"compare plain.csv {PLAIN} --policies fifo,srtf --csv -",
    f"compare plain.csv {PLAIN} --policies sjf,themis --json - --window 3-20",
    f"compare mixed.csv {MIXED} --policies srtf,hlas --jobs-csv - --quiet",
    f"compare mixed.csv {MIXED} --policies fifo,gittins --html page.html --quiet",
    f"simulate plain.csv {PLAIN} --policy tiresias --mtbf 30m --repair 5m --checkpoint 1m --seed 3 --json -",
    f"simulate plain.csv {PLAIN} --policy muri-l --html page.html --quiet",
    "simulate plain.csv --cluster 2x8 --policy srsf --compat muri",
    "simulate plain.csv --cluster 2x8 --schedule rounds --interval 2m --restart-overhead 40 --policy srtf",
    f"simulate mixed.csv {MIXED} --policy hlas --hlas literal --json -",
    "simulate mixed.csv --cluster 2x4:V100,1x4:P100 --policy fifo --skip-impossible",
    "simulate elastic.csv --cluster 2x4,1x8 --policy elastic-goodput --resize-overhead 5 --json -",
    f"simulate plain.csv {PLAIN} --policy rl --save-memory - --quiet",
    "explain mixed.csv --cluster 2x4:V100,1x4:P100,2x2:K80 --policy hlas --job 7",
    f"explain mixed.csv {MIXED} --policy hlas --job 22 --json",
    f"explain mixed.csv {MIXED} --policy srtf --job 8",
    f"explain mixed.csv {MIXED} --policy themis:lease=300 --job 14",
    f"explain plain.csv {PLAIN} --policy tiresias:thresholds=600/2000 --job 6",
    f"explain plain.csv {PLAIN} --policy muri-l --job 9",
    f"explain plain.csv {PLAIN} --policy antman --job 7 --json",
    f"explain plain.csv {PLAIN} --policy fifo:backfill=easy --job 12",
    f"explain plain.csv {PLAIN} --policy srtf --job 12 --mtbf 20m --seed 2",
    "explain elastic.csv --cluster 2x4,1x8 --policy elastic --job 1",
    "explain elastic.csv --cluster 1x4,1x8 --policy weave --job 4",
    "trace show plain.csv --limit 3",
    "trace show mixed.csv --json",
    "trace show elastic.csv --limit 2",
    "trace convert plain.csv -o -",
    "trace formats",
    *(
        f"trace generate -o - --jobs 6 --gpus 8 --seed 4 --arrival {arrival} --duration {duration} {more}"
        for arrival, duration, more in (
            ("poisson", "lognormal", "--mean 1h --median 20m --opportunistic 0.4"),
            ("uniform", "exponential", "--gpu-mix philly --max-gpus 4 --users 3 --user-skew 2"),
            ("bursty", "pareto", "--burstiness 2 --pareto-shape 2 --high 0.3 --best-effort 0.4"),
            ("diurnal", "philly", "--swing 0.5 --max-duration 1h --gpu-mix 1=3,2=1 --models bert=1,gpt2=2"),
            ("batch", "fixed", "--mean 10m --gpu-models V100,K80"),
            ("poisson", "fixed", "--elastic 1-4 --load 2"),
        )
    ),
    *(
        f"trace {what} {format_id}-{number}.trace{BESIDE.get(format_id, '')}"
        for format_id, texts in SAMPLES.items()
        for number in range(len(texts))
        for what in ("convert -o -", "show --limit 2")
        if (format_id, what) != ("pollux", "convert -o -")  # its curves are fitted
    ),
    "trace show slurm-0.trace --format slurm --json",
    "trace show bad.csv",
    "trace show bad.csv --skip-bad-rows --limit 9",
    "trace show none.csv",
    "trace show gavel-0.trace",
    "trace show gavel-0.trace --throughputs rates.json --gpu-model p100",
    "policies fifo",
    "gpus",
    "gpus --json",
    "profiles ls",
    "profiles show bert",
    "weave weave.csv",
    "weave weave.csv --group-size 2 --ordering worst --objective efficiency --json -",
    "weave weave.csv --method multiround --groups 3 --interleave-overhead 1.1",
    "weave weave.csv --method greedy --model barrier",
    "share profiles ls",
    "share profiles show resnet50 --top 3",
    "share profiles show resnet50 --top 2 --each",
    "share profiles diff resnet50 resnet50-train",
    "share simulate --high resnet50 --best-effort resnet50-train --requests 40",
    "share simulate --high resnet50:20rps --best-effort resnet50-train --requests 9 --rule orion --plot at.svg",
    f"compare plain.csv {PLAIN} --policies fifo,srtf --quiet --plot at.svg",
    "weave weave.csv --group-size 3 --plot at.svg",
]
WALL = re.compile(r'(?<="wall_s": )[\d.e-]+| *\b\d+\.\d+(e-\d+)?s\b|(?<=,)0\.0\d{5,}(?=,|$)')
"""How long it took: in JSON, in tables, and in CSV."""
LONG = re.compile(r"-?\d+\.\d{6,}(e[+-]?\d+)?")
"""Numbers of which the last digits may be the machine's."""


def made(words: str, folder: Path) -> list[str]:
    """Exit code, and what it printed, without how long it took; of pages, what can be read and how much is drawn."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner(env={"COLUMNS": "150", "GPULOOM_HOME": str(folder / "home")}).invoke(cli, words.split())
    finally:
        os.chdir(before)
    assert done.exception is None or isinstance(done.exception, GpuloomError | SystemExit), done.exception
    said = f"exit code {done.exit_code}\n{done.stdout}\n-- stderr\n{done.stderr}\n{done.exception or ''}"
    text = said.replace(str(folder), "FOLDER").splitlines()
    for page in (*folder.glob("*.html"), *folder.glob("*.svg")):
        text += ["-- page", *read(page.read_text(encoding="utf-8"))]
        page.unlink()
    if words.startswith(("compare", "simulate")):
        text = [WALL.sub("", line) for line in text]
    return [LONG.sub(lambda number: f"{float(number[0]):.6g}", line.rstrip()).rstrip() for line in text]


def read(page: str) -> list[str]:
    """The words of a page; of each picture how often each element stands in it, and the sum of its numbers."""
    pictures = []

    def counted(found: re.Match[str]) -> str:
        kinds: dict[str, tuple[int, float]] = {}
        for kind, attributes in re.findall(r"<(\w+)([^>]*)>", found[0]):
            numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"#\w+", "", attributes))]
            count, total = kinds.get(kind, (0, 0.0))
            kinds[kind] = count + 1, total + sum(numbers)
        pictures.append(", ".join(f"{count} {kind} {total:.1f}" for kind, (count, total) in sorted(kinds.items())))
        return found[0]

    re.sub(r"<svg.*?</svg>", counted, page, flags=re.DOTALL)
    words = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    lines = [line.strip() for line in re.sub(r"<[^>]*>", "\n", words).splitlines()]
    return [line for line in lines if line] + pictures


def traces(folder: Path) -> None:
    for name in ("plain", "mixed", "elastic"):
        write_trace(getattr(test_schedules, name)(), folder / f"{name}.csv")
    (folder / "weave.csv").write_text(EXAMPLE.read_text())
    for format_id, texts in SAMPLES.items():
        for number, text in enumerate(texts):
            (folder / f"{format_id}-{number}.trace").write_text(text, newline="")
    (folder / "rates.json").write_text(json.dumps(RATES))
    _profiles(folder / "profiles")
    # Cells with line breaks of all kinds: messages say at which line of the file a row begins.
    rows = [
        '0,10,1,"a\r\nb"',
        '1,10,1,"a\rb\n\nc"',
        "2,-10,1,d",
        "3,10,0.5,e",
        "4,10,1,f",
        "5,nan,1,g",
        "6,10",
        "7,10,2,h",
    ]
    (folder / "bad.csv").write_text("\n".join(["submit_s,duration_s,gpus,model", *rows, ""]), newline="")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("printed")
    traces(place)
    return place


@pytest.fixture(scope="module")
def kept() -> Mapping[str, list[str]]:
    found: Mapping[str, list[str]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("words", COMMANDS)
def test_it_is_printed_as_before(words: str, folder: Path, kept: Mapping[str, list[str]]) -> None:
    assert made(words, folder) == kept[words]


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        traces(Path(place))
        found = {words: made(words, Path(place)) for words in COMMANDS}
    KEPT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
