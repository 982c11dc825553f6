"""The field of a job that must not stand still."""

from __future__ import annotations

from vrm.ext.urgent.room import NO_PAUSE
from vrm.model.forms.fields import NO_COLUMN, Field, Option
from vrm.model.forms.kinds import FLAG


def no_pause() -> Field:
    """Whether a job must not be paused for an urgent one."""
    return Field(NO_PAUSE, FLAG, "1 (it is never paused for an urgent job) or 0", column=NO_COLUMN,
                 option=Option("", "never pause it for an urgent job"))
