"""Guards the reading of input from outside the manager, so that faulty input does not end the manager."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from collections.abc import Iterator

from vrm.run.journal.files import Journal


class InputFault(ValueError):
    """Input cannot be carried out and has changed nothing; the text gives the reason."""


@contextlib.contextmanager
def reading(journal: Journal) -> Iterator[None]:
    """Context for reading and carrying out input from outside: a command file, a call, a frame.

    Every exception except OSError becomes InputFault while the journal has not grown, because then nothing was
    changed. An exception after that is a fault of vrm in the middle of a change: it ends the manager, and the next
    manager continues from the journal.
    """
    before = journal.appended
    try:
        yield
    except (InputFault, OSError):
        raise
    except Exception as error:
        if journal.appended != before:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise InputFault(str(error) if isinstance(error, ValueError) else
                         f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
                         ) from error
