"""The part of the manager that makes room for urgent jobs, and keeps what was promised of them.

A promise is in the journal before anything is done for it: the job, by when it is to start (None: now), and which jobs
give cores, how. It is kept by `vrm.ext.lending.part.LendingPart`: a paused job is one that lends all of its cores. So
its limit moves by the time in which it stands still, and it goes on when the urgent job has left, however it did. A
promise is over when its job has started or will not run. A manager that was killed before has not started the job:
the next one makes room again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from collections.abc import Mapping

from vrm.ext.lending.part import LendingPart
from vrm.ext.urgent import room as rooms
from vrm.ext.urgent.room import LEND, PAUSE, REQUEUE, Giver, UrgentRoom
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Obey, Part
from vrm.live.runner import proc
from vrm.model import Job, JobState
from vrm.model.forms import shapes
from vrm.model.quantities import fold
from vrm.run.control import Command
from vrm.run.entry import LifeError

LEAD = 3.0
"""Seconds before the time that was promised at which room is made, besides the grace of those that are ended."""

AGAIN = 5.0
"""Seconds after which room is tried again to be made that could not be."""

ANY = 1 << 60
"""Bytes that no job has: to follow its memory without a limit."""

_IDS = shapes.list_of(shapes.count)


@dataclass
class Promise:
    """An urgent job starts by a time (seconds; None: now). `ids` of the jobs that give cores, by how; none: room is
    made only if it has not started by itself then. `next`: when to make room, at the earliest."""

    by: float | None
    ids: Mapping[str, list[int]]
    next: float = -math.inf
    warned: bool = False


class UrgentPart(Part):
    """Makes room for urgent jobs."""

    events = {"promised": {"id": shapes.count, "by": shapes.maybe(shapes.number),
                           LEND: _IDS, PAUSE: _IDS, REQUEUE: _IDS},
              "over": {"id": shapes.count}}
    observes = ()

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.promises: dict[int, Promise] = {}

    @property
    def lending(self) -> LendingPart:
        """The part that moves cores."""
        return self.live.part(LendingPart)

    def happened(self, event: str, values: Mapping[str, Any]) -> None:
        """What an earlier manager has promised."""
        if event == "promised":
            self.promises[values["id"]] = Promise(values["by"], {how: values[how] for how in (LEND, PAUSE, REQUEUE)})
        else:
            self.promises.pop(values["id"], None)

    def commands(self) -> Mapping[str, Obey]:
        """To make room for a job, and to say what is known of jobs that could give it."""
        return {"urgent": self._obey}

    def _obey(self, command: Command, name: str) -> Command:
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
        except LifeError as error:
            return {"ok": False, "text": f"{error}; job {job_id} waits as any other"}
        self.promises[job_id] = promise
        self.live.record(self, "promised", id=job_id, by=promise.by, **ids)
        if by is not None and not any(ids.values()):
            return {"ok": True, "text": f"job {job_id} is to start by itself in time; if not, room is made then"}
        promise.next = self.live.now + AGAIN
        try:
            self.lending.borrow(job, found.placement, found.ids(REQUEUE), command=name)
        except LifeError as error:
            self._over(job_id)
            return {"ok": False, "text": f"{error}; job {job_id} waits as any other"}
        return {"ok": True, "text": f"job {job_id} starts when {self._said(found)}"}

    @staticmethod
    def _said(found: UrgentRoom) -> str:
        said = [f"job{'s' * (len(ids) > 1)} {fold(sorted(ids))} {'have' if len(ids) > 1 else 'has'} {what}"
                for how, what in ((LEND, "left the cores"), (PAUSE, "stopped"), (REQUEUE, "ended, and waits again"))
                for ids in [found.ids(how)] if ids]
        return " and ".join(said) or "its cores are booked, which are free"

    def memory(self, job_id: int) -> int | None:
        """The most bytes that a running job had on a node, as far as was seen."""
        running = self.live.running.get(job_id)
        return running.memory or None if running is not None else None

    def _measure(self) -> bool:
        """Look how much memory those running jobs have that did not say it; whether all is known."""
        live, unknown = self.live, {job_id for job_id, running in self.live.running.items() if not (
            running.memory or running.former or running.away or rooms.says_memory(running.job))}
        if not live.watch.watches and unknown:  # the nodes are emulated, and all processes are here
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

    def _able(self) -> tuple[list[Giver], dict[int, str]]:
        """Who could give cores now."""
        live = self.live
        able, why = rooms.givers(live.cluster, lambda job_id: live.state.entry(job_id).details, self.memory,
                                 live.settings.interrupted == "requeue")
        kept = {job_id for job_id, running in live.running.items()
                if not (running.intent or running.former or running.away or not running.begun)}
        return [each for each in able if each.id in kept], why

    def _room(self, job: Job, promise: Promise) -> UrgentRoom:
        """Room by the jobs that were agreed on, as far as they run. LifeError where they do not suffice."""
        live = self.live
        able, why = self._able()
        chosen = [each for each in able if each.id in promise.ids[each.how]]
        found = rooms.room(rooms.asking(job, live.scheduler), live.cluster, chosen, self.memory, live.now)
        if found is None:
            paused = "".join(f"; job {each}: {why[each]}" for each in promise.ids[PAUSE] if each in why)
            raise LifeError(f"the jobs that were to make room for job {job.id} do not have enough cores now{paused}")
        return found

    # Promises.

    def _over(self, job_id: int) -> None:
        del self.promises[job_id]
        self.live.record(self, "over", id=job_id)

    def _due(self, promise: Promise) -> float:
        """When room is to be made."""
        by = promise.by
        if by is None or any(promise.ids.values()):
            return promise.next
        return max(by - LEAD - self.live.grace, promise.next)

    def deadline(self, now: float) -> float:
        """When room is to be made for somebody."""
        if not self.promises:
            return math.inf
        coming = self.lending.coming
        return min((self._due(each) for job_id, each in self.promises.items() if job_id not in coming),
                   default=math.inf)

    def look(self, now: float, files: bool) -> None:
        """Make room for those that wait still."""
        for job_id, promise in list(self.promises.items()):
            if job_id in self.lending.coming:
                continue
            if self.live.state.entry(job_id).state is not JobState.QUEUED:
                self._over(job_id)
            elif self._due(promise) <= now and self.live.phase == "running":
                promise.next = now + AGAIN
                self._make(job_id, promise)

    def _make(self, job_id: int, promise: Promise) -> None:
        """Make room for a job that was to have started: by those that were agreed on, or those that lose least."""
        live = self.live
        try:
            job = self.lending.waiting(job_id).job
            try:
                found: UrgentRoom | None = self._room(job, promise)
            except LifeError:
                price = rooms.prices(live.cluster, job, live.now)
                found = rooms.cheapest(rooms.asking(job, live.scheduler), live.cluster, self._able()[0], self.memory,
                                       live.now, price)
            if found is None:
                live.cluster.loans.unwilling.clear()  # nobody else has cores: ask these again
                raise LifeError("no running jobs that could make room have enough cores")
            live.tell("note", f"#{job_id} {job.app} is urgent and starts when {self._said(found)}")
            self.lending.borrow(job, found.placement, found.ids(REQUEUE))
        except LifeError as error:
            if not promise.warned:
                promise.warned = True
                live.tell("warning", f"#{job_id} is urgent and waits: {error}")
