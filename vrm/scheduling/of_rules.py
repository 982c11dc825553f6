"""From what is said about how a run schedules to who decides."""

from __future__ import annotations

from typing import Callable, Optional

from vrm.model.cluster import Cluster
from vrm.model.heatmap import Heatmap
from vrm.model.rules import Rules
from vrm.scheduling.backfilling import make_backfilling
from vrm.scheduling.ordering import make_ordering
from vrm.scheduling.placement import make_policy
from vrm.scheduling.power_cap import check_energy, under_cap
from vrm.scheduling.scheduler import Scheduler


def scheduler_of(rules: Rules, cluster: Cluster, heatmap: Optional[Heatmap] = None) -> Scheduler:
    """The scheduler of these rules, whose policies are names, for a cluster. Raises PolicyError for
    rules that do not go together, and for names that there are not."""
    dispatcher = make_backfilling(rules.backfill, rules.backfill_order, rules.starvation)
    check_energy(dispatcher, cluster)
    return Scheduler(
        make_ordering(rules.algorithm), dispatcher,
        under_cap(make_policy(rules.policy, cluster, heatmap, rules.node_order), rules.power_cap,
                  cluster), rules.interval,
        rules.starts_per_interval, rules.queues)


def maker(rules: Rules, heatmap: Optional[Heatmap] = None) -> Callable[[Cluster], Scheduler]:
    """The same for a cluster that is yet to come."""
    return lambda cluster: scheduler_of(rules, cluster, heatmap)
