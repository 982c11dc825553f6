"""Runs applications on given cores and measures their times; used for calibration and for heatmaps.

During a measurement nothing else may use the same run directory. Processes that an earlier, killed measurement has
left running are ended first.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import selectors
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Sequence

from vrm.config.schema import Settings
from vrm.live.launch.base import Launcher, LaunchError, read_result
from vrm.live.site.programs import application_fault
from vrm.live.site.setup import Site
from vrm.live.spawn.records import Marker, RecordError
from vrm.live.spawn.messages import (Ended, LaunchFailed, LaunchRequest, SpawnerLost, Started,
                                     SupervisorLost)
from vrm.live.spawn.spawner import Spawner
from vrm.model import RankSlot
from vrm.run.requeue import LOSSES
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError
from vrm.system.files import write_new
from vrm.system.processes import SessionEnding

INTERRUPTED = 130
"""Exit status of a measurement that was interrupted: that of a shell command ended by Ctrl-C."""


class MeasureError(RunError):
    """A measurement is impossible; the text gives the reason and the remedy."""


@dataclass(frozen=True)
class BenchmarkRun:
    """A run that ended. `seconds` is the time that the application reported (else `whole`), `whole` the seconds of
    mpirun, `cpu` the CPU seconds of all its processes on this machine. `fault` is the reason why it does not count,
    or empty."""

    trial: int
    seconds: float
    whole: float
    fault: str = ""
    cpu: float = 0.0


@dataclass
class _Trial:
    """A run in progress; `session` is set when it has started."""

    app: str
    slots: Sequence[RankSlot]
    limit: float
    deadline: float = 0.0
    failed_starts: int = 0
    session: int | None = None
    ending: SessionEnding | None = None
    fault: str = ""


class Bench:
    """Starts applications and returns how they ended: `with Bench(settings, site) as bench:`.

    Raises RunError if a manager, or another measurement, uses the run directory.
    """

    def __init__(self, settings: Settings, site: Site) -> None:
        self.settings = settings
        self.site = site
        owner = RunDirectory.of(settings)
        self._owner = owner
        folder = owner.directory / "measure"
        self.run = RunDirectory(folder, folder, folder / "state")
        self._trials: dict[int, _Trial] = {}
        self._next = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Bench:
        with contextlib.ExitStack() as stack:
            self._owner.create()
            self.run.create()
            lock = stack.enter_context(self._owner.owned())
            self._end_leftovers()
            self.site.launcher.run_id = uuid.uuid4().hex[:12]
            stack.enter_context(_interrupted_by_signals())
            self._spawner = stack.enter_context(Spawner([lock], self.site.relay))
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._selector.register(self._spawner.fileno(), selectors.EVENT_READ)
            stack.callback(self.end_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _end_leftovers(self) -> None:
        """End the runs of a measurement that was killed: they would disturb this one."""
        for marker_file in self.run.pids.iterdir():
            try:
                marker = Marker.read(marker_file)
            except RecordError:
                marker = None
            if marker is not None and marker.alive() is not False:
                if marker.host != os.uname().nodename:
                    raise MeasureError(
                        f"a measurement of {marker.host} still runs (process {marker.pid}); end "
                        f"it there, or remove {marker_file} if it is gone")
                _end_session(SessionEnding(marker.pid, 1.0))
            marker_file.unlink(missing_ok=True)

    # Running.

    def start(self, app: str, slots: Sequence[RankSlot], limit: float) -> int:
        """Start an application on its slots; return the number of the trial. After `limit` seconds it is ended and
        counts as failed. Raises MeasureError if it cannot be launched."""
        number, self._next = self._next, self._next + 1
        self._launch(number, _Trial(app, slots, limit))
        return number

    def _launch(self, number: int, trial: _Trial) -> None:
        run, app = self.run, trial.app
        rankfile = run.rankfile(app, number)
        try:
            launch = self.site.launcher.command(
                number, self.settings.applications.path / app, trial.slots, self.site.cluster.nodes,
                rankfile)
            for path, text in launch.files.items():
                write_new(path, text)
            trial.deadline = time.monotonic() + trial.limit
            self._trials[number] = trial
            self._spawner.launch(LaunchRequest(
                number, launch.argv, launch.env, os.getcwd(), run.output(app, number),
                run.errors(app, number), run.marker(number), run.status(number),
                launch.affinity, host=launch.host))
        except (LaunchError, OSError) as error:
            self._trials.pop(number, None)
            raise MeasureError(f"{app}: cannot be started: {error}") from error

    def wait(self) -> list[BenchmarkRun]:
        """Wait until at least one run ends; return all runs that have ended."""
        while True:
            now = time.monotonic()
            for trial in self._trials.values():
                if now >= trial.deadline and trial.ending is None:
                    trial.fault = "ran longer than the limit (--limit SECONDS)"
                    self._end(trial)
            ended = self._look(now)
            if ended:
                return ended

    def _look(self, now: float) -> list[BenchmarkRun]:
        due = [trial.ending.deadline if trial.ending else trial.deadline
               for trial in self._trials.values()]
        self._selector.select(max(0.0, min(due, default=now) - now))
        ended: list[BenchmarkRun] = []
        for event in self._spawner.events():
            if isinstance(event, SpawnerLost):
                raise MeasureError(f"{event.message}; start the measurement again: it "
                                   "continues where it was")
            number = int(event.id)
            trial = self._trials[number]
            if isinstance(event, Started):
                trial.session = event.supervisor_pid
                if trial.fault:
                    self._end(trial)
            else:
                run = self._ended(number, trial, event)
                if run is not None:
                    ended.append(run)
        now = time.monotonic()
        for trial in self._trials.values():
            if trial.ending is not None and now >= trial.ending.deadline:
                trial.ending.poll(now)
        return ended

    def _ended(self, number: int, trial: _Trial, event: Any) -> BenchmarkRun | None:
        """Return how a trial ended; None if its launcher failed before a rank ran, then it is started again."""
        del self._trials[number]
        output = self.run.output(trial.app, number)
        errors = self.run.errors(trial.app, number)
        fault, whole, seconds, cpu = trial.fault, 0.0, None, 0.0
        again = False
        if isinstance(event, Ended):
            again = not fault and trial.failed_starts < LOSSES and bool(
                self.site.launcher.failed_start(event.status.code or 0, errors, output))
            whole = event.status.duration
            cpu = event.status.user + event.status.system
            result = read_result(output)
            seconds = result.seconds
            if not fault and not event.status.ok:
                fault = f"{event.status.describe()}: {_complaint(self.site.launcher, output, errors)}"
            elif not fault and result.verification == "UNSUCCESSFUL":
                fault = "its verification failed"
        elif isinstance(event, LaunchFailed):
            fault = fault or f"could not start: {event.message}"
        elif isinstance(event, SupervisorLost):
            fault = fault or "its supervisor was killed"
            if event.supervisor_pid is not None:
                _end_session(SessionEnding(event.supervisor_pid, 1.0))
        if not fault:
            fault = self._bindings(trial, output, errors)
        for path in (output, errors, self.run.rankfile(trial.app, number),
                     self.run.status(number), self.run.marker(number)):
            path.unlink(missing_ok=True)
        if again:
            self._launch(number, _Trial(trial.app, trial.slots, trial.limit, failed_starts=trial.failed_starts + 1))
            return None
        return BenchmarkRun(number, whole if seconds is None else seconds, whole, fault, cpu)

    def _bindings(self, trial: _Trial, output: Path, errors: Path) -> str:
        """Return what is wrong with the cores of a run, "" if nothing: a time measured on other cores is useless."""
        if self.settings.launcher.check_bindings == "ignore":
            return ""
        found = self.site.launcher.check_bindings(errors, output, trial.slots,
                                                  self.site.cluster.nodes)
        if found.state != "mismatch":
            return ""
        return "its ranks were not where the rankfile puts them: " + found.differences[0]

    def _end(self, trial: _Trial) -> None:
        if trial.session is not None:
            trial.ending = SessionEnding(trial.session, 1.0, spare={trial.session})
            trial.ending.poll(time.monotonic())

    def end_all(self) -> None:
        """End all remaining runs and wait until they are gone."""
        for trial in self._trials.values():
            trial.fault = trial.fault or "ended before its time"
            self._end(trial)
        while self._trials:
            self._look(time.monotonic())


def _end_session(ending: SessionEnding) -> None:
    """End the processes of a session and wait until they are gone."""
    with selectors.DefaultSelector() as nothing:
        while not ending.poll(time.monotonic()):
            nothing.select(max(0.0, ending.deadline - time.monotonic()))


_NOISE = re.compile(r"^[-\s]*$|Primary job +terminated|non-zero exit code|mpirun detected|"
                    r"^the job to be terminated|Process name:|Exit code:")


def _complaint(launcher: Launcher, output: Path, errors: Path) -> str:
    """Return the first line that a failed run printed on its standard error, else its last line of output; without
    lines of the launcher."""
    for path, first in ((errors, 0), (output, -1)):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        lines = [launcher.without_launcher_text(line).strip() for line in text.splitlines()]
        lines = [line for line in lines if not _NOISE.search(line)]
        if lines:
            return lines[first][:200]
    return "it printed nothing"


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP interrupt like Ctrl-C, so that no run is left."""
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt
    before = {number: signal.signal(number, interrupt)
              for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def find_apps(directory: Path, patterns: Sequence[str]) -> list[str]:
    """Return the executables of a directory that match a pattern (all without patterns): in alphabetical order per
    pattern.

    Raises MeasureError for a pattern without a match.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(directory)
                       if not entry.name.startswith(".") and entry.is_file())
    except OSError as error:
        raise MeasureError(f"{directory} cannot be read ({error.strerror}); correct "
                           "Applications.Path") from error
    names = [name for name in names if not application_fault(directory, name)]
    if not names:
        raise MeasureError(f"no programs in {directory} (Applications.Path); `vrm npb build` "
                           "makes some")
    chosen: list[str] = []
    for pattern in patterns or ["*"]:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise MeasureError(f"no program {pattern} in {directory} (Applications.Path); there "
                               f"are {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}")
        chosen += [name for name in found if name not in chosen]
    return chosen


def machine_text(site: Site) -> str:
    """Describe the allocation and the launcher: only times with equal descriptions are comparable."""
    shapes: dict[str, int] = {}
    for node in site.cluster.nodes:
        shape = "+".join(map(str, node.sockets))
        shapes[shape] = shapes.get(shape, 0) + 1
    nodes = ", ".join(f"{count} node(s) with sockets of {shape} cores"
                      for shape, count in shapes.items())
    return f"{nodes}; {site.launcher.version_text}" + ("; emulated" if site.emulated else "")


def duration(seconds: float) -> str:
    """Return a time as text: `40 s`, `5 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
