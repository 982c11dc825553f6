"""Command files: each is carried out once and answered. With a real state and journal (`support.executor`)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.executor import Managed, asked, root  # noqa: F401

from vrm.run import command_files


def test_a_command_is_obeyed_once_also_by_the_next_manager(root: Path) -> None:
    managed = Managed(root)
    assert asked(managed, 1.0, do="submit", line="ok.x 1 9") == {"ok": True, "id": 0, "ids": [0], "text": "job 0: ok.x waits"}
    name, = (values["command"] for event, values in managed.events if event == "job")
    managed.close()
    again = Managed(root, now=2.0)
    (again.run.commands / name).write_text(json.dumps({"do": "submit", "line": "ok.x 1 9"}))
    again.turn(3.0, files=True)
    reply = command_files.wait_reply(again.run, name, 0)
    assert reply is not None and reply["text"] == "job 0: accepted before the manager was restarted"
    assert len(again.state.book.entries) == 1
    again.close()


def test_what_is_no_command_is_answered_or_put_aside(root: Path) -> None:
    managed = Managed(root)
    assert asked(managed, 1.0, do="dance") == {"ok": False, "text": "not understood: there is no command dance"}
    assert not asked(managed, 2.0, do="cancel", ids=7)["ok"]
    (managed.run.commands / "made-by-hand").write_text("{")
    managed.turn(3.0, files=True)
    assert any("the command file made-by-hand is ignored" in text for text in managed.said)
    said = len(managed.said)
    managed.turn(4.0, files=True)
    assert len(managed.said) == said, "it is met once"
    managed.close()


@pytest.mark.parametrize("call", ["mkdir", "rename", "open"])
def test_a_command_file_that_a_full_disk_cannot_move_is_moved_later(root: Path, call: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same manager; somebody waits for an answer."""
    managed = Managed(root)
    (managed.run.commands / "torn").write_text("{")
    real = getattr(os, call)

    def full(path: Any, *words: Any, **more: Any) -> Any:
        if "refused" in str((path, *words)) or "replies" in str((path, *words)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        for moment in (1.0, 2.0):
            managed.turn(moment, files=True)
    assert sum("No space left" in text for text in managed.said) == 1 and (managed.run.commands / "torn").exists()
    managed.turn(3.0, files=True)
    assert not (managed.run.commands / "torn").exists()
    reply = command_files.wait_reply(managed.run, "torn", 0)
    assert reply is not None and "it is not JSON" in reply["text"]
    managed.close()


def test_a_command_is_answered_when_what_it_did_is_on_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = Managed(root)
    answer, pending = command_files.answer, list[bool]()

    def noted(*words: Any) -> None:
        pending.append(bool(managed.live.journal.pending))
        answer(*words)
    monkeypatch.setattr(command_files, "answer", noted)
    assert asked(managed, 1.0, do="submit", line="ok.x 1 9 hold=1")["ok"] and managed.found == ["job"]
    assert pending == [False]
    managed.close()
