"""The files between `vrm submit|cancel|stop` and the manager, and who owns a run's directory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conftest import wait_until
from vrm.live import control
from vrm.live.rundir import RunDirectory, RunError
from vrm.system import files
from vrm.system.files import write_atomically


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run", tmp_path / "log", tmp_path / "run" / "state")
    run.create()
    return run


def test_commands_come_in_order_and_are_answered(run: RunDirectory) -> None:
    names = [control.send(run, {"do": "cancel", "id": number}) for number in range(20)]
    taken = list(control.take(run))
    assert [name for name, _ in taken] == names
    assert [command["id"] for _, command in taken] == list(range(20))
    control.answer(run, names[3], {"ok": True, "text": "done"})
    assert control.wait_reply(run, names[3], 0) == {"ok": True, "text": "done"}
    assert names[3] not in [name for name, _ in control.take(run)]
    assert control.wait_reply(run, names[4], 0) is None
    assert control.withdraw(run, names[4]) and not control.withdraw(run, names[4])


@pytest.mark.parametrize("text", ["", "{", "[]", '"stop"', '{"do": 3}', "x" * (1 << 20 | 1)])
def test_what_is_no_command_is_told_as_such(run: RunDirectory, text: str) -> None:
    (run.commands / "1").write_text(text)
    (_, command), = control.take(run)
    assert command["do"] == "invalid"


def test_a_command_of_another_user_is_refused(run: RunDirectory) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    control.send(run, {"do": "stop"})
    name, = os.listdir(run.commands)
    os.chown(run.commands / name, 65534, 65534)
    (_, command), = control.take(run)
    assert command["do"] == "invalid" and "not a file of this user" in command["why"]


def test_a_link_to_a_file_of_another_place_is_only_read_as_a_command(run: RunDirectory) -> None:
    (run.commands / "1").symlink_to("/etc/passwd")
    (_, command), = control.take(run)
    assert command["do"] == "invalid"
    control.answer(run, "1", {"ok": False, "text": ""})
    assert Path("/etc/passwd").exists() and not (run.commands / "1").is_symlink()


def test_one_owner_at_a_time_also_after_a_kill(run: RunDirectory) -> None:
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from vrm.live.rundir import RunDirectory
        run = RunDirectory(*map(Path, {[str(run.directory), str(run.log), str(run.state)]}))
        with run.owned():
            print("owned", flush=True)
            sys.stdin.read()
        """)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "owned\n"
        assert run.manager_runs()
        with pytest.raises(RunError, match=f"pid {holder.pid} on"):
            with run.owned():
                pass
    finally:
        holder.kill()
        holder.communicate()
    wait_until(lambda: not run.manager_runs(), "the lock is free after a kill")
    with run.owned():
        assert run.manager_runs()
    assert not run.manager_runs()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = RunDirectory(tmp_path / "file" / "run", tmp_path, tmp_path / "state")
    with pytest.raises(RunError, match="set Log, State or Directory"):
        run.create()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "state"
    write_atomically(path, "old")

    def full(path: Path, text: str, private: bool) -> None:
        path.write_text(text[:1])
        raise OSError(28, "full")

    monkeypatch.setattr(files, "write_new", full)
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["state"]
