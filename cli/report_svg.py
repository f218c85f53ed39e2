"""The look of the plots, and a matplotlib figure as an SVG element that follows the page's colours.

Figures are drawn in stand-in colours, one per role; the element names CSS variables instead, so
that one drawing serves the light and the dark page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

WIDTH = 400  # SVG units; the page shows them at 0.85 (phone) to 1.2 (desktop) pixels

INK, MUTED, GRID, PAPER = "#01fe01", "#01fe02", "#01fe03", "#01fe04"
ACCENT, WARM, NEUTRAL = "#01fe05", "#01fe06", "#01fe07"
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--card)",
    ACCENT: "var(--accent)",
    WARM: "var(--warm)",
    NEUTRAL: "var(--neutral)",
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 12,
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlepad": 9,
    "font.family": "DejaVu Sans",  # only measures the text; the page's own font is shown
    "font.size": 12,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "svg.fonttype": "none",
    "svg.hashsalt": "foredraft",  # the same figure gives the same text
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a name is a "$"
    "xtick.color": MUTED,
    "xtick.labelsize": 12,
    "xtick.major.size": 0,
    "ytick.color": MUTED,
    "ytick.labelsize": 12,
    "ytick.major.size": 0,
}


@contextmanager
def drawing_style() -> Iterator[None]:
    """Set the look for the figures built and rendered inside."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has the glyphs that the measuring font lacks.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        yield


def new_figure(height: float) -> Figure:
    """Return an empty figure as wide as a column of the page; `height` in SVG units."""
    return Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")


def svg_element(figure: Figure, name: str, description: str) -> str:
    """Return the figure as one `<svg>` element that loads nothing.

    Args:
        figure: drawn inside `drawing_style`, and rendered inside it too.
        name: prefix of the element ids, so that several figures can share a page.
        description: what a screen reader says.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    source = buffer.getvalue()
    root = ElementTree.fromstring(source[source.index("<svg") :])
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith("}style"):  # would apply to the whole page
                parent.remove(child)
    used = set(re.findall(r"#([\w.-]+)", " ".join(_references(root))))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            key.rpartition("}")[2]: _localised(key, value, name)
            for key, value in element.attrib.items()
            if key != "id" or value in used
        }
    viewbox = root.attrib["viewBox"]
    root.attrib = {"viewBox": viewbox, "role": "img", "aria-label": description}
    return ElementTree.tostring(root, encoding="unicode")


def _references(root: Any) -> Iterator[str]:
    for element in root.iter():
        for key, value in element.attrib.items():
            if key.endswith("href") or value.startswith("url("):
                yield value


def _localised(key: str, value: str, name: str) -> str:
    """The attribute with ids of its own and the colours of the page."""
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href") or value.startswith("url("):
        return value.replace("#", f"#{name}-", 1)
    if key == "style":
        value = re.sub(r"\s*font-family:[^;]*;?", "", value)
        for colour, variable in _VARIABLES.items():
            value = value.replace(colour, variable)
    return re.sub(r"\s+", " ", value)
