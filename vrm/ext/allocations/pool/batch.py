"""A pool's interface to a batch system: submit a script, cancel a job, and query whether a job has ended."""

from __future__ import annotations

import os
import re
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from collections.abc import Callable, Sequence

from vrm.ext.allocations.pool.journal import PoolError
from vrm.system.printing.text import printable

SECONDS = 20.0
"""Time limit of a program of a batch system, in seconds."""

ENDED_IN_SLURM = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
                  "TIMEOUT"}
"""States in which no process of a job is left. NODE_FAIL is not one of them: a node that Slurm does not reach
may continue."""

SKEW = timedelta(seconds=300)
"""Greatest difference between the clocks of a cluster."""


class CommandOutput(NamedTuple):
    """The output of a program, and its exit status (None: it is missing, or hangs)."""

    status: int | None
    output: str
    errors: str


class PoolBatch(NamedTuple):
    """A batch system: its commands to submit, to cancel, and to query a job. `ended` returns from the answer
    whether the job has ended (None: unknown)."""

    submit: Sequence[str]
    cancel: Sequence[str]
    ask: Sequence[str]
    ended: Callable[[CommandOutput], bool | None]


def ended_in_slurm(said: CommandOutput) -> bool | None:
    """Return whether a job has ended according to `scontrol show job`. Slurm forgets jobs some minutes after
    their ends."""
    if "Invalid job id" in said.errors:
        return True
    state = re.search(r"\bJobState=(\w+)", said.output)
    if said.status != 0 or state is None:
        return None
    return state[1] in ENDED_IN_SLURM or (state[1] == "NODE_FAIL" and _rebooted(said))


def _rebooted(said: CommandOutput) -> bool:
    """Return whether all nodes of a job that ended with NODE_FAIL have booted since it began: then no process
    of it is left. Slurm's daemons do not communicate if clocks differ by more than SKEW (munge)."""
    begin, nodes = (re.search(pattern, said.output) for pattern in (r"\bStartTime=(\S+)", r"\bNodeList=([^\s(]+)"))
    if begin is None or nodes is None:
        return False
    answer = run(["scontrol", "--oneliner", "show", "node", nodes[1]])
    boots = re.findall(r"\bBootTime=(\S+)", answer.output)
    try:
        return bool(boots) and answer.status == 0 and len(boots) == answer.output.count("NodeName=") and all(
            datetime.fromisoformat(boot) - datetime.fromisoformat(begin[1]) > SKEW for boot in boots)
    except ValueError:  # BootTime is None: unknown
        return False


def ended_in_pbs(said: CommandOutput) -> bool | None:
    """Return whether a job has ended according to `qstat -x -f`."""
    if "Unknown Job Id" in said.errors:
        return True
    state = re.search(r"^\s*job_state = (\w)", said.output, re.MULTILINE)
    return None if said.status != 0 or state is None else state[1] in "FXC"


SYSTEMS = {
    "slurm": PoolBatch(("sbatch", "--parsable", "--no-requeue"), ("scancel",),
                       ("scontrol", "--oneliner", "show", "job"), ended_in_slurm),
    "pbs": PoolBatch(("qsub", "-r", "n"), ("qdel",), ("qstat", "-x", "-f"), ended_in_pbs)}
"""The batch systems that support pools, by their names in vrm. Jobs are submitted so that they are not
requeued: an allocation would begin again while a node that the batch system does not reach may run on."""


def run(words: Sequence[str], seconds: float = SECONDS) -> CommandOutput:
    """Run a program of the batch system and return its output. The program does not see the enclosing job,
    whose options it would inherit."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    try:
        done = subprocess.run(words, env={**env, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=seconds, check=False)
    except OSError as error:
        return CommandOutput(None, "", f"{words[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return CommandOutput(None, "", f"{words[0]} has not answered within {seconds:g} s")
    return CommandOutput(done.returncode, done.stdout, done.stderr)


LASTING = re.compile(r"\bJobState=PENDING\b.*?\bReason=(?!None|Priority|Resources|BeginTime)(\w+)")
"""Matches a pending job of Slurm with a reason that may last forever, i.e. one that is not waiting for what
others have."""


class BatchAnswers:
    """Answers of a batch system about jobs. It is not queried if `asks` is false, and no longer once it hangs
    (`hangs`). `reason` is why the last queried job waits, if that may last forever."""

    def __init__(self, system: str, asks: bool = True) -> None:
        self.system = system
        self.hangs = False
        self.reason = ""
        self._asks = asks

    def ended(self, job: str) -> bool:
        """Return whether the batch system reports that a job has ended."""
        known, self.reason = SYSTEMS.get(self.system), ""
        if not self._asks or self.hangs or known is None or not job:
            return False
        begun = time.monotonic()
        said = run([*known.ask, job])
        found, reason = known.ended(said), LASTING.search(said.output)
        self.hangs = found is None and time.monotonic() - begun >= SECONDS
        self.reason = reason[1] if reason else ""
        return bool(found)


def runs(system: str, job: str) -> bool:
    """Return whether the batch system reports that a job runs. False after NODE_FAIL, and if it does not
    answer."""
    known = SYSTEMS.get(system)
    if known is None or not job:
        return False
    said = run([*known.ask, job])
    return said.status == 0 and re.search(r"\bJobState=(RUNNING|SUSPENDED|COMPLETING|STOPPED)\b|job_state = [RES]\b",
                                          said.output) is not None


def submit(system: str, script: Path) -> str:
    """Submit a script; return the id of the batch job. Raises PoolError with the batch system's message if it
    refuses."""
    said = run([*SYSTEMS[system].submit, str(script)])
    job = said.output.strip().partition(";")[0]
    if said.status != 0 or not re.fullmatch(r"[\w.\[\]-]+", job):
        words = printable("; ".join((said.errors or said.output).split("\n")).strip("; ") or "it says nothing", 300)
        raise PoolError(f"the batch system has not taken the request: {words}")
    return job


def cancel(system: str, job: str) -> None:
    """Cancel a request."""
    run([*SYSTEMS[system].cancel, job])
