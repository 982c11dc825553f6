"""Checks which files jobs may run: programs of Applications, other programs by path if the configuration allows that,
and scripts."""

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
"""Maximum bytes of a script."""


class WantedProgram(NamedTuple):
    """A program that a job runs: its name, its path if it is not in Applications, whether it is a script, and whether
    its user has sent the script with the job (then no file is checked)."""

    app: str
    file: str = ""
    script: bool = False
    sent: bool = False

    @classmethod
    def of(cls, job: Job) -> list[WantedProgram]:
        """Return the program of this job, or all programs of a coupled job."""
        if job.payload.programs:
            return [cls(each.app, each.file) for each in job.payload.programs]
        return [cls(job.app, job.payload.file, job.payload.script, bool(job.payload.front))]

    @classmethod
    def named(cls, values: Mapping[str, Any]) -> list[WantedProgram]:
        """Return the programs of a job with these values (`vrm.workload.grammar.QueueLine.values`)."""
        return ([cls(each.app, each.file) for each in values.get("components", ())]
                or [cls(values["app"], values.get("file", ""), values.get("script", False))])


def program_fault(known: Applications, wanted: WantedProgram, trust: str) -> str:
    """Return why a job cannot run this program; "" if it can."""
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
    """Return why a program that a job in the journal names must not run; "" if it may run, or if it does not exist at
    the moment."""
    app, file, _, sent = wanted
    path = known.program(app, file)
    if sent or not os.path.lexists(path):
        return ""
    fault = leads_outside(known.path, app, known.programs) if not file else (
        "" if known.any else f"{file} is a path, and Applications.Any is not set")
    return fault or distrust(path, trust)


def read_script(path: Path) -> tuple[bytes, str]:
    """Return the text of a script, and why it is not a valid script ("" if it is)."""
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
    """Return why an application is not inside `directory` (symbolic links are followed); "" if it is, or if it is one
    of `programs`."""
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
    """Return why an application cannot run; "" if it can.

    It must be an executable file inside `directory`, also after symbolic links are followed, or one of `programs`,
    which are elsewhere. A `script` need not be executable, because a copy of it runs.
    """
    outside = leads_outside(directory, app, programs)
    if outside:
        return outside
    key = "Applications.Programs" if app in programs else "Applications.Path"
    return file_fault(programs.get(app, Path(directory) / app), f"build it, or correct {key}", script)


def file_fault(path: Path, mend: str, script: bool = False) -> str:
    """Return why a file cannot run; "" if it can. `mend`: advice if the file does not exist."""
    real = Path(os.path.realpath(path))
    if not real.exists():
        return f"{path} does not exist; {mend}"
    if not real.is_file():
        return f"{path} is not a file"
    if not script and not os.access(real, os.X_OK):
        return f"{path} is not executable (chmod +x it)"
    return ""
