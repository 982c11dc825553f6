"""Which nodes this run owns, and until when: asked of the batch system around it.
One pure parser for each form in which batch systems write down nodes; the calls are thin.

| kind | nodes | cores of each | end |
|---|---|---|---|
| hostfile | the file that the configuration names (`parse_hostfile`) | `slots=N`, `name:N` | that of the batch job around, if there is one |
| slurm | `SLURM_JOB_NODELIST` | `SLURM_JOB_CPUS_PER_NODE`, or the tasks and `SLURM_CPUS_PER_TASK` | `squeue`, `scontrol`, `SLURM_JOB_END_TIME` |
| pbs | `PBS_NODEFILE`, a line for each process | `qstat -f`; else the lines of a host, `NCPUS`, `PBS_NUM_PPN`, whichever is most | `qstat -f`; else `PBS_WALLTIME` from the start of the job's script |
| lsf | `LSB_DJOB_HOSTFILE`, `LSB_MCPU_HOSTS` or `LSB_HOSTS` | the times a host is named | not known |
| gridengine | `PE_HOSTFILE` | its second column | not known |
| machine | this one | | never |

Inside a step (srun), the nodes of the step count. CPUs that batch systems count may be hardware
threads: what is really there, and what a cpuset leaves of it, is for the probe to say.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from vrm.system.hosts import HOST, MOST_HOSTS, expand, host_name

PathLike = Union[str, "os.PathLike[str]"]

ANSWER_SECONDS = 10.0
"""Seconds that a batch system's program may take to answer."""

class AllocationError(Exception):
    """The nodes of this run cannot be told; the text names the place and the mend."""


@dataclass(frozen=True)
class Allocation:
    """Nodes by the names that launchers use, in the batch system's order, each once.

    `cores` are those granted on a host, as far as the batch system tells. `job` is the batch
    job's id. `end` is when it ends in seconds since the epoch, None if that is never or not
    known. `runs` is how often it was begun (0: not said).
    """

    kind: str
    hosts: Tuple[str, ...]
    cores: Mapping[str, int] = field(default_factory=dict)
    job: str = ""
    end: Optional[float] = None
    runs: int = 0


def find_allocation(env: Mapping[str, str], hostfile: Optional[PathLike] = None) -> Allocation:
    """The allocation that the environment tells of, or a file of hosts; else this machine.

    Asks the batch system's programs for what the environment does not say, each for at most
    `ANSWER_SECONDS`. Raises AllocationError when nodes are named in a way that makes no sense.
    """
    batch = batch_system(env)
    if hostfile is not None:
        hosts = parse_hostfile(_read(hostfile, "Hosts.File", "correct the path"), str(hostfile))
        kind, job = "hostfile", _JOB_ID[batch](env) if batch else ""
    elif not batch:
        return Allocation("machine", (host_name(),))
    else:
        hosts, kind, job = _HOSTS[batch](env), batch, _JOB_ID[batch](env)
    said = ask(env)
    cores = {host: count for host, count in hosts.items() if count}
    if kind == "pbs":
        places = vnode_hosts(said.cores, hosts)
        if places is None:
            unknown = [name for name in said.cores if _named(name, hosts) is None]
            told = parse_pbsnodes(_output(("pbsnodes", "-v", *unknown), env, ANSWER_SECONDS)
                                  if all(map(HOST.fullmatch, unknown)) else "")
            places = {name: _named(told.get(name, name), hosts) or "" for name in said.cores}
        granted: Dict[str, int] = Counter()
        for name, count in said.cores.items():
            granted[places[name]] += count
        cores.update((host, granted[host]) for host in hosts if granted[host])
    return Allocation(kind, tuple(hosts), cores, job, said.end, said.runs)


def end_of(allocation: Allocation, env: Mapping[str, str]) -> Optional[float]:
    """When the allocation ends, asked anew: administrators extend jobs.

    Waits for the answer, at most `ANSWER_SECONDS` for each program: call it in a thread.
    What `allocation` says is the answer if the batch system gives none.
    """
    said = ask(env).end
    return allocation.end if said is None else said


def batch_system(env: Mapping[str, str]) -> str:
    """The batch system whose job this environment is of, "" for none."""
    return next((kind for kind, names in _SIGNS.items() if any(env.get(n) for n in names)), "")


_SIGNS = {"slurm": ("SLURM_JOB_ID", "SLURM_JOBID"), "pbs": ("PBS_NODEFILE", "PBS_JOBID"),
          "lsf": ("LSB_JOBID", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS"),
          "gridengine": ("PE_HOSTFILE",)}

_JOB_ID: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    "slurm": lambda env: env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID", ""),
    "pbs": lambda env: env.get("PBS_JOBID", ""),
    "lsf": lambda env: env.get("LSB_JOBID", ""),
    "gridengine": lambda env: env.get("JOB_ID", "")}


def batch_job(env: Mapping[str, str], runs: int = 0) -> str:
    """Which batch job this environment is of, such as `slurm 4711`; empty outside of one.

    A job that the batch system has put back into its queue and runs again is another one:
    `slurm 4711 again 1`. `runs` is how often it was begun, where the batch system's programs say
    it.
    """
    kind = batch_system(env)
    job = _JOB_ID[kind](env) if kind else ""
    restarts = _whole(env, "SLURM_RESTART_COUNT") if kind == "slurm" else max(0, runs - 1)
    return f"{kind} {job}" + (f" again {restarts}" if restarts else "") if job else ""


_KILL_DELAY = {"slurm": 30.0, "pbs": 10.0}
"""Seconds from SIGTERM to SIGKILL as these come: KillWait of Slurm, kill_delay of PBS."""


def kill_delay(job: str) -> float:
    """Seconds that the batch system of a job such as `slurm 4711` leaves between its SIGTERM and
    its SIGKILL, where the site has not changed it; the shortest known for others."""
    return _KILL_DELAY.get(job.partition(" ")[0], min(_KILL_DELAY.values()))


def parse_hostfile(text: str, place: str = "host file") -> Dict[str, int]:
    """The hosts of a file, and the cores of each that it grants (0: not said).

    A line is a name or a folded list, alone or with `slots=N` (as for Open MPI) or `:N` (as for
    MPICH); `#` begins a comment. The cores of a host that is named again are added. Raises
    AllocationError with all lines that are none.
    """
    hosts: Dict[str, int] = {}
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *options = words
        if re.search(r":\d+$", name) and not options:
            name, _, count = name.rpartition(":")
            options = [f"slots={count}"]
        try:
            names = expand(name)
            slots = [re.fullmatch(r"slots=([1-9]\d{0,6})", option) for option in options]
            if len(slots) > 1 or not all(slots):
                raise ValueError(f"`{' '.join(options)}` is not understood")
        except ValueError as error:
            wrong.append(f"{place}:{number}: {error}")
            continue
        for host in names:
            hosts[host] = hosts.get(host, 0) + (int(slots[0][1]) if slots and slots[0] else 0)
    if wrong:
        raise AllocationError("\n".join(wrong) + "\nwrite one host per line: `name`, `name "
                              "slots=8` or `name:8`, where name may be a list such as n[0-3]")
    if not hosts:
        raise AllocationError(f"{place}: no host in it; write one name to a line")
    return hosts


def _counted(hosts: Iterable[str], place: str) -> Dict[str, int]:
    """Hosts in their order with the times that each is named; their names are checked."""
    counts = Counter(hosts)
    for host in counts:
        if not HOST.fullmatch(host):
            raise AllocationError(f"{place}: `{host}` is not the name of a host; {_MEND}")
    if not counts:
        raise AllocationError(f"{place}: names no host; {_MEND}")
    return dict(counts)


_MEND = ("start vrm inside the batch job's script, or name the nodes in a file of your own "
         "(Hosts: {File: ...})")


def _read(path: PathLike, name: str, mend: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise AllocationError(f"{name}: {path}: {error.strerror}; {mend}") from error


# --------------------------------------------------------------------------------------- slurm


def slurm_hosts(env: Mapping[str, str]) -> Dict[str, int]:
    """The nodes of a Slurm job or step, with the CPUs granted on each (0: not said)."""
    name = next((name for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if env.get(name)), "")
    if not name:
        raise AllocationError(f"SLURM_JOB_NODELIST: is not set in this Slurm job; {_MEND}")
    hosts = _expanded(env, name)
    cpus = slurm_counts(env, "SLURM_JOB_CPUS_PER_NODE", len(hosts))
    if not cpus:
        each = env.get("SLURM_CPUS_PER_TASK", "1")
        tasks = slurm_counts(env, "SLURM_TASKS_PER_NODE", len(hosts))
        cpus = [int(each) * count for count in tasks] if each.isdigit() else []
    granted = dict(zip(hosts, cpus or [0] * len(hosts)))
    if env.get("SLURM_STEP_NODELIST") and env.get("SLURM_STEP_ID"):
        return {host: granted.get(host, 0) for host in _expanded(env, "SLURM_STEP_NODELIST")}
    return granted


def _expanded(env: Mapping[str, str], name: str) -> List[str]:
    try:
        return list(dict.fromkeys(expand(env[name].strip())))
    except ValueError as error:
        raise AllocationError(f"{name}: {error}; {_MEND}") from error


def slurm_counts(env: Mapping[str, str], name: str, hosts: int) -> List[int]:
    """Slurm's counts for each node, such as `8(x3),4`; none when the variable is not set.

    Raises AllocationError when they are no counts, or not for so many hosts.
    """
    text = env.get(name, "").strip()
    counts: List[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if not match or len(counts) > MOST_HOSTS:
            raise AllocationError(f"{name}: `{text}` is not a list of counts such as 8(x3),4; "
                                  f"{_MEND}")
        counts += [int(match[1])] * int(match[2] or 1)
    if counts and len(counts) != hosts:
        raise AllocationError(f"{name}: `{text}` is for {len(counts)} nodes, and "
                              f"SLURM_JOB_NODELIST names {hosts}; {_MEND}")
    return counts


def parse_slurm_time(text: str) -> Optional[float]:
    """Seconds since the epoch of a local time as Slurm prints it (2026-11-21T16:00:00); None
    for `N/A`, `Unknown` and the like."""
    match = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", text.strip())
    return _epoch(*map(int, match.groups())) if match else None


def parse_squeue(text: str, job: str) -> Optional[float]:
    """The end of `job` in what `squeue -h -j JOB -o "%A %e"` prints: an array's first job shares
    its number with the array, so there may be other lines."""
    for line in text.splitlines():
        number, _, end = line.strip().partition(" ")
        if number == job:
            return parse_slurm_time(end)
    return None


def parse_scontrol(text: str, job: str) -> Optional[float]:
    """The end of `job` in what `scontrol show job JOB` prints."""
    for record in re.split(r"(?=\bJobId=)", text):
        if re.match(rf"JobId={re.escape(job)}\b", record):
            end = re.search(r"\bEndTime=(\S+)", record)
            return parse_slurm_time(end[1]) if end else None
    return None


# ----------------------------------------------------------------------------------------- pbs


def pbs_hosts(env: Mapping[str, str]) -> Dict[str, int]:
    """The nodes of a PBS job, with the cores that the environment lets suppose on each."""
    path = env.get("PBS_NODEFILE")
    if not path:
        raise AllocationError(f"PBS_NODEFILE: is not set in this PBS job; {_MEND}")
    lines = _read(path, "PBS_NODEFILE", _MEND).split()
    most = max(_whole(env, name) for name in ("NCPUS", "PBS_NUM_PPN"))
    counted = _counted(lines, f"PBS_NODEFILE: {path}")
    return {host: max(times, most) for host, times in counted.items()}


def parse_qstat(text: str) -> "Answer":
    """What `qstat -f JOB` of OpenPBS, PBS Professional and Torque prints: the cores granted on
    each vnode (Torque: host), the end, and how often the job was begun."""
    text = re.sub(r"\n(?:\t|    {5,})", "", text)  # long values go on in the next line
    values = dict(re.findall(r"^\s*([\w.]+) = (.*?)\s*$", text, re.MULTILINE))
    cores: Dict[str, int] = {}
    # (n0:ncpus=8:mem=4gb)+(n1[0]:ncpus=4+n1[1]:ncpus=4): parts of a host are its vnodes.
    for chunk in re.split(r"[()+]+", values.get("exec_vnode", "")):
        vnode = re.match(r"([^:\[\]]+)(?:\[\d+\])?:(?:.*:)?ncpus=(\d+)", chunk)
        if vnode:
            cores[vnode[1]] = cores.get(vnode[1], 0) + int(vnode[2])
    if not cores:  # Torque: n0/0-7+n1/0,2
        for part in values.get("exec_host", "").split("+"):
            host, _, slots = part.partition("/")
            if re.fullmatch(r"[\d,-]+", slots):
                ranges = (span.partition("-") for span in slots.split(",") if span.strip("-"))
                cores[host] = cores.get(host, 0) + sum(
                    int(last or first) - int(first) + 1 for first, _, last in ranges
                    if first.isdigit() and (last.isdigit() or not last))
    start = parse_pbs_time(values.get("stime") or values.get("start_time") or "")
    length = parse_duration(values.get("Resource_List.walltime", ""))
    end = start + length if start is not None and length is not None else None
    runs = values.get("run_count", "")
    return Answer(end, cores, int(runs) if re.fullmatch(r"\d{1,6}", runs) else 0)


def _named(name: str, hosts: Iterable[str]) -> Optional[str]:
    """The host of that name; a short name and a long one are the same."""
    return next((host for host in hosts if name == host), None) or next(
        (host for host in hosts if name.partition(".")[0] == host.partition(".")[0]
         and "." not in (name if "." in host else host)), None)


def vnode_hosts(vnodes: Iterable[str], hosts: Iterable[str]) -> Optional[Dict[str, str]]:
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


def parse_pbsnodes(text: str) -> Dict[str, str]:
    """The hosts of vnodes, as `pbsnodes -v VNODE ...` prints them."""
    hosts: Dict[str, str] = {}
    vnode = ""
    for line in text.splitlines():
        if line[:1].strip():
            vnode = line.strip()
        match = re.match(r"\s+resources_available\.host = (\S+)", line)
        if match and vnode:
            hosts[vnode] = match[1]
    return hosts


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parse_pbs_time(text: str) -> Optional[float]:
    """Seconds since the epoch of a local time such as `Sat Nov 21 15:33:13 2026`, else None."""
    match = re.fullmatch(r"\w{3} (\w{3}) +(\d+) (\d\d):(\d\d):(\d\d) (\d{4})", text.strip())
    if not match or match[1] not in _MONTHS:
        return None
    return _epoch(int(match[6]), _MONTHS.index(match[1]) + 1, *map(int, match.group(2, 3, 4, 5)))


def parse_duration(text: str) -> Optional[float]:
    """Seconds of a time such as `36:00:00`, `30:00` or `3600`, else None."""
    if not re.fullmatch(r"\d{1,9}(:\d{1,9}){0,3}(\.\d+)?", text.strip()):
        return None
    parts = [float(part) for part in text.strip().split(":")]
    units = (86400.0, 3600.0, 60.0, 1.0)[-len(parts):]
    return sum(part * unit for part, unit in zip(parts, units))


def _epoch(year: int, month: int, day: int, hour: int, minute: int, second: int) -> Optional[float]:
    """Seconds since the epoch of a local time."""
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


def _whole(env: Mapping[str, str], name: str) -> int:
    """The number in a variable, 0 if it holds none."""
    text = env.get(name, "").strip()
    return int(text) if re.fullmatch(r"\d{1,6}", text) else 0


def script_start() -> float:
    """When the leader of this session started, in seconds since the epoch: a batch system gives
    every job's script a session."""
    with open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    with open(f"/proc/{os.getsid(0)}/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return boot + ticks / os.sysconf("SC_CLK_TCK")


# -------------------------------------------------------------------------- lsf and grid engine


def lsf_hosts(env: Mapping[str, str]) -> Dict[str, int]:
    """The nodes of an LSF job with their slots."""
    path = env.get("LSB_DJOB_HOSTFILE")
    if path:
        return _counted(_read(path, "LSB_DJOB_HOSTFILE", _MEND).split(),
                        f"LSB_DJOB_HOSTFILE: {path}")
    words = env.get("LSB_MCPU_HOSTS", "").split()
    if words:
        if len(words) % 2 or not all(re.fullmatch(r"\d{1,6}", count) for count in words[1::2]):
            raise AllocationError(f"LSB_MCPU_HOSTS: `{env['LSB_MCPU_HOSTS']}` is not a list of "
                                  f"hosts, each with a number; {_MEND}")
        return _counted((host for host, count in zip(words[::2], words[1::2])
                         for _ in range(int(count))), "LSB_MCPU_HOSTS")
    return _counted(env.get("LSB_HOSTS", "").split(), "LSB_HOSTS")


def gridengine_hosts(env: Mapping[str, str]) -> Dict[str, int]:
    """The nodes of a Grid Engine job in a parallel environment: a line `host slots queue
    processors` for each host and queue."""
    path = env["PE_HOSTFILE"]
    hosts: List[str] = []
    for number, line in enumerate(_read(path, "PE_HOSTFILE", _MEND).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 2 or not re.fullmatch(r"\d{1,6}", words[1]):
            raise AllocationError(f"PE_HOSTFILE: {path}:{number}: `{line.strip()}` is not a host "
                                  f"with a number of slots; {_MEND}")
        hosts += [words[0]] * int(words[1])
    return _counted(hosts, f"PE_HOSTFILE: {path}")


_HOSTS: Mapping[str, Callable[[Mapping[str, str]], Dict[str, int]]] = {
    "slurm": slurm_hosts, "pbs": pbs_hosts, "lsf": lsf_hosts, "gridengine": gridengine_hosts}


# ------------------------------------------------------------------- asking the batch system


@dataclass(frozen=True)
class Answer:
    """What a batch system's programs said: the job's end; of PBS also cores by vnode, and how often
    the job was begun."""

    end: Optional[float] = None
    cores: Mapping[str, int] = field(default_factory=dict)
    runs: int = 0


def ask(env: Mapping[str, str], seconds: float = ANSWER_SECONDS) -> Answer:
    """Ask the batch system of a job: its programs one after the other, of which each may take so
    many seconds and the first with an answer counts; else what the environment says."""
    kind = batch_system(env)
    job = _JOB_ID[kind](env) if kind else ""
    # The id becomes a word of a command line: it must look like one.
    if re.fullmatch(r"[A-Za-z0-9][\w.\[\]-]*", job):
        questions: Sequence[Tuple[Sequence[str], Callable[[str], Answer]]] = ()
        if kind == "slurm":
            questions = ((("squeue", "-h", "-j", job, "-o", "%A %e"),
                          lambda text: Answer(parse_squeue(text, job))),
                         (("scontrol", "show", "job", job),
                          lambda text: Answer(parse_scontrol(text, job))))
        elif kind == "pbs":
            questions = ((("qstat", "-f", job), parse_qstat),)
        for argv, parse in questions:
            answer = parse(_output(argv, env, seconds))
            if answer.end is not None or answer.cores:
                return answer
    if kind == "slurm" and re.fullmatch(r"\d{1,12}", env.get("SLURM_JOB_END_TIME", "")):
        return Answer(float(env["SLURM_JOB_END_TIME"]))
    length = parse_duration(env.get("PBS_WALLTIME", "")) if kind == "pbs" else None
    return Answer(script_start() + length if length else None)


def _output(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
    """What a program prints, "" when it fails, hangs or is not there."""
    try:
        program = subprocess.Popen(
            argv, env={**env, "SLURM_TIME_FORMAT": "standard"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return ""
    try:
        output, _ = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # with what it has started
        output, _ = program.communicate()
    return output.decode(errors="replace") if program.returncode == 0 else ""
