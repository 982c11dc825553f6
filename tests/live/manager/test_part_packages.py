"""Parts that packages add. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
import pytest
from support.executor import Managed, root  # noqa: F401
from vrm.live.manager.part import Part
from vrm.live.manager.part_packages import guarded


class Faulty(Part):
    """Fails in each turn, in `look` behind a change."""

    def __init__(self, managed: Managed) -> None:
        self.journal = managed.live.journal

    def look(self, now: float, files: bool) -> None:
        self.journal.append("note")
        raise RuntimeError("half of it")

    def act(self, now: float) -> None:
        raise RuntimeError("nothing of it")


def test_a_part_of_an_extension_that_fails_is_left_out_but_not_in_half_of_a_change(root: Path) -> None:
    managed = Managed(root)
    part = guarded(Faulty(managed), managed.live)
    with pytest.raises(RuntimeError, match="half of it"):
        part.look(1.0, False)
    part.act(1.0)
    assert "Faulty is left out from here on: its `act` raised RuntimeError: nothing of it" in managed.said[-1]
    part.look(1.0, False)
    managed.close()
