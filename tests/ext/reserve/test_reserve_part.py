"""The part that makes reservations. With a real state and journal (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.executor import Managed, asked, root, states  # noqa: F401

WANTED: dict[str, Any] = {"begin": 100.0, "end": 200.0, "nodes": ["n0", "n1"], "jobs": [], "number": 0, "name": "all"}


def test_nodes_are_kept_for_a_time_and_free_again_when_it_is_cancelled(root: Path) -> None:
    managed = Managed(root, "ok.x 1 150")
    made = asked(managed, 1.0, do="reserve", **WANTED)
    assert made["ok"] and made["nodes"] == ["n0", "n1"] and made["text"].startswith("reservation all: n[0-1] from ")
    managed.start(2.0)
    assert states(managed) == ["queued"], "it would reach into it"
    assert not asked(managed, 3.0, do="reserve", **WANTED)["ok"], "the nodes are kept already"
    assert asked(managed, 4.0, do="unreserve", which="all") == {"ok": True, "text": "reservation all is cancelled"}
    managed.start(5.0)
    assert states(managed) == ["running"]
    assert not asked(managed, 6.0, do="unreserve", which="all")["ok"]
    managed.close()
