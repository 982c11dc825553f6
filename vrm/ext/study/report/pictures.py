"""One picture of a report: as SVG for a page, as PNG or SVG in a file; and the common style and colours."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from collections.abc import Iterator

from vrm.ext.study.report.plotting import PictureError, pyplot

BLUE, ORANGE, GREEN, RED, SKY, PINK, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#999999")
SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
GROUPS = (BLUE, RED, GREEN, PINK, ORANGE, SKY)
APPS = (BLUE, ORANGE, GREEN, YELLOW, SKY, RED, PINK, GREY)
STYLES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1, 1, 1)))

# In a page, text and background colours follow the reader's light or dark mode.
INK, PAPER = "#1a1b1c", "#fdfefd"


@dataclass(frozen=True)
class Picture:
    """A picture: its file name, its title, a text that describes it (also for blind readers), and the figure of
    matplotlib. A `heavy` picture has many elements and is better stored as PNG."""

    name: str
    title: str
    text: str
    figure: Any
    heavy: bool = False

    @property
    def inches(self) -> float:
        """Its width in inches."""
        return float(self.figure.get_size_inches()[0])

    def save(self, path: Path) -> None:
        """Write a PNG or SVG file, depending on the suffix. Raises PictureError."""
        kept = {"Date": None} if path.suffix == ".svg" else {}
        try:
            with plot_style():
                self.figure.savefig(path, dpi=150, metadata=kept, facecolor="white")
        except OSError as error:
            raise PictureError(f"cannot write {path}: {error.strerror}") from error

    def svg(self) -> str:
        """Return an SVG element for a page: its ids are unique in the page, its text and background colours are
        those of the page, and text stays text."""
        out = io.StringIO()
        with plot_style({"svg.fonttype": "none"}):
            self._lay_out()
            self.figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
        found = out.getvalue()
        found = found[found.index("<svg"):]
        found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.S)
        found = re.sub(r"<!--.*?-->", "", found, flags=re.S)
        found = re.sub(r' (xmlns:xlink|version)="[^"]*"', "", found)
        found = found.replace("xlink:href", "href")
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', found))
        found = re.sub(r' id="([^"]*)"', lambda match: f' id="{self.name}-{match.group(1)}"'
                       if match.group(1) in used else "", found)
        found = re.sub(r'(href="#|url\(#)', rf"\g<1>{self.name}-", found)
        found = re.sub(r"font: ([^;']*?)([0-9.]+px) [^;\"]+", r"font: \1\2 var(--font)", found)
        found = re.sub(r"font-family: [^;\"]+", "font-family: var(--font)", found)
        found = re.sub(r' transform="rotate\(-0 [^"]*"', "", found)
        found = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match.group()):.2f}", found)
        found = re.sub(r"\s*\n\s*", "\n", found)
        found = found.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
        head, _, rest = found.partition(">")
        head = re.sub(r' (width|height)="[^"]*"', "", head)
        return f'{head} aria-hidden="true" focusable="false">{rest}'

    def png(self) -> bytes:
        """Return the content of a PNG file."""
        out = io.BytesIO()
        with plot_style():
            self._lay_out()
            self.figure.set_dpi(130)
            self.figure.set_facecolor("white")
            self.figure.canvas.print_png(out)  # savefig would draw twice, once only for the layout
        return out.getvalue()

    def _lay_out(self) -> None:
        """Compute the layout once; otherwise saving draws everything twice, once only for the layout."""
        engine = self.figure.get_layout_engine()
        if engine is not None:
            engine.execute(self.figure)
            self.figure.set_layout_engine("none")


@contextmanager
def plot_style(more: dict[str, Any] | None = None) -> Iterator[Any]:
    """Yield matplotlib.pyplot with the style of all pictures; `more` are further settings. Raises PictureError
    without matplotlib."""
    plots = pyplot(PictureError, "ask for text, csv, markdown or latex")
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color",
                         "ytick.color"), INK)
    with plots.rc_context({"font.size": 9, "axes.titlesize": 9.5, "axes.titlelocation": "left",
                           "axes.spines.top": False, "axes.spines.right": False,
                           "axes.linewidth": 0.8, "xtick.labelsize": 8, "ytick.labelsize": 8,
                           "legend.fontsize": 8, "legend.frameon": False, "svg.hashsalt": "vrm",
                           "axes.axisbelow": True, "hatch.linewidth": 0.6, **ink, **(more or {})}):
        yield plots


def grid(axes: Any, axis: str) -> None:
    """Draw faint lines at the ticks of an axis ("x" or "y")."""
    axes.grid(axis=axis, color=INK, alpha=0.15, linewidth=0.7)


def file_name_part(text: str) -> str:
    """Return the text with `_` instead of characters that file names should not contain."""
    return re.sub(r"[^\w.+-]+", "_", text) or "run"
