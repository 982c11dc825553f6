"""Clients of Slurm, unchanged, on the test cluster's own Slurm and on vrm inside one allocation of it: equal results.

They are in an environment of their own, which VRM_TEST_CLIENTS names (`.ci/run` makes it from `.ci/clients.txt`);
an ordinary account runs them where it can reach that environment and vrm.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from collections.abc import Container, Iterator

import pytest

from conftest import wait_until
from support.testbed import Testbed, missing
from support.clients import Drives, EXPECTED, ON_VRM, Results, known


pytestmark = [pytest.mark.testbed, pytest.mark.slow, pytest.mark.xdist_group("clients")]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """Of all clients that are asked for, on Slurm and on vrm, which run at the same time on different nodes."""
    asked = {item.callspec.params["client"] for item in request.session.items
             if isinstance(item, pytest.Function) and item.module is request.module}
    python = Path(os.environ.get("VRM_TEST_CLIENTS", ""), "bin", "python")
    if not os.environ.get("VRM_TEST_CLIENTS") or not python.exists():
        pytest.skip("VRM_TEST_CLIENTS names no environment with the clients (.ci/clients.txt)")
    reason = missing(accounting=True)
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="vrm-clients-"))
    folder.chmod(0o755)
    try:
        with Testbed(5, accounting=True, directory=folder / "cluster", accounts=["alice"]) as testbed:
            yield run_all(testbed, python, asked)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_all(testbed: Testbed, python: Path, asked: Container[str]) -> Results:
    """Run the clients that are asked for on both at the same time, some side by side."""
    drives, clients = Drives(testbed, python), [client for client in known() if client in asked]
    on_vrm = drives.on_vrm(clients, 4)
    on_slurm = drives.on_slurm([client for client in clients if client not in ON_VRM], 4)
    wait_until(on_slurm, "the clients have ended on Slurm", limit=600)
    wait_until(on_vrm, "and on vrm", limit=600)
    return drives.outcomes(clients)


@pytest.mark.parametrize("client", EXPECTED)
def test_a_client_finds_the_same_on_vrm_as_on_slurm(client: str, results: Results) -> None:
    if client not in results["vrm"]:
        pytest.skip("no jube (Debian: jube)")
    for name in ("slurm", "vrm") if client not in ON_VRM else ("vrm",):
        ended = results[name][client]
        assert ended.found == EXPECTED[client], f"{client} on {name}: {ended.said}"
