"""Workloads that are tables or logs: the contents of a row, its conversion to a job, and which rows are left out.
Each file format (CSV, sacct, PBS, Eurora) has a module of its own.

A row has nodes, cores and amounts over all of them; a job of vrm has tasks. `request_of` converts the one into the
other. Dropped and changed rows are counted, by reason.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterator, Mapping

from vrm.model.amounts import GPU, MEMORY
from vrm.model.job import Job, Request
from vrm.model.quantities import LOG_MEMORY, memory_parts, seconds_of_parts, scale
from vrm.workload.submission import Submission
from vrm.workload.columns import LONGEST
from vrm.workload.swf import LARGEST_ID, Selection, TraceError

NOTHING: Mapping[str, float] = {}


class RowRequest(NamedTuple):
    """The contents of a row about a job; 0, empty or None for what the row does not have.

    Times are in seconds; `limit` is the requested time. `cores` and `total` are sums over all nodes; amounts are in
    the usual units (memory in GiB). `start` is the real start time.
    """

    id: int
    submit: float
    run: float
    limit: float = 0.0
    nodes: int = 0
    cores: int = 0
    tasks: int = 0
    tasks_per_node: int = 0
    total: Mapping[str, float] = NOTHING
    per_node: Mapping[str, float] = NOTHING
    per_task: Mapping[str, float] = NOTHING
    licences: Mapping[str, float] = NOTHING
    features: frozenset[str] = frozenset()
    exclusive: bool = False
    user: str = ""
    app: str = ""
    queue: str = ""
    start: float | None = None


def request_of(asked: RowRequest, units: bool = False, counts: Any = None) -> Request:
    """Return the request of a row.

    Each core is a task, unless the row has a number of tasks: then these share its cores. A row of n nodes becomes a
    job on exactly n nodes, with an equal share of tasks and amounts on each. With `units` it becomes n equal tasks,
    each with its share of cores and amounts, and several of them may be on one node. A row without a number of nodes
    can run anywhere: amounts over all nodes are divided among its tasks, or (for GPUs that cannot be divided among
    the tasks) it gets one node. Integer resources that cannot be divided equally are rounded up. `counts(name)`:
    whether a resource is used.
    """
    def kept(amounts: Mapping[str, float]) -> dict[str, float]:
        return {name: amount for name, amount in amounts.items()
                if amount and (counts is None or counts(name))}

    total, per_node, per_task = kept(asked.total), kept(asked.per_node), kept(asked.per_task)
    cores = max(asked.cores, asked.tasks, asked.nodes, 1)
    tasks = asked.tasks or cores
    nodes = min(asked.nodes, tasks)
    width = max(1, cores // tasks)
    more: dict[str, Any] = {"features": asked.features, "licences": asked.licences}
    if units:
        parts = nodes or 1
        width = -(-cores // parts)
        amounts = _sum(_shared(total, parts), per_node,
                       {name: amount * (tasks // parts or 1) for name, amount in per_task.items()})
        return Request.of(parts, width, asked.exclusive, amounts, **more)
    if not nodes and total.get(GPU, 0) % tasks:
        nodes = 1
    if nodes:
        per_node = _sum(per_node, _shared(total, nodes))
        most = asked.tasks_per_node or (-(-tasks // nodes) if nodes > 1 else 0)
        return Request.of(tasks, width, asked.exclusive, per_task, per_node=per_node,
                          nodes=(nodes, nodes), tasks_per_node=most, **more)
    return Request.of(tasks, width, asked.exclusive, _sum(per_task, _shared(total, tasks)),
                      per_node=per_node, tasks_per_node=asked.tasks_per_node, **more)


def _shared(amounts: Mapping[str, float], parts: int) -> dict[str, float]:
    return {name: math.ceil(amount / parts) if name == GPU else amount / parts
            for name, amount in amounts.items()}


def _sum(*parts: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, 0.0) + amount
    return found


@dataclass
class Rows:
    """A workload of rows; a subclass reads them in `asked`.

    Epoch times are counted from the first submission. A row becomes a job if it ran for more than 0 s and has cores.
    Its estimate is the requested time, or else the run time, and never less than the run time unless
    `rules.keep_estimates`. `waited` holds the real waiting times (seconds) by job number.
    """

    path: Path
    rules: Selection = field(default_factory=Selection)
    name: str = ""
    dirt: Counter[str] = field(default_factory=Counter)
    taken: int = 0
    spool: Any = field(default=None, repr=False, compare=False)
    waited: dict[int, float] = field(default_factory=dict, repr=False, compare=False)
    unix_start: int | None = None

    processors: int | None = None
    says_more = True

    def __post_init__(self) -> None:
        self.path = Path(self.path)
        self.name = self.name or str(self.path)
        self.header: dict[str, str] = {}

    def asked(self) -> Iterator[RowRequest]:
        """Yield the contents of the rows in order; count rows without a job in `dirt`."""
        raise NotImplementedError("its method `asked` is missing")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines of the file with their numbers, from 1. Raises TraceError."""
        try:
            with open(self.path, "rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
                text = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
                for number, line in enumerate(text, 1):
                    yield number, line.rstrip("\r\n")
        except OSError as error:
            if isinstance(error, gzip.BadGzipFile):
                raise self.wrong(f"damaged gzip file ({error}); fetch it again") from error
            raise self.wrong((error.strerror or str(error)).lower()) from error
        except (EOFError, zlib.error) as error:
            raise self.wrong(f"damaged gzip file ({error}); fetch it again") from error

    def wrong(self, message: str, line: int = 0) -> TraceError:
        """Return an error with the file and line."""
        return TraceError(f"{self.name}:{line}: {message}" if line else f"{self.name}: {message}")

    @staticmethod
    def tells(line: str) -> bool:
        """Return whether `line`, the first line of a file that is neither a comment nor empty, shows this format."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Submission]:
        self.taken, self.dirt, self.waited = 0, Counter(), {}
        rows = sorted(self.asked(), key=lambda one: one.submit)  # stable: equal times keep their order
        origin = 0.0
        if rows and rows[0].submit >= EPOCH:
            origin = rows[0].submit
            self.unix_start = int(origin)
        requests: dict[Any, tuple[Request, tuple[str, ...]]] = {}
        seen: dict[int, None] = {}
        highest = max((one.id for one in rows), default=0)
        first, rules = None, self.rules
        for one in rows:
            job_id, submit = one.id, one.submit - origin
            if not (0 <= job_id <= LARGEST_ID and submit < LONGEST and one.run < LONGEST):
                raise self.wrong(f"job {str(job_id)[:30]}: a number out of range; job numbers go from 0 to "
                                 "2^63 - 1 and times to 2^53 s")
            if not rules.wants(job_id, submit) or not self._sound(one):
                continue
            if rules.jobs is not None and self.taken >= rules.jobs:
                return
            if job_id in seen:
                self.dirt["job number used before: renumbered"] += 1
                job_id = highest = highest + 1
            seen[job_id] = None
            request = self._known_request(one, requests)
            if one.start is not None:
                self.waited[job_id] = one.start - one.submit
            if rules.load != 1.0:
                first = submit if first is None else first
                submit = first + (submit - first) / rules.load
            self.taken += 1
            yield Submission(Job(job_id, one.app or "app", request.tasks, self._limit(one), submit,
                                 request.exclusive, request.cores_per_task, user=one.user,
                                 queue=one.queue, request=request), one.run)

    def _known_request(self, one: RowRequest, known: dict[Any, tuple[Request, tuple[str, ...]]]) -> Request:
        """Return the request of a row; rows with equal requests share one object."""
        key = _key(one)
        if key not in known:
            known[key] = self._request(one)
        request, passed_over = known[key]
        self.dirt.update(passed_over)
        return request

    def _sound(self, one: RowRequest) -> bool:
        """Return whether the row is a job that ran."""
        if one.run <= 0:
            self.dirt["dropped: run time 0"] += 1
        elif one.submit < 0:
            self.dirt["dropped: no submission time"] += 1
        elif max(one.cores, one.tasks, one.nodes) < 1:
            self.dirt["dropped: no cores"] += 1
        else:
            return True
        return False

    def _limit(self, one: RowRequest) -> float:
        if one.limit <= 0:
            self.dirt["no requested time: run time instead"] += 1
            return one.run
        if one.limit < one.run and not self.rules.keep_estimates:
            self.dirt["run time above the requested time: estimate raised"] += 1
            return one.run
        return one.limit

    def _request(self, one: RowRequest) -> tuple[Request, tuple[str, ...]]:
        """Return the request of a row, and messages about what is ignored: resources that vrm does not know by
        itself, and features, if no node of the machine has them. Memory may be ignored, too, without a message."""
        rules, passed_over = self.rules, []

        def counts(name: str) -> bool:
            if name == MEMORY:
                return rules.memory
            if name != GPU and name not in rules.resources:
                passed_over.append(f"`{name[:30]}` not counted: no node of the machine has some")
                return False
            return True

        if rules.features is not None and not one.features <= rules.features:
            passed_over += [f"`{name[:30]}` not wanted: no node of the machine offers it"
                            for name in sorted(one.features - rules.features)]
            one = one._replace(features=one.features & rules.features)
        try:
            return request_of(one, rules.units, counts), tuple(dict.fromkeys(passed_over))
        except ValueError as error:
            raise self.wrong(f"job {one.id}: {error}") from error


EPOCH = 1e8
"""Times from here on (seconds, 1973) are epoch times; smaller ones are relative times of a workload."""


def _key(one: RowRequest) -> Any:
    """Return a key of everything that the row's request depends on."""
    return (one.nodes, one.cores, one.tasks, one.tasks_per_node, one.exclusive, one.features,
            *(tuple(sorted(each.items())) for each in
              (one.total, one.per_node, one.per_task, one.licences)))


# ---------------------------------------------------------------------------- words of logs

def clock(text: str) -> float:
    """Return whole seconds of `[days-][hours:]minutes:seconds` or of a number; 0 for any other text, such as
    UNLIMITED."""
    text = text.strip()
    try:
        return seconds_of_parts(text.partition(".")[0] if ":" in text else text)
    except ValueError:
        return 0.0


def gibibytes(text: str, unit: str = "") -> float:
    """Return GiB of a text such as 4G, 4096mb or 62.50G; a bare number is in `unit` (k, m, g; empty: bytes). Raises
    ValueError for another text."""
    whole, fraction, each = memory_parts(text.strip(), LOG_MEMORY._replace(alone=unit))
    return float(whole + fraction) * (each / scale("G"))


def moment(text: str) -> float | None:
    """Return epoch seconds of a date (`2024-03-31T02:30:00`; also with a blank instead of T, or a zone) or of a
    number; None for Unknown, None and an empty text. A date without a zone is taken as UTC: clock changes are not
    corrected. Raises ValueError for another text."""
    text = text.strip()
    if text.lower() in ("", "unknown", "none", "n/a", "(null)", "-1"):
        return None
    try:
        return float(text)
    except ValueError:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


_UNFIT = re.compile(r"[^A-Za-z0-9._+-]")


def program(text: str) -> str:
    """Return a job name as a valid program name: characters other than letters, digits and `._+-` become `_`."""
    return _UNFIT.sub("_", text.strip())[:64].lstrip("-") or "app"


def whole(text: str) -> int:
    """Return the integer of a text such as `12`, `12.0` or `1.5K` (as sacct rounds); 0 for an empty text. Raises
    ValueError."""
    text = text.strip()
    if not text:
        return 0
    factor = {"K": 1000, "M": 1000000}.get(text[-1].upper(), 1)
    return int(float(text[:-1] if factor > 1 else text) * factor)
