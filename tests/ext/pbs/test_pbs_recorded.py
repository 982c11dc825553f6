"""What OpenPBS 23.06.06 printed and how it exited, with a server called `vrm`, a user `ann` and a queue `vrm`; vrm's
commands print and exit so. Of `qstat -f` the names and their order were recorded; vrm does not know all of them."""

from __future__ import annotations

import json
import math
import time
from typing import Any
from collections.abc import Sequence

import pytest

from support.counters import Counter, a_job, run
from vrm.ext.slurm.calls import jobs as front
from vrm.model import JobState
from vrm.model.job import OK, Dependency
from vrm.ext.steps.records import Step

BEGAN = 1_699_999_990.0


class Pbs(Counter):
    """The same manager, which knows what the script of job 34 has used."""

    def steps(self, job: front.JobView) -> list[Step]:
        return [Step(34, "batch", "s", 0, 1, "completed", 0, 1, 1, "n1", 1.0, 1.5, 3 << 20)] if job.id == 34 else []


def job(number: int, name: str, state: JobState = JobState.QUEUED, **more: Any) -> front.JobView:
    began = {"start": BEGAN, "nodes": ("n1",), "cores": (1,)} if state is not JobState.QUEUED else {}
    fields = {"app": name, "procs": 1, "nodes": (1, 1), "variables": {"PBS_O_HOST": "n1"}, "output": f"/work/{name}.o%A.%a",
              **more.pop("fields", {})}
    return a_job(number, state, fields=fields, **{**began, **more})


def part(number: int, index: int, state: JobState = JobState.QUEUED, **more: Any) -> front.JobView:
    return job(number, "wild", state, array=45, index=index, **more)


JOBS = (
    job(34, "fine", JobState.COMPLETED, end=BEGAN + 1, code=0), job(35, "wrong", JobState.FAILED, end=BEGAN + 1, code=3),
    job(36, "runs", JobState.RUNNING), job(38, "deps", why="dependency", reason="36", waits=(Dependency.on(36, OK),)),
    job(40, "a-name-of-many-letters", why="held"), job(41, "full", why="resources", fields={"procs": 4}),
    job(42, "late", why="begin", fields={"begin": 3600.0}),
    part(45, 0, JobState.RUNNING), part(46, 3, JobState.COMPLETED, end=BEGAN + 2, code=0), part(47, 6), part(48, 9),
    job(52, "long", JobState.TIMEOUT, end=BEGAN + 9, code=143), job(53, "shot", JobState.FAILED, end=BEGAN + 1, code=137),
    job(54, "never", JobState.CANCELLED, start=math.inf, nodes=(), cores=()))

TABLE = """\
Job id            Name             User              Time Use S Queue
----------------  ---------------- ----------------  -------- - -----
36.vrm            runs             ann               00:00:10 R vrm             \n\
38.vrm            deps             ann                      0 H vrm             \n\
40.vrm            a-name-of-many-* ann                      0 H vrm             \n\
41.vrm            full             ann                      0 Q vrm             \n\
42.vrm            late             ann                      0 W vrm             \n\
45[].vrm          wild             ann                      0 B vrm             \n"""
PARTS = """\
45[].vrm          wild             ann                      0 B vrm             \n\
45[0].vrm         wild             ann               00:00:10 R vrm             \n\
45[3].vrm         wild             ann               00:00:02 X vrm             \n\
45[6].vrm         wild             ann                      0 Q vrm             \n\
45[9].vrm         wild             ann                      0 Q vrm             \n"""
WIDE = """\
Job id                         Name            User             Time Use S Queue
-----------------------------  --------------- ---------------  -------- - ---------------
36.vrm                         runs            ann              00:00:10 R vrm            \n"""


def test_the_tables() -> None:
    handler = Pbs(*JOBS)
    assert run(handler, "qstat").out == run(handler, "qstat", "vrm").out == TABLE
    assert run(handler, "qstat", "-t", "45[]").out == "".join(TABLE.splitlines(True)[:2]) + PARTS
    assert run(handler, "qstat", "-w", "36").out == WIDE
    over = Pbs(*(part(45 + at, 3 * at, JobState.COMPLETED, end=BEGAN + 2, code=0) for at in range(2)))
    assert [line.split()[4] for line in run(over, "qstat", "-xt", "45[]").out.splitlines()[2:]] == ["F", "F", "F"]
    assert run(over, "qstat", "45[0]").code == 35


@pytest.mark.parametrize("words, code, said", [
    (("qstat", "99"), 153, "qstat: Unknown Job Id 99.vrm"), (("qstat", "nosuch"), 170, "qstat: Unknown queue destination nosuch"),
    (("qstat", "34"), 35, "qstat: 34.vrm Job has finished, use -x or -H to obtain historical job information"),
    (("qstat", "45[4]"), 153, "qstat: Unknown Job Id 45[4].vrm"), (("qdel", "34"), 35, "qdel: Job has finished 34.vrm"),
    (("qhold", "34"), 35, "qhold: Job has finished"), (("qrls", "34"), 35, "qrls: Job has finished"),
    (("qalter", "-l", "walltime=1:00", "34"), 35, "qalter: Job has finished"),
    (("qalter", "-l", "walltime=abc", "41"), 166, "qalter: Illegal attribute or resource value Resource_List.walltime 41.vrm"),
    (("qdel", "x"), 1, "qdel: illegally formed job identifier: x"), (("qdel", "99", "41"), 153, "qdel: Unknown Job Id 99.vrm"),
    (("pbsnodes", "nosuch"), 1, "Node: nosuch,  Error: Unknown node "), (("pbsnodes",), 1, "usage: "),
    (("qalter", "41"), 0, ""), (("qdel",), 2, ""), (("qhold",), 2, ""), (("qalter",), 2, ""),
    (("qsub", "-l", "foo=3", "j"), 187, "qsub: Unknown resource Resource_List.foo"),
    (("qsub", "-l", "select=1:foo=2", "j"), 187, "qsub: Unknown resource"),
    (("qsub", "-l", "walltime=abc", "j"), 166, "qsub: Illegal attribute or resource value Resource_List.walltime"),
    (("qsub", "-l", "mem=100xb", "j"), 166, "qsub: Illegal attribute or resource value Resource_List.mem"),
    (("qsub", "-l", "place=foo", "j"), 166, "qsub: Illegal attribute or resource value Resource_List.place"),
    (("qsub", "-l", "select=0", "j"), 166, "qsub: Illegal attribute or resource value"),
    (("qsub", "-l", "select=9", "-l", "ncpus=3", "j"), 5,
     'qsub: "-lresource=" cannot be used with "select" or "place", resource is: ncpus'),
    *[(("qsub", f"-{letter}", value, "j"), 2, f"qsub: illegal -{letter} value") for letter, value in (
        ("N", "a b"), ("j", "x"), ("J", "3"), ("J", "3-1"), ("W", "depend=foo:1"), ("W", "depend=afterok"), ("r", "x"),
        ("a", "99"), ("p", "2000"))]])
def test_what_is_wrong(words: Sequence[str], code: int, said: str) -> None:
    done = run(Pbs(*JOBS), *words)
    assert (done.code, done.out) == (code, "") and done.err.startswith(said), done


ORDER = ("Job_Name Job_Owner resources_used.cpupercent resources_used.cput resources_used.mem resources_used.ncpus "
         "resources_used.vmem resources_used.walltime job_state queue server Checkpoint ctime depend Error_Path exec_host "
         "exec_vnode Execution_Time Hold_Types Join_Path Keep_Files Mail_Points mtime Output_Path Priority qtime Rerunable "
         "Resource_List.ncpus Resource_List.nodect Resource_List.place Resource_List.select Resource_List.walltime stime "
         "obittime session_id jobdir substate Variable_List comment etime run_count Stageout_status Exit_status "
         "Submit_arguments history_timestamp array array_id array_index array_state_count array_indices_submitted "
         "array_indices_remaining project Submit_Host")
"""In the order in which they came, of any job."""

PRESENT = {
    "34": "exec_host exec_vnode stime obittime jobdir etime run_count Exit_status resources_used.cput resources_used.mem",
    "36": "exec_host exec_vnode stime jobdir etime run_count resources_used.walltime", "38": "depend", "40": "",
    "41": "etime", "42": "Execution_Time", "45[]": "stime etime array array_state_count array_indices_submitted "
    "array_indices_remaining", "45[0]": "exec_host exec_vnode stime jobdir etime run_count array_id array_index "
    "resources_used.walltime"}
"""Those that only some jobs have."""

VALUES = {
    "34": {"job_state": "F", "substate": "92", "Exit_status": "0", "Resource_List.place": "pack",
           "Resource_List.select": "1:ncpus=1", "resources_used.cput": "00:00:02", "resources_used.mem": "3072kb",
           "comment": "Job run at {began} on (n1:ncpus=1) and finished"},
    "35": {"substate": "93", "Exit_status": "3", "comment": "Job run at {began} on (n1:ncpus=1) and failed"},
    "36": {"job_state": "R", "substate": "42", "exec_vnode": "(n1:ncpus=1)", "comment": "Job run at {began} on (n1:ncpus=1)"},
    "38": {"job_state": "H", "substate": "22", "Hold_Types": "s", "depend": "afterok:36.vrm@vrm"},
    "40": {"job_state": "H", "substate": "20", "Hold_Types": "u"}, "41": {"job_state": "Q", "substate": "10",
           "Resource_List.select": "1:ncpus=4:mpiprocs=4"},
    "42": {"job_state": "W", "substate": "30", "Hold_Types": "n"},
    "45[]": {"job_state": "B", "substate": "70", "comment": "Job Array Began at {began}", "array": "True",
             "Output_Path": "n1:/work/wild.o45.^array_index^", "array_indices_submitted": "0-9:3",
             "array_indices_remaining": "6-9:3", "array_state_count": "Queued:2 Running:1 Exiting:0 Expired:1"},
    "45[3]": {"array_id": "45[].vrm", "array_index": "3"}, "52": {"substate": "93", "Exit_status": "-29",
              "comment": "Job run at {began} on (n1:ncpus=1) and exceeded resource walltime"},
    "53": {"substate": "93", "Exit_status": "137"}, "54": {"job_state": "F", "substate": "91"}}


@pytest.mark.parametrize("number", PRESENT)
def test_the_names_of_a_job_come_in_their_order(number: str) -> None:
    text = run(Pbs(*JOBS), "qstat", "-xfw", number).out
    names = [line.split(" = ")[0].strip() for line in text.splitlines()[1:-1]]
    assert names == [name for name in ORDER.split() if name in names]
    sometimes = {name for each in PRESENT.values() for name in each.split()}
    assert sometimes & set(names) - {"resources_used.walltime"} == set(PRESENT[number].split()) - {"resources_used.walltime"}
    assert {"Job_Name", "job_state", "Resource_List.walltime", "substate", "project", "Submit_Host"} <= set(names)


@pytest.mark.parametrize("number", VALUES)
def test_values_of_a_job(number: str) -> None:
    text = run(Pbs(*JOBS), "qstat", "-xfw", number).out
    found = dict(line.strip().split(" = ", 1) for line in text.splitlines()[1:-1])
    began = time.strftime("%a %b %d at %H:%M", time.localtime(BEGAN))
    for name, value in VALUES[number].items():
        assert found[name] == value.format(began=began), name
    assert number != "54" or "Exit_status" not in found


def test_json_of_no_job() -> None:
    done = run(Pbs(*JOBS), "qstat", "-f", "-F", "json", "99")
    assert done.code == 153 and sorted(json.loads(done.out)) == ["pbs_server", "pbs_version", "timestamp"]
    found = json.loads(run(Pbs(*JOBS), "qstat", "-f", "-F", "json", "41").out)["Jobs"]["41.vrm"]
    assert found["substate"] == 10 and found["Resource_List"]["ncpus"] == 4 and found["Priority"] == 0


@pytest.mark.parametrize("left, said", [([], "-"), ([9], "9"), ([1, 2, 3], "1-3"), ([0, 3, 9], "0-3:3,9"), ([0, 3, 6, 9], "0-9:3")])
def test_indices_that_are_left(left: list[int], said: str) -> None:
    from vrm.ext.pbs.qstat import indices
    assert indices([part(60 + at, index) for at, index in enumerate(left)]) == said
