"""The field of a job that must not stand still."""

from __future__ import annotations

from vrm.model.forms.fields import NO_COLUMN, Field, Option
from vrm.model.forms.kinds import FLAG

NO_PAUSE = "no_pause"
"""Its name."""


def no_pause() -> Field:
    """Whether a job must not be paused for an urgent one."""
    return Field(NO_PAUSE, FLAG, "1 (it is never paused for an urgent job) or 0", column=NO_COLUMN,
                 option=Option("", "never pause it for an urgent job"))
