"""How a job becomes processes: the interface all launchers share, and their registry.

A launcher is one class in one file, registered by name; it turns a placement into an argument
list, an environment and files, and knows how to read what its mpirun says. It starts nothing.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, Union
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology, TopologyError, read_topology
from vrm.model import Node, RankSlot
from vrm.scheduling.registry import PolicyError, Registry, failure
from vrm.system.files import open_own

PathLike = Union[str, "os.PathLike[str]"]

LAUNCHERS = Registry("launcher", "vrm.launchers")

_DISCONNECTED = re.compile(r"^vrm: the connection to (\S+) was lost$", re.MULTILINE)
"""What the supervisor of a job on another node says (`vrm.live.spawn.supervisor`), and what starts the daemons of an
mpirun (`vrm.live.relay.rsh_agent`)."""


class LaunchError(Exception):
    """A job, or any job, cannot be launched; the text says why and what to do."""


Found = TypeVar("Found")


class NoProgram(LaunchError):
    """The program of a launcher is not here; a launcher of another kind may do."""


@dataclass(frozen=True)
class Launch:
    """What starts one job: the arguments, the whole environment, the files that must stand
    before (path to text), and the CPUs to which it is bound before it starts (numbers of the
    operating system; None leaves it to the launcher's program). `host`: the node on which it is
    started, where that is not this machine and the launcher has no way of its own. `reports`: how
    the lines are known in which the launcher's program reports bindings on standard error, one for
    each rank: a beginning, and two texts behind it. They are kept out of the job's output. `daemons`: the program
    starts daemons on other nodes through the launcher's `rsh_agent`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[Path, str]
    affinity: tuple[int, ...] | None = None
    host: str = ""
    reports: tuple[tuple[bytes, bytes, bytes], ...] = ()
    daemons: bool = False


class AppContext(NamedTuple):
    """One program of a job, with its arguments, the number of its ranks and the cores of each. The ranks of a job's
    programs are numbered through."""

    program: PathLike
    arguments: Sequence[str]
    ranks: int
    cores: int = 1


class LauncherConfiguration(Protocol):
    """The part of the configuration that launchers read (see `vrm.config.schema.LauncherSettings`)."""

    @property
    def kind(self) -> str: ...
    @property
    def mpirun(self) -> str: ...
    @property
    def allow_root(self) -> bool: ...
    @property
    def transport(self) -> str: ...
    @property
    def options(self) -> tuple[str, ...]: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def stamp(self) -> bool: ...


class Launcher:
    """What a run asks of a launcher: a subclass in a file of its own, with `@LAUNCHERS.register`.

    | attribute | what it is |
    |---|---|
    | `kind` | its name in the configuration |
    | `automatic` | whether `Launcher.Kind: auto` looks for it, in the order of registration |
    | `rank_variables` | what shows the rank in a process's environment; none: bindings are not looked at on the nodes. Not one list for all: under Slurm the daemons of mpirun are ranks of a step, too |
    | `several_nodes` | whether a job may have more than one node |
    | `relayed` | whether vrm itself starts programs on other nodes, as the launcher has no way of its own |
    | `complaints` | pattern of the beginnings of lines in which its program says that a rank failed |
    | `mpirun`, `version_text` | its program, and what that calls itself |
    | `run_id` | marks the processes of one run |
    | `rsh_agent` | the path of a program that takes the place of ssh for daemons on other nodes (`vrm.live.relay.rsh_agent`); "": they are started as its program does by itself |
    | `in_steps` | what starts MPI programs within scripts: openmpi4, openmpi5, mpich, intel or srun; none: without MPI |
    """

    kind = ""
    automatic = False
    rank_variables: tuple[str, ...] = ()
    several_nodes = True
    relayed = False
    complaints = ""
    mpirun = ""
    version_text = ""
    run_id = ""
    rsh_agent = ""
    in_steps = ""

    @classmethod
    def detect(cls, settings: LauncherConfiguration, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> Launcher:
        """Find the programs of this launcher; LaunchError when it cannot start jobs here.

        `emulated`: ranks outnumber the cores of this one machine and are not bound.
        `topologies` by node name; `base` is vrm's environment.
        """
        raise NotImplementedError

    def command(self, job_id: int, app: PathLike, slots: Sequence[RankSlot],
                nodes: Sequence[Node], rankfile: PathLike, arguments: Sequence[str] = (),
                variables: Mapping[str, str] | None = None) -> Launch:
        """What starts the application on its slots; LaunchError when that cannot be expressed.

        `variables` are the job's own, which all of its ranks get.
        """
        return self.together(job_id, [AppContext(app, arguments, len(slots))], slots, nodes, rankfile, variables)

    def together(self, job_id: int, contexts: Sequence[AppContext], slots: Sequence[RankSlot], nodes: Sequence[Node],
                 rankfile: PathLike, variables: Mapping[str, str] | None = None) -> Launch:
        """What starts the programs of a coupled job on their slots, as one MPI_COMM_WORLD; LaunchError where the
        launcher starts one program only."""
        raise LaunchError(f"job {job_id} has {len(contexts)} programs, and Launcher.Kind: {self.kind} starts one; set "
                          "Kind: openmpi, hydra or srun")

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        """Compare what was reported in a job's output files with its slots."""
        raise NotImplementedError

    def exit_code(self, code: int, output: PathLike, errors: PathLike) -> int:
        """What a shell would show for the rank that failed (128 and the number of the signal
        that killed it), from what the launcher's program returned and said in a job's files."""
        return code

    def lost_nodes(self, errors: PathLike, output: PathLike | None = None) -> tuple[str, ...]:
        """The nodes that a job has lost by what the launcher's program says."""
        return ()

    def failed_start(self, code: int, errors: PathLike, output: PathLike) -> str:
        """Why the launcher's program ended with `code` before it started a rank, by its own files, and may be
        tried again; "" where a rank may have run, or another try would end alike."""
        return ""

    def own_words(self, line: str) -> str:
        """A line of a job's output without what the launcher's program adds to it."""
        return line


def disconnected(errors: PathLike) -> tuple[str, ...]:
    """The nodes to which vrm's own connection was lost while the job with this file of errors ran there."""
    return tuple(dict.fromkeys(_DISCONNECTED.findall(tail(errors))))


def _complete(launcher: Any) -> Launcher:
    """A user's own launcher that is not a subclass, with the defaults of what it does not have."""
    if not isinstance(launcher, Launcher):
        for name, default in vars(Launcher).items():
            if not name.startswith("__") and not hasattr(launcher, name):
                setattr(launcher, name, default.__get__(launcher) if callable(default) else default)
    found: Launcher = launcher
    return found


def make_launcher(settings: LauncherConfiguration, emulated: bool = False,
                  topologies: Mapping[str, Topology] | None = None,
                  base: Mapping[str, str] | None = None) -> Launcher:
    """The launcher that the settings name: a registered one, a class by dotted path, or with
    `auto` the first of those that are `automatic` whose program is here.

    Without `topologies` it is told this machine's. Raises LaunchError when there is no such
    launcher or it cannot start jobs here.
    """
    automatic = settings.kind.strip().lower() == "auto"
    try:
        kinds = ([kind for kind in map(LAUNCHERS.get, LAUNCHERS.names) if kind.automatic] if automatic
                 else [LAUNCHERS.find(settings.kind)])
        if topologies is None:
            machine = read_topology()
            topologies = {machine.host: machine}
    except (PolicyError, TopologyError) as error:
        raise LaunchError(str(error)) from error
    complaints: list[NoProgram] = []
    for found in kinds:
        try:
            return _complete(found.detect(settings, emulated, topologies,
                                          os.environ if base is None else base))
        except NoProgram as error:
            complaints.append(error)
        except LaunchError:
            raise
        except Exception as error:
            if LAUNCHERS.get(settings.kind) is not None or automatic:
                raise
            raise LaunchError(f"Launcher.Kind: {failure(settings.kind, error)}; wanted is a class "
                              "with the methods of a launcher (see vrm/live/launch/base.py)"
                              ) from error
    if len(complaints) == 1:
        raise complaints[0]
    raise NoProgram("no launcher of MPI programs is here (for programs without MPI set "
                    "Launcher: {Kind: direct}):" + "".join(
                        f"\n  {kind.kind}: {error}" for kind, error in zip(kinds, complaints)))


def synthetic(topologies: Mapping[str, Topology], slots: Sequence[RankSlot],
              nodes: Sequence[Node]) -> bool:
    """Whether a slot is on a machine whose cores HWLOC_SYNTHETIC has made up: CPUs of these
    numbers may not be there, so nothing is bound."""
    names = {nodes[slot.node].name for slot in slots}
    return any(name in topologies and topologies[name].synthetic for name in names)


MADE_UP = BindingCheck("unchecked", ("the cores are those of HWLOC_SYNTHETIC",))
"""The check of bindings where `synthetic` is true."""


VERSION_SECONDS = 30.0
"""Seconds that a launcher's program may take to tell its version, from a slow shared file system
too."""


def find_program(configured: str, env: Mapping[str, str], candidates: Iterable[str], read: Callable[[str], Found],
                 none: str, mend: str) -> tuple[str, Found]:
    """The path of a launcher's program, and what `read` gives of it: the first of the candidates that it knows
    (`auto`), or what is `configured`, a name to look up on PATH or a path. Raises LaunchError with all that was found
    wrong; `none`: nothing was found."""
    if configured != "auto":
        found = shutil.which(configured, path=env.get("PATH", os.defpath))
        if not found:
            raise NoProgram(f"Launcher.Mpirun: {configured} is not an executable program"
                            + ("" if os.sep in configured else " on PATH") + f"; {mend}")
        return found, read(found)
    complaints = []
    for candidate in candidates:
        try:
            return candidate, read(candidate)
        except LaunchError as error:
            complaints.append(str(error))
    raise NoProgram("; ".join(complaints) or f"{none}; {mend}")


def programs_in(folders: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    """The programs of these names in folders, each file once."""
    seen = set()
    for folder in filter(None, folders):
        for name in names:
            found = shutil.which(name, path=folder)
            if found and os.path.realpath(found) not in seen:
                seen.add(os.path.realpath(found))
                yield found


def ask_version(program: str, env: Mapping[str, str], mend: str,
                seconds: float = VERSION_SECONDS) -> str:
    """What a program prints when it is asked for its version; LaunchError when it cannot be run
    or does not answer."""
    try:
        done = subprocess.run([program, "--version"], env=dict(env), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
                              check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program} --version did not answer within {seconds:g} s; {mend}"
                          ) from None
    except OSError as error:
        raise LaunchError(f"{program} cannot be run: {error.strerror}; {mend}") from error
    return done.stdout.decode(errors="replace")


def slot_cpus(topologies: Mapping[str, Topology], slot: RankSlot, node: Node) -> list[int]:
    """The CPU numbers of a slot's cores on its node, all hardware threads of each core.

    Raises LaunchError when they are not known: a wrong number is another job's core.
    """
    topology = topologies.get(node.name)
    if topology is None:
        raise LaunchError(f"rank {slot.rank}: the CPU numbers of {node.name} are not known, so "
                          "nothing can be bound there")
    try:
        return [cpu for core in slot.cores for cpu in topology.core(slot.socket, core).cpus]
    except IndexError:
        raise LaunchError(f"rank {slot.rank}: {topology.host} has no socket {slot.socket} with "
                          f"core {max(slot.cores)} that this process may use") from None


HEAD = 1024 * 1024
HEAD_OF_RANK = 4096
"""Bytes read from the start of a file with reported bindings: a fixed part and one per rank."""


def head(path: PathLike, ranks: int) -> str:
    """The start of a file that may be huge, or not there."""
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            return file.read(HEAD + ranks * HEAD_OF_RANK).decode(errors="replace")
    except OSError:
        return ""


# -------------------------------------------------------- what applications say of themselves

TAIL = 256 * 1024
"""Bytes read from the end of an output file, however long it is."""

_NUMBER = r"([-+]?[0-9]*\.?[0-9]+(?:[eEdD][-+]?[0-9]+)?)"
_TIME = re.compile(rf"Time in seconds[ \t]*=[ \t]*{_NUMBER}\b")
_VERIFICATION = re.compile(r"Verification[ \t]*[:=][ \t]*([A-Za-z]+(?: [A-Za-z]+)*)")


@dataclass(frozen=True)
class NpbResult:
    """The end of a NAS Parallel Benchmark's output: its own seconds, and the word after
    `Verification` (SUCCESSFUL, UNSUCCESSFUL, NOT PERFORMED); None for what is not there."""

    seconds: float | None = None
    verification: str | None = None


_NO_RESULT = NpbResult()


def tail(path: PathLike, size: int = TAIL) -> str:
    """The end of a file, `size` bytes of it; "" when it cannot be read."""
    try:
        if not os.stat(path).st_size:
            return ""
        handle = open_own(path, os.O_RDONLY)
        try:
            start = max(0, os.fstat(handle).st_size - size)
            return os.pread(handle, size, start).decode(errors="replace")
        finally:
            os.close(handle)
    except OSError:
        return ""


def read_result(output: PathLike, size: int = TAIL) -> NpbResult:
    """The last result in an output file, of whose end `size` bytes are read.

    A file that is not there, or cannot be read, has none.
    """
    text = tail(output, size)
    if not text:
        return _NO_RESULT
    times, verifications = _TIME.findall(text), _VERIFICATION.findall(text)
    seconds = float(re.sub("[dD]", "e", times[-1])) if times else math.nan
    return NpbResult(seconds if math.isfinite(seconds) and seconds >= 0 else None,
                  verifications[-1].upper() if verifications else None)
