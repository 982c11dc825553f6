"""Settings of Python's garbage collector for commands that make many objects."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from collections.abc import Iterator


@contextmanager
def no_collections() -> Iterator[None]:
    """Stop the collector of cyclic garbage within the block: for a program's start, which makes many objects that
    stay. The collector also ignores these objects later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector of cyclic garbage run less often within the block: for work that makes many objects and hardly
    any cycles."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
