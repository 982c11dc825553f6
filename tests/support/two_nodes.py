"""A run on two nodes of the test cluster, whose jobs run until the test ends them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Sequence

import yaml
from conftest import wait_until
from support.testbed import Testbed

from vrm.results.jobs import read_jobs
from vrm.run.journal import files as journal

ROOT = Path(__file__).resolve().parents[2]


class TwoNodes:
    """A run on the nodes n1 and n2 of the test cluster: job 0 is on both, job 1 needs cores of one. `lines` replaces this
    queue."""

    def __init__(self, testbed: Testbed, root: Path, cores: int = 4, lines: Sequence[str] = (), **keys: Any) -> None:
        self.testbed, self.root, self.log = testbed, root, root / "log"
        program = root / "bin" / "wait"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\ntouch "{root}/ran.$VRM_JOB_ID.$(hostname).$$"\n'
                           f'until [ -e "{root}/done.$VRM_JOB_ID" ]; do sleep 0.05; done\n')
        program.chmod(0o755)
        (root / "hosts").write_text("n[1-2]\n")
        (root / "queue").write_text("".join(f"{line}\n" for line in lines or (
            f"wait 2 600 0 cores={cores} malleable=1 nodes=2 tasks_per_node=1", f"wait 1 60 0 cores={cores} malleable=1")))
        (root / "vrm.yaml").write_text(yaml.safe_dump({
            "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log", "Grace": 0.5,
            "Launcher": {"Kind": "openmpi", "AllowRoot": True, "Transport": "tcp"},
            "Hosts": {"File": "hosts", "Reach": "ssh", "Timeout": 4}, **keys}))

    def _words(self, *words: str) -> list[Any]:
        return [sys.executable, "-m", "vrm.cli", "-c", self.root / "vrm.yaml", *words]

    def vrm(self, *words: str) -> None:
        done = self.testbed.exec("n0", self._words(*words), env={"PYTHONPATH": str(ROOT)}, cwd=self.root)
        assert done.returncode == 0, done.stderr

    def ran(self, job: int) -> list[str]:
        return sorted(path.name.split(".")[2] for path in self.root.glob(f"ran.{job}.*"))

    def events(self) -> list[tuple[str, int]]:
        return [(each["event"], each.get("id", -1)) for each in journal.read(self.log / "journal")]

    def statuses(self) -> dict[int, str]:
        return {row.id: row.status for row in read_jobs(self.log / "jobs.csv")}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the manager, with job 0 on both nodes; afterwards cancel job 0 and end job 1 and the run."""
        with open(self.root / "said", "w") as said:
            manager = self.testbed.popen("n0", self._words(), env={"PYTHONPATH": str(ROOT)}, cwd=self.root,
                                         stdout=said, stderr=said)
            try:
                wait_until(lambda: self.ran(0) == ["n1", "n2"], "job 0 runs on both nodes")
                yield
                self.vrm("cancel", "0")
                (self.root / "done.1").touch()
                with open(self.root / "queue", "a") as file:
                    file.write("end\n")
                manager.wait(60)
            finally:
                manager.kill()
                manager.wait()
                for node in ("n1", "n2"):  # for the next test on this cluster
                    if not self.testbed.alive(node):
                        self.testbed.restart(node)
