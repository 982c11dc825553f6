"""What PBS's resources, times, sizes and ids mean."""

from __future__ import annotations

import time
from typing import Any

import pytest

from vrm.ext.pbs import qstat as pbs_qstat
from vrm.ext.pbs import resources
from vrm.ext.pbs.qsub import array, directives
from vrm.model.job import Request

GB = 1 << 30


@pytest.mark.parametrize("text, wanted", [
    ("", {"procs": 1, "cores": 1, "nodes": (1, 1)}),
    ("ncpus=4", {"procs": 1, "cores": 4, "nodes": (1, 1)}),
    ("procs=6", {"procs": 6, "cores": 1}),
    ("nodes=2:ppn=4", {"procs": 8, "cores": 1, "nodes": (2, 2), "tasks_per_node": 4}),
    ("nodes=2", {"procs": 2, "cores": 1, "nodes": (2, 2), "tasks_per_node": 1}),
    ("nodes=1:ppn=2:ib", {"procs": 2, "cores": 1, "nodes": (1, 1), "tasks_per_node": 2, "features": frozenset({"ib"})}),
    ("select=3", {"procs": 3, "cores": 1, "nodes": (1, 3)}),
    ("select=2:ncpus=8,filesystems=home:eagle", {"procs": 2, "cores": 8, "nodes": (1, 2)}),
    ("select=2:ncpus=8", {"procs": 2, "cores": 8, "nodes": (1, 2)}),
    ("select=2:ncpus=8:mpiprocs=4,place=scatter:excl",
     {"procs": 8, "cores": 2, "nodes": (2, 2), "tasks_per_node": 4, "exclusive": True}),
    ("select=1:ncpus=4:mpiprocs=4+2:ncpus=8:mpiprocs=8:ngpus=0", {"procs": 20, "cores": 1, "nodes": (1, 3)}),
    ("select=1:ncpus=4:mpiprocs=2:mem=4gb:ngpus=2+1:ncpus=2:ngpus=1:mem=2gb",
     {"procs": 3, "cores": 2, "nodes": (1, 2), "mem_per_task": 2 << 30, "gpus_per_task": 1}),
    ("select=1:ncpus=2+1:ncpus=2", {"procs": 2, "cores": 2, "nodes": (1, 2)}),
    ("select=1:ncpus=4:mpiprocs=4:mem=8gb:ngpus=4",
     {"procs": 4, "cores": 1, "nodes": (1, 1), "mem_per_task": 2 * GB, "gpus_per_task": 1}),
    ("select=2:ncpus=4:mpiprocs=4:ngpus=2,place=scatter",
     {"procs": 8, "cores": 1, "nodes": (2, 2), "tasks_per_node": 4, "gpus_per_node": 2}),
    ("select=2:ncpus=2:host=n1", {"procs": 2, "cores": 2, "nodes": (1, 1), "tasks_per_node": 2, "nodelist": frozenset({"n1"})}),
    ("select=1:ncpus=2:vnode=n1+1:ncpus=2:vnode=n2",
     {"procs": 2, "cores": 2, "nodes": (2, 2), "tasks_per_node": 1, "nodelist": frozenset({"n1", "n2"})}),
    ("select=1:ncpus=2:host=n1+3:ncpus=2", {"procs": 4, "cores": 2, "nodes": (1, 4), "nodelist": frozenset({"n1"})}),
    ("select=1:host=n1+1,place=scatter", {"procs": 2, "cores": 1, "nodes": (2, 2), "tasks_per_node": 1,
                                          "nodelist": frozenset({"n1"})}),
    ("nodes=1:ppn=4,mem=8gb,vmem=9gb", {"procs": 4, "cores": 1, "nodes": (1, 1), "tasks_per_node": 4, "mem_per_task": 2 * GB}),
])
def test_what_is_asked_for(text: str, wanted: dict[str, Any]) -> None:
    given: dict[str, str] = {}
    if text:
        resources.resources(text, given)
    found = resources.request(given)
    assert found == {"exclusive": False, **wanted}
    Request.of_fields(found["procs"], found["cores"], found["exclusive"], found)  # it contradicts itself nowhere


@pytest.mark.parametrize("text, why", [
    ("select=2:ncpus=3:mpiprocs=2", "shared equally"), ("select=2:ncpus=0", "needs a core"),
    ("select=2:host=n0+1:host=n1", "spreads chunks"), ("select=1:host=n[", "not a name of a host"),
    ("select=1:ncpus=1+1:ncpus=2", "one kind"), ("select=1:ncpus=2:mem=1gb+1:ncpus=4:mpiprocs=2:mem=1gb", "one kind"),
    ("select=1:ncpus=1+1:ncpus=2:mpiprocs=2,place=scatter", "evenly"), ("select=x", "not of the form"), ("nodes=n1+n2", "not of the form"),
    ("place=here", "vrm knows"), ("select=1:foo=2", "foo"), ("fpga=1", "fpga"), ("select=1,nodes=1", "cannot be used"),
    ("select=2:ncpus=2:mpiprocs=2:ngpus=1", "GPUs cannot be shared")])
def test_what_vrm_cannot_give_is_refused(text: str, why: str) -> None:
    given: dict[str, str] = {}
    resources.resources(text, given)
    with pytest.raises(ValueError, match=why):
        resources.request(given)


def test_times_and_sizes() -> None:
    assert [resources.walltime(text) for text in ("90", "1:30", "1:00:00", "100:00:00")] == [90, 90, 3600, 360000]
    assert [resources.size(text) for text in ("10", "10b", "2kb", "3MB", "4gb", "1gw", "1tb")] == [
        10, 10, 2048, 3 << 20, 4 * GB, 8 * GB, 1 << 40]
    for wrong in ("", "1h", "0", "-5", "1:2:3:4"):
        with pytest.raises(ValueError):
            resources.walltime(wrong)
    for wrong in ("", "1x", "gb"):
        with pytest.raises(ValueError):
            resources.size(wrong)
    assert [resources.clock(seconds) for seconds in (0, 59.9, 3600, 360000)] == ["00:00:00", "00:00:59", "01:00:00", "100:00:00"]


def test_directives_end_with_the_first_command() -> None:
    script = (b"#!/bin/sh\n#PBS -N 'a b' -h\n# words\n\n#PBSX\n#PBS\t-l walltime=1 # later\n:\nset -e\n#PBS -I\n")
    assert directives(script, "#PBS") == [(2, ["-N", "a b", "-h"]), (6, ["-l", "walltime=1"])]
    assert directives(b"#QSUB -h\n", "#QSUB") == [(1, ["-h"])] and directives(script, "") == []


def test_indices_of_arrays() -> None:
    assert array("0-9:3%2") == (range(0, 10, 3), 2) and list(array("1-2")[0]) == [1, 2]


@pytest.mark.parametrize("text, wanted", [
    ("1530", (2026, 11, 23, 15, 30)), ("0700", (2026, 11, 24, 7, 0)), ("220700", (2026, 12, 22, 7, 0)),
    ("11220700", (2027, 11, 22, 7, 0)), ("12010000", (2026, 12, 1, 0, 0)), ("2711220700", (2027, 11, 22, 7, 0)),
    ("202001010000.30", (2020, 1, 1, 0, 0, 30))])
def test_when_a_job_may_begin(text: str, wanted: tuple[int, ...]) -> None:
    """What is left out is that of the next time when the rest is so; a date with its year may be past."""
    now = time.mktime((2026, 11, 23, 7, 5, 0, 0, 0, -1))
    assert resources.moment(text, now) == time.mktime((*wanted, *[0] * (9 - len(wanted)))[:8] + (-1,))


@pytest.mark.parametrize("text", ["", "x", "2530", "0760", "15:30", "13010700", "011", "0700.61"])
def test_what_is_no_time_to_begin(text: str) -> None:
    with pytest.raises(ValueError):
        resources.moment(text, 1e9)


def test_long_values_break_where_qstat_breaks_them() -> None:
    """As the code of OpenPBS's qstat (`prt_attr`) printed them."""
    variables = ("PBS_O_HOME=/home/me,PBS_O_LANG=C.UTF-8,PBS_O_LOGNAME=me,PBS_O_PATH=/usr/local/bin:/usr/bin:/bin:"
                 "/usr/local/games:/usr/games:/opt/some/where/else/bin,PBS_O_SHELL=/bin/bash")
    assert pbs_qstat.folded("Variable_List", variables) == (
        "    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=C.UTF-8,PBS_O_LOGNAME=me,\n"
        "\tPBS_O_PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:/o\n"
        "\tpt/some/where/else/bin,PBS_O_SHELL=/bin/bash")
    assert pbs_qstat.folded("comment", "Not Running: Insufficient amount of resource: ncpus (R: 64 A: 16 T: 16) and "
                            "more words") == (
        "    comment = Not Running: Insufficient amount of resource: ncpus (R: 64 A: 16 \n\tT: 16) and more words")


def test_values_of_json_as_pbs_writes_them() -> None:
    found = {"5": 5, "0123": 123, "1.50": 1.5, "-2e3": -2000, "1.2.3": "1.2.3", "12 ": "12 ", "00:05:00": "00:05:00",
             "true": True, "null": None, '"x"': "x", "{": "{", "[1]": [1], "": "", "2gb": "2gb"}
    for text, value in found.items():
        assert pbs_qstat.parsed(text) == value, text
    assert [pbs_qstat._size(amount) for amount in (1, 100 << 20, 2 << 30, 2 * GB + 1, 20 << 40)] == [
        "1kb", "100mb", "2gb", "2049mb", "20tb"]


def test_nodes_of_a_job_in_lines_and_in_one() -> None:
    hosts = "+".join(f"node{number}/0*16" for number in range(10))
    lines = pbs_qstat._nodes(hosts, False)
    assert [len(line) for line in lines] == [3 + 7 * 11, 3 + 3 * 11 - 1] and lines[0].endswith("node6/0*16+")
    assert pbs_qstat._nodes(hosts, True) == [hosts]
