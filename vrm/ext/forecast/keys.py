"""The configuration key `Forecast`."""

from __future__ import annotations

from typing import Any

from vrm.config.value_types import Switch


def forecast() -> tuple[Any, Any]:
    """Whether a background process of the manager forecasts when jobs start."""
    return Switch, True
