"""The key `Slurm` of the configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from vrm.config.kinds import STRICT, defaults, group
from vrm.config.values import Duration


class SlurmSettings(BaseModel):
    """Jobs that come by the commands of other batch systems."""

    model_config = STRICT
    default_time: Duration = 3600.0  # of a job that says no limit


def slurm() -> tuple[Any, Any]:
    """The key."""
    return Annotated[SlurmSettings, group("{DefaultTime: 30m}")], Field(default_factory=defaults)
