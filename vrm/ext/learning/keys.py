"""The keys `Learning` and `Hosts.Quarantine` of the configuration."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo

from vrm.config.kinds import STRICT, defaults, group, kind
from vrm.config.paths import absolute, expanded

AUTO, OFF = "auto", "off"
"""The store is where the XDG directories say; there is none."""


SUGGEST, ON = "suggest", "on"
"""Bad nodes are reported; they take no new jobs, too. OFF: nobody looks for them."""


def _quarantine(value: Any) -> Any:
    """A word; YAML takes bare `on` and `off` for yes and no."""
    if isinstance(value, bool):
        return ON if value else OFF
    return value.strip().lower() if isinstance(value, str) else value


def _store(value: Any, info: ValidationInfo) -> str:
    """`auto`, `off`, or an absolute path."""
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
    """The key `Hosts.Quarantine`: what becomes of nodes that fail jobs or slow them."""
    return Annotated[Literal["suggest", "on", "off"], BeforeValidator(_quarantine), kind(
        "suggest, on or off", "suggest")], SUGGEST
