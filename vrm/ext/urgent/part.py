"""The manager's part that makes room for urgent jobs, and keeps promises about their starts.

A promise is in the journal before anything is done for it: the job, by when it must start (None: now), and which jobs
give cores, and how. `vrm.ext.lending.part.LendingPart` carries it out: a paused job lends all its cores. Therefore its
limit moves by the time for which it is paused, and it continues when the urgent job has ended, in whatever way. A
promise is over when its job has started or will not run. If the manager is killed earlier, the job has not started, and
the next manager makes room again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from collections.abc import Mapping

from vrm.ext.lending.part import LendingPart
from vrm.ext.urgent import donors as rooms
from vrm.ext.urgent.donors import LEND, PAUSE, REQUEUE, CoreDonor, UrgentPlacement
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import CommandHandler, Part
from vrm.live.runner import proc
from vrm.model import Job, JobState
from vrm.model.forms import json_checks
from vrm.model.quantities import fold
from vrm.run.command_files import Command
from vrm.run.entry import JobStateError

LEAD = 3.0
"""Seconds before the promised time at which room is made, in addition to the grace time of jobs that are ended."""

AGAIN = 5.0
"""Seconds after which a failed attempt to make room is repeated."""

ANY = 1 << 60
"""Bytes that no job uses: the limit for following the memory of a job that has none."""

_IDS = json_checks.list_of(json_checks.count)


@dataclass
class Promise:
    """The promise that an urgent job starts by a time (seconds; None: now).

    `ids`: the jobs that give cores, by how they give them. If there are none, room is made only if the job has not
    started by itself when the time is near. `next`: the earliest time to make room.
    """

    by: float | None
    ids: Mapping[str, list[int]]
    next: float = -math.inf
    warned: bool = False


class UrgentPart(Part):
    """Makes room for urgent jobs."""

    events = {"promised": {"id": json_checks.count, "by": json_checks.maybe(json_checks.number),
                           LEND: _IDS, PAUSE: _IDS, REQUEUE: _IDS},
              "over": {"id": json_checks.count}}
    observes = ()

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.promises: dict[int, Promise] = {}

    @property
    def lending(self) -> LendingPart:
        """The part that moves cores between jobs."""
        return self.live.part(LendingPart)

    def happened(self, event: str, values: Mapping[str, Any]) -> None:
        """Take in the promises of an earlier manager."""
        if event == "promised":
            self.promises[values["id"]] = Promise(values["by"], {how: values[how] for how in (LEND, PAUSE, REQUEUE)})
        else:
            self.promises.pop(values["id"], None)

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the command that makes room for a job, or reports the memory of the jobs that could give it."""
        return {"urgent": self._handle_command}

    def _handle_command(self, command: Command, name: str) -> Command:
        if command.get("ask"):
            return {"ok": True, "text": "", "known": self._measure(), "memory": {
                str(job_id): running.memory for job_id, running in self.live.running.items() if running.memory}}
        job_id, by = int(command["id"]), command.get("by")
        ids = {how: [int(each) for each in command.get(how, ())] for how in (LEND, PAUSE, REQUEUE)}
        try:
            job = self.lending.waiting(job_id).job
            promise = Promise(None if by is None else float(by), ids)
            if by is None or any(ids.values()):
                found = self._room(job, promise)  # before it is promised
        except JobStateError as error:
            return {"ok": False, "text": f"{error}; job {job_id} waits as any other"}
        self.promises[job_id] = promise
        self.live.record(self, "promised", id=job_id, by=promise.by, **ids)
        if by is not None and not any(ids.values()):
            return {"ok": True, "text": f"job {job_id} is to start by itself in time; if not, room is made then"}
        promise.next = self.live.now + AGAIN
        try:
            self.lending.borrow(job, found.placement, found.ids(REQUEUE), command=name)
        except JobStateError as error:
            self._over(job_id)
            return {"ok": False, "text": f"{error}; job {job_id} waits as any other"}
        return {"ok": True, "text": f"job {job_id} starts when {self._said(found)}"}

    @staticmethod
    def _said(found: UrgentPlacement) -> str:
        said = [f"job{'s' * (len(ids) > 1)} {fold(sorted(ids))} {'have' if len(ids) > 1 else 'has'} {what}"
                for how, what in ((LEND, "left the cores"), (PAUSE, "stopped"), (REQUEUE, "ended, and waits again"))
                for ids in [found.ids(how)] if ids]
        return " and ".join(said) or "its cores are booked, which are free"

    def memory(self, job_id: int) -> int | None:
        """Return the most bytes that a running job was seen to use on a node; None if not known."""
        running = self.live.running.get(job_id)
        return running.memory or None if running is not None else None

    def _measure(self) -> bool:
        """Measure the memory of the running jobs that did not request any; return whether all of it is known."""
        live, unknown = self.live, {job_id for job_id, running in self.live.running.items() if not (
            running.memory or running.former or running.away or rooms.requests_memory(running.job))}
        if not live.watch.watches and unknown:  # the nodes are emulated, and all processes are on this machine
            mark, = proc.marks(live.launcher.run_id, None)
            for (pid, _), environment in proc.marked():
                job = next((entry[11:] for entry in environment if entry.startswith(b"VRM_JOB_ID=")), b"")
                if mark in environment and job.isdigit() and int(job) in unknown:
                    live.running[int(job)].memory += proc.proportional(pid)
        else:
            for job_id in unknown:
                nodes = live.running[job_id].booking.placement.nodes
                live.watch.follow_memory(job_id, {live.cluster.nodes[node].name: ANY for node in nodes})
        return not any(live.running[job_id].memory == 0 for job_id in unknown)

    def _able(self) -> tuple[list[CoreDonor], dict[int, str]]:
        """Return the jobs that could give cores now, and why others cannot be paused, by id."""
        live = self.live
        able, why = rooms.core_donors(live.cluster, lambda job_id: live.state.entry(job_id).details, self.memory,
                                      live.settings.interrupted == "requeue")
        kept = {job_id for job_id, running in live.running.items()
                if not (running.intent or running.former or running.away or not running.begun)}
        return [each for each in able if each.id in kept], why

    def _room(self, job: Job, promise: Promise) -> UrgentPlacement:
        """Return room made by the agreed jobs that still run. Raises JobStateError if their cores do not suffice."""
        live = self.live
        able, why = self._able()
        chosen = [each for each in able if each.id in promise.ids[each.how]]
        found = rooms.room(rooms.asking(job, live.scheduler), live.cluster, chosen, self.memory, live.now)
        if found is None:
            paused = "".join(f"; job {each}: {why[each]}" for each in promise.ids[PAUSE] if each in why)
            raise JobStateError(f"the jobs that were to make room for job {job.id} do not have enough cores now"
                                f"{paused}")
        return found

    # Promises.

    def _over(self, job_id: int) -> None:
        del self.promises[job_id]
        self.live.record(self, "over", id=job_id)

    def _due(self, promise: Promise) -> float:
        """Return when room must be made."""
        by = promise.by
        if by is None or any(promise.ids.values()):
            return promise.next
        return max(by - LEAD - self.live.grace, promise.next)

    def deadline(self, now: float) -> float:
        """Return when room must be made for the next job."""
        if not self.promises:
            return math.inf
        coming = self.lending.coming
        return min((self._due(each) for job_id, each in self.promises.items() if job_id not in coming),
                   default=math.inf)

    def look(self, now: float, files: bool) -> None:
        """Make room for the urgent jobs that are due; end the promises of jobs that no longer wait."""
        for job_id, promise in list(self.promises.items()):
            if job_id in self.lending.coming:
                continue
            if self.live.state.entry(job_id).state is not JobState.QUEUED:
                self._over(job_id)
            elif self._due(promise) <= now and self.live.phase == "running":
                promise.next = now + AGAIN
                self._make(job_id, promise)

    def _make(self, job_id: int, promise: Promise) -> None:
        """Make room for a job that should have started: by the agreed jobs, or otherwise by the jobs that lose
        least."""
        live = self.live
        try:
            job = self.lending.waiting(job_id).job
            try:
                found: UrgentPlacement | None = self._room(job, promise)
            except JobStateError:
                price = rooms.prices(live.cluster, job, live.now)
                found = rooms.cheapest(rooms.asking(job, live.scheduler), live.cluster, self._able()[0], self.memory,
                                       live.now, price)
            if found is None:
                live.cluster.loans.refusing_lenders.clear()  # no other job has cores: try these again
                raise JobStateError("no running jobs that could make room have enough cores")
            live.tell("note", f"#{job_id} {job.app} is urgent and starts when {self._said(found)}")
            self.lending.borrow(job, found.placement, found.ids(REQUEUE))
        except JobStateError as error:
            if not promise.warned:
                promise.warned = True
                live.tell("warning", f"#{job_id} is urgent and waits: {error}")
