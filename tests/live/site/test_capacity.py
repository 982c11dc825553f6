"""A run that goes on with fewer nodes than it had, or than were granted: what does not fit waits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Sequence

import pytest

from conftest import Site, wait_until
from vrm.live.batch.base import systems
from vrm.live.nodes.geometry import cluster_geometry
from vrm.live.nodes.topology import NodeFacts, Topology, read_topology
from vrm.live.site.capacity import NodesOf, CapacityCheck, WholeNodes
from vrm.model import Cluster, Job, JobState, Node
from vrm.model.job import PLAIN, Request
from vrm.run.job_book import JobBook
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.system.hosts import host_name

LOG = 'echo "$VRM_JOB_ID" >> "$(dirname "$0")/log"\n'
WAIT = LOG + 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n'


def nodes_of(number: int) -> list[Node]:
    return [Node(f"n{i}", (4,)) for i in range(number)]


def scheduler_on(cluster: Cluster) -> Scheduler:
    return Scheduler(make_ordering("FCFS"), make_backfilling("none"),
                     make_policy("compact", cluster))


def room_of(number: int, granted: Sequence[Node] = ()) -> CapacityCheck:
    def on(nodes: Sequence[Node]) -> NodesOf:
        return make_policy("compact", Cluster(nodes)).nodes

    cluster = Cluster(nodes_of(number))
    return CapacityCheck(scheduler_on(cluster), cluster.nodes, on, granted)


# What is judged.


def test_a_job_lacks_room_here_or_everywhere() -> None:
    room = room_of(1, granted=nodes_of(2))
    small, large, huge, vast = (Job(i, "a.x", procs, 1.0, 0.0)
                                for i, procs in enumerate((4, 8, 12, 99)))
    assert not room.lacks(small) and not room.never(small)
    assert "8 ranks do not fit on 1 node(s)" in room.lacks(large) and not room.never(large)
    assert room.never(huge) and room.never(vast)
    room.add(nodes_of(3))  # of an earlier allocation
    assert room.lacks(huge) and not room.never(huge) and room.never(vast)


def test_a_job_that_names_nodes_waits_for_those_of_another_allocation() -> None:
    """Of names that no node has had the nearest is said; to leave out a node that is not there costs nothing."""
    room = room_of(2, granted=nodes_of(3))

    def job(**names: list[str]) -> Job:
        return Job(0, "a.x", 2, 1.0, request=Request.of(2, **names))
    there, granted, nowhere = (job(nodelist=[name]) for name in ("n1", "n2", "m2"))
    assert not room.lacks(there) and not room.never(there)
    assert room.lacks(granted) == "there is no node n2; there are n[0-1]" and not room.never(granted)
    assert room.never(nowhere) == "there is no node m2; there are n[0-1]"
    without, strange = job(exclude=["n2"]), job(exclude=["n0", "m2"])
    assert not room.lacks(without) and not room.never(without)
    assert not room.lacks(strange) and room.never(strange) == "there is no node m2; there are n[0-2]"
    assert "exclude leaves none" in room.lacks(job(exclude=["n0", "n1"])) and not room.never(job(exclude=["n0", "n1"]))


def test_a_waiting_job_without_room_is_not_in_the_queue() -> None:
    cluster = Cluster(nodes_of(1))
    book = JobBook(scheduler_on(cluster).new_queue(), room_of(1).lacks)
    large = Job(0, "a.x", 8, 1.0, 0.0)
    book.know(large, PLAIN, JobState.RUNNING)
    assert not book.again(0, retry=True)  # it ran on more nodes
    assert book.lacking == [0] and not len(book.queue) and book.waiting == 1
    book.hold(0)
    book.hold(0, held=False)
    assert book.lacking == [0] and not len(book.queue)
    book.ended(0, JobState.CANCELLED, 0.0)
    assert book.lacking == [] and book.waiting == 0


def test_silent_nodes_count_as_granted() -> None:
    facts = {"a": NodeFacts(Topology.regular("a", (4, 4)))}
    found = cluster_geometry(["a", "b", "c"], facts, failed={"b": "off", "c": "off"},
                             granted={"a": 8, "b": 8, "c": 2})
    assert found.nodes == (Node("a", (4, 4)),)
    assert found.granted == (Node("a", (4, 4)), Node("b", (4, 4)), Node("c", (2,)))
    one = cluster_geometry(["a", "b"], facts, nodes=1, failed={"b": "off"})
    assert one.granted == one.nodes


# Runs.


@pytest.fixture
def wide(site: Site) -> Site:
    """A site of emulated nodes with a queue for two of them."""
    site.program("a.x", LOG)
    return site


def emulate(site: Site, nodes: int, **keys: Any) -> None:
    site.config(**{"Nodes": nodes, "Emulate": True, **keys})


def log(site: Site) -> list[int]:
    path = site.bin / "log"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def left_over(site: Site) -> None:
    """Run until a job is left to the next allocation, and stop."""
    manager = site.start()
    wait_until(lambda: "waits for another allocation" in site.said(manager), "a job is late")
    manager.terminate()
    site.finish(manager)


def test_fewer_nodes_than_before(wide: Site) -> None:
    """Of two jobs the larger is left over by the first allocation; the second has one node, and
    the third has two again."""
    emulate(wide, 2, End={"At": 30, "Margin": 10})
    wide.lines("a.x 2 200 0", "a.x 1 1 0")
    first = wide.run()
    assert first.returncode == 1 and log(wide) == [1]
    emulate(wide, 1)
    wide.append("a.x 1 1 0\na.x 9 1 0\n")  # behind `end`: the file is not read any more
    second = wide.run()
    assert "Traceback" not in second.stdout + second.stderr
    assert "#0 waits for more nodes: a.x: 2 ranks do not fit on 1 node(s)" in second.stdout
    assert ("1 job(s) still wait (1 of them for more nodes than there are): the same command "
            "continues them") in second.stdout
    assert second.returncode == 1 and log(wide) == [1]
    assert wide.state()["jobs"][0]["lacks"]  # type: ignore[index]
    emulate(wide, 2)
    third = wide.run()
    assert third.returncode == 0, third.stdout + third.stderr
    assert sorted(log(wide)) == [0, 0, 1]  # two ranks
    assert wide.statuses() == {0: "completed", 1: "completed"}


def test_a_new_job_that_fits_the_earlier_nodes_waits_and_one_that_never_fits_is_refused(
        wide: Site) -> None:
    emulate(wide, 2, End={"At": 30, "Margin": 10})
    wide.lines("a.x 2 200 0", end=False)
    left_over(wide)
    emulate(wide, 1)
    wide.append("a.x 2 1 0\na.x 3 1 0\na.x 1 1 0\nend\n")
    again = wide.run()
    assert "Traceback" not in again.stdout + again.stderr
    assert wide.statuses() == {2: "refused", 3: "completed"}
    emulate(wide, 2)
    assert wide.run().returncode == 1  # the refused one
    assert wide.statuses() == {0: "completed", 1: "completed", 2: "refused", 3: "completed"}


def test_a_job_that_is_interrupted_and_finds_fewer_nodes_waits(wide: Site) -> None:
    emulate(wide, 2)
    wide.program("wait.x", WAIT)
    wide.lines("wait.x 2 60 0 retries=1", "a.x 1 1 0 after=any:0")
    manager = wide.start("--once")
    wait_until(lambda: wide.running() == ["0"], "the job runs")
    manager.kill()
    manager.wait()
    emulate(wide, 1)
    other = wide.start("--once")
    said = wide.finish(other)
    assert "Traceback" not in said, said
    assert "runs on nodes that are missing" in said
    assert "#0 wait.x waits again: interrupted: n0, n1 are missing" in said
    assert "1 of them for more nodes than there are" in said
    wide.nothing_left()
    emulate(wide, 2)
    (wide.bin / "wait.x.go").touch()
    assert wide.run("--once").returncode == 0
    assert wide.statuses() == {0: "completed", 1: "completed"}


def test_a_queue_that_is_followed_says_that_only_such_jobs_are_left(wide: Site) -> None:
    emulate(wide, 2, End={"At": 30, "Margin": 10})
    wide.lines("a.x 2 200 0", end=False)
    left_over(wide)
    emulate(wide, 1)
    manager = wide.start("--wait")
    wait_until(lambda: "only jobs are left that need more nodes than there are (0)"
               in wide.said(manager), "it is said")
    wide.append("a.x 1 1 0\n")
    wait_until(lambda: log(wide) == [1] if log(wide) else False, "a new line is run")
    wide.append("end\n")
    assert "1 of them for more nodes" in wide.finish(manager)


def test_nodes_that_do_not_answer_at_the_start(wide: Site, tmp_path: Path) -> None:
    """One of two hosts answers: what fits there runs, the rest waits, nothing is refused that
    fits the granted nodes, and the next start goes on with the same run."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{host_name()} slots=1\nfar-away slots=1\n")
    wide.config(Nodes="auto", Sockets=1, Cores=1, Launcher={"Kind": "openmpi"},
                Hosts={"File": str(hosts), "Reach": ["/bin/false"]})
    wide.lines("a.x 2 1 0", "a.x 1 1 0", "a.x 3 1 0")
    first = wide.run("--once")
    assert "far-away is left out" in first.stdout
    assert "#0 waits for more nodes" in first.stdout
    assert wide.statuses() == {1: "completed", 2: "refused"}
    again = wide.run("--once")
    assert "continuing the run of 3 job(s): 2 ended, 0 started, 1 waiting" in again.stdout
    assert log(wide) == [1]


# What a batch system has not granted.


def test_a_refusal_names_granted_and_present_cores_and_the_remedy() -> None:
    topology = replace(Topology.regular("n0", (4, 4)), whole=(4, 4))
    facts = {host: NodeFacts(replace(topology, host=host)) for host in ("n0", "n1")}
    shape = cluster_geometry(["n0", "n1"], facts, granted={"n0": 1, "n1": 1})
    cluster = Cluster(shape.nodes)
    whole = WholeNodes(shape.whole, 2, systems()["slurm"])

    def on(nodes: Sequence[Node]) -> NodesOf:
        return make_policy("pack", Cluster(nodes)).nodes

    room = CapacityCheck(Scheduler(make_ordering("FCFS"), make_backfilling("none"), make_policy("pack", cluster)),
                cluster.nodes, on, whole=whole)
    assert not room.never(Job(0, "a.x", 2, 1.0, 0.0))
    assert room.never(Job(1, "a.x", 6, 1.0, 0.0)).endswith(
        "; Slurm granted 2 of the 16 cores of these 2 nodes: ask for whole nodes (sbatch --exclusive, "
        "salloc --exclusive)")
    assert "granted" not in room.never(Job(2, "a.x", 17, 1.0, 0.0))  # whole nodes would not help
    assert cluster_geometry(["n0"], facts, granted={"n0": 8}).whole == ()
    assert cluster_geometry(["n0"], facts, cores=1, granted={"n0": 4}).whole == ()  # as the configuration wishes


def test_cores_that_a_cpuset_hides_are_present() -> None:
    (first, *others), = [[core.cpus for socket in read_topology().sockets for core in socket]]
    if not others:
        pytest.skip("needs two cores")
    command = f"import os; os.sched_setaffinity(0, {{{first[0]}}}); " \
              "from vrm.live.nodes.topology import read_topology; print(sum(read_topology().whole))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1


def test_check_and_run_say_that_the_batch_system_granted_fewer_cores(site: Site) -> None:
    """In a job of Slurm that has one core of this machine."""
    if read_topology().cores < 2:
        pytest.skip("needs two cores")
    site.config(Nodes="auto", Sockets="auto", Cores="auto")
    site.program("a.x", "exit 0\n")
    site.lines("a.x 1 10 0", "a.x 2 10 0")
    inside = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": host_name(), "SLURM_JOB_CPUS_PER_NODE": "1",
              "SLURM_NNODES": "1"}
    remedy = "cores of this node: ask for whole nodes (sbatch --exclusive, salloc --exclusive)"
    checked = site.run("check", **inside)
    assert checked.returncode == 1 and remedy in checked.stdout
    # Tests beside this one may have claimed both cores for a while.
    wait_until(lambda: site.run(**inside).returncode != 2, "a core of this machine is free")
    assert site.statuses() == {0: "completed", 1: "refused"}
    assert site.rows()[1].reason.endswith(remedy)
