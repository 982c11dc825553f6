"""`salloc` without a command and the like, the user's shell where they were typed, and `srun --pty`, a step with a
terminal there: all with a job that is there for them. They are children of the client, which ends the job with them,
and them with the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from vrm.ext.steps import jobfile
from vrm.system import marks

LOOK = 0.5
"""Seconds between two looks whether the job still runs."""

ENDS = signal.SIGUSR1
"""The signal by which the job's script ends well."""

SCRIPT = f"trap 'exit 0' {ENDS.name.removeprefix('SIG')}; while :; do sleep 2147483647 & wait; done"
"""What the job runs: it is there for the steps."""

_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


ENTERED = "VRM_ENTERED"
"""The variable that says to a client that it is such a command, and what it prints at its end."""

SILENTLY = "1"
"""Its value where that is nothing."""


def run(typed: list[str]) -> int:
    """Run what was typed with the job that the variables name; its exit status, 1 where others ended the job."""
    closing = os.environ.pop(ENTERED)
    job = jobfile.read(os.environ[marks.FOLDER])
    marker = f"{os.path.dirname(job.one('records'))}/pids/{job.id}"
    programs = os.path.dirname(job.one("measure"))
    words = [os.environ.get("SHELL") or "/bin/sh"] if typed[0] != "srun" else [f"{programs}/srun", *typed[1:]]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    shell = subprocess.Popen(words, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
    revoked = False
    while shell.poll() is None:
        got = signal.sigtimedwait(_HEARD, LOOK)
        if got is not None and got.si_signo in (signal.SIGTERM, signal.SIGHUP):
            shell.send_signal(signal.SIGHUP)  # a shell at a terminal ignores SIGTERM
        if not revoked and not os.path.exists(marker):
            revoked = True
            print(f"{typed[0]}: Job allocation {job.slurm} has been revoked.", file=sys.stderr)
            shell.send_signal(signal.SIGHUP)
            shell.send_signal(signal.SIGCONT)
    if revoked:
        return 1
    subprocess.run([f"{programs}/scancel", "-Q", f"--signal={int(ENDS)}", job.slurm], check=False,
                   stderr=subprocess.DEVNULL)
    if closing != SILENTLY:
        print(closing, file=sys.stderr)
    return shell.returncode if shell.returncode >= 0 else 128 - shell.returncode
