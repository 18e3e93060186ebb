"""The picture is written in the format its name asks for."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuloom.core.errors import InputError, MissingDependencyError
from gpuloom.report.picture import _on_canvas, moved, picture, text
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for suffix in SIGNATURES:
        for name in ("a", "b"):
            save_plot([make_result()], tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_a_drawing_in_svg_is_drawn_whole_on_a_canvas() -> None:
    """What `svg` may write, and matplotlib must know: each stroke, each letter of a path, texts by their anchors."""
    pytest.importorskip("matplotlib")
    body = [
        '<path class="line" stroke="var(--s0)" stroke-width="4" d="M10 10H60V60L10 60v-50"/>',
        '<rect x="100" y="10" width="50" height="50" fill="#ff0000" fill-opacity="0.5"/>',
        moved(200, 0, ['<rect x="0" y="10" width="50" height="50" fill="#0000ff"/>']),
        '<path class="cross" stroke="#000" stroke-width="9" d="M280 0V80"/>',
        text(20, 90, "$a_b$ <&> 名前"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = _on_canvas(picture(300, 100, body), "png")
    pixels = pyplot_image(drawn)

    def at(x: float, y: float) -> tuple[int, ...]:
        height, width = pixels.shape[:2]
        return tuple(round(255 * float(part)) for part in pixels[int(y * height / 100), int(x * width / 300)][:3])

    assert at(35, 10) == at(60, 35) == at(35, 60) == at(10, 35) == (0, 0x72, 0xB2)
    assert at(35, 35) == at(280, 40) == (255, 255, 255)
    assert at(125, 35) == pytest.approx((255, 127, 127), abs=1)
    assert at(225, 35) == (0, 0, 255)
    assert pixels[-20:, :400, :3].min() < 0.6


def pyplot_image(content: bytes) -> Any:
    from matplotlib.image import imread

    return imread(BytesIO(content), format="png")


def test_only_png_and_pdf_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    save_plot([make_result(), make_result(policy="sjf")], tmp_path / "r.svg")
    drawn = (tmp_path / "r.svg").read_text()
    assert all(f">{name}</text>" in drawn for name in ("fifo", "sjf", "jobs that wait"))
    assert "var(" not in drawn, "colours that only a page knows"
    for suffix in ("png", "pdf"):
        with pytest.raises(MissingDependencyError, match=r"gpuloom\[plot\]"):
            save_plot([make_result()], tmp_path / f"r.{suffix}")


def test_the_package_imports_neither_rich_nor_matplotlib_nor_pandas() -> None:
    code = "import sys, gpuloom.report; print([m for m in ('rich', 'matplotlib', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
