"""`sbcast`: copies a file from the script's node to all nodes of its job, to the same path or another one. The client
does this itself, inside the job, without the manager."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

from vrm.ext.slurm.calls.answers import Call, CallRefused
from vrm.ext.slurm.forms.options import Options
from vrm.ext.steps import jobfile
from vrm.ext.steps.jobfile import StepJob
from vrm.system import job_variables

OPTIONS = Options("sbcast",
    "f force n, p preserve n, "
    "C compress m -, . exclude v -, F fanout v -, j jobid v -, s size v -, t timeout v -, v verbose n -, "
    ". send-libs m !", "[-f] [-p] SOURCE DESTINATION")

PARTIAL_SUFFIX = ".vrm-part"
"""Suffix of the file name while the copy is not complete."""


def enclosing_job(call: Call) -> StepJob:
    """Return the job in whose script the command is called. Raises CallRefused outside of a job."""
    where = call.env.get(job_variables.FOLDER)
    if not where:
        raise CallRefused(f"{call.name}: error: this is for the script of a job of vrm: it needs its nodes")
    return jobfile.read(where)


def sbcast(call: Call) -> int:
    """Copy a file to all nodes of the job; return the exit status."""
    given, rest = OPTIONS.parse(call.arguments)
    if len(rest) != 2:
        raise OPTIONS.error("name two files: sbcast SOURCE DESTINATION")
    job, source, target = enclosing_job(call), os.path.join(call.cwd, rest[0]), os.path.join(call.cwd, rest[1])
    here, mode = job.here(os.environ), os.stat(source).st_mode & 0o7777
    test = "" if "force" in given else f"[ ! -e {shlex.quote(target)} ] || {{ echo 'File exists' >&2; exit 1; }}; "
    part = shlex.quote(target + PARTIAL_SUFFIX)
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
