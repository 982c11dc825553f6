"""Memory that jobs use, against what they asked for: followed on their nodes."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from conftest import Site, wait_until

from vrm.live.nodes.topology import read_topology

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

TAKE = f"""exec {sys.executable} -c '
import os, sys, time
data = b"x" * (int(sys.argv[1]) << 20)
print("taken", flush=True)
while not os.path.exists(sys.argv[0] + ".go") and not os.path.exists("go"):
    time.sleep(0.02)
' "$@"
"""


@pytest.fixture
def memory(site: Site) -> Site:
    """A site whose program `take.x` takes so many MiB and waits for a file `go`."""
    if read_topology().synthetic:
        pytest.skip("nobody follows processes on a machine that is made up")
    site.program("take.x", TAKE)
    return site


def config(site: Site, over: str, **keys: Any) -> None:
    site.config(Nodes="auto", Sockets="auto", Cores="auto", Launcher={"Kind": "direct"},
                Memory={"Over": over}, **keys)


def output(site: Site, job: int) -> str:
    path = site.log / f"take.x.{job}.o"
    return path.read_text() if path.exists() else ""


def test_a_job_that_takes_too_much_is_warned_of_once(memory: Site) -> None:
    config(memory, "warn")
    memory.lines("take.x 1 60 0 mem_per_task=40M args=100", "take.x 1 60 0 mem_per_node=200M args=100")
    process = memory.start("--once")
    said = wait_until(lambda: "M of memory" in memory.said(process) and memory.said(process),
                      "a warning")
    assert re.search(r"#0 take.x: it used 1\d\dM of memory on \S+, and asked for 40M there\n", said)
    (memory.root / "go").touch()
    said = memory.finish(process)
    assert process.returncode == 0 and said.count("of memory") == 1
    assert memory.statuses() == {0: "completed", 1: "completed"}
    assert all(re.fullmatch(r"1\d\dM", row.memory_peak) for row in memory.rows().values())


def test_a_job_that_takes_too_much_is_ended_where_that_is_wished(memory: Site) -> None:
    config(memory, "kill", Retries=1)
    memory.lines("take.x 1 60 0 mem_per_task=40M args=100")
    process = memory.start("--once")
    said = memory.finish(process)
    assert process.returncode == 1
    row = memory.rows()[0]
    assert row.status == "failed"
    assert re.match(r"it used 1\d\dM of memory on \S+, and asked for 40M there", row.reason)
    assert "ending it (Memory: {Over: kill})" in said and "retry 1 of 1" in said


def test_nobody_looks_where_that_is_wished(memory: Site) -> None:
    config(memory, "off")
    memory.lines("take.x 1 60 0 mem_per_task=40M args=100")
    process = memory.start("--once")
    wait_until(lambda: output(memory, 0), "it has its memory")
    (memory.root / "go").touch()
    assert "of memory" not in memory.finish(process)


def test_a_manager_that_takes_over_follows_on(memory: Site) -> None:
    config(memory, "kill")
    program = memory.bin / "take.x"
    program.write_text(program.read_text().replace(
        "data =", "[time.sleep(0.02) for _ in iter(lambda: os.path.exists(\"more\"), True)]\ndata ="))
    memory.lines("take.x 1 60 0 mem_per_task=60M args=200")
    first = memory.start("--once")
    wait_until(lambda: memory.running(), "the job runs")
    first.kill()
    first.wait()
    second = memory.start("--once")
    wait_until(lambda: "continu" in memory.said(second) or "runs" in memory.said(second), "it is taken over")
    (memory.root / "more").touch()
    memory.finish(second)
    assert memory.rows()[0].status == "failed" and "asked for 60M there" in memory.rows()[0].reason


def test_a_job_that_asks_for_more_than_there_is_is_refused(memory: Site) -> None:
    config(memory, "warn")
    memory.lines("take.x 1 60 0 mem_per_task=900T", "take.x 1 60 0 args=1")
    (memory.root / "go").touch()
    memory.run("--once")
    rows = memory.rows()
    assert rows[0].status == "refused" and "memory" in rows[0].reason
    assert rows[1].status == "completed" and rows[1].memory_peak == ""
