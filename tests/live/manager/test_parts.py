"""Each part of the manager by itself: with a real state and journal, and an executor that a test plays (`executor`)."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Mapping

import pytest
from support.executor import Managed, asked, root  # noqa: F401

from vrm.config.schema import load
from vrm.live.manager.manager import Manager
from vrm.live.manager.part import NodeClosed, JobLaunched, CommandHandler, Part, ProgramPrepared, StateWritten, RunStopping
from vrm.live.nodes.node_watch import NodeUncertain
from vrm.live.site.setup import prepare
from vrm.run.rundir import RunDirectory
from vrm.scheduling import PolicyError


class Greeter(Part):
    """A part of somebody else's; `calls` are the hooks that were called."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def look(self, now: float, files: bool) -> None:
        self.calls.append(("look", now, files))

    def act(self, now: float) -> None:
        self.calls.append("act")

    def tidy(self, now: float) -> None:
        self.calls.append("tidy")

    def leave(self) -> None:
        self.calls.append("leave")

    def commands(self) -> Mapping[str, CommandHandler]:
        return {"greet": lambda command, name: {"ok": True, "text": f"hello {command['whom']}"}}

    def observe(self, event: object) -> None:
        self.calls.append(event)


def test_another_part_needs_only_to_be_put_into_the_list(root: Path) -> None:
    greeter = Greeter()
    managed = Managed(root, "ok.x 1 9 0", further=[greeter])
    managed.turn(1.0)
    started = JobLaunched(managed.state.entry(0).job)
    prepared = greeter.calls.pop(1)
    assert isinstance(prepared, ProgramPrepared) and (prepared.booking.job, prepared.program.name) == (started.job, "ok.x")
    assert greeter.calls == [("look", 1.0, False), started, "act", StateWritten(1.0), "tidy"] and list(managed.live.running) == [0]
    assert asked(managed, 2.0, do="greet", whom="you")["text"] == "hello you"
    assert "there is no command wave" in asked(managed, 2.0, do="wave")["text"]
    greeter.calls.clear()
    managed.agents.says.append(NodeUncertain(1, "it is silent"))
    managed.manager.nodes.look(3.0, False)
    managed.manager.stopping.stop("a test", kill=False)
    assert greeter.calls == [NodeClosed(1), NodeUncertain(1, "it is silent"), RunStopping()]
    managed.close()


def test_all_parts_leave_however_the_manager_ends(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greeter = Greeter()
    Managed(root).close()
    settings = load(root / "vrm.yaml")
    manager = Manager(settings, prepare(settings), RunDirectory.of(settings), lambda kind, text: None, further=[greeter])

    def fails() -> None:
        raise PolicyError("a policy fails")

    monkeypatch.setattr(manager, "_loop", fails)
    with pytest.raises(PolicyError, match="a policy fails"):
        manager.run()
    assert greeter.calls == ["leave"]
