"""A run whose jobs are submitted with the commands of batch systems."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Site, wait_until
from vrm.ext.slurm.calls import build
from vrm.ext.building import compiling


class Cluster:
    """A manager, and a directory with the commands."""

    def __init__(self, site: Site, commands: Path) -> None:
        self.site, self.commands = site, commands
        self.env = {**site.env, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "VRM_DIRECTORY": str(site.log)}
        site.config(Launcher={"Kind": "direct"}, Cores=2)
        site.lines(end=False)

    def start(self, *arguments: str) -> None:
        self.process = self.site.start("run", "--wait", *arguments)
        wait_until(lambda: self.call("squeue").returncode == 0, "the manager answers")

    def stop(self) -> str:
        assert self.site.run("stop", "--now").returncode == 0
        return self.site.finish(self.process)

    def call(self, *words: str, data: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.commands / words[0]), *words[1:]], cwd=self.site.root, input=data, text=True,
                              env={**self.env, **env}, capture_output=True, timeout=60, check=False)

    def said(self, *words: str, data: str = "", **env: str) -> str:
        done = self.call(*words, data=data, **env)
        assert (done.returncode, done.stderr) == (0, ""), (words, done)
        return done.stdout

    def sbatch(self, *words: str, data: str = "", **env: str) -> int:
        return int(self.said("sbatch", "--parsable", *words, data=data, **env))

    def state(self, job_id: int) -> str:
        return self.said("sacct", "-nX", "-j", str(job_id), "-o", "state%30").strip()

    def ended(self, *ids: int) -> None:
        wait_until(lambda: self.said("squeue", "-h", "-j", ",".join(map(str, ids)) + ",0") == "", f"{ids} ended")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the commands: the C program, if there is a compiler."""
    place = tmp_path_factory.mktemp("commands")
    assert build.link(place) == any(map(shutil.which, compiling.COMPILERS))
    return place
