"""What is in a job's output files: what the program printed, and nothing else; and what is made of
it when the job fails.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import Site, mpiruns, wait_until
from vrm.live.manager.records.last_lines import no_space
from vrm.live.nodes.topology import read_topology

SPEAKS = """printf 'out %s\\nno end' "$1"
printf 'err %s\\n[a:1] Rank zero\\r100%%\\rno end' "$1" >&2
"""


@pytest.mark.parametrize("mpirun", mpiruns())
def test_the_files_hold_what_the_program_prints_and_nothing_else(site: Site, mpirun: str) -> None:
    if len(read_topology().sockets[0]) < 2:
        pytest.skip("needs two cores")
    site.config(Cores=2, Launcher={"CheckBindings": "fail", "Mpirun": mpirun})
    site.program("speaks.x", SPEAKS)
    site.lines("speaks.x 1 10 0 args=1", "speaks.x 1 10 0 args=2 cores=2", "speaks.x 2 10 0 args=3")
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    for number in (0, 1):
        said = (site.log / f"speaks.x.{number}.o", site.log / f"speaks.x.{number}.e")
        assert said[0].read_bytes() == f"out {number + 1}\nno end".encode()
        assert said[1].read_bytes() == f"err {number + 1}\n[a:1] Rank zero\r100%\rno end".encode()
    assert (site.log / "speaks.x.2.e").read_text().count("err 3\n") == 2
    assert "bound" not in (site.log / "speaks.x.2.e").read_text()
    assert {row.binding for row in site.rows().values()} == {"ok"}
    reports = (site.log / "rankfiles" / "speaks.x.2.bindings").read_text()
    assert len(reports.splitlines()) == 2 and "bound" in reports
    site.nothing_left()


@pytest.mark.parametrize("mpirun", mpiruns())
def test_time_stamps_come_when_they_are_wanted(site: Site, mpirun: str) -> None:
    site.config(Launcher={"CheckBindings": "fail", "Mpirun": mpirun, "Stamp": True})
    site.program("speaks.x", "echo out\necho err >&2\n")
    site.lines("speaks.x 1 10 0")
    assert site.run().returncode == 0
    assert re.search(r"\d\d:\d\d:\d\d \d{4}\]?<stdout>: ?out\n",
                     (site.log / "speaks.x.0.o").read_text())
    errors = (site.log / "speaks.x.0.e").read_text()
    assert re.search(r"<stderr>: ?err\n", errors) and "bound" not in errors
    assert site.rows()[0].binding == "ok"


def test_the_errors_come_while_the_job_runs(site: Site) -> None:
    """Also without a line's end (which Open MPI 5 itself holds back), and also what a process prints
    that outlives the program."""
    site.program("slow.x", "echo a line >&2\nprintf 'a question? ' >&2\n"
                           "while [ ! -e \"$0.go\" ]; do sleep 0.02; done\necho yes >&2\n")
    site.lines("slow.x 1 60 0")
    manager = site.start()
    errors = site.log / "slow.x.0.e"
    wait_until(errors.exists, "it runs")
    seen = "a line\n" if "; Open MPI 5" in site.said(manager) else "a line\na question? "
    wait_until(lambda: errors.read_text() == seen, "it is asked")
    (site.bin / "slow.x.go").touch()
    site.finish(manager)
    assert errors.read_text() == "a line\na question? yes\n"


def test_a_failure_shows_the_last_line_and_where_the_rest_is(site: Site) -> None:
    site.program("says.x", "echo first >&2\necho 'mesh.dat: \x1b[31mNo such file' >&2\nexit 3\n")
    site.program("prints.x", "echo only this\nexit 4\n")
    site.program("mute.x", "exit 5\n")
    site.lines("says.x 1 10 0", "prints.x 1 10 0", "mute.x 1 10 0", "says.x 1 10 0 retries=1")
    said = site.run().stdout
    reason = "exit 3: mesh.dat: \\x1b[31mNo such file; see log/says.x.0.e"
    assert site.rows()[0].reason == reason
    assert re.search(rf"#0 says\.x  failed after \S+ s: {re.escape(reason)}\n", said)
    assert site.rows()[1].reason.startswith("exit 4") and "prints.x.1" in site.rows()[1].reason
    assert site.rows()[2].reason.startswith("exit 5")
    assert site.rows()[3].reason == reason.replace("x.0.e", "x.3.e")


def test_of_a_job_that_fails_on_a_full_disk_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = {"f_bavail": 0, "f_frsize": 4096, "f_files": 10, "f_favail": 3}
    for change, full in (({}, True), ({"f_bavail": 1000}, False), ({"f_bavail": 1000, "f_favail": 0}, True),
                         ({"f_bavail": 1000, "f_favail": 0, "f_files": 0}, False)):  # which counts no files
        monkeypatch.setattr(os, "statvfs", lambda path, now={**disk, **change}: SimpleNamespace(**now))
        assert no_space(tmp_path / "log") == "; the disk of log is full" * full
    monkeypatch.undo()
    assert no_space(tmp_path) == "" == no_space(tmp_path / "nowhere")
