"""What a job that came by another batch system's commands has around it: the variables of the shell that
submitted it, and files of its user's choice."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any
from collections.abc import Mapping

from vrm.live.launch.stepping import OF_OTHERS
from vrm.model import Job
from vrm.model.job import Details, Program
from vrm.run.rundir import RunDirectory
from vrm.system.files import read_own, user_name

OURS = ("VRM_", "SLURM_")
"""How the variables begin that vrm sets itself."""


def packed(variables: Mapping[str, str]) -> bytes:
    """Variables as a file keeps them, without those by which a batch system or vrm says something of
    another job."""
    return _packed(tuple(item for item in variables.items() if not item[0].startswith("VRM_")))


@lru_cache(maxsize=64)
def _packed(variables: tuple[tuple[str, str], ...]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in sorted(variables)
                    if not OF_OTHERS.fullmatch(name))


@lru_cache(maxsize=64)
def unpacked(path: Path) -> Mapping[str, str]:
    """The variables that a file keeps, whose content never changes. OSError when it cannot be read."""
    found: dict[str, str] = {}
    for text in read_own(path).split(b"\0"):
        name, equals, value = os.fsdecode(text).partition("=")
        if equals:
            found[name] = value
    return found


YOUNG = 10.0
"""Seconds after its submission until which a job waits for the directory of its output."""

_OWN_PLACE = re.compile(r"%[0-9]{0,2}[jJA]")
"""What makes a directory one of this job, or array, alone."""

_PLACEHOLDER = re.compile(r"%(%|[0-9]{0,2}[A-Za-z])")


def chosen(pattern: str, job: Job, details: Details, host: str, user: str) -> str:
    """The file that a user has named, with what stands for `%j` (the id) and others.

    `%j` and `%J` the id, `%A` that of the array's first job, `%a` the index, `%x` the name, `%u` the user,
    `%N` the first node, `%n`, `%t` and `%s` 0, `%%` a `%`. A number between them is the width of an id.
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
    """The files of a job's output, errors and input, as paths: those that its user has named (errors go where the output
    goes if only that has a name), or those of the run. `directory`: where jobs run that say nothing of it."""
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
    """How a job waits for the directories of its outputs that its user has named (see `LaunchRequest`), `age` seconds
    after it was submitted: clients make them when they know its id."""
    if not payload.output:
        return {}
    folders = os.path.dirname(payload.output), os.path.dirname(payload.errors)
    return {"patience": max(0.0, YOUNG - age), "make": any(_OWN_PLACE.search(each) for each in folders)}


def printed(run: RunDirectory, job: Job, details: Details, host: str) -> tuple[Path, Path]:
    """The files of a job's output and errors, wherever its user wants them."""
    output, errors, _ = files_of(run, job, details, host)
    return Path(output), Path(errors)


def environment(variables: Mapping[str, str], kept: Mapping[str, str], own: Mapping[str, str],
                around: Mapping[str, str]) -> dict[str, str]:
    """A job's variables: those of its launch, without what is `around` the manager alone. `kept` is what
    its user had, `own` what was said of this job. What a launch says in a batch system's words is of this job."""
    return {name: value for name, value in variables.items()
            if name in kept or name in own or around.get(name) != value or name.startswith(OURS)
            or OF_OTHERS.fullmatch(name)}

