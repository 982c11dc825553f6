"""OpenPBS, PBS Professional and Torque: nodes from `PBS_NODEFILE`, a line for each process. The cores
of each and the end are from `qstat -f`; else the lines of a host, `NCPUS` or `PBS_NUM_PPN`, whichever is
most, and `PBS_WALLTIME` from the start of the job's script. GPUs and memory are `ngpus` and `mem` of
`exec_vnode`, or the lines of `PBS_GPUFILE` (Torque).
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from pathlib import Path
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.live.batch.base import (MEND, AllocationError, BatchJob, BatchSystem, Environment, NodeShare, Question,
                                 Wrapper, WrapperError, counted, read_text, slots_of_lines, whole)
from vrm.model.forms.hosts import HOST
from vrm.model.quantities import PBS_MEMORY, clock, memory_bytes, of_parts
from vrm.system.printing.moments import moment_of


class PBS(BatchSystem):
    """All that have qsub and PBS_NODEFILE."""

    name = "pbs"
    title = "PBS"
    signs = ("PBS_NODEFILE", "PBS_JOBID")
    ids = ("PBS_JOBID",)
    kill_delay = 10.0  # kill_delay of a queue
    openmpi_overlooks = ({"OMPI_MCA_ras": "^tm", "OMPI_MCA_plm": "rsh"},
                         {"PRTE_MCA_ras": "^pbs,tm", "PRTE_MCA_plm": "ssh"})
    submit = "qsub"
    settings_variable = "PBS_CONF_FILE"
    settings_files = ("/etc/pbs.conf", "/var/spool/torque/server_name", "/etc/torque/server_name")
    directive = "PBS"
    ask_whole = "qsub -l select=N:ncpus={cores}"
    script_help = "for qsub (PBS Pro, OpenPBS)"

    def hosts(self, env: Environment) -> dict[str, int]:
        """Those of the file of nodes."""
        return pbs_hosts(env)

    def questions(self, job: str) -> Sequence[Question]:
        """qstat knows all."""
        return ((("qstat", "-f", job), parse_qstat),)

    def own_end(self, env: Environment) -> float | None:
        """From the start of the job's script on."""
        length = duration(env.get("PBS_WALLTIME", ""))
        begun = script_start()
        return begun + length if length and begun is not None else None

    def granted(self, answer: BatchJob, hosts: Mapping[str, int], run: Callable[[Sequence[str]], str]
                ) -> dict[str, int]:
        """qstat names vnodes."""
        granted: dict[str, int] = Counter()
        places = _places(answer.cores, hosts, run)
        for name, count in answer.cores.items():
            granted[places[name]] += count
        return {host: granted[host] for host in hosts if granted[host]}

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """Those of a host's vnodes together. Where one has GPUs, the others have as many as they say."""
        if not answer.shares:
            return _of_gpu_file(env, hosts)
        granted: dict[str, NodeShare] = {}
        places = _places(answer.shares, hosts, run)
        for name, share in answer.shares.items():
            granted[places[name]] = granted.get(places[name], NodeShare()) + share
        counted = any(share.gpus is not None for share in granted.values())
        return {host: NodeShare(share.memory, share.gpus or 0 if counted else None)
                for host, share in granted.items() if host in hosts}

    def attach_command(self, env: Environment) -> tuple[str, ...]:
        """pbs_attach; none where PBS has no such program, as Torque."""
        job = env.get("PBS_JOBID", "")
        # The id becomes a word of a command line: it must look like one.
        if not env.get("PBS_NODEFILE") or not re.fullmatch(r"[A-Za-z0-9][\w.\[\]-]*", job):
            return ()
        places = [env.get("PATH", os.defpath)]
        if env.get("PBS_EXEC"):
            places.append(os.path.join(env["PBS_EXEC"], "bin"))
        try:
            text = Path(env.get("PBS_CONF_FILE", "/etc/pbs.conf")).read_text(errors="replace")
            places += [os.path.join(place, "bin")
                       for place in re.findall(r"^PBS_EXEC=(\S+)", text, re.MULTILINE)]
        except OSError:
            pass  # no PBS here, or one that is set up otherwise
        found = shutil.which("pbs_attach", path=os.pathsep.join(places))
        return (os.path.abspath(found), "-j", job) if found else ()

    def openmpi_slots(self, env: Environment) -> Mapping[str, int] | None:
        """Open MPI counts a slot for each line of the file of nodes."""
        return slots_of_lines(env, "PBS_NODEFILE") if "PBS_JOBID" in env else None

    def check_script(self, wrapper: Wrapper) -> None:
        """Whether a warning is wished for, which PBS does not send."""
        if wrapper.warning is not None:
            raise WrapperError("PBS sends no warnings, vrm looks at the clock itself: leave "
                               "--signal out, and set "
                               f"End: {{Margin: {wrapper.warning}}} in the configuration")

    def script_lines(self, wrapper: Wrapper) -> list[str]:
        """Options of qsub."""
        assert wrapper.cores is not None
        chunk = (f"select={wrapper.nodes}:ncpus={wrapper.cores}:mpiprocs={wrapper.cores}"
                 ":ompthreads=1")
        ask = [f"-N {wrapper.name[:15]}",
               "# A chunk for every node, with a slot for a rank on every core"
               + ("; memory: of a core, times the cores." if wrapper.memory else ".")]
        if wrapper.memory is not None:
            chunk += f":mem={wrapper.memory * wrapper.cores}mb"
        ask += [f"-l {chunk}",
                "# Each chunk on a node of its own" + (", and no jobs of others on them."
                                                       if wrapper.exclusive else "."),
                f"-l place=scatter{':excl' if wrapper.exclusive else ''}",
                f"-l walltime={clock(wrapper.walltime)}", "-S /bin/bash", "-j oe"]
        if wrapper.account:
            ask.append(f"-A {wrapper.account}")
        if wrapper.queue:
            ask.append(f"-q {wrapper.queue}")
        return ask

    def script_start(self, wrapper: Wrapper) -> list[str]:
        """PBS starts in the home directory and shows the output at the end."""
        return ['cd "$PBS_O_WORKDIR" || exit 2',
                "# PBS keeps the output until the end; this file can be read while vrm runs.",
                "# Added to, since PBS runs this script again after qrerun or preemption.",
                f'exec >>"{wrapper.name}-${{PBS_JOBID%%.*}}.out" 2>&1',
                "# PBS sends no warning: vrm asks qstat for the end, and takes this if it fails.",
                f"export PBS_WALLTIME=${{PBS_WALLTIME:-{wrapper.walltime}}}"]

    def chain(self, file: str, rest: str) -> list[str]:
        """Each job waits for the end of the one before."""
        return [f"id=$(qsub {file})",
                f"for i in {rest}; do id=$(qsub -W depend=afterany:$id {file}); done"]


def pbs_hosts(env: Mapping[str, str]) -> dict[str, int]:
    """The nodes of a PBS job, with the cores that the environment lets suppose on each."""
    path = env.get("PBS_NODEFILE")
    if not path:
        raise AllocationError(f"PBS_NODEFILE: is not set in this PBS job; {MEND}")
    lines = read_text(path, "PBS_NODEFILE").split()
    most = max(whole(env, name) for name in ("NCPUS", "PBS_NUM_PPN"))
    return {host: max(times, most)
            for host, times in counted(lines, f"PBS_NODEFILE: {path}").items()}


def parse_qstat(text: str) -> BatchJob:
    """What `qstat -f JOB` of OpenPBS, PBS Professional and Torque prints: the cores granted on
    each vnode (Torque: host), the end, and how often the job was begun."""
    text = re.sub(r"\n(?:\t|    {5,})", "", text)  # long values go on in the next line
    values = dict(re.findall(r"^\s*([\w.]+) = (.*?)\s*$", text, re.MULTILINE))
    cores: dict[str, int] = {}
    shares: dict[str, NodeShare] = {}
    # (n0:ncpus=8:mem=4gb)+(n1[0]:ncpus=4+n1[1]:ncpus=4): parts of a host are its vnodes.
    for chunk in re.split(r"[()+]+", values.get("exec_vnode", "")):
        vnode = re.match(r"([^:\[\]]+)(?:\[\d+\])?:(?:.*:)?ncpus=(\d+)", chunk)
        if vnode:
            cores[vnode[1]] = cores.get(vnode[1], 0) + int(vnode[2])
            gpus = re.search(r":ngpus=(\d{1,4})(?=:|$)", chunk)
            memory = re.search(r":mem=([0-9]{1,15}[kmgtp]?[bw]?)(?=:|$)", chunk)
            shares[vnode[1]] = shares.get(vnode[1], NodeShare()) + NodeShare(
                memory_bytes(memory[1], PBS_MEMORY) if memory else 0, int(gpus[1]) if gpus else None)
    if not cores:  # Torque: n0/0-7+n1/0,2
        for part in values.get("exec_host", "").split("+"):
            host, _, slots = part.partition("/")
            if re.fullmatch(r"[\d,-]+", slots):
                ranges = (span.partition("-") for span in slots.split(",") if span.strip("-"))
                cores[host] = cores.get(host, 0) + sum(
                    int(last or first) - int(first) + 1 for first, _, last in ranges
                    if first.isdigit() and (last.isdigit() or not last))
    start = parse_pbs_time(values.get("stime") or values.get("start_time") or "")
    length = duration(values.get("Resource_List.walltime", ""))
    end = start + length if start is not None and length is not None else None
    runs = values.get("run_count", "")
    return BatchJob(end, cores, int(runs) if re.fullmatch(r"\d{1,6}", runs) else 0, shares)


def _named(name: str, hosts: Iterable[str]) -> str | None:
    """The host of that name; a short name and a long one are the same."""
    return next((host for host in hosts if name == host), None) or next(
        (host for host in hosts if name.partition(".")[0] == host.partition(".")[0]
         and "." not in (name if "." in host else host)), None)


def vnode_hosts(vnodes: Iterable[str], hosts: Iterable[str]) -> dict[str, str] | None:
    """On which host each vnode of a job is; None where that cannot be said.

    PBS lists vnodes, and hosts in the file of nodes, both in the order of the chunks. A vnode
    usually has the name of its host; of those that have other names each is the next of the
    hosts which are left, if there are as many.
    """
    vnodes = list(vnodes)
    found = {name: _named(name, hosts) for name in vnodes}
    left = [host for host in hosts if host not in found.values()]
    unknown = [name for name in vnodes if found[name] is None]
    if unknown and len(unknown) != len(left):
        return None
    return {**{name: host for name, host in found.items() if host}, **dict(zip(unknown, left))}


def parse_pbsnodes(text: str) -> dict[str, str]:
    """The hosts of vnodes, as `pbsnodes -v VNODE ...` prints them."""
    hosts: dict[str, str] = {}
    vnode = ""
    for line in text.splitlines():
        if line[:1].strip():
            vnode = line.strip()
        match = re.match(r"\s+resources_available\.host = (\S+)", line)
        if match and vnode:
            hosts[vnode] = match[1]
    return hosts


def _places(vnodes: Iterable[str], hosts: Mapping[str, int], run: Callable[[Sequence[str]], str]
            ) -> dict[str, str]:
    """The host of each vnode ("": not known); pbsnodes says it, where it is not clear."""
    names = list(vnodes)
    places = vnode_hosts(names, hosts)
    if places is None:
        unknown = [name for name in names if _named(name, hosts) is None]
        known = parse_pbsnodes(run(("pbsnodes", "-v", *unknown))
                               if all(map(HOST.fullmatch, unknown)) else "")
        places = {name: _named(known.get(name, name), hosts) or "" for name in names}
    return places


def _of_gpu_file(env: Environment, hosts: Mapping[str, int]) -> dict[str, NodeShare]:
    """The GPUs in Torque's file, a line such as `n0-gpu1` for each."""
    found: dict[str, NodeShare] = {}
    try:
        text = Path(env["PBS_GPUFILE"]).read_text()
    except (KeyError, OSError):  # no such job, or no such file: nothing is said
        return {}
    for host, number in re.findall(r"^(\S+)-gpu(\d{1,3})\s*$", text, re.MULTILINE):
        name = _named(host, hosts)
        if name:
            found[name] = found.get(name, NodeShare()) + NodeShare(0, 1, (int(number),))
    return {host: found.get(host, NodeShare(gpus=0)) for host in hosts} if found else {}


def parse_pbs_time(text: str) -> float | None:
    """Seconds since the epoch of a local time such as `Sat Nov 21 15:33:13 2026`, else None."""
    try:
        return moment_of(text.strip(), "%a %b %d %H:%M:%S %Y")
    except ValueError:
        return None


def duration(text: str) -> float | None:
    """Seconds of a time such as `36:00:00`, `30:00` or `3600`, else None."""
    try:
        return of_parts(text.strip())
    except ValueError:
        return None


def script_start() -> float | None:
    """When the leader of this session started, in seconds since the epoch: a batch system gives
    every job's script a session. None where it is in another namespace of processes."""
    import psutil  # not at the top: the manual page of a wheel is made where nothing is installed

    try:
        return psutil.Process(os.getsid(0)).create_time()
    except psutil.Error:
        return None
