"""`sbcast`: a file of the script's node to the same place, or another, on all nodes of its job. The
client does it itself, in the job."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

from vrm.ext.slurm.calls.answers import Call, Refused
from vrm.ext.slurm.forms.options import Options
from vrm.ext.steps import jobfile
from vrm.ext.steps.jobfile import StepJob
from vrm.system import marks

OPTIONS = Options("sbcast",
    "f force n, p preserve n, "
    "C compress m -, . exclude v -, F fanout v -, j jobid v -, s size v -, t timeout v -, v verbose n -, "
    ". send-libs m !", "[-f] [-p] SOURCE DESTINATION")

BROKEN_OFF = ".vrm-part"
"""Behind the name of a file that is not complete yet."""


def job_around(call: Call) -> StepJob:
    """The job of the script in which a command is called; Refused where there is none."""
    where = call.env.get(marks.FOLDER)
    if not where:
        raise Refused(f"{call.name}: error: this is for the script of a job of vrm: it needs its nodes")
    return jobfile.read(where)


def sbcast(call: Call) -> int:
    """Copy a file to all nodes of the job; the exit status."""
    given, rest = OPTIONS.parse(call.arguments)
    if len(rest) != 2:
        raise OPTIONS.error("name two files: sbcast SOURCE DESTINATION")
    job, source, target = job_around(call), os.path.join(call.cwd, rest[0]), os.path.join(call.cwd, rest[1])
    here, mode = job.here(os.environ), os.stat(source).st_mode & 0o7777
    test = "" if "force" in given else f"[ ! -e {shlex.quote(target)} ] || {{ echo 'File exists' >&2; exit 1; }}; "
    part = shlex.quote(target + BROKEN_OFF)
    command = f"{test}cat >{part} && chmod {mode:o} {part} && mv -f {part} {shlex.quote(target)}"
    wrong = 0
    for at, node in enumerate(job.nodes if job.bound else job.nodes[:1]):
        words = ["/bin/sh", "-c", command] if at == here or not job.bound else [job.one("agent"), node.name, command]
        with open(source, "rb") as file:
            done = subprocess.run(words, stdin=file, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        if done.returncode:
            wrong = 1
            print(f"sbcast: error: {target} on {node.name}: {done.stderr.strip()}", file=sys.stderr)
    if "preserve" in given and not wrong:
        shutil.copystat(source, target)
    return wrong
