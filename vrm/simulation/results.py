"""What a simulation leaves: one line per job, and the metrics of the run.

Both are made as jobs end. A job costs about a hundred bytes of memory here, whatever it was; the
definitions of the metrics are those of `vrm.report.metrics`, computed for many jobs at once.
"""

from __future__ import annotations

import hashlib
import math
import signal
from array import array
from dataclasses import asdict
from typing import (Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, TextIO, Tuple,
                    Union)

from vrm.model.cluster import Booking
from vrm.model.job import Job
from vrm.model.node import Node
from vrm.report.jobs import job_line
from vrm.report.metrics import THRESHOLD, Distribution, jain_index, percentile
from vrm.scheduling.scheduler import Start
from vrm.simulation.engine import Moment
from vrm.simulation.writers import PLACES, Aside, EvalysWriter, JobLines, JobTuple, plain

BATCH = 500
"""Rows that are written at a time."""

MANY = 8
"""Batches after which it pays to have rows written by a process of its own."""

_STATUSES = ("completed", "failed", "timeout", "cancelled", "refused")


class Row(NamedTuple):
    """A job that ran; times in seconds of the workload."""

    id: int
    procs: int
    submit: float
    start: float
    end: float
    user: str = ""


class Results:
    """Records a run; see `vrm.simulation.engine.Recorder`.

    `nodes` are those of the cluster. With `out`, a text file, each job is written there as it
    ends, in the columns of `jobs.csv`; `places` tells how much of its place: `full`, `nodes`
    (without the cores, which on thousands of nodes are gigabytes) or `none`. `evalys` is a text
    file for the same jobs in the columns of Batsim and evalys.
    """

    def __init__(self, nodes: Sequence[Node], out: Optional[TextIO] = None, places: str = "full",
                 evalys: Optional[TextIO] = None, workload: str = "workload") -> None:
        if places not in PLACES:
            raise ValueError(f"places are {', '.join(PLACES)}, not `{places}`")
        self._writer: Union[None, JobLines, Aside] = None
        if out is not None:
            self._writer = JobLines(nodes, out, places)
        self._rows: List[Union[JobTuple, str]] = []
        self._batches = 0
        self.processors = sum(node.cores for node in nodes)
        self.counts = dict.fromkeys(_STATUSES, 0)
        self.refusals: Dict[str, int] = {}
        self.backfilled = 0
        self._evalys = EvalysWriter(evalys, nodes, workload) if evalys is not None else None
        # One entry per job that ran.
        self.ids, self.procs = array("q"), array("q")
        self.submits, self.starts, self.ends = array("d"), array("d"), array("d")
        self.users = array("q")
        self._user_numbers: Dict[str, int] = {"": 0}
        # Four entries per moment: its time, jobs and processors queued, processors busy.
        self._moments = array("d")

    def ended(self, booking: Booking, start: Start, end: float, status: str, user: str) -> None:
        """A job ended."""
        job = booking.job
        self.counts[status] += 1
        self.backfilled += start.backfilled
        self.ids.append(job.id)
        self.procs.append(job.procs)
        self.submits.append(job.submit)
        self.starts.append(booking.start)
        self.ends.append(end)
        numbers = self._user_numbers
        number = numbers.get(user)
        if number is None:
            number = numbers[user] = len(numbers)
        self.users.append(number)
        if self._writer is not None:
            self._rows.append((job.id, job.app, job.procs, job.submit, booking.start, end,
                               job.estimate, status, job.exclusive, start.backfilled,
                               plain(booking.placement)))
            if len(self._rows) >= BATCH:
                self._hand_over()
        if self._evalys is not None:
            self._evalys.write(booking, end, status)

    def refused(self, job: Job, reason: str, user: str) -> None:
        """A job can never run on this machine."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self._never_ran(job, "refused", None, reason)

    def cancelled(self, job: Job, reason: str, now: float, user: str) -> None:
        """A job will never run since one that it depends on did not end as it wants."""
        self._never_ran(job, "cancelled", now, reason)

    def _never_ran(self, job: Job, status: str, end: Optional[float], reason: str) -> None:
        self.counts[status] += 1
        if self._writer is not None:
            self._rows.append(job_line(job.id, job.app, job.procs, job.submit, None, end,
                                       job.estimate, status, exclusive=job.exclusive,
                                       reason=reason))

    def moment(self, state: Moment) -> None:
        """The state after everything that happened at one time."""
        self._moments.extend(state)

    def _hand_over(self) -> None:
        """Have the rows written, by another process once they are many."""
        # A Ctrl-C waits until the rows are written, and not half of them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            if (self._batches >= MANY and len(self._rows) >= BATCH
                    and isinstance(self._writer, JobLines) and Aside.possible()):
                self._writer = Aside(self._writer)
            self._batches += 1
            assert self._writer is not None
            self._writer.write(self._rows)
            self._rows.clear()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def flush(self) -> None:
        """Have everything written, at the end of the run; OSError when that fails."""
        if self._writer is not None:
            self._hand_over()
            self._writer.flush()
        if self._evalys is not None:
            self._evalys.flush()

    def close(self) -> None:
        """End what writes, also of a run that came to grief."""
        if self._writer is not None:
            self._writer.close()

    # The run as a whole.

    @property
    def seen(self) -> int:
        """Jobs that ended in whatever way, or never could run."""
        return sum(self.counts.values())

    def rows(self) -> Iterator["Row"]:
        """The jobs that ran, in the order of their ends."""
        names = list(self._user_numbers)
        for job_id, procs, submit, start, end, user in zip(
                self.ids, self.procs, self.submits, self.starts, self.ends, self.users):
            yield Row(job_id, procs, submit, start, end, names[user])

    def start_hash(self) -> str:
        """A fingerprint of the schedule: the first 16 hex digits of the SHA-256 of the lines
        `id start`, by id, with starts in whole seconds."""
        import numpy as np
        ids, starts = np.frombuffer(self.ids, np.int64), np.frombuffer(self.starts)
        order = ids.argsort()
        lines = map("%d %d\n".__mod__, zip(ids[order].tolist(),
                                           starts[order].astype(np.int64).tolist()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]

    def summary(self, warm_up: float = 0.0, cool_down: float = 0.0,
                threshold: float = THRESHOLD) -> Dict[str, Any]:
        """The metrics of `vrm.report.metrics.summary`, with the same names and definitions."""
        import numpy as np
        if not (warm_up >= 0 and cool_down >= 0):
            raise ValueError("warm-up and cool-down are seconds from 0 on")
        if threshold <= 0:
            raise ValueError(f"the threshold must be above 0 s, not {threshold:g}")
        submit, start, end = (np.frombuffer(column) for column in
                              (self.submits, self.starts, self.ends))
        procs = np.frombuffer(self.procs, np.int64)
        users = np.frombuffer(self.users, np.int64)
        first = last = 0.0
        if len(submit):
            first, last = float(submit.min()), float(end.max())
        whole = first, last
        chosen = np.ones(len(submit), dtype=bool)
        if (warm_up or cool_down) and len(submit):
            latest = float(submit.max())
            first, last = first + warm_up, latest - cool_down
            if last <= first:
                raise ValueError(f"a warm-up of {warm_up:g} s and a cool-down of {cool_down:g} s "
                                 f"leave nothing of the {latest - whole[0]:g} s in which jobs "
                                 "came")
            chosen = (submit >= first) & (submit <= last)
        length = last - first
        used = math.fsum((procs * np.clip(np.minimum(end, last) - np.maximum(start, first), 0,
                                          None)).tolist())
        ended_within = int(((end >= first) & (end <= last)).sum())
        lost, queue = self._over_time(first, last)
        completed = ended_within - self.counts["timeout"] if not (warm_up or cool_down) \
            else ended_within
        wait = (start - submit)[chosen]
        run = (end - start)[chosen]
        turnaround = (end - submit)[chosen]
        bounded = np.maximum(1.0, turnaround / np.maximum(run, threshold))
        per_processor = np.maximum(1.0, turnaround / (procs[chosen] * np.maximum(run, threshold)))
        waits, runs, turnarounds, bounds = map(_distribution, (wait, run, turnaround, bounded))
        capacity = self.processors * length
        return {
            "jobs": int(chosen.sum()),
            **self.counts,
            "average_wait": waits["mean"],
            "average_running": runs["mean"],
            "average_turnaround": turnarounds["mean"],
            "average_bounded_slowdown": bounds["mean"],
            "average_queue_length": queue["mean"],
            "makespan": whole[1] - whole[0],
            "utilisation": used / capacity if capacity > 0 else 0.0,
            "loss_of_capacity": lost / capacity if capacity > 0 else 0.0,
            "throughput_per_hour": completed * 3600 / length if length > 0 else 0.0,
            "wait": waits,
            "running": runs,
            "turnaround": turnarounds,
            "slowdown": _distribution(turnaround[run > 0] / run[run > 0]),
            "bounded_slowdown": bounds,
            "per_processor_bounded_slowdown": _distribution(per_processor),
            "queue_length": queue,
            "fairness": self._fairness(users[chosen], bounded),
            "method": {
                "processors": self.processors,
                "bounded_slowdown_threshold": threshold,
                "bounded_slowdown_floor": 1.0,
                "percentile": "linear interpolation (Hyndman and Fan, type 7)",
                "warm_up": warm_up,
                "cool_down": cool_down,
            },
        }

    def _over_time(self, first: float, last: float) -> Tuple[float, Dict[str, Any]]:
        """Processor seconds lost and the distribution of the queue's length over a window."""
        import numpy as np
        times, queued, wanted, busy = np.frombuffer(self._moments).reshape(-1, 4).T
        if not len(times) or last <= first:
            return 0.0, asdict(Distribution(0, None, None, None, None))
        begin = np.maximum(times, first)
        until = np.minimum(np.append(times[1:], max(last, times[-1])), last)
        seconds = np.clip(until - begin, 0, None)
        idle = self.processors - busy
        lost = math.fsum((seconds * np.clip(np.minimum(wanted, idle), 0, None)).tolist())
        held = seconds > 0
        lengths, inverse = np.unique(queued[held], return_inverse=True)
        weights = np.bincount(inverse, seconds[held], len(lengths))
        total = math.fsum(seconds.tolist())
        passed = np.cumsum(weights)

        def reached(share: float) -> int:
            at = int(np.searchsorted(passed, share * total))
            return int(lengths[min(at, len(lengths) - 1)])

        mean = math.fsum((queued * seconds).tolist()) / total
        return lost, asdict(Distribution(int(held.sum()), mean, reached(0.5), reached(0.95),
                                         int(lengths[-1])))

    def _fairness(self, users: Any, metric: Any) -> Optional[Dict[str, Any]]:
        import numpy as np
        sums = np.bincount(users, metric, len(self._user_numbers))
        counts = np.bincount(users, minlength=len(self._user_numbers))
        means = {name: float(sums[number] / counts[number])
                 for name, number in sorted(self._user_numbers.items()) if name and counts[number]}
        return {"index": jain_index(means.values()), "means": means} if means else None


def _distribution(values: Any) -> Dict[str, Any]:
    import numpy as np
    if not len(values):
        return asdict(Distribution(0, None, None, None, None))
    ordered = np.sort(values).tolist()
    return asdict(Distribution(len(ordered), math.fsum(ordered) / len(ordered),
                               percentile(ordered, 0.5), percentile(ordered, 0.95), ordered[-1]))
