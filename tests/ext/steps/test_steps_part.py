"""What a script is given for its steps when it starts, and what becomes of that."""

from __future__ import annotations

from pathlib import Path

from support.executor import Managed

from vrm.model import JobState
from vrm.ext.steps.records import read_steps
from vrm.workload.grammar import parse_line


def test_a_script_has_the_file_of_its_job_and_leaves_a_line(tmp_path: Path) -> None:
    managed = Managed(tmp_path, Sockets=2, Cores=2, Allocation={"Policy": "pack"})
    program = tmp_path / "bin" / "run.sh"
    program.write_text("#!/bin/sh\n")
    managed.manager.intake.enter(parse_line("run.sh 3 60 1 script=1 nodes=2"))
    managed.start(1.0)
    request, = managed.jobs.launched
    folder = Path(request.env["VRM_STEPS"])
    assert request.env["VRM_SERVER"] == "vrm.ext.steps.server"
    lines = (folder / "job").read_text().splitlines()
    assert {"job 0", "tasks 3", "cpus 1", "began 1.000", f"records {managed.run.steps}",
            "node n0 n0 2 0/1;2/3", "node n1 n1 1 0/1;2/3"} <= set(lines), lines
    managed.end(0, 3.0)
    assert managed.state.entry(0).state is JobState.COMPLETED and not folder.exists()
    line, = read_steps(managed.run.steps)[0]
    assert (line.step, line.start, line.end, line.began, line.cores, line.nodes) == ("batch", 1.0, 3.0, 1.0, 3, "n0 n1")
    managed.close()
