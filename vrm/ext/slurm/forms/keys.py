"""The key `Slurm` of the configuration file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from vrm.config.validators import STRICT, defaults, group
from vrm.config.value_types import Duration


class SlurmSettings(BaseModel):
    """Settings for jobs that are submitted by commands of other batch systems."""

    model_config = STRICT
    default_time: Duration = 3600.0  # time limit of jobs that have none


def slurm() -> tuple[Any, Any]:
    """Return the key's type and default value."""
    return Annotated[SlurmSettings, group("{DefaultTime: 30m}")], Field(default_factory=defaults)
