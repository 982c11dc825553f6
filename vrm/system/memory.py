"""Python's memory, where a command makes many objects."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from collections.abc import Iterator


@contextmanager
def no_collections() -> Iterator[None]:
    """Python's collector of cyclic garbage does not look: for a program's start, which makes many objects that stay. It
    does not look at them later, either."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Python's collector of cyclic garbage looks less often: for work that makes many objects and
    next to no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
