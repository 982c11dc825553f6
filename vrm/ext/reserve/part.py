"""The manager's part that makes and cancels reservations."""

from __future__ import annotations

import math
from collections.abc import Mapping

from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import CommandHandler, Part
from vrm.model.forms.hosts import fold as fold_nodes
from vrm.model.quantities import fold
from vrm.model.reservation import ReservationError, ReservationRequest
from vrm.run.command_files import Command
from vrm.run.reservations import when


class ReservationPart(Part):
    """Carries out `vrm reserve`. The scheduler makes sure that jobs respect the reservations."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the commands that make and cancel a reservation."""
        return {"reserve": self._reserve, "unreserve": self._unreserve}

    def _reserve(self, command: Command, name: str) -> Command:
        live, begin, end = self.live, command["begin"], command["end"]
        names, ids = list(map(str, command["nodes"])), list(map(int, command["jobs"]))
        wanted = ReservationRequest(-math.inf if begin is None else float(begin), float(end),
                        int(command["number"]), tuple(names), str(command["name"]), tuple(ids))
        closing = live.end.closing
        try:
            if live.phase != "running":
                raise ReservationError("the manager is stopping and reserves nothing more")
            if max(wanted.begin, live.now) >= closing:
                raise ReservationError(f"jobs start until {when(closing)}, when the allocation's end "
                                       "is near (End), and the reservation would begin then or later")
            made = live.state.reservations.reserve(wanted, live.now, command=name)
        except ReservationError as error:
            return {"ok": False, "text": str(error)}
        live.changes()
        jobs = f", for job{'s' * (len(ids) > 1)} {fold(ids)}" if ids else ""
        return {"ok": True, "name": made.name, "nodes": list(made.nodes),
                "text": f"reservation {made.name}: {fold_nodes(made.nodes)} from {when(made.begin)} to "
                        f"{when(made.end)}{jobs}"}

    def _unreserve(self, command: Command, name: str) -> Command:
        live = self.live
        try:
            found = live.state.reservations.named(str(command["which"]))
        except ReservationError as error:
            return {"ok": False, "text": str(error)}
        jobs = live.state.reservations.cancel(found.id, live.now, "cancelled", command=name)
        live.changes()
        waiting = [job_id for job_id in jobs if job_id in live.state.queue]
        compete = (f"; job{'s' * (len(waiting) > 1)} {fold(sorted(waiting))} compete"
                   f"{'s' * (len(waiting) == 1)} with the others again" if waiting else "")
        return {"ok": True, "text": f"reservation {found.name} is cancelled{compete}"}
