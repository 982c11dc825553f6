"""Implements `vrm.ext.slurm.calls.handler.RequestHandler` for a running manager."""

from __future__ import annotations

import collections
import math
import os
import socket
from typing import Any
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.ext.slurm.calls import jobs as front
from vrm.ext.slurm.calls.answers import CallRefused
from vrm.ext.slurm.calls.handler import SubmittedJob
from vrm.ext.slurm.calls.wire import STDIN
from vrm.live.launch.script import CONFINING
from vrm.live.launch.script_environment import of_submission
from vrm.live.manager.jobs import signals
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.intake import Intake
from vrm.live.manager.jobs.jobcontrol import JobControl
from vrm.live.manager.jobs.launches import Launches
from vrm.live.manager.records.records import EndedJob
from vrm.ext.slurm.calls.sampling import UsageSampler, merge_usage
from vrm.live.manager.job_environment import OURS, files_of, packed
from vrm.model import Booking, Infeasible, Job, JobState
from vrm.model.amounts import GPU, MEMORY, base
from vrm.model.queues import MARK
from vrm.model.job import ANY, Dependency
from vrm.model.node import HALF, Node
from vrm.model.quantities import fold, to_ranges
from vrm.results.placement_text import unfold_nodes
from vrm.ext.steps.records import Step, read_steps
from vrm.run.requeue import unfinished
from vrm.run.job_book import FLEXIBLE
from vrm.run.entry import Entry, JobStateError
from vrm.run.journal.codec import Own
from vrm.run.state import SAID
from vrm.ext.steps import jobfile
from vrm.system import job_variables
from vrm.system.files import group_name, read_own, user_name


class LiveRequestHandler:
    """Answers queries from the manager's parts, and carries out requests through them. `known` are the jobs that a
    command has submitted, by the command's name: to an earlier manager, or for a client that repeats its request."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._intake, self._ends, self._control = live.part(Intake), live.part(Ends), live.part(JobControl)
        self.known: dict[str, list[int]] = {}
        self.sampling = UsageSampler(live)
        self._site_at = -math.inf
        self._site: front.RunFacts
        self._steps: dict[int, list[Step]] = {}
        self._steps_of = (0, 0)
        self._sizes = {node.name: node.cores for node in live.cluster.nodes}

    @property
    def now(self) -> float:
        """Current time in epoch seconds."""
        return self.live.now

    @property
    def site(self) -> front.RunFacts:
        """Facts about the run that hold for all jobs."""
        if self._site_at == self.live.now:
            return self._site
        settings = self.live.settings
        queues = self.live.rules.queues.all
        self._site_at, self._site = self.live.now, front.RunFacts(
            user_name(os.geteuid()), os.geteuid(), socket.gethostname(), str(self.live.run_directory.directory),
            {each.name: each for each in queues}, settings.extended("Slurm.DefaultTime"), self.live.end.end,
            self.live.end.closing, self.live.start_time,
            next((each.name for each in queues if each.default), ""), group_name(os.getegid()), os.getegid())
        return self._site

    # Jobs.

    def jobs(self, ids: Iterable[int] = (), ended: bool = True) -> list[front.JobView]:
        """Return the existing jobs with these ids, or all jobs without ids."""
        entries = self.live.state.book.entries
        chosen = ([entries[job_id] for job_id in sorted(set(ids)) if job_id in entries] if ids else
                  list(entries.values()))
        head = self._head()
        return [self._job(entry, head) for entry in chosen if ended or not entry.state.ended]

    def unfinished(self, ids: Iterable[int]) -> list[front.JobView]:
        """Return those of these jobs that wait or run, or that the next manager is to run again."""
        found = unfinished(self.live.state.book.entries, ids)
        return self.jobs(found) if found else []

    def ids(self) -> list[int]:
        """Return the ids of all jobs."""
        return list(self.live.state.book.entries)

    def array(self, first: int) -> list[front.JobView]:
        """Return the jobs of the array whose first job has this id."""
        entries, last = self.live.state.book.entries, first
        while last + 1 in entries and entries[last + 1].details.more.get("array_id") == first:
            last += 1
        return self.jobs(range(first, last + 1))

    def steps(self, job: front.JobView) -> list[Step]:
        """Return the recorded steps of a job."""
        path = self.live.run_directory.steps
        try:
            about = path.stat()
        except FileNotFoundError:
            return []
        if (about.st_mtime_ns, about.st_size) != self._steps_of:
            self._steps = read_steps(path)
            self._steps_of = about.st_mtime_ns, about.st_size
        return self._steps.get(job.id, [])

    def usage(self, jobs: Sequence[front.JobView]) -> Callable[[], list[list[front.StepUsage]] | None]:
        """Request what the scripts and steps of running jobs use now on all their nodes."""
        asked = [self.sampling.ask(job.id, job.nodes) for job in jobs]
        return lambda: ([merge_usage(each.found) for each in asked]
                        if all(each.done() for each in asked) else None)

    def files(self, job: front.JobView) -> tuple[str, str, str]:
        """Return the paths of a job's output, errors and input."""
        return files_of(self.live.run_directory, job.job, job.details, job.nodes[0] if job.nodes else "",
                        str(self.live.settings.workplace))

    def script(self, job_id: int) -> bytes:
        """Return the text of a job's script."""
        copy = self.live.state.entry(job_id).job.payload.copy
        return read_own(self.live.run_directory.scripts / copy)

    def _head(self) -> int | None:
        """Return the id of the first job of the queue; None if it is empty."""
        queue = self.live.state.queue
        if not len(queue):
            return None
        order = queue.in_order(self.live.now)
        return order[0].id if len(order) else None

    def _job(self, entry: Entry, head: int | None) -> front.JobView:
        job, details, state = entry.job, entry.details, entry.state
        running = self.live.running.get(job.id)
        held = self._ends.held.get(job.id)
        more: dict[str, Any] = {"requeued": entry.tries + entry.losses, "begun": entry.begun < math.inf}
        if details.index is not None:
            more["array"] = details.more.get("array_id")
        if running is not None:
            more.update(_place(running.booking, self.live.cluster.nodes if running.former is None
                               else running.former.nodes))
            more.update(start=running.booking.start, end=running.booking.start + job.walltime,
                        ending=bool(running.intent), launched=True)
        elif held is not None:
            more.update(_place(held.outcome.booking, self.live.cluster.nodes), ending=True,
                        start=held.running.booking.start)
        elif state.ended:
            more.update(self._ended(job))
        elif state is JobState.RUNNING:
            booking = self.live.cluster.bookings.get(job.id)
            more.update(_place(booking, self.live.cluster.nodes), start=self.live.now)
        else:
            more["why"], more["reason"] = self._why(entry, head)
            if entry.missing:
                more["waits"] = tuple(self._open(entry))
                if more["why"] == front.DEPENDENCY and not front.JobView(job.id, job, details, state, **more).named:
                    more["why"] = front.LIMIT
            promise = self.live.state.promises.get(job.id)
            if entry.early:
                more["start"] = entry.begin
            elif promise is not None:
                more["start"] = promise
        return front.JobView(job.id, job, details, state, **more)

    def _why(self, entry: Entry, head: int | None) -> tuple[str, str]:
        """Return why a job waits: the kind of reason, and a text for users."""
        job = entry.job
        if entry.held:
            return front.HELD, "held"
        if entry.missing:
            assert entry.wish is not None
            return front.DEPENDENCY, entry.wish.still(self.live.state.book.entries)
        if entry.early:
            return front.BEGIN, "its time to begin has not come"
        if entry.lacks:
            return front.DOWN, entry.lacks
        if entry.late:
            return front.LATE, "it would not end before the allocation does"
        if self.live.state.reservations.of_job(job.id) is not None:
            return front.RESERVATION, "it waits for its reservation"
        return (front.RESOURCES if job.id == head else front.PRIORITY), ""

    def _open(self, entry: Entry) -> Iterator[Dependency]:
        """Yield the dependencies of a job that are not fulfilled."""
        entries = self.live.state.book.entries
        for each in entry.wish.after if entry.wish is not None else ():
            for ids in to_ranges([job_id for job_id in each.ids if entries[job_id].open_for(each)]):
                yield each._replace(ids=ids)

    def _ended(self, job: Job) -> dict[str, Any]:
        """Return when, where and how a job ended."""
        records = self.live.records
        for outcome in records.pending:
            if outcome.job.id == job.id:
                return self._of_outcome(outcome)
        row = records.rows.get(job.id)
        if row is None:
            return {"end": self.live.now}
        names = unfold_nodes(row.nodes) if row.nodes else []
        return {"nodes": tuple(names), "cores": (row.processors,) if row.start is not None else (),
                "held": self._all_cores(names) if row.exclusive else 0,
                "start": math.inf if row.start is None else row.start,
                "end": math.inf if row.end is None else row.end, "code": row.exit_code, "reason": row.reason,
                "cause": row.cause}

    def _all_cores(self, names: Sequence[str]) -> int:
        """Return the total number of cores of those of these nodes that still exist."""
        return sum(self._sizes.get(name, 0) for name in names)

    def _of_outcome(self, outcome: EndedJob) -> dict[str, Any]:
        nodes = self.live.cluster.nodes if outcome.cluster is None else outcome.cluster.nodes
        return {**_place(outcome.booking, nodes), "end": outcome.end, "code": outcome.exit_code,
                "reason": outcome.reason, "cause": outcome.cause,
                "start": outcome.booking.start if outcome.booking else math.inf}

    # Nodes.

    def nodes(self) -> list[front.NodeView]:
        """Return the nodes with the resources that jobs use on them."""
        cluster, found = self.live.cluster, []
        whole = {number for booking in cluster.bookings.values() if booking.job.exclusive
                 for number in booking.placement.nodes}
        taken = collections.Counter(slot.node for booking in cluster.bookings.values()
                                    for slot in booking.placement.slots(cluster.nodes) for _ in slot.cores)
        for number, node in enumerate(cluster.nodes):
            up = bool(cluster.up >> number & 1)
            left = cluster.left_on(number)
            found.append(front.NodeView(
                node.name, node.sockets, taken[number], up, number in whole,
                *_counted(node, left, MEMORY), *_counted(node, left, GPU),
                tuple(sorted(each for each in node.features if not each.startswith(MARK))), node.threads))
        return found

    # Requests.

    def _values(self, asked: SubmittedJob) -> dict[str, Any]:
        """Return the values of the job of a call. Raises CallRefused if the manager takes no more jobs."""
        if self.live.phase != "running":
            raise CallRefused("the manager of vrm is stopping and takes no more jobs")
        return {**asked.values, "limit": FLEXIBLE if asked.flexible else "strict"}

    def submit(self, asked: SubmittedJob) -> list[int]:
        """Submit the jobs of a call; return their ids."""
        if asked.command in self.known:
            return self.known[asked.command]
        live, values = self.live, self._values(asked)
        state = live.state
        try:
            if not live.ids.kept:
                state.next_id = max(state.next_id, live.ids.first)
                live.ids.keep(state.next_id)
            if asked.script:
                values["copy"] = live.run_directory.keep_script(asked.script)
            if asked.environment is not None:
                values["environment"] = live.run_directory.keep_script(packed(asked.environment))
        except OSError as error:
            raise CallRefused(f"the script cannot be kept: {error.filename}: {error.strerror}") from error
        first = state.next_id
        if asked.indices:
            values["array_id"] = first
            values["variables"] = {**values.get("variables", {}), **_of_array(asked.indices)}
            if 0 < asked.width < len(asked.indices):
                values["throttle"] = asked.width
        origin: dict[str, Any] = {"command": asked.command} if asked.command else {}
        ids, refused = self._intake.take(values, asked.indices, keep=False, own=_own(asked, first), **origin)
        if refused:
            raise CallRefused(refused)
        for note in asked.notes:
            live.tell("note", f"#{fold(ids)} {values['app']}: {note}")
        return ids

    def foresee(self, asked: SubmittedJob) -> front.JobView:
        """Return the job as it would start if it were submitted now. All jobs are assumed to run as long as their
        time limit."""
        live, state, closing = self.live, self.live.state, self.live.end.closing
        values = {**self._values(asked),
                  "after": (*asked.values.get("after", ()), *asked.own.get(next(iter(asked.indices), -1), ()))}
        values.pop("copy", None)
        job, details, reason = self._intake.judged(
            values, state.next_id if live.ids.kept else max(state.next_id, live.ids.first))
        if reason:
            raise CallRefused(reason)
        if live.start_of is None:
            raise CallRefused("this manager makes no forecasts")
        try:
            booking = live.start_of(job, details, live.subject, live.now, closing, live.settings.walltime == "kill",
                                    live.settings.end.fit)
        except (Infeasible, JobStateError) as never:
            raise CallRefused(str(never)) from never
        if booking is None:
            raise CallRefused("it would not start in this allocation, as things are")
        return front.JobView(job.id, job, details, JobState.QUEUED, start=booking.start,
                         **_place(booking, live.cluster.nodes))

    def _one(self, what: str, job_id: int, command: str = "") -> None:
        for wrong in self._control.do(what, [job_id], command)[1].values():
            raise CallRefused(wrong)

    def cancel(self, job_id: int, signal: int = 0) -> None:
        """Cancel a job, or send it a signal."""
        if not signal:
            self._one("cancel", job_id)
            return
        running = self.live.running.get(job_id)
        if running is None or not signals.send(running, signal, None):
            raise CallRefused("it does not run")

    def entry_variables(self, job_id: int, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with which a client that has the environment `env` can run a step in a running job."""
        live, running = self.live, self.live.running.get(job_id)
        if running is None or running.intent:
            raise CallRefused("it does not run")
        booking, details = running.booking, live.state.entry(job_id).details
        job = booking.job
        try:
            live.part(Launches).allow_steps(running)
        except (ValueError, OSError) as error:
            raise CallRefused(str(error)) from error
        nodes = (live.cluster if running.former is None else running.former).nodes
        said = {**of_submission(job, details, job.payload.directory or str(live.settings.workplace), booking.start),
                **job.payload.variables}
        slots = list(booking.placement.slots(nodes))
        found = live.scripts.command(job.id, job.app, slots, nodes,
                                     live.run_directory.files(job.app, job.id).rankfile, (), said,
                                     job.exclusive and booking.placement.share != HALF).env
        host = env.get(STDIN, "").partition("@")[2].partition(".")[0]
        on = [nodes[slot.node].name for slot in slots]
        here = next((name for name in on if name.partition(".")[0] == host), jobfile.ELSEWHERE)
        # Without the marks of the job's processes: marked processes are killed at the job's end together with their
        # whole process group.
        return {**{name: value for name, value in found.items()
                   if name in CONFINING or (
                       name.startswith((*OURS, "PBS_")) and name not in ("VRM_RUN", "VRM_JOB_ID"))},
                "SLURM_NTASKS": "", "SLURM_NPROCS": "", job_variables.NODE: on[0] if live.scripts.emulated else here,
                **live.scripts.finding(env)}

    def hold(self, job_id: int) -> None:
        """Prevent a waiting job from starting."""
        self._one("hold", job_id)

    def release(self, job_id: int) -> None:
        """Allow a held job to start."""
        self._one("release", job_id)

    def requeue(self, job_id: int, command: str = "") -> None:
        """Requeue a job."""
        self._one("requeue", job_id, command)

    def change(self, job_id: int, values: Mapping[str, Any]) -> None:
        """Change fields of a submitted job."""
        self._ends.settle(job_id)
        state, running = self.live.state, self.live.running.get(job_id)
        try:
            anew = {key: value for key, value in values.items() if key in REPLACED_FIELDS}
            if anew:
                self._intake.change(state.entry(job_id), anew)
            job = state.entry(job_id).job
            if len(values) > len(anew):
                state.change(job_id, values.get("walltime", job.walltime), int(values.get("priority", job.priority)),
                             {key: value for key, value in values.items() if key in SAID})
        except JobStateError as error:
            raise CallRefused(str(error)) from error
        if running is not None and job_id in state.running:
            running.start = state.running[job_id]
            running.warned = False
            running.signal_due = signals.due(running, signals.warning_of(state.entry(job_id).details))
        self.live.changes()


REPLACED_FIELDS = ("begin", "after", "singleton", "nodes", "throttle")
"""Fields of a waiting job that are changed by replacing it with a new job under the same id."""


def _of_array(indices: Sequence[int]) -> dict[str, str]:
    """Return the variables that describe an array to its jobs."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    values = {"COUNT": len(indices), "MIN": min(indices), "MAX": max(indices), "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def _own(asked: SubmittedJob, first: int) -> Own:
    """Return the additional dependencies of each job of an array: those of its index, and, where only `width` jobs
    may run at a time, the end of the job `width` places before it. () if there are none."""
    width = asked.width or len(asked.indices)
    if width >= len(asked.indices) and not asked.own:
        return ()
    return [(*asked.own.get(index, ()), *((Dependency.on(first + at - width, ANY),) if at >= width else ()))
            for at, index in enumerate(asked.indices)]


def _place(booking: Booking | None, nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the nodes of a booking and the number of its cores on each."""
    if booking is None:
        return {}
    on: dict[int, int] = {}
    for slot in booking.placement.slots(nodes):
        on[slot.node] = on.get(slot.node, 0) + len(slot.cores)
    return {"nodes": tuple(nodes[number].name for number in on), "cores": tuple(on.values()),
            "held": sum(nodes[number].cores for number in on) if booking.job.exclusive else 0}


def _counted(node: Node, left: Callable[[str], int], name: str) -> tuple[int, int]:
    """Return how much of a resource the node has, and how much of it is used, in base units."""
    if name not in node.resources:
        return 0, 0
    there = base(name, node.resources[name])
    return there, there - left(name)
