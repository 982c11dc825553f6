"""The page of all commands: each is on it, and each example runs, in the order of the page."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

from conftest import Site, wait_until
from vrm import cli
from vrm.commands.parsing import every

PAGE = Path(__file__).parent.parent.parent / "docs" / "commands.md"


def examples() -> List[Tuple[str, str]]:
    """Command and example of each row of the table."""
    rows = re.findall(r"^\| (?:`([^`]+)`)? ?\| .* \| `(vrm [^`]+)` \|$", PAGE.read_text(), re.M)
    return [(name, typed) for name, typed in rows]


def test_every_command_is_on_the_page() -> None:
    known = {parser.prog.partition(" ")[2] for parser, acts in every(cli.parser()) if acts}
    assert {name for name, _ in examples() if name} == known
    for name, typed in examples():
        assert typed.startswith(f"vrm {name}")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpicc"), reason="needs mpicc for the benchmarks")
def test_every_example_runs_as_it_is_typed(site: Site) -> None:
    """One session; a manager runs from `submit` to `stop`."""
    site.config_file.unlink()
    (site.root / "plan.yaml").write_text("Mode: simulated\nQueues: ['lublin:16:20']\n"
                                         "Scenarios: [{Scheduling.Algorithm: SJF}]\n")
    site.program("first", "echo one\n")

    def vrm(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-m", "vrm.cli", *words], cwd=site.root,
                              env=site.env, text=True, capture_output=True, timeout=300,
                              stdin=subprocess.DEVNULL, check=False)

    for name, typed in examples():
        if name == "submit":
            site.start()
            wait_until(lambda: "nothing to do; waiting for lines" in site.said(site.started[0]),
                       "the manager has done its queue")
        done = vrm(*shlex.split(typed)[1:])
        assert done.returncode == 0, f"{typed}\n{done.stdout}{done.stderr}"
        if name == "stop":
            site.finish(site.started[0])
        if name == "npb build":
            (site.root / "queue").write_text("ep.S.x 1 60 0\nfirst 1 60 0\n")
