"""The batch system around vrm: what squeue, sinfo, qstat and pbsnodes print, as a snapshot. The texts of
Slurm are of 22.05, those of qstat of OpenPBS 23.06, as they were printed."""

from __future__ import annotations

import json
import math
import random
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.ext.forecast.site.forecast import forecast_site
from vrm.ext.forecast.site import outer_pbs, outer_slurm
from vrm.ext.forecast.site.outer import output_of
from vrm.ext.forecast.site.snapshot import Snapshot, SnapshotError

NOON = "2026-11-22T12:00:00"
NOW = time.mktime(time.strptime(NOON, "%Y-%m-%dT%H:%M:%S"))


def date(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW + seconds))


SQUEUE = f"""\
2|PENDING|compute|ann|4294901758|4|4|5:00|{date(-10)}|N/A||Resources|(null)|(null)|NO|a|b
3|PENDING|compute|bob|4294901757|1|1|2:00|{date(-9)}|N/A||Priority|(null)|(null)|NO|c
4|PENDING|compute|ann|4294901756|1|1|1-00:00:00|{date(-8)}|N/A||Priority|(null)|(null)|OK|d
5_1|PENDING|compute|ann|4294901755|1|1|UNLIMITED|{date(-7)}|N/A||JobHeldUser|(null)|(null)|OK|e
6|PENDING|compute,other|ann|4294901754|1|1|1:00|{date(-7)}|N/A||Dependency|(null)|afterok:3(unfulfilled)|OK|f
7|PENDING|compute|ann|4294901753|1|1|1:00|{date(-7)}|{date(3600)}||BeginTime|(null)|(null)|OK|g
8|COMPLETED|compute|ann|4294901753|1|1|1:00|{date(-7)}|{date(-6)}|n0|None|(null)|(null)|OK|h
1|RUNNING|compute|ann|4294901759|2|16|10:00|{date(-20)}|{date(0)}|n[0-1]|None|(null)|(null)|NO|a|b
"""
SINFO = """\
n0|compute*|8|alloc|infinite
n1|compute*|8|alloc|infinite
n2|compute*|8|idle~|infinite
n3|compute*|8|mix|infinite
n3|other|8|mix|1:00:00
n4|compute*|8|drain*|infinite
"""


def starts(site: Snapshot) -> dict[str, float]:
    return {key: each.start for key, each in forecast_site(site).items()}


def test_a_site_under_slurm() -> None:
    site = outer_slurm.parse(SQUEUE, SINFO, NOW)
    found = forecast_site(site)
    assert {key: each.start for key, each in found.items()} == {
        "2": 600, "3": 0, "4": 900, "5_1": math.inf, "6": 120, "7": 3600}
    assert [node for node, _ in found["2"].places] == [0, 1, 2, 3]  # not on the one that is drained
    assert "JobHeldUser" in found["5_1"].reason
    jobs = {job.key: job for job in site.jobs}
    assert (jobs["2"].name, jobs["2"].user, jobs["2"].total) == ("a|b", "ann", 32)
    assert jobs["1"].start == 0 and jobs["1"].wall == 600 and "8" not in jobs


@pytest.mark.parametrize("reason", ["PartitionNodeLimit", "PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxNodePerJobLimit"])
def test_a_job_beyond_the_limits_of_its_partition_does_not_start(reason: str) -> None:
    found = forecast_site(outer_slurm.parse(SQUEUE.replace("Resources", reason), SINFO, NOW))
    assert found["2"].start == math.inf and reason in found["2"].reason


def test_what_squeue_prints_as_json() -> None:
    def job(number: int, state: Any, **more: Any) -> dict[str, Any]:
        return {"job_id": number, "job_state": state, "shared": "none", "cpus": 4, "node_count": 4,
                "time_limit": 5, "submit_time": int(NOW) - 10, "start_time": 0, "nodes": "",
                "priority": 10 - number, "partition": "compute", "user_name": "ann", "name": "a|b",
                "state_reason": "Resources", "dependency": "", "resv_name": "", "array_job_id": 0,
                "array_task_id": None, **more}

    def new(number: int) -> dict[str, Any]:
        """As of Slurm 23.11."""
        return {"set": True, "infinite": False, "number": number}

    old = [job(1, "RUNNING", cpus=16, node_count=2, time_limit=10, start_time=int(NOW), nodes="n[0-1]"),
           job(2, "PENDING"), job(3, "PENDING", cpus=1, node_count=1, time_limit=2)]
    newer = [{**each, "job_state": [each["job_state"]], "shared": ["none"], **{
        key: new(each[key]) for key in ("cpus", "node_count", "time_limit", "submit_time",
                                        "start_time", "priority")}} for each in old]
    for jobs in (old, newer):
        assert starts(outer_slurm.parse(json.dumps({"jobs": jobs}), SINFO, NOW)) == {"2": 600, "3": 0}


def test_reservations_of_slurm() -> None:
    text = (f"ReservationName=maint StartTime={date(300)} EndTime={date(9000)} Duration=02:00:00 "
            "Nodes=n[0-3] NodeCnt=4 Flags=MAINT Users=root State=INACTIVE\n"
            "No reservations in the system\n")
    found = starts(outer_slurm.parse(SQUEUE, SINFO, NOW, text))
    assert found["3"] == 0 and found["2"] == 9000  # it does not fit before


CTIME = "%a %b %d %H:%M:%S %Y"


def stamp(seconds: float) -> str:
    return time.strftime(CTIME, time.localtime(NOW + seconds))


QSTAT = f"""\
Job Id: 0.login
    Job_Name = first.sh
    Job_Owner = ann@login
    job_state = R
    queue = workq
    exec_host = n0/0*2+n1/0*2
    exec_vnode = (n0:ncpus=2)+(n1:ncpus=2)
    Priority = 0
    qtime = {stamp(-70)}
    Resource_List.ncpus = 4
    Resource_List.nodect = 2
    Resource_List.select = 2:ncpus=2:mpiprocs=2
    Resource_List.walltime = 00:10:00
    stime = {stamp(-60)}
    Variable_List = PBS_O_HOME=/home,PBS_O_LOGNAME=pbsu,
\tPBS_O_PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:/w
\tork = x
    comment = Job run at Sun Nov 22 at 03:54 on (n0:ncpus=2)+(n1:ncpus=2)

Job Id: 1.login
    Job_Name = whole
    Job_Owner = bob@login
    job_state = Q
    queue = workq
    Priority = 0
    qtime = {stamp(-50)}
    Resource_List.select = 2:ncpus=4
    Resource_List.walltime = 01:00:00

Job Id: 2.login
    Job_Name = uneven
    Job_Owner = ann@login
    job_state = Q
    queue = workq
    Priority = 0
    qtime = {stamp(-40)}
    Resource_List.select = 1:ncpus=1+1:ncpus=2
    Resource_List.walltime = 00:05:00

Job Id: 3.login
    Job_Name = held
    Job_Owner = ann@login
    job_state = H
    queue = workq
    Hold_Types = u
    qtime = {stamp(-40)}
    Resource_List.nodes = 1:ppn=2
    Resource_List.walltime = 60

Job Id: 4.login
    Job_Name = next
    Job_Owner = ann@login
    job_state = H
    queue = workq
    Hold_Types = s
    depend = afterok:2.login@login
    qtime = {stamp(-40)}
    Resource_List.nodes = 1:ppn=1
    Resource_List.walltime = 60
"""
PBSNODES = """\
n0
     Mom = n0
     state = free
     pcpus = 4
     resources_available.ncpus = 4
     jobs = 0.login/0

n1
     state = free
     np = 4
     properties = fast,ib

n2
     state = state-unknown,down
     pcpus = 4
"""


def test_a_site_under_pbs() -> None:
    site = outer_pbs.parse(QSTAT, PBSNODES, NOW)
    found = forecast_site(site)
    assert {key: each.start for key, each in found.items()} == {
        "1.login": 540, "2.login": 0, "3.login": math.inf, "4.login": 300}
    assert "Hold_Types = u" in found["3.login"].reason
    assert {job.key: job.user for job in site.jobs}["1.login"] == "bob"
    assert site.unknown[0].startswith("the order of the site's scheduler")


@pytest.mark.parametrize("texts, what", [
    ((SQUEUE.replace("|4|4|5:00|", "|four|4|5:00|"), SINFO), "squeue:1: not a value of its column"),
    ((SQUEUE.replace(date(-9), "yesterday"), SINFO), "squeue:2: not a value of its column"),
    (("3 PENDING compute\n", SINFO), "squeue:1: it has 1 of 16 columns; make the file with: squeue"),
    (("{]", SINFO), "squeue --json: it is not a list of jobs"),
    ((SQUEUE, ""), "sinfo: it names no nodes"),
    ((SQUEUE, "PARTITION AVAIL\n"), "sinfo:1: not the columns of: sinfo")])
def test_what_slurm_did_not_print(texts: Any, what: str) -> None:
    with pytest.raises(SnapshotError, match=re.escape(what)):
        outer_slurm.parse(*texts, NOW)


@pytest.mark.parametrize("texts, what", [
    ((QSTAT.replace("01:00:00", "soon"), PBSNODES), "qstat:20: job 1.login: not a value that PBS prints"),
    (("    job_state = Q\n", PBSNODES), "qstat:1: it does not begin as qstat prints"),
    (("Job Id: 1\n    nothing\n", PBSNODES), "qstat:2: `nothing` is not a `key = value`"),
    ((QSTAT, "n0\n     state = free\n"), "pbsnodes:1: node n0 has no ncpus, pcpus or np"),
    ((QSTAT, ""), "pbsnodes: it names no nodes")])
def test_what_pbs_did_not_print(texts: Any, what: str) -> None:
    with pytest.raises(SnapshotError, match=re.escape(what)):
        outer_pbs.parse(*texts, NOW)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10 ** 9))
def test_damaged_output_is_one_message_or_a_forecast(seed: int) -> None:
    draw = random.Random(seed)

    def damaged(text: str) -> str:
        characters: list[str] = list(text)
        for _ in range(draw.randint(0, 3)):
            at = draw.randrange(len(characters))
            how = draw.randrange(3)
            if how == 0:
                characters[at] = draw.choice("|x9\n:= \t\0-")
            elif how == 1:
                del characters[at:at + draw.randint(1, 30)]
            else:
                characters[at:at] = characters[at:at + draw.randint(1, 100)]
        return "".join(characters)

    for parse, texts in ((outer_slurm.parse, (SQUEUE, SINFO)), (outer_pbs.parse, (QSTAT, PBSNODES))):
        try:
            forecast_site(parse(*map(damaged, texts), NOW))  # type: ignore[operator]
        except SnapshotError as error:
            assert "\n" not in str(error)


def test_programs_that_are_missing_fail_or_hang() -> None:
    with pytest.raises(SnapshotError, match="no-such-program is not there: ask on a login node"):
        output_of(["no-such-program"])
    with pytest.raises(SnapshotError, match=r"sh has failed \(status 3\): no server"):
        output_of(["sh", "-c", "echo no server >&2; exit 3"])
    with pytest.raises(SnapshotError, match="sh has not answered within 0.2 s"):
        output_of(["sh", "-c", "sleep 60"], 0.2)
