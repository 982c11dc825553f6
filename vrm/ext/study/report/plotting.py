"""Imports matplotlib, and draws and saves small pictures."""

from __future__ import annotations

import sys
import re
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from collections.abc import Iterator

from vrm.system.errors import RunError

INSTALL = f"install it with `{sys.executable} -m pip install matplotlib Jinja2`"
"""The command to type if a library is missing, for the Python that is running. It names the libraries instead of an
extra of vrm: a package index may have another project named vrm, and there may be no checkout."""

LONG = 18  # maximum characters of a name on one line of a picture

PLAIN = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "vrm"}
"""The style of plain pictures."""


class PictureError(RunError):
    """A picture that cannot be made; the text gives the reason and the remedy."""


class Plots:
    """The part of matplotlib's pyplot that vrm uses, for files only. Loads faster than pyplot: without window
    toolkits and without generating matplotlib's own documentation."""

    def __init__(self) -> None:
        import matplotlib
        from matplotlib import artist
        described = artist.kwdoc
        artist.kwdoc = lambda artist: ""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        finally:
            artist.kwdoc = described
        self.rc_context: Any = matplotlib.rc_context
        self._figure: Any = Figure
        self._canvas: Any = FigureCanvasAgg

    def figure(self, **look: Any) -> Any:
        """Return an empty figure."""
        found = self._figure(**look)
        self._canvas(found)
        return found

    def subplots(self, rows: int = 1, columns: int = 1, sharex: bool = False, height_ratios: Any = None,
                 **look: Any) -> tuple[Any, Any]:
        """Return a figure and its axes."""
        found = self.figure(**look)
        return found, found.subplots(rows, columns, sharex=sharex, height_ratios=height_ratios)


def pyplot(error: type[Exception], otherwise: str) -> Plots:
    """Return a `Plots`. If matplotlib is not installed, raises `error` with the install command and the alternative
    `otherwise`."""
    try:
        found = Plots()
        # matplotlib draws a box for a character that the font lacks; it would warn dozens of times.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
    except ImportError as missing:
        raise error(f"matplotlib is needed for pictures ({missing}); {INSTALL}, or {otherwise}"
                    ) from missing
    return found


def chart_label(name: str) -> str:
    """Return a name as pictures show it: user-defined policies without their modules, long names on several lines,
    and `$` escaped."""
    name = re.sub(r"\b[\w.]+:(?=[A-Za-z_])", "", name)
    if len(name) > LONG:
        name = "\n+ ".join(part if len(part) <= LONG else f"{part[:LONG - 1]}…" for part in name.split(" + "))
    return name.replace("$", r"\$")  # otherwise two of them would enclose a formula


@contextmanager
def picture(path: Path, error: type[Exception], otherwise: str, width: float,
            height: float) -> Iterator[Any]:
    """Yield a figure of this size in inches to draw into, then save it as PNG or SVG. Raises `error` for another
    suffix, a file that cannot be written, and if matplotlib is missing (see `pyplot`)."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise error(f"{path}: the name of a picture ends in .png or .svg")
    plots = pyplot(error, otherwise)
    with plots.rc_context(PLAIN):
        figure = plots.figure(figsize=(width, height), layout="constrained")
        try:
            yield figure
            kept = {"Date": None} if path.suffix.lower() == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=kept)
        except OSError as problem:
            raise error(f"cannot write {path}: {problem.strerror}") from problem
