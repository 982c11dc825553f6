"""A job that runs, and one whose end is not decided yet, as their manager knows them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vrm.live.manager.records.records import EndedJob
from vrm.live.spawn.records import Marker
from vrm.model import Booking, Cluster, Job
from vrm.scheduling import Start
from vrm.system.processes import SessionEnd


LEADERLESS = -1
"""The start time of a leader that has died and of which nothing else is known: whoever has its number is another process."""


@dataclass
class Running:
    """A job that was started and has not ended."""

    start: Start
    session: int | None = None
    leader: int | None = None            # the start time of its supervisor, which leads the session
    taken_over: bool = False             # started by an earlier manager: its files tell the end
    away: bool = False                   # on another host: its processes are out of reach
    marker: Marker | None = None
    intent: str = ""                     # why the manager ends it, see `verdict`
    told: float = math.inf               # when it was told to end, as `ExitStatus.tick`
    lost: bool = False                   # its supervisor was killed
    ending: SessionEnd | None = None
    gone_since: float = math.inf         # its files are not there
    warned: bool = False
    signal_due: float = math.inf         # when its user wants it to be sent a signal
    paused: float = 0.0                  # seconds for which it was suspended together with vrm
    why: str = ""                        # more about the intent: which node was lost
    bindings_due: float = math.inf
    binding: str = "unchecked"           # whether its ranks are where they should be
    memory_due: float = 0.0              # when to begin to follow its memory
    memory: int = 0                      # the most bytes that it had on a node, as far as was seen
    former: Cluster | None = None     # on which it runs, where its nodes are not all here now

    @property
    def booking(self) -> Booking:
        """Its cores, and until when they are expected to be taken."""
        return self.start.booking

    @property
    def job(self) -> Job:
        """The job."""
        return self.start.booking.job

    @property
    def begun(self) -> bool:
        """Whether it is known to have begun: its supervisor has said so, or has left its marker to the next manager."""
        return self.session is not None or self.taken_over

    @property
    def due(self) -> float:
        """When its walltime is over."""
        return self.booking.limit + self.paused


@dataclass
class HeldFailure:
    """A job that failed by itself, and whose verdict waits for what may have ended it.

    If the batch system tells vrm to end, or one of the job's nodes turns out to be lost, it was
    interrupted. If neither happens until `until` (the manager's clock), and its nodes have
    answered since, it failed.
    """

    running: Running
    outcome: EndedJob
    until: float
