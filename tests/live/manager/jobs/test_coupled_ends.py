"""A program of a coupled job that ends before the others."""

from __future__ import annotations

import pytest
from conftest import Site, mpiexecs, mpiruns, wait_until

LAUNCHERS = [*({"Kind": "openmpi", "Mpirun": mpirun, "AllowRoot": True} for mpirun in mpiruns()),
             *({"Kind": "hydra", "Mpirun": mpiexec} for mpiexec in mpiexecs())]

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher["Mpirun"].split("/")[-4:][0])
@pytest.mark.parametrize("code", [0, 3])
def test_a_program_that_ends_early(site: Site, launcher: dict[str, object], code: int) -> None:
    """Its cores stay the job's until the other program has ended. Where it fails, that ends both; MPICH waits for the
    other one, and the job has failed then."""
    site.program("short.x", f'touch "{site.root}/ended"\nexit {code}\n')
    site.program("long.x", f'touch "{site.root}/began"\nwhile [ ! -e "{site.root}/go" ]; do sleep 0.05; done\n')
    site.program("after.x", f'touch "{site.root}/after"\n')
    site.config(Nodes=1, Sockets=1, Cores=2, Launcher=launcher, Allocation={"Policy": "pack"})
    site.lines("pair 2 60 0 coupled='short.x 1 : long.x 1'", "after.x 1 60 0")
    manager = site.start()
    wait_until(lambda: (site.root / "ended").exists(), "the first program has ended")
    if code == 0 or launcher["Kind"] == "hydra":
        wait_until(lambda: (site.root / "began").exists(), "the second one runs")
        assert site.run("queue").returncode == 0 and not (site.root / "after").exists(), "its core is not free"
        (site.root / "go").touch()
    site.finish(manager)
    rows = site.rows()
    assert {job: row.status for job, row in rows.items()} == {0: "failed" if code else "completed", 1: "completed"}
    assert rows[0].exit_code == code and rows[1].start >= rows[0].end
