"""How a job becomes processes: the interface all launchers share, and their registry.

A launcher is one class in one file, registered by name; it turns a placement into an argument
list, an environment and files, and knows how to read what its mpirun says. It starts nothing.
"""

from __future__ import annotations

import importlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional, Protocol, Sequence, Tuple, Union

from vrm.live.topology import Topology, TopologyError, read_topology
from vrm.model import Node, RankSlot
from vrm.scheduling.registry import PolicyError, Registry

PathLike = Union[str, "os.PathLike[str]"]

LAUNCHERS = Registry("launcher")

_BUILT_IN = ("vrm.live.openmpi",)


class LaunchError(Exception):
    """A job, or any job, cannot be launched; the text says why and what to do."""


@dataclass(frozen=True)
class Launch:
    """What starts one job: the arguments, the whole environment, and the files that must stand
    before (path to text)."""

    argv: Tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[Path, str]


@dataclass(frozen=True)
class BindingCheck:
    """Where ranks run against where they should: `state` is ok, mismatch, unchecked (not all
    of them were reported) or unbound (on purpose). `differences` say in words what differs or
    is missing."""

    state: str
    differences: Tuple[str, ...] = ()


class Settings(Protocol):
    """The part of the configuration that launchers read (see `vrm.config.Launcher`)."""

    kind: str
    mpirun: str
    allow_root: bool
    transport: str
    options: Tuple[str, ...]
    environment: Mapping[str, str]


class Launcher(Protocol):
    """What the manager asks of a launcher. `run_id` marks the processes of one run."""

    mpirun: str
    version_text: str
    run_id: str

    @classmethod
    def detect(cls, settings: Settings, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> "Launcher":
        """Find the programs of this launcher; LaunchError when it cannot start jobs here.

        `emulated`: ranks outnumber the cores of this one machine and are not bound.
        `topologies` by node name; `base` is vrm's environment.
        """
        ...

    def command(self, job_id: int, app: PathLike, slots: Sequence[RankSlot],
                nodes: Sequence[Node], rankfile: PathLike, arguments: Sequence[str] = ()
                ) -> Launch:
        """What starts the application on its slots; LaunchError when that cannot be expressed."""
        ...

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        """Compare what was reported in a job's output files with its slots."""
        ...


def make_launcher(settings: Settings, emulated: bool = False,
                  topologies: Optional[Mapping[str, Topology]] = None,
                  base: Optional[Mapping[str, str]] = None) -> Launcher:
    """The launcher that the settings name: a registered one, or a class by dotted path.

    Without `topologies` it is told this machine's. Raises LaunchError when there is no such
    launcher or it cannot start jobs here.
    """
    for module in _BUILT_IN:
        importlib.import_module(module)
    try:
        found = LAUNCHERS.find(settings.kind)
        if topologies is None:
            machine = read_topology()
            topologies = {machine.host: machine}
    except (PolicyError, TopologyError) as error:
        raise LaunchError(str(error)) from error
    launcher: Launcher = found.detect(settings, emulated, topologies,
                                      os.environ if base is None else base)
    return launcher


# -------------------------------------------------------- what applications say of themselves

TAIL = 256 * 1024
"""Bytes read from the end of an output file, however long it is."""

_NUMBER = r"([-+]?[0-9]*\.?[0-9]+(?:[eEdD][-+]?[0-9]+)?)"
_TIME = re.compile(rf"Time in seconds[ \t]*=[ \t]*{_NUMBER}\b")
_VERIFICATION = re.compile(r"Verification[ \t]*[:=][ \t]*([A-Za-z]+(?: [A-Za-z]+)*)")


@dataclass(frozen=True)
class Result:
    """The end of a NAS Parallel Benchmark's output: its own seconds, and the word after
    `Verification` (SUCCESSFUL, UNSUCCESSFUL, NOT PERFORMED); None for what is not there."""

    seconds: Optional[float] = None
    verification: Optional[str] = None


def read_result(output: PathLike, tail: int = TAIL) -> Result:
    """The last result in an output file, of whose end `tail` bytes are read.

    A file that is not there, or cannot be read, has none.
    """
    try:
        with open(output, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            text = file.read(tail).decode(errors="replace")
    except OSError:
        return Result()
    times, verifications = _TIME.findall(text), _VERIFICATION.findall(text)
    seconds = float(re.sub("[dD]", "e", times[-1])) if times else math.nan
    return Result(seconds if math.isfinite(seconds) and seconds >= 0 else None,
                  verifications[-1].upper() if verifications else None)
