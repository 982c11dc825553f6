"""Whose files are obeyed, and who may look into a run: owners, modes, links and directories on the
way; and nothing of a queue line reaches a shell.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from vrm.run import command_files
from vrm.run.rundir import RunDirectory
from vrm.system import trust
from vrm.system.errors import RunError
from vrm.system.trust import distrust, unsafe_variables

NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in a folder of this user."""
    folder = tmp_path / "folder"
    folder.mkdir(0o755)
    path = folder / "file"
    path.write_text("")
    path.chmod(0o644)
    return path


def give(path: Path, uid: int = NOBODY, gid: int = NOBODY) -> None:
    """Make a file that of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    os.chown(path, uid, gid, follow_symlinks=False)


def test_own_files_and_those_of_root_that_nobody_else_writes(file: Path) -> None:
    assert distrust(file) == distrust("/etc/passwd") == distrust(file.parent) == ""
    assert distrust(file.parent / "not there") == ""


def test_who_may_write_it(file: Path) -> None:
    file.chmod(0o646)
    assert distrust(file) == (f"{file} may be written by everybody; chmod o-w, or set Trust: any")
    assert distrust(file, "group") and not distrust(file, "any")
    give(file, os.geteuid(), NOBODY)
    file.chmod(0o664)
    assert "written by the group" in distrust(file) and "Trust: any" in distrust(file)
    assert distrust(file, "group") and not distrust(file, "any")


def test_a_group_is_trusted_when_it_is_ones_own(file: Path, monkeypatch: Any) -> None:
    give(file, os.geteuid(), 1234567)
    file.chmod(0o664)
    monkeypatch.setattr(trust, "_groups", lambda: (0, 1234567))
    assert distrust(file).endswith("may be written by the group 1234567; chmod g-w, or set "
                                   "Trust: group")
    assert distrust(file, "group") == ""
    give(file, NOBODY, 1234567)
    assert "belongs to" in distrust(file) and "Trust: group" in distrust(file)
    assert distrust(file, "group") == ""
    monkeypatch.setattr(trust, "_groups", lambda: (0,))
    assert "belongs to" in distrust(file, "group") and "Trust: any" in distrust(file, "group")


def test_the_group_that_each_user_has_alone_is_no_danger(file: Path, monkeypatch: Any) -> None:
    import grp
    import pwd
    give(file, os.geteuid(), 1234568)
    file.chmod(0o664)
    user = pwd.getpwuid(os.geteuid()).pw_name
    entry = grp.struct_group((user, "x", 1234568, []))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: entry)
    trust._alone.cache_clear()
    assert distrust(file) == ""
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((user, "x", gid, ["eve"])))
    trust._alone.cache_clear()
    assert distrust(file) != ""
    trust._alone.cache_clear()


def test_a_directory_on_the_way_that_others_may_write(file: Path) -> None:
    file.parent.chmod(0o777)
    assert distrust(file).startswith(f"{file.parent}, on the way to {file}, may be written by ev")
    file.parent.chmod(0o1777)  # as /tmp: nobody replaces the files of others
    assert distrust(file) == ""
    file.parent.chmod(0o755)
    give(file.parent)
    assert "on the way to" in distrust(file) and "belongs to" in distrust(file)


def test_links_are_followed_and_belong_to_somebody_themselves(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("folder/../folder/file")
    assert distrust(link) == ""
    file.parent.chmod(0o777)
    assert str(file.parent) in distrust(link)
    file.parent.chmod(0o755)
    file.chmod(0o666)
    assert "everybody" in distrust(link)
    file.chmod(0o644)
    (tmp_path / "b").symlink_to(tmp_path / "link")
    assert distrust(tmp_path / "b") == ""
    (tmp_path / "loop").symlink_to("loop")
    assert distrust(tmp_path / "loop") == ""  # who opens it is told
    give(link)
    assert "belongs to" in distrust(tmp_path / "b")


# The real vrm.


@pytest.fixture
def site(site: Site) -> Site:
    """A site that starts its programs directly."""
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", 'echo ran >> "$0.log"\n')
    site.lines("ok.x 1 9 0")
    return site


def ran(site: Site) -> bool:
    return (site.bin / "ok.x.log").exists()


def test_a_queue_that_others_may_write_is_refused_unless_allowed(site: Site) -> None:
    site.queue.chmod(0o666)
    done = site.run()
    assert done.returncode == 2 and not ran(site)
    assert "Applications.Queue" in done.stderr and "chmod o-w" in done.stderr
    site.config(Launcher={"Kind": "direct"}, Trust="any")
    assert site.run().returncode == 0 and ran(site)


def test_a_queue_that_becomes_foreign_while_it_is_read(site: Site) -> None:
    site.lines(end=False)
    manager = site.start("--wait")
    wait_until(site.state, "the manager runs")
    other = site.root / "other"
    other.write_text("ok.x 1 9 0\nend\n")
    other.chmod(0o666)
    os.replace(other, site.queue)
    wait_until(lambda: "is ignored" in site.said(manager), "it is told")
    assert not ran(site)
    site.queue.chmod(0o644)
    site.finish(manager)
    assert ran(site)


@pytest.mark.parametrize("name, key", [
    ("queue", "Applications.Queue"), ("bin", "Applications.Path"), ("heat", "Applications.Heatmap"),
    ("mpirun", "Launcher.Mpirun")])
def test_files_of_others_that_the_configuration_names(site: Site, name: str, key: str) -> None:
    (site.root / "heat").write_text("")
    site.program("../mpirun", "exit 0\n")
    site.config(Applications={"Path": str(site.bin), "Queue": str(site.queue),
                              "Heatmap": str(site.root / "heat")},
                Launcher={"Kind": "direct", "Mpirun": str(site.root / "mpirun")})
    give(site.root / name)
    done = site.run()
    assert done.returncode == 2 and f"{key}: " in done.stderr and "belongs to" in done.stderr


def test_a_program_that_others_may_write_is_refused(site: Site) -> None:
    (site.bin / "ok.x").chmod(0o777)
    site.program("bad.x", "exit 0\n")
    (site.bin / "link.x").symlink_to("bad.x")
    (site.bin / "bad.x").chmod(0o757)
    site.append("link.x 1 9 0\n")
    site.lines("ok.x 1 9 0", "link.x 1 9 0")
    site.run()
    assert site.statuses() == {0: "refused", 1: "refused"}
    assert "everybody" in site.rows()[0].reason and "everybody" in site.rows()[1].reason


def test_a_configuration_nobody_named_must_be_ones_own(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "vrm.yaml").write_text(site.config_file.read_text())

    def vrm(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "vrm.cli", *arguments], cwd=folder,
                              env=site.env, text=True, capture_output=True,
                              timeout=60, check=False)
    done = vrm("--once")
    assert done.returncode == 2 and not ran(site)
    assert "may be written by everybody" in done.stderr and "name it with -c" in done.stderr
    assert vrm("--once", "-c", "vrm.yaml").returncode == 0 and ran(site)


def test_run_directories_are_private_whatever_the_umask(site: Site) -> None:
    (site.root / "log").mkdir(mode=0o755)
    (site.root / "log" / "commands").mkdir()
    (site.root / "log" / "commands").chmod(0o777)
    site.config(Launcher={"Kind": "direct"}, Directory=str(site.root / "made" / "run"))
    (site.root / "made").mkdir()
    before = os.umask(0)
    try:
        site.run()
    finally:
        os.umask(before)
    made = site.root / "made" / "run"
    for place in (made, *(made / name for name in ("pids", "ended", "rankfiles", "commands",
                                                   "replies"))):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700, place
    assert stat.S_IMODE((made / "journal").stat().st_mode) == 0o600


def test_a_run_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    log.chmod(0o777)
    run = RunDirectory(log, log, log / "state")
    with pytest.raises(RunError, match="may be written by everybody; chmod o-w, or set Trust: any"):
        run.create()
    run.create("any")
    log.chmod(0o755)
    (log / "commands").chmod(0o777)
    run.create()
    assert stat.S_IMODE((log / "commands").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode, obeyed", [(0o600, True), (0o644, True), (0o664, False),
                                          (0o646, False)])
def test_a_command_that_others_may_write_is_refused(tmp_path: Path, mode: int,
                                                    obeyed: bool) -> None:
    run = RunDirectory(tmp_path, tmp_path, tmp_path / "state")
    run.create()
    before = os.umask(0)
    try:
        name = command_files.send(run, {"do": "stop"})
    finally:
        os.umask(before)
    path = run.commands / name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(mode)
    (_, command), = command_files.take(run)
    assert command["do"] == ("stop" if obeyed else "invalid")


def test_a_pipe_among_the_commands_blocks_nobody(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, tmp_path, tmp_path / "state")
    run.create()
    os.mkfifo(run.commands / "1")
    (_, command), = command_files.take(run)
    assert command["do"] == "invalid"


@pytest.mark.parametrize("text", [
    "'; touch HERE/made'", "'$(touch HERE/made)'", "'`touch HERE/made`'", "'| touch HERE/made'",
    "'&& touch HERE/made'", "'> HERE/made'"])
@pytest.mark.parametrize("kind", ["direct", "openmpi"])
def test_no_field_reaches_a_shell(site: Site, text: str, kind: str) -> None:
    site.config(Launcher={"Kind": kind})
    made = site.root / "made"
    text = text.replace("HERE", str(site.root))
    site.program("x;touch made", 'echo "$1" > /dev/null\n')
    site.lines(f"ok.x 1 9 0 args={text} name='$(touch made)'", f"ok.x 1 9 0 env=A={text}",
               f"ok.x 1 9 0 dir={text}", "'x;touch made' 1 9 0")
    site.run()
    assert ran(site) and not made.exists() and not (site.bin / "made").exists()
    statuses = site.statuses()
    assert statuses.pop(2) == "failed" and set(statuses.values()) == {"completed"}


@pytest.mark.parametrize("name", [
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PATH", "PYTHONSTARTUP", "PYTHONPATH", "BASH_ENV",
    "ENV", "PERL5OPT", "OMPI_MCA_orte_fork_agent", "PRTE_MCA_x", "HYDRA_LAUNCHER_EXEC", "UCX_MODULE_DIR",
    "SLURM_CONF", "OMP_TOOL_LIBRARIES", "JAVA_TOOL_OPTIONS", "HOME", "CUDA_INJECTION64_PATH",
    "R_PROFILE", "GCONV_PATH", "I_MPI_HYDRA_BOOTSTRAP_EXEC"])
def test_variables_that_start_other_programs(name: str) -> None:
    assert unsafe_variables([name, "A"], "own") == ""
    assert f"env={name}: " in unsafe_variables([name, "A"], "group")
    assert "Trust: any" in unsafe_variables([name], "any")


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OMP_PLACES", "CASE", "TMPDIR", "LC_ALL", "N",
                                  "RESOLUTION", "LDFLAGS_USED", "LEVEL", "RANKS", "TCASE"])
def test_variables_that_do_not(name: str) -> None:
    assert unsafe_variables([name], "any") == ""


def test_who_may_write_the_queue_cannot_start_other_programs(site: Site) -> None:
    """Harmless in one's own queue; refused where others write it; `vrm submit` is always one's own."""
    made = site.root / "made"
    site.program("../agent", f"touch {made}\n")
    line = f"ok.x 1 9 0 env=BASH_ENV={site.root / 'agent'}"
    site.program("ok.x", 'echo ran >> "$0.log"; if [ "$BASH_ENV" ]; then . "$BASH_ENV"; fi\n')
    site.config(Launcher={"Kind": "direct"}, Trust="group")
    site.lines(line, "ok.x 1 9 0 env=CASE=3")
    site.run()
    assert site.statuses() == {0: "refused", 1: "completed"} and not made.exists()
    assert "env=BASH_ENV" in site.rows()[0].reason and "vrm submit" in site.rows()[0].reason
    site.config(Launcher={"Kind": "direct"})
    site.run("--fresh")
    assert site.statuses() == {0: "completed", 1: "completed"} and made.exists()
