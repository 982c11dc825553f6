"""Runs `salloc` without a command (the user's shell) and `srun --pty` (a step with a terminal) where they were
typed, with a job that exists only for them. The shell or step is a child of the client. The client ends the job when
the child ends, and the child when the job ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from vrm.ext.steps import jobfile
from vrm.system import job_variables

LOOK = 0.5
"""Seconds between two checks whether the job still runs."""

ENDS = signal.SIGUSR1
"""The signal at which the job's script exits with status 0."""

SCRIPT = f"trap 'exit 0' {ENDS.name.removeprefix('SIG')}; while :; do sleep 2147483647 & wait; done"
"""The job's script: it does nothing but keep the job running for its steps."""

_WAITED_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


ENTERED_VARIABLE = "VRM_ENTERED"
"""Name of the variable that makes a client run such a command; its value is the text to print at the end."""

NO_MESSAGE = "1"
"""Value of the variable if nothing is printed at the end."""


def run(typed: list[str]) -> int:
    """Run the typed command with the job that the environment variables name; return its exit status, 1 if the job
    was ended by others."""
    closing = os.environ.pop(ENTERED_VARIABLE)
    job = jobfile.read(os.environ[job_variables.FOLDER])
    marker = f"{os.path.dirname(job.one('records'))}/pids/{job.id}"
    programs = os.path.dirname(job.one("measure"))
    words = [os.environ.get("SHELL") or "/bin/sh"] if typed[0] != "srun" else [f"{programs}/srun", *typed[1:]]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_SIGNALS)
    shell = subprocess.Popen(words, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
    revoked = False
    while shell.poll() is None:
        got = signal.sigtimedwait(_WAITED_SIGNALS, LOOK)
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
    if closing != NO_MESSAGE:
        print(closing, file=sys.stderr)
    return shell.returncode if shell.returncode >= 0 else 128 - shell.returncode
