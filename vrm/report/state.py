"""What the file `state` of a run says, whichever vrm has written it, in one form."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping

from vrm.model.ranges import fold, numbers

Snapshot = Mapping[str, Any]

FORMATS = (1, 2)
"""Of state files that are read: 1 is that of vrm 0.1; since 2, neighbours in the queue of which only
ids and indices differ are one value, and `after` is a text of ranges."""


def current(snapshot: Snapshot) -> Snapshot:
    """A snapshot with one value for each job, and all keys of a job: those of `JOB` are filled in.

    What is in this form already is given back as it is. ValueError for another format.
    """
    if snapshot.get("format") not in FORMATS:
        raise ValueError(f"the state has format {snapshot.get('format')!r} and this vrm reads"
                         f" formats {' and '.join(map(str, FORMATS))}: ask with the vrm that runs "
                         "the manager")
    if snapshot.get("expanded"):
        return snapshot
    return {**snapshot, "jobs": [job for value in snapshot["jobs"] for job in _jobs(value)],
            "expanded": True}


JOB: Mapping[str, Any] = {"name": "", "args": "", "dir": "", "index": None, "priority": 0,
                          "held": False, "late": False, "lacks": "", "after": "", "why": ""}
"""What a job has of which a state says nothing."""


def _jobs(value: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """The job of a value, or all of its jobs."""
    facts = {**JOB, **value}
    if isinstance(facts["after"], list):
        facts["after"] = fold(facts["after"])
    ids = numbers(facts.pop("ids")) if "ids" in facts else (facts["id"],)
    folded = facts.pop("indices", "")
    indices = numbers(folded) if folded else (facts["index"],) * len(ids)
    for job_id, index in zip(ids, indices):
        args = facts["args"] if index is None else facts["args"].replace("%i", str(index))
        yield {**facts, "id": job_id, "index": index, "args": args}


def label(job: Mapping[str, Any]) -> str:
    """What tells a job from others of its program: its name and, in an array, its index."""
    index = f"[{job['index']}]" if job["index"] is not None else ""
    return f"{job['name']}{index}"
