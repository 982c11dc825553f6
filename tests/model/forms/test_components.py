"""The programs of a coupled job in words: what is wrong with them is said, with the program."""

from __future__ import annotations

import pytest

from vrm.model.forms.fields import made
from vrm.model.job import Request
from vrm.workload.grammar import LineError, parse_line


def line(coupled: str, procs: int = 3, more: str = "") -> str:
    return f'model {procs} 60 0 {more} coupled="{coupled}"'


def test_each_program_has_fields_of_its_own() -> None:
    wanted = parse_line(line("ocean.x 1 : /opt/atmos.x 2 cores=2 mem_per_task=2G nodes=2 exclusive=1 args='-n 3'", more="name=a"))
    job, _ = made(wanted.values, 7, 0.0)
    ocean, atmos = job.payload.components
    assert (ocean.app, ocean.file, ocean.request) == ("ocean.x", "", Request(1))
    assert (atmos.app, atmos.file, atmos.arguments) == ("atmos.x", "/opt/atmos.x", ("-n", "3"))
    assert (atmos.request.cores_per_task, atmos.request.nodes, atmos.request.exclusive) == (2, (2, 2), True)
    assert (job.procs, job.cores, job.request.cores, job.exclusive) == (3, 2, 5, False)
    assert [(part.app, part.procs, part.cores) for part in job.parts] == [("ocean.x", 1, 1), ("atmos.x", 2, 2)]
    assert parse_line(str(wanted)) == wanted


@pytest.mark.parametrize("text, words", [
    (line("ocean.x 3"), "are not two programs or more"),
    (line("ocean.x 1 : : atmos.x 2"), "are not two programs or more"),
    (line("ocean.x 1 : atmos.x 2 :"), "are not two programs or more"),
    (line("ocean.x : atmos.x 2"), "the ranks of `ocean.x` are missing"),
    (line("ocean.x 0 : atmos.x 3"), "procs of `ocean.x` is `0`, wanted a whole number of ranks"),
    (line("ocean.x 1 : atmos.x 2 colour=red"), "`colour=red` of `atmos.x` is none of exclusive, cores, args"),
    (line("ocean.x 1 : atmos.x 2 cores=2 cores=3"), "`atmos.x` has cores twice"),
    (line("ocean.x 1 : atmos.x 2 nodes=3"), "`atmos.x`: nodes: 2 rank(s) cannot run on 3 nodes"),
    (line("ocean.x 1 : atmos.x 3"), "its programs have 4 ranks in all, and the line says 3"),
    (line("-x 1 : atmos.x 2"), "begins with `-`"),
    (line("ocean.x 1 : atmos.x 2", more="cores=2"), "`cores` is for a job of one program"),
    (line("ocean.x 1 : atmos.x 2", more="script=1"), "`script` is for a job of one program"),
    (line("ocean.x 1 : atmos.x 2", more="nodes=2"), "`nodes` is to be said of each program"),
])
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(LineError) as error:
        parse_line(text)
    assert words in str(error.value)


def test_licences_are_of_the_whole_job() -> None:
    job, _ = made(parse_line(line("ocean.x 1 : atmos.x 2", more="licences=ansys:2")).values, 7, 0.0)
    assert job.request.licences == (("ansys", 2000),) and not any(part.licences for part in job.request.parts)
