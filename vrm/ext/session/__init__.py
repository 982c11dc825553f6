"""vrm from Python: jobs as futures.

    from vrm import Session

    with Session(Nodes=2, Launcher={"Kind": "direct"}) as session:
        jobs = [session.submit("./solve", tasks=4, walltime="10m", args=[str(n)]) for n in range(20)]
        for job in as_completed(jobs):          # of concurrent.futures
            print(job.id, job.result().text)

A `JobFuture` is a `concurrent.futures.Future`: `wait` and `as_completed` of that module take it, and
`await job` works in an event loop of asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

from vrm.config.schema import Settings, load
from vrm.run import command_files
from vrm.run.journal.follower import JournalFollower
from vrm.run.journal.combined_records import unfolded
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError
from vrm.workload.extension_fields import added
from vrm.workload.grammar import FIELDS, parse_line
from vrm.workload.writer_marker import HEARTBEAT, WriterMarker

POLL = 0.05
"""Seconds between two looks at the journal."""

BEGINS_WITHIN = 60.0
"""Maximum seconds until a manager has begun."""

RESTARTS = 3
"""Maximum number of restarts of a killed manager without any job being accepted or ending in between. A restarted
manager continues the run."""

TAIL = 2000
"""Characters of a failed job's errors that its exception shows."""


class SessionError(RuntimeError):
    """The manager of a session cannot be started, or has ended; the text gives the reason."""


class JobFailed(RuntimeError):
    """A job did not complete; `result` says how it ended."""

    def __init__(self, result: Result) -> None:
        self.result = result
        why = f": {result.reason}" if result.reason else ""
        code = f" (exit status {result.exit_code})" if result.exit_code else ""
        errors = result.errors_text[-TAIL:].strip()
        super().__init__(f"job {result.id} has ended as {result.status}{code}{why}"
                         + (f"\n{errors}" if errors else ""))


class Result(NamedTuple):
    """How a job ended. `start` and `end` are seconds since the epoch (`start` is None for a job that never ran).
    `exit_code` is the code that a shell would show, None if there is none. `output` and `errors` are the files with the
    job's output."""

    id: int
    status: str
    exit_code: int | None
    start: float | None
    end: float
    reason: str
    output: Path
    errors: Path

    @property
    def text(self) -> str:
        """The text that it printed."""
        return _text(self.output)

    @property
    def errors_text(self) -> str:
        """The text that it printed on standard error."""
        return _text(self.errors)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


class JobFuture(Future[Result]):
    """A submitted job: a future whose `result()` is a `Result`. It raises JobFailed if the job
    did not complete, CancelledError if it was cancelled, SessionError if the manager has ended."""

    def __init__(self, session: Session, app: str) -> None:
        super().__init__()
        self.app = app
        self._session = session
        self._known = threading.Event()
        self._id: int | None = None
        self._started: float | None = None

    @property
    def id(self) -> int:
        """The job's id; waits a moment if the manager has not accepted the job yet. Raises SessionError if it never
        will."""
        self._known.wait()
        if self._id is None:
            raise SessionError(str(self.exception()))
        return self._id

    def running(self) -> bool:
        """Return whether the job has started and not ended."""
        return self._started is not None and not self.done()

    def cancel(self) -> bool:
        """Request the end of the job, whether it waits or runs; False if it has ended. Use `wait` to wait until it has
        ended."""
        if self.done():
            return self.cancelled()
        self._session.ask({"do": "cancel", "ids": [str(self.id)]})
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        state = ("cancelled" if self.cancelled() else "ended" if self.done() else
                 "running" if self.running() else "waiting")
        return f"<Job {'?' if self._id is None else self._id} {self.app}: {state}>"


class Session:
    """A manager, and the jobs that this program submits to it.

    `config` is a configuration file as for `vrm -c FILE`. Without one, its keys are arguments (`Nodes=4,
    Allocation={"NodeOrder": "best-fit"}`), jobs may be any programs and share nodes (`pack`), and the files of the run
    are in `directory`. If a manager is running already, it is used, and it continues after the session. Otherwise one
    is started. It ends when the session is closed, or this program ends, and the jobs have ended. A manager that was
    killed is started again.

    Raises `vrm.config.problems.ConfigError` for a wrong configuration, SessionError if no manager
    can be started.
    """

    def __init__(self, config: str | Path | None = None, *,
                 directory: str | Path = "vrm-session", **keys: Any) -> None:
        if config is not None and keys:
            raise TypeError(f"{', '.join(keys)}: give a configuration file or its keys, not both")
        self.config = Path(config) if config is not None else _written(Path(directory), keys)
        self.settings: Settings = load(str(self.config))
        self._run = RunDirectory(self.settings.directory, self.settings.log, self.settings.state)
        self._jobs: dict[int, JobFuture] = {}
        self._sent: dict[str, JobFuture] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._marker: WriterMarker | None = None
        self._restarts = self._fruitless = 0  # all restarts, and those since a job was last accepted or ended
        self._beat = 0.0
        self._closing = False
        self.own = not self._runs()
        if self.own:
            self._marker = WriterMarker(self.settings.applications.queue)
            self._marker.__enter__()
            self._start()
        self._follower = JournalFollower(self._run.journal)
        self._thread = threading.Thread(target=self._follow, name="vrm session", daemon=True)
        self._thread.start()

    # The manager.

    def _runs(self) -> bool:
        try:
            return self._run.manager_runs()
        except OSError:
            return False

    @property
    def log(self) -> Path:
        """File with the manager's messages."""
        return self.settings.directory / "manager.log"

    def _start(self) -> None:
        self.settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            first = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vrm.cli", "-c", str(self.config), "--here"], stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        until = time.monotonic() + BEGINS_WITHIN
        while not self._runs():
            if self._process.poll() is not None or time.monotonic() > until:
                said_last = self.log.read_bytes()[first:].decode(errors="replace").strip()
                raise SessionError(f"the manager did not start: {said_last or 'it printed nothing'}")
            time.sleep(POLL)

    def ask(self, command: dict[str, Any]) -> None:
        """Send a command to the manager without waiting for an answer."""
        command_files.send(self._run, {**command, "unasked": True})

    # Jobs.

    def submit(self, program: str | Path, tasks: int = 1,
               walltime: str | float | None = None, *, args: Sequence[object] = (),
               after: Iterable[JobFuture | int] = (), exclusive: bool = False,
               env: Mapping[str, str] | None = None, **fields: object) -> JobFuture:
        """Submit a job: `tasks` ranks of a program, for at most `walltime` (seconds, or a text such as "90m"; None: an
        hour). It starts after the jobs of `after` have completed. `fields` are those of a queue line: `cores=2`,
        `gpus_per_task=1`, `script=1`, `dir="work"`. Raises ValueError with the reason if the job is not valid."""
        if self._closing:
            raise SessionError("the session is closed")
        app = os.path.abspath(program) if os.sep in str(program) else str(program)
        words = [app, str(tasks)]
        if walltime is not None or exclusive:
            words += ["1h" if walltime is None else str(walltime), str(int(exclusive))]
        line = [*map(shlex.quote, words)]
        ids = ",".join(str(each.id if isinstance(each, JobFuture) else each) for each in after)
        if args:
            fields["args"] = shlex.join(map(str, args))
        if ids:
            fields["after"] = ids
        for name, value in fields.items():
            if name in ("array", "each") or (name not in FIELDS and added(name) is None):
                raise ValueError(f"`{name}` is not a field of a job; there are "
                                 f"{', '.join(sorted(set(FIELDS) - {'array'}))}")
            text = str(int(value)) if isinstance(value, bool) else str(value)
            line.append(f"{name}={shlex.quote(os.path.abspath(text) if name in _PATHS else text)}")
        line += [f"env={shlex.quote(f'{name}={value}')}" for name, value in (env or {}).items()]
        parse_line(" ".join(line))
        with self._lock:
            command = command_files.send(self._run, {"do": "submit", "line": " ".join(line), "unasked": True})
            job = self._sent[command] = JobFuture(self, Path(app).name)
        return job

    def map(self, function: Callable[..., Any], *items: Iterable[Any], workers: int = 0, cores: int = 1,
            walltime: str | float = "1h", chunksize: int = 0) -> Iterator[Any]:
        """Call a function on each item (with several iterables: on the first of each, and so on), using
        workers on the cores of the run. Yields the results in the order of the items, and raises the exception of
        a call when its turn comes.

        `workers` is the number of jobs, of `cores` each, that run for at most `walltime` (0: one for each core of the
        run); each takes `chunksize` items at a time (0: a suitable number). Functions of a
        notebook, and lambdas, need the package cloudpickle here and on the nodes.
        """
        from vrm.ext.session.mapping import mapped
        return mapped(self, function, list(zip(*items)), workers, cores, walltime, chunksize)

    # Following jobs.

    def _follow(self) -> None:
        """Follow the journal until the session is closed and all jobs have ended."""
        while True:
            try:
                self._look()
            except Exception as error:  # reported through the futures: nothing else sees a thread's exception
                self._give_up(error)
                raise
            if self._closing and not self._sent and not self._jobs:
                return
            time.sleep(POLL)

    def _look(self) -> None:
        alive = self._runs()  # checked before the last records are read
        with contextlib.suppress(FileNotFoundError):
            _, records = self._follower.read_new()
            for record in unfolded(records):
                self._take(record)
        if self._marker is not None and time.monotonic() > self._beat + HEARTBEAT / 2:
            self._beat = time.monotonic()
            self._marker.beat()
        if not alive and (self._sent or self._jobs):
            self._manager_gone()

    def _take(self, record: Mapping[str, Any]) -> None:
        event = record["event"]
        if event in ("job", "end"):
            self._fruitless = 0
        if event == "job" and record.get("command"):
            with self._lock:
                job = self._sent.pop(record["command"], None)
                if job is not None:
                    self._jobs[record["id"]] = job
            if job is not None:
                job._id = record["id"]
                job._known.set()
        elif event == "start" and record["id"] in self._jobs:
            self._jobs[record["id"]]._started = record["time"]
        elif event in ("again", "back") and record["id"] in self._jobs:
            self._jobs[record["id"]]._started = None
        elif event == "end" and record["id"] in self._jobs:
            self._ended(self._jobs.pop(record["id"]), record)

    def _ended(self, job: JobFuture, record: Mapping[str, Any]) -> None:
        files = self._run.files(job.app, record["id"])
        result = Result(record["id"], record["state"], record.get("exit_code"), job._started,
                        record["time"], record.get("reason", ""), Path(files.output), Path(files.errors))
        if result.status == "cancelled" and Future.cancel(job):
            job.set_running_or_notify_cancel()
        elif result.status == "completed":
            job.set_result(result)
        else:
            job.set_exception(JobFailed(result))

    def _manager_gone(self) -> None:
        """Restart the manager if this session started it and it was killed by a signal; otherwise give up."""
        status = self._process.poll() if self._process is not None else None
        if self.own and status is not None and status < 0 and self._fruitless < RESTARTS:
            self._restarts += 1
            self._fruitless += 1
            try:
                self._start()
            except (SessionError, OSError) as error:
                self._give_up(error)
            return
        self._give_up(SessionError(f"the manager has ended; see {self.log}" if self.own else
                                   "the manager has ended"))

    def _give_up(self, error: BaseException) -> None:
        """Stop following jobs. Jobs that have not started will not run: their commands are withdrawn, or the next
        manager cancels them. Jobs that have started continue."""
        with self._lock:
            sent, jobs = dict(self._sent), dict(self._jobs)
            self._sent.clear()
            self._jobs.clear()
        waiting = [job_id for job_id, job in jobs.items() if job._started is None]
        with contextlib.suppress(OSError, RunError):
            for command in sent:
                command_files.withdraw(self._run, command)
            if waiting:
                self.ask({"do": "cancel", "ids": list(map(str, waiting))})
        for job in (*sent.values(), *jobs.values()):
            job.set_exception(error if job._started is None else SessionError(
                f"{error}; job {job.id} has started and continues: its result will be in {self._run.jobs} when a "
                "manager runs here again"))
            job._known.set()

    # The end.

    def close(self) -> None:
        """Wait for all jobs, and end the manager if this session started it."""
        self._closing = True
        self._thread.join()
        if self._marker is not None:
            self._marker.__exit__()
            self._marker = None
        if self._process is not None:
            self._process.wait()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, *failure: object) -> None:
        if kind is not None:  # after an exception no one will use the results
            unfinished: set[JobFuture] = {*self._jobs.values(), *self._sent.values()}
            for job in unfinished:
                with contextlib.suppress(SessionError):
                    job.cancel()
        self.close()

    def __repr__(self) -> str:
        return (f"<Session {self.config}: {len(self._jobs) + len(self._sent)} job(s) wait or run"
                f"{', closed' if self._closing else ''}>")


_PATHS = ("dir", "file")


def _written(directory: Path, keys: Mapping[str, Any]) -> Path:
    """Write a configuration with these keys into this directory; return its path."""
    import yaml
    directory = directory.absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    queue = directory / "queue"
    queue.touch()
    own = {"Log": str(directory / "logs"), **keys,
           "Applications": {"Path": os.getcwd(), "Queue": str(queue), "RunIn": os.getcwd(), "Any": True,
                            **keys.get("Applications", {})}}
    path = directory / "vrm.yaml"
    path.write_text(yaml.safe_dump(own), encoding="utf-8")
    return path

