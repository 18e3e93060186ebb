"""Pictures, the report's page, tables and what commands say, as in tests/unit/drawn, where they can be looked at.

They were looked at when they were drawn. REDRAW=1 draws them anew: then look at them again, and at the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gpuloom import __version__
from gpuloom.cli.main import cli
from gpuloom.interleave.efficiency import MEASURED_OVERHEAD, Interleaving
from gpuloom.report.html import render
from gpuloom.report.page import _STYLE, SCRIPT
from gpuloom.report.plot import save_plot
from gpuloom.report.shared_gpu import save_timeline
from gpuloom.report.table import print_comparison
from gpuloom.report.weaving import WovenGroup, WovenJob, print_groups, save_weaving
from gpuloom.sharing.simulate import Outcome, Span
from gpuloom.sim.result import SimResult
from report_builders import make_result, make_segments, make_timeline

DRAWN = Path(__file__).with_name("drawn")


# -- comparisons ------------------------------------------------------------------------------------------------------


def of_three() -> list[SimResult]:
    """The second loses to the first, the third was interrupted and has no segments; c shares GPUs of a."""
    shared = make_segments(
        [
            (0, 0.0, 100.0, 0, 0b1111), (2, 20.0, 80.5, 0, 0b0110), (1, 100.0, 400.0, 0, 15), (1, 100.0, 400.0, 1, 13),
        ]
    )  # fmt: skip
    shared = replace(shared, layer=np.array([0, 1, 0, 0], np.int32))
    late = make_segments([(0, 0.0, 150.0, 0, 0b1111), (2, 150.0, 200.0, 1, 1), (1, 300.0, 3000.0, 1, 0b1010)])
    common: dict[str, Any] = {"notes": ("two jobs <were> left out",)}
    return [
        make_result(segments=shared, **common),
        make_result(
            policy="srtf<b>", end_s=[150.0, 3000.0, 200.0], start_s=[0.0, 300.0, 150.0], segments=late, restarts=1500,
            blocking_index=250.25, utilization=0.25, avg_queue_length=1.5, wall_s=75.0, settings={"seed": [1, 2]},
            timeline=make_timeline([0.0, 10.0, 300.0, 3000.0], [0, 2, 0, 0], [4, 8, 4, 0]), **common,
        ),
        make_result(
            policy="cut", end_s=[100.0, np.inf, np.inf], start_s=[0.0, 100.0, np.nan], interrupted=True, segments=None,
            makespan_s=np.nan,
        ),
    ]  # fmt: skip


def of_one() -> list[SimResult]:
    """Ninety jobs of many sizes one after another on a hundred nodes of two models, from 1000 s on."""
    count = 90
    submit = 1000.0 + np.arange(count)
    start = submit + np.arange(count) ** 1.5
    end = start + 40.0
    end[-1] = 90_000.0
    rows = [(n, float(start[n]), float(end[n]), n % 100, 1 << n % 4) for n in range(count)]
    return [
        make_result(
            submit_s=submit, start_s=start, end_s=end, cluster="50x4:V100,50x4:K80", gpus=400,
            job_gpus=np.array([1 + n % 11 for n in range(count)], np.int32), gpu_models=("V100", "K80"),
            held_gpu_s=np.full((count, 2), 3600.0), segments=make_segments(rows),
            node_names=tuple(f"node-{n}-with-a-long-name" for n in range(100)),
            timeline=make_timeline([1000.0, 1050.0, 1100.0, 90_000.0], [0, 40, 3, 0], [100, 400, 300, 0]),
        )
    ]  # fmt: skip


def page(results: list[SimResult]) -> str:
    """The page without its script and the part of its style that never changes."""
    text = render(results).replace(SCRIPT, "").replace(_STYLE, "")
    return text.replace(f"gpuloom {__version__}", "gpuloom VERSION")


def table(width: int) -> str:
    file = StringIO()
    print_comparison(of_three(), file, width=width)
    print_comparison(of_one(), file, width=width)
    return file.getvalue()


# -- groups -----------------------------------------------------------------------------------------------------------


def group(*jobs: WovenJob, **more: Any) -> WovenGroup:
    plain = {"gpus": 1, "iteration_s": 1.5, "efficiency": 0.75, "solo_efficiency": 0.375, "overhead": 1.0}
    return WovenGroup(jobs, **{**plain, **more})


THREE = (
    WovenJob("vision-model-of-a-very-long-name", 0, (0.4, 0.1, 0.1), 0.6),
    WovenJob("b", 2, (0.1, 0.35, 0.15), 0.6),
    WovenJob("c", 3, (0.1, 0.1, 0.5), 0.7),
)
FOUR = (WovenJob("d", 0, (40.0, 10.0, 0.0, 10.0), 55.0), WovenJob("e", 1, (10.0, 40.0, 10.0, 10.0), 70.0))
MEASURED = [
    group(*THREE, gpus=8, iteration_s=0.9, overhead=1.25, count=1200),
    group(*THREE[:2], gpus=2, iteration_s=0.8, share=(0.8, 0.5)),
    group(THREE[0], iteration_s=0.6, efficiency=0.25, solo_efficiency=0.25),
    group(replace(THREE[1], slot=1), iteration_s=0.6, count=2),
    group(replace(THREE[0], slot=0), THREE[1], iteration_s=0.5),
    *[group(replace(THREE[2], name=f"alone-{n}", slot=0), gpus=1, count=n) for n in (1, 4)],
]
BARRIER = [group(*FOUR, gpus=4, iteration_s=120.0, overhead=1.1), group(FOUR[1], gpus=16, iteration_s=70.0)]
STEPS = Interleaving("barrier", "worst", MEASURED_OVERHEAD)


def groups_table() -> str:
    file = StringIO()
    print_groups([*MEASURED, *BARRIER], file)
    return file.getvalue()


# -- a shared GPU -----------------------------------------------------------------------------------------------------


def timeline(path: Path) -> None:
    spans = (
        Span("high", 0.99e9, 1.02e9, 40), Span("high", 1.05e9, 1.06e9, 40), Span("best-effort", 1.01e9, 1.2e9, 60),
        Span("hold", 1.03e9, 1.04e9, "window"), Span("hold", 1.05e9, 1.07e9, "busy"),
    )  # fmt: skip
    served = ((0.98e9, 0.99e9, 1.02e9), (1.03e9, 1.05e9, 1.06e9), (1.04e9, 1.05e9, 1.2e9), (1.07e9, 1.08e9, 1.09e9))
    plain = Outcome(**{field.name: 0 for field in fields(Outcome)})  # type: ignore[arg-type]
    one = replace(plain, rule="gpuloom", p99_over_alone=1.125, best_effort_over_alone=0.5, spans=spans, served=served)
    save_timeline([one, replace(one, rule="none", served=())], (1.0, 1.1), 100, path, "a pair")


def written(save: Callable[[Path], None]) -> str:
    """What a picture's file holds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        save(path)
        return path.read_text()


# -- commands ---------------------------------------------------------------------------------------------------------

WEAVE = """job,gpus,count,storage_s,cpu_s,gpu_s,network_s,gpu_memory_mib
a,1,3,0.41,0.13,0.12,0.1,1000
b,1,2,0.11,0.43,0.17,0.12,
c,1,1,0.1,0.12,0.47,0.15,2000
d,2,1,0.16,0.1,0.13,0.4,3000
e,2,2,2,0.14,0.11,0.15,4000
"""
PAIRS = "model_a,model_b,gpu_model,speed_a,speed_b\na,b,V100,0.9,0.8\na,a,V100,0.7,0.5\n"


def said(*words: str, stdin: str | None = None) -> str:
    """What a command prints, on both."""
    done = CliRunner().invoke(cli, words, input=stdin, catch_exceptions=False)
    return f"$ gpuloom {' '.join(words)}\n{done.output}\n"


def woven() -> str:
    """The usual, with a limit of memory; three stages; pairs; too many groups."""
    with TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.csv"
        pairs.write_text(PAIRS)
        text = "".join(
            said("weave", "-", *words, stdin=WEAVE)
            for words in (
                (),
                ("--model", "measured", "--gpu-memory", "4096MiB"),
                ("--model", "measured", "--pair-speeds", str(pairs), "--group-size", "2", "--objective", "efficiency"),
                ("--groups", "1", "--ordering", "worst", "--interleave-overhead", "1.1/1.25/1.5", "--method", "greedy"),
            )
        )
        return text.replace(folder, "DIR")


def kernels() -> str:
    """Profiles of kernels: all, one, another way, two compared."""
    return "".join(
        said("share", "profiles", *words)
        for words in (
            ("list",), ("show", "resnet50", "--top", "4"), ("show", "resnet50", "--each", "--top", "4"),
            ("diff", "resnet50", "resnet50-train", "--top", "5"),
            ("show", "resnet50", "--json", "--each", "--top", "1"),
        )
    )  # fmt: skip


ALL: dict[str, Callable[[], str]] = {
    "three.html": lambda: page(of_three()),
    "one.html": lambda: page(of_one()),
    "narrow.txt": lambda: table(70),
    "wide.txt": lambda: table(200),
    "plot.svg": lambda: written(lambda path: save_plot(of_three(), path)),
    "groups.txt": groups_table,
    "measured.svg": lambda: written(lambda path: save_weaving(MEASURED, Interleaving(), path)),
    "barrier.svg": lambda: written(lambda path: save_weaving(BARRIER, STEPS, path)),
    "woven.txt": woven,
    "kernels.txt": kernels,
    "shared.svg": lambda: written(timeline),
}


def lines(name: str) -> str:
    """A mark per line."""
    return ALL[name]().replace("><", ">\n<")


@pytest.mark.parametrize("name", ALL)
def test_it_is_drawn_as_it_was(name: str) -> None:
    if os.environ.get("REDRAW"):
        (DRAWN / name).write_text(lines(name), encoding="utf-8")
    assert lines(name).split("\n") == (DRAWN / name).read_text(encoding="utf-8").split("\n")


def test_all_that_is_kept_is_drawn() -> None:
    assert {path.name for path in DRAWN.iterdir()} == set(ALL)
