"""Jobs are looked at while they run. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from support.executor import Managed, asked, root  # noqa: F401
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.node_watch import BindingsFound
from vrm.live.nodes.agent_events import MemoryUse


def test_a_job_on_the_cores_of_others_or_with_too_much_memory_is_ended(root: Path) -> None:
    managed = Managed(root, "ok.x 1 99 0 mem_per_task=1M", "ok.x 1 99 0", Memory={"Over": "kill"},
                      Launcher={"Kind": "openmpi", "Mpirun": "bin/mpirun", "AllowRoot": True, "CheckBindings": "fail"},
                      NodeClasses=[{"Hosts": "n[0-1]", "Memory": "1G"}])
    managed.start(1.0)
    assert managed.live.running.keys() == {0, 1}, managed.said
    managed.agents.says += [MemoryUse("n0", 0, 5 << 20, True), BindingsFound(1, BindingCheck("mismatch", ("rank 0 is on core 3",)))]
    managed.turn(2.0)
    assert {job_id: running.intent for job_id, running in managed.live.running.items()} == {0: "memory", 1: "binding"}
    assert managed.live.running[0].why == "it used 5M of memory on n0, and asked for 1M there"
    managed.close()
