"""Makes the plan of a world from its seed: nodes, jobs, acts of users, and faults with their times. A plan is a plain value,
so that `shrinking` can find a smaller one that still fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """A fault that comes after `gap` further system calls, counted over all processes. With `edge` it then waits for the next
    change of a file (CHANGE), or until a manager opens the file of a job or of a command (LOOK); with `aim`, for another event
    (see `aims`). `value` is a duration (seconds) or an amount."""

    gap: int
    kind: str
    value: float = 0.0
    edge: int = 0
    aim: str = ""


CHANGE, LOOK = 1, 2


class Act(NamedTuple):
    """An act of a user at `time` (seconds after the beginning)."""

    time: float
    kind: str
    value: Any = None


KILLS = ("manager", "spawner", "supervisor", "spare", "both", "program", "client")
"""Faults that kill a process: the manager, its spawner, a supervisor with a job, one without a job, manager and spawner
together, the program of a job, a user's command."""

DISK = ("full", "quota", "readonly", "eio", "slow")
"""Faults of the disk: full, over quota or read-only (for some seconds), failing writes or syncs, slow syncs."""

OTHERS = ("machine", "clock", "pause", "fork")
"""The machine crashes; the clock is set; the manager is suspended (SIGSTOP) for a while; forks fail."""

STALL = "stall"
"""Another process of vrm is suspended for a while."""

BEYOND = ("node", "cut", "delay", "relay", "ssh", "runner", "agent", "stand_in")
"""Faults of other nodes: a node crashes and comes back; it is unreachable for a while; its connection is slow; processes of
vrm that connect to it, or that run on it, are killed."""

BATCH = ("requeue", "warn")
"""Acts of the batch system: it ends its job, after a SIGTERM, and runs it again; it warns of the end."""

PLACES = ("emulated", "hosts", "batch")
"""Places: nodes emulated on one machine; nodes that are other machines; emulated nodes in allocations of a batch system."""

JOBS = {"coupled": " coupled=", "moldable": " ranks=", "script": " script=1", "array": " array=", "after": " after=",
        "lends": " malleable=", "gpus": " gpus_per_", "licences": " licences="}
"""Kinds of jobs, and the field of a queue line that marks each."""

SLURM, SOCKET, FOLDS = "slurm", "socket", "folds"
"""Kinds of worlds: users use commands of Slurm; these commands reach the manager through its socket; managers fold their journals
often."""

CRASHES = (*KILLS[:6], "machine", "node", *BEYOND[3:], "requeue")
"""Faults that count as crashes."""


@dataclass(frozen=True)
class Plan:
    """A world. `nodes` nodes have `cores` cores each. `hosts` are the names of real nodes (node0 is the manager's machine); ()
    if nodes are emulated. `batch` is the length (seconds) of allocations of a batch system; 0 without one. `mpi`: mpirun
    starts the programs of jobs. `lends`: jobs lend cores. `sockets`: the file system supports sockets. `gpus` is the number
    per node, `licences` the number in the run. `reuse`: process ids are reused soon. `lines` is the queue file. `quantum` is the
    mean number of system calls before another process runs. `folds`: managers fold their journals after this number of records. `strict`: see `world.machine.files`."""

    seed: int
    nodes: int = 1
    cores: int = 2
    policy: str = "compact"
    backfilling: str = "easy"
    interrupted: str = "requeue"
    on_stop: str = "kill"
    walltime: str = "warn"
    quantum: float = 30.0
    strict: bool = False
    lines: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()
    faults: tuple[Fault, ...] = field(default=())
    hosts: tuple[str, ...] = ()
    batch: float = 0.0
    mpi: bool = False
    lends: bool = False
    reuse: bool = False
    gpus: int = 0
    licences: int = 0
    sockets: bool = False
    folds: int = 20_000

    @property
    def kinds(self) -> tuple[str, ...]:
        """The place (`PLACES`), the kinds of its jobs other than plain programs (`JOBS`), SLURM and SOCKET."""
        place = "hosts" if self.hosts else "batch" if self.batch else "emulated"
        text = "\n".join((*self.lines, *(act.value for act in self.acts if isinstance(act.value, str))))
        return (place, *(kind for kind, mark in JOBS.items() if mark in text), *[SLURM] * any(act.kind == SLURM for act in self.acts),
                *[SOCKET] * self.sockets, *[FOLDS] * (self.folds < 1000))

    def but(self, **values: Any) -> Plan:
        """Return a copy with other values."""
        return replace(self, **values)

    def told(self) -> str:
        """Return a description for people."""
        rows = [f"{' '.join(self.hosts) or f'{self.nodes} emulated node(s)'} of {self.cores} cores{f', {self.gpus} GPUs' * bool(self.gpus)}{', mpirun' * self.mpi}, {self.policy}, {self.backfilling}, "
                f"Interrupted: {self.interrupted}, "
                f"OnStop: {self.on_stop}, Walltime: {self.walltime}, turns of {self.quantum:g}" + ", strict disk" * self.strict + f", folds after {self.folds} records" * (self.folds < 1000)]
        rows += [f"  line {number}: {line}" for number, line in enumerate(self.lines)]
        rows += [f"  at {act.time:.3f} s: {act.kind} {'' if act.value is None else act.value}" for act in self.acts]
        rows += [f"  allocations of {self.batch:g} s"] * bool(self.batch)
        at = 0
        for fault in self.faults:
            at += fault.gap
            rows.append(f"  at call {at}: {fault.kind} {fault.value or ''}{('', ' after a change of a file', ' when a manager looks at a job')[fault.edge]}{f' soon after {fault.aim}' * bool(fault.aim)}")
        return "\n".join(rows)


def line_of(chance: Random, number: int, cores: int) -> str:
    """Return a random queue line."""
    seconds = chance.choice((0, 0, 0.005, 0.02, 0.1, 0.4, 1.5, 1.5))
    code = chance.choice((0, 0, 0, 0, 0, 3, 42))
    flags = "".join(flag for flag, share in (("i", 0.3), ("d", 0.07), ("c", 0.1), ("w", 0.2), ("s", 0.05), ("n", 0.05))
                    if chance.random() < share)
    line = f"job.x {chance.randint(1, cores) if chance.random() < 0.95 else cores + 1} {chance.choice((1, 9, 60))} 0 args='{seconds} {code} {flags or '-'}'"
    if chance.random() < 0.3:
        line += f" retries={chance.randint(1, 3)}"
    if number and chance.random() < 0.25:
        line += f" after={chance.choice(('', 'any:', ''))}{chance.randrange(number)}"
    if chance.random() < 0.15:
        line += " priority=1"
    if chance.random() < 0.06:
        line += f" array=0-{chance.randint(1, 2)}"
    return line


def acts_of(chance: Random, jobs: int, cores: int) -> list[Act]:
    """Return random acts of users."""
    found = list[Act]()
    for _ in range(chance.choice((0, 1, 2, 3, 5))):
        time = chance.choice((0.01, 0.3, 1.0, 3.0)) * chance.random()
        kind = chance.choice(("submit", "submit", "cancel", "hold", "requeue", "append", "append", "insert", "stop", "term",
                              "release"))
        value: Any = None
        if kind in ("submit", "append", "insert"):
            value = line_of(chance, 0, cores)
        elif kind in ("cancel", "hold", "requeue", "release"):
            value = chance.randrange(jobs)
        elif kind == "stop":
            value = chance.random() < 0.4
        found.append(Act(time, kind, value))
        if kind in ("stop", "term", "requeue") and chance.random() < 0.6:  # another user acts at the same time
            found.append(Act(time + chance.choice((0.01, 0.3)) * chance.random(), "cancel", chance.randrange(min(3, jobs))))
    if any(act.kind == "hold" for act in found):
        found.append(Act(6.0, "release", "all"))
    return sorted(found, key=lambda act: act.time)


def faults_of(chance: Random) -> list[Fault]:
    """Return random faults."""
    tempo = chance.choice((15, 40, 40, 80, 150, 400))
    weights = {kind: chance.choice((0.0, 1.0, 3.0)) * (3.0 if kind in CRASHES else 1.0) for kind in (*KILLS, *DISK, *OTHERS)}
    weights["manager"] += 4.0
    kinds = [kind for kind, weight in weights.items() if weight > 0]
    found = list[Fault]()
    for _ in range(chance.choice((3, 10, 40, 80))):
        gap = chance.randint(1, 12) if chance.random() < 0.25 else 1 + int(chance.expovariate(1.0 / tempo))
        kind = chance.choices(kinds, [weights[kind] for kind in kinds])[0]
        value = round(chance.choice((0.02, 0.5, 2.0)) * (0.2 + chance.random()), 4)
        if kind == "clock":
            value = chance.choice((-1, 1)) * chance.choice((2.0, 100.0, 90000.0))
        elif kind == "eio":
            value = float(chance.randint(1, 4))
        elif kind == "pause":
            value = chance.choice((0.1, 2.5, 8.0))
        found.append(Fault(gap, kind, value, int(chance.random() < 0.3)))
    return found


def beyond(chance: Random, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults with some of them replaced by faults of nodes."""
    kinds = [kind for kind in BEYOND if chance.random() < 0.5] or ["node"]
    return tuple(fault._replace(kind=chance.choice(kinds), value=chance.choice((0.1, 3.0, 20.0, 100.0)) * (0.2 + chance.random()))
                 if fault.kind != "machine" and chance.random() < 0.35 else fault for fault in faults)


def together(chance: Random, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults with further ones that overlap with them: a manager is killed, or the machine crashes, while the disk
    accepts nothing or just after the clock was set."""
    found = list[Fault]()
    for fault in faults:
        found.append(fault)
        if fault.kind in (*DISK[:3], "clock", "pause"):
            found.append(Fault(chance.choice((3, 20, 60)) + int(chance.random() * 40), chance.choice(("manager", "manager", "machine"))))
    return tuple(found)


SALT = 0x13875
"""Changes the random numbers of a later feature, so that older seeds in `regressions.txt` still make their worlds."""


def other_jobs(plan: Plan) -> Plan:
    """Give four of ten worlds also other jobs than plain programs: coupled or moldable ones, scripts, or jobs that lend."""
    chance = Random(plan.seed ^ SALT)
    if chance.random() < 0.6:
        return plan
    if chance.random() < 0.25:
        return lending(plan, chance)
    kinds = [kind for kind in ("coupled", "moldable", "script") if chance.random() < 0.5] or ["script"]
    if plan.hosts and "coupled" in kinds:
        kinds.remove("coupled")

    def changed(line: str) -> str:
        return other_line(chance, line, kinds, plan) if kinds and chance.random() < 0.6 else line
    lines = tuple(map(changed, plan.lines))
    acts = tuple(act._replace(value=changed(act.value)) if act.kind in ("submit", "append", "insert") else act for act in plan.acts)
    if "script" in kinds and chance.random() < 0.5:
        acts = tuple(sorted((*acts, Act(chance.choice((0.3, 3.0)) * chance.random(), "edit", chance.randrange(100))), key=lambda act: act.time))
    return plan.but(lines=lines, acts=acts, mpi="coupled" in kinds,
                    backfilling="moldable" if "moldable" in kinds else plan.backfilling)


DENSE, DENSE_SINCE = 0x5417e, 795_911_000_000
"""Changes the random numbers of `dense` (see SALT); worlds of seeds from the second number on have kills between the other faults."""


def dense(plan: Plan) -> Plan:
    """Add a hundred kills in quick succession to two thirds of the worlds, between the other faults. Seeds below DENSE_SINCE: to a
    third, after the other faults; most of these worlds end before the kills come."""
    chance = Random(plan.seed ^ DENSE)
    if plan.seed < DENSE_SINCE:
        return plan if chance.random() < 0.66 else plan.but(faults=(*plan.faults, *kills(plan, chance)))
    return plan if chance.random() < 0.33 else plan.but(faults=between(plan.faults, kills(plan, chance)))


def between(*found: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return the faults of all sequences, each at its own time."""
    timed = sorted(((at, fault) for faults in found for at, fault in zip(accumulate(fault.gap for fault in faults), faults)),
                   key=lambda each: each[0])
    times = [0, *(at for at, _ in timed)]
    return tuple(fault._replace(gap=max(1, at - before)) for (at, fault), before in zip(timed, times))


def kills(plan: Plan, chance: Random) -> list[Fault]:
    """Return a hundred kills."""
    tempo = chance.choice((40, 100, 200))
    kinds = [*KILLS[:5], *KILLS[:5], "manager", "manager", "both", "machine", *(BEYOND[3:] if plan.hosts else ()), *(BATCH[:1] if plan.batch else ())]
    return [Fault(1 + int(chance.expovariate(1.0 / tempo)), chance.choice(kinds), chance.choice((0.0, 0.3, 2.0)), int(chance.random() < 0.2))
            for _ in range(100)]


HELD = 0x602c
"""Like SALT, for GPUs and licences."""


def with_devices(plan: Plan) -> Plan:
    """Give jobs licences in a seventh of the worlds, and GPUs if nodes are emulated. Programs with a licence have the flag l."""
    chance = Random(plan.seed ^ HELD)
    if chance.random() < 0.85 or plan.lends:
        return plan

    def changed(line: str) -> str:
        gpus, licence = not plan.hosts and chance.random() < 0.6, chance.random() < 0.4
        if not line.startswith("job.x ") or " ranks=" in line:
            return line
        line += chance.choice((" gpus_per_task=1", " gpus_per_node=1", " gpus_per_node=2")) * gpus
        return re.sub("( [a-z-]+)'", r"\1l'", line) + " licences=lic:1" if licence else line
    return plan.but(lines=tuple(map(changed, plan.lines)), gpus=0 if plan.hosts else 2, licences=2, acts=tuple(
        act._replace(value=changed(act.value)) if act.kind in ("submit", "append", "insert") else act for act in plan.acts))


AGAIN = 0x4eee80
"""Like SALT, for `hard_times`."""


def hard_times(plan: Plan) -> Plan:
    """Change four of ten worlds: faults come when a manager looks, processes other than the manager are suspended, process ids
    are reused, users send many commands at once, jobs are too large, or the machine crashes early."""
    chance = Random(plan.seed ^ AGAIN)
    if chance.random() < 0.6:
        return plan
    faults, acts, lines = list(plan.faults), list(plan.acts), plan.lines
    for at, fault in enumerate(faults):
        if fault.kind in (*KILLS, "pause") and chance.random() < 0.4:
            faults[at] = fault._replace(edge=LOOK)
        elif chance.random() < 0.15:
            faults[at] = fault._replace(kind=STALL, value=chance.choice((0.02, 0.5, 2.5)))
    if chance.random() < 0.3:
        faults.insert(0, Fault(chance.randint(40, 450), "machine"))
    if chance.random() < 0.4:
        time = chance.choice((0.01, 0.5, 2.0))
        for _ in range(chance.choice((4, 10))):
            kind = chance.choice(("submit", "submit", "cancel", "requeue"))
            acts.append(Act(time + 0.3 * chance.random(), kind, line_of(chance, 0, plan.cores) if kind == "submit" else chance.randrange(6)))
    if chance.random() < 0.3:
        lines = tuple(line.replace("job.x ", "job.x 9", 1) if line.startswith("job.x ") and chance.random() < 0.4 else line for line in lines)
    if chance.random() < 0.3:
        acts += [slurm_command(chance, plan) for _ in range(chance.choice((2, 5)))]
        acts.append(Act(6.5, "release", "all"))
    return plan.but(faults=tuple(faults), acts=tuple(sorted(acts, key=lambda act: act.time)), lines=lines, reuse=chance.random() < 0.4)


def slurm_command(chance: Random, plan: Plan) -> Act:
    """Return a random Slurm command of a user."""
    kind, job = chance.choice(("sbatch", "sbatch", "scancel", "hold", "release", "requeue", "update")), str(chance.randrange(6))
    words = {"sbatch": ("sbatch", f"-n{chance.randint(1, plan.cores)}", f"-t{chance.choice((1, 60))}", *["-H"] * (chance.random() < 0.2),
                        *["--array=0-1"] * (chance.random() < 0.2), "run.sh", str(chance.choice((0, 0.1, 1.5))), str(chance.choice((0, 0, 3))), "-"),
             "scancel": ("scancel", *chance.choice(((job,), (job,), ("-tPENDING", job)))),
             "update": ("scontrol", "update", f"JobId={job}", chance.choice(("TimeLimit=2", "Priority=5", "JobName=other", "Requeue=0"))),
             }.get(kind, ("scontrol", kind, job))
    return Act(chance.choice((0.1, 1.0, 3.0)) * chance.random(), SLURM, words)


def front_command(chance: Random, plan: Plan) -> Act:
    """Return a Slurm command: as `slurm_command`, or squeue, or an sbatch that waits."""
    act = slurm_command(chance, plan)
    if chance.random() < 0.3:
        return act._replace(value=("squeue", "-h", "-r", "-o", "Job %A"))
    if act.value[0] == "sbatch" and chance.random() < 0.3:
        return act._replace(value=("sbatch", "-W", *act.value[1:]))
    return act


def lending(plan: Plan, chance: Random) -> Plan:
    """Return the plan with jobs that lend cores, on request of the dispatcher or of users."""
    cores = max(2, plan.cores)

    def malleable(line: str) -> str:
        app, ranks, limit, run, arguments, *rest = split(line)
        wide = chance.randint(1, cores)
        arguments = re.sub("'[0-9.]+", f"'{chance.choice((0.4, 1.5, 1.5, 1.5 if plan.batch else 5))}", arguments)
        return " ".join((app, str(max(1, int(ranks) // wide)), limit, run, arguments, f"cores={wide} malleable=1", *rest))
    lines = tuple(malleable(line) if chance.random() < 0.8 else line for line in plan.lines)
    acts = list(plan.acts)
    for _ in range(chance.choice((0, 2, 4, 6))):
        lender, borrower = chance.randrange(3), chance.randrange(len(lines))
        kind = chance.choice(("lend", "lend", "lend", "back"))
        acts.append(Act(chance.choice((0.1, 1.0, 3.0)) * chance.random(), kind, (
            lender, chance.randint(0, 2), borrower if chance.random() < 0.7 else None)))
    return plan.but(lines=lines, acts=tuple(sorted(acts, key=lambda act: act.time)), cores=cores, lends=True,
                    backfilling=chance.choice((plan.backfilling, "sd", "sd max_slowdown=1.5", "sd when=always")))


def other_line(chance: Random, line: str, kinds: Sequence[str], plan: Plan) -> str:
    """Turn the line of a plain job into one of a job of one of these kinds."""
    kind = chance.choice(kinds)
    app, ranks, limit, run, arguments, *rest = split(line)
    if kind == "moldable":
        widths = chance.choice((f"1..{plan.cores}", f"1,{plan.cores}", f"{min(2, plan.cores)}..{plan.cores + 1}"))
        return " ".join((app, ranks, limit, run, arguments, f"ranks={widths}", *rest))
    if kind == "script":
        return " ".join(("run.sh", ranks, limit, run, arguments, "script=1", *rest))
    parts = [(f"job.x {chance.randint(1, 2)}" + chance.choice(("", "", f" cores={min(2, plan.cores)}"))
              + f' {arguments.replace(QUOTE, DOUBLE)}') for _ in range(chance.choice((2, 2, 3)))]
    procs = sum(int(part.split()[1]) for part in parts)
    return " ".join(("pair", str(procs), limit, run, f"coupled='{' : '.join(parts)}'", *rest))


QUOTE, DOUBLE = "'", '"'


def split(line: str) -> list[str]:
    """Return the words of a line, with their quotes."""
    return re.findall(r"(?:[^\s']|'[^']*')+", line)


def plan_of_chance(seed: int, strict: bool = False) -> Plan:
    """Return the world of a seed with faults at random times. Two of ten worlds have real nodes, two of ten are in allocations of
    a batch system."""
    return with_devices(dense(hard_times(other_jobs(plan_of_places(seed, strict)))))


def plan_of_places(seed: int, strict: bool = False) -> Plan:
    """Return the world of a seed, with plain programs as jobs."""
    plan = plan_of_emulated(seed, strict)
    chance = Random(seed ^ 0xdeed)
    if chance.random() < 0.4:
        plan = plan.but(faults=together(chance, plan.faults))
    if chance.random() < 0.1:
        plan = plan.but(acts=tuple(sorted((*plan.acts, Act(chance.choice((0.01, 1.0)) * chance.random(), "rubbish")),
                                          key=lambda act: act.time)))
    plan = plan.but(lines=tuple(line.replace(" -'", " g'") if chance.random() < 0.3 else
                                line.replace("'1.5 ", "'5 ") if chance.random() < 0.2 else line for line in plan.lines))
    chance = Random(seed ^ 0x5eed)
    kind = chance.random()
    if kind < 0.2:
        length = chance.choice((4.0, 9.0, 60.0, 400.0))
        return plan.but(batch=length, lines=tuple(line.replace("'5 ", "'1.5 ") for line in plan.lines), faults=tuple(
            fault._replace(kind="requeue" if chance.random() < 0.8 else "warn", value=chance.choice((0.0, 0.3, 2.0, 5.0)))
            if chance.random() < 0.2 else fault for fault in plan.faults))
    if kind < 0.8:
        return plan
    hosts = chance.choice((("n1",), ("n1", "n2"), ("node0", "n1"), ("node0", "n1", "n2")))
    return plan.but(hosts=hosts, nodes=len(hosts), faults=beyond(chance, plan.faults))


def plan_of_emulated(seed: int, strict: bool = False) -> Plan:
    """Return the world of a seed, with nodes emulated on one machine."""
    chance = Random(seed)
    nodes, cores = chance.choice((1, 1, 2, 3)), chance.choice((1, 2, 2, 4))
    jobs = chance.randint(2, 7)
    return Plan(
        seed, nodes, cores, chance.choice(("compact", "pack")), chance.choice(("none", "easy", "conservative")),
        chance.choice(("requeue", "requeue", "mark")), chance.choice(("kill", "wait", "requeue")),
        chance.choice(("warn", "kill")), chance.choice((3.0, 30.0, 30.0, 200.0)), strict or chance.random() < 0.3,
        tuple(line_of(chance, number, cores) for number in range(jobs)),
        tuple(acts_of(chance, jobs, cores)), tuple(faults_of(chance)))
