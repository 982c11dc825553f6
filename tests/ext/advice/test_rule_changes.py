"""The part that changes the rules of a run. With a real state and journal (`support.executor`)."""

from __future__ import annotations

from pathlib import Path

from support.executor import Managed, asked, root  # noqa: F401


def test_other_rules_decide_and_the_next_manager_goes_on_with_them(root: Path) -> None:
    managed = Managed(root)
    before = managed.live.rules
    reply = asked(managed, 1.0, do="rules", rules={"algorithm": "SJF"}, reason="a test")
    assert reply["ok"] and reply["text"].startswith("from now on SJF + EASY")
    assert managed.live.rules.algorithm == managed.live.scheduler.ordering.name == "SJF" != before.algorithm
    stale = asked(managed, 2.0, do="rules", rules={"algorithm": "LJF"}, reason="a test", instead=before.record())
    assert stale == {"ok": False, "text": "the rules stay as they are: they were changed in the meantime"}
    for wrong in ({"algorithm": "nobody's"}, {"kill": True}):
        assert not asked(managed, 3.0, do="rules", rules=wrong, reason="a test")["ok"]
    managed.close()
    again = Managed(root, now=4.0)
    assert again.live.scheduler.ordering.name == "SJF"
    again.close()
