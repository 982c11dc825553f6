"""The interface of all launchers, which turn a job into processes, and their registry.

A launcher is one class in one file, registered by name. It turns a placement into an argument list, an environment and
files, and can read the output of its mpirun. It starts nothing itself.
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
"""Line that the supervisor of a job on another node prints (`vrm.live.spawn.supervisor`), and the program that starts
the daemons of an mpirun (`vrm.live.relay.rsh_agent`)."""


class LaunchError(Exception):
    """A job, or every job, cannot be launched; the text says why and what to do."""


Found = TypeVar("Found")


class LauncherNotFound(LaunchError):
    """The program of a launcher is not installed here; a launcher of another kind may work."""


@dataclass(frozen=True)
class Launch:
    """The data to start one job: the arguments, the whole environment, the files that must exist before (path to
    text), and the CPUs to which the job is bound before it starts (numbers of the operating system; None: the
    launcher's program binds it). `host`: the node on which it is started, if that is not this machine and the launcher
    cannot reach it by itself. `reports`: marks of the lines in which the launcher's program reports bindings on
    standard error, one line per rank: a beginning, and two texts after it. These lines are kept out of the job's
    output. `daemons`: the program starts daemons on other nodes through the launcher's `rsh_agent`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[Path, str]
    affinity: tuple[int, ...] | None = None
    host: str = ""
    reports: tuple[tuple[bytes, bytes, bytes], ...] = ()
    daemons: bool = False


class AppContext(NamedTuple):
    """One program of a job, with its arguments, the number of its ranks and the cores of each. The rank numbers of a
    job run through all of its programs."""

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
    """A launcher as a run uses it: a subclass in a file of its own, with `@LAUNCHERS.register`.

    | attribute | meaning |
    |---|---|
    | `kind` | its name in the configuration |
    | `automatic` | whether `Launcher.Kind: auto` tries it, in the order of registration |
    | `rank_variables` | the variables that show the rank in a process's environment; none: bindings are not checked on the nodes. This is not one list for all launchers: under Slurm the daemons of mpirun are ranks of a step, too |
    | `several_nodes` | whether a job may have more than one node |
    | `relayed` | whether vrm itself starts programs on other nodes, because the launcher cannot |
    | `complaints` | pattern for the beginnings of lines in which its program reports that a rank failed |
    | `mpirun`, `version_text` | its program, and the name and version that it reports |
    | `run_id` | marks the processes of one run |
    | `rsh_agent` | the path of a program that replaces ssh for daemons on other nodes (`vrm.live.relay.rsh_agent`); "": its program starts them by itself |
    | `in_steps` | what starts MPI programs within scripts: openmpi4, openmpi5, mpich, intel or srun; "": without MPI |
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
        """Find the programs of this launcher; raises LaunchError if it cannot start jobs here.

        `emulated`: ranks outnumber the cores of this one machine and are not bound. `topologies` by node name; `base`
        is vrm's environment.
        """
        raise NotImplementedError("its method `detect` is missing")

    def command(self, job_id: int, app: PathLike, slots: Sequence[RankSlot],
                nodes: Sequence[Node], rankfile: PathLike, arguments: Sequence[str] = (),
                variables: Mapping[str, str] | None = None) -> Launch:
        """Return how to start the application on its slots; raises LaunchError if the launcher cannot do that.

        `variables` are the job's own, which all of its ranks get.
        """
        return self.together(job_id, [AppContext(app, arguments, len(slots))], slots, nodes, rankfile, variables)

    def together(self, job_id: int, contexts: Sequence[AppContext], slots: Sequence[RankSlot], nodes: Sequence[Node],
                 rankfile: PathLike, variables: Mapping[str, str] | None = None) -> Launch:
        """Return how to start the programs of a coupled job on their slots, as one MPI_COMM_WORLD; raises LaunchError
        if the launcher can start only one program."""
        raise LaunchError(f"job {job_id} has {len(contexts)} programs, and Launcher.Kind: {self.kind} starts one; set "
                          "Kind: openmpi, hydra or srun")

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        """Compare the bindings that were reported in a job's output files with its slots."""
        raise NotImplementedError("its method `check_bindings` is missing")

    def exit_code(self, code: int, output: PathLike, errors: PathLike) -> int:
        """Return the exit code that a shell would show for the rank that failed (128 plus the number of the signal
        that killed it), from the exit code and the output of the launcher's program."""
        return code

    def lost_nodes(self, errors: PathLike, output: PathLike | None = None) -> tuple[str, ...]:
        """Return the nodes that a job has lost, according to the output of the launcher's program."""
        return ()

    def failed_start(self, code: int, errors: PathLike, output: PathLike) -> str:
        """Return why the launcher's program ended with `code` before it started a rank, from the job's files, if
        another attempt may work; "" if a rank may have run, or another attempt would end in the same way."""
        return ""

    def without_launcher_text(self, line: str) -> str:
        """Return a line of a job's output without what the launcher's program adds to it."""
        return line


def disconnected(errors: PathLike) -> tuple[str, ...]:
    """Return the nodes to which vrm's own connection was lost while the job with this error file ran there."""
    return tuple(dict.fromkeys(_DISCONNECTED.findall(tail(errors))))


def _complete(launcher: Any) -> Launcher:
    """Return a user's own launcher that is not a subclass, with defaults for the attributes that it lacks."""
    if not isinstance(launcher, Launcher):
        for name, default in vars(Launcher).items():
            if not name.startswith("__") and not hasattr(launcher, name):
                setattr(launcher, name, default.__get__(launcher) if callable(default) else default)
    found: Launcher = launcher
    return found


def make_launcher(settings: LauncherConfiguration, emulated: bool = False,
                  topologies: Mapping[str, Topology] | None = None,
                  base: Mapping[str, str] | None = None) -> Launcher:
    """Return the launcher that the settings name: a registered one, a class by dotted path, or with `auto` the first
    `automatic` one whose program is installed here.

    Without `topologies` it gets that of this machine. Raises LaunchError if there is no such launcher or it cannot
    start jobs here.
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
    complaints: list[LauncherNotFound] = []
    for found in kinds:
        try:
            return _complete(found.detect(settings, emulated, topologies,
                                          os.environ if base is None else base))
        except LauncherNotFound as error:
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
    raise LauncherNotFound("no launcher of MPI programs is here (for programs without MPI set "
                           "Launcher: {Kind: direct}):" + "".join(
                        f"\n  {kind.kind}: {error}" for kind, error in zip(kinds, complaints)))


def synthetic(topologies: Mapping[str, Topology], slots: Sequence[RankSlot],
              nodes: Sequence[Node]) -> bool:
    """Return whether a slot is on a machine whose cores come from HWLOC_SYNTHETIC: CPUs with these numbers may not
    exist, so nothing is bound."""
    names = {nodes[slot.node].name for slot in slots}
    return any(name in topologies and topologies[name].synthetic for name in names)


SYNTHETIC_CHECK = BindingCheck("unchecked", ("the cores are those of HWLOC_SYNTHETIC",))
"""The result of a binding check if `synthetic` is true."""


VERSION_SECONDS = 30.0
"""Seconds that a launcher's program may take to print its version, including loading from a slow shared file system."""


def find_program(configured: str, env: Mapping[str, str], candidates: Iterable[str], read: Callable[[str], Found],
                 none: str, mend: str) -> tuple[str, Found]:
    """Return the path of a launcher's program, and the result of `read` for it. With `auto` this is the first
    candidate that `read` accepts; otherwise the `configured` one, a name to look up on PATH or a path. Raises
    LaunchError with everything that was wrong; `none` is the text if nothing was found."""
    if configured != "auto":
        found = shutil.which(configured, path=env.get("PATH", os.defpath))
        if not found:
            raise LauncherNotFound(f"Launcher.Mpirun: {configured} is not an executable program"
                                   + ("" if os.sep in configured else " on PATH") + f"; {mend}")
        return found, read(found)
    complaints = []
    for candidate in candidates:
        try:
            return candidate, read(candidate)
        except LaunchError as error:
            complaints.append(str(error))
    raise LauncherNotFound("; ".join(complaints) or f"{none}; {mend}")


def programs_in(folders: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the programs with these names in folders, each file once."""
    seen = set()
    for folder in filter(None, folders):
        for name in names:
            found = shutil.which(name, path=folder)
            if found and os.path.realpath(found) not in seen:
                seen.add(os.path.realpath(found))
                yield found


def ask_version(program: str, env: Mapping[str, str], mend: str,
                seconds: float = VERSION_SECONDS) -> str:
    """Return what a program prints for --version; raises LaunchError if it cannot be run or does not answer."""
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
    """Return the CPU numbers of a slot's cores on its node, all hardware threads of each core.

    Raises LaunchError if they are unknown: a wrong number would be another job's core.
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
"""Bytes read from the start of a file with reported bindings: a fixed part (`HEAD`) and a part per rank."""


def head(path: PathLike, ranks: int) -> str:
    """Return the start of a file, which may be very large; "" if it cannot be read."""
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            return file.read(HEAD + ranks * HEAD_OF_RANK).decode(errors="replace")
    except OSError:
        return ""


# -------------------------------------------------------- results that applications print

TAIL = 256 * 1024
"""Bytes read from the end of an output file of any length."""

_NUMBER = r"([-+]?[0-9]*\.?[0-9]+(?:[eEdD][-+]?[0-9]+)?)"
_TIME = re.compile(rf"Time in seconds[ \t]*=[ \t]*{_NUMBER}\b")
_VERIFICATION = re.compile(r"Verification[ \t]*[:=][ \t]*([A-Za-z]+(?: [A-Za-z]+)*)")


@dataclass(frozen=True)
class NpbResult:
    """The end of a NAS Parallel Benchmark's output: the seconds that it measured, and the word after `Verification`
    (SUCCESSFUL, UNSUCCESSFUL, NOT PERFORMED); None for a part that is missing."""

    seconds: float | None = None
    verification: str | None = None


_NO_RESULT = NpbResult()


def tail(path: PathLike, size: int = TAIL) -> str:
    """Return the last `size` bytes of a file as text; "" if it cannot be read."""
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
    """Return the last result in an output file; only its last `size` bytes are read.

    If the file is missing or cannot be read, the result is empty.
    """
    text = tail(output, size)
    if not text:
        return _NO_RESULT
    times, verifications = _TIME.findall(text), _VERIFICATION.findall(text)
    seconds = float(re.sub("[dD]", "e", times[-1])) if times else math.nan
    return NpbResult(seconds if math.isfinite(seconds) and seconds >= 0 else None,
                  verifications[-1].upper() if verifications else None)
