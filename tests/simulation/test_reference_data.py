"""Published traces give the schedules of an independent reference simulator, job for job.

The traces are not part of the project. VRM_REFERENCE_DATA names the folder that has them (in
`swf/`); the default is `../shared/data` beside the checkout. The same kind of numbers for a
small workload is checked in test_engine.py wherever the tests run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vrm.api import Rules, simulate

DATA = Path(os.environ.get("VRM_REFERENCE_DATA",
                           Path(__file__).resolve().parents[3] / "shared" / "data")) / "swf"
KTH, LUBLIN = "KTH-SP2-1996-2.1-cln.swf.gz", "lublin_256.swf.gz"
F1 = "-(log10(max(t, 0.1)) * n + 870 * log10(max(s, 0.1)))"

TABLE = [
    (KTH, "FCFS", "none", 27992, 218832.062, 4294.5004, "c3acf966d2542e5c"),
    (KTH, "FCFS", "easy", 27992, 6351.4934, 86.3712, "3a4397cfe6c42911"),
    (KTH, "SJF", "none", 27992, 12937.0402, 131.668, "d45caa96cc298ac1"),
    (KTH, "SJF", "easy", 27992, 4377.6208, 41.8744, "462c413e9a49431e"),
    (KTH, "WFP3", "easy", 27992, 5002.5019, 52.2063, "a2171e268f11187e"),
    (KTH, F1, "easy", 27992, 5716.9964, 48.8142, "1708356fe7f34ea3"),
    (KTH, "FCFS", "conservative", 27992, 7006.1519, 89.4448, "d33e8e00d70a5dce"),
    (LUBLIN, "FCFS", "easy", 10000, 97155.9945, 590.0538, "a0d96fb77b990e9e"),
    (LUBLIN, "WFP3", "none", 10000, 751198.4976, 232.4247, "f86ef871c056a5af"),
    (LUBLIN, "FCFS", "conservative", 10000, 131567.5089, 489.2013, "6af9a2c7970aa32a"),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0][:6]}-{row[1][:4]}-{row[2]}")
def test_reference_table(row: tuple[str, str, str, int, float, float, str]) -> None:
    trace, algorithm, backfill, jobs, wait, slowdown, starts = row
    if not (DATA / trace).exists():
        pytest.skip(f"{trace} is not in {DATA} (name its folder in VRM_REFERENCE_DATA)")
    found = simulate(DATA / trace, rules=Rules(algorithm=algorithm, backfill=backfill)).summary
    assert (found["jobs"], round(found["average_wait"], 4),
            round(found["average_bounded_slowdown"], 4), found["start_hash"]) \
        == (jobs, wait, slowdown, starts)
