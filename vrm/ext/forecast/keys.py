"""The key `Forecast` of the configuration."""

from __future__ import annotations

from typing import Any

from vrm.config.values import Switch


def forecast() -> tuple[Any, Any]:
    """Whether a process beside the manager forecasts when jobs start."""
    return Switch, True
