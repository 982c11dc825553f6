"""Which files jobs may run: programs of Applications, others by their paths where the configuration lets
them, and scripts."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from collections.abc import Mapping

from vrm.config.schema import Applications
from vrm.model import Job
from vrm.system.files import read_regular
from vrm.system.trust import distrust

LONGEST_SCRIPT = 4 << 20
"""Bytes of a script."""


class WantedProgram(NamedTuple):
    """What a job runs: the name, the path where it is none of Applications, whether it is a script, and
    whether its user has sent that: then nothing else is read."""

    app: str
    file: str = ""
    script: bool = False
    sent: bool = False

    @classmethod
    def of(cls, job: Job) -> list[WantedProgram]:
        """What this job runs: one program, or those of a coupled job."""
        if job.payload.programs:
            return [cls(each.app, each.file) for each in job.payload.programs]
        return [cls(job.app, job.payload.file, job.payload.script, bool(job.payload.front))]

    @classmethod
    def named(cls, values: Mapping[str, Any]) -> list[WantedProgram]:
        """What a job of these values runs (`vrm.workload.grammar.QueueLine.values`)."""
        return ([cls(each.app, each.file) for each in values.get("components", ())]
                or [cls(values["app"], values.get("file", ""), values.get("script", False))])


def program_fault(known: Applications, wanted: WantedProgram, trust: str) -> str:
    """Why a job cannot run this, or "" when it can."""
    app, file, script, sent = wanted
    if sent:
        return ""
    path = known.program(app, file)
    if not file:
        fault = application_fault(known.path, app, known.programs, script)
    elif known.any:
        fault = file_fault(path, "is the path right?", script)
    else:
        fault = (f"{file} is a path, and jobs may name programs of Applications.Path ({known.path}) only; "
                 "write Applications: {Any: true} to allow any")
    return fault or distrust(path, trust) or (read_script(path)[1] if script else "")


def foreign(known: Applications, wanted: WantedProgram, trust: str) -> str:
    """Why what a job of a journal runs is not to be run; "" when it may be, or is not there at the
    moment."""
    app, file, _, sent = wanted
    path = known.program(app, file)
    if sent or not os.path.lexists(path):
        return ""
    fault = leads_outside(known.path, app, known.programs) if not file else (
        "" if known.any else f"{file} is a path, and Applications.Any is not set")
    return fault or distrust(path, trust)


def read_script(path: Path) -> tuple[bytes, str]:
    """The text of a script, and why it is none."""
    try:
        text = read_regular(path, LONGEST_SCRIPT)
    except OSError as error:
        return b"", f"{path} cannot be read: {error.strerror}"
    first = text.partition(b"\n")[0]
    if not first.startswith(b"#!"):
        return text, (f"{path} is not a script: its first line must name its interpreter, such as #!/bin/bash (a program "
                      "needs no script=1)")
    if first.endswith(b"\r"):
        return text, f"{path} has DOS line ends, with which no script runs; remove them (dos2unix)"
    return text, ""


def leads_outside(directory: Path, app: str, programs: Mapping[str, Path] = MappingProxyType({})
                  ) -> str:
    """Why an application is none inside `directory`, also after symbolic links; "" when it is, or
    is one of `programs`."""
    if app in programs:
        return ""
    inside = Path(os.path.realpath(directory))
    real = Path(os.path.realpath(Path(directory) / app))
    if os.sep in app or app in ("", ".", "..") or inside not in real.parents:
        named = f"; to run it, name it in the configuration, under Applications: Programs: {{{app}: " \
                f"{real}}}" if os.sep not in app and real.is_file() else ""
        return f"{app} points outside {directory} (Applications.Path){named}"
    return ""


def application_fault(directory: Path, app: str,
                      programs: Mapping[str, Path] = MappingProxyType({}), script: bool = False) -> str:
    """Why an application can't be run, or "" when it can.

    It must be an executable file inside `directory`, also after symbolic links, or one of
    `programs`, which have files elsewhere. A `script` need not be executable: a copy of it runs.
    """
    outside = leads_outside(directory, app, programs)
    if outside:
        return outside
    key = "Applications.Programs" if app in programs else "Applications.Path"
    return file_fault(programs.get(app, Path(directory) / app), f"build it, or correct {key}", script)


def file_fault(path: Path, mend: str, script: bool = False) -> str:
    """Why a file can't be run, or "" when it can; `mend`: what helps where it is not there."""
    real = Path(os.path.realpath(path))
    if not real.exists():
        return f"{path} does not exist; {mend}"
    if not real.is_file():
        return f"{path} is not a file"
    if not script and not os.access(real, os.X_OK):
        return f"{path} is not executable (chmod +x it)"
    return ""
