"""The agent of one node: runs there, and tells vrm of the node and of the jobs' processes on it.
One file, the standard library only, Python 3.6 or newer: `python -I -S agent.py SILENCE [WISH]`, the wish for cores of `Claim`.

Started by `vrm.live.nodes.agents` through ssh, srun or as a child, it speaks lines of JSON on its
standard input and output. It first says what the node is, without being asked. It ends at the
end of its input, or when it has heard nothing for SILENCE seconds (its connection may be cut
without either side being told). Jobs are never touched by its end.

| asked | answered |
|---|---|
| | `{"vrm": 1, "facts": {...}}`, see `facts` |
| `{"number": 1, "ask": "ping"}` | `{"vrm": 1, "number": 1}` |
| `{"number": 2, "ask": "affinity", "run": R, "job": J, "ranks": 4, "variables": [...], "patience": 30}` | `{"vrm": 1, "number": 2, "ranks": {"0": "0-3", ...}}`: the CPUs that each rank of the job may use, as soon as there are so many ranks here, at the latest after `patience` seconds |
| `{"number": 3, "ask": "sweep", "run": R, "job": J}` | `{"vrm": 1, "number": 3, "processes": 5, "left": 0}`: all processes of the job (of the run, if `job` is null) have been killed, so many, and these did not die |

Processes are found by `VRM_RUN` and `VRM_JOB_ID` in the environment they were started with. A
rank is a process with one of `variables` there; if it has started others, the outermost counts.
"""

import json
import os
import select
import sys
import time

# The C module itself: `signal` imports enum, a tenth of the agent's start.
import _signal as signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would be another tenth
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

    Process = Tuple[int, int]  # number, and start time in clock ticks since the boot

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two looks for ranks: they grow, since looking takes time from the jobs."""

SWEEP_PAUSE = 0.01
SWEEP_SECONDS = 3.0
"""Seconds between two looks of a sweep, and after which what is left counts as immortal."""

ROUNDS = 10
"""How often processes are listed in one look at them; new ones come all the time on a busy node."""

LINE = 1 << 20
"""Bytes in which any request fits."""


# ------------------------------------------------------------------------------ the node itself

_OF_CPU = (("package_cpus_list", "core_siblings_list", "physical_package_id"),
           ("core_cpus_list", "thread_siblings_list"), ("die_cpus_list",), ("cluster_cpus_list",))
# Of each group the first that is there: the kernel has renamed some.


def read_files(root: "Any" = "/") -> "Dict[str, str]":
    """The kernel's files from which a topology is read, by their path below
    `sys/devices/system`; a CPU's folder stands for itself with an empty text."""
    system = os.path.join(os.fspath(root), "sys/devices/system")
    files: "Dict[str, str]" = {}

    def read(name: str) -> bool:
        try:
            with open(os.path.join(system, name)) as file:
                files[name] = file.read().strip()
        except OSError:  # files differ between kernels, machines and containers
            return False
        return True

    read("cpu/online")
    for cpu in _numbered(system, "cpu", "cpu"):
        files[cpu] = ""
        for names in _OF_CPU:
            any(read("{}/topology/{}".format(cpu, name)) for name in names)
        for cache in _numbered(system, cpu + "/cache", "index"):
            read(cache + "/shared_cpu_list")
    for node in _numbered(system, "node", "node"):
        read(node + "/cpulist")
    return files


def _numbered(system: str, folder: str, name: str) -> "List[str]":
    """The entries of a folder that are called `name` and a number."""
    try:
        entries = os.listdir(os.path.join(system, folder))
    except OSError:
        return []
    return sorted("{}/{}".format(folder, entry) for entry in entries
                  if entry.startswith(name) and entry[len(name):].isdigit())


def widen() -> "Set[int]":
    """The CPUs of the cpuset that this thread lives in, which is what launchers see and use.

    An affinity mask can be smaller (taskset, srun): Open MPI does not keep to it. The mask of
    this thread is widened for it, since the kernel cuts it to the cpuset and knows cpusets of
    every kind.
    """
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(max(os.cpu_count() or 1, max(mask) + 1)))
    except OSError:  # a sandbox forbids it: then the mask is all there is to know
        return mask
    return os.sched_getaffinity(0) | mask


def count_gpus(root: "Any" = "/") -> int:
    """How many GPUs the node has: NVIDIA's by their device files, AMD's by the kernel's list."""
    root = os.fspath(root)
    nvidia = len(_numbered(root, "dev", "nvidia"))
    amd = 0
    if os.path.exists(os.path.join(root, "dev/kfd")):
        for node in _numbered(root, "sys/class/kfd/kfd/topology/nodes", ""):
            try:
                with open(os.path.join(root, node, "gpu_id")) as file:
                    amd += file.read().strip() not in ("", "0")  # 0 is the CPU's own entry
            except OSError:
                continue
    return nvidia + amd


def read_memory(root: "Any" = "/") -> "Tuple[int, int]":
    """Bytes of memory: all, and what could be used now; 0 where the kernel does not say."""
    sizes = {}
    try:
        with open(os.path.join(os.fspath(root), "proc/meminfo")) as file:
            for line in file:
                words = line.split()
                if len(words) >= 2 and words[1].isdigit():
                    sizes[words[0]] = 1024 * int(words[1])
    except OSError:
        pass  # no /proc: not known
    total = sizes.get("MemTotal:", 0)
    return total, sizes.get("MemAvailable:", total)


def facts(wish: str = "") -> "Dict[str, Any]":
    """What the node is: all that `vrm.live.nodes.topology.node_facts` makes its answer of. `wish` is that
    of `Claim`; what it claims is held as long as this process lives."""
    mask = os.sched_getaffinity(0)
    cpuset = widen()
    os.sched_setaffinity(0, mask)
    total, available = read_memory()
    files, synthetic = read_files(), os.environ.get("HWLOC_SYNTHETIC", "")
    said = {"files": files, "cpuset": sorted(cpuset), "mask": sorted(mask),
            "synthetic": synthetic, "memory": total,
            "available": available, "gpus": count_gpus(), "boot": _boot()}
    if wish and not synthetic:
        claim = Claim(files, mask, wish)
        if claim.cpus is not None:
            said.update(claimed=claim.cpus, shared=claim.trouble)
    return said


_CLAIMS: "List[Any]" = []  # sockets that hold claims, until this process ends


class Claim:
    """Cores of this node that no other vrm takes, where the batch system has granted a number of
    them and not said which. `wish` is that number, or the CPUs of an earlier claim (`cpus:0,4`)
    which is to be held again. `cpus` are what was claimed (None: all may be used, nothing was
    claimed), `trouble` says why they are others, or fewer, than wished for.

    A claim is the name of a socket, which one process of this machine can have at a time and
    which goes with the process, of whatever user it is. Cores to which processes of others are
    bound come last.
    """

    def __init__(self, files: "Dict[str, str]", mask: "Set[int]", wish: str) -> None:
        self.cpus: "Optional[List[int]]" = None
        self.trouble = ""
        cores = _cores(files, mask)
        again = [int(cpu) for cpu in wish[5:].split(",")] if wish.startswith("cpus:") else None
        if again is not None:
            # An agent that has lost its vrm may hold them still: no other vrm can have them.
            for core in cores:
                if core[0] in again:
                    _hold(core[0])
            self.cpus = again
            return
        wanted = max(1, int(wish))
        if wanted >= len(cores):
            return
        bound = bound_cpus(mask)
        free = [core for core in cores if not any(cpu in bound for cpu in core)]
        used = [core for core in cores if core not in free]
        claimed: "List[List[int]]" = []
        taken = 0
        for core in free + used:
            if len(claimed) == wanted:
                break
            if not _hold(core[0]):
                taken += 1
                continue
            claimed.append(core)
            if core in used:
                self.trouble = "CPU {} is used although {} is bound to it".format(
                    core[0], next(bound[cpu] for cpu in core if cpu in bound))
        self.cpus = sorted(cpu for core in claimed for cpu in core)
        if len(claimed) < wanted:
            self.trouble = ("{} core(s) are granted to this job, and of the {} that are seen there "
                            "{} are taken by other vrm".format(wanted, len(cores), taken))


def _cores(files: "Dict[str, str]", mask: "Set[int]") -> "List[List[int]]":
    """The CPUs of each core that may be used, by the kernel's files; the lowest first."""
    cores: "Dict[str, List[int]]" = {}
    for cpu in sorted(mask):
        folder = "cpu/cpu{}/topology/".format(cpu)
        siblings = (files.get(folder + "core_cpus_list")
                    or files.get(folder + "thread_siblings_list") or str(cpu))
        cores.setdefault(siblings, []).append(cpu)
    return sorted(cores.values())


def _hold(cpu: int) -> bool:
    """Claim a core by its lowest CPU; False when another process has it."""
    import socket  # only here: a third of the agent's start
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind("\0vrm-core-{}".format(cpu))
    except OSError:
        claim.close()
        return False
    _CLAIMS.append(claim)
    return True


def bound_cpus(mask: "Set[int]") -> "Dict[int, str]":
    """The CPUs to which processes are bound, but for those of runs of vrm (whose claims count), and
    what is bound there."""
    bound: "Dict[int, str]" = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or _environment(int(name)):
            continue
        listed = allowed_cpus(int(name))
        if listed is None or not _has_command(name):
            continue
        cpus = {cpu for part in listed.split(",")
                for cpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
        if not mask <= cpus:
            for cpu in cpus & mask:
                bound.setdefault(cpu, "process {}".format(name))
    return bound


def _has_command(pid: str) -> bool:
    """Whether a process is none of the kernel's own."""
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


# ----------------------------------------------------------------------------------- processes


def read_stat(pid: int) -> "Optional[Tuple[int, int]]":
    """A process's parent and start time, or None when there is no such process."""
    try:
        with open("/proc/{}/stat".format(pid), "rb", 0) as file:
            text = file.read(4096)
    except OSError:
        return None
    # The program's name is in brackets and may itself hold brackets, spaces and newlines.
    fields = text.rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def _environment(pid: int) -> "List[bytes]":
    """What a process of some run was started with; nothing of other processes, of other users'
    and of dead ones."""
    try:
        with open("/proc/{}/environ".format(pid), "rb", 0) as file:
            text = file.read()
    except OSError:
        return []
    # Nearly all processes: no need to take the text apart.
    return text.split(b"\0") if b"VRM_RUN=" in text else []


def marked() -> "Iterator[Tuple[Process, List[bytes]]]":
    """The processes of all runs with their environment, the newest first: so a process that
    always goes on in a child of its own is met before it has gone.

    Those that have come in the meantime are looked at as well, ROUNDS times at most: else a child
    could be missed that has come since and whose parent has gone.
    """
    known: "Set[int]" = set()
    for _ in range(ROUNDS):
        numbers = {int(name) for name in os.listdir("/proc") if name.isdigit()} - known
        known |= numbers
        for pid in sorted(numbers, reverse=True):
            if not _environment(pid):
                continue
            stat = read_stat(pid)
            # Once more: the number may have gone to another process before its start was read.
            environment = _environment(pid)
            if stat is not None and environment:
                yield (pid, stat[1]), environment
        if not numbers:
            break


def marks(run: str, job: "Optional[int]") -> "List[bytes]":
    """What all processes of a job, or of a whole run, have in their environment."""
    run_mark = [os.fsencode("VRM_RUN=" + run)]
    return run_mark + ([] if job is None else [os.fsencode("VRM_JOB_ID={}".format(job))])


def kill(process: "Process") -> None:
    """SIGKILL to this very process, never to a later one with its number."""
    pid, started = process
    handle = None
    try:
        # The handle (Linux 5.3) holds on to one process: check it, then signal it, no race.
        if hasattr(os, "pidfd_open"):
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            except OSError:
                handle = None
        stat = read_stat(pid)
        if stat is None or stat[1] != started:
            return
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or somebody else's
    finally:
        if handle is not None:
            os.close(handle)


def _rank(environment: "List[bytes]", name: bytes) -> "Optional[int]":
    """The whole number behind `name`, None if there is none."""
    # All that a batch script starts inherits one that says 0: ranks have it in a step.
    if name == b"SLURM_PROCID=" and not any(
            entry.startswith(b"SLURM_STEP_ID=") for entry in environment):
        return None
    for entry in environment:
        if entry.startswith(name) and entry[len(name):].isdigit():
            return int(entry[len(name):])
    return None


def _outermost(processes: "Set[Process]") -> int:
    """The one that has started the others: none of them is above it; if there are several,
    the oldest."""
    if len(processes) > 1:
        numbers = {pid for pid, _ in processes}
        roots = [process for process in processes if not _below(process[0], numbers)]
        processes = set(roots) or processes
    return min(processes, key=lambda process: (process[1], process[0]))[0]


def _below(pid: int, numbers: "Set[int]") -> bool:
    """Whether a process has one of these above it."""
    stat = read_stat(pid)
    while stat is not None and stat[0] > 1:
        if stat[0] in numbers:
            return True
        stat = read_stat(stat[0])
    return False


def allowed_cpus(pid: int) -> "Optional[str]":
    """The CPUs that a process may use, as the kernel lists them; None when it is gone."""
    try:
        with open("/proc/{}/status".format(pid)) as file:
            for line in file:
                if line.startswith("Cpus_allowed_list:"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # gone
    return None


# ------------------------------------------------------------------------------- what is asked


class Affinity:
    """Looks for the ranks of a job until all are there. `due`: when to look next."""

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number = request["number"]
        self.marks = marks(str(request["run"]), int(request["job"]))
        self.wanted = int(request["ranks"])
        self.variables = [os.fsencode(name + "=") for name in request["variables"]]
        self.until = now + float(request["patience"])
        self.due = now
        self.pause = FIRST_PAUSE
        self.ranks: "Dict[int, str]" = {}
        self.found: "Dict[bytes, Dict[int, Set[Process]]]" = {}

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """One process of the job."""
        for variable in self.variables:
            rank = _rank(environment, variable)
            if rank is not None:
                self.found.setdefault(variable, {}).setdefault(rank, set()).add(process)

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when there is nothing more to wait for.

        The first of the variables that some process has is what tells the rank.
        """
        variable = next((name for name in self.variables if name in self.found), b"")
        for rank, processes in self.found.get(variable, {}).items():
            cpus = allowed_cpus(_outermost(processes))
            if cpus is not None:
                self.ranks[rank] = cpus
        self.found = {}
        self.due = now + self.pause
        self.pause = min(1.6 * self.pause, LONGEST_PAUSE)
        return len(self.ranks) >= self.wanted or now >= self.until

    def answer(self) -> "Dict[str, Any]":
        """What was found."""
        return {"number": self.number, "ranks": {str(r): cpus for r, cpus in self.ranks.items()}}


class Sweep:
    """Kills the processes of a job or a run until there are none. `due`: when to look next."""

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number = request["number"]
        job = request["job"]
        self.marks = marks(str(request["run"]), None if job is None else int(job))
        self.until = now + SWEEP_SECONDS
        self.due = now
        self.killed: "Set[Process]" = set()
        self.met = 0
        self.left = 0

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """One process of the job: killed at once, before it has gone on in another."""
        kill(process)
        self.killed.add(process)
        self.met += 1

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when there were none, or they do not die."""
        self.left, self.met = self.met, 0
        self.due = now + SWEEP_PAUSE
        return not self.left or now >= self.until

    def answer(self) -> "Dict[str, Any]":
        """How many there were."""
        return {"number": self.number, "processes": len(self.killed), "left": self.left}


def look(tasks: "List[Any]", now: float) -> None:
    """Look through all processes once, for all tasks that are due, and answer what is done."""
    due = [task for task in tasks if task.due <= now]
    if not due:
        return
    for process, environment in marked():
        for task in due:
            if all(mark in environment for mark in task.marks):
                task.see(process, environment)
    now = time.monotonic()
    for task in due:
        if task.looked(now):
            tasks.remove(task)
            say(task.answer())


def say(answer: "Dict[str, Any]") -> None:
    """One line to vrm. The newline before it ends what a login script may have printed."""
    answer["vrm"] = 1
    data = ("\n" + json.dumps(answer, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(1, data):]


def take(request: "Dict[str, Any]", tasks: "List[Any]", now: float) -> None:
    """Begin what a request asks for."""
    kind = request["ask"]
    if kind == "ping":
        say({"number": request["number"]})
    elif kind == "affinity":
        tasks.append(Affinity(request, now))
    elif kind == "sweep":
        sweep = Sweep(request, now)
        for task in list(tasks):  # a job that is swept gets no more ranks
            if isinstance(task, Affinity) and set(sweep.marks) <= set(task.marks):
                tasks.remove(task)
                say(task.answer())
        tasks.append(sweep)


def serve(silence: float, wish: str = "") -> None:
    """Answer requests until the end of the input, or until nobody has spoken for so long. `wish` is
    that of `Claim`."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # batch systems warn all steps of a job
    say({"facts": facts(wish)})
    tasks: "List[Any]" = []
    unread = b""
    heard = time.monotonic()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        now = time.monotonic()
        next_look = min([task.due for task in tasks] + [heard + silence])
        if poll.poll(1000 * max(0.0, next_look - now)):
            data = os.read(0, 1 << 16)
            if not data:
                return
            heard = time.monotonic()
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                if line.strip():
                    take(json.loads(line.decode()), tasks, heard)
            if len(unread) > LINE:
                raise ValueError("a request without an end")
        now = time.monotonic()
        if now - heard >= silence:
            return
        look(tasks, now)


if __name__ == "__main__":
    try:
        serve(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
    except BrokenPipeError:
        pass  # vrm has gone
