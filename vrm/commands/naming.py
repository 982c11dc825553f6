"""Accept job names wherever commands accept job ids."""

from __future__ import annotations

import argparse
from typing import Any
from collections.abc import Sequence

from vrm.commands.shared import CannotRun, run_of

_WORDS = ("all", "failed")


def names_of(run: Any) -> dict[str, list[int]]:
    """Return the job ids for each job name, from the files of the run."""
    from vrm.results.jobs import read_jobs
    from vrm.results.state import current, label, read

    found: dict[str, dict[int, None]] = {}
    try:
        for row in read_jobs(run.jobs) if run.jobs.exists() else ():
            for name in (row.name, f"{row.name}[{row.index}]"):
                found.setdefault(name, {})[row.id] = None
        for job in current(read(run.state))["jobs"] if run.state.exists() else ():
            for name in (job["name"], label(job)):
                found.setdefault(name, {})[job["id"]] = None
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the command itself reports what is wrong with the files
    return {name: sorted(ids) for name, ids in found.items() if name}


def ids_for(arguments: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """Return the words with names replaced by ids; a name of several jobs selects all of them. Ids, ranges, `all` and
    `failed` are kept. Raises CannotRun for any other word."""
    from vrm.model.quantities import fold, numbers

    found: list[str] = []
    names: dict[str, list[int]] = {}
    for word in words:
        try:
            if word not in _WORDS:
                numbers(word)
            found.append(word)
        except ValueError:
            names = names or names_of(run_of(arguments))
            if word not in names:
                raise CannotRun(f"`{word}` is not an id or a range such as 3-7, and no job has this name; "
                                "`vrm queue --all` shows ids and names") from None
            found += [fold([job_id]) for job_id in names[word]]
    return found


def id_for(arguments: argparse.Namespace, word: str, where: str = "") -> int:
    """Return the id of the one job that a word names. Raises CannotRun if no job or several jobs match."""
    if word.isascii() and word.isdigit() and len(word) < 10:
        return int(word)
    from vrm.model.quantities import fold

    ids = names_of(run_of(arguments)).get(word, [])
    if not ids:
        raise CannotRun(f"{where}`{word}` is not an id of a job, such as 7, and no job has this name; "
                        "`vrm queue --all` shows ids and names")
    if len(ids) > 1:
        raise CannotRun(f"{where}{len(ids)} jobs are called `{word}`: {fold(ids)}; give one of these ids")
    return ids[0]
