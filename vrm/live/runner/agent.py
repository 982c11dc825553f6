"""The agent of one node: runs there, and tells vrm of the node and of the jobs' processes on it.
The standard library only, Python 3.6 or newer: `python -I -S agent.py SILENCE [WISH [DEVICES]]`, the wish
for cores of `claims.Claim`, and what `of_devices` takes, as JSON.

Started by `vrm.live.nodes.agents` through ssh, srun or as a child, it speaks lines of JSON on its
standard input and output. It first says what the node is, without being asked. It ends at the
end of its input, or when it has heard nothing for SILENCE seconds (its connection may be cut
without either side being told). Jobs are never touched by its end.

| asked | answered |
|---|---|
| | `{"vrm": 1, "facts": {...}}`, see `facts` |
| `{"number": 1, "ask": "ping"}` | `{"vrm": 1, "number": 1}` |
| `{"number": 2, "ask": "affinity", "run": R, "job": J, "ranks": 4, "variables": [...], "patience": 30}` | `{"vrm": 1, "number": 2, "ranks": {"0": "0-3", ...}}`: the CPUs that each rank of the job may use, as soon as there are so many ranks here, at the latest after `patience` seconds |
| `{"number": 3, "ask": "sweep", "run": R, "job": J, "patience": 2.0}` | `{"vrm": 1, "number": 3, "processes": 5, "left": 0}`: all processes of the job (of the run, if `job` is null, without the jobs in `spare`, where that is there) have ended; so many were killed, since they were there after `patience` seconds, and these did not die |
| `{"number": 4, "ask": "memory", "run": R, "job": J, "limit": 4096}` | `{"vrm": 1, "number": 4, "memory": 5000, "over": true}`, again and again: the most bytes that the job's processes here had together so far; as soon as that is over the limit, and when it has grown by a tenth |
| `{"number": 0, "ask": "bring", "order": NAME, "files": [[PATH, TEXT], ...]}` | nothing; the modules of an extension, see `bring` |
| `{"number": 5, "ask": NAME, "run": R, "job": J, ...}` | what the last of these modules answers |
| `{"number": 0, "ask": "forget", "run": R, "job": J}` | the job has ended: nothing more is said of its memory |

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

if not __package__:  # for `runner.py`, too
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import claims
    import devices
    import proc
else:
    from vrm.live.runner import claims, devices, proc

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would be another tenth
    from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

    from vrm.live.runner.proc import Process

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two looks for ranks: they grow, since looking takes time from the jobs."""

SWEEP_PAUSE = 0.01
SPARING_PAUSE = 0.1
SWEEP_SECONDS = 3.0
"""Seconds between two looks of a sweep, at most so many while it kills nothing yet, and after which what is left
counts as immortal."""

NO_LIMIT = 1 << 60
"""Bytes from which on a limit of a control group (version 1) is none."""

CLAIM_SECONDS = 1.0
"""Seconds in which a GPU may become free that another vrm holds."""

MEMORY_PAUSE, MEMORY_SHARE = 2.0, 200.0
"""Seconds between two looks at the memory of jobs, and how many times as long as the look itself took
they are at least."""

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


def memory_limit(root: "Any" = "/") -> int:
    """Bytes of memory that the control groups of this process allow, 0 for no limit. Version 1 and 2 of
    control groups are read, with all groups above."""
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


def of_devices(wanted: "Mapping[str, Any]", environment: "Mapping[str, str]",
               root: "Any" = "/") -> "Dict[str, Any]":
    """What the facts say of GPUs. `wanted` may have `stand_ins` (a directory, for the node that is
    called `host`), what the batch system says (`indices` or `count`, see `devices.choose`), `claim`
    (no other vrm may have them), and `again`: the names of those that this run has claimed before,
    which it is to hold again."""
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
        # An agent that has lost its vrm may hold them still: no other vrm can have them.
        chosen, trouble = devices.choose(
            [device for device in found if devices.name_of(device) in again], environment,
            wanted.get("indices"))
        for device in chosen:
            claims.hold_device(device)
    return {"devices": chosen, "lacking": trouble}


def age() -> float:
    """Seconds since the node's first process began: since its boot, or since the start of a node that is a
    container."""
    first = proc.read_stat(1)
    up = float(_text("/proc/uptime").split()[0])
    return up - (first[1] / os.sysconf("SC_CLK_TCK") if first is not None else 0.0)


def facts(wish: str = "", wanted: "Optional[Mapping[str, Any]]" = None) -> "Dict[str, Any]":
    """What the node is: all that `vrm.live.nodes.topology.node_facts` makes its answer of. `wish` is that
    of `claims.Claim`, `wanted` that of `of_devices`; what they claim is held as long as this process
    lives."""
    mask = os.sched_getaffinity(0)
    cpuset = widen()
    os.sched_setaffinity(0, mask)
    total, available = read_memory()
    files, synthetic = read_files(), os.environ.get("HWLOC_SYNTHETIC", "")
    said = {"files": files, "cpuset": sorted(cpuset), "mask": sorted(mask),
            "synthetic": synthetic, "memory": total, "limit": memory_limit(),
            "available": available, "boot": _text("/proc/sys/kernel/random/boot_id"), "age": age()}
    said.update(of_devices(wanted or {}, os.environ))
    if wish and not synthetic:
        claim = claims.Claim(files, mask, wish)
        if claim.cpus is not None:
            said.update(claimed=claim.cpus, shared=claim.trouble)
    return said


# ------------------------------------------------------------------------------- what is asked


class AffinityWatch:
    """Looks for the ranks of a job until all are there. `due`: when to look next."""

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
        """One process of the job."""
        for variable in self.variables:
            rank = proc.rank_of(environment, variable)
            if rank is not None:
                self.found.setdefault(variable, {}).setdefault(rank, set()).add(process)

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when there is nothing more to wait for.

        The first of the variables that some process has is what tells the rank.
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
        """What was found."""
        return {"number": self.number, "ranks": {str(r): cpus for r, cpus in self.ranks.items()}}


class Sweep:
    """Kills the processes of a job or a run until there are none, after `patience` seconds in which they may end by
    themselves. `due`: when to look next."""

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
        """One process of the job: killed at once, before it has gone on in another, if it had its time."""
        if self.others and any(mark in self.others for mark in environment):
            return
        self.met += 1
        if self.due >= self.spares:
            proc.kill(process)
            self.killed.add(process)

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when there were none, or they do not die."""
        self.left, self.met = self.met, 0
        self.pause = min(2 * self.pause, SPARING_PAUSE) if now < self.spares else SWEEP_PAUSE
        self.due = min(now + self.pause, self.spares) if now < self.spares else now + self.pause
        done = not self.left or now >= self.until
        for order in self.orders if done else ():
            forget = getattr(BROUGHT[order], "forget", None)
            if forget is not None:
                forget(self.run, self.job)
        return done

    def answer(self) -> "Dict[str, Any]":
        """How many there were."""
        return {"number": self.number, "processes": len(self.killed), "left": self.left}


class MemoryWatch:
    """Follows the memory of a job's processes until it is told to forget them. What processes share is
    counted for each of them first; the exact sum (see `proc.proportional`) is taken where that is more
    than has been said, or than the limit. `due`: when to look next."""

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
        """One process of the job."""
        self.found.append(process[0])

    def looked(self, now: float) -> bool:
        """All processes have been seen: never the last time."""
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
        """The most that there was."""
        return {"number": self.number, "memory": self.most, "over": self.over}


def look(tasks: "List[Any]", now: float) -> None:
    """Look through all processes once, for all tasks that are due, and answer what is done."""
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
        if getattr(task, "lasts", False):  # it looks as long as the job runs
            task.due = max(task.due, end + MEMORY_SHARE * (end - began))


def finish(task: "Any", tasks: "List[Any]") -> None:
    """A task is done: what it has found is said."""
    tasks.remove(task)
    answer = task.answer()
    if answer is not None:
        say(answer)


def say(answer: "Dict[str, Any]") -> None:
    """One line to vrm. The newline before it ends what a login script may have printed."""
    answer["vrm"] = 1
    data = ("\n" + json.dumps(answer, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(1, data):]


TASKS = {"affinity": AffinityWatch, "memory": MemoryWatch}  # type: Dict[str, Any]
"""What is begun for a request, and answers later."""

BROUGHT = {}  # type: Dict[str, Any]
"""Modules of extensions, by their orders."""


def bring(order: str, files: "List[List[str]]") -> None:
    """Run the modules of an extension: paths and texts of their files, each behind those that it imports. They come as
    texts, since files of a shared file system would be opened on all nodes at the same moment. They are for Python 3.6 and
    the standard library, too, and may import those of this folder. `take` of the last one gets a request and the time. It
    gives the answer, or a task as those above. A task may have `ends_by_sweep`: it answers as soon as its job is swept;
    `lasts`: it looks as long as the job runs; and `then`, a function of the time that gives the tasks which follow its
    answer. The module may have `forget`, called with the run and the job (None: all) when these were swept, and `close`,
    when the agent ends."""
    for path, text in files if order not in BROUGHT else ():
        name = os.path.basename(path)[:-3]
        module = sys.modules.get(name)
        if getattr(module, "__file__", None) != path:
            module = sys.modules[name] = type(sys)(name)
            module.__file__ = path
            exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102  (vrm's own, from its pipe)
        BROUGHT[order] = module


def take(request: "Dict[str, Any]", tasks: "List[Any]", now: float) -> None:
    """Begin what a request asks for."""
    kind = request["ask"]
    if kind == "bring":
        bring(request["order"], request["files"])
    elif kind in BROUGHT:
        made = BROUGHT[kind].take(request, now)
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
        for task in list(tasks):  # a job that is swept gets no more ranks
            if getattr(task, "ends_by_sweep", False) and set(sweep.marks) <= set(task.marks) and "spare" not in request:
                finish(task, tasks)
        tasks.append(sweep)


def serve(silence: float, wish: str = "", wanted: str = "") -> None:
    """Answer requests until the end of the input, or until nobody has spoken for so long. `wish` and
    `wanted` are those of `facts`, the latter as JSON."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # batch systems warn all steps of a job
    say({"facts": facts(wish, json.loads(wanted or "{}"))})
    try:
        answer_all(silence)
    finally:
        for module in BROUGHT.values():
            if hasattr(module, "close"):
                module.close()


def answer_all(silence: float) -> None:
    """Answer requests until the end."""
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
