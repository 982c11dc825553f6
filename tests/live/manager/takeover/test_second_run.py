"""What a second run does to each kind of job and of line: the table of docs/guide/running.md, with the real `vrm`."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest
from conftest import Site, wait_until

from vrm.ext.generate.generator import Arrival, Mix, write_live

ONE_CORE = {"Launcher": {"Kind": "direct"}, "Forecast": False}

PROGRAMS = {
    "ok": 'echo "$*" >> "$0.ran"\n',
    "once": 'echo "$*" >> "$0.ran"; [ -e "$0.mended" ] || exit 3\n',
    "wait": 'echo "$*" >> "$0.ran"\nuntil [ -e "$0.go" ]; do sleep 0.02; done\n'}


@pytest.fixture
def place(site: Site) -> Site:
    """A site whose programs write down that they have begun."""
    site.config(**ONE_CORE)
    for name, text in PROGRAMS.items():
        site.program(name, text)
    return site


def ran(site: Site) -> list[str]:
    """The arguments of all starts of programs, sorted."""
    return sorted(word for path in site.bin.glob("*.ran") for word in path.read_text().split())


def kill(manager: subprocess.Popen[str]) -> None:
    """kill -9 of the manager alone."""
    manager.kill()
    manager.wait()


def edit(site: Site, old: str, new: str) -> None:
    """What `sed -i` does."""
    subprocess.run(["sed", "-i", f"s/{old}/{new}/", str(site.queue)], check=True)


LINES = ("ok 1 9 args=completed", "once 1 9 args=failed", "later 1 9 args=refused", "wait 1 9 args=stopped",
         "ok 1 9 args=cancelled", "ok 1 9 args=removed", "ok 1 9 args=waiting", "ok 1 9 args=changed")


def first_run(site: Site, how: str) -> None:
    """A run in which there is a job of each kind, ended by Ctrl-C, `vrm stop --now` or kill -9; then the queue
    is edited, and what was missing is there."""
    site.queue.write_text("".join(f"{line}\n" for line in LINES))
    manager = site.start("run")
    wait_until(lambda: "stopped" in ran(site), "the job runs that will be stopped")
    assert site.run("cancel", "4").returncode == 0
    if how == "kill -9":
        kill(manager)
    elif how == "vrm stop --now":
        assert site.run("stop", "--now").returncode == 0
    else:
        manager.send_signal(signal.SIGINT)
    said = site.finish(manager)
    if how != "kill -9":
        assert "still wait and 1 ended by the stop: the same command continues them" in said
    assert ran(site) == ["completed", "failed", "stopped"] or how == "kill -9"
    (site.bin / "wait.go").touch()
    (site.bin / "once.mended").touch()
    site.program("later", PROGRAMS["ok"])
    edit(site, "args=changed", "args=another")
    edit(site, "^.*args=removed$", "")
    site.append("ok 1 9 args=new\n")


AGAIN = {"stopped", "waiting", "another", "new"}

TABLE = [
    (["run"], AGAIN), ([], AGAIN), (["run", "--once", "--continue"], AGAIN),
    (["run", "--failed"], {*AGAIN, "failed", "refused"}),
    (["run", "--fresh"], {"completed", "failed", "refused", "cancelled", "stopped", "waiting", "another", "new"})]


@pytest.mark.parametrize("how", ["Ctrl-C", "vrm stop --now"])
@pytest.mark.parametrize("command, again", TABLE, ids=[" ".join(["vrm", *words]) for words, _ in TABLE])
def test_what_each_command_does_to_each_kind(place: Site, command: list[str], again: set[str], how: str) -> None:
    first_run(place, how)
    before = ran(place)
    said = place.finish(place.start(*command, waits=False))
    assert ran(place) == sorted([*before, *again]), said
    assert (place.log / "earlier").exists() == ("--fresh" in command)
    place.finish(place.start("run"))  # and a further one does nothing
    assert ran(place) == sorted([*before, *again])


def test_a_kill_between_loses_and_doubles_nothing(place: Site) -> None:
    first_run(place, "kill -9")
    before = ran(place)
    place.finish(place.start("run"))
    assert ran(place) == sorted([*before, "waiting", "another", "new"])
    assert place.statuses() == {0: "completed", 1: "failed", 2: "refused", 3: "completed", 4: "cancelled",
                                5: "cancelled", 6: "completed", 7: "completed", 8: "completed"}
    rows = place.rows()
    assert rows[7].args == "another" and "removed from the queue file" in rows[5].reason


@pytest.mark.parametrize("manager", [False, True], ids=["without a manager", "with one"])
def test_requeue_does_what_it_is_asked(place: Site, manager: bool) -> None:
    """Also to refused and cancelled jobs, and to those that completed."""
    first_run(place, "Ctrl-C")
    before = ran(place)
    again = [*AGAIN, "completed", "failed", "refused", "cancelled"]
    if manager:
        place.append("ok 1 9 hold=1 args=held\n")
        process = place.start("run")
        wait_until(lambda: "only held jobs are left" in place.said(process), "the rest has ended")
    done = place.run("requeue", "0-2", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    if manager:
        wait_until(lambda: len(ran(place)) == len(before) + len(again), "they ran again")
        assert place.run("cancel", "9").returncode == 0
    else:
        assert "jobs 0-2,4 will wait again when `vrm run` continues this run" in done.stdout
        process = place.start("run")
    place.finish(process)
    assert ran(place) == sorted([*before, *again])


def test_a_finished_run_is_added_to(place: Site) -> None:
    """Point 1 of the trials: three jobs done, one line appended; records and ids continue."""
    place.queue.write_text("ok 1 9 args=a\nok 1 9 args=b\nok 1 9 args=c")
    assert place.run("run").returncode == 0  # a last line without a newline counts
    rows = place.rows()
    place.append("\nok 1 9 args=d\n")
    done = place.run("run")
    assert done.returncode == 0 and ran(place) == ["a", "b", "c", "d"], done.stdout
    assert {**rows, 3: place.rows()[3]} == place.rows()
    done = place.run("run")
    assert done.returncode == 0 and "nothing to do: all jobs have ended" in done.stdout
    assert len(ran(place)) == 4


def test_lines_of_others_are_edited_while_jobs_run(place: Site) -> None:
    """Point 3: sed -i, a save in place and mv, with comments, windows line ends and ids that stay."""
    place.queue.write_text("wait 1 9 args=0\n" + "".join(f"ok 1 9 args={i}\n" for i in range(1, 7)))
    manager = place.start("run")
    wait_until(lambda: ran(place) == ["0"], "the first runs")
    edit(place, "args=3$", "args=3b")
    wait_until(lambda: "lines: 1 changed" in place.said(manager), "the change is seen")
    place.queue.write_text("# mine\r\n" + place.queue.read_text().replace("\n", "\r\n").replace("args=4", "args=4b"))
    wait_until(lambda: place.said(manager).count("lines: 1 changed") == 2, "the second one is seen")
    new = place.root / "new"
    new.write_text(place.queue.read_text().replace("ok 1 9 args=5\n", "ok 1 9 args=4c\nok 1 9 args=4d\n")
                   .replace("ok 1 9 args=2\n", "") + "ok 1 9 args=7\n")
    new.rename(place.queue)
    wait_until(lambda: "1 changed, 1 removed, 1 added" in place.said(manager), "the third one is seen")
    (place.bin / "wait.go").touch()
    said = place.finish(manager)
    assert ran(place) == sorted(["0", "1", "3b", "4b", "4c", "4d", "6", "7"]), said
    assert {i: row.args for i, row in place.rows().items()} == {
        0: "0", 1: "1", 2: "2", 3: "3b", 4: "4b", 5: "4c", 6: "6", 7: "4d", 8: "7"}
    assert place.statuses()[2] == "cancelled"


def test_a_queue_is_edited_while_a_generator_writes_it(place: Site) -> None:
    """What the generator writes later is read, and its `end` line ends the run."""
    place.config(**ONE_CORE, Replay={"Speed": 1000})
    mix = Mix(6, 1, {"wait": [("wait", 1, 9.0)]}, Arrival("uniform", 1, 1))
    managers: list[subprocess.Popen[str]] = []
    counted = itertools.count(1)

    def said(text: str) -> None:
        wait_until(lambda: text in place.said(managers[0]), text)

    def jobs() -> list[dict[str, Any]]:
        return (place.state() or {"jobs": []})["jobs"]

    def sed(*changes: str) -> None:
        subprocess.run(["sed", "-i", *(word for each in changes for word in ("-e", each)), str(place.queue)], check=True)

    def between(seconds: float) -> None:
        written = next(counted)
        if written == 1:
            managers.append(place.start("run", waits=False))
            said("starts")
        wait_until(lambda: any(str(job.get("ids", job.get("id"))).endswith(f"{written - 1}") for job in jobs()), "it is taken")
        if written == 3:
            sed("3s/.*/ok 1 9 args=edited/", "4s/.*/ok 1 9 args=gone/")
            said("2 changed")
        elif written == 4:
            sed("4d")
            said("1 removed")

    write_live(mix, place.queue, "how", pause=between)
    (place.bin / "wait.go").touch()
    end = place.finish(managers[0])
    assert ran(place) == ["edited"] and place.queue.read_text().endswith("\nend\n"), end
    assert {i: (row.app, row.status) for i, row in place.rows().items()} == {
        0: ("wait", "completed"), 1: ("ok", "completed"), 2: ("ok", "cancelled"),
        **dict.fromkeys((3, 4, 5), ("wait", "completed"))}, end


def test_a_corrected_line_is_a_good_job_and_those_behind_it_wait_again(place: Site) -> None:
    place.queue.write_text("ok 1 x args=0 name=n\nok 1 9 args=1 after=0\nwait 1 9 args=2\nok 1 9 args=3 after=no\n")
    manager = place.start("run")
    wait_until(lambda: ran(place) == ["2"], "the third runs")
    assert "correct it in the queue file" in place.run("requeue", "0").stderr
    edit(place, " x ", " 9 ")
    edit(place, "after=no", "after=n")
    (place.bin / "wait.go").touch()
    said = place.finish(manager)
    assert "#1 waits again: what it depends on may run now" in said
    assert ran(place) == ["0", "1", "2", "3"] and manager.returncode == 0
    assert set(place.statuses().values()) == {"completed"} and len(place.rows()) == 4


def test_a_line_that_ran_is_not_run_again_when_it_is_changed(place: Site) -> None:
    """The manager stops reading, and says what to type."""
    place.queue.write_text("ok 1 9 args=a\nok 1 9 args=b\n")
    place.run("run")
    edit(place, "args=a", "args=x")
    place.append("ok 1 9 args=c\n")
    done = place.run("run")
    assert done.returncode == 1 and ran(place) == ["a", "b"]
    assert "line 1 was changed after job 0 had started or ended" in done.stdout and "vrm run --changed" in done.stdout
    edit(place, "args=x", "args=a")  # put back: the new one is read
    assert place.run("run").returncode == 0 and ran(place) == ["a", "b", "c"]
    edit(place, "args=a", "args=x")
    assert place.run("run", "--changed").returncode == 0 and ran(place) == ["a", "b", "c", "x"]
    assert place.run("run").returncode == 0 and len(ran(place)) == 4


def test_a_failed_line_is_corrected_and_run_again(place: Site) -> None:
    place.queue.write_text("once 1 9 args=a\nok 1 9 args=b after=0\n")
    place.run("run")
    edit(place, "^once", "ok")
    assert place.run("run", "--failed").returncode == 0
    assert ran(place) == ["a", "a", "b"] and set(place.statuses().values()) == {"completed"}


def test_nothing_behind_the_end_line_runs(place: Site) -> None:
    place.lines("ok 1 9 args=a")
    place.run("run")
    place.append("ok 1 9 args=b\n")
    done = place.run("run")
    assert ran(place) == ["a"] and "line 2) is not read; remove that line to run it" in done.stdout
    edit(place, "^end$", "")
    assert place.run("run").returncode == 0 and ran(place) == ["a", "b"]


def test_an_array_that_grows_and_a_line_that_moves(place: Site) -> None:
    place.queue.write_text("wait 1 9 args=w\nok 1 9 array=1-2 args=a%i\nok 1 9 args=b\nok 1 9 args=c\n")
    manager = place.start("run")
    wait_until(lambda: ran(place) == ["w"], "the first runs")
    place.queue.write_text("ok 1 9 args=c\nwait 1 9 args=w\nok 1 9 array=1-3 args=a%i\nok 1 9 args=b\n")
    wait_until(lambda: "1 changed, 1 moved" in place.said(manager), "the edit is seen")
    (place.bin / "wait.go").touch()
    place.finish(manager)
    assert ran(place) == ["a1", "a2", "a3", "b", "c", "w"]
    assert place.statuses()[4] == "completed"  # it was moved, and kept its id


def test_an_emptied_queue_cancels_nothing(place: Site) -> None:
    place.queue.write_text("wait 1 9 args=a\nok 1 9 args=b\n")
    manager = place.start("run")
    wait_until(lambda: ran(place) == ["a"], "the first runs")
    place.queue.write_text("")
    wait_until(lambda: "is now empty" in place.said(manager), "the manager says so")
    (place.bin / "wait.go").touch()
    place.finish(manager)
    assert ran(place) == ["a", "b"] and manager.returncode == 1


def test_bare_vrm_ends_and_wait_waits(place: Site) -> None:
    """Point 13. A held job keeps it, too."""
    place.queue.write_text("ok 1 9 args=a\n")
    assert place.run().returncode == 0
    place.append("ok 1 9 args=h hold=1\n")
    manager = place.start("run", "--wait")
    wait_until(lambda: "only held jobs are left" in place.said(manager), "it waits")
    assert place.run("release", "1").returncode == 0
    wait_until(lambda: "waiting for lines in" in place.said(manager), "it waits for lines")
    place.append("ok 1 9 args=b\nend\n")
    place.finish(manager)
    assert ran(place) == ["a", "b", "h"]


def test_a_missing_queue_is_said_at_once(place: Site) -> None:
    done = place.run("run")
    assert done.returncode == 2 and "cannot read the queue file" in done.stderr and "--wait" in done.stderr


def test_a_second_client_adds_to_the_run(place: Site) -> None:
    client = place.root / "give.sh"
    client.write_text('#!/bin/sh\nexec "$VRM_PYTHON" -m vrm.cli submit ok 1 9 --args "$1"\n')
    client.chmod(0o755)
    for word in ("a", "b"):
        done = place.run("run", "--", str(client), word, VRM_PYTHON=sys.executable)
        assert done.returncode == 0, done.stdout + done.stderr
    assert ran(place) == ["a", "b"] and place.statuses() == {0: "completed", 1: "completed"}


def test_a_killed_manager_leaves_an_edit_to_the_next_one(place: Site) -> None:
    """At each record that an edit writes: no line is lost, none runs twice."""
    lines = ["wait 1 9 args=w", *(f"ok 1 9 args={i}" for i in range(5))]
    edited = ["ok 1 9 args=n1", "wait 1 9 args=w", "ok 1 9 args=0b", "ok 1 9 args=n2", "ok 1 9 args=1",
              "ok 1 9 args=3", "ok 1 9 args=2", "ok 1 9 array=1-2 args=x%i"]
    wanted = sorted(["0b", "1", "2", "3", "n1", "n2", "w", "x1", "x2"])
    place.queue.write_text("".join(f"{line}\n" for line in lines))
    manager = place.start("run")
    wait_until(lambda: ran(place) == ["w"], "the first runs")
    kill(manager)
    (place.bin / "wait.go").touch()
    wait_until(lambda: not place.running(), "it has ended")
    place.queue.write_text("".join(f"{line}\n" for line in edited))
    kept = place.root.with_name("kept")
    shutil.copytree(place.log, kept, ignore=shutil.ignore_patterns("socket", ".vrm-*"))
    size = (kept / "journal").read_bytes().rstrip(b"\0").count(b"\n")
    place.finish(place.start("run"))
    records = (place.log / "journal").read_bytes().splitlines(keepends=True)
    assert ran(place) == wanted
    first = next(at for at, line in enumerate(records) if at >= size and b'"event":"start"' in line)
    for cut in range(size + 1, first):
        shutil.rmtree(place.log)
        shutil.copytree(kept, place.log)
        (place.log / "journal").write_bytes(b"".join(records[:cut]))
        for path in place.bin.glob("ok.ran"):
            path.unlink()
        said = place.finish(place.start("run"))
        assert ran(place) == wanted, f"after {cut} records, the last {records[cut - 1]!r}:\n{said}"
