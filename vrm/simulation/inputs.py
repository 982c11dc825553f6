"""Where a simulation's jobs come from: traces, queue files, and the jobs of an earlier run."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple, Union

from vrm.model.heatmap import Heatmap
from vrm.model.job import Job
from vrm.model.node import Node
from vrm.model.speedups import SpeedError, Speedups
from vrm.report.jobs import JobFileError, parse_cores, read_jobs
from vrm.workload import heatmap_files
from vrm.workload.lublin import Lublin
from vrm.workload.queue_file import LineError, QueueFollower, replay
from vrm.workload.submission import Submission
from vrm.workload.swf import Rules, Trace, TraceError


class WorkloadError(ValueError):
    """A workload that cannot be used; the text names the file and the mend."""


class QueueWorkload:
    """The jobs of a vrm queue file, recorded or not: ids count from 0, the first job comes at 0.

    A job runs for its compact time where `speedups` know it, else for its estimate; lines that
    are wrong are counted in `dirt`. Recorded delays are divided by `load`. Of the fields, cores,
    priority, array, after and hold count here; retries are for live runs, since whatever a job
    does here it would do again.
    """

    header: Dict[str, str] = {}
    processors: Optional[int] = None
    unix_start: Optional[int] = None

    def __init__(self, path: Union[str, Path], rules: Rules = Rules(),
                 speedups: Optional[Speedups] = None) -> None:
        self.path = Path(path)
        self.rules = rules
        self.speedups = speedups
        self.taken = 0
        self.dirt: Dict[str, int] = {}

    def __iter__(self) -> Iterator[Submission]:
        follower = QueueFollower(self.path)
        follower.finish()
        lines = follower.read_new()
        if follower.trouble:
            raise WorkloadError(f"queue file {self.path} {follower.trouble}")
        self.taken, job_id = 0, -1
        self.dirt = {}
        for offset, line in replay(lines, self.rules.load):
            if isinstance(line.parsed, LineError):
                self.dirt["lines that name no job"] = self.dirt.get("lines that name no job", 0) + 1
                continue
            wanted = line.parsed
            run = self.speedups.compact_time(wanted.app, wanted.procs) if self.speedups else None
            for _ in wanted.fields.get("array", (None,)):
                job_id += 1
                if not self.rules.wants(job_id, offset):
                    continue
                if self.rules.jobs is not None and self.taken >= self.rules.jobs:
                    return
                self.taken += 1
                job = Job(job_id, wanted.app, wanted.procs, wanted.seconds, offset,
                          wanted.exclusive, wanted.fields.get("cores", 1),
                          priority=wanted.fields.get("priority", 0))
                yield Submission(job, wanted.seconds if run is None else run,
                                 wanted.fields.get("after", ()),
                                 wanted.fields.get("hold", False))


class RecordedRun:
    """The jobs of an earlier run, live or simulated, with the run times that were measured.

    Its own seconds are kept; jobs that never ran are left out and counted.
    """

    header: Dict[str, str] = {}
    processors: Optional[int] = None
    unix_start: Optional[int] = None

    def __init__(self, path: Union[str, Path], rules: Rules = Rules()) -> None:
        self.path = Path(path)
        self.rules = rules
        self.taken = 0
        self.dirt: Dict[str, int] = {}

    def __iter__(self) -> Iterator[Submission]:
        self.taken = 0
        self.dirt = {}
        found = []
        for row in read_jobs(self.path):
            if row.start is None or row.end is None or row.end <= row.start:
                self.dirt["dropped: never ran"] = self.dirt.get("dropped: never ran", 0) + 1
                continue
            if not self.rules.wants(row.id, row.submit):
                continue
            width = 1
            if row.cores:
                cores = sum(place.last - place.first + 1 for _, places in parse_cores(row.cores)
                            for place in places)
                width = max(1, cores // row.procs)
            job = Job(row.id, row.app, row.procs, row.walltime, row.submit, row.exclusive, width)
            found.append(Submission(job, row.end - row.start))
        found.sort(key=lambda one: (one.job.submit, one.job.id))
        for one in found[:self.rules.jobs]:
            self.taken += 1
            yield one


SYNTHETIC = "lublin:"


class SyntheticWorkload:
    """Jobs drawn by the model of Lublin and Feitelson: `lublin:PROCESSORS:JOBS`, or with `:SEED`
    (0 unless given); the same text is the same workload for ever.

    Submission times are divided by the rules' `load`. Raises WorkloadError for another form.
    """

    header: Dict[str, str] = {}
    unix_start: Optional[int] = None

    def __init__(self, text: str, rules: Rules = Rules()) -> None:
        found = re.fullmatch(SYNTHETIC + r"([0-9]+):([1-9][0-9]*)(?::([0-9]+))?", text)
        if not found:
            raise WorkloadError(f"`{text}` is not of the form lublin:PROCESSORS:JOBS[:SEED], as "
                                "lublin:256:5000")
        processors, jobs, seed = (int(number or 0) for number in found.groups())
        try:
            self._model = Lublin(processors)
        except ValueError as error:
            raise WorkloadError(f"`{text}`: {error}") from error
        self._jobs, self._seed = jobs, seed
        self.processors: Optional[int] = processors
        self.rules = rules
        self.taken = self._drawn = 0
        self.dirt: Dict[str, int] = {}

    @property
    def read(self) -> float:
        """The share of the jobs that have been drawn (0 to 1)."""
        return self._drawn / self._jobs

    def __iter__(self) -> Iterator[Submission]:
        self.taken = self._drawn = 0
        for one in self._model.jobs(self._jobs, self._seed):
            self._drawn += 1
            if not self.rules.wants(one.job.id, one.job.submit):
                continue
            if self.rules.jobs is not None and self.taken >= self.rules.jobs:
                return
            self.taken += 1
            if self.rules.load != 1:
                one = one._replace(job=replace(one.job, submit=one.job.submit / self.rules.load))
            yield one


Workload = Union[Trace, QueueWorkload, RecordedRun, SyntheticWorkload]


def open_workload(path: Union[str, Path], rules: Rules = Rules(), keep_estimates: bool = False,
                  speedups: Optional[Speedups] = None) -> Workload:
    """The workload of a file: an SWF trace (18 columns), a `jobs.csv`, or else a queue file; or
    a synthetic one, for a text that begins with `lublin:`.

    Raises WorkloadError when it cannot be read.
    """
    if str(path).startswith(SYNTHETIC):
        return SyntheticWorkload(str(path), rules)
    path = Path(path)
    try:
        with open(path, "rb") as file:
            start = file.read(1 << 16)
    except OSError as error:
        raise WorkloadError(f"{path}: {(error.strerror or str(error)).lower()}; name a trace "
                            "(SWF, also .gz), a queue file, the jobs.csv of a run, or "
                            "lublin:PROCESSORS:JOBS[:SEED]") from error
    if start[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path) as packed:
                start = packed.read(1 << 16)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise WorkloadError(f"{path}: damaged gzip file ({error}); fetch it anew") from error
    text = start.decode("utf-8", "replace")
    if text.startswith("id,app,"):
        return RecordedRun(path, rules)
    lines = [line for line in text.splitlines() if line.strip()]
    rows = [line for line in lines if not line.lstrip().startswith((";", "#"))]
    if path.name.endswith((".swf", ".swf.gz")) or text.lstrip().startswith(";") or (
            rows and len(rows[0].split()) >= 18):
        try:
            return Trace(path, rules, keep_estimates)
        except TraceError as error:
            raise WorkloadError(str(error)) from error
    return QueueWorkload(path, rules, speedups)


def read_heatmap(path: Union[str, Path], rows_are: str = "own",
                 least: float = 0.0) -> Tuple[Heatmap, Optional[Speedups]]:
    """A heatmap of ranks, which only orders nodes, or one of measured speed-ups, which also tells
    how fast jobs run and refuses pairs with a combined throughput below `least`. Raises
    SpeedError."""
    found = heatmap_files.read(path, rows_are, least)
    return found.heatmap, found.speedups


def read_system(path: Union[str, Path]) -> List[Node]:
    """The nodes of a system description, a JSON object in one of two forms.

    `{"nodes": [{"count": 4, "sockets": 2, "cores": 8, "prefix": "n", "gpu": 2}, ...]}`, or that of
    AccaSim, `{"groups": {"g0": {"core": 16, "mem": 64}}, "resources": {"g0": 4}}`, whose nodes
    have one socket. What is not a core is a countable resource. Raises WorkloadError.
    """
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kinds = []
        if "groups" in found:
            for group, number in found["resources"].items():
                amounts = dict(found["groups"][group])
                kinds.append((group, number, 1, amounts.pop("core"), amounts))
        else:
            for amounts in found["nodes"]:
                amounts = dict(amounts)
                kinds.append((amounts.pop("prefix", "n"), amounts.pop("count", 1),
                              amounts.pop("sockets", 1), amounts.pop("cores"), amounts))
        nodes: List[Node] = []
        for prefix, number, sockets, cores, amounts in kinds:
            nodes += [Node(f"{prefix}{index}" if prefix == "n" else f"{prefix}n{index}",
                           (cores,) * sockets, amounts)
                      for index in range(len(nodes), len(nodes) + number)]
        if not nodes:
            raise ValueError("it has no nodes")
    except OSError as error:
        raise WorkloadError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else repr(error)
        raise WorkloadError(f"{path}: not a system description ({reason}); for example "
                            '{"nodes": [{"count": 4, "sockets": 2, "cores": 8}]}') from error
    return nodes


ERRORS = (WorkloadError, TraceError, JobFileError, SpeedError)
"""What can be wrong with a simulation's files; each is one message for the user."""
