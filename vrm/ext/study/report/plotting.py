"""Where matplotlib comes in: how it is imported, and how a small picture is drawn and saved."""

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
"""What to type where a library is missing, for the Python that runs. The libraries are named, not
vrm's extra: an index may have another project of vrm's name, and a checkout is not always there."""

LONG = 18  # characters of a name that pictures have room for

PLAIN = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "vrm"}
"""The look of plain pictures."""


class PictureError(RunError):
    """A picture that cannot be made; the text says why and what to do."""


class Plots:
    """What is used of matplotlib's pyplot, for files only, and without its time to load: that of windows
    and of the texts in which it describes itself."""

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
        """An empty figure."""
        found = self._figure(**look)
        self._canvas(found)
        return found

    def subplots(self, rows: int = 1, columns: int = 1, sharex: bool = False, height_ratios: Any = None,
                 **look: Any) -> tuple[Any, Any]:
        """A figure, and its axes."""
        found = self.figure(**look)
        return found, found.subplots(rows, columns, sharex=sharex, height_ratios=height_ratios)


def pyplot(error: type[Exception], otherwise: str) -> Plots:
    """What draws, for files only; raises `error` where matplotlib is not installed, with the mend
    and what else can be done."""
    try:
        found = Plots()
        # A box stands where a font lacks a character; that need not be told dozens of times.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
    except ImportError as missing:
        raise error(f"matplotlib is needed for pictures ({missing}); {INSTALL}, or {otherwise}"
                    ) from missing
    return found


def label_of(name: str) -> str:
    """A name as pictures show it: own policies without their modules, a long one in lines, and without formulas."""
    name = re.sub(r"\b[\w.]+:(?=[A-Za-z_])", "", name)
    if len(name) > LONG:
        name = "\n+ ".join(part if len(part) <= LONG else f"{part[:LONG - 1]}…" for part in name.split(" + "))
    return name.replace("$", r"\$")  # else two of them would begin and end a formula


@contextmanager
def picture(path: Path, error: type[Exception], otherwise: str, width: float,
            height: float) -> Iterator[Any]:
    """A figure of this size in inches, to be drawn into; it is saved as PNG or SVG when that is
    done. Raises `error` for another ending, a file that cannot be written, and as `pyplot`."""
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
