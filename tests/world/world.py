"""Runs a world: the simulated machine with its manager, the users, and the faults of a plan."""

from __future__ import annotations

import contextlib
import gc
import signal
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent

from world import actors, aims, truths
from world.machine import file_calls, loading, process_calls
from world.machine.kernel import K, NEVER
from world.machine.processes import KILL, TERM, Host, Process
from world.plan import BEYOND, LOOK, SLURM, Act, Fault, Plan
from world.truths import History, Told

MOST_SECONDS = 900.0
"""Virtual seconds within which a world must end."""

MOST_PUT_OFF = 40
"""Number of times that a fault without a target is postponed before it is dropped."""

MOST_STEPS = 200_000
"""Number of system calls within which a world must end."""

MOST_WAITED = 1.0
"""Seconds after which a fault comes even if the event that it waits for has not happened."""

HOME = "/home/user/w"

SCRIPT = "#!world script\n# {}\n" + "# a line\n" * 90
"""The batch script of users; their edits change the number in it."""

RUNS = ("job", "mpirun", "script")
"""Roles of the processes that vrm starts for a job."""

ERRNO = {"full": 28, "quota": 122, "readonly": 30}


@dataclass
class Outcome:
    """The result of a world; `wrong` is empty if it passed."""

    plan: Plan
    wrong: list[str]
    digest: int
    steps: int
    events: int
    crashes: int
    lives: int
    kinds: dict[str, int] = field(default_factory=dict)   # faults that came, by kind
    journal: dict[str, int] = field(default_factory=dict)  # records, by event
    trace: list[str] = field(default_factory=list)


class World:
    """Runs one plan. `history` records what really happened to the programs of jobs, `told` the commands of users with the replies."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.history = History()
        self.told: list[Told] = []
        self.faults = list(plan.faults)
        self.kinds: dict[str, int] = {}
        self.crashes = self.lives = 0
        self.manager: Process | None = None
        self.object: Any = None      # the Manager of the current life
        self.finished = False
        self.acting = len(plan.acts)
        self.began = 0.0
        self.lasting = sum(act.value == "all" for act in plan.acts)
        self._refuse_forks = 0
        self._slow_until = 0.0
        self.postpone = 0
        self.allocation = 1           # number of the allocation of the batch system
        self.found: set[str] = set()  # command files that existed when the life began
        self.watching = 0.0  # since when a manager has run without a pause
        self.silent: set[str] = set()  # nodes that were unreachable at some time of the life
        self.unswept = False          # processes that connect to nodes were killed recently
        self.was_stopping = False     # the last manager had been asked to stop
        self.aim = ""                 # what the next fault waits for, and the number of such faults so far
        self.aimed = 0
        self.doer: Process | None = None  # the process that caused the event

    # Its parts.

    def run(self) -> Outcome:
        """Run the world and check it; return the outcome."""
        plan = self.plan
        K.reset(plan.seed, plan.strict)
        K.quantum, K.most, K.reuse = plan.quantum, MOST_STEPS, plan.reuse
        K.main = getcurrent()
        loading.forget()
        K.on_end, K.faults, K.faulty_fork = self._ended, self._fault, self._no_fork
        K.slow = lambda: 0.3 if K.now < self._slow_until else 0.0
        K.socket_files = plan.sockets
        K.programs.update(spawner=truths.vrm().spawner, job=actors.job, mpirun=actors.mpirun, script=actors.script, ssh=actors.ssh, relay=actors.relay, agent=actors.agent)
        K.on_start, K.on_signal = self._started, self._signalled
        loading.PARTS[:] = [*["lending"] * plan.lends, *["calls"] * (SLURM in plan.kinds)]
        loading.MODULES["os"].environ["VRM_FOLD_AFTER"] = str(plan.folds)
        self._prepare()
        self._next_fault()
        self.began = K.now
        for at, act in enumerate(plan.acts):
            K.at(K.now + act.time, lambda at=at, act=act: self._act(at, act))  # type: ignore[misc]
        self._start_manager()
        wrong = self.history.wrong
        if not K.run(K.now + MOST_SECONDS) and not wrong:
            wrong.append(f"it has not ended in {MOST_SECONDS:g} s")
        if K.steps > MOST_STEPS:
            wrong.append(f"it has not ended in {MOST_STEPS} calls")
        K.over = False
        if self.finished and not wrong and not K.wrong:
            K.on_end, K.fault_at, self.aim = self._ended, NEVER, ""
            K.disk.armed = K.looking = None
            self._heal()
            K.run(K.now + (300.0 if plan.hosts else 200.0 if plan.sockets else 30.0))
            truths.judge(self)
        elif not self.finished and not wrong and not K.wrong:
            wrong.append("nobody can go on: " + ", ".join(map(repr, K.processes.values())))
        found = [*wrong, *K.wrong]
        self._end()
        return Outcome(plan, found, K.digest, K.steps, K.events, self.crashes, self.lives, self.kinds,
                       truths.events_of(self), list(K.trace or ()))

    def _prepare(self) -> None:
        """Write the files of the user and of the system."""
        disk, plan = K.disk, self.plan
        for folder in ("/usr/bin", "/tmp", "/dev/shm", f"{HOME}/bin"):
            file_calls.makedirs(folder)
        self.write("/usr/bin/python3", "#!world python\n", 0o755)
        self.write(f"{HOME}/bin/job.x", "#!world job\n", 0o755)
        self.write("/usr/bin/mpirun", "#!world mpirun\n", 0o755)
        self.write(f"{HOME}/bin/run.sh", SCRIPT.format(0), 0o755)
        where = f"Nodes: {plan.nodes}\nSockets: 1\nCores: {plan.cores}\nEmulate: true"
        if plan.hosts:
            where = "Hosts: {File: hosts, Reach: [/usr/bin/ssh], Timeout: 5}"
            self._prepare_nodes()
        self.write(f"{HOME}/vrm.yaml", f"""Applications: {{Path: bin, Queue: queue}}
Scheduling: {{Backfilling: {plan.backfilling}}}
Allocation: {{Policy: {plan.policy}}}
{where}
Launcher: {{Kind: {"openmpi" if plan.mpi else "direct"}}}
Log: log
Grace: 1
Walltime: {plan.walltime}
Interrupted: {plan.interrupted}
OnStop: {plan.on_stop}
{f"Licences: {{lic: {plan.licences}}}" * bool(plan.licences)}
End: {f"{{At: {plan.batch:g}, Margin: 0.5, Fit: no}}" if plan.batch else "{At: never}"}
""")
        self.write(f"{HOME}/queue", "".join(f"{line}\n" for line in plan.lines))
        self.settings = truths.settings_of(plan, f"{HOME}/vrm.yaml")
        disk.save_all()

    def _prepare_nodes(self) -> None:
        """Add the other machines, with the kernel's files that describe them; all share one disk."""
        cores = self.plan.cores
        for name in self.plan.hosts:
            if name not in K.hosts:
                K.add_host(name)
        self.write(f"{HOME}/hosts", "".join(f"{name}\n" for name in self.plan.hosts))
        self.write("/usr/bin/ssh", "#!world ssh\n", 0o755)
        system = "/sys/devices/system"
        files = {"cpu/online": f"0-{cores - 1}", "node/node0/cpulist": f"0-{cores - 1}"}
        for cpu in range(cores):
            files |= {f"cpu/cpu{cpu}/topology/package_cpus_list": f"0-{cores - 1}",
                      f"cpu/cpu{cpu}/topology/core_cpus_list": str(cpu)}
        for name, text in files.items():
            file_calls.makedirs(f"{system}/{name}".rpartition("/")[0], exist_ok=True)
            self.write(f"{system}/{name}", f"{text}\n")
        for name, text in truths.programs_of_nodes().items():
            file_calls.makedirs(name.rpartition("/")[0], exist_ok=True)
            self.write(name, text)

    @staticmethod
    def write(path: str, text: str, mode: int = 0o644) -> None:
        """Write and sync a file as the user."""
        number = file_calls.open_(path, 0o1101, mode)
        data = text.encode()
        try:
            while data:
                data = data[file_calls.write(number, data):]
            file_calls.fsync(number)
        finally:
            file_calls.close(number)

    def _heal(self) -> None:
        """Power on all nodes and restore all connections."""
        for host in K.hosts.values():
            if not host.on:
                K.power_on(host)
            if host.cut:
                K.cut(host, False)
            host.delay = 0.0

    def _end(self) -> None:
        """End all remaining processes."""
        K.fault_at, K.faults = NEVER, lambda: None
        for process in list(K.processes.values()):
            if process is not K.init and not process.dead:
                process.dead, process.status = True, KILL
                K.corpses.append(process)
        K._bury()
        self.object = None

    # The manager's lives.

    def _start_manager(self) -> None:
        if self.manager is None and not self.finished:
            self.lives += 1
            self.watching = K.now
            self.found = set(truths.commands())
            self.silent = {host.name for host in K.hosts.values() if host.cut or not host.on or host.delay >= truths.DEAF}
            self.manager = actors.user("manager", self._life)
            if self.plan.batch:
                life = self.lives
                K.at(K.now + self.plan.batch, lambda: self._requeue(life, 1.0))

    def _life(self) -> int:
        """Run one life of the real manager; return its exit status."""
        try:
            self.object = manager = truths.manager_of(self)
            manager.run()
        except (truths.vrm().RunError, OSError) as error:  # as `vrm.cli.main` does
            K.note(f"says error: {error}")
            self.history.refused(self, str(error))
            return 2
        self.history.left(self, manager)
        return 0

    def _ended(self, process: Process) -> None:
        """Record the end of a process."""
        run = process.facts.get("run")
        if run is not None:
            self._now("exit", process)
            run.ended, run.status = K.now, process.status
            run.signalled |= self.history.intended(run.job)
            if self.manager is not None:
                self.history.carried_out(self, run)
            if self.plan.walltime == "kill" and not run.signalled and self.object is not None:
                self.history.overdue(self, run)
        if process.role in ("ssh", "relay"):
            self.history.unlinked(process.argv[1] if process.role == "ssh" else "")
        if process is self.manager:
            self.was_stopping = self.history.stopping
            self.manager, self.history.stopping = None, self._stop_waits()
            self.history.intents()
            self._manager_ended(process)

    def _stop_waits(self) -> bool:
        """Return whether a waiting command will stop the next manager."""
        names = {told.name for told in self.told if told.sent and told.sent["do"] == "stop"}
        return bool(names.intersection(truths.commands()))

    def _manager_ended(self, process: Process) -> None:
        normal = process.status == 0
        if not normal and process.status == KILL and self.object is not None:
            self.history.killed(self, self.object)
        manager, self.object = self.object, None
        if normal and manager is not None and self.acting <= self.lasting and truths.all_ended(manager):
            self.finished = True
            self.unswept = K.now < self.history.trouble_beyond - 50.0  # vrm waits only some seconds for the last sweep
            if K.now < self.history.trouble_beyond:
                self.silent |= truths.given_up(manager)
            K.over = True
            return
        if K.wrong or self.history.wrong or K.steps > MOST_STEPS or self.lives > 1000:
            if not (K.wrong or self.history.wrong):
                self.history.wrong.append(f"it has not ended in {K.steps} system calls and {self.lives} lives")
            K.over = True
            return
        due = [each.time + self.began - K.now for each in self.plan.acts[len(self.plan.acts) - self.acting:]]
        rest = K.chance.choice((0.0, 0.001, 0.02)) if process.status == KILL else 0.4 if normal else max(1.5, self.history.trouble_until - K.now)
        if normal and manager is not None and truths.all_ended(manager) and due:
            rest = max(rest, min(due))  # there is no work before the next act
        K.at(K.now + rest, self._start_manager)

    # Programs of jobs.

    def _started(self, process: Process) -> None:
        """Record the start of a process, if it is the program of a job."""
        if process.role in RUNS:
            process.facts["run"] = self.history.begin(self, process)
            self._now("begin", process)

    def _signalled(self, process: Process, number: int) -> None:
        """Record a signal to a process."""
        self.history.signalled(process, number)
        if process.facts.get("run") is not None and K.current is self.manager and number in (TERM, KILL):
            self._now("signal", K.current)

    # Users.

    def _act(self, at: int, act: Act) -> None:
        """Perform an act of a user, in a process of its own."""
        if self.finished:
            return
        if K.disk.trouble and act.kind in ("append", "insert", "edit"):
            K.at(K.now + 1.0, lambda: self._act(at, act))
            return
        if act.kind in ("append", "insert") and any(process.role == "editor" for process in K.processes.values() if not process.dead):
            K.at(K.now + 0.1, lambda: self._act(at, act))  # users edit a file one after the other
            return
        body = {"append": self._append, "insert": self._insert, "term": self._term, "edit": self._edit_script}.get(act.kind)
        if body is not None:
            actors.user("editor", lambda: self._edit(body, act))
        else:
            process = actors.user("client", lambda: self._command(act))
            process.facts["act"] = act
            told = Told(act, process)
            process.facts["told"] = told
            self.told.append(told)
            process.facts["over"] = False
        self.acting -= 1
        if act.kind == "release" and act.value == "all":  # the user repeats the release of held jobs
            self.acting += 1
            K.at(K.now + 20.0, lambda: self._act(at, act))

    def _edit(self, body: Any, act: Act) -> int:
        with contextlib.suppress(OSError):
            body(act)
        return 0

    def _append(self, act: Act) -> None:
        number = file_calls.open_(f"{HOME}/queue", 0o2001)
        line = f"{act.value}\n".encode()
        size = file_calls.fstat(number).st_size
        if file_calls.write(number, line) < len(line):
            self.history.torn = True  # vrm may read the half line
            file_calls.ftruncate(number, size)
        file_calls.fsync(number)
        file_calls.close(number)

    def _insert(self, act: Act) -> None:
        lines = bytes(K.disk.find(f"{HOME}/queue", "/").data).decode().splitlines()
        lines.insert(len(lines) // 2, act.value)
        try:
            self.write(f"{HOME}/queue.new", "".join(f"{line}\n" for line in lines))
            file_calls.rename(f"{HOME}/queue.new", f"{HOME}/queue")
        except OSError:
            file_calls.unlink(f"{HOME}/queue.new")

    def _edit_script(self, act: Act) -> None:
        self.write(f"{HOME}/bin/new", SCRIPT.format(act.value), 0o755)
        file_calls.rename(f"{HOME}/bin/new", f"{HOME}/bin/run.sh")

    def _term(self, act: Act) -> None:
        if self.manager is not None:
            self.history.stop()
            process_calls.kill(self.manager.pid, TERM)

    def _command(self, act: Act) -> int:
        """Send a command like `vrm submit`, `vrm cancel` and others do."""
        told = K.current.facts["told"]
        if act.kind == "rubbish":  # somebody's editor
            with contextlib.suppress(OSError):
                self.write(f"{HOME}/log/commands/rubbish", "{\n")
            return 0
        if act.kind == "stop":
            self.history.stop()
        if act.kind == SLURM:
            self._now("call", K.current)
            return truths.slurm(self, told)
        told.begin(truths.send(self, act), K.now)
        truths.answer(self, told)
        return 0

    # Faults.

    def _next_fault(self) -> None:
        K.fault_at = K.steps + self.faults[0].gap if self.faults else NEVER

    def _fault(self) -> None:
        """Apply the next fault, or arm it if it waits for an event."""
        fault = self.faults.pop(0)
        if fault.edge or fault.aim:
            self.faults.insert(0, fault._replace(edge=0, aim=""))
            K.fault_at = NEVER
            if fault.aim:
                self._wait_for(fault.aim)
            elif fault.edge == LOOK:
                K.looking = lambda name: self._edge()
            else:
                K.disk.armed = lambda places: self._edge()
            return
        self._next_fault()
        happened = getattr(self, f"_do_{fault.kind}", self._kill)(fault)
        self.doer = None
        if happened is False:
            self._put_off(fault)
        else:
            self.postpone = 0
            self.kinds[fault.kind] = self.kinds.get(fault.kind, 0) + 1

    def _edge(self) -> None:
        """Schedule the next fault within a few calls: the file has changed or is opened."""
        K.looking = None
        K.disk.armed, K.fault_at = None, K.steps + 1 + int(K.chance.random() ** 2 * 4)

    def _wait_for(self, aim: str) -> None:
        """Arm the next fault: it comes after the event `aim`, or after MOST_WAITED seconds."""
        self.aim, self.aimed = aim, self.aimed + 1
        number = self.aimed
        if aim in aims.JOURNAL:
            mark = f'"event":"{aim}"'.encode()
            K.disk.armed = lambda places: self._now(aim, K.current) if any(
                each is self._file("journal") and each.data.rfind(mark) > each.disk.rfind(mark) for each in places) else None
        elif aim in aims.FILES:
            K.disk.armed = lambda places: self._now(aim, K.current) if self._in(aims.FILES[aim], places) and K.chance.random() < 0.5 else None
        elif aim == "look":
            K.looking = lambda name: self._now(aim, K.current) if "/ended/" in name and K.chance.random() < 0.3 else None
        K.at(K.now + MOST_WAITED, lambda: self._now(aim, None) if number == self.aimed else None)

    @staticmethod
    def _file(name: str) -> Any:
        """Return the inode of a file in the directory of the run; None if there is none."""
        try:
            return K.disk.find(f"{HOME}/log/{name}", "/")
        except OSError:
            return None

    def _in(self, name: str, places: tuple[Any, ...]) -> bool:
        here = self._file(name)
        return here is not None and any(each is here or each in here.names.values() for each in places)

    def _now(self, what: str, doer: Process | None) -> None:
        """Schedule the next fault soon if it waits for the event `what`, which `doer` has caused."""
        if what == self.aim:
            self.aim, self.doer, K.disk.armed, K.looking = "", doer, None, None
            K.fault_at = K.steps + 1 + int(K.chance.random() ** 2 * K.chance.choice((2, 4, 12, 60)))

    def _put_off(self, fault: Fault) -> None:
        """Postpone a fault that has no target, and the faults after it; drop it after MOST_PUT_OFF times."""
        self.postpone += 1
        if self.postpone < MOST_PUT_OFF:
            self.faults.insert(0, fault._replace(gap=1 + int(K.chance.random() * 30)))
            self._next_fault()
        else:
            self.postpone = 0

    def _kill(self, fault: Fault) -> bool:
        """Kill processes of the kind of the fault with SIGKILL; return whether there were any."""
        victims = self.victims(fault.kind)
        for victim in victims:
            K.note(f"fault: kill -9 {victim!r}")
            self.crashes += 1
            run = victim.facts.get("run") or victim.facts.get("rank of")
            if run is not None:
                run.shot = True
            for child in victim.children.values():
                if "run" in child.facts and victim.host is K.home:
                    child.facts["run"].orphaned = child.facts["run"].unseen = True
            victim.facts["shot"] = True
            if fault.kind in BEYOND:
                self.history.trouble_beyond = max(self.history.trouble_beyond, K.now + 60.0)
                self.history.unlinked(victim.host.name if victim.host is not K.home else "")
                if fault.kind == "agent":  # that of the manager's machine, which is left out if another one does not come
                    self.history.unlinked(K.home.name)
            self.history.lost_supervisor(victim)
            K.signal(victim, KILL)
        return bool(victims)

    def victims(self, kind: str) -> list[Process]:
        """Return the processes that a fault kills."""
        living = [process for process in K.processes.values() if not process.dead]
        if kind == "manager":
            return [self.manager] if self.manager is not None else []
        if kind in ("spawner", "both"):
            found = [process for process in living if process.role == "spawner"]
            return [*found, *([self.manager] if kind == "both" and self.manager is not None else [])]
        if kind in ("supervisor", "spare"):
            found = [process for process in living if process.role == "supervisor"
                     and bool(process.children) == (kind == "supervisor")]
        else:
            found = [process for process in living if process.role in {"program": (*RUNS, "rank", "step")}.get(kind, (kind,))]
        if self.doer in found:
            return [self.doer]
        return [found[int(K.chance.random() * len(found))]] if found else []

    def _do_machine(self, fault: Fault) -> None:
        self.crashes += 1
        self.kinds["machine"] = self.kinds.get("machine", 0)
        self.history.crash(self)
        self.manager, self.object = None, None
        self._slow_until, self.aim = 0.0, ""
        K.crash()
        self.history.after_crash(self)
        self.history.torn |= b"\0" in bytes(K.disk.find(f"{HOME}/queue", "/").data)  # as its editor has left it
        K.at(K.now + 1.0, self._start_manager)

    def _do_requeue(self, fault: Fault) -> bool:
        if self.manager is None:
            return False
        self._requeue(self.lives, fault.value)
        return True

    def _requeue(self, life: int, delay: float) -> None:
        """Let the batch system end its job in this life of a manager: SIGTERM to the manager or to all processes, after `delay` seconds
        SIGKILL to all."""
        if life != self.lives or self.finished:
            return
        K.note(f"fault: the allocation ends in {delay:g} s")
        self.history.stop()
        everybody = K.chance.random() < 0.5
        for process in list(K.processes.values()):
            if process is self.manager or (everybody and process is not K.init and process.role not in ("client", "editor")):
                if process.facts.get("run") is not None:
                    process.facts["run"].signalled = process.facts["run"].shot = True
                K.signal(process, TERM)
        K.at(K.now + delay, lambda: self._allocation_over(self.allocation))

    def _allocation_over(self, number: int) -> None:
        if number != self.allocation or self.finished:
            return
        K.note("fault: the allocation is over")
        self.allocation += 1
        self.crashes += 1
        self.history.allocation_over()
        for process in list(K.processes.values()):
            if process is not K.init and process.role not in ("client", "editor"):
                K.signal(process, KILL)

    def _do_warn(self, fault: Fault) -> bool:
        if self.manager is None:
            return False
        self.history.stop()
        K.signal(self.manager, int(signal.SIGUSR1))
        return True

    def _other(self, fault: Fault) -> Host | None:
        """Return a random reachable node other than the manager's; None if there is none."""
        hosts = [host for host in K.hosts.values() if host is not K.home and host.on and not host.cut]
        self.history.trouble_beyond = max(self.history.trouble_beyond, K.now + 60.0 + 5 * fault.value)
        return hosts[int(K.chance.random() * len(hosts))] if hosts else None

    def _do_node(self, fault: Fault) -> bool:
        host = self._other(fault)
        if host is None:
            return False
        self.crashes += 1
        self.silent.add(host.name)
        self.history.node_died(host)
        K.power_off(host)
        K.at(K.now + fault.value, lambda: None if host.on else K.power_on(host))
        return True

    def _do_cut(self, fault: Fault) -> bool:
        host = self._other(fault)
        if host is None:
            return False
        self.silent.add(host.name)
        self.history.unlinked(host.name, cut=True)
        K.cut(host, True)
        K.at(K.now + fault.value, lambda: K.cut(host, False) if host.cut else None)
        return True

    def _do_delay(self, fault: Fault) -> bool:
        host = self._other(fault)
        if host is None or host.delay:
            return False
        K.note(f"fault: the connection to {host.name} is slow")
        host.delay = min(8.0, fault.value)
        if host.delay >= truths.DEAF:
            self.silent.add(host.name)
            self.history.unlinked(host.name)

        def over() -> None:
            host.delay = 0.0
        K.at(K.now + min(60.0, 5 * fault.value), over)
        return True

    def _do_disk(self, fault: Fault, number: int) -> None:
        K.note(f"fault: {fault.kind} for {fault.value:g} s")
        K.disk.trouble, K.disk.left = number, int(K.chance.random() ** 3 * 3000) * (self.doer is None)
        self.history.trouble_until = max(self.history.trouble_until, K.now + fault.value)

        def over() -> None:
            if K.disk.trouble == number:
                K.disk.trouble = 0
        K.at(K.now + fault.value, over)

    def _do_full(self, fault: Fault) -> None:
        self._do_disk(fault, 28)

    def _do_quota(self, fault: Fault) -> None:
        self._do_disk(fault, 122)

    def _do_readonly(self, fault: Fault) -> None:
        self._do_disk(fault, 30)

    def _do_eio(self, fault: Fault) -> None:
        K.note("fault: a write or sync fails")
        K.disk.broken = int(fault.value)

    def _do_slow(self, fault: Fault) -> None:
        K.note("fault: slow disk")
        self._slow_until = K.now + fault.value

    def _do_clock(self, fault: Fault) -> None:
        K.note(f"fault: the clock is set by {fault.value:g} s")
        K.ahead += fault.value

    def _do_pause(self, fault: Fault) -> bool:
        manager = self.manager
        if manager is None or manager.stopped:
            return False
        K.note(f"fault: the manager is stopped for {fault.value:g} s")
        K.signal(manager, 19)
        self.watching = K.now + fault.value
        K.at(K.now + fault.value, lambda: K.signal(manager, 18))
        return True

    def _do_stall(self, fault: Fault) -> bool:
        return self._stall(fault, "spawner", "supervisor", "stand_in", "relay", "ssh", "serve_agent", "agent", "client")  # see reliability.md for runners

    def _do_stall_agent(self, fault: Fault) -> bool:
        return self._stall(fault, "serve_agent")

    def _stall(self, fault: Fault, *roles: str) -> bool:
        found = [process for process in K.processes.values() if process.role in roles and not process.dead and not process.stopped]
        if not found:
            return False
        process = self.doer if self.doer in found else found[int(K.chance.random() * len(found))]
        K.note(f"fault: {process!r} is stopped for {fault.value:g} s")
        self.history.stalled = True
        if process.host is not K.home or process.role in ("relay", "ssh"):
            self.history.trouble_beyond = max(self.history.trouble_beyond, K.now + 60.0)
        K.signal(process, 19)
        K.at(K.now + fault.value, lambda: self._resume(process))
        return True

    def _resume(self, process: Process) -> None:
        """Let a stopped process continue. A supervisor may have hidden the end of its program: vrm could not know that it had
        ended before the manager was about to end it."""
        if process.role == "supervisor":
            self.history.intents()
        K.signal(process, 18)

    def _do_fork(self, fault: Fault) -> None:
        K.note("fault: no processes")
        self._refuse_forks = 2
        self.history.forks_refused = True

    def _no_fork(self) -> bool:
        if self._refuse_forks and K.current.role in ("manager", "spawner", "supervisor"):
            self._refuse_forks -= 1
            return True
        return False


ran = 0
"""Number of worlds that this process has run."""


def run(plan: Plan) -> Outcome:
    """Run the world of a plan; return its outcome."""
    found = World(plan).run()
    global ran
    ran += 1
    if ran % 128 == 0:
        gc.collect()
    return found
