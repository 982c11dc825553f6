"""The part that moves cores between jobs. With a real state and journal (`support.executor`)."""

from __future__ import annotations

from pathlib import Path

from support.executor import Managed, asked, root  # noqa: F401


def test_a_malleable_job_lends_and_has_its_cores_again(root: Path) -> None:
    managed = Managed(root, "ok.x 1 100 0 cores=4 malleable=1", "ok.x 1 50 0 cores=4", Nodes=1)
    managed.start(1.0)
    assert asked(managed, 2.0, do="lend", id=1, cores=1) == {"ok": False, "text": "job 1 does not run: it is queued"}
    assert not asked(managed, 2.0, do="lend", id=0, cores=9)["ok"]
    lent = asked(managed, 3.0, do="lend", id=0, cores=1)
    assert lent["ok"] and len(managed.agents.orders) == 1, lent
    back = asked(managed, 4.0, do="lend", id=0, back=True)
    assert back["ok"], back
    managed.close()


def test_a_job_that_is_not_malleable_lends_nothing(root: Path) -> None:
    managed = Managed(root, "ok.x 1 100 0 cores=4", Nodes=1)
    managed.start(1.0)
    assert not asked(managed, 2.0, do="lend", id=0, cores=1)["ok"] and not managed.agents.orders
    managed.close()
