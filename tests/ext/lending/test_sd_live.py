"""SD-policy, live: jobs that would wait too long start on cores that a running one lends, and a simulation of
the same jobs decides the same."""

from __future__ import annotations

import math

import pytest
from conftest import Site, wait_until
from support.lending_site import PROGRAM, allowed

from vrm.live.nodes.topology import read_topology
from vrm.model import Booking, Cluster, Job
from vrm.results import shares
from vrm.run.journal import files as journal
from vrm.api import Machine, Recording, Rules, simulate
from vrm.workload.submission import Submission

ESTIMATES = {0: 600.0, 1: 60.0, 2: 450.0}


class Seen:
    """In which order jobs start in a simulation, by whom they are lent cores, and which cores they have."""

    def __init__(self) -> None:
        self.cluster = Cluster.regular(1, 1, 2)
        self.started: list[tuple[int, tuple[int, ...]]] = []
        self.had: list[shares.HeldCores] = []

    def booked(self, booking: Booking) -> None:
        placement = booking.placement
        lent = placement.lent
        self.started.append((booking.job.id, tuple(lender for lender, _ in lent)))

    def released(self, booking: Booking) -> None:
        self.had += shares.held(booking, math.inf, self.cluster)

    def revised(self, booking: Booking, before: float) -> None:
        pass

    def nodes_changed(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sd", "sd max_slowdown=10 reservations=all"])
def test_live_and_simulated_runs_start_and_share_alike(site: Site, policy: str) -> None:
    if len(read_topology().sockets[0]) < 2:
        pytest.skip("needs 2 cores on a socket")
    first, second = (set(core.cpus) for core in read_topology().sockets[0][:2])
    site.env["HERE"] = str(site.root)
    site.program("wait.x", PROGRAM)
    site.config(Nodes=1, Sockets=1, Cores=2, Scheduling={"Backfilling": policy},
                Launcher={"CheckBindings": "fail"})
    site.lines(*(f"wait.x 1 {seconds:g} 0 cores=2 malleable=1" for seconds in ESTIMATES.values()), end=True)
    manager = site.start()
    wait_until(lambda: (allowed(site.root, 0), allowed(site.root, 1)) == (first, second),
               "job 1 runs on the core that job 0 lends")
    assert not allowed(site.root, 2)
    (site.root / "done.1").touch()
    wait_until(lambda: allowed(site.root, 2) == second, "job 2 runs there, too")
    assert allowed(site.root, 0) == first
    (site.root / "done.2").touch()
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has both cores again")
    (site.root / "done.0").touch()
    assert site.finish(manager) and manager.returncode == 0
    rows = site.rows()
    assert {row.status for row in rows.values()} == {"completed"}

    # The same jobs, with the work that each has done.
    begin = min(row.submit for row in rows.values())
    work = {job_id: row.end - row.start - (row.lent + row.borrowed) / 2 for job_id, row in rows.items()}
    seen = Seen()
    simulate([Submission(Job(job_id, "wait.x", 1, ESTIMATES[job_id], row.submit - begin, cores=2, malleable=True),
                         work[job_id]) for job_id, row in sorted(rows.items())], Machine.of(1, sockets=1, cores=2),
             Rules(policy="compact", backfill=policy), record=Recording(watchers=[seen]))
    assert [record["id"] for record in journal.read(site.log / "journal")
            if record["event"] == "start"] == [job_id for job_id, _ in seen.started]
    assert seen.started == [(0, ()), (1, (0,)), (2, (0,))]
    assert rows[0].mates == "1,2" and rows[1].mates == rows[2].mates == "0"
    held = shares.read(site.log / "shares.csv")
    for borrower in (1, 2):
        here = [next(each for each in found if each.job == borrower) for found in (held, seen.had)]
        lenders = [{each.cores for each in found if each.job == 0 and each.begin <= mine.begin < each.end}
                   for found, mine in zip((held, seen.had), here)]
        assert [mine.cores for mine in here] == ["0/1", "0/1"] and lenders == [{"0/0"}, {"0/0"}]
