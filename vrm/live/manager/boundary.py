"""What others have written and a manager reads: a fault in it is theirs, and ends no manager."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from collections.abc import Iterator

from vrm.run.journal.files import Journal


class NotUnderstood(ValueError):
    """What somebody has written cannot be carried out, and has changed nothing; the text says why."""


@contextlib.contextmanager
def reading(journal: Journal) -> Iterator[None]:
    """What somebody else has written is read and carried out inside: a command file, a call, a frame. Whatever
    it raises, but for OSError, becomes NotUnderstood as long as the journal has not grown: nothing was changed.
    What is raised later is a fault of vrm in half of a change: it ends the manager, and the next one goes on
    by the journal."""
    before = journal.appended
    try:
        yield
    except (NotUnderstood, OSError):
        raise
    except Exception as error:
        if journal.appended != before:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise NotUnderstood(str(error) if isinstance(error, ValueError) else
                            f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
                            ) from error
