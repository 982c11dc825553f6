"""The part that starts the process of plans. With a real state and journal (`support.executor`)."""

from __future__ import annotations

import selectors
from pathlib import Path

import psutil
import pytest
from support.executor import Managed, root  # noqa: F401

from vrm.ext.planning.part import Plans


@pytest.mark.parametrize("backfilling", ["cp", "easy"])
def test_the_process_is_there_where_plans_are_made_and_ends_with_the_manager(root: Path, backfilling: str) -> None:
    pytest.importorskip("ortools")
    managed = Managed(root, Scheduling={"Backfilling": backfilling})
    part, = (each for each in managed.manager.parts if isinstance(each, Plans))
    before = {*psutil.Process().children()}
    with selectors.DefaultSelector() as selector:
        part.begin(selector)
    made = {*psutil.Process().children()} - before
    assert len(made) == (backfilling == "cp")
    part.leave()
    assert not any(process.is_running() for process in made)
    managed.close()
