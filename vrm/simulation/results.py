"""What a simulation leaves: one line per job, and the metrics of the run.

Both are made as jobs end. A job costs about a hundred bytes of memory here, whatever it was; the
definitions of the metrics are those of `vrm.report.metrics`, computed for many jobs at once.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, TextIO, Tuple, Union


from vrm.model import bits
from vrm.model.cluster import AnyPlacement, Booking
from vrm.model.job import Job
from vrm.model.node import Node
from vrm.model.placement import CorePlacement, Placement
from vrm.report.jobs import HEADER, PlacementText, job_line
from vrm.report.metrics import THRESHOLD, Distribution, jain_index, percentile
from vrm.scheduling.scheduler import Start

_STATUSES = ("completed", "failed", "timeout", "cancelled", "refused")


class Results:
    """Records a run; see `vrm.simulation.engine.Recorder`.

    `nodes` are those of the cluster. With `out`, a text file, each job is written there as it
    ends, in the columns of `jobs.csv`; `places` tells whether with its nodes and cores.
    """

    def __init__(self, nodes: Sequence[Node], out: Optional[TextIO] = None,
                 places: bool = True) -> None:
        self.processors = sum(node.cores for node in nodes)
        self.counts = dict.fromkeys(_STATUSES, 0)
        self.refusals: Dict[str, int] = {}
        self.backfilled = 0
        self._out = out
        self._places = places
        self._text = PlaceText(nodes)
        self._lines: List[str] = []
        # One entry per job that ran.
        self.ids, self.procs = array("q"), array("q")
        self.submits, self.starts, self.ends = array("d"), array("d"), array("d")
        self.users = array("q")
        self._user_numbers: Dict[str, int] = {"": 0}
        # One entry per moment.
        self.times = array("d")
        self.queued, self.queued_procs, self.busy_procs = array("q"), array("q"), array("q")
        if out is not None:
            out.write(HEADER)

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
        if self._out is not None:
            nodes = cores = ""
            if self._places:
                nodes, cores = self._text.columns(booking.placement)
            self._write(job_line(job.id, job.app, job.procs, job.submit, booking.start, end,
                                 job.estimate, status, None, None, job.exclusive,
                                 start.backfilled, nodes, cores, "unbound"))

    def refused(self, job: Job, reason: str, user: str) -> None:
        """A job can never run on this machine."""
        self.counts["refused"] += 1
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        if self._out is not None:
            self._write(job_line(job.id, job.app, job.procs, job.submit, None, None, job.estimate,
                                 "refused", exclusive=job.exclusive, reason=reason))

    def moment(self, now: float, queued: int, queued_procs: int, busy_procs: int) -> None:
        """The state after everything that happened at `now`."""
        self.times.append(now)
        self.queued.append(queued)
        self.queued_procs.append(queued_procs)
        self.busy_procs.append(busy_procs)

    def _write(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= 500:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the file."""
        if self._out is not None:
            self._out.write("".join(self._lines))
            self._lines.clear()
            self._out.flush()

    # The run as a whole.

    def start_hash(self) -> str:
        """A fingerprint of the schedule: the first 16 hex digits of the SHA-256 of the lines
        `id start`, by id, with starts in whole seconds."""
        digest = hashlib.sha256()
        for job_id, start in sorted(zip(self.ids, self.starts)):
            digest.update(b"%d %d\n" % (job_id, start))
        return digest.hexdigest()[:16]

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
        times = np.frombuffer(self.times)
        if not len(times) or last <= first:
            return 0.0, asdict(Distribution(0, None, None, None, None))
        queued = np.frombuffer(self.queued, np.int64)
        begin = np.maximum(times, first)
        until = np.minimum(np.append(times[1:], max(last, times[-1])), last)
        seconds = np.clip(until - begin, 0, None)
        idle = self.processors - np.frombuffer(self.busy_procs, np.int64)
        wanted = np.frombuffer(self.queued_procs, np.int64)
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


class PlaceText:
    """Writes placements in the forms of `PlacementText`, whose work it does for ranges of nodes
    at once, and those made core by core."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._names = [node.name for node in nodes]
        self._plain = PlacementText(nodes)
        self._filled: Dict[Tuple[str, int, int], Tuple[List[int], List[str]]] = {}

    def columns(self, placement: AnyPlacement) -> Tuple[str, str]:
        """The columns `nodes` and `cores`."""
        if isinstance(placement, CorePlacement):
            return self._by_core(placement)
        parts: List[str] = []
        left = placement.procs
        lane0 = placement.claims[0]
        for group in placement.order:
            if group & lane0 and group & ~lane0:  # its nodes differ in the lane they give
                return self._plain.nodes(placement), self._plain.cores(placement)
            ranks, texts = self._full(placement.share, 0 if group & lane0 else 1, placement.width)
            for first, stop in bits.runs(group):
                here = ranks[stop] - ranks[first]
                if here > left:  # the last node may stay partly filled
                    return self._plain.nodes(placement), self._partly(placement, parts, first, left)
                parts += texts[first:stop]
                left -= here
        return self._plain.nodes(placement), ";".join(parts)

    def _full(self, share: str, lane: int, width: int) -> Tuple[List[int], List[str]]:
        """Of all nodes: the sum of the ranks before each, and the text of each when filled."""
        known = self._filled.get((share, lane, width))
        if known is None:
            ranks, texts = [0], []
            for node in self._nodes:
                here = node.capacity(share, lane, width)
                ranks.append(ranks[-1] + here)
                texts.append(self._on_node(node, share, lane, width, here))
            known = self._filled[share, lane, width] = ranks, texts
        return known

    @staticmethod
    def _on_node(node: Node, share: str, lane: int, width: int, ranks: int) -> str:
        claims = (1, 0) if lane == 0 else (0, 1)
        alone = Placement(share, claims, (1,), ranks, width)
        return PlacementText([node]).cores(alone) if ranks else ""

    def _partly(self, placement: Placement, parts: List[str], first: int, left: int) -> str:
        """The column `cores`, where node `first` and those after it in its run hold the rest."""
        for index in range(first, len(self._nodes)):
            lane = placement.lane(index)
            here = min(left, self._nodes[index].capacity(placement.share, lane, placement.width))
            parts.append(self._on_node(self._nodes[index], placement.share, lane, placement.width,
                                       here))
            left -= here
            if left <= 0:
                break
        return ";".join(parts)

    def _by_core(self, placement: CorePlacement) -> Tuple[str, str]:
        parts: List[str] = []
        places: List[str] = []
        current, chosen = -1, 0
        for node, socket, first, stop in placement.layout.spans(placement.taken):
            if node != current:
                if places:
                    parts.append(f"{self._names[current]}:{'+'.join(places)}")
                    places = []
                current = node
                chosen |= 1 << node
            places.append(f"{socket}/{first}" if stop - first == 1
                          else f"{socket}/{first}-{stop - 1}")
        parts.append(f"{self._names[current]}:{'+'.join(places)}")
        return self._plain.nodes(_NodesOf(chosen)), ";".join(parts)  # type: ignore[arg-type]


class _NodesOf:
    """Just the nodes of a placement."""

    def __init__(self, chosen: int) -> None:
        self.order = (chosen,)
