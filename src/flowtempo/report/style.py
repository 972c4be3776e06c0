"""How every figure looks, and how it becomes an inline SVG that follows the page's light or dark theme.

Figures are drawn once, in the light colours. In the SVG each colour of the palette is replaced by a CSS
variable whose fallback is that colour, so the page recolours lines, text and grid without a second copy.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from torch import Tensor

from flowtempo.files import atomic_write

INK, MUTED, GRID = "#1b1f24", "#5b6570", "#dde2e8"
# Adapted from Okabe and Ito's colour-blind-safe set: darkened to at least 3:1 on white. The page holds the
# values for dark backgrounds. Dashes and markers repeat the distinction without colour.
SERIES = ("#0072b2", "#d55e00", "#00805d", "#b0558a", "#8a6d00", "#4a4f57")
DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, ()),
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (7, 2, 1.5, 2)),
    (0, (4, 1.5)),
    (0, (1, 1)),
)
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH, HEIGHT = 4.8, 3.3  # inches at 72 per inch: legible on a phone, and two stand side by side on a desk

_RC: dict[Any, Any] = {
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "errorbar.capsize": 3,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # names come from a person's folders: "$" is a character, not mathematics
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9.5,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9.5,
}


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib's defaults with this report's style, whatever a person's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """An empty figure, without pyplot's global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.04)
    return figure


def legend(figure: FigureBase, axes: Axes, columns: int = 2) -> None:
    """The key of `axes` above the plot, where it hides no data; the figure grows by its height."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    if isinstance(figure, Figure):
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.22 * math.ceil(len(handles) / columns))
    figure.legend(
        handles,
        [shorten(label) for label in labels],
        loc="outside upper left",
        ncols=columns,
        columnspacing=1.4,
        borderaxespad=0.2,
    )


def shorten(text: str, length: int = 26) -> str:
    """The text with its middle left out when it is longer than `length`."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


def scale_to(axes: Axes, values: Sequence[float]) -> None:
    """A y axis with plain numbers, logarithmic where positive values span more than a factor of ten."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > 10:
        axes.set_yscale("log")
        wide = max(finite) / min(finite) > 100
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
    plain_numbers(axes)


def plain_numbers(axes: Axes) -> None:
    """Tick labels as 0.5, 20 or 1e+06 instead of mathematics, which this style does not typeset."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: minus(f"{value:g}")))


def top_axis(axes: Axes, label: str, positions: Sequence[float], labels: Sequence[str]) -> None:
    """A second scale along the top, in the coordinates of the one below; crowded labels are left out."""
    low, high = axes.get_xlim()
    shown: list[int] = []
    for index, position in enumerate(positions):
        if not shown or position - positions[shown[-1]] >= 0.09 * (high - low):
            shown.append(index)
    top = axes.twiny()
    top.set_xlim(low, high)
    top.xaxis.set_major_locator(FixedLocator([positions[index] for index in shown]))
    top.set_xticks([positions[index] for index in shown], labels=[labels[index] for index in shown])
    top.set_xlabel(label)
    top.grid(False)
    top.spines["top"].set_visible(True)


def line(index: int) -> dict[str, Any]:
    """Colour and dash of a line: repeated colours get another dash."""
    count = len(SERIES)
    return {
        "color": SERIES[index % count],
        "linestyle": DASHES[(index + index // count) % len(DASHES)],
    }


def marker(index: int) -> str:
    """Marker of a line."""
    return MARKERS[index % len(MARKERS)]


def band(axes: Axes, x: Tensor, mean: Tensor, stderr: Tensor, index: int, label: str, **look: Any) -> None:
    """A line with a band of two standard errors.

    Args:
        axes: Where.
        x: (L,).
        mean: (L,).
        stderr: (L,).
        index: Of the colour and dash.
        label: For the key.
        look: What is unlike that colour and dash.
    """
    look = line(index) | look
    axes.plot(x, mean, label=label, marker="o" if len(x) == 1 else None, **look)
    axes.fill_between(x, mean - 2 * stderr, mean + 2 * stderr, color=look["color"], alpha=0.2, linewidth=0)


def ceiling(values: Tensor) -> float:
    """A limit of the y axis that shows a curve whole, or cuts a pole that would flatten the rest."""
    finite = values[values.isfinite()]
    if not len(finite):
        return 1.0
    peak, typical = float(finite.max()), float(finite.quantile(0.9))
    return 1.05 * (peak if peak < 8 * typical else 4 * typical) or 1.0


def minus(text: str) -> str:
    """The text with hyphens as minus signs."""
    return text.replace("-", "−")


def to_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an `<svg>` element for an HTML page.

    Args:
        figure: Any figure drawn inside `styled()`.
        name: Prefix of every id in the element, so that several can stand in one page.
        description: What a reader who does not see the figure is told.

    Returns:
        The element, the same bytes for the same figure: no date, no random ids.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        FigureCanvasSVG(figure).print_svg(buffer)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    viewbox = re.search(r'viewBox="([^"]*)"', text)
    assert viewbox is not None
    opening = (
        f'<svg viewBox="{viewbox[1]}" xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'
        f' aria-label="{escape(description)}">'
    )
    body = text[text.index(">") + 1 :]
    # Inside tags only: what a person's names say stands between tags, with its own < and > escaped.
    return opening + re.sub(r"<[^<>]+>", lambda tag: _adapt(tag[0], name), body).strip()


def to_png(figure: Figure, path: Path, dpi: int = 200) -> None:
    """Write the figure as a PNG on white, atomically and with no date in it."""
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})


_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}


def _adapt(tag: str, name: str) -> str:
    for colour, variable in _VARIABLES.items():
        tag = tag.replace(colour, f"var({variable}, {colour})")
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)
    return tag.replace("\n", " ")
