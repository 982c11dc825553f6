"""Executes a plan: starts the runs that are missing, each in its own directory.

| file | content |
|---|---|
| `experiment.yaml`, `experiment.json` | the plan as written, and as parsed |
| `inputs/` | the queues and heatmaps of the runs |
| `SCENARIO.QUEUE.REPETITION/` | a run: config.yaml, jobs.csv, run.json and the other files that vrm writes |

A run is complete when its run.json says so; this is written last. A live run that was interrupted is repeated from
the beginning, because its jobs have waited while nothing ran.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterable, Iterator, Sequence

import yaml

from vrm.config.own_policies import copy_own, load_own
from vrm.config.schema import dump, load
from vrm.ext.study.experiment import record
from vrm.ext.study.experiment.experiment_plan import LIVE, Plan, ExperimentRun, mix_of, programs_of
from vrm.model.job import Job, JobState
from vrm.results.jobs import read_jobs
from vrm.results.metrics import makespan, ran
from vrm.simulation.inputs import QueueWorkload, is_generated
from vrm.ext.generate.generator import write_at_once
from vrm.workload.submission import Submission
from vrm.system.errors import UserError

Reporter = Callable[[str], None]
COMPLETE, CUT_SHORT, MISSING = "complete", "cut short", "to do"
MACHINE = "machine.yaml"
"""Name of the machine file of simulated runs under `inputs/`."""

_LIMIT_EXCEEDED = -1  # instead of an exit status: the run was stopped at the experiment's Limit


class ExperimentError(UserError):
    """An experiment that cannot be executed; the text gives the reason and the remedy."""


@dataclass(frozen=True)
class ExperimentTask:
    """A run with its directory. `workload` is its input, relative to the experiment's directory unless synthetic;
    `config` is the text of its configuration; `fingerprint` is equal for runs with equal inputs and settings."""

    run: ExperimentRun
    number: int
    directory: Path
    workload: str
    config: str
    fingerprint: str
    state: str
    seconds: float = 0.0  # duration, if the run is complete


class Experiment:
    """A plan and the directory in which it is executed. `tell` prints a line of progress, `workers` is the number
    of simulations at a time. Raises ExperimentError if the directory holds another experiment, or this one with
    other settings."""

    def __init__(self, plan: Plan, out: Path, tell: Reporter, workers: int | None = None) -> None:
        self.plan = plan
        self.out = out
        self.tell = tell
        self.workers = workers

    # Tasks.

    def tasks(self) -> list[ExperimentTask]:
        """Return all runs in the order of execution, with their state (complete, cut short or to do)."""
        return [self._task(run, number) for number, run in enumerate(self.plan.runs, 1)]

    def _task(self, run: ExperimentRun, number: int) -> ExperimentTask:
        directory = self.out / run.name
        workload = self._input(run)
        keys = dump(run.scenario.settings)
        for key in ("Log", "State", "Directory"):
            del keys[key]
        applications = keys["Applications"]
        contents = [self._content(run)]
        heatmap = run.scenario.settings.applications.heatmap
        if heatmap is not None:
            contents.append(heatmap.read_bytes())
            applications["Heatmap"] = f"../inputs/{self._heatmap(heatmap)}"
        if self.plan.machine is not None:
            contents.append(self.plan.machine.read_bytes())
        applications["Queue"] = f"../{workload}".replace("$", "$$") \
            if not is_generated(workload) else "queue"
        keys.update(Log=".", State="state", Directory=".")
        told = {**keys, "Applications": {**applications, "Path": ""}}
        # Keys that vrm 0.1.0 did not have do not change the fingerprint unless they are used.
        del told["Applications"]["RunIn"]
        told["Launcher"] = {key: value for key, value in keys["Launcher"].items()
                            if key != "Stamp" or value}
        if not applications["Programs"]:
            del told["Applications"]["Programs"]
        told = {key: value for key, value in told.items()
                if value or key not in ("NodeClasses", "Licences")}
        applications["RunIn"] = "."  # files that jobs write stay in the directory of the run
        chosen = run.queue.selection
        further = [chosen.begin, chosen.end, chosen.clean]
        text = json.dumps([told, self.plan.mode, workload, chosen.jobs, chosen.load, *further * any(further)],
                          sort_keys=True)
        found = hashlib.sha256(text.encode())
        for content in contents:
            found.update(content)
        config = f"# {run.name} of {self.plan.name}; written by vrm experiment\n" + \
            yaml.safe_dump(keys, sort_keys=False)
        return self._with_state(ExperimentTask(run, number, directory, workload, config,
                                     found.hexdigest()[:16], MISSING))

    def _with_state(self, task: ExperimentTask) -> ExperimentTask:
        try:
            known = record.read_record(task.directory)
        except ValueError as error:
            raise ExperimentError(str(error)) from error
        if known is None:
            return task
        if known.get("fingerprint") != task.fingerprint:
            raise ExperimentError(
                f"{task.directory} holds a run with other settings or another queue; give another "
                "directory with --out, or remove this one to repeat the run")
        complete = bool(known.get("complete")) and (task.directory / "jobs.csv").exists()
        return ExperimentTask(task.run, task.number, task.directory, task.workload, task.config,
                    task.fingerprint, COMPLETE if complete else CUT_SHORT,
                    float(known.get("seconds") or 0) if complete else 0.0)

    def expected(self) -> float | None:
        """Return the seconds that a live experiment takes, according to the simulator, if every job runs as long as
        its estimate; None if the topology of this machine cannot be read."""
        from vrm.live.nodes.geometry import geometry
        from vrm.live.nodes.topology import TopologyError
        from vrm.simulation.library import choices_of, simulate
        seconds: dict[tuple[str, str], float] = {}
        for run in self.plan.runs:
            key = run.scenario.name, run.queue.name
            if key in seconds:
                continue
            settings = run.scenario.settings
            try:
                nodes, _ = geometry(settings.nodes, settings.sockets, settings.cores,
                                    settings.emulate)
            except TopologyError:
                return None
            seconds[key] = simulate(_submissions(run), **choices_of(settings, nodes=nodes)).summary["makespan"]
        return sum(seconds[run.scenario.name, run.queue.name] for run in self.plan.runs)

    # Inputs.

    def _input(self, run: ExperimentRun) -> str:
        """Return the run's workload: a path relative to the experiment's directory, or the text of a synthetic one."""
        queue = run.queue
        if is_generated(queue.source):
            return f"{':'.join(queue.source.split(':')[:3])}:{run.seed}"
        if queue.generate is not None:
            return f"inputs/{queue.name}-{run.seed}"
        ending = "".join(Path(queue.source).suffixes[-2:]) if ".swf" in queue.source else ""
        return f"inputs/{queue.name}{ending}"

    @staticmethod
    def _heatmap(path: Path) -> str:
        short = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        return f"{path.stem}-{short}{path.suffix}"

    @staticmethod
    def _content(run: ExperimentRun) -> bytes:
        if run.queue.generate is not None:
            mix = mix_of(run.queue.generate, run.seed or 0)
            return "".join(f"{line}\n" for line in mix.lines()).encode()
        if is_generated(run.queue.source):
            return b""
        return Path(run.queue.source).read_bytes()

    def _prepare(self, tasks: Sequence[ExperimentTask]) -> None:
        """Write the plan and the inputs. Runs that are complete had the same inputs (see the fingerprint)."""
        inputs = self.out / "inputs"
        inputs.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.plan.file, self.out / "experiment.yaml")
        if self.plan.machine is not None:
            shutil.copyfile(self.plan.machine, inputs / MACHINE)
        described = json.dumps(self.plan.described(), indent=2) + "\n"
        (self.out / "experiment.json").write_text(described, encoding="utf-8")
        done: set[Any] = set()
        for task in tasks:
            queue, heatmap = task.run.queue, task.run.scenario.settings.applications.heatmap
            if heatmap is not None and heatmap not in done:
                shutil.copyfile(heatmap, inputs / self._heatmap(heatmap))
                done.add(heatmap)
            if task.workload in done or is_generated(task.workload):
                continue
            done.add(task.workload)
            target = self.out / task.workload
            if queue.generate is not None:
                write_at_once(mix_of(queue.generate, task.run.seed or 0), target,
                              f"{queue.name} of {self.plan.name}, seed {task.run.seed}", True)
            else:
                shutil.copyfile(queue.source, target)

    # Execution.

    def run(self) -> bool:
        """Execute the missing runs; return True if all jobs of all runs succeeded. Raises ExperimentError if runs
        failed, after the other runs are done, and KeyboardInterrupt."""
        self.out.mkdir(parents=True, exist_ok=True)
        with self._owned():
            tasks = self.tasks()
            missing = [task for task in tasks if task.state != COMPLETE]
            if len(missing) < len(tasks):
                self.tell(f"{len(tasks) - len(missing)} of {len(tasks)} runs are complete already")
            self._prepare(tasks)
            done = [task.seconds for task in tasks if task.state == COMPLETE]
            failed = (self._run_live if self.plan.mode == LIVE else self._simulate)(missing, done)
            if failed:
                task, reason = failed[0]
                raise ExperimentError(
                    f"{len(failed)} of {len(tasks)} runs failed; the first, {task.run.name}: "
                    f"{reason}. The same command repeats them")
            return all((record.read_record(task.directory) or {}).get("exit_status") == 0
                       for task in tasks)

    @contextlib.contextmanager
    def _owned(self) -> Iterator[None]:
        with open(self.out / "lock", "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ExperimentError(f"another vrm experiment runs in {self.out}; wait for its "
                                      "end, or name another directory with --out") from error
            yield

    def _begin(self, task: ExperimentTask, mpi: str | None) -> dict[str, Any]:
        """Write the configuration and the record of a run before it starts."""
        task.directory.mkdir(parents=True, exist_ok=True)
        _write_config(task)
        return begin(task, self.plan, mpi)

    def _told(self, task: ExperimentTask, total: int, left: Sequence[ExperimentTask], done: Sequence[float],
              lanes: int = 1) -> None:
        """Print a line of progress: the run, its result, and the estimated time left (`lanes` runs at a time)."""
        everyone = list(read_jobs(task.directory / "jobs.csv"))
        rows = ran(everyone)
        text = f"[{total - len(left)}/{total}] {task.run.name}: {len(rows)} jobs in " \
               f"{makespan(rows):.0f} s"
        if left and done:
            text += f"; {time_left_text(sum(done) / len(done) * len(left) / lanes)} left"
        self.tell(text)
        bad = [row for row in everyone if row.status != JobState.COMPLETED]
        if bad:
            self.tell(f"!! {task.run.name}: {len(bad)} of {len(everyone)} jobs did not succeed; "
                      f"job {bad[0].id} ({bad[0].app}): {bad[0].reason or bad[0].status}; see "
                      f"{task.directory / 'jobs.csv'}")

    # Live.

    def _run_live(self, tasks: Sequence[ExperimentTask], done: list[float]) -> list[tuple[ExperimentTask, str]]:
        failed: list[tuple[ExperimentTask, str]] = []
        mpi = self._checked(tasks)
        for index, task in enumerate(tasks):
            fresh = task.state == CUT_SHORT or (task.directory / "journal").exists()
            known = self._begin(task, mpi)
            begun, before = time.time(), _version(task.directory / "jobs.csv")
            status = self._child(task, *["--fresh"] * fresh)
            if status == 2 and fresh:
                # Its manager was killed and its jobs may still run: wait for their end first.
                self._child(task)
                known, begun = self._begin(task, mpi), time.time()
                status = self._child(task, "--fresh")
            # A manager that crashed also exits with 1, but writes no jobs.csv.
            if status not in (0, 1) or _version(task.directory / "jobs.csv") in (None, before):
                output = (task.directory / "output").read_text(errors="replace").splitlines()
                reason = f"it took more than {self.plan.limit:g} s" if status == _LIMIT_EXCEEDED else \
                    output[-1] if output else f"exit status {status}"
                failed.append((task, reason))
                self.tell(f"!! {task.run.name}: {reason}")
                continue
            end(task.directory, known, begun, status)
            done.append(time.time() - begun)
            left = tasks[index + 1:]
            self._told(task, len(self.plan.runs), left, done)
        return failed

    @staticmethod
    def _checked(tasks: Sequence[ExperimentTask]) -> str:
        """Check that every scenario can run on this machine before the first run starts; return the MPI versions.
        Raises ConfigError and RunError as a manager does."""
        from vrm.live.site.setup import prepare
        found: dict[str, str] = {}
        for task in tasks:
            scenario = task.run.scenario
            if scenario.name not in found:
                found[scenario.name] = prepare(scenario.settings,
                                               watch=False).launcher.version_text
        return ", ".join(dict.fromkeys(found.values()))

    def _child(self, task: ExperimentTask, *options: str) -> int:
        """Run the manager until it exits; return its exit status, or `_LIMIT_EXCEEDED` at the Limit."""
        command = [sys.executable, "-m", "vrm.cli", "-c", "config.yaml", "--once", *options]
        libc = ctypes.CDLL(None)

        def die_with_parent() -> None:
            libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG

        with open(task.directory / "output", "w", encoding="utf-8") as output:
            # In its own session, so that Ctrl-C reaches it only once, through this process.
            child = subprocess.Popen(command, cwd=task.directory, stdin=subprocess.DEVNULL,
                                     stdout=output, stderr=subprocess.STDOUT,
                                     start_new_session=True, preexec_fn=die_with_parent)
            try:
                return child.wait(self.plan.limit or None)
            except subprocess.TimeoutExpired:
                return _LIMIT_EXCEEDED
            finally:
                if child.poll() is None:
                    child.terminate()  # it ends its jobs, then exits
                    child.wait()

    # Simulation.

    def _simulate(self, tasks: Sequence[ExperimentTask], done: list[float]) -> list[tuple[ExperimentTask, str]]:
        from vrm.ext.study.experiment.matrix import run_all
        if not tasks:
            return []
        for task in tasks:
            task.directory.mkdir(parents=True, exist_ok=True)
            _write_config(task)
        ended: list[ExperimentTask] = []

        def tell(task: ExperimentTask, error: Exception | None) -> None:
            ended.append(task)
            if error is not None:
                self.tell(f"!! {task.run.name}: {error}")
                return
            known = record.read_record(task.directory) or {}
            done.append(float(known.get("seconds") or 0))
            self._told(task, len(self.plan.runs), tasks[len(ended):], done,
                       min(lanes, len(tasks)))

        lanes = self.workers or len(os.sched_getaffinity(0))
        found = run_all(partial(simulate_run, plan=self.plan), tasks, workers=lanes, done=tell)
        return [(task, str(error)) for task, error in found]


def _write_config(task: ExperimentTask) -> None:
    """Write the configuration of a run and copy the files of the user's own policies next to it."""
    (task.directory / "config.yaml").write_text(task.config, encoding="utf-8")
    settings = task.run.scenario.settings
    copy_own(settings.rules.own().values(), settings.base, task.directory, settings.trust)


def _submissions(run: ExperimentRun) -> Iterable[Submission]:
    """Return the jobs of a queue file or of a mix; each runs as long as its estimate."""
    if run.queue.generate is None:
        return QueueWorkload(run.queue.source)
    found, time = [], 0.0
    for number, line in enumerate(mix_of(run.queue.generate, run.seed or 0).lines()):
        found.append(Submission(Job(number, line.app, line.procs, line.seconds, time,
                                    line.exclusive), line.seconds))
        time += line.delay or 0.0
    return found


def begin(task: ExperimentTask, plan: Plan, mpi: str | None) -> dict[str, Any]:
    """Write the record of a run that starts, and return it."""
    run = task.run
    settings = run.scenario.settings
    known: dict[str, Any] = {
        "format": 1, "complete": False, "experiment": plan.name, "mode": plan.mode,
        "scenario": run.scenario.name, "changes": dict(run.scenario.changes),
        **settings.rules.record(), "backfilling": str(settings.rules.backfill),
        "queue": run.queue.name,
        "repetition": run.repetition, "position": task.number, "workload": task.workload,
        "seed": run.seed, "experiment_seed": plan.seed, "fingerprint": task.fingerprint,
        "command": _command(task, plan), "versions": record.versions(mpi),
        "machine": record.machine()}
    if plan.mode == LIVE:
        known["programs"] = record.programs(
            settings.applications.program, [(each.app, each.file) for each in programs_of(run.queue)])
    record.write_record(task.directory, known)
    return known


def _command(task: ExperimentTask, plan: Plan) -> str:
    """Return the command that repeats the run in its directory."""
    if plan.mode == LIVE:
        return "vrm -c config.yaml --fresh"
    workload = task.workload if is_generated(task.workload) else f"../{task.workload}"
    chosen = task.run.queue.selection
    options = [f"--{name} {value:.15g}" for name, value in (
        ("jobs", chosen.jobs), ("load", None if chosen.load == 1 else chosen.load), ("begin", chosen.begin),
        ("end", chosen.end)) if value is not None] + ["--clean"] * chosen.clean
    options += [f"--machine ../inputs/{MACHINE}"] if plan.machine is not None else []
    return " ".join(["vrm simulate", workload, "-c config.yaml", *options, "--out ."])


def end(directory: Path, known: dict[str, Any], begun: float, status: int) -> None:
    """Complete the record of a run; `begun` is its start in seconds since the epoch, `status` its exit status."""
    now = time.time()
    record.write_record(directory, {
        **known, "complete": True, "exit_status": status, "started": record.moment(begun),
        "ended": record.moment(now), "seconds": round(now - begun, 3),
        "load_at_end": [round(value, 2) for value in os.getloadavg()]})


def simulate_run(task: ExperimentTask, plan: Plan) -> None:
    """Execute a simulated run; called in a separate process."""
    from vrm.simulation.arguments import Recording
    from vrm.simulation.library import choices_of, simulate, write_summary
    known = begin(task, plan, None)
    begun = time.time()
    settings = load(task.directory / "config.yaml")
    for text in settings.rules.own().values():
        load_own(text, settings.base, settings.trust)
    path = task.workload if is_generated(task.workload) else \
        str(task.directory.parent / task.workload)
    machine = {} if plan.machine is None else {"machine": task.directory.parent / "inputs" / MACHINE}
    outcome = simulate(path, selection=task.run.queue.selection,
                       record=Recording(out=task.directory), **choices_of(settings, **machine))
    if outcome.interrupted:
        raise KeyboardInterrupt
    write_summary(task.directory, task.workload, outcome)
    summary = outcome.summary
    end(task.directory, known, begun, int(summary["completed"] < sum(
        summary.get(state.value, 0) for state in JobState if state.ended)))


def _version(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when the file is replaced (inode and modification time); None without a file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def time_left_text(seconds: float) -> str:
    """Return a rounded time as text: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
