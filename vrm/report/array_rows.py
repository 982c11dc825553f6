"""Rows of a table that stand for many waiting jobs of an array with `each=`: their names or arguments differ."""

from __future__ import annotations

from itertools import groupby, takewhile
from typing import Any
from collections.abc import Hashable, Iterator, Mapping, Sequence

from vrm.model.quantities import fold

_APART = ("id", "ids", "index", "submit", "name", "args", "dir", "forecast", "expected_start")
"""Keys in which jobs that share a row may differ."""


def shared_rows(jobs: Sequence[Mapping[str, Any]], apart: float) -> Iterator[Mapping[str, Any]]:
    """Yield the waiting jobs in their order; more than `apart` neighbours of an array that differ only in their words
    become one job, as in `vrm.results.state.jobs_of`. Its texts have `*` in place of what differs."""
    for array, neighbours in groupby(jobs, _array):
        group = list(neighbours)
        if array is not None and len(group) > apart:
            first = group[0]
            yield {**first, "ids": fold([job["id"] for job in group]), "count": len(group),
                   "index": fold([job["index"] for job in group]),
                   **{key: _common([job[key] for job in group]) for key in ("name", "args")}}
        else:
            yield from group


def _array(job: Mapping[str, Any]) -> Hashable:
    """Return what jobs of one array that wait alike have in common; None for other jobs. Jobs of `each=` have ids
    that follow each other, as their indices do."""
    if "count" in job or job["index"] is None:
        return None
    return job["id"] - job["index"], repr({key: value for key, value in job.items() if key not in _APART})


def _common(texts: Sequence[str]) -> str:
    """Return the text that all texts are; if they differ, what they have in common at their beginning, and `*`."""
    first, last = min(texts), max(texts)
    return first if first == last else "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1],
                                                                           zip(first, last))) + "*"
