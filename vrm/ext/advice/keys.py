"""The configuration key `Objective`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from vrm.config.validators import kind, lower
from vrm.system import plugins

OBJECTIVES = ("wait", "makespan", "slowdown", "longest", "fits", "energy")
"""Names of vrm's own objectives of advice."""


def _objective(name: str) -> str:
    """Return the name if it is an objective of vrm or of a package; otherwise raise ValueError."""
    if name not in OBJECTIVES and not plugins.find("vrm.objectives", name):
        raise ValueError(name)
    return name


def objective() -> tuple[Any, Any]:
    """Return the type and the default of the key."""
    return Annotated[str, AfterValidator(_objective), BeforeValidator(lower), kind(
        "wait, makespan, slowdown, longest, fits, energy, or an objective of a package", "makespan")], "makespan"
