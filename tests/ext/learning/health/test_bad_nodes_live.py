"""A node of the test cluster is slow: vrm finds it, has it probed, and gives it no jobs any more, also in the next run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.testbed import LOGIN, Testbed, missing

from vrm.results.jobs import read_jobs

pytestmark = [pytest.mark.testbed, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[4]
CONTROLLER = Path("/sys/fs/cgroup/cpu")
"""Where control groups of version 1 limit CPU time."""

PROGRAM = """#!/bin/sh
# A stand-in for a program that computes for a second, and for half a second more on n2.
case $(hostname) in n2) exec sleep 1.5 ;; *) exec sleep 1 ;; esac
"""

COMPUTES = f"""#!{sys.executable} -S
import time
while time.process_time() < 0.25:
    pass
"""


@contextlib.contextmanager
def throttled(testbed: Testbed, node: str, part: float) -> Iterator[bool]:
    """All processes of a node, and those that they start, get this part of one core; yields whether that is so."""
    group = CONTROLLER / f"vrm-test-{os.getpid()}-{node}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text(str(int(part * 100_000)))
    except OSError:
        yield False
        return
    own = os.readlink(f"/proc/{testbed._inside[node].pid}/ns/uts")
    inside = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/uts") == own:
                    inside.append(entry.name)
    for pid in inside:
        (group / "cgroup.procs").write_text(pid)
    try:
        yield True
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (CONTROLLER / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Testbed]:
    reason = missing(slurm=False)
    if reason:
        pytest.skip(reason)
    with Testbed(nodes=4, slurm=False, directory=tmp_path / "cluster") as cluster:
        yield cluster


def vrm(testbed: Testbed, root: Path, *words: str, node: str = "n0", limit: float = 120.0) -> subprocess.CompletedProcess[str]:
    return testbed.exec(node, [sys.executable, "-m", "vrm.cli", *words], cwd=root, timeout=limit,
                        env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})


def site_of(root: Path, program: str, jobs: int) -> dict[str, Any]:
    """Write a site of four nodes and a queue; return the configuration."""
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "step").write_text(program)
    (root / "bin" / "step").chmod(0o755)
    (root / "hosts").write_text("n0\nn1\nn2\nn3\n")
    config: dict[str, Any] = {
        "Applications": {"Path": "bin", "Queue": "queue"}, "Hosts": {"File": "hosts", "Reach": "ssh", "Quarantine": "on"},
        "Allocation": {"Policy": "compact"}, "Launcher": {"Kind": "direct"}, "Learning": {"Store": str(root / "store")}}
    (root / "vrm.yaml").write_text(yaml.safe_dump(config))
    (root / "queue").write_text("step 1 60 0\n" * jobs + "end\n")
    return config


def test_a_node_with_less_cpu_time_is_in_quarantine_within_8_runs(tmp_path: Path) -> None:
    """The kernel limits each node to a tenth of a core, as all share the cores of this machine, and n2 to 80 % of that."""
    reason = missing(slurm=False)
    if reason:
        pytest.skip(reason)
    root = tmp_path / "site"
    site_of(root, COMPUTES, 40)
    with contextlib.ExitStack() as stack:
        four = stack.enter_context(Testbed(nodes=4, sockets=1, cores=1, slurm=False, directory=tmp_path / "cluster"))
        limited = [stack.enter_context(throttled(four, f"n{number}", 0.08 if number == 2 else 0.1)) for number in range(4)]
        if not all(limited):
            pytest.skip(f"control groups in {CONTROLLER} cannot be made here")
        done = vrm(four, root, "run", node=LOGIN, limit=300.0)
    rows = list(read_jobs(root / "logs" / "jobs.csv"))
    assert len(rows) == 40 and sum(row.nodes == "n2" for row in rows) <= 8, done.stdout + done.stderr
    assert "node n2 is in quarantine, slow" in done.stdout


def test_a_slow_node_of_the_test_cluster(four: Testbed, tmp_path: Path) -> None:
    root = tmp_path / "site"
    config = site_of(root, PROGRAM, 48)
    with throttled(four, "n2", 0.1) as limited:
        done = vrm(four, root, "run")
        assert done.returncode == 0, done.stdout + done.stderr
        rows = list(read_jobs(root / "logs" / "jobs.csv"))
        assert len(rows) == 48 and 4 <= sum(row.nodes == "n2" for row in rows) <= 8, done.stdout
        said = [line for line in done.stdout.splitlines() if "in quarantine" in line]
        assert len(said) == 1 and "node n2 is in quarantine, slow" in said[0]
        status = vrm(four, root, "status").stdout
        assert "node n2 takes no new jobs: quarantine, slow" in status
        shown = vrm(four, root, "learned", "nodes").stdout
        assert shown.startswith("Node n2") and "of the speed elsewhere" in shown
        [facts] = json.loads(vrm(four, root, "learned", "nodes", "--json").stdout)["nodes"]
        assert (facts["node"], facts["state"], facts["others"]) == ("n2", "quarantined", ["n0", "n1", "n3"])
        if limited:  # all nodes share the cores of this machine, so that others compute no faster than half a core, say
            probed = re.search(r"probe .* computing at (\d+) %", shown)
            assert probed and int(probed[1]) < 90, shown

    config["Log"] = "second"
    (root / "vrm.yaml").write_text(yaml.safe_dump(config))
    (root / "queue").write_text("step 1 60 0\n" * 8 + "end\n")
    done = vrm(four, root, "run")
    assert "node n2 is in quarantine, slow in an earlier run" in done.stdout
    assert "n2" not in {row.nodes for row in read_jobs(root / "second" / "jobs.csv")}
    assert vrm(four, root, "learned", "nodes", "--clear", "n2").stdout.startswith("cleared: n2")
    config["Log"] = "third"
    (root / "vrm.yaml").write_text(yaml.safe_dump(config))
    vrm(four, root, "run")
    assert "n2" in {row.nodes for row in read_jobs(root / "third" / "jobs.csv")}
