"""The part that looks after the process of forecasts. With a real state and journal (`support.executor`)."""

from __future__ import annotations

import selectors
from pathlib import Path

import pytest
from support.executor import Managed, root  # noqa: F401

from vrm.ext.forecast.live.part import Forecasts


@pytest.mark.parametrize("wanted", [True, False])
def test_the_state_is_shown_to_the_forecaster_where_forecasts_are_wanted(root: Path, wanted: bool) -> None:
    managed = Managed(root, Forecast=wanted)
    part, = (each for each in managed.manager.parts if isinstance(each, Forecasts))
    with selectors.DefaultSelector() as selector:
        part.begin(selector)
    managed.live.dirty = False
    part.look(managed.live.now + 1e6, False)
    assert managed.live.dirty is wanted, "so that it gets its first report"
    managed.live.dirty = False
    part.look(managed.live.now + 2e6, False)
    assert not managed.live.dirty
    assert managed.live.start_of is not None, "who asks when a job would start is answered, too"
    part.leave()
    managed.close()
