"""Reads what a journal says about one job, without decoding the records of the others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from collections.abc import Iterator

from vrm.model import Job
from vrm.model.job import Details
from vrm.run.journal.codec import jobs_of, more_fault
from vrm.run.journal.combined_records import LIVES, jobs_in, unfolded
from vrm.run.journal.files import JOBS_LINE, records
from vrm.run.journal.record_checks import EndRecord, Record


class SingleJob(NamedTuple):
    """The present state of one job: whether it waits, whether it is held, the record of its end, and the number of
    jobs submitted in the run."""

    job: Job
    details: Details
    waits: bool
    held: bool
    end: EndRecord | None
    came: int


def alone(path: Path, job_id: int) -> SingleJob | None:
    """Return the present state of one job; None if there is no such job, or if it has a field of an extension that is
    not installed. Decodes the lines of this job only, which is fast in a run of any length. Raises JournalError like
    `read`."""
    found: tuple[Job, Details] | None = None
    end: EndRecord | None = None
    is_held = waits = False
    came = 0

    def counted() -> Iterator[Record]:
        nonlocal came
        only = re.compile(b'%b|"event":"%b"|"id": ?%d\\b' % (JOBS_LINE.pattern, LIVES.encode(), job_id))
        for record in records(path, only):
            came += jobs_in(record)
            yield record

    for record in unfolded(counted(), job_id):
        event, first = record["event"], record.get("id", job_id + 1)
        if first <= job_id < first + jobs_in(record):
            if more_fault(record.get("more", {})):
                return None
            jobs, details, _ = jobs_of({**record, "id": job_id, "array": "0"})
            found, waits, is_held, end = (jobs[0], details), True, details.held, None
        elif first != job_id:
            continue
        elif event in ("hold", "release"):
            is_held = event == "hold"
        elif event in ("start", "end"):
            waits, end = False, EndRecord(record) if event == "end" else None
        elif event in ("again", "back"):
            waits, end = True, None
    return SingleJob(*found, waits, is_held, end, came) if found is not None else None
