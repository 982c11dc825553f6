"""What a simulation leaves: one line per job, and the metrics of the run.

Both are made as jobs end. A job costs about a hundred bytes of memory here, whatever it was; the
definitions of the metrics are those of `vrm.report.metrics`, computed for many jobs at once.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from dataclasses import asdict
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, TextIO, Tuple


from vrm.model import bits
from vrm.model.cluster import AnyPlacement, Booking
from vrm.model.job import Job
from vrm.model.node import Node, lane_of_socket
from vrm.model.placement import CoreLayout, CorePlacement, Placement
from vrm.report.jobs import HEADER, PlacementText, fold_nodes, job_line, seconds_text
from vrm.report.metrics import THRESHOLD, Distribution, jain_index, percentile
from vrm.scheduling.scheduler import Start

_SMALL = 8  # nodes or cores
PLACES = ("full", "nodes", "none")
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
        self.processors = sum(node.cores for node in nodes)
        self.counts = dict.fromkeys(_STATUSES, 0)
        self.refusals: Dict[str, int] = {}
        self.backfilled = 0
        self._out = out
        self._places = places
        self._text = PlaceText(nodes)
        self._evalys = EvalysWriter(evalys, nodes, workload) if evalys is not None else None
        self._lines: List[str] = []
        self._apps: Dict[str, str] = {}
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
            if self._places == "full":
                nodes, cores = self._text.columns(booking.placement)
            elif self._places == "nodes":
                nodes = self._text.nodes(booking.placement)
            if "," in cores:
                cores = f'"{cores}"'
            if "," in nodes:
                nodes = f'"{nodes}"'
            self._lines.append(
                f"{job.id},{self._app(job.app)},{job.procs},{_text(job.submit)},"
                f"{_text(booking.start)},{_text(end)},{_text(job.estimate)},{status},,,"
                f"{'1' if job.exclusive else '0'},{'1' if start.backfilled else '0'},"
                f"{nodes},{cores},unbound,\n")
            if len(self._lines) >= 500:
                self.flush()
        if self._evalys is not None:
            self._evalys.write(booking, end, status)

    def refused(self, job: Job, reason: str, user: str) -> None:
        """A job can never run on this machine."""
        self.counts["refused"] += 1
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        if self._out is not None:
            self._lines.append(job_line(job.id, job.app, job.procs, job.submit, None, None,
                                        job.estimate, "refused", exclusive=job.exclusive,
                                        reason=reason))

    def moment(self, now: float, queued: int, queued_procs: int, busy_procs: int) -> None:
        """The state after everything that happened at `now`."""
        self.times.append(now)
        self.queued.append(queued)
        self.queued_procs.append(queued_procs)
        self.busy_procs.append(busy_procs)

    def _app(self, app: str) -> str:
        """The name of an application as `job_line` writes it."""
        known = self._apps.get(app)
        if known is None:
            line = job_line(0, app, 0, 0, 0, 0, 0, "")
            known = self._apps[app] = line[2:-len(",0,0,0,0,0,,,,0,0,,,,\n")]
        return known

    def flush(self) -> None:
        """Hand all lines to the file."""
        if self._out is not None:
            self._out.write("".join(self._lines))
            self._lines.clear()
            self._out.flush()
        if self._evalys is not None:
            self._evalys.flush()

    # The run as a whole.

    def rows(self) -> Iterator["Row"]:
        """The jobs that ran, in the order of their ends."""
        names = list(self._user_numbers)
        for job_id, procs, submit, start, end, user in zip(
                self.ids, self.procs, self.submits, self.starts, self.ends, self.users):
            yield Row(job_id, procs, submit, start, end, names[user])

    def start_hash(self) -> str:
        """A fingerprint of the schedule: the first 16 hex digits of the SHA-256 of the lines
        `id start`, by id, with starts in whole seconds."""
        lines = map("%d %d\n".__mod__, sorted(zip(self.ids, self.starts)))
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


def _text(time: float) -> str:
    return str(time) if type(time) is int else seconds_text(time)


class PlaceText:
    """Writes placements in the forms of `PlacementText`, whose work it does for ranges of nodes
    at once, and those made core by core."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._names = [node.name for node in nodes]
        prefix = self._names[0][:-1]
        self._prefix = prefix if all(name == f"{prefix}{index}" for index, name in
                                     enumerate(self._names)) else None
        self._plain = PlacementText(nodes)
        self._filled: Dict[Tuple[str, int, int], Tuple[List[int], List[str]]] = {}
        self._ranges: Dict[Tuple[int, int], Tuple[int, int, str]] = {}
        self._known: Dict[Any, Tuple[str, str]] = {}

    def nodes(self, placement: AnyPlacement) -> str:
        """The column `nodes`."""
        return self._folded([(first, stop - 1) for first, stop in bits.runs(placement.node_set)])

    def columns(self, placement: AnyPlacement) -> Tuple[str, str]:
        """The columns `nodes` and `cores`."""
        if placement.size > _SMALL:
            return self._columns(placement)
        # Small jobs come again and again to the same places.
        key = (placement.taken if isinstance(placement, CorePlacement)
               else (placement.claims, placement.order, placement.procs, placement.width))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= 50_000:
                self._known.clear()
            known = self._columns(placement)
            if isinstance(placement, CorePlacement) or placement.most is None:
                self._known[key] = known
        return known

    def _columns(self, placement: AnyPlacement) -> Tuple[str, str]:
        if isinstance(placement, CorePlacement):
            return self._by_core(placement)
        if len(placement.order) == 1:  # as everywhere but under strip
            runs = bits.runs(placement.order[0])
            nodes = self._folded([(first, stop - 1) for first, stop in runs])
            return nodes, self._by_lane(placement, [runs])
        return self.nodes(placement), self._by_lane(placement, map(bits.runs, placement.order))

    def _folded(self, ranges: Sequence[Tuple[int, int]]) -> str:
        """Nodes from first to last of each range, folded."""
        if self._prefix is None:
            return fold_nodes(self._names[node] for first, last in ranges
                              for node in range(first, last + 1))
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return self._names[ranges[0][0]]
        numbers = ",".join([str(first) if first == last else f"{first}-{last}"
                            for first, last in ranges])
        return f"{self._prefix}[{numbers}]"

    def _by_lane(self, placement: Placement,
                 runs_of: Iterable[Sequence[Tuple[int, int]]]) -> str:
        if placement.most is not None:  # other resources limit the ranks of a node
            return self._plain.cores(placement)
        parts: List[str] = []
        left = placement.procs
        lane0 = placement.claims[0]
        for group, runs in zip(placement.order, runs_of):
            if group & lane0 and group & ~lane0:  # its nodes differ in the lane they give
                return self._plain.cores(placement)
            ranks, texts = self._full(placement.share, 0 if group & lane0 else 1, placement.width)
            for first, stop in runs:
                here = ranks[stop] - ranks[first]
                if here > left:  # the last node may stay partly filled
                    return self._partly(placement, parts, first, left)
                parts += texts[first:stop]
                left -= here
        return ";".join(parts)

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
        known = self._ranges
        parts: List[str] = []
        nodes: List[Tuple[int, int]] = []
        for cores in bits.runs(placement.taken):
            if cores not in known:
                if len(known) >= 100_000:
                    known.clear()
                known[cores] = self._range(placement.layout, *cores)
            first, last, text = known[cores]
            if nodes and first <= nodes[-1][1] + 1:
                if first == nodes[-1][1]:  # more of the same node
                    parts[-1] += "+" + text.partition(":")[2]
                else:
                    parts.append(text)
                nodes[-1] = nodes[-1][0], last
            else:
                parts.append(text)
                nodes.append((first, last))
        return self._folded(nodes), ";".join(parts)

    def _range(self, layout: CoreLayout, start: int, stop: int) -> Tuple[int, int, str]:
        """First and last node of a range of cores, and its text."""
        by_node: Dict[int, List[str]] = {}
        for node, socket, first, end in layout.span(start, stop):
            by_node.setdefault(node, []).append(
                f"{socket}/{first}" if end - first == 1 else f"{socket}/{first}-{end - 1}")
        text = ";".join(f"{self._names[node]}:{'+'.join(places)}"
                        for node, places in by_node.items())
        return min(by_node), max(by_node), text


class EvalysWriter:
    """Writes `jobs.csv` as Batsim does and evalys reads (JobSet): processors are the cores of the
    machine, numbered through, as an interval set such as `0-3 8`."""

    COLUMNS = ("job_id", "workload_name", "profile", "submission_time",
               "requested_number_of_resources", "requested_time", "success", "final_state",
               "starting_time", "execution_time", "finish_time", "waiting_time",
               "turnaround_time", "stretch", "allocated_resources", "consumed_energy", "metadata")

    def __init__(self, out: TextIO, nodes: Sequence[Node], workload: str) -> None:
        self._out = out
        self._nodes = nodes
        self._workload = workload.replace(",", " ")
        self._layout = CoreLayout(nodes)
        self._lines = [",".join(self.COLUMNS) + "\n"]

    def write(self, booking: Booking, end: float, status: str) -> None:
        """Add a job that ran."""
        job, start = booking.job, booking.start
        run, turnaround = end - start, end - job.submit
        stretch = turnaround / run if run > 0 else ""
        state = ("COMPLETED_SUCCESSFULLY" if status == "completed"
                 else "COMPLETED_WALLTIME_REACHED" if status == "timeout" else "COMPLETED_FAILED")
        cores = " ".join(str(first) if stop - first == 1 else f"{first}-{stop - 1}"
                         for first, stop in bits.runs(self._cores(booking.placement)))
        app = job.app.replace(",", " ")
        self._lines.append(
            f"{job.id},{self._workload},{app},{seconds_text(job.submit)},{job.procs},"
            f"{seconds_text(job.estimate)},{int(status == 'completed')},{state},"
            f"{seconds_text(start)},{seconds_text(run)},{seconds_text(end)},"
            f"{seconds_text(start - job.submit)},{seconds_text(turnaround)},{stretch},{cores},,\n")
        if len(self._lines) >= 500:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the file."""
        self._out.write("".join(self._lines))
        self._lines.clear()
        self._out.flush()

    def _cores(self, placement: AnyPlacement) -> int:
        """The cores of a placement as a set, in the numbering of the layout."""
        if isinstance(placement, CorePlacement):
            return placement.taken
        chosen = 0
        for node, ranks in placement.ranks_by_node(self._nodes):
            at = self._layout.node_first[node]
            lane = placement.lane(node)
            for cores in self._nodes[node].sockets:
                first, length = lane_of_socket(cores, placement.share, lane)
                here = min(ranks, length // placement.width)
                chosen |= ((1 << here * placement.width) - 1) << (at + first)
                ranks -= here
                at += cores
        return chosen
