"""The shim (`shim.c`), built with the user's C compiler where it is first needed."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Mapping

from vrm.ext.building.compiling import CompileError, Recipe

HERE = Path(__file__).resolve().parent
SHIM = Recipe("lending", "the shim", HERE / "shim.c", [HERE / "vrm_lending.h"], ("-ldl", "-lpthread"))


class ShimError(RuntimeError):
    """There is no shim, and why; jobs lend by affinity alone then."""


def shim(env: Mapping[str, str] | None = None) -> Path:
    """The shim for this machine, built when there is none yet. BuildError when that cannot be done."""
    try:
        return SHIM.made(env)
    except CompileError as error:
        raise ShimError(f"{error}; jobs lend cores by affinity alone, and their number of threads stays") from error
