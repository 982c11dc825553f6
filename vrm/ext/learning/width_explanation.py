"""Why a job started on its number of ranks, from the journal of its run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from collections.abc import Mapping

from vrm.ext.learning.curves import input_key
from vrm.model import Job
from vrm.run.journal import files as journal
from vrm.run.journal import single_job

_WORDS = {"turnaround": "the least mean of wait and run", "makespan": "the earliest last end",
          "efficiency": "the most ranks with enough efficiency"}


def width_of(path: Path, job_id: int) -> Mapping[str, Any] | None:
    """Return the journal's record on the last start of a job that may run on several numbers of ranks; None for
    other jobs."""
    found = None
    for record in journal.records(path, re.compile(b'"width"')):
        if record["event"] == "part" and record["what"] == "width" and record["values"]["id"] == job_id:
            found = record["values"]
    one = None if found is None else single_job.alone(path, job_id)
    return found if found is None or one is None else {**found, "like": like(one.job)}


def like(job: Job) -> str:
    """Return with which other jobs a job is compared, as `jobs of ep.S.x with the arguments -n 3`."""
    if job.payload.arguments:
        return f"jobs of {job.app} with the arguments {input_key(job)}"
    return f"jobs of {job.app} without arguments, in " + (job.payload.directory or "the directory of the run")


def sentences(found: Mapping[str, Any]) -> str:
    """Return the record as text: the number of ranks, and what was expected of the others."""
    from vrm.model.quantities import said
    from vrm.system.printing.output import aligned

    rows = [("RANKS", "EXPECTED", "8 OF 10 BETWEEN", "OBJECTIVE", "")]
    for ranks, seconds, low, high, *gives in found["options"]:
        rows.append((str(int(ranks)), said(seconds), f"{said(low)} and {said(high)}", said(gives[0]) if gives else "-",
                     "chosen" if ranks == found["ranks"] else ""))
    ranks = int(found["ranks"])
    compared = f"\nExpected from {found['like']}" if "like" in found else ""
    return (f"It runs on {ranks} rank{'s' * (ranks > 1)}, for {_WORDS[found['objective']]}:\n"
            f"{aligned(rows, right=(0, 1, 3))}{compared}")
