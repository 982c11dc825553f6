"""Builds the scheduler of a run from its rules. Live runs, simulations and forecasts all do it here."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Iterable, Mapping

from vrm.model.cluster import Cluster
from vrm.model.measured.heatmap import Heatmap
from vrm.model.policies import CountingPolicy
from vrm.model.queues import Queues
from vrm.model.rules import KEYS, KINDS, WORDS, Rules
from vrm.scheduling.extension_keys import values
from vrm.scheduling.placement.constrained import CONSTRAINTS, constrained, constraint
from vrm.scheduling.backfilling.dispatchers import make_backfilling, with_order
from vrm.scheduling.placement.user_placement import make_policy, placement_of
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.placement.node_orders import AUTO
from vrm.scheduling.orderings.ordering import Ordering, make_ordering, own_ordering
from vrm.scheduling.backfilling.user_dispatcher import own_dispatcher
from vrm.scheduling.registry import PolicyError, guarded, own_name, shortened
from vrm.scheduling.scheduler import Scheduler


class RulesError(PolicyError):
    """Rules with which nothing can be scheduled. `wrong` maps each wrong field of `Rules`, or `energy` (the
    measurements of programs), to a text; the message is the first of these texts."""

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__(next(iter(wrong.values())))
        self.wrong = wrong


def compose(rules: Rules, machine: Cluster, heatmap: Heatmap | None = None,
            declared: Iterable[str] = ()) -> Scheduler:
    """Return the scheduler that these rules describe, for a machine.

    The policies of the rules are names, as in the configuration, or objects: an `Ordering` or a function
    `utility(job, now, nodes)`, an object with `schedule(step)`, a function `policy(cluster, heatmap)`. `heatmap`
    orders nodes under the policy strip. `declared` are energy classes of nodes that are not in the machine now. The
    constraints of the rules are added to the machine, and an ordering that is a `Watcher` observes it.

    Raises RulesError with all wrong fields, and PolicyError for values that no field can have.
    """
    rules = checked(rules)
    wrong = _FieldErrors()
    ordering = wrong.unless("algorithm", _ordering, rules.algorithm)
    dispatcher = backfilling = wrong.unless("backfill", _dispatcher, rules.backfill)
    for field, factor in (("backfill_order", 0.0), ("starvation", rules.starvation)):
        backfilling = backfilling and wrong.unless(field, with_order, backfilling, rules.backfill_order, factor)
    policy = wrong.unless("policy", _placement, rules, machine, heatmap, AUTO)
    if rules.node_order != AUTO:
        policy = policy and wrong.unless("node_order", _placement, rules, machine, heatmap, rules.node_order)
    constraints = []
    if rules.power_cap and policy:
        constraints.append(wrong.unless("power_cap", constraint, "PowerCap", rules.power_cap, machine))
    for name, value in (wrong.unless("extensions", values, rules.extensions) or {}).items():
        if CONSTRAINTS.knows(name):
            constraints.append(wrong.unless("extensions", constraint, name, value, machine))
    policy = policy and constrained(policy, filter(None, constraints), machine)
    wrong.unless("energy" if machine.programs else "backfill", _check_energy, dispatcher, machine, declared)
    if not 0 <= rules.interval < math.inf:
        wrong["interval"] = f"interval={rules.interval!r}: give seconds from 0 on"
    scheduler: Scheduler | None = None if wrong else wrong.unless(
        "starts_per_interval", Scheduler, ordering, backfilling, policy, rules.interval, rules.starts_per_interval,
        rules.queues)
    if scheduler is None:
        raise RulesError(wrong)
    scheduler.ordering.observe(machine)
    return scheduler


def checked(rules: Rules) -> Rules:
    """Return the rules with `Queues` instead of a mapping by name (`{"debug": {"max_running": 2}}`). Raises
    PolicyError for wrong queues, for a word that a field cannot have, and for rules that are none."""
    if not isinstance(rules, Rules):
        raise PolicyError(f"rules: expected Rules, such as Rules(algorithm=\"SJF\"), got {shortened(rules)}")
    try:
        queues = Queues.of(rules.queues)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"queues: {error}; give keys such as {{'debug': {{'max_running': 2}}}}") from None
    if not KINDS["keys"](rules.extensions):
        raise PolicyError(f"extensions: expected JSON such as {KEYS['extensions'].example}, got {rules.extensions!r}")
    for name, key in KEYS.items():
        if key.kind in WORDS and getattr(rules, name) not in WORDS[key.kind]:
            raise PolicyError(f"{name}: expected {' or '.join(WORDS[key.kind])}, got {getattr(rules, name)!r}")
    return replace(rules, queues=queues)


class _FieldErrors(dict[str, str]):
    """Error messages by field."""

    def unless(self, field: str, make: Callable[..., Any], *given: Any) -> Any:
        """Return `make(*given)`; if it raises PolicyError, store its message for the field and return None."""
        try:
            return make(*given)
        except PolicyError as error:
            self[field] = str(error)
            return None


def _ordering(algorithm: Any) -> Ordering:
    if isinstance(algorithm, Ordering):
        return algorithm
    return make_ordering(algorithm) if isinstance(algorithm, str) else own_ordering(own_name(algorithm), algorithm)


def _dispatcher(backfill: Any) -> Dispatcher:
    if isinstance(backfill, (str, int)):
        return make_backfilling(backfill)
    if isinstance(backfill, Dispatcher):
        return backfill
    if inspect.isclass(backfill):
        backfill = guarded(own_name(backfill), backfill)()
    return own_dispatcher(own_name(backfill), backfill, f"backfill={backfill!r}: give a name, a number of "
                         "reservations, or an object with `schedule(step)`")


def _placement(rules: Rules, machine: Cluster, heatmap: Heatmap | None, order: Any) -> CountingPolicy:
    policy = rules.policy
    if isinstance(policy, str):
        return make_policy(policy, machine, heatmap, order)
    if order != AUTO:
        raise PolicyError(f"node_order={order!r}: your own policy sets the order of nodes")
    return placement_of(own_name(policy), policy(machine, heatmap), machine,
                        f"policy={policy!r}: give a name, or a function that gives an object with `nodes` and `place`")


def _check_energy(dispatcher: Dispatcher | None, cluster: Cluster, declared: Iterable[str] = ()) -> None:
    """Raise PolicyError if the measurements of programs are for other classes than the cluster has (or than are
    `declared`, for nodes that may be elsewhere), or if a dispatcher that needs measurements has none."""
    here = sorted({*declared, *(one.node.power.name for one in cluster.classes if one.node.power is not None)})
    programs = cluster.programs
    if programs and not programs.classes & set(here):
        there = ", ".join(sorted(programs.classes))
        raise PolicyError(
            f"Energy: the nodes are of the class(es) {', '.join(here)}, the database has {there}: correct "
            "Name in the Energy of the node classes, or measure there (vrm energy measure)" if here else
            f"Energy: no node has a class, the database has {there}: write Energy: {{Name: ...}} into the "
            "classes of the machine file, or into NodeClasses")
    if dispatcher is not None and dispatcher.by_energy and not programs:
        raise PolicyError(f"backfilling {dispatcher.name.split()[0]} goes by what was measured of programs: name the "
                          "database (Energy: {Database: FILE}, or --energy FILE; docs/how-to/energy.md)")
