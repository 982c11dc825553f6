"""What a value read from a file must be: small tests of JSON values, to be put together in tables.

JSON has no kinds that a program could rely on; a table of these says what a record must look like.
"""

from __future__ import annotations

import re
from typing import Any
from collections.abc import Callable, Collection, KeysView, Mapping

Check = Callable[[Any], bool]

MOST = 10 ** 9
"""The largest number of anything that is counted."""

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""What a line of a text file cannot hold, and a terminal might obey."""


def count(value: Any) -> bool:
    """A whole number, 0 or more."""
    return type(value) is int and 0 <= value <= MOST


def positive(value: Any) -> bool:
    """A whole number, 1 or more."""
    return count(value) and value > 0


def whole(value: Any) -> bool:
    """A whole number."""
    return type(value) is int and -MOST <= value <= MOST


def size(value: Any) -> bool:
    """An inode or an offset of a file."""
    return type(value) is int and 0 <= value < 1 << 64


def number(value: Any) -> bool:
    """A number, such as a time in seconds."""
    return type(value) in (int, float) and -1e15 < value < 1e15


def flag(value: Any) -> bool:
    """True or false."""
    return type(value) is bool


def text(value: Any) -> bool:
    """Any text."""
    return type(value) is str


def line(value: Any) -> bool:
    """A text that could be a part of a line."""
    return type(value) is str and not CONTROL.search(value)


def mapping(value: Any) -> bool:
    """A mapping of whatever values."""
    return type(value) is dict


def maybe(check: Check) -> Check:
    """What the check wants, or null."""
    return lambda value: value is None or check(value)


def list_of(check: Check, length: int | None = None) -> Check:
    """A list of such values, of that length where one is given."""
    return lambda value: (type(value) is list and all(map(check, value))
                          and length in (None, len(value)))


def one_of(values: Collection[str]) -> Check:
    """One of some words."""
    return lambda value: type(value) is str and value in values


def fault(value: Any, wanted: Mapping[str, Check], may: Mapping[str, Check]) -> str:
    """What is wrong with a mapping: a key that is `wanted` and missing, or one of either whose
    value is of the wrong kind; "" when nothing is. Further keys are not looked at."""
    return fault_of(value, wanted.keys(), {**may, **wanted})


def fault_of(value: Any, wanted: KeysView[str], checks: Mapping[str, Check]) -> str:
    """`fault` with all checks in one table, for many mappings."""
    if type(value) is not dict:
        return "it is not a mapping"
    if not wanted <= value.keys():
        return f"{next(name for name in wanted if name not in value)} is missing"
    for name, each in value.items():  # of these there are few, and many that there may be
        if name in checks and not checks[name](each):
            return f"{name} is wrong"
    return ""
