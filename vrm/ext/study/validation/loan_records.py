"""Reads from the journal and the records of a live run the loans of cores that users requested."""

from __future__ import annotations

from typing import Any
from collections.abc import Iterable

from vrm.model import bits
from vrm.model.cluster import Cluster
from vrm.results.jobs import JobRow
from vrm.run.loans import of_record
from vrm.ext.lending.simulated.recorded_lends import RequestedLend


def recorded(records: Iterable[dict[str, Any]], cluster: Cluster) -> list[RequestedLend]:
    """Return the loans in a journal that were requested by a command and that took effect, in the order of time."""
    asked: dict[int, RequestedLend] = {}
    found = []
    for record in records:
        if record["event"] == "lend" and record.get("command") and record["to"] is not None:
            loan = of_record(record)
            most = max((bits.count(loan.cores & cluster.layout.node_cores(node))
                        for node in range(len(cluster.nodes))), default=0)
            asked[record["number"]] = RequestedLend(loan.since, loan.lender, loan.borrower, most)
        elif record["event"] == "lent" and record["number"] in asked:
            found.append(asked[record["number"]])
    return found


def lent_to_no_job(records: Iterable[dict[str, Any]]) -> dict[int, float]:
    """Return the core seconds that each job (by id) lent to no job in its last execution, from the records of a
    journal."""
    open_: dict[int, tuple[int, int, float]] = {}
    found: dict[int, float] = {}
    for record in records:
        event, job_id = record["event"], record.get("id", -1)
        if event == "lend" and record["to"] is None:
            open_[record["number"]] = job_id, bits.count(of_record(record).cores), record["time"]
        over = [number for number, (lender, _, _) in open_.items()
                if (number == record["number"] if event == "regain"
                    else event in ("end", "again") and lender == job_id)]
        for number in over:
            lender, cores, since = open_.pop(number)
            found[lender] = found.get(lender, 0.0) + cores * (record["time"] - since)
        if event == "start":
            found.pop(job_id, None)
    return found


def run_time_on_all_cores(row: JobRow, cores_per_task: int, to_nodes: float) -> float:
    """Return how long (s) a job that ran would have run on all the cores that it requested, if its speed is
    proportional to its cores. `to_nodes` (core seconds), which it lent to no job, is not corrected for, because a
    replay has no such loans."""
    assert row.start is not None and row.end is not None
    run: float = row.end - row.start
    if row.borrowed:
        return float(row.borrowed) / (row.procs * cores_per_task)
    return run - max(0.0, row.lent - to_nodes) / row.processors if row.lent else run
