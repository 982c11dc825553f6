"""Reads the option `--dependency`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vrm.ext.slurm.forms import state_names
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.forms.options import Options
from vrm.model.job import ANY, FAIL, OK, START, Dependency
from vrm.model.quantities import to_ranges

_KINDS = {"afterok": OK, "aftercorr": OK, "afterany": ANY, "after": START, "afternotok": FAIL}

Dependencies = tuple[Dependency, ...]


def dependencies(text: str, options: Options, handler: RequestHandler, name: str, indices: Sequence[int]
                 ) -> tuple[Dependencies, dict[int, Dependencies], list[int]]:
    """Read a text such as `afterok:3:4,after:5+10,singleton`. Return the dependencies of the job, the additional
    dependencies of each index of an array (aftercorr), and the jobs that singleton refers to. Minutes after a `+`
    apply only to `after`; with other kinds they are accepted and ignored, as in Slurm."""
    found: list[Dependency] = []
    single: list[int] = []
    own: dict[int, list[Dependency]] = {index: [] for index in indices}
    if "?" in text:
        raise options.error("--dependency: vrm waits for all that is named, not for one of them (`?`)")
    for part in filter(None, map(str.strip, text.split(","))):
        kind, *ids = part.split(":")
        if kind == "singleton" and not ids:
            single = sorted(job.id for job in handler.jobs(ended=False) if job.name == name)
            found += _on(single, ANY)
            continue
        if kind not in _KINDS:
            raise options.error(f"--dependency: `{kind}` is not one of {', '.join(_KINDS)}, singleton")
        if not ids:
            raise options.error(f"--dependency: {kind} names no job")
        together: dict[float, set[int]] = {}
        for word in ids:
            jobs, minutes = _referenced_jobs(word, options, handler)
            array = {job.details.index: job.id for job in jobs if job.array is not None}
            if kind == "aftercorr" and array and indices:
                _add_per_index(own, array, word, options)
            else:
                together.setdefault(60.0 * minutes * (kind == "after"), set()).update(job.id for job in jobs)
        for delay, these in together.items():
            found += _on(sorted(these), _KINDS[kind], delay)
    return tuple(dict.fromkeys(found)), {index: tuple(waits) for index, waits in own.items() if waits}, single


def _add_per_index(own: Mapping[int, list[Dependency]], array: Mapping[int | None, int], word: str, options: Options
                   ) -> None:
    """Make each task of an array depend on the task with the same index of another array."""
    for index, waits in own.items():
        if index not in array:
            raise options.error(f"--dependency: aftercorr: array {word} has no task {index}, so task "
                                f"{index} of this one would never start")
        waits += _on([array[index]], OK)


def _referenced_jobs(word: str, options: Options, handler: RequestHandler) -> tuple[list[JobView], int]:
    """Return the jobs that a part of --dependency names, and the minutes that follow them."""
    name, plus, minutes = word.partition("+")
    if plus and not re.fullmatch(r"[0-9]{1,6}", minutes):
        raise options.error(f"--dependency: expected minutes behind the +, got `{minutes}`")
    jobs, missing = options.checked(f"--dependency: `{name}` is not an id of a job", state_names.find, handler, name)
    if missing or not jobs:
        raise options.error(f"Job dependency problem: there is no job {name or word}")
    return jobs, int(minutes or 0)


def _on(ids: Sequence[int], kind: str, delay: float = 0.0) -> list[Dependency]:
    return [Dependency(members, kind, delay=delay) for members in to_ranges(ids)]
