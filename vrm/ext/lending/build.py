"""Builds the shim (`shim.c`) with the user's C compiler when it is first needed."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Mapping

from vrm.ext.building.compiling import CompileError, Recipe

HERE = Path(__file__).resolve().parent
SHIM = Recipe("lending", "the shim", HERE / "shim.c", [HERE / "vrm_lending.h"], ("-ldl", "-lpthread"))


class ShimError(RuntimeError):
    """The shim cannot be built; the text says why. Jobs then lend by affinity alone."""


def shim(env: Mapping[str, str] | None = None) -> Path:
    """Return the path of the shim for this machine; build it if necessary. Raises ShimError if it cannot be built."""
    try:
        return SHIM.made(env)
    except CompileError as error:
        raise ShimError(f"{error}; jobs lend cores by affinity alone, and their number of threads stays") from error
