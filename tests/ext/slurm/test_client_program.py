"""The part that runs the program behind `vrm run --`. With a real run's directory, and a real program."""

from __future__ import annotations

import selectors
from pathlib import Path

import pytest
from conftest import wait_until
from support.executor import Managed, root  # noqa: F401

from vrm.ext.slurm.client_program import ClientProgram


@pytest.mark.parametrize("text,status", [("exit 3", 3), ("kill -9 $$", 137), ("command -v sbatch >found", 0)])
def test_the_run_expects_jobs_while_the_program_lasts(root: Path, text: str, status: int) -> None:
    managed = Managed(root)
    found = root / "found"
    script = root / "client.sh"
    script.write_text(f"#!/bin/sh\ncd {root}\n{text}\n")
    script.chmod(0o755)
    with selectors.DefaultSelector() as selector, ClientProgram([str(script)], managed.run, managed.queue, {}) as client:
        client.begin(selector)
        wait_until(lambda: not client.expects(0.0), "the program has ended")
    assert (client.status, client.name, client.trouble) == (status, "client.sh", "")
    if not status:
        assert [Path(line).parent for line in found.read_text().split()] == [managed.run.programs]
    managed.close()


def test_a_program_that_is_not_there_is_said(root: Path) -> None:
    managed = Managed(root)
    with selectors.DefaultSelector() as selector, ClientProgram(["/gone"], managed.run, managed.queue, {}) as client:
        client.begin(selector)
        wait_until(lambda: not client.expects(0.0), "it could not be started")
    assert (client.status, client.trouble) == (127, "/gone: No such file or directory")
    managed.close()
