"""Checks of values read from a file: small tests of JSON values, to be combined in tables.

JSON has no types that a program could rely on; a table of these checks says what a record must look like.
"""

from __future__ import annotations

import re
from typing import Any
from collections.abc import Callable, Collection, KeysView, Mapping

Check = Callable[[Any], bool]

MOST = 10 ** 9
"""The largest number that a count may have."""

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""Control characters: a line of a text file cannot contain them, and a terminal might act on them."""


def count(value: Any) -> bool:
    """Return whether it is an integer from 0 to MOST."""
    return type(value) is int and 0 <= value <= MOST


def positive(value: Any) -> bool:
    """Return whether it is an integer from 1 to MOST."""
    return count(value) and value > 0


def whole(value: Any) -> bool:
    """Return whether it is an integer, at most MOST in size."""
    return type(value) is int and -MOST <= value <= MOST


def size(value: Any) -> bool:
    """Return whether it can be an inode number or an offset in a file."""
    return type(value) is int and 0 <= value < 1 << 64


def number(value: Any) -> bool:
    """Return whether it is a number, such as a time in seconds."""
    return type(value) in (int, float) and -1e15 < value < 1e15


def flag(value: Any) -> bool:
    """Return whether it is true or false."""
    return type(value) is bool


def text(value: Any) -> bool:
    """Return whether it is a text."""
    return type(value) is str


def line(value: Any) -> bool:
    """Return whether it is a text that can be part of a line."""
    return type(value) is str and not CONTROL.search(value)


def mapping(value: Any) -> bool:
    """Return whether it is a mapping, with any values."""
    return type(value) is dict


def maybe(check: Check) -> Check:
    """Return a check that accepts null and what `check` accepts."""
    return lambda value: value is None or check(value)


def list_of(check: Check, length: int | None = None) -> Check:
    """Return a check for a list of values that `check` accepts, with `length` values if that is given."""
    return lambda value: (type(value) is list and all(map(check, value))
                          and length in (None, len(value)))


def one_of(values: Collection[str]) -> Check:
    """Return a check for one of some words."""
    return lambda value: type(value) is str and value in values


def fault(value: Any, wanted: Mapping[str, Check], may: Mapping[str, Check]) -> str:
    """Return what is wrong with a mapping: a `wanted` key that is missing, or a value that its check in `wanted` or
    `may` does not accept; "" if nothing is. Further keys are ignored."""
    return fault_of(value, wanted.keys(), {**may, **wanted})


def fault_of(value: Any, wanted: KeysView[str], checks: Mapping[str, Check]) -> str:
    """Do the work of `fault` with all checks in one table, which is faster for many mappings."""
    if type(value) is not dict:
        return "it is not a mapping"
    if not wanted <= value.keys():
        return f"{next(name for name in wanted if name not in value)} is missing"
    for name, each in value.items():  # a mapping has few keys, but many are possible
        if name in checks and not checks[name](each):
            return f"{name} is wrong"
    return ""
