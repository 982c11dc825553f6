"""The environment of a job that was submitted with the commands of another batch system: the variables of the shell
that submitted it, and the files that its user chose."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any
from collections.abc import Mapping

from vrm.live.launch.script_environment import BATCH_VARIABLES
from vrm.model import Job
from vrm.model.job import Details, Program
from vrm.run.rundir import RunDirectory
from vrm.system.files import read_own, user_name

OURS = ("VRM_", "SLURM_")
"""Prefixes of the variables that vrm sets itself."""


def packed(variables: Mapping[str, str]) -> bytes:
    """Return variables in their file format, without those that a batch system or vrm set for another job."""
    return _packed(tuple(item for item in variables.items() if not item[0].startswith("VRM_")))


@lru_cache(maxsize=64)
def _packed(variables: tuple[tuple[str, str], ...]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in sorted(variables)
                    if not BATCH_VARIABLES.fullmatch(name))


@lru_cache(maxsize=64)
def unpacked(path: Path) -> Mapping[str, str]:
    """Return the variables in a file, whose content never changes. Raises OSError if it cannot be read."""
    found: dict[str, str] = {}
    for text in read_own(path).split(b"\0"):
        name, equals, value = os.fsdecode(text).partition("=")
        if equals:
            found[name] = value
    return found


YOUNG = 10.0
"""Seconds after its submission in which a job waits for the directory of its output."""

_OWN_PLACE = re.compile(r"%[0-9]{0,2}[jJA]")
"""Placeholders that make a directory specific to one job or array."""

_PLACEHOLDER = re.compile(r"%(%|[0-9]{0,2}[A-Za-z])")


def chosen(pattern: str, job: Job, details: Details, host: str, user: str) -> str:
    """Return the file name that a user chose, with its placeholders replaced.

    `%j` and `%J`: the id, `%A`: the id of the array's first job, `%a`: the index, `%x`: the name, `%u`: the user,
    `%N`: the first node, `%n` and `%t`: 0, `%s`: batch, `%%`: a `%`. A number between them is the width of an id.
    """
    if "%" not in pattern:
        return pattern

    def value(found: re.Match[str]) -> str:
        said = found[1]
        if said == "%":
            return "%"
        width, letter = said[:-1], said[-1]
        number = {"j": job.id, "J": job.id, "A": details.more.get("array_id") or job.id,
                  "a": 4294967294 if details.index is None else details.index,
                  "n": 0, "t": 0}.get(letter)
        if number is not None:
            return str(number).zfill(int(width or 0))
        return {"x": details.name or job.app, "u": user, "N": host, "s": "batch"}.get(letter, found[0])
    return _PLACEHOLDER.sub(value, pattern)


def files_of(run: RunDirectory, job: Job, details: Details, host: str, directory: str = "") -> tuple[str, str, str]:
    """Return the paths of a job's output, errors and input: those that its user chose (errors go to the output if only
    that has a name), or those of the run. `directory`: the working directory of jobs that do not set one."""
    if not job.payload.output:
        files = run.files(job.app, job.id)
        return files.output, files.errors, ""
    directory = job.payload.directory or directory
    user = user_name(os.geteuid())
    output, errors, given = (
        os.path.join(directory, chosen(pattern, job, details, host, user)) if pattern else ""
        for pattern in (job.payload.output, job.payload.errors, job.payload.input))
    return output, errors or output, given


def patience(payload: Program, age: float) -> dict[str, Any]:
    """Return how a job waits for the directories of the outputs that its user chose (see `LaunchRequest`), `age`
    seconds after it was submitted. It may have to wait because clients create these directories when they know its
    id."""
    if not payload.output:
        return {}
    folders = os.path.dirname(payload.output), os.path.dirname(payload.errors)
    return {"patience": max(0.0, YOUNG - age), "make": any(_OWN_PLACE.search(each) for each in folders)}


def printed(run: RunDirectory, job: Job, details: Details, host: str) -> tuple[Path, Path]:
    """Return the paths of a job's output and errors, wherever its user put them."""
    output, errors, _ = files_of(run, job, details, host)
    return Path(output), Path(errors)


def environment(variables: Mapping[str, str], kept: Mapping[str, str], own: Mapping[str, str],
                around: Mapping[str, str]) -> dict[str, str]:
    """Return a job's variables: those of its launch, without those that only the manager's own environment (`around`)
    has.

    `kept`: the variables of the user who submitted it, `own`: those set for this job. Variables of a launch that are
    named as a batch system names them belong to this job and stay.
    """
    return {name: value for name, value in variables.items()
            if name in kept or name in own or around.get(name) != value or name.startswith(OURS)
            or BATCH_VARIABLES.fullmatch(name)}

