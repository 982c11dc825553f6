"""Slurm's names for states of jobs and nodes and for reasons to wait, and the lists that its commands read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from vrm.ext.slurm.calls import jobs as front
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView, NodeView, RunFacts
from vrm.ext.slurm.forms.options import VERSION as VERSION
from vrm.model import JobState
from vrm.model.forms.hosts import fold
from vrm.model.job import ANY, FAIL, OK, START
from vrm.model.quantities import numbers
from vrm.run.entry import DEPENDED

STATES: dict[str, str] = {
    "PENDING": "PD", "RUNNING": "R", "COMPLETING": "CG", "COMPLETED": "CD", "FAILED": "F", "CANCELLED": "CA",
    "TIMEOUT": "TO", "NODE_FAIL": "NF", "SUSPENDED": "S", "PREEMPTED": "PR", "BOOT_FAIL": "BF",
    "CONFIGURING": "CF", "DEADLINE": "DL", "OUT_OF_MEMORY": "OOM", "REQUEUED": "RQ", "STOPPED": "ST",
    "RESIZING": "RS", "REVOKED": "RV", "SIGNALING": "SI", "SPECIAL_EXIT": "SE", "STAGE_OUT": "SO",
    "REQUEUE_HOLD": "RH", "REQUEUE_FED": "RF", "RESV_DEL_HOLD": "RD"}
"""States that Slurm's commands know, with their short forms."""

_OF = {JobState.QUEUED: "PENDING", JobState.RUNNING: "RUNNING", JobState.COMPLETED: "COMPLETED",
       JobState.FAILED: "FAILED", JobState.TIMEOUT: "TIMEOUT", JobState.CANCELLED: "CANCELLED",
       JobState.REFUSED: "FAILED"}


_OF_CAUSE = {"memory": "OUT_OF_MEMORY", "node": "NODE_FAIL", "interrupted": "PREEMPTED", "deadline": "DEADLINE"}
"""States of jobs by the cause for which the manager has ended them: the end of the allocation counts as a
preemption."""


def state(job: JobView) -> str:
    """Return the long form of a job's state."""
    if job.ending:
        return "COMPLETING"
    return _OF_CAUSE.get(job.cause, _OF[job.state]) if job.state.ended else _OF[job.state]


_WHY = {front.HELD: "JobHeldUser", front.DEPENDENCY: "Dependency", front.BEGIN: "BeginTime",
        front.RESOURCES: "Resources", front.PRIORITY: "Priority", front.LATE: "PartitionTimeLimit",
        front.RESERVATION: "Reservation", front.DOWN: "NodeDown", front.LIMIT: "JobArrayTaskLimit"}


def reason(job: JobView) -> str:
    """Return Slurm's word for why a job waits or has not succeeded."""
    if job.state is JobState.QUEUED:
        return _WHY.get(job.why, "None")
    if job.state is JobState.CANCELLED and DEPENDED in job.reason:
        return "DependencyNeverSatisfied"
    if job.cause in ("memory", "node", "deadline"):
        return {"memory": "OutOfMemory", "node": "NodeDown", "deadline": "DeadLine"}[job.cause]
    return {JobState.FAILED: "NonZeroExitCode", JobState.REFUSED: "BadConstraints",
            JobState.TIMEOUT: "TimeLimit"}.get(job.state, "None")


_DEPENDED = {OK: "afterok", ANY: "afterany", START: "after", FAIL: "afternotok"}


def dependency(job: JobView) -> str:
    """Return the unfulfilled dependencies of a job: `afterok:2(unfulfilled),after:3+5(unfulfilled)`."""
    alone = set(numbers(job.details.more.get("singleton", ""))) if "singleton" in job.details.more else ()
    found = [(each, job_id) for each in job.named for job_id in each.ids]
    said = ["singleton(unfulfilled)"] * any(each.kind == ANY and job_id in alone for each, job_id in found)
    said += [f"{_DEPENDED[each.kind]}:{job_id}{f'+{each.delay / 60:g}' if each.delay else ''}(unfulfilled)"
             for each, job_id in found if each.kind != ANY or job_id not in alone]
    return ",".join(said) or "(null)"


def states_of(text: str) -> list[str] | None:
    """Return the states that a list names by short or long forms; None for all. Raises ValueError for an unknown
    state."""
    short = {brief: name for name, brief in STATES.items()}
    found = []
    for word in text.upper().split(","):
        word = word.strip()
        if word == "ALL":
            return None
        if word not in STATES and word not in short:
            raise ValueError(word)
        found.append(short.get(word, word))
    return found


def partition(job: JobView, site: RunFacts) -> str:
    """Return the partition of a job."""
    return job.job.queue or default_partition(site)


def default_partition(site: RunFacts) -> str:
    """Return the partition of jobs that name none."""
    return site.default_queue or next(iter(site.queues), "vrm")


def partitions(site: RunFacts) -> list[str]:
    """Return all partitions: the queues, or one partition with all nodes if there are none."""
    return list(site.queues) or ["vrm"]


def members(name: str, nodes: Iterable[NodeView], site: RunFacts) -> list[NodeView]:
    """Return those of the nodes that are in a partition."""
    queue = site.queues.get(name)
    return [node for node in nodes if queue is None or queue.has(node.name)]


def partitions_of(node: NodeView, site: RunFacts) -> list[str]:
    """Return the partitions of a node."""
    return [name for name in partitions(site) if members(name, [node], site)]


def longest(name: str, site: RunFacts, now: float) -> float:
    """Return the longest time limit of a job in a partition (seconds): that of the queue, at most the time until the
    allocation ends."""
    queue = site.queues.get(name)
    return min((queue.max_walltime if queue else 0) or math.inf, max(0.0, site.end - now))


def default_time(name: str, site: RunFacts) -> float:
    """Return the time limit (seconds) of a job in a partition if it has none itself."""
    queue = site.queues.get(name)
    found = (queue.default_walltime if queue else 0) or site.default_time
    return min(found, (queue.max_walltime if queue else 0) or math.inf)


_ID = re.compile(r"([0-9]{1,9})(?:_(\*|[0-9]{1,9}|\[([0-9,:%-]+)\]))?")


def split(text: str) -> list[str]:
    """Split a list at commas that are not within brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


_SELECTED: dict[str, Callable[[JobView, RunFacts], str | None]] = {
    "name": lambda job, site: job.name, "partition": partition, "qos": lambda job, site: "normal",
    "account": lambda job, site: "(null)",
    "reservation": lambda job, site: job.details.more.get("reservation")}
"""Values of a job by which options select jobs."""


def selected(jobs: Iterable[JobView], given: Mapping[str, str], site: RunFacts) -> list[JobView]:
    """Return those of the jobs that match these options, each a list with commas."""
    wanted = [(_SELECTED[key], set(value.split(","))) for key, value in given.items() if key in _SELECTED]
    return [job for job in jobs if all(value(job, site) in words for value, words in wanted)]


def find(handler: RequestHandler, text: str) -> tuple[list[JobView], list[str]]:
    """Return the jobs that a list of ids names (`12`; a whole array by its first id; `12_3` and `12_[1-4]` for tasks
    of an array), and the ids of jobs that do not exist. Raises ValueError for text that is not an id."""
    found: dict[int, JobView] = {}
    missing: list[str] = []
    for word in split(text):
        match = _ID.fullmatch(word)
        if not match:
            raise ValueError(word)
        number = int(match[1])
        here = handler.jobs([number])
        if here and here[0].array == number:
            here = handler.array(number)
        if match[2] is not None and match[2] != "*":
            wanted = set(numbers(match[3].partition("%")[0] if match[3] else match[2]))
            here = [job for job in here if job.array is not None and job.details.index in wanted]
        found.update((job.id, job) for job in here)
        if not here:
            missing.append(word)
    return list(found.values()), missing


OUT_OF_MEMORY = 125
"""Number that Slurm shows as the signal of a job that ran out of memory."""

_KILLED = re.compile(r"killed by signal (\d+)")


def exit_code(job: JobView) -> str:
    """Return the exit status as `code:signal`."""
    code = job.code
    if job.cause == "memory":
        return f"0:{OUT_OF_MEMORY}"
    killed = _KILLED.match(job.reason)
    if killed and job.state is JobState.FAILED:
        return f"0:{killed[1]}"
    if code is None or not job.state.ended:
        return "0:0" if job.state in (JobState.COMPLETED, JobState.QUEUED, JobState.RUNNING) else (
            "0:15" if job.state in (JobState.CANCELLED, JobState.TIMEOUT) and math.isfinite(job.start) else
            "1:0" if job.state in (JobState.FAILED, JobState.REFUSED) else "0:0")
    if code > 128 and job.state in (JobState.CANCELLED, JobState.TIMEOUT):
        return f"0:{code - 128}"
    return f"{code}:0"


def node_state(node: NodeView) -> str:
    """Return the long form of a node's state."""
    if not node.up:
        return "DOWN"
    if node.allocated >= node.cores:
        return "ALLOCATED"
    return "MIXED" if node.allocated else "IDLE"


SHORT_NODE = {"DOWN": "down", "ALLOCATED": "alloc", "MIXED": "mix", "IDLE": "idle"}


def node_list(names: Iterable[str]) -> str:
    """Return node names in the folded form."""
    return fold(names)
