"""Files of a run are one's own: links, pipes, directories and files of others under their names are
found when they are opened, with the fix in one message; never followed, never waited for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from collections.abc import Callable

import pytest

from conftest import Site, wait_until
from vrm.cli import main
from vrm.live.launch.base import head, tail
from vrm.live.spawn.records import Marker, RecordError
from vrm.results.job_columns import NAMES
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError
from vrm.system.files import naming, open_own, read_own, write_atomically, write_new
from vrm.workload.writer_marker import marker_path, writer_of

Plant = Callable[[Path], object]

PLANTS: dict[str, Plant] = {
    "symbolic link": lambda path: path.symlink_to(path.with_name("target")),
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
}
"""What can be there instead of a file, by the word in the message."""


@pytest.fixture(params=list(PLANTS))
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Plant]:
    (tmp_path / "target").write_text("precious")
    return request.param, PLANTS[request.param]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT])
def test_what_is_no_file_is_named_and_not_opened(tmp_path: Path, planted: tuple[str, Plant],
                                                 flags: int) -> None:
    word, plant = planted
    path = tmp_path / "file"
    plant(path)
    with pytest.raises(OSError, match=word) as found:
        open_own(path, flags)
    assert found.value.filename == str(path)
    assert (tmp_path / "target").read_text() == "precious"


def test_files_of_others_and_with_other_names(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.close(open_own(path, os.O_RDWR | os.O_CREAT))
    assert path.stat().st_mode & 0o777 == 0o600
    os.link(path, tmp_path / "other name")
    assert read_own(path) == b""
    with pytest.raises(OSError, match="hard links"):
        open_own(path, os.O_RDWR)
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    os.chown(path, 64001, 64001)
    with pytest.raises(OSError, match="belongs to user 64001"):
        read_own(path)


def test_a_file_that_is_too_long_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    assert read_own(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="longer than 4 bytes"):
        read_own(tmp_path / "file", 4)


def test_a_new_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "file").symlink_to("target")
    write_new(tmp_path / "file", "new", private=True)
    write_new(tmp_path / "file", "newer", private=True)
    assert not (tmp_path / "file").is_symlink() and (tmp_path / "file").read_text() == "newer"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    (tmp_path / "state").symlink_to("target")
    write_atomically(tmp_path / "state", "new")
    assert (tmp_path / "target").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["file", "state", "target"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError) as found, naming(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert found.value.filename == str(tmp_path) and found.value.errno == errno.ENOSPC


@pytest.mark.parametrize("name", ["journal", "jobs.csv", "lock", "state"])
def test_a_run_begins_with_files_only(tmp_path: Path, planted: tuple[str, Plant],
                                      name: str) -> None:
    word, plant = planted
    run = RunDirectory(tmp_path, tmp_path, tmp_path / "state")
    plant(tmp_path / name)
    with pytest.raises(RunError, match=f"{name} is a {word}"):
        run.create()
    assert (tmp_path / "target").read_text() == "precious"


@pytest.mark.parametrize("name", ["pids", "commands", "replies", "ended", "rankfiles"])
def test_the_directories_of_a_run_are_no_links(tmp_path: Path, name: str) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / name).symlink_to("target")
    with pytest.raises(RunError, match=f"{name} is not a directory of your own"):
        RunDirectory(tmp_path, tmp_path, tmp_path / "state").create()


def test_a_marker_of_a_queue_s_writer_is_not_waited_for(tmp_path: Path,
                                                        planted: tuple[str, Plant]) -> None:
    word, plant = planted
    plant(marker_path(tmp_path / "queue"))
    found = writer_of(tmp_path / "queue", 0.0)
    assert found.state == "none" and word in found.reason


def test_a_job_s_files_are_not_waited_for(tmp_path: Path, planted: tuple[str, Plant]) -> None:
    plant = planted[1]
    plant(tmp_path / "out")
    assert tail(tmp_path / "out") == head(tmp_path / "out", 1) == ""
    with pytest.raises(RecordError):
        Marker.read(tmp_path / "out")


@pytest.mark.parametrize("text", [
    '{"id": 1, "pid": "x", "started": 1, "boot": "b", "host": "h", "time": 1}',
    '{"id": 1, "pid": 0, "started": 1, "boot": "b", "host": "h", "time": 1}',
    '{"id": 1, "pid": 5, "started": 1, "boot": [], "host": "h", "time": 1}', "[" * 100000])
def test_a_marker_of_the_wrong_kinds_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "1").write_text(text + "\n")
    with pytest.raises(RecordError):
        Marker.read(tmp_path / "1")


# The real vrm.


def test_outputs_go_through_no_link_and_wait_for_no_pipe(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "echo ran\n")
    site.lines("ok.x 1 9 0", "ok.x 1 9 0", "ok.x 1 9 0")
    site.log.mkdir(mode=0o700)
    precious = site.root / "precious"
    precious.write_text("precious")
    (site.log / "ok.x.0.o").symlink_to(precious)
    os.mkfifo(site.log / "ok.x.1.e")
    site.run()
    assert site.statuses() == {0: "failed", 1: "failed", 2: "completed"}
    assert "ok.x.0.o" in site.rows()[0].reason and "ok.x.1.e" in site.rows()[1].reason
    assert precious.read_text() == "precious"


def test_a_pipe_as_the_marker_of_the_queue_blocks_nobody(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 9 0")
    os.mkfifo(marker_path(site.queue))
    assert site.run().returncode == 0 and site.statuses() == {0: "completed"}


def test_a_full_disk_at_the_start_is_named(site: Site) -> None:
    """With the file; what could be written before is taken up when there is room again."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 9 0")
    site.log.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k,mode=700", "none",
                              str(site.log)], stderr=subprocess.PIPE, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    try:
        ballast = site.log / "ballast"
        with contextlib.suppress(OSError):
            ballast.write_bytes(bytes(1 << 20))
        manager = site.start()
        wait_until(lambda: "No space left on device" in site.said(manager), "it is told")
        wait_until(lambda: re.search(rf"{site.log}/\S+: No space", site.said(manager)),
                   "with the file's name")
        ballast.unlink()
        if site.finish(manager) and manager.returncode == 2:  # it could not even begin
            assert site.run().returncode == 0
        assert site.statuses() == {0: "completed"}
    finally:
        subprocess.run(["umount", str(site.log)], check=True)


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    run = RunDirectory(tmp_path, tmp_path, tmp_path / "state")
    run.create()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError) as found, run.owned():
        pass
    assert found.value.filename == str(run.lock)


@pytest.mark.parametrize("keys, words", [
    ({"Sockets": 9999999999999}, "1 to 1000000"),
    ({"Nodes": 100000, "Sockets": 1000, "Cores": 1000, "Emulate": True}, "more than 10000000 cores"),
    ({"Launcher": {"Kind": "os:system"}}, "Launcher.Kind: `os:system` failed"),
    ({"Launcher": {"Kind": "json:loads"}}, "Launcher.Kind: `json:loads` failed")])
@pytest.mark.parametrize("command", [["--once"], ["doctor"]])
def test_a_configuration_that_asks_for_too_much(site: Site, keys: dict[str, Any], words: str,
                                                command: list[str]) -> None:
    site.config(**{"Launcher": {"Kind": "direct"}, **keys})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 9 0")
    done = site.run(*command)
    assert done.returncode == 2 and words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("command", [["compare"], ["report"], ["validate", "--known", "actual"]])
@pytest.mark.parametrize("cell", ["inf", "-1", "\x1b[31mred", "n0:0/9-1"])
def test_odd_cells_of_jobs_csv(tmp_path: Path, command: list[str], cell: str,
                               capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, and nothing that a terminal would obey."""
    line = f"1,a.x,2,1,2,3,9,completed,0,,0,0,n0,n0:0/0-1,{cell},{cell}\n"
    for column in ("id", "cores", "procs", "end", "status", "app"):
        cells = line.split(",")
        cells[NAMES.index(column)] = cell
        (tmp_path / "jobs.csv").write_text(",".join(NAMES[:16]) + "\n" + ",".join(cells))
        assert main([*command, str(tmp_path)]) in (0, 2)
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out + printed.err


def test_a_damaged_list_of_jobs_is_named_when_a_run_goes_on(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 9 0", end=False)
    manager = site.start()
    wait_until(lambda: (site.log / "jobs.csv").exists() and site.statuses(), "it has ended")
    manager.kill()
    manager.wait()
    jobs = site.log / "jobs.csv"
    jobs.write_text(jobs.read_text().replace(",completed,", ",\x1b[31m,"))
    done = site.run("--once")
    assert done.returncode == 2 and f"{jobs}:2: " in done.stderr and "move the file" in done.stderr
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr
    jobs.unlink()  # as the message says
    assert site.run("--once").returncode == 0 and site.statuses() == {0: "completed"}
