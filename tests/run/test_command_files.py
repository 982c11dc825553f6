"""The files between `vrm submit|cancel|stop` and the manager, and who owns a run's directory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conftest import Site, wait_until
from support.executor import Managed
from vrm.run import command_files
from vrm.run.rundir import RunDirectory
from vrm.system import files
from vrm.system.errors import RunError
from vrm.system.files import write_atomically
from vrm.system.hosts import boot_id


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run", tmp_path / "log", tmp_path / "run" / "state")
    run.create()
    return run


def test_commands_come_in_order_and_are_answered(run: RunDirectory) -> None:
    names = [command_files.send(run, {"do": "cancel", "id": number}) for number in range(20)]
    taken = list(command_files.take(run))
    assert [name for name, _ in taken] == names
    assert [command["id"] for _, command in taken] == list(range(20))
    command_files.answer(run, names[3], {"ok": True, "text": "done"})
    assert command_files.wait_reply(run, names[3], 0) == {"ok": True, "text": "done"}
    assert names[3] not in [name for name, _ in command_files.take(run)]
    assert command_files.wait_reply(run, names[4], 0) is None
    assert command_files.withdraw(run, names[4]) and not command_files.withdraw(run, names[4])


def test_a_command_is_there_as_a_whole_or_not_at_all(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt
    for name in ("rename", "replace", "link"):
        monkeypatch.setattr(os, name, killed)
    with pytest.raises(KeyboardInterrupt):
        command_files.send(run, {"do": "submit", "line": "a 1 9"})
    assert list(command_files.take(run)) == []


def test_a_command_whose_answer_is_there_is_not_carried_out_again(run: RunDirectory) -> None:
    """A manager may be killed when it has answered, and before it has removed the command."""
    for reads_first in (True, False):
        name = command_files.send(run, {"do": "submit", "line": "a 1 9"})
        (run.replies / name).write_text('{"ok": false, "text": "no"}')
        if reads_first:
            assert command_files.wait_reply(run, name, 0) == {"ok": False, "text": "no"}
        assert list(command_files.take(run)) == [] and not (run.commands / name).exists()
        assert reads_first or command_files.wait_reply(run, name, 0) == {"ok": False, "text": "no"}


def test_what_a_manager_carries_out_is_not_taken_back(run: RunDirectory) -> None:
    """It may be stopped between the two, for longer than a client waits (seed 795830863443 of the world)."""
    name = command_files.send(run, {"do": "submit", "line": "a 1 9"})
    claim = command_files.claim(run, name)
    assert claim is not None and command_files.claim(run, name) is None
    assert not command_files.withdraw(run, name) and (run.commands / name).exists()
    assert command_files.answered(run, name, 0.0, 0.0) == {"ok": False, "text": command_files.TAKEN}
    os.close(claim)  # as the end of the manager does
    assert command_files.withdraw(run, name) and command_files.claim(run, name) is None
    assert command_files.answered(run, name, 0.0, 0.0) is None


def test_a_command_that_is_being_taken_back_is_not_carried_out(run: RunDirectory, monkeypatch: pytest.MonkeyPatch
                                                               ) -> None:
    """The manager has opened its file in the moment before."""
    name = command_files.send(run, {"do": "stop"})
    lock = command_files.fcntl.flock

    def first(handle: int, how: int) -> None:
        (run.commands / name).unlink()
        lock(handle, how)
    monkeypatch.setattr(command_files.fcntl, "flock", first)
    assert command_files.claim(run, name) is None


def test_a_command_that_the_death_of_the_machine_brings_back_is_not_carried_out(run: RunDirectory) -> None:
    """It may have been refused, or taken back: its files are as they were before (seed 795823051152 of the world)."""
    before = command_files.send(run, {"do": "submit", "line": "a 1 9"})
    left = command_files.send(run, {"do": "submit", "line": "a 1 9", "unasked": True})
    assert [name for name, _ in command_files.take(run, boot_id())] == [before, left], "who gave it is there"
    elsewhere = "0.elsewhere"
    (run.commands / elsewhere).write_text('{"do": "stop", "host": "elsewhere", "boot": "other"}')
    (run.commands / "1.by-hand").write_text('{"do": "stop"}')
    for path in run.commands.iterdir():
        path.chmod(0o600)
    assert [name for name, _ in command_files.take(run, "the next start")] == [elsewhere, left, "1.by-hand"]
    assert not (run.commands / before).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '"stop"', '{"do": 3}', "x" * (1 << 20 | 1)])
def test_what_is_no_command_is_told_as_such(run: RunDirectory, text: str) -> None:
    (run.commands / "1").write_text(text)
    (_, command), = command_files.take(run)
    assert command["do"] == "invalid"


def test_a_command_of_another_user_is_refused(run: RunDirectory) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    command_files.send(run, {"do": "stop"})
    name, = os.listdir(run.commands)
    os.chown(run.commands / name, 65534, 65534)
    (_, command), = command_files.take(run)
    assert command["do"] == "invalid" and "belongs to" in command["why"]


def test_a_link_to_a_file_of_another_place_is_only_read_as_a_command(run: RunDirectory) -> None:
    (run.commands / "1").symlink_to("/etc/passwd")
    (_, command), = command_files.take(run)
    assert command["do"] == "invalid"
    command_files.answer(run, "1", {"ok": False, "text": ""})
    assert Path("/etc/passwd").exists() and not (run.commands / "1").is_symlink()


def test_one_owner_at_a_time_also_after_a_kill(run: RunDirectory) -> None:
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from vrm.run.rundir import RunDirectory
        run = RunDirectory(*map(Path, {[str(run.directory), str(run.log), str(run.state)]}))
        with run.owned():
            print("owned", flush=True)
            sys.stdin.read()
        """)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "owned\n"
        assert run.manager_runs()
        with pytest.raises(RunError, match=f"pid {holder.pid} on"), run.owned():
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


def test_a_command_that_was_taken_back_is_none(run: RunDirectory, monkeypatch) -> None:
    command_files.send(run, {"do": "stop"})
    name, = os.listdir(run.commands)
    command_files.withdraw(run, name)
    monkeypatch.setattr(os, "listdir", lambda path: [name])
    assert list(command_files.take(run)) == []


def test_stop_does_not_wait_for_a_manager_that_has_ended(site: Site) -> None:
    run = RunDirectory(site.log, site.log, site.log / "state")
    run.create()
    with run.owned():
        stop = site.start("stop")
        wait_until(lambda: os.listdir(run.commands), "it has asked")
    assert stop.wait(command_files.NEXT / 2) == 0 and site.said(stop) == "the manager has ended\n"
    assert not os.listdir(run.commands)


def test_what_is_put_aside_is_answered_and_kept(run: RunDirectory) -> None:
    (run.commands / "1").write_text("[")
    aside = command_files.reject_file(run, "1", "it is not JSON")
    assert aside.read_text() == "[" and aside.parent == run.directory / "refused"
    assert "not JSON" in command_files.wait_reply(run, "1", 0)["text"]
    assert list(command_files.take(run)) == [] and aside.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("ids", [["0-99999"] + [f"0-{n}" for n in range(99000, 99999)],
                                 [str(n) for n in range(100)] * 3])
def test_ids_cost_no_more_than_a_run_has(ids) -> None:
    import time
    began = time.process_time()
    try:
        assert len(command_files.chosen({"ids": ids}, range(10))[0]) == 100
    except ValueError as error:
        assert "more jobs than a run has" in str(error)
    assert time.process_time() - began < 5


def test_no_command_file_stops_a_run(site: Site) -> None:
    """Each is put aside with a reason, or answered, and the run goes on to its end."""
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "exit 0\n")
    site.lines(end=False)
    manager = site.start("--wait")
    wait_until(site.state, "the manager runs")
    commands, replies = site.log / "commands", site.log / "replies"
    for number, text in enumerate([
            '{"do":"submit","line":5}', "[" * 200000, '{"do":' * 100000, '{"do":"submit"}',
            '{"do":"cancel","ids":{"a":1}}', '{"do":"cancel","ids":5}', '{"do":"hold","id":[]}',
            '{"do":"stop","now":[]', '{"do":"requeue","ids":["99999999999999999999"]}', "\xff\0",
            '{"do":"submit","line":"\\ud800 1 1 0"}', '{"do":"submit","line":""}',
            '{"do":"x\\u001b[31m"}', '{"do":"cancel","ids":[' + "9" * 5000 + "]}"]):
        (commands / f"{number:03d}").write_text(text)
    (commands / "directory").mkdir()
    (commands / "directory" / "full").touch()
    os.mkfifo(commands / "pipe")
    (commands / ("n" * 250)).write_text('{"do":"stop"}')
    (commands / "link").symlink_to("/etc/passwd")
    (commands / "bad\udcff\x1bname").write_text("{")
    (replies / "taken" / "full").mkdir(parents=True)
    (commands / "taken").write_text('{"do":"hold","id":7}')
    wait_until(lambda: not os.listdir(commands), "they are out of the way")
    assert site.run("submit", "ok.x", "1", "9").returncode == 0
    assert site.run("stop").returncode == 0
    said = site.finish(manager)
    assert site.statuses() == {0: "completed"} and manager.returncode == 0
    assert "Traceback" not in said and "\x1b" not in said and said.count("is ignored") >= 8
    assert "is a pipe where a file belongs" in said and "its name is too long" in said
    replies = {path.name for path in replies.iterdir()}
    assert {"000", "001", "003", "012"} <= replies


def test_a_command_at_which_vrm_fails_is_met_once(tmp_path: Path, monkeypatch) -> None:
    """Whatever a defect of vrm's makes of a command, the next manager does not meet it again."""
    managed = Managed(tmp_path / "run")
    run = managed.run
    (run.commands / "1").write_text('{"do":"stop"}')
    monkeypatch.setattr(managed.manager.orders, "carry_out_command", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        managed.manager.orders.look(0.0, True)
    managed.close()
    assert not os.listdir(run.commands) and len(os.listdir(run.directory / "refused")) == 1
