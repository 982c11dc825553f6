"""Text in terminal cells: spans with styles, cut and padded to a width."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from collections.abc import Sequence

Span = tuple[str, str]
"""A text and its style: plain, title, heading, dim, bold, good, warn, bad, ask, or job0 to job5; a selected
span has `reverse ` before its style."""
Line = list[Span]


@dataclass(frozen=True)
class Glyphs:
    """The characters used for drawing."""

    full: str
    rest: str
    free: str
    divider: str
    cut: str
    ascii: bool


UNICODE = Glyphs("━", "─", "·", "│", "…", ascii=False)
ASCII = Glyphs("#", "-", ".", "|", "~", ascii=True)


def plain_text(lines: Sequence[Line]) -> str:
    """Return the picture without its styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def columns(text: str) -> int:
    """Return the number of terminal columns of a text."""
    return len(text) if text.isascii() else sum(map(_char_columns, text))


def _char_columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Return the text, shortened to `width` columns if it is longer."""
    if columns(text) <= width:
        return text
    kept, used = [], columns(glyphs.cut)
    for char in text:
        used += _char_columns(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept) + (glyphs.cut if width > 0 else "")


def _drawable(text: str, glyphs: Glyphs) -> str:
    return text.encode("ascii", "replace").decode() if glyphs.ascii else text


def pad(text: str, width: int, glyphs: Glyphs) -> str:
    """Return the text, cut or padded with blanks to `width` columns."""
    text = _cut(_drawable(text, glyphs), width, glyphs)
    return text + " " * (width - columns(text))


def fit(line: Line, width: int, glyphs: Glyphs) -> Line:
    """Return the line, shortened to `width` columns."""
    fitted: Line = []
    for text, style in line:
        text = _drawable(text, glyphs)
        if columns(text) > width:
            text = _cut(text, width, glyphs)
        width -= columns(text)
        if text:
            fitted.append((text, style))
    return fitted


def fill(line: Line, width: int, glyphs: Glyphs) -> Line:
    """Return the line, cut or padded with blanks to exactly `width` columns."""
    fitted = fit(line, width, glyphs)
    used = sum(columns(text) for text, _ in fitted)
    return [*fitted, (" " * (width - used), "plain")]


def draw_bar(share: float, width: int, style: str, glyphs: Glyphs) -> Line:
    """Return a bar whose fraction `share` (0 to 1) is full."""
    width = max(0, width)
    full = min(width, int(share * width + 0.5))
    return [(glyphs.full * full, style), (glyphs.rest * (width - full), "dim")]
