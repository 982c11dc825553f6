"""`pbsdsh`, which the client does itself, in the job; and the commands that vrm does not have."""

from __future__ import annotations

import os
from typing import NoReturn

from vrm.ext.slurm import others
from vrm.ext.pbs import words as pbs_words
from vrm.ext.slurm.calls.answers import Call, Refused, HelpAnswer
from vrm.ext.slurm.calls.counter import Counter
from vrm.ext.slurm.sbcast import job_around

INSTEAD = {"tracejob": "`vrm log ID` and `vrm explain ID` describe a job",
           "qmove": "give the job another queue when it is submitted", "qmgr": "queues are in the configuration"}
"""What does instead of a command."""


def refused(call: Call, counter: Counter) -> NoReturn:
    """vrm has no such command; that of the site would take an id of vrm for one of its own."""
    if {"-V", "--version"} & set(call.arguments):
        raise HelpAnswer(pbs_words.VERSION)
    others.refused(call, counter, INSTEAD)


def pbsdsh(call: Call) -> NoReturn:
    """Run a program once for each task of the job, or with -u on each node."""
    options, words = pbs_words.options("pbsdsh", "c:n:osuv", "pbsdsh [-u] [-c count] [--] program [arguments]",
                                       call.arguments)
    given, job = dict(options), job_around(call)
    if "n" in given or not words:
        raise Refused("pbsdsh: vrm knows -u and -c: pbsdsh [-u] [-c count] [--] program [arguments]", pbs_words.USAGE)
    nodes = str(len(job.nodes))
    how = ["-N", nodes, "-n", nodes] if "u" in given else ["-n", given.get("c", str(job.tasks))]
    srun = os.path.join(os.path.dirname(job.one("measure")), "srun")
    os.execv(srun, [srun, "--mpi=none", "--overlap", "-Q", *how, *words])
