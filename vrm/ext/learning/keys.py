"""The configuration keys `Learning` and `Hosts.Quarantine`."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo

from vrm.config.validators import STRICT, defaults, group, kind
from vrm.config.paths import absolute, expanded

AUTO, OFF = "auto", "off"
"""AUTO: the store is where the XDG directories say. OFF: there is no store."""


SUGGEST, ON = "suggest", "on"
"""SUGGEST: bad nodes are reported. ON: they also take no new jobs. OFF: bad nodes are not looked for."""


def _quarantine(value: Any) -> Any:
    """Return the word; YAML reads an unquoted `on` or `off` as yes or no."""
    if isinstance(value, bool):
        return ON if value else OFF
    return value.strip().lower() if isinstance(value, str) else value


def _store(value: Any, info: ValidationInfo) -> str:
    """Return `auto`, `off`, or an absolute path."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("no path")
    text = value.strip()
    if text.lower() in ("off", "no", "false"):
        return OFF
    if text.lower() == AUTO:
        return AUTO
    return absolute(expanded(text), info.context.directory if info.context else os.getcwd())


class LearningSection(BaseModel):
    """What is learned from the jobs of a run."""

    model_config = STRICT
    store: Annotated[str, BeforeValidator(_store), kind(
        "auto, off, or the path of a file", "/var/tmp/me/learned.sqlite")] = AUTO


def learning() -> tuple[Any, Any]:
    """The key `Learning`."""
    return Annotated[LearningSection, group("{Store: auto}")], Field(default_factory=defaults)


def quarantine() -> tuple[Any, Any]:
    """The key `Hosts.Quarantine`: what happens to nodes that fail or slow jobs."""
    return Annotated[Literal["suggest", "on", "off"], BeforeValidator(_quarantine), kind(
        "suggest, on or off", "suggest")], SUGGEST
