"""The job field `no_pause`."""

from __future__ import annotations

from vrm.model.forms.fields import NO_COLUMN, Field, Option
from vrm.model.forms.field_types import FLAG

NO_PAUSE = "no_pause"
"""Name of the field."""


def no_pause() -> Field:
    """Return the field that excludes a job from being paused for an urgent job."""
    return Field(NO_PAUSE, FLAG, "1 (it is never paused for an urgent job) or 0", column=NO_COLUMN,
                 option=Option("", "never pause it for an urgent job"))
