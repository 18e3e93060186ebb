"""Pictures in files: SVG as `svg` draws it; PNG and PDF are made of that same SVG by matplotlib.

There is one way of drawing, SVG by hand, for the page and for files. A file has no page around it, so it carries the
colours for white paper with it. Matplotlib puts what `svg` writes on a canvas and nothing else: paths of M, H, V, L and
v, rectangles, texts, groups that are moved.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuloom.core.errors import InputError, MissingDependencyError
from gpuloom.core.sums import sum_floats
from gpuloom.files.whole import binary_output
from gpuloom.report.axis import PALETTE
from gpuloom.report.metrics import escape
from gpuloom.report.svg import fill, shorten, stroke

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


SUFFIXES = (".png", ".svg", ".pdf")
_DPI, _NAME = 130, 80
_SOFT, _INK = "#5b6570", "#1d2329"
_STYLES: Mapping[str, Mapping[str, str]] = {
    "text": {"fill": _SOFT, "font-size": "12px"},
    ".row": {"fill": _INK},
    ".head": {"fill": _INK, "font-size": "14px", "font-weight": "bold"},
    ".title": {"font-size": "12.5px"},
    ".grid": {"stroke": "#e8ebef"},
    ".axis": {"stroke": "#aeb6bf"},
    ".line": {"fill": "none", "stroke-linejoin": "round"},
    ".one": {"stroke": _SOFT, "stroke-dasharray": "4 3"},
    ".ground": {"fill": "#f4f5f7"},
    ".cross": {"display": "none"},
}
"""What the page's style sheet says of these, on white."""


def picture(width: float, height: float, body: Sequence[str]) -> str:
    """A whole SVG file of parts that are drawn already."""
    styles = "".join(
        f"{name}{{{';'.join(f'{key}:{value}' for key, value in said.items())}}}" for name, said in _STYLES.items()
    )
    drawn = re.sub(r"var\(--s(\d+)\)", lambda found: PALETTE[int(found[1])][0], "".join(body))
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}" font-family="system-ui,DejaVu Sans,Arial,sans-serif">'
        f'<style>{styles}</style><rect width="{width:g}" height="{height:g}" fill="#fff"/>{drawn}</svg>\n'
    )


def moved(x: float, y: float, body: Sequence[str]) -> str:
    """Parts, further right and down."""
    return f'<g transform="translate({x:g} {y:g})">{"".join(body)}</g>'


def text(x: float, y: float, said: str, kind: str = "tick", anchor: str = "start") -> str:
    """A line of text, its middle at `y`. kind: 'tick', 'row' (dark), 'head' (large)."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" dy=".35em" text-anchor="{anchor}">{escape(said)}</text>'


def legend(keys: Sequence[tuple[str, str]], width: float) -> tuple[str, float]:
    """(key, name) pairs in rows as wide as `width` at most, and how high they are. Keys are 24 wide, about y = 0."""
    rows: list[list[tuple[str, str, float]]] = [[]]
    used = 0.0
    for key, name in keys:
        name = shorten(name, _NAME)
        wide = 50 + 7.2 * len(name)
        if rows[-1] and used + wide > width:
            rows.append([])
            used = 0.0
        rows[-1].append((key, name, wide))
        used += wide
    parts = []
    for number, row in enumerate(rows):
        at = (width - sum_floats(wide for _, _, wide in row)) / 2
        for key, name, wide in row:
            parts.append(moved(at, 22 * number + 8, [key, text(32, 0, name, "row")]))
            at += wide
    return "".join(parts), 22.0 * len(rows)


def line_key(number: int) -> str:
    """The key of a line of series `number`."""
    return f'<path class="line" stroke-width="2.5" {stroke(number)} d="M0 0H24"/>'


def patch_key(colour: int | str) -> str:
    """The key of an area: of series `colour`, or of that colour."""
    filled = fill(colour) if isinstance(colour, int) else f'fill="{colour}"'
    return f'<rect x="8" y="-6" width="16" height="12" {filled}/>'


def check_picture(path: Path) -> None:
    """Whether a picture can be written by that name.

    Raises:
        InputError: another suffix. MissingDependencyError: matplotlib is not installed (SVG does without).
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path}: a plot is written to a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    if path.suffix.lower() != ".svg":
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(f"a plot as {path.suffix} (not as .svg)", "matplotlib", "plot") from error


def save_picture(svg: str, path: Path) -> None:
    """Write what `picture` made into a PNG, SVG or PDF file; the same picture gives the same bytes.

    Raises:
        InputError: another suffix. MissingDependencyError: matplotlib is not installed (SVG does without).
        OSError: the file can't be written; names it.
    """
    check_picture(path)
    suffix = path.suffix.lower()
    content = svg.encode() if suffix == ".svg" else _on_canvas(svg, suffix[1:])
    with binary_output(path) as file:
        file.write(content)


# -- PNG and PDF ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the canvas is drawn on, and what the elements around say."""

    x: float
    y: float
    said: Mapping[str, str]

    def within(self, element: Element) -> _Place:
        """As seen from inside an element."""
        shift = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
        x, y = (float(shift[1]), float(shift[2])) if shift else (0.0, 0.0)
        if _tag(element) == "svg":
            x, y = float(element.get("x", 0)), float(element.get("y", 0))
        classes = (f".{name}" for name in element.get("class", "").split())
        said = dict(self.said)
        for name in (_tag(element), *classes):
            said |= _STYLES.get(name, {})
        return replace(self, x=self.x + x, y=self.y + y, said=said | element.attrib)


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _on_canvas(svg: str, form: str) -> bytes:
    from xml.etree import ElementTree

    import matplotlib
    from matplotlib.figure import Figure

    root = ElementTree.fromstring(svg)  # noqa: S314 - our own
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    image = BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in a script the font lacks
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.sans-serif": ["DejaVu Sans"], "lines.scale_dashes": False})
        figure = Figure(figsize=(width / 96, height / 96), dpi=_DPI)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.axis("off")
        _draw(axes, root, _Place(0, 0, {}))
        figure.savefig(image, format=form, metadata={"CreationDate": None} if form == "pdf" else None)
    return image.getvalue()


def _draw(axes: Any, element: Element, outer: _Place) -> None:
    from matplotlib.patches import PathPatch, Rectangle

    place, kind = outer.within(element), _tag(element)
    said = place.said
    if said.get("display") == "none":
        return
    colours: dict[str, Any] = {
        "facecolor": said.get("fill", "#000"),
        "edgecolor": said.get("stroke", "none"),
        "alpha": float(said["fill-opacity"]) if "fill-opacity" in said else None,
        "linewidth": 0.75 * float(said.get("stroke-width", 1)) if "stroke" in said else 0,
    }
    if kind == "rect":
        x, y, width, height = (float(element.get(name, 0)) for name in ("x", "y", "width", "height"))
        axes.add_patch(Rectangle((place.x + x, place.y + y), width, height, **colours))
    elif kind == "path":
        dashes = [0.75 * float(part) for part in said.get("stroke-dasharray", "").split()]
        style = {"linestyle": (0, dashes) if dashes else "solid", "capstyle": "butt"}
        axes.add_patch(PathPatch(_path(element.get("d", ""), place), **colours, **style))
    elif kind == "text":
        _write(axes, element, place)
    for inner in element if kind in ("svg", "g") else ():
        _draw(axes, inner, place)


def _path(data: str, place: _Place) -> Any:
    from matplotlib.path import Path as Drawn

    points, codes = [], []
    x = y = 0.0
    for what, numbers in re.findall(r"([MHVLv])([^MHVLv]*)", data):
        values = [float(number) for number in numbers.split()]
        x = values[0] if what in "MHL" else x
        y = values[-1] if what in "MVL" else y + values[0] if what == "v" else y
        points.append((place.x + x, place.y + y))
        codes.append(Drawn.MOVETO if what == "M" else Drawn.LINETO)
    return Drawn(points or [(place.x, place.y)], codes or [Drawn.MOVETO])


def _write(axes: Any, element: Element, place: _Place) -> None:
    said = place.said
    size = float(said["font-size"].removesuffix("px"))
    down = size * float(element.get("dy", "0em").removesuffix("em"))
    axes.text(
        # A text that is turned stands where it is moved to.
        place.x + float(element.get("x", 0)),
        place.y + float(element.get("y", 0)) + down,
        "".join(part for part in [element.text or "", *_tails(element)]),
        ha={"start": "left", "middle": "center", "end": "right"}[said.get("text-anchor", "start")],
        va="baseline",
        rotation=90 if "rotate(-90)" in element.get("transform", "") else 0,
        rotation_mode="anchor",
        fontsize=0.7 * size,  # a little less than it says: DejaVu Sans is wider than what browsers take
        color=said["fill"],
        weight=said.get("font-weight", "normal"),
        parse_math=False,
    )


def _tails(element: Element) -> Iterator[str]:
    """What stands behind the titles, which only a pointer shows."""
    for inner in element:
        yield inner.tail or ""
