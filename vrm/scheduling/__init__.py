"""Scheduling policies: which job starts next (ordering, backfilling) and where (placement).

Deterministic and without I/O: `now` is an argument, so the same code runs live, in simulation and in forecasts.
"""

from vrm.scheduling.placement.user_placement import make_policy
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.backfilling.dispatchers import make_backfilling
from vrm.scheduling.orderings.ordering import make_ordering
from vrm.scheduling.placement.combining import combine
from vrm.scheduling.orderings.queue import JobQueue
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.scheduler import Scheduler, Start

__all__ = ["Dispatcher", "JobQueue", "PolicyError", "Scheduler", "Start", "combine",
           "make_backfilling", "make_ordering", "make_policy"]
