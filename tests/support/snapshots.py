"""Makes snapshots of a run like those that a manager writes."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, settings


# A slow machine must not fail a test, and the results of fixtures may be used for several examples.
UNTIMED = settings(deadline=None, suppress_health_check=[
    HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
NOW = 1650548407.0  # 13:40:07 in UTC


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def running(id, app, procs, start, estimate, nodes=("n0",)):
    return {"id": id, "app": app, "procs": procs, "state": "running", "submit": start - 5,
            "estimate": estimate, "exclusive": False, "start": start,
            "expected_end": start + estimate, "nodes": list(nodes)}


def queued(id, app, procs, estimate, **more):
    return {"id": id, "app": app, "procs": procs, "state": "queued", "submit": NOW - 10,
            "estimate": estimate, "exclusive": False, **more}


def snapshot(nodes=(), jobs=(), **more):
    nodes = [{"name": name, "up": up, "sockets": sockets} for name, up, sockets in nodes]
    return {"format": 1, "time": NOW - 2,
            "manager": {"host": "login1", "pid": 4242, "start": NOW - 60, "phase": "running"},
            "scheduling": {"algorithm": "WFP3", "backfilling": "easy", "policy": "strip"},
            "emulated": False, "nodes": nodes, "jobs": list(jobs),
            "ended": {"completed": 3, "failed": 1, "timeout": 0, "cancelled": 0, "refused": 2},
            **more}


JOBS = [running(1, "lu.B.x", 2, NOW - 17, 45.0), running(0, "ft.B.x", 6, NOW - 27, 60.0),
        queued(2, "mg.B.x", 8, 10.0, expected_start=NOW + 33), queued(3, "lu.B.x", 8, 120.0)]
NODES = [("n0", True, [[0, 0, 1, 1], [0, 0, None, None]]),
         ("n1", True, [[0, 0, None, None], [None] * 4]), ("n2", False, [[None] * 4] * 2)]


def many(*kinds, prefix="n"):
    """Return nodes n0, n1, ...; each kind is (number, sockets, up)."""
    nodes = []
    for count, sockets, up in kinds:
        nodes += [(f"{prefix}{len(nodes) + i}", up, sockets) for i in range(count)]
    return nodes
