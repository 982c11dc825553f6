"""The key `Objective` of the configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from vrm.config.kinds import kind, lower
from vrm.system import plugins

OBJECTIVES = ("wait", "makespan", "slowdown", "longest", "fits", "energy")
"""What advice can look for: its own names."""


def _objective(name: str) -> str:
    """The name of what advice looks for, of vrm or of a package."""
    if name not in OBJECTIVES and not plugins.find("vrm.objectives", name):
        raise ValueError(name)
    return name


def objective() -> tuple[Any, Any]:
    """What advice looks for."""
    return Annotated[str, AfterValidator(_objective), BeforeValidator(lower), kind(
        "wait, makespan, slowdown, longest, fits, energy, or an objective of a package", "makespan")], "makespan"
