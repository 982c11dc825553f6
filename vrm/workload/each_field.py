"""The field `each=`: a job for each path that matches a pattern, or for each line of a file."""

from __future__ import annotations

import glob
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path
from collections.abc import Callable

from vrm.model.forms import json_checks
from vrm.model.quantities import MOST_JOBS
from vrm.workload.grammar import LineError, QueueLine, show

LARGEST = 16 * 2**20
"""Maximum size in bytes of a file whose lines each are a job."""


def expanded(wanted: QueueLine, directory: str | Path, fault: Callable[[Path], str] = lambda path: ""
             ) -> QueueLine:
    """Return the line as an array with one job for each item; a line without `each=` is returned unchanged.

    Relative paths start at `directory`. `fault` returns why a file must not be used ("" if it may). Raises LineError
    if there is no item, or one cannot be used.
    """
    pattern = wanted.fields.get("each")
    if pattern is None:
        return wanted
    if "array" in wanted.fields:
        raise LineError("each= and array= both say which jobs there are; leave out one")
    items = _lines(Path(directory, pattern[1:]), fault) if pattern.startswith("@") else sorted(
        islice(glob.iglob(pattern, root_dir=directory), MOST_JOBS + 1))
    if not items:
        raise LineError(f"each: no path matches `{show(pattern)}` in {directory}" if pattern[0] != "@" else
                        f"each: {show(pattern[1:])} has no line")
    if len(items) > MOST_JOBS:
        raise LineError(f"each: `{show(pattern)}` makes more than {MOST_JOBS} jobs")
    for item in items:
        if json_checks.CONTROL.search(item) or not item.isprintable():
            raise LineError(f"each: `{show(item)}` holds a character that cannot be printed")
    return replace(wanted, fields={**wanted.fields, "array": range(len(items))}, items=tuple(items))


def _lines(path: Path, fault: Callable[[Path], str]) -> list[str]:
    """Return the lines of a file that are not blank."""
    reason = fault(path)
    if reason:
        raise LineError(f"each: {reason}")
    try:
        if os.stat(path).st_size > LARGEST:
            raise LineError(f"each: {path} is larger than {LARGEST} bytes")
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise LineError(f"each: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LineError(f"each: {path} is not UTF-8") from error
