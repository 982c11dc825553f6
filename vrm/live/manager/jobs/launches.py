"""From a decision to a job that runs: nothing is launched before its start is in the journal."""

from __future__ import annotations

import os
import selectors
import shutil
from functools import cache
from pathlib import Path
from collections.abc import Mapping

from vrm.live.launch.base import AppContext, LaunchError
from vrm.live.launch.stepping import cores_unsaid, of_submission
from vrm.live.manager.jobs import signals
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.nodes import Nodes
from vrm.live.manager.part import Closed, Launched, Part, ProgramPrepared, ScriptPrepared, Stopped
from vrm.live.manager.jobs.running import Running
from vrm.live.manager.surroundings import environment, files_of, patience, unpacked
from vrm.live.manager.jobs.verdict import verdict
from vrm.live.spawn.messages import (Ended, Failure, LaunchFailed, LaunchRequest, SpawnerLost, Started,
                                     SupervisorLost)
from vrm.live.spawn.spawner import SpawnerError
from vrm.live.site.setup import Site
from vrm.model import Booking, Job, JobState
from vrm.model.node import HALF
from vrm.run.journal.past import Past
from vrm.scheduling import Start
from vrm.system.errors import RunError
from vrm.system.files import write_new

BINDINGS_AFTER = 1.0
"""Seconds after a start at which the bindings are looked at for the first time."""

CLOSED_FOR = 15.0
"""Seconds in which nothing starts on a node that could not be reached once."""

AHEAD = 2
"""Jobs for which all is prepared while the disk takes the decision; those behind them would delay these."""

FILES = 1000
"""Rankfiles of different content that are remembered."""


class Launches(Part):
    """Launches what was decided, and follows it by what the spawner tells. `prepared` are starts that are launched when
    they are in the journal."""

    observes = (Closed, Stopped)

    def __init__(self, live: LiveRun, ends: Ends, nodes: Nodes, site: Site) -> None:
        self.live = live
        self.ends = ends
        self.nodes = nodes
        self.adoption, self.visible = site.adoption, site.visible
        self.prepared: list[Start] = []
        self._untold: list[Start] = []       # launched, to be told of
        self._workplace = str(live.settings.workplace)  # of jobs that say nothing of it
        self._around = dict(os.environ)
        self._written: dict[str, Path] = {}  # rankfiles by their content
        self._program = cache(live.settings.applications.program)  # the file of one that a job names

    def recall(self, past: Past) -> None:
        """Learn where jobs run: of a run that vrm 0.1.0 began where it was started, to their end."""
        if past.run and past.format == 1:
            self._workplace = os.getcwd()

    def begin(self, selector: selectors.BaseSelector) -> None:
        """What the spawner tells wakes the loop."""
        selector.register(self.live.spawner.fileno(), selectors.EVENT_READ, self.read_spawner)

    def busy(self) -> bool:
        """Whether something is to be launched."""
        return bool(self.prepared)

    def observe(self, event: object) -> None:
        """Take back what cannot start any more; what goes to other nodes is decided again."""
        if isinstance(event, (Closed, Stopped)):
            for start in list(self.prepared):
                if isinstance(event, Stopped) or start.booking.placement.node_set >> event.node & 1:
                    self.prepared.remove(start)
                    self.ends.take_back(start.job)

    def add(self, start: Start) -> None:
        """A job is to be launched: its start goes to the journal."""
        self.prepared.append(start)

    def tidy(self, now: float) -> None:
        """Report what was started."""
        for start in self._untold:
            self.live.records.tell_start(start, self.live.state.entry(start.job.id).details)
        self._untold.clear()

    def act(self, now: float) -> None:
        """Launch what was decided, once the decision is in the journal."""
        live = self.live
        if not self.prepared:
            return
        live.journal.begin()
        ready = {start.job.id: self._readied(start) for start in self.prepared[:AHEAD]
                 if not self._swept_first(start)}
        if not live.synced():
            return
        prepared = list(self.prepared)
        self.prepared.clear()
        for start in prepared:
            if self._swept_first(start):
                self.prepared.append(start)
                continue
            running = Running(start)
            live.running[start.job.id] = running
            try:
                request = ready.get(start.job.id) or self._readied(start)
                if isinstance(request, Exception):
                    raise request
                live.spawner.launch(request)
            except (LaunchError, ValueError) as error:
                self.ends.ended(running, None, JobState.FAILED, f"could not start: {error}")
                continue
            except OSError as error:
                del live.running[start.job.id]
                self._no_room(start.job, f"{error.filename or live.run_directory.directory}: "
                                         f"{error.strerror}")
                continue
            running.memory_due = now + BINDINGS_AFTER
            running.signal_due = signals.due(running, signals.warning_of(live.state.entry(start.job.id).details))
            if not start.job.payload.script:
                running.bindings_due = running.memory_due
            self._untold.append(start)
            live.notify(Launched(start.job))

    def _swept_first(self, start: Start) -> bool:
        """Whether its nodes are swept of this job, whose processes it would be taken for, or of one that may still run
        there."""
        return self.live.watch.sweeping(start.job.id, start.booking.placement)

    def _readied(self, start: Start) -> LaunchRequest | Exception:
        """What the spawner has to start, or why there is none."""
        try:
            return self._request(start.booking)
        except (LaunchError, ValueError, OSError) as error:
            return error

    def _no_room(self, job: Job, why: str) -> None:
        """There is no room for the files of a job, or for processes: it waits, and nothing starts for a while."""
        self.ends.take_back(job)
        self.live.changed = True
        self.live.block()
        self.live.disk_trouble(why)

    def _request(self, booking: Booking) -> LaunchRequest:
        """What the spawner has to start for a job; writes the rankfile."""
        live, job = self.live, booking.job
        payload = job.payload.own(live.state.entry(job.id).details.index)
        paths = live.run_directory.files(job.app, job.id)
        file = live.run_directory.scripts / payload.copy if payload.copy else self._file(job.app, payload.file)
        programs = ([(self._file(each.app, each.file), each.arguments) for each in payload.programs]
                    or [(file, payload.arguments)])
        gpus = f"{paths.rankfile.removesuffix('.rf')}.gpus"
        wrapped = [self.visible.wrapped(booking, live.cluster.nodes, path, words, payload.variables, gpus,
                                        payload.script) for path, words in programs]
        program, arguments, table = wrapped[0]
        directory = payload.directory or self._workplace
        said = of_submission(job, live.state.entry(job.id).details, directory,
                             booking.start) if payload.script else {}
        launcher = live.launcher_of(job)
        own = {**self.visible.variables(booking, live.cluster.nodes), **said, **payload.variables}
        kept = unpacked(live.run_directory.scripts / payload.environment) if payload.environment else {}
        variables = {**kept, **own}
        if booking.placement.frequency and live.settings.extended("Energy.Frequency"):  # as srun --cpu-freq
            variables.setdefault("SLURM_CPU_FREQ_REQ", str(round(booking.placement.frequency * 1e6)))
        if not payload.script:
            prepared = ProgramPrepared(booking, file, {**getattr(launcher, "env", {}), **variables})
            live.notify(prepared)
            variables.update(prepared.variables)
        slots, nodes = live.records.slots.of(booking.placement), live.cluster.nodes
        if payload.script:
            alone = job.exclusive and booking.placement.share != HALF
            launch = live.scripts.command(job.id, program, slots, nodes, paths.rankfile, arguments, variables, alone,
                                          cores_unsaid(job))
        elif payload.programs:
            contexts = [AppContext(path, own, part.procs, part.cores)
                        for (path, own, _), part in zip(wrapped, job.parts)]
            launch = launcher.together(job.id, contexts, slots, nodes, paths.rankfile, variables)
        else:
            launch = launcher.command(job.id, program, slots, nodes, paths.rankfile, arguments, variables)
        env = environment(launch.env, kept, own, self._around) if payload.environment else launch.env
        output, errors, given = files_of(live.run_directory, job, live.state.entry(job.id).details,
                                         live.cluster.nodes[booking.placement.nodes[0]].name, directory)
        if payload.script:
            script = self._of_script(booking, os.fspath(program), launch.env, alone)
            table, env = {**table, **script.files}, {**env, **script.variables}
        if launch.daemons:
            env = {**env, "VRM_RELAY": live.relay_address, "VRM_ERRORS": str(errors)}
        for path, text in {**launch.files, **table}.items():
            self._write(path, text)
        return LaunchRequest(job.id, launch.argv, env,
                             directory, output, errors, paths.marker, paths.status,
                             launch.affinity, host=launch.host, daemons=launch.daemons, reports=(
                                 paths.bindings, job.procs, launch.reports)
                             if launch.reports else None, append=payload.append, stdin=given,
                             **patience(payload, live.now - job.submit))

    def _of_script(self, booking: Booking, program: str, env: Mapping[str, str], alone: bool) -> ScriptPrepared:
        """A folder for a job's steps, and what else it is given."""
        live, job = self.live, booking.job
        folder = live.scripts.folder(live.run_directory.rankfile(job.app, job.id))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # of an earlier try
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder, 0o700)
        script = ScriptPrepared(booking, program, folder, env, alone, self.visible.listed(booking, live.cluster.nodes))
        live.notify(script)
        return script

    def let_in(self, running: Running) -> None:
        """Let steps run in a job that is no script, next to its ranks: it gets the folder that a script has. ValueError
        where its nodes are others by now."""
        live, booking = self.live, running.booking
        job, rankfile = booking.job, live.run_directory.rankfile(booking.job.app, booking.job.id)
        if job.payload.script or os.path.isdir(live.scripts.folder(rankfile)):
            return
        if running.former is not None:
            raise ValueError("it was started by an earlier manager, on other nodes than there are now")
        alone, nodes = job.exclusive and booking.placement.share != HALF, live.cluster.nodes
        launch = live.scripts.command(job.id, job.app, list(booking.placement.slots(nodes)), nodes, rankfile, alone=alone)
        script = self._of_script(booking, job.app, launch.env, alone)
        for path, text in {**launch.files, **script.files}.items():
            self._write(path, text)

    def _file(self, app: str, file: str) -> Path:
        return Path(file) if file else self._program(app)

    def _write(self, path: Path, text: str) -> None:
        """Write a file of a job, by a further name of an earlier job's file if that is the same."""
        try:
            os.link(self._written[text], path)
        except (KeyError, OSError):
            write_new(path, text)
            if len(self._written) >= FILES:
                self._written.clear()
            self._written[text] = path

    # What the spawner tells.

    def read_spawner(self) -> None:
        """Take what the spawner tells of jobs."""
        live, ends = self.live, self.ends
        events = self.live.spawner.events()
        over = {event.id for event in events if isinstance(event, Ended)}  # their sessions may be other jobs' by now
        for event in events:
            if isinstance(event, SpawnerLost):
                self._replace_spawner(event)
                continue
            running = live.running.get(int(event.id))
            if running is None:
                continue
            if isinstance(event, LaunchFailed):
                self._not_launched(running, event)
            elif isinstance(event, Started):
                running.session, running.leader = event.supervisor_pid, event.leader
                self.adoption.add(running.job.id, event.supervisor_pid, live.now)
                if running.intent and event.id not in over:
                    ends.end_session(running)
            elif isinstance(event, Ended):
                ends.ended(running, event.status, *ends.judged(running, event.status),
                           clean=event.clean)
            elif isinstance(event, SupervisorLost):
                running.session, running.leader = event.supervisor_pid, running.leader or event.leader
                ends.lost(running)

    def _not_launched(self, running: Running, event: LaunchFailed) -> None:
        if event.kind is Failure.LACK and running.intent in ("", "timeout"):
            del self.live.running[running.job.id]
            self._no_room(running.job, event.message)
        elif event.kind is Failure.UNREACHED:
            self._unreached(running, event.message)
        elif running.intent:
            self.ends.ended(running, None, *verdict(running.intent, None, event.message))
        else:
            self.ends.ended(running, None, JobState.FAILED, f"could not start: {event.message}")

    def _unreached(self, running: Running, why: str) -> None:
        """A job was not started since its node does not answer: others will do, or the same later.
        Were the node kept, it would swallow the queue."""
        if running.intent:
            self.ends.ended(running, None, *verdict(running.intent, None, why))
            return
        live = self.live
        del live.running[running.job.id]
        self.ends.take_back(running.job)
        node, = running.booking.placement.nodes
        if live.cluster.up >> node & 1:
            live.tell("warning", f"{why}; no job starts there for {CLOSED_FOR:g} s")
        self.nodes.close(node, live.now + CLOSED_FOR)

    def _replace_spawner(self, event: SpawnerLost) -> None:
        self.live.tell("warning",
                       f"{event.message}; starting another, running jobs are not touched")
        try:
            self.live.spawner.start()
        except SpawnerError as error:
            raise RunError(f"{error}; the running jobs continue, and the same command follows "
                           "them to their end") from error
