"""Paths in a configuration, and the places of a run's files. Commands that contact a manager or print what it has
written need only these places, without the time to check the whole configuration.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from vrm.config.yaml_reader import Document, shown

KEYS = (
    "Version", "Applications", "Scheduling", "Starvation", "Sharing", "Hosts", "Nodes", "Sockets", "Cores",
    "Threads", "Emulate", "NodeClasses", "Licences", "Queues", "Allocation", "Walltime", "Memory", "Output",
    "Grace", "End", "Interrupted", "Retries", "OnStop", "Log", "State", "Directory", "Launcher",
    "Trust", "Replay", "Extensions")
"""The keys of the core at the top level."""

OF_EXTENSIONS = {"Energy": "energy", "PowerCap": "energy", "Forecast": "forecast", "Slurm": "slurm",
                 "Scheduling.Objective": "advice", "NodeClasses.Energy": "energy", "Learning": "learning",
                 "Hosts.Quarantine": "learning"}
"""The keys that vrm's own extensions add, and the extension of each."""

VERSION = r"1(\.\d+)*"
"""The versions of configurations that this vrm reads."""

_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{([^}]*)\})")


class InvalidPath(Exception):
    """A text that is not a path; `hint` is what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def expanded(text: str) -> str:
    """Return the text with a leading ~ and $VARIABLES replaced; `$$` is a dollar sign. Raises InvalidPath."""

    def fill(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        name = match.group(2) or match.group(3)
        value = os.environ.get(name, "")
        if not value:  # an empty value would turn $SCRATCH/log into /log
            raise InvalidPath(f"the variable {shown(match.group())} is not set, or empty",
                              "set it before vrm starts, or write the path out")
        return value

    if text.startswith("~"):
        home = os.path.expanduser(text)
        if home.startswith("~"):
            raise InvalidPath(f"no home directory found for {shown(text.split('/')[0])}", "write the path out")
        text = home
    return _VARIABLE.sub(fill, text)


def absolute(path: str | Path, base: str) -> str:
    """Return the absolute path; relative paths start at `base` ("": the current directory)."""
    return os.path.abspath(os.path.join(base, path))


LOG, CLIENTS_LOG = "logs", "vrm-logs"
"""The default of `Log`, and the default for a program behind `vrm run --`, because workflows often use `logs`
themselves."""


def default_log(base: str, client: bool = False) -> str:
    """Return the default of `Log` for a configuration in the directory `base`: the one of LOG and CLIENTS_LOG that
    has a run, or the later run if both have. If neither has one, `client` decides: it is True for a program behind
    `vrm run --`."""
    begun: dict[str, float] = {}
    for name in (LOG, CLIENTS_LOG):
        with contextlib.suppress(OSError):
            begun[name] = os.stat(os.path.join(base, name, "journal")).st_mtime
    return max(begun, key=begun.__getitem__) if begun else CLIENTS_LOG if client else LOG


class RunPaths(NamedTuple):
    """The places of a run's files, as in `vrm.config.schema.Settings`."""

    log: Path
    state: Path
    directory: Path


def places(path: str | None) -> RunPaths | None:
    """Return the absolute places that a configuration names (path None: the defaults); None if only a check of all
    keys can tell what is wrong with it. Raises ConfigError if it cannot be read."""
    document = Document.read(path) if path is not None else Document.nothing(os.getcwd())
    mapping, base = document.mapping, document.source.directory
    version = mapping.get("Version", "1")
    if (document.problems or not mapping.keys() <= {*KEYS, *OF_EXTENSIONS}
            or not isinstance(version, str) or not re.fullmatch(VERSION, version.strip())):
        return None

    def place(key: str, default: str | Path) -> Path:
        if key not in mapping:
            return Path(absolute(default, base))
        text = mapping[key]
        if not isinstance(text, str) or not text.strip():
            raise InvalidPath(f"{key} is not a path", "")
        return Path(absolute(expanded(text), base))

    try:
        log = place("Log", default_log(base))
        state = place("State", log / "state")
        return RunPaths(log, state, place("Directory", state.parent))
    except InvalidPath:
        return None
