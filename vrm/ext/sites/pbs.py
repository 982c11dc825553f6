"""OpenPBS, PBS Professional and Torque: nodes from `PBS_NODEFILE`, which has a line for each process. The cores of
each node and the end are read from `qstat -f`. Without it, the cores are the number of lines of the host, `NCPUS` or
`PBS_NUM_PPN`, whichever is largest, and the end is `PBS_WALLTIME` after the start of the job's script. GPUs and
memory are `ngpus` and `mem` in `exec_vnode`, or the lines of `PBS_GPUFILE` (Torque)."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from pathlib import Path
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.live.batch.base import (REMEDY, AllocationError, BatchJob, BatchSystem, Environment, NodeShare, Question,
                                 BatchScript, BatchScriptError, counted, read_text, slots_of_lines, whole)
from vrm.model.forms.hosts import HOST
from vrm.model.quantities import PBS_MEMORY, clock, memory_bytes, seconds_of_parts
from vrm.system.printing.local_times import parse_local_time


class PBS(BatchSystem):
    """All batch systems that have qsub and PBS_NODEFILE."""

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
        """Return the nodes of the node file."""
        return pbs_hosts(env)

    def questions(self, job: str) -> Sequence[Question]:
        """Return the qstat command, which reports everything."""
        return ((("qstat", "-f", job), parse_qstat),)

    def own_end(self, env: Environment) -> float | None:
        """Return the start of the job's script plus PBS_WALLTIME."""
        length = duration(env.get("PBS_WALLTIME", ""))
        begun = script_start()
        return begun + length if length and begun is not None else None

    def granted(self, answer: BatchJob, hosts: Mapping[str, int], run: Callable[[Sequence[str]], str]
                ) -> dict[str, int]:
        """Return the cores by host; qstat reports them by vnode."""
        granted: dict[str, int] = Counter()
        places = _places(answer.cores, hosts, run)
        for name, count in answer.cores.items():
            granted[places[name]] += count
        return {host: granted[host] for host in hosts if granted[host]}

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """Return memory and GPUs by host, summed over its vnodes. If one host has GPUs, a host that reports none has
        0."""
        if not answer.shares:
            return _gpus_from_file(env, hosts)
        granted: dict[str, NodeShare] = {}
        places = _places(answer.shares, hosts, run)
        for name, share in answer.shares.items():
            granted[places[name]] = granted.get(places[name], NodeShare()) + share
        counted = any(share.gpus is not None for share in granted.values())
        return {host: NodeShare(share.memory, share.gpus or 0 if counted else None)
                for host, share in granted.items() if host in hosts}

    def attach_command(self, env: Environment) -> tuple[str, ...]:
        """Return the pbs_attach command; none if PBS has no such program, as in Torque."""
        job = env.get("PBS_JOBID", "")
        # The id becomes a word of a command line, so it must look like an id.
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
            pass  # no PBS here, or a different configuration
        found = shutil.which("pbs_attach", path=os.pathsep.join(places))
        return (os.path.abspath(found), "-j", job) if found else ()

    def openmpi_slots(self, env: Environment) -> Mapping[str, int] | None:
        """Return one slot for each line of the node file, as Open MPI counts."""
        return slots_of_lines(env, "PBS_NODEFILE") if "PBS_JOBID" in env else None

    def check_script(self, wrapper: BatchScript) -> None:
        """Raise BatchScriptError if a warning signal is requested, which PBS does not send."""
        if wrapper.warning is not None:
            raise BatchScriptError("PBS sends no warnings, vrm looks at the clock itself: leave "
                                   "--signal out, and set "
                                   f"End: {{Margin: {wrapper.warning}}} in the configuration")

    def script_lines(self, wrapper: BatchScript) -> list[str]:
        """Return the options of qsub."""
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

    def script_start(self, wrapper: BatchScript) -> list[str]:
        """Return lines that change to the submission directory and redirect output: PBS starts scripts in the home
        directory and shows output only at the end."""
        return ['cd "$PBS_O_WORKDIR" || exit 2',
                "# PBS keeps the output until the end; this file can be read while vrm runs.",
                "# Added to, since PBS runs this script again after qrerun or preemption.",
                f'exec >>"{wrapper.name}-${{PBS_JOBID%%.*}}.out" 2>&1',
                "# PBS sends no warning: vrm asks qstat for the end, and takes this if it fails.",
                f"export PBS_WALLTIME=${{PBS_WALLTIME:-{wrapper.walltime}}}"]

    def chain(self, file: str, rest: str) -> list[str]:
        """Return commands that submit jobs each of which waits for the end of the previous one."""
        return [f"id=$(qsub {file})",
                f"for i in {rest}; do id=$(qsub -W depend=afterany:$id {file}); done"]


def pbs_hosts(env: Mapping[str, str]) -> dict[str, int]:
    """Return the nodes of a PBS job with the number of cores that the environment indicates for each."""
    path = env.get("PBS_NODEFILE")
    if not path:
        raise AllocationError(f"PBS_NODEFILE: is not set in this PBS job; {REMEDY}")
    lines = read_text(path, "PBS_NODEFILE").split()
    most = max(whole(env, name) for name in ("NCPUS", "PBS_NUM_PPN"))
    return {host: max(times, most)
            for host, times in counted(lines, f"PBS_NODEFILE: {path}").items()}


def parse_qstat(text: str) -> BatchJob:
    """Return the data in the output of `qstat -f JOB` of OpenPBS, PBS Professional and Torque: the cores granted on
    each vnode (Torque: host), the end, and how often the job was started."""
    text = re.sub(r"\n(?:\t|    {5,})", "", text)  # long values continue on the next line
    values = dict(re.findall(r"^\s*([\w.]+) = (.*?)\s*$", text, re.MULTILINE))
    cores: dict[str, int] = {}
    shares: dict[str, NodeShare] = {}
    # (n0:ncpus=8:mem=4gb)+(n1[0]:ncpus=4+n1[1]:ncpus=4): the parts of a host are its vnodes.
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
    """Return the host with that name; a short name matches the corresponding long name. None if there is none."""
    return next((host for host in hosts if name == host), None) or next(
        (host for host in hosts if name.partition(".")[0] == host.partition(".")[0]
         and "." not in (name if "." in host else host)), None)


def vnode_hosts(vnodes: Iterable[str], hosts: Iterable[str]) -> dict[str, str] | None:
    """Return the host of each vnode of a job; None if that cannot be decided.

    PBS lists vnodes, and hosts in the node file, both in the order of the chunks. A vnode usually has the name of
    its host. Vnodes with other names are assigned in order to the remaining hosts, if their numbers are equal."""
    vnodes = list(vnodes)
    found = {name: _named(name, hosts) for name in vnodes}
    left = [host for host in hosts if host not in found.values()]
    unknown = [name for name in vnodes if found[name] is None]
    if unknown and len(unknown) != len(left):
        return None
    return {**{name: host for name, host in found.items() if host}, **dict(zip(unknown, left))}


def parse_pbsnodes(text: str) -> dict[str, str]:
    """Return the hosts of vnodes from the output of `pbsnodes -v VNODE ...`."""
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
    """Return the host of each vnode ("": not known); pbsnodes is asked if it is not clear."""
    names = list(vnodes)
    places = vnode_hosts(names, hosts)
    if places is None:
        unknown = [name for name in names if _named(name, hosts) is None]
        known = parse_pbsnodes(run(("pbsnodes", "-v", *unknown))
                               if all(map(HOST.fullmatch, unknown)) else "")
        places = {name: _named(known.get(name, name), hosts) or "" for name in names}
    return places


def _gpus_from_file(env: Environment, hosts: Mapping[str, int]) -> dict[str, NodeShare]:
    """Return the GPUs in Torque's file, which has a line such as `n0-gpu1` for each."""
    found: dict[str, NodeShare] = {}
    try:
        text = Path(env["PBS_GPUFILE"]).read_text()
    except (KeyError, OSError):  # not in such a job, or no such file
        return {}
    for host, number in re.findall(r"^(\S+)-gpu(\d{1,3})\s*$", text, re.MULTILINE):
        name = _named(host, hosts)
        if name:
            found[name] = found.get(name, NodeShare()) + NodeShare(0, 1, (int(number),))
    return {host: found.get(host, NodeShare(gpus=0)) for host in hosts} if found else {}


def parse_pbs_time(text: str) -> float | None:
    """Return the epoch seconds of a local time such as `Sat Nov 21 15:33:13 2026`; None for other texts."""
    try:
        return parse_local_time(text.strip(), "%a %b %d %H:%M:%S %Y")
    except ValueError:
        return None


def duration(text: str) -> float | None:
    """Return the seconds of a duration such as `36:00:00`, `30:00` or `3600`; None for other texts."""
    try:
        return seconds_of_parts(text.strip())
    except ValueError:
        return None


def script_start() -> float | None:
    """Return when the leader of this session started (epoch seconds); a batch system gives every job's script a
    session. None if the leader is in another PID namespace."""
    import psutil  # not at the top: the manual page of a wheel is built without dependencies

    try:
        return psutil.Process(os.getsid(0)).create_time()
    except psutil.Error:
        return None
