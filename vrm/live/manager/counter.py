"""What commands of other batch systems ask of this manager: see `vrm.front.counter.Counter`."""

from __future__ import annotations

import math
import os
import socket
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from vrm.front import jobs as front
from vrm.front.answers import Refused
from vrm.front.counter import Asked
from vrm.live.manager import signals
from vrm.live.manager.desk import Desk
from vrm.live.manager.ends import Ends
from vrm.live.manager.intake import Intake
from vrm.live.manager.orders import Orders
from vrm.live.manager.records import Outcome
from vrm.live.manager.sampling import put_together
from vrm.live.manager.surroundings import files_of, packed
from vrm.live.manager.stopping import Stopping
from vrm.model import Booking, Infeasible, Job, JobState
from vrm.model.amounts import GPU, MEMORY, base
from vrm.model.job import ANY, Dependency
from vrm.model.node import Node
from vrm.model.ranges import fold, to_ranges
from vrm.results.jobs import JobRow
from vrm.results.places import unfold_nodes
from vrm.results.steps import Step, read_steps
from vrm.run.book import FLEXIBLE, Entry, LifeError
from vrm.run.codec import Own
from vrm.system.files import group_name, read_own, user_name


class LiveCounter:
    """Answers with what the parts of a manager know, and does by them what is asked."""

    def __init__(self, desk: Desk, intake: Intake, ends: Ends, orders: Orders, stopping: Stopping) -> None:
        self.desk = desk
        self._intake = intake
        self._ends = ends
        self._orders = orders
        self._stopping = stopping
        self._rows: Dict[int, JobRow] = {}   # of jobs that ended, as far as they were looked at
        self._seen = 0
        self.start_of: Callable[..., Optional[Booking]] = _nobody_knows  # see `vrm.forecast.asked.start_of`
        self._site_at = -math.inf
        self._site: front.Site
        self._steps: Dict[int, List[Step]] = {}
        self._steps_of = (0, 0)
        self._sizes: Tuple[Sequence[Node], Dict[str, int]] = (), {}

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return self.desk.now

    @property
    def site(self) -> front.Site:
        """What is true of all jobs."""
        if self._site_at == self.desk.now:
            return self._site
        settings = self.desk.settings
        queues = self.desk.rules.queues.all
        self._site_at, self._site = self.desk.now, front.Site(
            user_name(os.geteuid()), os.geteuid(), socket.gethostname(), str(self.desk.run_directory.directory),
            [each.name for each in queues], settings.slurm.default_time, self._stopping.end.end,
            self._stopping.end.closing, self.desk.start_time,
            next((each.name for each in queues if each.default), ""), group_name(os.getegid()), os.getegid())
        return self._site

    # Jobs.

    def jobs(self, ids: Iterable[int] = (), ended: bool = True) -> List[front.Job]:
        """The jobs of these ids that there are, or without ids all."""
        entries = self.desk.state.book.entries
        chosen = [entries[job_id] for job_id in sorted(set(ids)) if job_id in entries] if ids else list(entries.values())
        head = self._head()
        return [self._job(entry, head) for entry in chosen if ended or not entry.state.ended]

    def array(self, first: int) -> List[front.Job]:
        """The jobs of the array whose first one this is."""
        entries, last = self.desk.state.book.entries, first
        while last + 1 in entries and entries[last + 1].details.more.get("array_id") == first:
            last += 1
        return self.jobs(range(first, last + 1))

    def steps(self, job: front.Job) -> List[Step]:
        """The steps of a job that have ended."""
        path = self.desk.run_directory.steps
        try:
            about = path.stat()
        except FileNotFoundError:
            return []
        if (about.st_mtime_ns, about.st_size) != self._steps_of:
            self._steps = read_steps(path)
            self._steps_of = about.st_mtime_ns, about.st_size
        return self._steps.get(job.id, [])

    def usage(self, jobs: Sequence[front.Job]) -> Callable[[], Optional[List[List[front.Usage]]]]:
        """What the scripts of running jobs, and their steps, use now on all their nodes."""
        asked = [self._ends.watch.ask_usage(job.id, job.nodes) for job in jobs]
        return lambda: ([put_together(each.found) for each in asked]
                        if all(each.done() for each in asked) else None)

    def files(self, job: front.Job) -> Tuple[str, str, str]:
        """The paths of a job's output, errors and input."""
        payload, run = job.job.payload, self.desk.run_directory
        if not payload.output:
            return str(run.output(job.job.app, job.id)), str(run.errors(job.job.app, job.id)), ""
        return files_of(job.job, job.details, payload.directory or str(self.desk.settings.workplace),
                        job.nodes[0] if job.nodes else "")

    def script(self, job_id: int) -> bytes:
        """The text of a job's script."""
        copy = self.desk.state.entry(job_id).job.payload.copy
        return read_own(self.desk.run_directory.scripts / copy)

    def _head(self) -> Optional[int]:
        """The job whose turn it is."""
        queue = self.desk.queue
        if not len(queue):
            return None
        order = queue.in_order(self.desk.now)
        return order[0].id if len(order) else None

    def _job(self, entry: Entry, head: Optional[int]) -> front.Job:
        job, details, state = entry.job, entry.details, entry.state
        running = self.desk.running.get(job.id)
        held = self._ends.held.get(job.id)
        more: Dict[str, Any] = {"requeued": entry.tries + entry.losses}
        if running is not None:
            more.update(_place(running.booking, self.desk.cluster.nodes if running.former is None
                               else running.former.nodes))
            more.update(start=running.booking.start, end=running.booking.start + job.walltime,
                        ending=bool(running.intent))
        elif held is not None:
            more.update(_place(held.outcome.booking, self.desk.cluster.nodes), ending=True,
                        start=held.running.booking.start)
        elif state.ended:
            more.update(self._ended(job))
        elif state is JobState.RUNNING:
            booking = self.desk.cluster.bookings.get(job.id)
            more.update(_place(booking, self.desk.cluster.nodes), start=self.desk.now)
        else:
            more["why"], more["reason"] = self._why(entry, head)
            if entry.missing:
                more["waits"] = tuple(self._open(entry))
            promise = self.desk.state.promises.get(job.id)
            if entry.early:
                more["start"] = entry.begin
            elif promise is not None:
                more["start"] = promise
        if details.index is not None:
            more["array"] = details.more.get("array_id")
        return front.Job(job.id, job, details, state, **more)

    def _why(self, entry: Entry, head: Optional[int]) -> Tuple[str, str]:
        """Why a job waits: the kind, and more for people."""
        job = entry.job
        if entry.held:
            return front.HELD, "held"
        if entry.missing:
            assert entry.wish is not None
            return front.DEPENDENCY, entry.wish.still(self.desk.state.book.entries)
        if entry.early:
            return front.BEGIN, "its time to begin has not come"
        if entry.lacks:
            return front.DOWN, entry.lacks
        if entry.late:
            return front.LATE, "it would not end before the allocation does"
        if self.desk.state.bound_to(job.id) is not None:
            return front.RESERVATION, "it waits for its reservation"
        return (front.RESOURCES if job.id == head else front.PRIORITY), ""

    def _open(self, entry: Entry) -> Iterator[Dependency]:
        """What a job depends on that has not happened."""
        entries = self.desk.state.book.entries
        for each in entry.wish.after if entry.wish is not None else ():
            for ids in to_ranges([job_id for job_id in each.ids if entries[job_id].open_for(each)]):
                yield each._replace(ids=ids)

    def _ended(self, job: Job) -> Dict[str, Any]:
        """When, where and how a job ended."""
        records = self._ends.records
        for outcome in records.pending:
            if outcome.job.id == job.id:
                return self._of_outcome(outcome)
        if len(records.rows) < self._seen:
            self._rows.clear()  # some wait again
            self._seen = 0
        for row in records.rows[self._seen:]:
            self._rows[row.id] = row
        self._seen = len(records.rows)
        row = self._rows.get(job.id)  # type: ignore[assignment]
        if row is None:
            return {"end": self.desk.now}
        names = unfold_nodes(row.nodes) if row.nodes else []
        return {"nodes": tuple(names), "cores": (row.processors,) if row.start is not None else (),
                "held": self._all_cores(names) if row.exclusive else 0,
                "start": math.inf if row.start is None else row.start,
                "end": math.inf if row.end is None else row.end, "code": row.exit_code, "reason": row.reason,
                "cause": row.cause}

    def _all_cores(self, names: Sequence[str]) -> int:
        """The cores of these nodes, as far as they are there still."""
        nodes = self.desk.cluster.nodes
        if self._sizes[0] is not nodes:
            self._sizes = nodes, {node.name: node.cores for node in nodes}
        return sum(self._sizes[1].get(name, 0) for name in names)

    def _of_outcome(self, outcome: Outcome) -> Dict[str, Any]:
        nodes = self.desk.cluster.nodes if outcome.cluster is None else outcome.cluster.nodes
        return {**_place(outcome.booking, nodes), "end": outcome.end, "code": outcome.exit_code,
                "reason": outcome.reason, "cause": outcome.cause,
                "start": outcome.booking.start if outcome.booking else math.inf}

    # Nodes.

    def nodes(self) -> List[front.Node]:
        """The nodes, and what of them jobs have."""
        cluster, found = self.desk.cluster, []
        whole = {number for booking in cluster.bookings.values() if booking.job.exclusive
                 for number in booking.placement.nodes}
        for number, node in enumerate(cluster.nodes):
            up = bool(cluster.up >> number & 1)
            left = cluster.left_on(number)
            found.append(front.Node(
                node.name, node.sockets, self._taken(number, node), up, number in whole,
                *_counted(node, left, MEMORY), *_counted(node, left, GPU),
                tuple(sorted(node.features))))
        return found

    def _taken(self, number: int, node: Node) -> int:
        cluster = self.desk.cluster
        return sum(len(slot.cores) for booking in cluster.bookings.values()
                   if number in booking.placement.nodes
                   for slot in booking.placement.slots(cluster.nodes) if slot.node == number)

    # What is asked for.

    def submit(self, asked: Asked) -> List[int]:
        """New jobs; their ids."""
        desk = self.desk
        if desk.phase != "running":
            raise Refused("the manager of vrm is stopping and takes no more jobs")
        known = self._orders.known(asked.command)
        if known:
            return known
        values = {**asked.values, "limit": FLEXIBLE if asked.flexible else "strict"}
        state = desk.state
        try:
            if not desk.ids.kept:
                state.next_id = max(state.next_id, desk.ids.first)
                desk.ids.keep(state.next_id)
            if asked.script:
                values["copy"] = desk.run_directory.keep_script(asked.script)
            if asked.environment is not None:
                values["environment"] = desk.run_directory.keep_script(packed(asked.environment))
        except OSError as error:
            raise Refused(f"the script cannot be kept: {error.filename}: {error.strerror}") from error
        first = state.next_id
        if asked.indices:
            values["array_id"] = first
            values["variables"] = {**values.get("variables", {}), **_of_array(asked.indices)}
        ids, refused = self._intake.take(values, asked.indices, keep=False, own=_own(asked, first),
                                         **({"command": asked.command} if asked.command else {}))
        if refused:
            raise Refused(refused)
        for note in asked.notes:
            desk.tell("note", f"#{fold(ids)} {values['app']}: {note}")
        return ids

    def foresee(self, asked: Asked) -> front.Job:
        """The job as it would start, if it were submitted now. It is as long as its limit, as all others."""
        desk, state, closing = self.desk, self.desk.state, self._stopping.end.closing
        if desk.phase != "running":
            raise Refused("the manager of vrm is stopping and takes no more jobs")
        values = {**asked.values, "limit": FLEXIBLE if asked.flexible else "strict",
                  "after": (*asked.values.get("after", ()), *asked.own.get(next(iter(asked.indices), -1), ()))}
        values.pop("copy", None)
        job, details, reason = self._intake.judged(
            values, state.next_id if desk.ids.kept else max(state.next_id, desk.ids.first))
        if reason:
            raise Refused(reason)
        try:
            booking = self.start_of(job, details, desk.subject, desk.now, closing, desk.settings.walltime == "kill",
                                    desk.settings.end.fit)
        except (Infeasible, LifeError) as never:
            raise Refused(str(never)) from never
        if booking is None:
            raise Refused("it would not start in this allocation, as things are")
        return front.Job(job.id, job, details, JobState.QUEUED, start=booking.start,
                         **_place(booking, desk.cluster.nodes))

    def _one(self, what: str, job_id: int, command: str = "") -> None:
        try:
            self._orders.one(what, job_id, command)
        except LifeError as error:
            raise Refused(str(error)) from error

    def cancel(self, job_id: int, signal: int = 0) -> None:
        """End a job, or send it a signal."""
        if not signal:
            self._one("cancel", job_id)
            return
        running = self.desk.running.get(job_id)
        if running is None or not signals.send(running, signal, None):
            raise Refused("it does not run")

    def hold(self, job_id: int) -> None:
        """Keep a waiting job from starting."""
        self._one("hold", job_id)

    def release(self, job_id: int) -> None:
        """Let a held job start."""
        self._one("release", job_id)

    def requeue(self, job_id: int, command: str = "") -> None:
        """Run a job again."""
        self._one("requeue", job_id, command)

    def change(self, job_id: int, values: Mapping[str, float]) -> None:
        """Change a job's `walltime` or `priority`."""
        self._ends.settle(job_id)
        state, running = self.desk.state, self.desk.running.get(job_id)
        try:
            job = state.entry(job_id).job
            state.change(job_id, values.get("walltime", job.walltime), int(values.get("priority", job.priority)))
        except LifeError as error:
            raise Refused(str(error)) from error
        if running is not None and job_id in state.running:
            running.start = state.running[job_id]
            running.warned = False
            running.signal_due = signals.due(running, signals.warning_of(state.entry(job_id).details))
        self.desk.changes()


def _nobody_knows(*_: object) -> Optional[Booking]:
    raise Refused("this manager makes no forecasts")


def _of_array(indices: Sequence[int]) -> Dict[str, str]:
    """What the jobs of an array are told of it."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    values = {"COUNT": len(indices), "MIN": min(indices), "MAX": max(indices), "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def _own(asked: Asked, first: int) -> Own:
    """What each job of an array waits for alone: what is said of its index, and where only some may run at a time,
    the end of one before it; () where that is nothing."""
    width = asked.width or len(asked.indices)
    if width >= len(asked.indices) and not asked.own:
        return ()
    return [(*asked.own.get(index, ()), *((Dependency.on(first + at - width, ANY),) if at >= width else ()))
            for at, index in enumerate(asked.indices)]


def _place(booking: Optional[Booking], nodes: Sequence[Node]) -> Dict[str, Any]:
    """The nodes of a booking, and the cores that it has there."""
    if booking is None:
        return {}
    on: Dict[int, int] = {}
    for slot in booking.placement.slots(nodes):
        on[slot.node] = on.get(slot.node, 0) + len(slot.cores)
    return {"nodes": tuple(nodes[number].name for number in on), "cores": tuple(on.values()),
            "held": sum(nodes[number].cores for number in on) if booking.job.exclusive else 0}


def _counted(node: Node, left: Callable[[str], int], name: str) -> Tuple[int, int]:
    """How much a node has of a resource, and how much of it is taken, in its base units."""
    if name not in node.resources:
        return 0, 0
    there = base(name, node.resources[name])
    return there, there - left(name)
