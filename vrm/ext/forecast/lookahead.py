"""The lines of a queue file that the manager has not read yet: jobs that are known to come. Each is submitted
when the delays of the lines before it are over (`vrm.workload.replay`)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from collections.abc import Collection, Mapping, Sequence

from vrm.config.policies import job_of
from vrm.config.schema import Settings
from vrm.model import JobState
from vrm.model.job import OK, Dependency, resolved
from vrm.run.journal.record_checks import EndRecord
from vrm.system.trust import distrust
from vrm.workload.queue_follower import Line, Position, QueueFollower
from vrm.workload.grammar import LONGEST, LineError, job_of_words, words_of
from vrm.workload.replay import replay
from vrm.workload.submission import Submission


def unmet_dependencies(after: Sequence[Dependency], ended: Mapping[int, EndRecord]) -> tuple[Dependency, ...]:
    """Return the dependencies that are not met yet. Raises ValueError if a job has ended in a state that does
    not meet its dependency."""
    found = []
    for each in after:
        failed = [i for i in each.ids if i in ended and not each.met(JobState(ended[i]["state"]))]
        if failed:
            raise ValueError(f"job {failed[0]}, on which it depends, ended as "
                             f"{ended[failed[0]]['state']}")
        found += [each._replace(ids=range(i, i + 1)) for i in each.ids if i not in ended]
    return tuple(found)


class QueueLookahead:
    """Follows the lines of a run's queue file that the manager has not read yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lines: list[Line] = []
        self._reached: Position | None = None  # the manager's position
        self._follower = self._from(None)
        self._delay = 0.0  # of the last line that the manager has read, in seconds

    def _from(self, position: Position | None) -> QueueFollower:
        return QueueFollower(self._settings.applications.queue, position,
                             fault=lambda path: distrust(path, self._settings.trust))

    def _look(self, position: Position | None) -> list[Line]:
        """Return the lines after `position`."""
        if position != self._reached:
            passed = [at for at, line in enumerate(self._lines) if line.position == position]
            if passed:
                del self._lines[:passed[0] + 1]
            else:
                self._lines, self._follower = [], self._from(position)
            self._reached, self._delay = position, self._delay_before(position)
        self._lines += self._follower.read_new()
        return self._lines

    def _delay_before(self, position: Position | None) -> float:
        """Return the delay of the line that ends at `position`, in seconds."""
        if position is None:
            return 0.0
        try:
            with open(self._settings.applications.queue, "rb") as file:
                first = max(0, position.offset - LONGEST - 1)
                line = os.pread(file.fileno(), position.offset - first, first).rstrip(b"\n").rpartition(b"\n")[2]
            return job_of_words(words_of(line.decode())).delay or 0.0
        except (OSError, ValueError):
            return 0.0

    def jobs(self, position: Sequence[Any] | None, since: float | None, now: float, next_id: int,
             names: Mapping[str, Sequence[int]], ended: Mapping[int, EndRecord], most: int,
             bad_have_ids: bool = True) -> tuple[Submission, ...]:
        """Return at most `most` jobs of the lines after `position`. `since` is when the manager read the line
        before it, in seconds; None means that an earlier manager read it: the next line is then due at once.
        Left out are wrong lines, and jobs that will never run because a job on which they depend failed."""
        lines = self._look(None if position is None else Position(*position))
        speed = self._settings.replay.speed
        begin = now if since is None else max(now, since + self._delay / speed)
        known: dict[str, list[int]] = {name: list(ids) for name, ids in names.items()}
        lost: list[int] = []
        found: list[Submission] = []
        for offset, line in replay(lines, speed):
            if len(found) >= most:
                break
            if isinstance(line.parsed, LineError):
                next_id += line.parsed.jobs if bad_have_ids else 0
                continue
            number = len(line.parsed.fields.get("array", ())) or 1
            ids = list(range(next_id, next_id + number))
            next_id += number
            values = line.parsed.values
            try:
                after = unmet_dependencies(resolved(values.get("after", ()), known), ended)
                job, details = job_of(self._settings, {**values, "after": after}, ids[0], begin + offset)
            except ValueError:
                lost += ids
                continue
            if details.name:
                known.setdefault(details.name, []).extend(ids)
            if _waits_for(after, lost):
                lost += ids
                continue
            found += [Submission(job.but(id=job_id), job.walltime, after, details.held, details=replace(
                details, after=())) for job_id in ids[:most - len(found)]]
        return tuple(found)


def _waits_for(after: Sequence[Dependency], lost: Collection[int]) -> bool:
    """Return whether the dependencies need one of the jobs `lost` to complete first."""
    return any(job_id in each.ids for each in after if each.kind == OK for job_id in lost)
