"""Checks the invariants of a run after any faults: see docs/reference/reliability.md. `History` records what really happened to the
programs of jobs; it is compared with what the manager recorded and answered."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from world.actors import programs_of
from world.machine import loading
from world.machine.kernel import K
from world.machine.processes import KILL, TERM, Host, Process
from world.plan import Act, Plan

if TYPE_CHECKING:
    from world.world import World

_LIFE = re.compile(rb'"event":"(job|start|end|again|back|revise)","id":(\d+)[^\n]*\n')

_INTENT = re.compile(rb'"event":"(start|intent|end|again)","id":(\d+)')

DOUBT = 8.0
"""Seconds of silence after which a runner no longer carries out an order (`vrm.live.runner.runner.DOUBT`)."""

DEAF = 2.5
"""Delay of a connection to a node (seconds) from which on the node's answers may come too late."""

SURE = ("start", "end", "again", "back", "revise")


@functools.cache
def vrm() -> SimpleNamespace:
    """Return the modules and names of vrm that worlds use (`_USED`), loaded into the simulated machine."""
    found: dict[str, Any] = {}
    for name in _USED:
        module, _, member = f"vrm.{name}".rpartition(".")
        try:
            found[member] = import_module(f"{module}.{member}")
        except ImportError:
            found[member] = getattr(import_module(module), member)
    found["lending_job"] = import_module("vrm.ext.lending.job_variables")
    from world.actors import Screen, StandardInput
    for order, each in (("masks", found["masks"]), ("pause", found["pausing"]), ("use", found["use"])):
        found["agent"].EXTENSION_MODULES[order] = each  # sources sent as text would not be loaded into the machine
    found["agent_connection"].text_of = lambda path: ""
    found["masks"].MaskSetter.last, found["pausing"].Pauser.last = loading.PerProcess(dict), loading.PerProcess(dict)

    def nothing() -> None:
        raise found["ShimError"]("there is no compiler")
    found["lending_job"].shim = nothing
    rules = found["Settings"].rules.fget  # computed once for all lives, and for all worlds with the same settings
    found["Settings"].rules = property(lambda settings: _of(settings, rules))
    found["client"].sys = SimpleNamespace(stdout=Screen(), stderr=Screen())
    found["relay"].sys = SimpleNamespace(stdin=SimpleNamespace(buffer=StandardInput()))
    return SimpleNamespace(**found, spawner=lambda argv: found["supervisor"].main(argv[4:]))


_RULES: dict[int, tuple[Any, Any]] = {}


def _of(settings: Any, make: Any) -> Any:
    """Return `make(settings)`, computed once per settings object."""
    known = _RULES.get(id(settings))
    if known is None or known[0] is not settings:
        known = _RULES[id(settings)] = settings, make(settings)
    return known[1]


@functools.cache
def programs_of_nodes() -> dict[str, str]:
    """Return the sources that the relay sends to nodes, by path on the simulated machine."""
    folder = Path(__file__).parents[2] / "vrm" / "live" / "runner"
    return {f"{loading.HOUSE}/live/runner/{file.name}": file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py"))}


_USED = (
    "config.policies.make_scheduler",
    "config.schema.Settings",
    "config.schema.load",
    "ext.lending.build.ShimError",
    "ext.slurm.calls.client",
    "ext.slurm.calls.wire.Call",
    "ext.learning.nodes.use",
    "ext.lending.nodes.masks",
    "ext.lending.nodes.pausing",
    "live.launch.base.make_launcher",
    "live.launch.openmpi.OpenMPI",
    "live.launch.script.ScriptLauncher",
    "live.nodes.agents",
    "live.nodes.agent_connection",
    "live.relay.relay",
    "live.runner.agent",
    "live.runner.runner",
    "live.site.setup.prepare",
    "live.manager.manager.Manager",
    "live.site.setup.Site",
    "live.site.setup.make_room",
    "live.spawn.supervisor",
    "model.Cluster",
    "model.job.Infeasible",
    "model.Node",
    "results.jobs.read_jobs",
    "run.command_files",
    "run.journal.codec",
    "run.journal.files",
    "run.journal.combined_records",
    "run.journal.history.replay",
    "run.rundir.RunDirectory",
    "system.errors.RunError",
)
"""Modules and names of vrm that `vrm` returns."""


_SETTINGS: dict[Any, Any] = {}


def settings_of(plan: Plan, path: str) -> Any:
    """Return the settings of a plan. They are read once; reading does not change the time, the calls or the random numbers."""
    key = plan.nodes, plan.cores, plan.policy, plan.backfilling, plan.interrupted, plan.on_stop, plan.walltime, plan.hosts, plan.batch, plan.mpi, plan.lends, plan.licences
    if key not in _SETTINGS:
        steps, now, switch, chance = K.steps, K.now, K.switch_at, K.chance.getstate()
        _SETTINGS[key] = vrm().load(path)
        K.steps, K.now, K.switch_at = steps, now, switch
        K.chance.setstate(chance)
    return _SETTINGS[key]


def emulated(plan: Plan) -> list[Any]:
    """Return the emulated nodes of a plan."""
    resources = {"gpu": float(plan.gpus)} if plan.gpus else {}
    return [vrm().Node(f"e{number}", (plan.cores,), resources) for number in range(plan.nodes)]


def manager_of(world: World) -> Any:
    """Return the real manager, made like `vrm run` does on an emulated cluster, or on hosts."""
    house, settings = vrm(), world.settings
    if world.plan.hosts:
        return house.Manager(settings, house.prepare(settings, dict(loading.ENVIRONMENT)), house.RunDirectory.of(settings),
                             said)
    cluster = house.Cluster(emulated(world.plan), settings.licences)
    scheduler = house.make_scheduler(settings, cluster)
    launcher = (house.OpenMPI("/usr/bin/mpirun", (4, 1, 6), loading.ENVIRONMENT, emulated=True) if world.plan.mpi else
                house.make_launcher(settings.launcher, emulated=True, topologies={}, base=loading.ENVIRONMENT))
    scripts = house.ScriptLauncher.detect(settings.launcher, True, {}, loading.ENVIRONMENT)
    scripts.launcher = launcher
    site = house.Site(cluster, True, scheduler, launcher, house.make_room(settings, cluster, scheduler), scripts=scripts,
                      allocation=f"slurm 7 again {world.allocation}" if world.plan.batch else "")
    return house.Manager(settings, site, house.RunDirectory.of(settings), said)


def said(kind: str, text: str) -> None:
    """Take note of a message of the manager; a copy in which vrm failed is wrong."""
    K.note(f"says {kind}: {text}")
    if text.count("an error in vrm"):
        K.wrong.append(f"the manager says: {text}")


def all_ended(manager: Any) -> bool:
    """Return whether nothing is left to do: no waiting or running job, no unwritten job end, and no job that a stop ended and
    that the next `vrm run` would run again."""
    state = manager.live.state
    return not state.waiting and not manager.live.running and not manager.live.records.pending and not any(
        entry.cause == "stop" and entry.state.value == "cancelled" and not once(entry) for entry in state.book.entries.values())


def once(entry: Any) -> bool:
    """Return whether a job must not run again: its user does not want it requeued."""
    return bool(entry.details.more.get("requeue") == "no")


def given_up(manager: Any) -> set[str]:
    """Return the nodes that did not answer the manager, so that it could not sweep them."""
    cluster = manager.live.cluster
    return set(K.hosts) - {K.home.name, *(node.name for number, node in enumerate(cluster.nodes) if cluster.up >> number & 1)}


def unfolded(data: bytes) -> bytes:
    """Return the bytes of a journal with combined records expanded to one record per job, with the same meaning."""
    if b'"event":"lives"' not in data and b'"event":"jobs"' not in data:
        return data
    house = vrm()
    try:
        records = house.combined_records.unfolded(house.files.parsed(data, "journal"))
        return b"".join(house.files._encode({**each, "sum": ""}).encode() + b"\n" for each in records)
    except ValueError:
        return data  # a later reader reports the error


class Run:
    """One execution of a job's program; `start` is the number of the job's `start` record in the journal. `crashed`: the machine
    crashed while it ran, or before its end was on disk. `shot`: a fault killed it. `orphaned`: a fault killed its supervisor before
    its end was recorded; `unseen`: even before it ended. `unlinked`: the connection to its node was lost before its end was
    recorded. `cut`: its node was unreachable. `late`: its start order arrived after the manager had given it up. `signalled`: the
    manager was to end it; `sent`: the manager has sent the signal."""

    def __init__(self, job: int, process: Process, start: int) -> None:
        self.job, self.process, self.started, self.words = job, process, K.now, process.argv[1:]
        self.start = start
        self.ended: float | None = None
        self.status: int | None = None
        self.crashed = self.shot = self.orphaned = self.unseen = self.signalled = self.sent = False
        self.unlinked = self.cut = self.late = False
        self.cores: frozenset[tuple[str, int, int]] = frozenset()
        self.gpus: frozenset[tuple[str, int]] = frozenset()
        self.ranks = 0

    @property
    def alive(self) -> bool:
        return self.ended is None

    @property
    def licences(self) -> int:
        """Number of licences that it holds."""
        return int("l" in self.words[-1])

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes of its cores."""
        return {name for name, _, _ in self.cores}

    def reaches(self, host: str) -> bool:
        """Return whether it uses the node `host`; for "", any node other than the manager's."""
        nodes = self.nodes | {self.process.host.name}
        return host in nodes if host else bool(nodes - {K.home.name})

    @property
    def brief(self) -> bool:
        """Whether it was killed immediately: its start order may belong to an earlier start."""
        return self.signalled and self.ended is not None and self.ended < self.started + 0.01

    @property
    def clean(self) -> bool:
        """Whether it ended by itself, and vrm could learn how."""
        return self.ended is not None and not (
            self.crashed or self.shot or self.orphaned or self.signalled or self.unlinked)

    @property
    def code(self) -> int | None:
        """The exit status as a shell shows it; None while it runs."""
        if self.status is None:
            return None
        return self.status >> 8 if not self.status & 127 else 128 + (self.status & 127)

    def __repr__(self) -> str:
        marks = "".join(f" {name}" for name in ("crashed", "shot", "orphaned", "unseen", "unlinked", "cut", "late", "signalled") if getattr(self, name))
        end = "" if self.ended is None else f" to {self.ended - 1000:.3f}, {self.code}"
        return f"<run of job {self.job} {self.words} from {self.started - 1000:.3f}{end}{marks}>"


class Told:
    """A command of a user and the `reply` to its client. `ids` are the jobs that the reply names; `why` is the error if it was
    not carried out. `over`: it has a reply."""

    def __init__(self, act: Act, process: Process) -> None:
        self.act, self.process, self.name, self.reply, self.over, self.why = act, process, "", None, False, ""
        self.ids: list[int] = []
        self.at = self.asked = 0.0
        self.sent: Any = None
        self.starts = 0  # number of starts of its job in the journal at the reply

    @property
    def job(self) -> int:
        """Id of the job that the command is about (its last word)."""
        value = self.act.value
        return int(value[-1]) if isinstance(value, tuple) else value

    def begin(self, sent: Any, now: float) -> None:
        self.sent, self.at, self.asked = sent, now, now


class History:
    """Records what really happened, and checks it; `wrong` holds the violations found."""

    def __init__(self) -> None:
        self.runs: dict[int, list[Run]] = {}
        self.wrong: list[str] = []
        self.trouble_until = 0.0
        self.cut_at: dict[str, float] = {}  # when nodes became unreachable
        self.trouble_beyond = 0.0  # time until which nodes may be unreachable
        self.forks_refused = False
        self.stalled = False    # processes of vrm were suspended for a while
        self.machines = self.failures = 0
        self.torn = False       # a user has written half a line into the queue file
        self.unguarded: set[int] = set()  # jobs whose supervisor was killed, or may have been
        self.loose: dict[int, int] = {}   # by job: number of a start that may have no connection to its node
        self.struck: set[int] = set()     # jobs that were started when the machine died
        self.of_file = set[int]()         # jobs of the queue file, whose writer gets no replies
        self.compared = 0
        self.stopping = False   # a user has asked the manager to stop

    def say(self, text: str) -> None:
        """Record a violation and stop the world."""
        self.wrong.append(f"at {K.now - 1000:.6f} s, call {K.steps}: {text}")
        K.over = True

    @staticmethod
    def journal(disk: bool = False) -> bytes:
        """Return the journal as processes see it; with `disk`, as it is on disk."""
        try:
            inode = K.disk.find("/home/user/w/log/journal", "/")
        except OSError:
            return b""
        return inode.disk if disk else bytes(inode.data)

    def known(self, disk: bool = False) -> bytes:
        """Return the valid part of the journal, up to the first zero byte. Nobody has acted on what follows (checked by means of the programs)."""
        return unfolded(self.journal(disk).partition(b"\0")[0])

    # While it happens.

    def begin(self, world: World, process: Process) -> Run:
        """Record that the program of a job begins; check that the journal allows it. Return the run."""
        job = int(process.env["VRM_JOB_ID"])
        last, starts, record = b"", 0, b""
        for found in _LIFE.finditer(self.known(disk=True)):
            if int(found[2]) == job and found[1] != b"job":
                last = found[1]
                if last == b"start":
                    starts, record = starts + 1, found[0]
        run, runs = Run(job, process, starts), self.runs.setdefault(job, [])
        parent = process.parent
        run.signalled = self.stopping
        held_up = process.host.delay > 0.0 or K.now < self.cut_at.get(process.host.name, -DOUBT) + DOUBT  # an order on its way
        if process.host is not K.home:
            run.unlinked = self.loose.get(job) == starts or (parent is not None and parent.dead)
        elif parent is not None and parent.dead:
            run.orphaned = run.unseen = True
            self.unguarded.add(job)
        if parent is not None and "ssh" in parent.facts and parent.facts["ssh"].dead:  # a start order that was already sent
            run.unlinked = run.late = True
            run.cut = held_up
            runs.append(run)
            return run
        gone = given_up(world.object) if getattr(world.object, "live", None) else set()  # their jobs run again elsewhere
        if any(each.alive and not each.late and not ((each.cut or each.process.host.name in gone) and each.process.host is not process.host)
               for each in runs):
            self.say(f"job {job} runs twice at the same time: {runs}, {run}")
        if last in (b"end", b"again") and process.host is not K.home and (
                starts > len(runs) or all(each.start < starts or each.brief for each in runs)):
            run.unlinked = run.late = True
            run.cut = held_up
        elif last != b"start" or starts <= len(runs):
            self.say(f"job {job} starts, and on the disk there are {starts} starts, the last word is {last.decode() or 'nothing'}: "
                     f"{runs}")
        else:
            self._cores(world, run, record)
        run.unlinked |= any(host.name in run.nodes and (not host.on or host.cut or host.delay >= DEAF) for host in K.hosts.values())
        runs.append(run)
        return run

    def _cores(self, world: World, run: Run, line: bytes) -> None:
        """Check that no core, GPU or licence is used by two jobs."""
        record, nodes, run.cores = self._placed(line)
        run.gpus = frozenset((nodes[int(node)].name, index) for node, found in record["placement"].get("devices", {}).items() for index in found["gpu"])
        run.ranks = record["placement"].get("procs", 0)
        names, wrong = run.nodes, self._shape(run, record["placement"])
        if world.plan.hosts and (wrong or run.process.host.name not in names) and self._was_on(run):
            run.unlinked = run.late = True
            return
        if wrong:
            self.say(f"{run} {wrong}")
        if world.plan.hosts and (run.process.host.name not in names or (len(names) > 1 and run.process.role != "script")):
            self.say(f"{run} is on {run.process.host.name}, and was to be on {sorted(run.cores)}")
        lent = self._lent(nodes) if world.plan.lends else {}
        licences = run.licences
        for others in self.runs.values():
            for each in others:
                if each.alive and not each.late and each is not run and not run.unlinked:
                    both = (run.cores - lent.get(run.job, frozenset())) & (each.cores - lent.get(each.job, frozenset()))
                    if both:
                        self.say(f"{run} has cores of {each}: {sorted(both)}")
                    if run.gpus & each.gpus:
                        self.say(f"{run} has GPUs of {each}: {sorted(run.gpus & each.gpus)}")
                    licences += each.licences
                    on, there = run.process, each.process
                    if world.plan.hosts and on.host is there.host and on.affinity & there.affinity and not each.unlinked:
                        self.say(f"{run} is bound to {sorted(on.affinity)}, and {each} to {sorted(there.affinity)}")

        if licences > world.plan.licences and run.licences:
            self.say(f"there are {licences} runs with a licence, of which there are {world.plan.licences}: {run}")

    def _placed(self, line: bytes) -> tuple[Any, list[Any], frozenset[tuple[str, int, int]]]:
        """Return the `start` record of a journal line, the nodes of its manager, and the cores of the job."""
        house = vrm()
        record = house.files._decode(f'{{{line.decode()}')[0]
        data = self.known(disk=True)
        at = data.rfind(b'{"event":"run"', 0, data.find(line))
        nodes = nodes_of(data[at:data.find(b"\n", at)])
        placement = house.codec.placement_of(record["placement"], house.Cluster(nodes))
        return record, nodes, frozenset((nodes[slot.node].name, slot.socket, core) for slot in placement.slots(nodes) for core in slot.cores)

    def _was_on(self, run: Run) -> bool:
        """Return whether an earlier start of the job was placed on the node of this run: its order was sent before it was given up."""
        starts = [found[0] for found in _LIFE.finditer(self.known(disk=True)) if int(found[2]) == run.job and found[1] == b"start"]
        return any(run.process.host.name in {name for name, _, _ in self._placed(line)[2]} for line in starts[:-1])

    def _lent(self, nodes: list[Any]) -> dict[int, frozenset[tuple[str, int, int]]]:
        """Return the cores that jobs have lent, by lender, from the journal on disk."""
        house = vrm()
        lends = house.replay(house.files.parsed(self.journal(disk=True).partition(b"\0")[0], "journal")).state.lends
        layout = house.Cluster(nodes).layout
        return {job: frozenset((nodes[node].name, socket, core) for each in lends.of_lender(job) if each.phase == "lent"
                               for node, socket, first, end in layout.spans(each.loan.cores) for core in range(first, end))
                for job in {each.lender for each in lends.all.values()}}

    def _shape(self, run: Run, placement: Any) -> str:
        """Return how the started program differs from the decision (ranks of each program, number of threads); "" if it does not."""
        process = run.process
        if process.role == "mpirun":
            wanted = [part["procs"] for part in placement.get("parts", [placement])]
            found = [ranks for ranks, _ in programs_of(process.argv)]
            if found != wanted:
                return f"has {found} ranks of its programs, and was to have {wanted}"
        elif "parts" in placement:
            return "is of several programs, and was started without mpirun"
        elif process.role == "job" and "lent" not in placement and int(process.env["OMP_NUM_THREADS"]) != placement["procs"] * placement["width"]:
            return f"has {process.env['OMP_NUM_THREADS']} threads, and {placement['procs']} ranks of {placement['width']} cores"
        return ""

    def stop(self) -> None:
        """Record that the manager is asked to stop: running programs may be ended, depending on the configuration."""
        self.stopping = True
        last = self._last(self.known())
        for job, runs in self.runs.items():
            runs[-1].signalled |= runs[-1].alive or last.get(job) == b"start"  # its end is not recorded yet

    def overdue(self, world: World, run: Run) -> None:
        """Check a program that ended by itself: if it exceeded its limit while a manager ran, the manager should have ended it."""
        live = vars(world.object).get("live")
        entry = live.state.book.entries.get(run.job) if live is not None else None
        if entry is None or entry.job.malleable or live.phase != "running" or run.unlinked or run.orphaned or run.process.host is not K.home:
            return
        due = max(run.started + entry.job.walltime, world.watching, self.trouble_until)
        if K.now > due + 2.0 and not run.shot:
            self.say(f"{run} has a limit of {entry.job.walltime:g} s, and nobody has ended it")

    def carried_out(self, world: World, run: Run) -> None:
        """Check a program that ended by itself: if the manager had recorded that it ends it, it should have done so in time."""
        found = re.findall(rb'"event":"(start|intent|end|again|back)","id":%d\b[^\n]*?(?:"tick":([0-9.]+)|\n)' % run.job, self.known())
        if world.plan.hosts or not found or found[-1][0] != b"intent" or not found[-1][1] or run.shot:
            return
        due = max(float(found[-1][1]) + K.home.booted, run.started, world.watching, self.trouble_until)
        if run.status is not None and not run.status & 127 and K.now > due + 3.0 and not self.stalled:
            self.say(f"{run} was to be ended since {due - 1000:.3f}, and nobody has ended it")

    def intents(self) -> None:
        """Record that programs which the manager was about to end, and whose ends it has not recorded, count as ended by it."""
        last = self._last(self.known(), _INTENT)
        for job, runs in self.runs.items():
            runs[-1].signalled |= last.get(job) == b"intent"

    def intended(self, job: int) -> bool:
        """Return whether the last record of a job in the journal is that the manager is going to end it."""
        return self._last(self.known(), _INTENT).get(job) == b"intent"

    def signalled(self, process: Process, number: int) -> None:
        run = process.facts.get("run") or process.facts.get("rank of")
        if run is not None and K.current.role in ("manager", "runner", "agent") and number not in (0, 17, 18):
            run.signalled = True
            run.sent |= run.alive and K.current.role == "manager" and not K.disk.trouble and (  # a full disk may lose the reason
                not K.disk.failures or self._last(self.known(disk=True), _INTENT).get(run.job) == b"intent")
            if run.alive and K.current.role == "manager" and number in (TERM, KILL) and not (K.disk.failures or run.shot or run.orphaned or run.late):
                self._reasoned(run)

    def _reasoned(self, run: Run) -> None:
        """Check that the reason is on disk when the manager ends a program."""
        found = re.findall(rb'"event":"(start|intent|end|again|back)","id":%d\b' % run.job, self.known(disk=True))
        if found and found[-1] == b"start":
            self.say(f"{run} is ended, and the disk does not have why")

    def lost_supervisor(self, victim: Process) -> None:
        """Record that a fault killed a process; a supervisor may have been the only one that knew how a program ended."""
        if victim.role != "supervisor":
            return
        for job, start, run in self._begun():
            if run is None or run.process.host is not K.home:  # it may have been about to start it
                self.unguarded.add(job)
                self.loose[job] = start
            if run is None:
                continue
            if run.process.host is not K.home:  # unknown which supervisor it has
                run.orphaned = True
            elif run.process.parent is victim and (run.alive or not self._written(job)):
                self.unguarded.add(job)
                run.orphaned, run.unseen = True, run.unseen or run.alive

    @staticmethod
    def _written(job: int) -> bool:
        """Return whether a supervisor has written the complete end of a job into its marker file."""
        try:
            return bytes(K.disk.find(f"/home/user/w/log/pids/{job}", "/").data).count(b"\n") > 1
        except OSError:
            return False

    def _begun(self) -> Iterator[tuple[int, int, Run | None]]:
        """Yield the jobs that run according to the journal: id, number of the start, and the run of that start (None: none yet)."""
        starts: dict[int, int] = {}
        last: dict[int, bytes] = {}
        for found in _LIFE.finditer(self.known()):
            if found[1] != b"job":
                job, last[int(found[2])] = int(found[2]), found[1]
                starts[job] = starts.get(job, 0) + (found[1] == b"start")
        for job in [job for job, word in last.items() if word == b"start"]:
            runs = self.runs.get(job)
            yield job, starts[job], runs[-1] if runs and runs[-1].start == starts[job] else None

    def unlinked(self, host: str, cut: bool = False) -> None:
        """Record that the connection to a node, or to all nodes (""), is lost: vrm may not learn of ends that are not recorded
        yet, and programs that are to start there may not start."""
        if cut:
            self.cut_at[host] = K.now
        for job, start, run in self._begun():
            if run is None:
                self.loose[job] = start
            elif run.reaches(host):
                run.unlinked = True
                run.cut |= cut and run.process.host.name == host
        for run in [run for runs in self.runs.values() for run in runs[-1:] if run.alive]:
            if run.reaches(host):
                run.unlinked = True
                run.cut |= cut and run.process.host.name == host

    def node_died(self, host: Host) -> None:
        """Record the crash of a node, with everything that runs there."""
        self.unlinked(host.name)
        for runs in self.runs.values():
            for run in runs:
                if run.alive and run.process.host is host:
                    run.crashed, run.ended, run.status = True, K.now, KILL

    def crash(self, world: World) -> None:
        """Record the crash of the manager's machine."""
        self.machines += 1
        self.unlinked("")
        for runs in self.runs.values():
            for run in runs:
                if run.alive and run.process.host is K.home:
                    run.crashed, run.ended, run.status = True, K.now, KILL

    def allocation_over(self) -> None:
        """Record that the batch system kills all processes at the end of the allocation."""
        for job, word in self._last(self.known()).items():
            if word == b"start":
                self.struck.add(job)
                for run in self.runs.get(job, ())[-1:]:
                    run.crashed = True

    def after_crash(self, world: World) -> None:
        """Record after a crash whose ends are unknown: jobs that run according to the journal on disk."""
        known = self.known()
        for job, word in self._last(known).items():
            if word == b"start":
                self.struck.add(job)
                for run in self.runs.get(job, ())[-1:]:
                    run.crashed = True
        starts = Counter(int(found[2]) for found in _LIFE.finditer(known) if found[1] == b"start")
        self.loose = {job: min(start, starts[job]) for job, start in self.loose.items()}  # without starts that the crash has undone

    def starts(self, told: Told) -> int:
        """Return how often the job of a cancel command was started according to the journal; 0 for other commands."""
        if told.sent["do"] != "cancel":
            return 0
        return len(re.findall(rb'"event":"start","id":%d\b' % told.job, self.known()))

    @staticmethod
    def _last(journal: bytes, of: re.Pattern[bytes] = _LIFE) -> dict[int, bytes]:
        """Return the event of the last record of each job."""
        return {int(found[2]): found[1] for found in of.finditer(journal) if found[1] != b"job"}

    def listed(self, world: World, told: Told) -> None:
        """Check a list of unended jobs that a user got: it has every unended job that earlier replies named."""
        live = getattr(world.object, "live", None)  # a manager that has not opened the journal yet knows no jobs
        if not hasattr(live, "journal") or any(each.sent and each.sent["do"] == "requeue" for each in world.told):
            return
        entries = live.state.book.entries
        before = {job for each in world.told if each.over and each.at < told.asked for job in each.ids}
        lost = [job for job in sorted(before - {*told.ids}) if job not in entries or not entries[job].state.ended]
        if lost:
            self.say(f"a user was told of all jobs, {told.ids}, and jobs {lost} have not ended")

    def refused(self, world: World, text: str) -> None:
        """Check the error of a manager that could not start or continue: a fault must explain it."""
        failed, self.failures = self.failures < K.disk.failures, K.disk.failures
        trouble = K.now < self.trouble_until + 2.0 or failed or self.forks_refused
        trouble |= K.now < self.trouble_beyond and text.startswith("no node of the allocation answers")
        if not trouble and "runs on" not in text:
            self.say(f"the manager says: {text}")

    def left(self, world: World, manager: Any) -> None:
        """Compare the journal with the memory of a manager that ended normally."""
        self._compare(manager, self.journal(disk=True), "at the end of a life")

    def killed(self, world: World, manager: Any) -> None:
        """Compare the journal with the memory of a killed manager (in every third life)."""
        if world.lives % 3 == 0 and "journal" in vars(manager.live) and not manager.live.journal.pending:
            self._compare(manager, self.journal(), "when it was killed")

    def _compare(self, manager: Any, data: bytes, when: str) -> None:
        house, live = vrm(), manager.live
        try:
            state = type(live.state)(live.scheduler.new_queue(), house.Cluster(live.cluster.nodes), live.room.lacks, frozen=True)
            past = house.replay(house.files.parsed(data, "journal"), "journal", state)
        except ValueError as error:
            self.say(f"the journal {when}: {error}")
            return
        self.compared += 1
        found, wanted = facts(past.state), facts(live.state)
        for job in sorted({*found, *wanted}):
            if found.get(job) != wanted.get(job) and job not in past.state.losing:
                self.say(f"job {job} {when} is {wanted.get(job)} in memory, and {found.get(job)} by the journal")


@functools.lru_cache(maxsize=64)
def nodes_of(line: bytes) -> list[Any]:
    """Return the nodes of a manager from its `run` record."""
    house = vrm()
    return list(house.codec.nodes_of(house.files._decode(line.decode())[0]["nodes"]))


def facts(state: Any) -> dict[int, tuple[Any, ...]]:
    """Return, by job, the values that must be equal in memory and after a replay of the journal."""
    return {job: (entry.state.value, entry.held, entry.tries, entry.losses, entry.job.procs, entry.job.walltime,
                  entry.job.payload.arguments, entry.details.retries)
            for job, entry in state.book.entries.items()}


# Users.


def send(world: World, act: Act) -> dict[str, Any]:
    """Return the command (as in a command file) of an act."""
    if act.kind == "submit":
        return {"do": "submit", "line": act.value}
    if act.kind == "stop":
        return {"do": "stop", "now": act.value}
    if act.kind == "lend":
        return {"do": "lend", "id": act.value[0], "cores": act.value[1], **({} if act.value[2] is None else {"to": act.value[2]})}
    if act.kind == "back":
        return {"do": "lend", "id": act.value[0], "back": True}
    return {"do": act.kind, "ids": [act.value]}


def answer(world: World, told: Told) -> None:
    """Send a command as vrm's client does (`vrm.commands.job`), and record the reply."""
    house, time = vrm(), loading.MODULES["time"]
    run = house.RunDirectory.of(world.settings)
    try:
        for _ in range(30):  # until a manager runs
            if run.manager_runs():
                break
            time.sleep(0.1)
        else:
            told.over = True
            return
        stops = told.sent["do"] == "stop"
        if stops:
            world.history.stop()
        told.name = house.command_files.send(run, told.sent)
        told.reply = house.command_files.answered(run, told.name, 10.0, 0.0 if stops else None)
        told.ids = ((told.reply or {}).get("ids", []) if told.sent["do"] == "submit" else [])
        if told.reply is None and told.sent["do"] == "submit":
            told.ids = house.files.jobs_of_command(run.journal, told.name)
        elif told.ids and (told.reply or {}).get("ok") and told.name.encode() not in world.history.known(disk=True):
            world.history.say(f"a user is told {told.reply}, and the disk does not have {told.ids}")
    except (house.RunError, OSError):
        told.name = told.name or "?"
        told.reply = {"ok": False, "text": "error"}
        return
    told.over, told.at, told.starts = True, K.now, world.history.starts(told)
    K.note(f"client is told {told.reply}")


def slurm(world: World, told: Told) -> int:
    """Run a Slurm command as its client does: through the manager's socket, or by command files as from another node."""
    house, process = vrm(), K.current
    words = told.act.value
    told.name = house.command_files.new_name()
    kind = {"sbatch": "submit", "scancel": "cancel", "squeue": "squeue"}.get(words[0], words[1])
    held = "-H" in words
    told.begin({"do": kind, "held": held}, K.now)
    process.cwd = "/home/user/w/bin"
    process.facts["said"] = b""
    call = house.Call(words[0], list(words[1:]), process.cwd, {**loading.ENVIRONMENT, "VRM_STDIN": f"{process.pid}@elsewhere"}, token=told.name)
    run = house.RunDirectory.of(world.settings)
    try:
        for _ in range(30):
            if run.manager_runs():
                break
            loading.MODULES["time"].sleep(0.1)
        code = house.client.ask(call, run.directory) if world.plan.sockets else house.client.by_files(call, run.directory)
    except (house.RunError, OSError) as error:
        K.note(f"{words} gets {error}")
        told.reply, told.why = {"ok": False, "text": "error"}, str(error)
        return 1
    said = process.facts["said"].decode()
    K.note(f"{words} gets {code}: {said}")
    told.reply, told.over, told.at, told.starts = {"ok": not code, "text": said}, True, K.now, world.history.starts(told)
    told.ids = [int(word) for word in re.findall(r"(?:Submitted batch job|^Job) (\d+)", said, re.MULTILINE)]
    if kind == "squeue" and not code:
        world.history.listed(world, told)
    return int(code)


# At the end of a world.


def events_of(world: World) -> dict[str, int]:
    """Return the number of records in the journal by event."""
    found: dict[str, int] = {}
    for event in re.findall(rb'^\{"event":"(\w+)"', world.history.journal(), re.MULTILINE):
        found[event.decode()] = found.get(event.decode(), 0) + 1
    return found


def judge(world: World) -> None:
    """Check the final state of a world, after everything has ended."""
    house, history = vrm(), world.history
    K.current = K.init
    left = [process for process in K.processes.values() if process is not K.init and process.role not in ("client", "editor")
            and process.host.name not in world.silent and (process.host is K.home or not world.unswept)]
    if left:
        history.say(f"there are still {left}")
    past = house.replay(house.files.parsed(history.journal(), "journal"))
    history.of_file = set(past.of_file)
    rows = {}
    for row in house.read_jobs("/home/user/w/log/jobs.csv"):
        if row.id in rows:
            history.say(f"job {row.id} is twice in jobs.csv")
        rows[row.id] = row
    entries = past.state.book.entries
    for job in sorted({*history.runs, *entries, *rows}):
        if job not in entries:
            history.say(f"job {job} ran, and the journal does not know it")
        elif not entries[job].state.ended:
            history.say(f"job {job} is lost: it is {entries[job].state.value}")
        elif job not in rows or rows[job].status != entries[job].state.value:
            history.say(f"job {job} is {entries[job].state.value}, and in jobs.csv {rows.get(job)}")
        else:
            _judge_job(world, entries[job], rows[job], history.runs.get(job, []))
    _judge_told(world, past)
    asked = {told.name for told in world.told if told.over} | (set() if world.was_stopping else world.found)
    waiting = [name for name in commands() if name in asked]
    if waiting:
        history.say(f"nobody has answered the commands {waiting}")


def _judge_job(world: World, entry: Any, row: Any, runs: list[Run]) -> None:
    history, job, state = world.history, entry.job.id, entry.state.value
    first = job - (entry.details.index or 0)  # Slurm's commands take the id of an array's first job for all of them
    asked = {act.kind for act in world.plan.acts if act.value in (job, "all")} | {
        {"scancel": "cancel"}.get(act.value[0], act.value[1]) for act in world.plan.acts
        if act.kind == "slurm" and act.value[-1] in (str(job), str(first))}
    runs = [run for run in runs if not (run.late and run.cut)] or runs  # see reliability.md for orders that are on their way
    for run in runs[:-1]:
        if run.clean and run.code == 0 and "requeue" not in asked:
            history.say(f"job {job} ended well, and ran again: {runs}")
        if run.clean and run.code and not entry.details.retries and "requeue" not in asked:
            history.say(f"job {job} has no retries, and ran again: {runs}")
    failures = [run for run in runs if run.clean and run.code]
    if len(failures) > entry.details.retries + 1 and "requeue" not in asked:
        history.say(f"job {job} has {entry.details.retries} retries, and failed {len(failures)} times: {runs}")
    unknown = "could not start" in row.reason or (job in history.unguarded and "its supervisor was killed" in row.reason) or (
        job in history.struck and "was restarted" in row.reason) or (
        bool(runs) and history.loose.get(job, 0) > runs[-1].start)  # the last start may have had no run
    last = None if unknown or not runs else runs[-1]
    if state == "completed" and (last is None or last.code != 0):
        history.say(f"job {job} is completed, and it is not: {runs}")
    known = row.exit_code
    if last is not None and known is not None and known != last.code and not last.unlinked and not (
            (last.signalled or state not in ("completed", "failed")) and last.process.host is not K.home):  # the process that represents it here was killed
        history.say(f"job {job} is {state} and said to have ended with {known}, and it is: {runs}")
    if last is not None and last.unseen and (state == "completed" or known is not None):
        history.say(f"job {job} is {state} with {known}, and nobody has seen its end: {runs}")
    for run in runs:
        _judge_words(history, entry.job, run)
    if last is not None and last.clean:
        if state == "failed" and last.code == 0:
            history.say(f"job {job} is failed ({row.reason}), and it ended well: {runs}")
        if state in ("failed", "completed") and known != last.code:
            history.say(f"job {job} is said to have ended with {known} ({row.reason}), and it is: {runs}")
        again = bool(last.code) and "on which it depends" in row.reason and any(
            told.sent and told.sent["do"] == "requeue" for told in world.told)  # before its retry, because it depends on a job that was requeued
        again |= bool(last.code) and "its line was removed" in row.reason and job in history.of_file  # before its retry: a crash has undone the edit
        later = len(re.findall(rb'"event":"start","id":%d\b' % job, history.known())) > last.start  # a start without a run
        if state == "cancelled" and not asked & {"cancel", "requeue"} and not again and not later:
            history.say(f"job {job} is cancelled ({row.reason}), and it ended by itself: {runs}")
    if "could not start" in row.reason and "Input/output error" not in row.reason and not world.plan.hosts:
        history.say(f"job {job} is {state} ({row.reason}): {runs}")
    if state == "cancelled" and row.reason == "the manager was stopped" and not once(entry):
        history.say(f"job {job} was to run again after a stop: {runs}")
    if state == "failed" and "its supervisor was killed" in row.reason and job not in history.unguarded:
        history.say(f"job {job} is failed ({row.reason}), and nobody has killed a supervisor: {runs}")
    sent = last is not None and last.sent and not (last.shot or last.orphaned or last.crashed or last.unlinked)
    if sent and (state == "completed" or (state == "failed" and last is not None and last.code in (137, 143))):
        history.say(f"job {job} was ended by the manager, and is {state} ({row.reason}): {runs}")
    if last is None:
        allowed = state == "cancelled" or (
            state == "refused" and ("depend" in row.reason or (" cannot be kept: " in row.reason and job not in history.of_file) or history.torn or too_large(world, entry.job))) or (
            state == "failed" and unknown) or (
                state == "timeout" and (job in history.unguarded or history.stalled)) or (
                state in ("failed", "timeout") and job in history.loose) or (
                (state == "timeout" or " is down" in row.reason or " was lost" in row.reason) and bool(world.plan.hosts)
                and history.trouble_beyond > 0.0)  # it is unknown whether it ran
        if not allowed:
            history.say(f"job {job} is {state} ({row.reason}), and it never ran")
    elif state == "refused" and not (history.torn and "0x00" in row.reason):  # its line was damaged by the crash
        history.say(f"job {job} is refused ({row.reason}), and it ran: {runs}")


def _judge_words(history: History, job: Any, run: Run) -> None:
    """Check that a run executed what its job says: programs with arguments, and the script as submitted."""
    payload, process = job.payload, run.process
    if process.role == "mpirun":
        found = [tuple(words[1:]) for _, words in programs_of(process.argv)]
        wanted = [tuple(each.arguments) for each in payload.programs] or [tuple(payload.arguments)]
        if found != wanted:
            history.say(f"{run} was of {found}, and its job is {wanted}")
    elif process.role == "script" and "text" in process.facts:
        name = f"s{hashlib.sha256(process.facts['text']).hexdigest()[:40]}"
        if payload.copy != name or not payload.script:
            history.say(f"{run} was of the script {name}, and its job has {payload.copy}")
    widths = job.more.get("ranks")
    if widths and run.ranks and run.ranks not in widths:
        history.say(f"{run} has {run.ranks} ranks, and may have {widths}")


def too_large(world: World, job: Any) -> bool:
    """Return whether a job needs more than the machine has."""
    plan = world.plan
    if not plan.mpi and not job.payload.script and job.request.cores > plan.cores:
        return True
    house = vrm()
    scheduler = house.make_scheduler(world.settings, house.Cluster(emulated(plan)))
    try:
        scheduler.policy.nodes(job)
    except house.Infeasible:
        return True
    return False


def commands() -> list[str]:
    """Return the names of the command files that exist."""
    try:
        return [name for name in K.disk.find("/home/user/w/log/commands", "/").names if not name.startswith(".")]
    except OSError:
        return []


def _judge_waited(world: World, told: Told, made: Collection[int], entries: Mapping[int, Any]) -> None:
    """Check a command that waited for the jobs that it has `made`: it reports success exactly if they completed, unless it says
    that it does not know."""
    found = [entries[job].state.value for job in made if job in entries]
    if "continues with the next manager" in told.reply["text"] or any(each.sent and each.sent["do"] == "requeue" for each in world.told):
        return
    if told.reply["ok"] != ({*found} == {"completed"}):
        world.history.say(f"a user who waited for jobs {made} was told {told.reply}, and they are {found}")


def _judge_told(world: World, past: Any) -> None:
    house, history, entries = vrm(), world.history, past.state.book.entries
    for told in world.told:
        made = past.by_command.get(told.name, [])
        if not told.process.dead and world.plan.sockets:
            history.say(f"a user has waited for the answer to {told.act} since {told.asked - 1000:.3f}")
        if told.why.endswith(("nothing was submitted", "the command was withdrawn")) and made:
            history.say(f"a user was told `{told.why}`, and there are the jobs {made}")
        if told.act.kind == "slurm" and len(made) > 1 + ("--array=0-1" in told.act.value):
            history.say(f"a user has asked {told.act} once, and there are the jobs {made}")
        if not told.over or not told.name:
            continue
        kind, ok = told.sent["do"], bool(told.reply and told.reply["ok"])
        if told.reply and told.reply["text"].startswith("not understood"):
            history.say(f"a user asked {told.sent}, and was told {told.reply}")
        if kind in ("submit", "squeue") and [job for job in told.ids if job not in entries]:
            history.say(f"a user was told of jobs {told.ids}, which there are not")
        if kind == "submit":
            if "-W" in told.act.value:
                _judge_waited(world, told, made, entries)
            if ok and (sorted(told.ids) != sorted(made) if told.act.kind == "submit" else not set(told.ids) <= set(made)):
                history.say(f"a user was told of jobs {told.ids}, and the command has made {made}")
            if not told.ids and past.by_command.get(told.name) and not (
                    told.reply and ("refused" in told.reply["text"] or told.reply["text"] == house.command_files.TAKEN)):
                history.say(f"a user was told {told.reply}, and there are the jobs {past.by_command[told.name]}")
        elif kind == "cancel" and ok and "-tPENDING" not in (told.act.value if told.act.kind == "slurm" else ()) and not any(
                act.kind == "requeue" or "requeue" in (act.value if act.kind == "slurm" else ()) for act in world.plan.acts):
            job = told.job
            late = [run for run in history.runs.get(job, []) if run.started > told.at and not run.late
                    and not (run.start <= told.starts and (run.signalled or run.crashed))]  # its start order was already sent, and it ended
            if late:
                history.say(f"a user was told at {told.at - 1000:.3f} that job {job} was cancelled, and it ran: {late}")
        elif kind == "hold" and ok:
            job = told.job
            free = min((each.at for each in world.told if each.sent and each.sent["do"] == "release" and each.asked >= told.asked),
                       default=float("inf"))
            late = [run for run in history.runs.get(job, []) if told.at < run.started < free - 11.0]
            if late and not any((act.kind == "release" and act.value == job) or (act.kind == "slurm" and "release" in act.value)
                                for act in world.plan.acts):
                history.say(f"a user was told that job {job} is held, and it ran: {late}")
