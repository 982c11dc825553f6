"""`vrm run -- PROGRAM`: a program gives the jobs."""

from __future__ import annotations

import signal
import sys

from conftest import Site, wait_until


def given(site: Site, text: str) -> str:
    """A program that calls vrm as a user would."""
    path = site.root / "give.sh"
    path.write_text(f"#!/bin/sh\nvrm() {{ {sys.executable} -m vrm.cli \"$@\"; }}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_run_ends_with_the_program_and_its_jobs(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    site.program("one", "echo one $*\n")
    client = given(site, "vrm submit one 1 60 --name first -- \"$@\"\nvrm submit one 1 60 --after first\n"
                         "echo $VRM_CONFIG; exit 5")
    done = site.run("run", "--", client, "a b")
    assert done.returncode == 5, done.stdout + done.stderr
    assert str(site.config_file) in done.stdout and "give.sh has ended with status 5" in done.stdout
    assert site.statuses() == {0: "completed", 1: "completed"}
    assert next(site.log.glob("one.0.o")).read_text() == "one a b\n"
    again = site.run("run", "--fresh", "--", given(site, "vrm submit one 1 60"))
    assert again.returncode == 0 and site.statuses() == {0: "completed"}


def test_a_program_that_is_none_and_options_that_do_not_go_with_one(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    done = site.run("run", "--", "/nowhere/x")
    assert done.returncode == 127 and "/nowhere/x: No such file" in done.stdout
    done = site.run("run", "--once", "--", "true")
    assert done.returncode == 2 and "--once ends with the jobs" in done.stderr


def test_the_program_ends_with_the_manager(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    manager = site.start("run", "--", given(site, "echo began; exec sleep 600"))
    wait_until(lambda: "began" in site.said(manager), "the program runs")
    manager.send_signal(signal.SIGTERM)
    said = site.finish(manager)
    assert manager.returncode == 1 and "give.sh was ended with the run" in said
    site.nothing_left()
