"""Composing a scheduler: one function for names and objects, and all that is wrong is said at once."""

from __future__ import annotations

from typing import Any

import pytest

from vrm.model import Cluster
from vrm.model.queues import Queues
from vrm.model.rules import Rules
from vrm.scheduling import PolicyError
from vrm.scheduling.backfilling.easy import Easy
from vrm.scheduling.compose import RulesError, compose
from vrm.scheduling.placement.user_placement import make_policy


def test_names_and_the_objects_that_they_stand_for() -> None:
    cluster = Cluster.regular(2, 1, 4)
    named = compose(Rules(algorithm="SJF", backfill="easy", policy="compact", backfill_order="saf"), cluster)
    easy = Easy()
    given = compose(Rules(algorithm=named.ordering, backfill=easy, backfill_order="saf",
                          policy=lambda machine, heatmap: make_policy("compact", machine, heatmap)), cluster)
    assert given.ordering is named.ordering and given.dispatcher is easy
    assert type(given.dispatcher) is type(named.dispatcher)
    assert (given.policy.name, given.dispatcher.name) == (named.policy.name, named.dispatcher.name)


def test_all_that_is_wrong_is_said() -> None:
    wrong = Rules(algorithm="shortest", backfill="eamc", policy="everywhere", power_cap="0", interval=-1.0)
    with pytest.raises(RulesError) as found:
        compose(wrong, Cluster.regular(1, 1, 1))
    assert list(found.value.wrong) == ["algorithm", "policy", "backfill", "interval"]
    assert str(found.value) == found.value.wrong["algorithm"]


@pytest.mark.parametrize("field, choices", [
    ("backfill_order", {"backfill": "conservative", "backfill_order": "sjf"}),
    ("starvation", {"backfill": "none", "starvation": 2.0}),
    ("node_order", {"node_order": "sideways"}),
    ("node_order", {"policy": lambda machine, heatmap: make_policy("pack", machine, heatmap),
                    "node_order": "number"}),
    ("power_cap", {"power_cap": "0"}),
    ("interval", {"interval": float("nan")}),
    ("starts_per_interval", {"starts_per_interval": 2}),
])
def test_the_field_that_is_wrong(field: str, choices: dict[str, Any]) -> None:
    with pytest.raises(RulesError) as found:
        compose(Rules(**choices), Cluster.regular(1, 1, 1))
    assert list(found.value.wrong) == [field]


def test_queues_by_name() -> None:
    scheduler = compose(Rules(queues={"debug": {"max_running": 2}}), Cluster.regular(1, 1, 1))
    assert scheduler.queues == Queues.of({"debug": {"max_running": 2}})
    with pytest.raises(PolicyError, match="queues: .*max_running"):
        compose(Rules(queues=3), Cluster.regular(1, 1, 1))
    with pytest.raises(PolicyError, match="events: expected instant or published, got 'pyss'"):
        compose(Rules(events="pyss"), Cluster.regular(1, 1, 1))
