"""Turns decisions into running jobs. No job is launched before its start is in the journal."""

from __future__ import annotations

import os
import selectors
import shutil
from functools import cache
from pathlib import Path
from collections.abc import Mapping

from vrm.live.launch.base import AppContext, LaunchError
from vrm.live.launch.script_environment import cores_unspecified, of_submission
from vrm.live.manager.jobs import signals
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.nodes import NodeEvents
from vrm.live.manager.part import NodeClosed, JobLaunched, Part, ProgramPrepared, ScriptPrepared, RunStopping
from vrm.live.manager.jobs.live_job import LiveJob
from vrm.live.manager.job_environment import environment, files_of, patience, unpacked
from vrm.live.manager.jobs.verdict import verdict
from vrm.live.spawn.messages import (Ended, Failure, LaunchFailed, LaunchRequest, SpawnerLost, Started,
                                     SupervisorLost)
from vrm.live.spawn.spawner import SpawnerError
from vrm.live.site.setup import Site
from vrm.model import Booking, Job, JobState
from vrm.model.node import HALF
from vrm.run.journal.history import RunHistory
from vrm.scheduling import Start
from vrm.system.errors import RunError
from vrm.system.files import write_new

BINDINGS_AFTER = 1.0
"""Seconds after a start at which the bindings are checked for the first time."""

CLOSED_FOR = 15.0
"""Seconds for which nothing starts on a node that could not be reached once."""

AHEAD = 2
"""Number of jobs whose launch is prepared while the disk writes the decision; preparing more would delay these."""

FILES = 1000
"""Maximum number of rankfiles with different contents that are remembered."""


class Launches(Part):
    """Launches the jobs that were decided, and follows the spawner's reports about them. `prepared`: starts that are
    launched once they are in the journal."""

    observes = (NodeClosed, RunStopping)

    def __init__(self, live: LiveRun, ends: Ends, nodes: NodeEvents, site: Site) -> None:
        self.live = live
        self.ends = ends
        self.nodes = nodes
        self.adoption, self.visible = site.adoption, site.visible
        self.prepared: list[Start] = []
        self._untold: list[Start] = []       # launched, not yet reported
        self._workplace = str(live.settings.workplace)  # working directory of jobs that do not set one
        self._around = dict(os.environ)
        self._written: dict[str, Path] = {}  # rankfiles by their content
        self._program = cache(live.settings.applications.program)  # the file of an application

    def recall(self, past: RunHistory) -> None:
        """Set the working directory of jobs. In a run that vrm 0.1.0 began, jobs run where the manager was started, to
        the run's end."""
        if past.run and past.format == 1:
            self._workplace = os.getcwd()

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Let the spawner's reports wake the loop."""
        selector.register(self.live.spawner.fileno(), selectors.EVENT_READ, self.read_spawner)

    def busy(self) -> bool:
        """Return whether jobs are to be launched."""
        return bool(self.prepared)

    def observe(self, event: object) -> None:
        """Take back starts that are no longer possible; starts on a closed node are decided again."""
        if isinstance(event, (NodeClosed, RunStopping)):
            for start in list(self.prepared):
                if isinstance(event, RunStopping) or start.booking.placement.node_set >> event.node & 1:
                    self.prepared.remove(start)
                    self.ends.take_back(start.job)

    def add(self, start: Start) -> None:
        """Add a start, which is launched when it is in the journal."""
        self.prepared.append(start)

    def tidy(self, now: float) -> None:
        """Report the jobs that were started."""
        for start in self._untold:
            self.live.records.report_start(start, self.live.state.entry(start.job.id).details)
        self._untold.clear()

    def act(self, now: float) -> None:
        """Launch the prepared starts, once the decision is in the journal."""
        live = self.live
        if not self.prepared:
            return
        live.journal.begin()
        ready = {start.job.id: self._prepare_launch(start) for start in self.prepared[:AHEAD]
                 if not self._waits_for_sweep(start)}
        if not live.synced():
            return
        prepared = list(self.prepared)
        self.prepared.clear()
        for start in prepared:
            if self._waits_for_sweep(start):
                self.prepared.append(start)
                continue
            running = LiveJob(start)
            live.running[start.job.id] = running
            try:
                request = ready.get(start.job.id) or self._prepare_launch(start)
                if isinstance(request, Exception):
                    raise request
                live.spawner.launch(request)
            except (LaunchError, ValueError) as error:
                self.ends.ended(running, None, JobState.FAILED, f"could not start: {error}")
                continue
            except OSError as error:
                del live.running[start.job.id]
                self._requeue_without_space(start.job, f"{error.filename or live.run_directory.directory}: "
                                         f"{error.strerror}")
                continue
            running.memory_due = now + BINDINGS_AFTER
            running.signal_due = signals.due(running, signals.warning_of(live.state.entry(start.job.id).details))
            if not start.job.payload.script:
                running.bindings_due = running.memory_due
            self._untold.append(start)
            live.notify(JobLaunched(start.job))

    def _waits_for_sweep(self, start: Start) -> bool:
        """Return whether the start must wait because its nodes are being swept: for processes of an earlier start of
        this job (the new ones would be taken for these), or for those of another job that was lost there."""
        return self.live.watch.sweeping(start.job.id, start.booking.placement)

    def _prepare_launch(self, start: Start) -> LaunchRequest | Exception:
        """Return the launch request, or the error that prevents it."""
        try:
            return self._request(start.booking)
        except (LaunchError, ValueError, OSError) as error:
            return error

    def _requeue_without_space(self, job: Job, why: str) -> None:
        """Requeue a job because the disk is full or no process can be created; nothing starts for a while."""
        self.ends.take_back(job)
        self.live.changed = True
        self.live.block()
        self.live.report_disk_error(why)

    def _request(self, booking: Booking) -> LaunchRequest:
        """Return the launch request of a job for the spawner; writes the rankfile."""
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
                                          cores_unspecified(job))
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
        """Create the folder for a job's steps; return it with the files and variables that parts add."""
        live, job = self.live, booking.job
        folder = live.scripts.folder(live.run_directory.rankfile(job.app, job.id))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # from an earlier try
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder, 0o700)
        script = ScriptPrepared(booking, program, folder, env, alone, self.visible.listed(booking, live.cluster.nodes))
        live.notify(script)
        return script

    def allow_steps(self, running: LiveJob) -> None:
        """Allow steps to run next to the ranks of a job that is not a script: create the folder that a script has.
        Raises ValueError if its nodes are different by now."""
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
        """Write a file of a job; if an earlier job has a file with the same content, as a hard link to that."""
        try:
            os.link(self._written[text], path)
        except (KeyError, OSError):
            write_new(path, text)
            if len(self._written) >= FILES:
                self._written.clear()
            self._written[text] = path

    # Reports of the spawner.

    def read_spawner(self) -> None:
        """Handle the spawner's reports about jobs."""
        live, ends = self.live, self.ends
        events = self.live.spawner.events()
        over = {event.id for event in events if isinstance(event, Ended)}  # other jobs may have their sessions by now
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

    def _not_launched(self, running: LiveJob, event: LaunchFailed) -> None:
        if event.kind is Failure.LACK and running.intent in ("", "timeout"):
            del self.live.running[running.job.id]
            self._requeue_without_space(running.job, event.message)
        elif event.kind is Failure.UNREACHED:
            self._unreached(running, event.message)
        elif running.intent:
            self.ends.ended(running, None, *verdict(running.intent, None, event.message))
        else:
            self.ends.ended(running, None, JobState.FAILED, f"could not start: {event.message}")

    def _unreached(self, running: LiveJob, why: str) -> None:
        """Requeue a job whose node does not answer: other nodes will do, or this one later. The node is closed for a
        while; otherwise all waiting jobs would be sent there, one after the other."""
        if running.intent:
            self.ends.ended(running, None, *verdict(running.intent, None, why))
            return
        live = self.live
        del live.running[running.job.id]
        self.ends.take_back(running.job)
        node = running.booking.placement.nodes[0]  # a script of several nodes begins there
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
