"""Handles edits of the queue file: waiting lines that were changed, moved or removed, and lines that were inserted.

The edit is found by comparing lines (`vrm.workload.queue_diff`). Each step is one record of the journal, with the line
and its jobs. If a manager is killed in between, the next one compares again and does the rest.
"""

from __future__ import annotations

from typing import Protocol
from collections.abc import Sequence

from vrm.live.manager.jobs.ends import Ends
from vrm.model import JobState
from vrm.model.quantities import fold
from vrm.run.entry import DEPENDENCY, REMOVED, Entry
from vrm.run.journal.queue_lines import Lines
from vrm.workload.queue_diff import Edit, AmbiguousEdit, compare
from vrm.workload.queue_follower import Line, RawLine
from vrm.workload.grammar import LineError
from vrm.workload.replay import QueueReplay


class LineTaker(Protocol):
    """Turns lines of a queue file into jobs (`vrm.live.manager.jobs.intake`)."""

    def enter_line(self, line: Line, at: int | None = None, old: Sequence[int] = ()) -> None:
        """Enter a line. `at` is its index among the lines taken; its jobs take the ids `old`."""


def is_replaceable(entry: Entry) -> bool:
    """Return whether another job may take the id of this one: it has not run, and its user has not cancelled it."""
    return entry.state in (JobState.QUEUED, JobState.REFUSED) or entry.cause == DEPENDENCY


class Edits:
    """Carries out the edits of a queue file. `unclear`: why an edit cannot be identified, or ""; `cut`: the `end` line
    is before lines that were taken."""

    def __init__(self, intake: LineTaker, ends: Ends, source: QueueReplay, lines: Lines, accept: bool) -> None:
        self._intake, self._ends, self._input = intake, ends, source
        self._live = ends.live
        self.lines = lines
        self._accept = accept
        self.unclear = ""
        self.cut = False

    def look(self) -> None:
        """Compare the file with the lines taken and carry out the edit. Raises OSError if the file cannot be read."""
        follower = self._input.follower
        everything = follower.read_all()
        raws = [raw for raw in everything if raw.digest]
        last = next((raw.number for raw in everything if raw.end), everything[-1].number + 1 if everything else 0)
        before_end = sum(raw.number < last for raw in raws)
        if not self._know(raws):
            return
        found = compare(self.lines.digests, [raw.digest for raw in raws], self._free, self._waits, self._accept)
        if not follower.settled and (isinstance(found, AmbiguousEdit) or not found.empty):
            follower.leave(settled=False)
        elif isinstance(found, AmbiguousEdit):
            self._stop(self._why(found, raws))
        else:
            self._carry_out(found, raws, before_end)

    def _know(self, raws: Sequence[RawLine]) -> bool:
        """Return whether the digests of all lines taken are known. An older vrm recorded only the position where to
        read on; then learn the digests from the file, if that position is still valid."""
        if 0 not in self.lines.digests:
            return True
        follower = self._input.follower
        here = [raw for raw in raws if raw.offset <= follower.position.offset]
        if not follower.holds() or not here or here[-1].offset != follower.position.offset:
            if not follower.settled:
                follower.leave(settled=False)
            else:
                self._stop("was changed, and this run was begun by an older vrm, which has not recorded its lines. "
                           "Put the file back and append new lines; or start again with `vrm run --fresh`")
            return False
        if len(here) == len(self.lines):
            for line, raw in enumerate(here):
                self.lines.change(line, raw.digest)
            return True
        self.unclear = ""
        self._input.go_to(here[-1])
        return False

    def _free(self, line: int) -> bool:
        return all(is_replaceable(self._live.state.entry(job_id)) for job_id in self.lines.jobs(line))

    def _waits(self, line: int) -> bool:
        return any(self._live.state.entry(job_id).state is JobState.QUEUED for job_id in self.lines.jobs(line))

    # Unclear edits.

    def _stop(self, why: str) -> None:
        self._input.follower.leave()
        self.unclear = f"queue file {self._input.follower.path} {why}"
        self._live.tell("warning", self.unclear)

    def _why(self, found: AmbiguousEdit, raws: Sequence[RawLine]) -> str:
        ids = sorted(self.lines.withdrawn(found.old))
        if found.new:
            numbers = fold([raws[line].number for line in found.new])
            many = "s" * ("," in numbers or "-" in numbers)
            jobs = f"job{'s' * (len(ids) > 1)} {fold(ids)}"
            return (f"is no longer read: line{many} {numbers} {'were' if many else 'was'} changed after {jobs} had "
                    f"started or ended. Put the line{many} back, and append the new one{many} at the end; or type `vrm run "
                    f"--changed`, which runs the changed line{many} as new jobs")
        if raws:
            return (f"is no longer read: some lines were removed that are equal to others, and it is not clear "
                    f"which. Some of their jobs ({fold(ids)}) wait, and others do not. Put the lines back; `vrm cancel "
                    "ID` cancels a job that waits")
        return ("is now empty, but jobs of its lines wait: they stay in the queue. Put the lines back; `vrm cancel ID` cancels a "
                "job that waits")

    # Carrying out an edit.

    def _carry_out(self, edit: Edit, raws: Sequence[RawLine], before_end: int) -> None:
        """Carry out an edit with one record for each line; lines that were removed or moved share one record, which is
        first."""
        said = [f"{len(lines)} {what}" for lines, what in (
            (edit.changed, "changed"), (edit.gone, "removed"), (edit.new, "added"), (edit.moved, "moved")) if lines]
        if said:
            self._live.tell("note", f"queue file {self._input.follower.path} was edited; lines: {', '.join(said)}")
        self.unclear = ""
        changed = [(line, self._input.follower.line(raws[at])) for line, at in edit.changed]
        resized = [line for line, now in changed if jobs_of_line(now) != len(self.lines.jobs(line))]
        places = dict(edit.changed)
        forgotten = self._change([pair for pair in changed if pair[0] not in resized])
        new = sorted([*edit.new, *(places[line] for line in resized)])
        self._take_out(sorted([*edit.gone, *resized]),
                       [(line, at - sum(each < at for each in new)) for line, at in edit.moved])
        for at in new:
            if at < before_end:
                self._intake.enter_line(self._input.follower.line(raws[at]), at=at)
        self._live.synced()
        self._live.records.forget(forgotten)
        self._ends.requeue_cancelled(forgotten)
        self._read_on(raws, edit.reached, before_end)

    def _read_on(self, raws: Sequence[RawLine], reached: int, before_end: int) -> None:
        """Continue reading after the lines that were taken, unless the `end` line is before some of them."""
        self.cut = before_end < reached
        if self.cut:
            self._input.follower.leave()
            self._live.tell("warning", f"queue file {self._input.follower.path}: its `end` line is before lines that were "
                                       "taken; what follows is not read. Move it to the end of the file")
            return
        self._input.go_to(raws[reached - 1] if reached else None)
        if self.lines.digests or reached:
            self._live.journal.append("input", position=self._input.position, ended=False)

    def _change(self, changed: Sequence[tuple[int, Line]]) -> list[int]:
        """Replace jobs by those of the changed lines; return the ids of those that had ended."""
        state, ended = self._live.state, []
        for line, now in changed:
            ids = self.lines.jobs(line)
            ended += [job_id for job_id in ids if state.entry(job_id).state.ended]
            self._intake.enter_line(now, at=line, old=ids)
        return ended

    def _take_out(self, gone: Sequence[int], moved: Sequence[tuple[int, int]]) -> None:
        """Withdraw the waiting jobs of removed lines, and give moved lines their new places."""
        if not gone and not moved:
            return
        ids = self.lines.withdrawn(gone)
        mine = set(ids)
        dropped = self._live.state.withdraw(ids, self._live.now, gone=list(gone), moved=[list(pair) for pair in moved])
        self.lines.take_out(gone, moved)
        for each in dropped:
            self._ends.drop([each], REMOVED if each[0].id in mine else "")
        self._live.changes()


def jobs_of_line(line: Line) -> int:
    """Return the number of ids that a line takes."""
    if isinstance(line.parsed, LineError):
        return line.parsed.jobs
    return len(line.parsed.fields.get("array", ())) or 1
