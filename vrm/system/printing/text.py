"""Text that comes from files, as a terminal may be given it."""

from __future__ import annotations

import re


def printable(text: str, longest: int | None = None) -> str:
    """The text with everything that a terminal would obey made visible, cut to `longest`
    characters where that is given."""
    if longest is not None and len(text) > longest:
        text = text[:longest] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable_lines(text: str) -> str:
    """The same for a text of several lines, of which only what a terminal would obey is changed."""
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
