"""Paths as a configuration writes them; and where the files of a run are, for commands that ask a manager or
show what it has written: they need nothing else of the configuration, nor the time to judge all of it.
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
"""The keys at the top level that the core has."""

OF_EXTENSIONS = {"Energy": "energy", "PowerCap": "energy", "Forecast": "forecast", "Slurm": "slurm",
                 "Scheduling.Objective": "advice", "NodeClasses.Energy": "energy", "Learning": "learning",
                 "Hosts.Quarantine": "learning"}
"""The keys that vrm's own extensions add, and the extension of each."""

VERSION = r"1(\.\d+)*"
"""The versions of configurations that this vrm reads."""

_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{([^}]*)\})")


class NoPath(Exception):
    """A text that is not a path; `hint` says what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def expanded(text: str) -> str:
    """The text with a leading ~ and $VARIABLES filled in; `$$` is a dollar sign. NoPath."""

    def fill(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        name = match.group(2) or match.group(3)
        value = os.environ.get(name, "")
        if not value:  # an empty one would turn $SCRATCH/log into /log
            raise NoPath(f"the variable {shown(match.group())} is not set, or empty",
                         "set it before vrm starts, or write the path out")
        return value

    if text.startswith("~"):
        home = os.path.expanduser(text)
        if home.startswith("~"):
            raise NoPath(f"no home directory found for {shown(text.split('/')[0])}", "write the path out")
        text = home
    return _VARIABLE.sub(fill, text)


def absolute(path: str | Path, base: str) -> str:
    """The path as seen from the directory `base`; "" is the current one."""
    return os.path.abspath(os.path.join(base, path))


LOG, CLIENTS_LOG = "logs", "vrm-logs"
"""The default of `Log`, and that for a program behind `vrm run --`, since workflows like to call theirs `logs`."""


def default_log(base: str, client: bool = False) -> str:
    """`Log` where a configuration in the directory `base` does not say it: the one of the two in which there is a run,
    or the later run. `client`: for a program behind `vrm run --`."""
    begun: dict[str, float] = {}
    for name in (LOG, CLIENTS_LOG):
        with contextlib.suppress(OSError):
            begun[name] = os.stat(os.path.join(base, name, "journal")).st_mtime
    return max(begun, key=begun.__getitem__) if begun else CLIENTS_LOG if client else LOG


class RunPaths(NamedTuple):
    """What `vrm.config.schema.Settings` says of the files of a run."""

    log: Path
    state: Path
    directory: Path


def places(path: str | None) -> RunPaths | None:
    """The places that a configuration names, all absolute (None: the defaults); None where only a look at
    all of its keys can say what is wrong with it. ConfigError where it cannot be read."""
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
            raise NoPath(f"{key} is not a path", "")
        return Path(absolute(expanded(text), base))

    try:
        log = place("Log", default_log(base))
        state = place("State", log / "state")
        return RunPaths(log, state, place("Directory", state.parent))
    except NoPath:
        return None
