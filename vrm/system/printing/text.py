"""Text for a terminal: makes text from files harmless, and colours states if the output is a terminal, unless NO_COLOR
is set (https://no-color.org) or TERM is `dumb`."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO


def printable(text: str, longest: int | None = None) -> str:
    """Return the text with all characters that are not printable made visible, cut to `longest` characters (None: not
    cut)."""
    if longest is not None and len(text) > longest:
        text = text[:longest] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable_lines(text: str) -> str:
    """Return a text of several lines with the characters made visible that a terminal would act on; line ends and tabs
    stay."""
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


_CODES = {"red": 31, "yellow": 33}

_STYLES = {"failed": "red", "timeout": "red", "refused": "red", "wrong": "red", "cancelled": "yellow"}
"""Words that fill a cell of a table or start a line, and their colour."""

_WORDS = re.compile(rf"^({'|'.join(_STYLES)})(?= )|(?<=\| )({'|'.join(_STYLES)})(?= +\|)", re.MULTILINE)


def wanted(out: TextIO) -> bool:
    """Return whether output to `out` may have colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and out.isatty()


def coloured(text: str, colour: str, out: TextIO | None = None) -> str:
    """Return the text in a colour, if `out` (None: standard output) may have colours."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if wanted(out or sys.stdout) else text


def marked(text: str, out: TextIO | None = None) -> str:
    """Return the text with the states in its tables, and the levels at the start of its lines, in their colours."""
    if not wanted(out or sys.stdout):
        return text
    return _WORDS.sub(lambda found: coloured(found[0], _STYLES[found[0]], out), text)
