"""The agent of one node: runs there, and reports on the node and on the jobs' processes on it to vrm. The standard
library only, Python 3.6 or newer. Command: `python -I -S agent.py SILENCE [WISH [DEVICES]]`, with the core request of
`claims.CoreClaim`, and the argument of `device_facts` as JSON.

Started by `vrm.live.nodes.agents` through ssh, srun or as a child, it reads and writes lines of JSON on its standard
input and output. It first sends the facts of the node without being asked. It ends at the end of its input, or when it
has heard nothing for SILENCE seconds (its connection may be cut without either side being notified). Its end never
affects jobs.

| request | answer |
|---|---|
| | `{"vrm": 1, "facts": {...}}`, see `facts` |
| `{"number": 1, "ask": "ping"}` | `{"vrm": 1, "number": 1}` |
| `{"number": 2, "ask": "affinity", "run": R, "job": J, "ranks": 4, "variables": [...], "patience": 30}` | `{"vrm": 1, "number": 2, "ranks": {"0": "0-3", ...}}`: the CPUs that each rank of the job may use, as soon as all `ranks` are found here, at the latest after `patience` seconds |
| `{"number": 3, "ask": "sweep", "run": R, "job": J, "patience": 2.0}` | `{"vrm": 1, "number": 3, "processes": 5, "left": 0}`: all processes of the job have ended (of the run, if `job` is null, except the jobs in `spare`, if given); `processes` were killed because they were still there after `patience` seconds, and `left` did not die |
| `{"number": 4, "ask": "memory", "run": R, "job": J, "limit": 4096}` | `{"vrm": 1, "number": 4, "memory": 5000, "over": true}`, repeatedly: the most bytes that the job's processes here had together so far; sent when that first exceeds the limit, and whenever it has grown by 10 % |
| `{"number": 0, "ask": "bring", "order": NAME, "files": [[PATH, TEXT], ...]}` | nothing; the modules of an extension, see `bring` |
| `{"number": 5, "ask": NAME, "run": R, "job": J, ...}` | the answer of the last of these modules |
| `{"number": 0, "ask": "forget", "run": R, "job": J}` | the job has ended: no further answers on its memory |

Processes are found by `VRM_RUN` and `VRM_JOB_ID` in the environment they were started with. A rank is a process with
one of `variables` in its environment; if it has started others, the outermost process counts.
"""

import json
import os
import select
import sys
import time

# The C module itself: `signal` imports enum, which takes 10 % of the agent's start.
import _signal as signal

if not __package__:  # for `runner.py`, too
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import claims
    import devices
    import proc
else:
    from vrm.live.runner import claims, devices, proc

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take another 10 %
    from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

    from vrm.live.runner.proc import Process

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two searches for ranks, first and at most: the pause grows, since searching takes time from the
jobs."""

SWEEP_PAUSE = 0.01
SPARING_PAUSE = 0.1
SWEEP_SECONDS = 3.0
"""Seconds between two looks of a sweep; the most between them while the sweep kills nothing yet; and seconds of
killing after which the processes that are left are given up."""

NO_LIMIT = 1 << 60
"""Bytes from which on a memory limit of a control group (version 1) means no limit."""

CLAIM_SECONDS = 1.0
"""Seconds to wait for a GPU that another vrm holds."""

MEMORY_PAUSE, MEMORY_SHARE = 2.0, 200.0
"""Least seconds between two looks at the memory of jobs; and the pause as a multiple of the time that the look took,
at least."""

LINE = 1 << 20
"""Bytes of the longest request."""


# ------------------------------------------------------------------------------ the node itself

_OF_CPU = (("package_cpus_list", "core_siblings_list", "physical_package_id"),
           ("core_cpus_list", "thread_siblings_list"), ("die_cpus_list",), ("cluster_cpus_list",))
# Of each group the first file that exists is read: the kernel has renamed some.


def read_files(root: "Any" = "/") -> "Dict[str, str]":
    """Return the texts of the kernel's files that describe the topology, by path below `sys/devices/system`; each
    CPU's folder is listed with an empty text."""
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
    """Return the entries of a folder that are named `name` and a number."""
    try:
        entries = os.listdir(os.path.join(system, folder))
    except OSError:
        return []
    return sorted("{}/{}".format(folder, entry) for entry in entries
                  if entry.startswith(name) and entry[len(name):].isdigit())


def widen() -> "Set[int]":
    """Return the CPUs of the cpuset of this thread, which is what launchers see and use.

    An affinity mask can be smaller (taskset, srun), but Open MPI does not respect it. The mask of this thread is
    widened to find the cpuset, since the kernel cuts the mask to it and knows all kinds of cpusets.
    """
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(max(os.cpu_count() or 1, max(mask) + 1)))
    except OSError:  # a sandbox forbids it: then only the mask is known
        return mask
    return os.sched_getaffinity(0) | mask


def read_memory(root: "Any" = "/") -> "Tuple[int, int]":
    """Return bytes of memory: the total, and what could be used now; 0 if the kernel does not report it."""
    sizes = {}
    try:
        with open(os.path.join(os.fspath(root), "proc/meminfo")) as file:
            for line in file:
                words = line.split()
                if len(words) >= 2 and words[1].isdigit():
                    sizes[words[0]] = 1024 * int(words[1])
    except OSError:
        pass  # no /proc: unknown
    total = sizes.get("MemTotal:", 0)
    return total, sizes.get("MemAvailable:", total)


def memory_limit(root: "Any" = "/") -> int:
    """Return bytes of memory that the control groups of this process allow, 0 for no limit. Reads version 1 and 2 of
    control groups, with all parent groups."""
    root = os.fspath(root)
    limits = []
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, group = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        place = group.strip("/")
        while True:
            for name in (("sys/fs/cgroup", "memory.max"),
                         ("sys/fs/cgroup/memory", "memory.limit_in_bytes")):
                text = _text(os.path.join(root, name[0], place, name[1]))
                limits += [int(text)] if text.isdigit() else []
            if not place:
                break
            place = place.rpartition("/")[0]
    return min((limit for limit in limits if limit < NO_LIMIT), default=0)


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:  # files differ between kernels, machines and containers
        return ""


def device_facts(wanted: "Mapping[str, Any]", environment: "Mapping[str, str]",
                 root: "Any" = "/") -> "Dict[str, Any]":
    """Return the facts on GPUs. `wanted` may have `stand_ins` (a directory that describes the devices, for the node
    `host`), what the batch system granted (`indices` or `count`, see `devices.choose`), `claim` (no other vrm may use
    them), and `again`: the names of devices that this run claimed before and holds again."""
    try:
        found = (devices.stand_ins(wanted["stand_ins"], wanted.get("host", ""))
                 if wanted.get("stand_ins") else devices.find(root))
    except devices.DeviceError as error:
        return {"devices": [], "fault": str(error)}
    hold = claims.hold_device if wanted.get("claim") else None
    again = wanted.get("again")
    if again is None:
        # The agent of a vrm that was killed just now may need a moment to end.
        until = time.monotonic() + CLAIM_SECONDS
        while True:
            chosen, trouble = devices.choose(found, environment, wanted.get("indices"),
                                             wanted.get("count"), hold, devices.opens)
            if not trouble or hold is None or time.monotonic() > until:
                break
            time.sleep(SWEEP_PAUSE)
    else:
        # They may still be held by an agent that has lost its vrm: then no other vrm can have them either.
        chosen, trouble = devices.choose(
            [device for device in found if devices.name_of(device) in again], environment,
            wanted.get("indices"))
        for device in chosen:
            claims.hold_device(device)
    return {"devices": chosen, "lacking": trouble}


def age() -> float:
    """Return seconds since the node's first process began: since its boot, or since the start of a node that is a
    container."""
    first = proc.read_stat(1)
    up = float(_text("/proc/uptime").split()[0])
    return up - (first[1] / os.sysconf("SC_CLK_TCK") if first is not None else 0.0)


def facts(wish: str = "", wanted: "Optional[Mapping[str, Any]]" = None) -> "Dict[str, Any]":
    """Return the facts of the node, from which `vrm.live.nodes.topology.node_facts` makes its result. `wish` is the
    argument of `claims.CoreClaim`, `wanted` that of `device_facts`; what they claim is held until this process ends."""
    mask = os.sched_getaffinity(0)
    cpuset = widen()
    os.sched_setaffinity(0, mask)
    total, available = read_memory()
    files, synthetic = read_files(), os.environ.get("HWLOC_SYNTHETIC", "")
    said = {"files": files, "cpuset": sorted(cpuset), "mask": sorted(mask),
            "synthetic": synthetic, "memory": total, "limit": memory_limit(),
            "available": available, "boot": _text("/proc/sys/kernel/random/boot_id"), "age": age()}
    said.update(device_facts(wanted or {}, os.environ))
    if wish and not synthetic:
        claim = claims.CoreClaim(files, mask, wish)
        if claim.cpus is not None:
            said.update(claimed=claim.cpus, shared=claim.trouble)
    return said


# --------------------------------------------------------------------------------- tasks


class AffinityWatch:
    """Task that searches for the ranks of a job until all are found. `due`: the time of the next search."""

    ends_by_sweep = True

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number = request["number"]
        self.marks = proc.marks(str(request["run"]), int(request["job"]))
        self.wanted = int(request["ranks"])
        self.variables = [os.fsencode(name + "=") for name in request["variables"]]
        self.until = now + float(request["patience"])
        self.due = now
        self.pause = FIRST_PAUSE
        self.ranks: "Dict[int, str]" = {}
        self.found: "Dict[bytes, Dict[int, Set[Process]]]" = {}

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """Note one process of the job."""
        for variable in self.variables:
            rank = proc.rank_of(environment, variable)
            if rank is not None:
                self.found.setdefault(variable, {}).setdefault(rank, set()).add(process)

    def looked(self, now: float) -> bool:
        """End a search through all processes; True when there is nothing more to wait for.

        The first of `variables` that some process has gives the ranks.
        """
        variable = next((name for name in self.variables if name in self.found), b"")
        for rank, processes in self.found.get(variable, {}).items():
            cpus = proc.allowed_cpus(proc.outermost(processes))
            if cpus is not None:
                self.ranks[rank] = cpus
        self.found = {}
        self.due = now + self.pause
        self.pause = min(1.6 * self.pause, LONGEST_PAUSE)
        return len(self.ranks) >= self.wanted or now >= self.until

    def answer(self) -> "Dict[str, Any]":
        """Return the CPUs of each rank that was found."""
        return {"number": self.number, "ranks": {str(r): cpus for r, cpus in self.ranks.items()}}


class Sweep:
    """Task that kills the processes of a job or a run until there are none, after `patience` seconds in which they may
    end by themselves. `due`: the time of the next look."""

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number = request["number"]
        self.run = str(request["run"])
        self.job = None if request["job"] is None else int(request["job"])
        self.marks = proc.marks(self.run, self.job)
        self.others = {proc.marks(self.run, int(job))[1] for job in request.get("spare", ())}
        self.spares = now + float(request["patience"])
        self.until = self.spares + SWEEP_SECONDS
        self.orders = request.get("orders", ())
        self.pause = SWEEP_PAUSE
        self.due = now + self.pause if self.spares > now else now
        self.killed: "Set[Process]" = set()
        self.met = 0
        self.left = 0

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """Count one process of the job. After its `patience`, kill it at once, before it can continue in another
        process."""
        if self.others and any(mark in self.others for mark in environment):
            return
        self.met += 1
        if self.due >= self.spares:
            proc.kill(process)
            self.killed.add(process)

    def looked(self, now: float) -> bool:
        """End a look at all processes; True if there were none, or if they do not die."""
        self.left, self.met = self.met, 0
        self.pause = min(2 * self.pause, SPARING_PAUSE) if now < self.spares else SWEEP_PAUSE
        self.due = min(now + self.pause, self.spares) if now < self.spares else now + self.pause
        done = not self.left or now >= self.until
        for order in self.orders if done else ():
            forget = getattr(EXTENSION_MODULES[order], "forget", None)
            if forget is not None:
                forget(self.run, self.job)
        return done

    def answer(self) -> "Dict[str, Any]":
        """Return how many processes were killed and how many are left."""
        return {"number": self.number, "processes": len(self.killed), "left": self.left}


class MemoryWatch:
    """Task that follows the memory of a job's processes until a request to forget the job. First, shared memory is
    counted for each process that shares it. Only if that sum exceeds the limit, or what was reported by 10 %, the
    exact sum is taken (see `proc.proportional`). `due`: the time of the next look."""

    lasts = True

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number = request["number"]
        self.marks = proc.marks(str(request["run"]), int(request["job"]))
        self.limit = int(request["limit"])
        self.due = now
        self.found: "List[int]" = []
        self.most = 0
        self.said = 0
        self.over = False

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """Note one process of the job."""
        self.found.append(process[0])

    def looked(self, now: float) -> bool:
        """End a look at all processes, and report new values; always False, since the task goes on."""
        found, self.found = self.found, []
        if sum(map(proc.resident, found)) > min(1.1 * self.said, self.limit):
            self.most = max(self.most, sum(map(proc.proportional, found)))
        crossed = self.most > self.limit and not self.over
        if crossed or self.most > 1.1 * self.said:
            self.over, self.said = self.most > self.limit, self.most
            say(self.answer())
        self.due = now + MEMORY_PAUSE
        return False

    def answer(self) -> "Dict[str, Any]":
        """Return the most memory that there was."""
        return {"number": self.number, "memory": self.most, "over": self.over}


def look(tasks: "List[Any]", now: float) -> None:
    """Look through all processes once, for all tasks that are due, and send the answers of those that are done."""
    due = [task for task in tasks if task.due <= now]
    if not due:
        return
    began = now
    for process, environment in proc.marked():
        for task in due:
            if all(mark in environment for mark in task.marks):
                task.see(process, environment)
    now = time.monotonic()
    for task in due:
        if task.looked(now):
            finish(task, tasks)
            tasks += task.then(now) if hasattr(task, "then") else ()
    end = time.monotonic()
    for task in due:
        if getattr(task, "lasts", False):  # this task runs as long as the job
            task.due = max(task.due, end + MEMORY_SHARE * (end - began))


def finish(task: "Any", tasks: "List[Any]") -> None:
    """Remove a task that is done and send its answer."""
    tasks.remove(task)
    answer = task.answer()
    if answer is not None:
        say(answer)


def say(answer: "Dict[str, Any]") -> None:
    """Send one line to vrm. It starts with a newline, to end a line that a login script may have printed."""
    answer["vrm"] = 1
    data = ("\n" + json.dumps(answer, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(1, data):]


TASKS = {"affinity": AffinityWatch, "memory": MemoryWatch}  # type: Dict[str, Any]
"""The classes of tasks by request: they answer later."""

EXTENSION_MODULES = {}  # type: Dict[str, Any]
"""Modules of extensions by the names of their requests."""


def bring(order: str, files: "List[List[str]]") -> None:
    """Load the modules of an extension: pairs of path and text, each after the modules that it imports. They are sent
    as texts, since files of a shared file system would be opened on all nodes at the same moment. They must run with
    Python 3.6 and the standard library, and may import those of this folder.

    The function `take` of the last one gets a request and the time. It returns the answer, or a task like those above.
    A task may have `ends_by_sweep` (it answers as soon as its job is swept), `lasts` (it looks as long as the job
    runs) and `then`, a function of the time that returns the tasks that follow its answer. The module may have
    `forget`, called with the run and the job (None: all) when these were swept, and `close`, called when the agent
    ends.
    """
    for path, text in files if order not in EXTENSION_MODULES else ():
        name = os.path.basename(path)[:-3]
        module = sys.modules.get(name)
        if getattr(module, "__file__", None) != path:
            module = sys.modules[name] = type(sys)(name)
            module.__file__ = path
            exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102  (vrm's own, from its pipe)
        EXTENSION_MODULES[order] = module


def take(request: "Dict[str, Any]", tasks: "List[Any]", now: float) -> None:
    """Begin what a request asks for."""
    kind = request["ask"]
    if kind == "bring":
        bring(request["order"], request["files"])
    elif kind in EXTENSION_MODULES:
        made = EXTENSION_MODULES[kind].take(request, now)
        if isinstance(made, dict):
            say(made)
        else:
            tasks.append(made)
    elif kind in TASKS:
        tasks.append(TASKS[kind](request, now))
    elif kind == "ping":
        say({"number": request["number"]})
    elif kind == "forget":
        marks = proc.marks(str(request["run"]), int(request["job"]))
        tasks[:] = [task for task in tasks
                    if not isinstance(task, MemoryWatch) or task.marks != marks]
    elif kind == "sweep":
        sweep = Sweep(request, now)
        for task in list(tasks):  # a job that is swept gets no further ranks
            if getattr(task, "ends_by_sweep", False) and set(sweep.marks) <= set(task.marks) and "spare" not in request:
                finish(task, tasks)
        tasks.append(sweep)


def serve(silence: float, wish: str = "", wanted: str = "") -> None:
    """Answer requests until the end of the input, or until nothing was heard for `silence` seconds. `wish` and
    `wanted` are the arguments of `facts`, the latter as JSON."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # batch systems warn all steps of a job
    say({"facts": facts(wish, json.loads(wanted or "{}"))})
    try:
        answer_all(silence)
    finally:
        for module in EXTENSION_MODULES.values():
            if hasattr(module, "close"):
                module.close()


def answer_all(silence: float) -> None:
    """Answer requests until the end of the input, or until nothing was heard for `silence` seconds."""
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
        serve(float(sys.argv[1]), *sys.argv[2:4])
    except BrokenPipeError:
        pass  # vrm has gone
