"""The part that has a process look for better rules. With a real state and journal (`support.executor`)."""

from __future__ import annotations

import selectors
from pathlib import Path

import psutil
import pytest
from support.executor import Managed, root  # noqa: F401

from vrm.ext.advice.part import AdviserProcess


@pytest.mark.parametrize("algorithm", ["advised", "FCFS"])
def test_the_process_is_there_under_advised_alone_and_ends_with_the_manager(root: Path, algorithm: str) -> None:
    managed = Managed(root, Scheduling={"Algorithm": algorithm})
    part, = (each for each in managed.manager.parts if isinstance(each, AdviserProcess))
    before = {*psutil.Process().children()}
    with selectors.DefaultSelector() as selector:
        part.begin(selector)
    made = {*psutil.Process().children()} - before
    assert len(made) == (algorithm == "advised")
    part.leave()
    assert not any(process.is_running() for process in made)
    managed.close()
