"""The picture is written in the format its name asks for."""

from __future__ import annotations

import builtins
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuloom.core.errors import InputError, MissingDependencyError
from gpuloom.report.plot import save_plot
from report_builders import make_result, make_segments, make_timeline

SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "PDF": b"%PDF-", "svg": b"<?xml"}


@pytest.mark.parametrize("suffix", list(SIGNATURES))
def test_the_suffix_chooses_the_format(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"r.{suffix}"
    save_plot([make_result(), make_result(policy="sjf", avg_jct_s=5.0)], path)
    content = path.read_bytes()
    assert content.startswith(SIGNATURES[suffix])
    assert len(content) > 5000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["r.jpg", "r", "r.png.gz"])
def test_another_suffix_is_refused_with_the_right_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        save_plot([make_result()], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_odd_results_are_drawn_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    empty = make_timeline([], [], [])
    cut = make_result(policy="_x$a_b$", interrupted=True, end_s=[math.nan] * 3, timeline=empty, segments=None)
    instant = make_result(policy="名前", submit_s=[5.0] * 3, start_s=[5.0] * 3, end_s=[5.0] * 3)
    nothing = make_result(
        submit_s=[],
        start_s=[],
        end_s=[],
        job_ids=(),
        job_gpus=np.zeros(0, np.int32),
        timeline=empty,
        segments=make_segments([]),
    )
    save_plot([cut, instant, nothing, *[make_result()] * 12], tmp_path / "odd.png")
    save_plot([cut], tmp_path / "cut.svg")
    save_plot([nothing], tmp_path / "nothing.pdf")
    with pytest.raises(InputError, match="no results"):
        save_plot([], tmp_path / "none.png")


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        save_plot([make_result()], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def no_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(MissingDependencyError, match=r"gpuloom\[plot\]"):
        save_plot([make_result()], tmp_path / "r.png")


def test_the_package_imports_neither_rich_nor_matplotlib_nor_pandas() -> None:
    code = "import sys, gpuloom.report; print([m for m in ('rich', 'matplotlib', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
