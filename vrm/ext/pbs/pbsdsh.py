"""`pbsdsh`, which the client carries out itself inside the job, and the commands that vrm does not have."""

from __future__ import annotations

import os
from typing import NoReturn

from vrm.ext.slurm import accounting
from vrm.ext.pbs import resources as pbs_words
from vrm.ext.slurm.calls.answers import Call, CallRefused, HelpAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.sbcast import enclosing_job

INSTEAD = {"tracejob": "`vrm log ID` and `vrm explain ID` describe a job",
           "qmove": "give the job another queue when it is submitted", "qmgr": "queues are in the configuration"}
"""What to use instead of a command that vrm does not have."""


def refused(call: Call, handler: RequestHandler) -> NoReturn:
    """Raise CallRefused for a command that vrm does not have; the site's command would take a job id of vrm for one of
    its own."""
    if {"-V", "--version"} & set(call.arguments):
        raise HelpAnswer(pbs_words.VERSION)
    accounting.refused(call, handler, INSTEAD)


def pbsdsh(call: Call) -> NoReturn:
    """Run a program once for each task of the job, or with -u once on each node."""
    options, words = pbs_words.options("pbsdsh", "c:n:osuv", "pbsdsh [-u] [-c count] [--] program [arguments]",
                                       call.arguments)
    given, job = dict(options), enclosing_job(call)
    if "n" in given or not words:
        raise CallRefused("pbsdsh: vrm knows -u and -c: pbsdsh [-u] [-c count] [--] program [arguments]",
                          pbs_words.USAGE)
    nodes = str(len(job.nodes))
    how = ["-N", nodes, "-n", nodes] if "u" in given else ["-n", given.get("c", str(job.tasks))]
    srun = os.path.join(os.path.dirname(job.one("measure")), "srun")
    os.execv(srun, [srun, "--mpi=none", "--overlap", "-Q", *how, *words])
