"""The manager's data of a running job, and of a job whose verdict is held."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vrm.live.manager.records.records import EndedJob
from vrm.live.spawn.records import Marker
from vrm.model import Booking, Cluster, Job
from vrm.scheduling import Start
from vrm.system.processes import SessionEnding


UNKNOWN_LEADER = -1
"""Start time of a session leader that has died and about which nothing else is known. It matches no process, so that a
process that has got the leader's number is not taken for it."""


@dataclass
class LiveJob:
    """A job that was started and has not ended."""

    start: Start
    session: int | None = None
    leader: int | None = None            # the start time of its supervisor, which leads the session
    taken_over: bool = False             # started by an earlier manager: its files show the end
    looked: bool = True                  # its files were looked at since it was taken over
    away: bool = False                   # on another host: its processes are out of reach
    marker: Marker | None = None
    intent: str = ""                     # why the manager ends it, see `verdict`
    told: float = math.inf               # when it was sent the signal to end, as `ExitStatus.tick`
    lost: bool = False                   # its supervisor was killed
    ending: SessionEnding | None = None
    gone_since: float = math.inf         # since when its files are missing
    warned: bool = False
    signal_due: float = math.inf         # when to send the signal that its user requested
    paused: float = 0.0                  # seconds for which it was suspended together with vrm
    why: str = ""                        # more about the intent: which node was lost
    bindings_due: float = math.inf
    binding: str = "unchecked"           # whether its ranks are where they should be
    memory_due: float = 0.0              # when to begin to follow its memory
    memory: int = 0                      # the most bytes that it was seen to use on a node
    former: Cluster | None = None     # the cluster on which it runs, if some of its nodes are missing now

    @property
    def booking(self) -> Booking:
        """Its cores, and the expected end of their use."""
        return self.start.booking

    @property
    def job(self) -> Job:
        """The job."""
        return self.start.booking.job

    @property
    def begun(self) -> bool:
        """Whether it is known to have begun: its supervisor has reported it, or has left its marker to the next
        manager."""
        return self.session is not None or self.taken_over

    @property
    def due(self) -> float:
        """When its walltime is over."""
        return self.booking.limit + self.paused


@dataclass
class HeldFailure:
    """A job that failed by itself, and whose verdict is held until the cause is clear.

    If the batch system signals vrm to end, or one of the job's nodes turns out to be lost, the job was
    interrupted. If neither happens until `until` (the manager's clock), and its nodes have
    answered since, it failed.
    """

    running: LiveJob
    outcome: EndedJob
    until: float
