"""What a pool asks of a batch system: to submit a script, to cancel a job, and whether a job has ended."""

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
"""That a program of a batch system may take."""

ENDED_IN_SLURM = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
                  "TIMEOUT"}
"""States after which no process of a job is left. Not NODE_FAIL: a node that Slurm does not reach may go on."""

SKEW = timedelta(seconds=300)
"""By how much the clocks of a cluster differ at most."""


class Said(NamedTuple):
    """What a program has printed, and its status (None: it is not there, or hangs)."""

    status: int | None
    output: str
    errors: str


class PoolBatch(NamedTuple):
    """A batch system: its words to submit and to cancel, and to ask about a job; `ended` says by the answer whether the
    job has ended (None: it does not say)."""

    submit: Sequence[str]
    cancel: Sequence[str]
    ask: Sequence[str]
    ended: Callable[[Said], bool | None]


def ended_in_slurm(said: Said) -> bool | None:
    """Whether a job has ended by what `scontrol show job` says. Slurm forgets jobs some minutes after their ends."""
    if "Invalid job id" in said.errors:
        return True
    state = re.search(r"\bJobState=(\w+)", said.output)
    if said.status != 0 or state is None:
        return None
    return state[1] in ENDED_IN_SLURM or (state[1] == "NODE_FAIL" and _rebooted(said))


def _rebooted(said: Said) -> bool:
    """Whether all nodes of a job that ended with NODE_FAIL have been started again since it began: then no process of
    it is left. Slurm's daemons do not understand each other where clocks differ by more than SKEW (munge)."""
    begin, nodes = (re.search(pattern, said.output) for pattern in (r"\bStartTime=(\S+)", r"\bNodeList=([^\s(]+)"))
    if begin is None or nodes is None:
        return False
    answer = run(["scontrol", "--oneliner", "show", "node", nodes[1]])
    boots = re.findall(r"\bBootTime=(\S+)", answer.output)
    try:
        return bool(boots) and answer.status == 0 and len(boots) == answer.output.count("NodeName=") and all(
            datetime.fromisoformat(boot) - datetime.fromisoformat(begin[1]) > SKEW for boot in boots)
    except ValueError:  # None: it is not known
        return False


def ended_in_pbs(said: Said) -> bool | None:
    """Whether a job has ended by what `qstat -x -f` says."""
    if "Unknown Job Id" in said.errors:
        return True
    state = re.search(r"^\s*job_state = (\w)", said.output, re.MULTILINE)
    return None if said.status != 0 or state is None else state[1] in "FXC"


SYSTEMS = {
    "slurm": PoolBatch(("sbatch", "--parsable", "--no-requeue"), ("scancel",),
                       ("scontrol", "--oneliner", "show", "job"), ended_in_slurm),
    "pbs": PoolBatch(("qsub", "-r", "n"), ("qdel",), ("qstat", "-x", "-f"), ended_in_pbs)}
"""Those for which pools are, by the names that vrm has for them. An allocation is not put back into the batch system's
queue: it would begin again while a node that the batch system does not reach may run on."""


def run(words: Sequence[str], seconds: float = SECONDS) -> Said:
    """What a program of the batch system says. It does not see the job around it, of which it would take wishes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    try:
        done = subprocess.run(words, env={**env, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=seconds, check=False)
    except OSError as error:
        return Said(None, "", f"{words[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Said(None, "", f"{words[0]} has not answered within {seconds:g} s")
    return Said(done.returncode, done.stdout, done.stderr)


LASTING = re.compile(r"\bJobState=PENDING\b.*?\bReason=(?!None|Priority|Resources|BeginTime)(\w+)")
"""Why a job of Slurm waits that may wait for ever: not for what others have."""


class BatchAnswers:
    """What a batch system says of jobs, if it is asked at all (`asks`): not again where it hangs (`hangs`). `reason` is
    why the job waits of which it was asked last, where that may be for ever."""

    def __init__(self, system: str, asks: bool = True) -> None:
        self.system = system
        self.hangs = False
        self.reason = ""
        self._asks = asks

    def ended(self, job: str) -> bool:
        """Whether it says that a job has ended."""
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
    """Whether the batch system says that a job runs. Not so after NODE_FAIL, and where it does not answer."""
    known = SYSTEMS.get(system)
    if known is None or not job:
        return False
    said = run([*known.ask, job])
    return said.status == 0 and re.search(r"\bJobState=(RUNNING|SUSPENDED|COMPLETING|STOPPED)\b|job_state = [RES]\b",
                                          said.output) is not None


def submit(system: str, script: Path) -> str:
    """Submit a script; the id of the batch job. PoolError with the batch system's words if it refuses."""
    said = run([*SYSTEMS[system].submit, str(script)])
    job = said.output.strip().partition(";")[0]
    if said.status != 0 or not re.fullmatch(r"[\w.\[\]-]+", job):
        words = printable("; ".join((said.errors or said.output).split("\n")).strip("; ") or "it says nothing", 300)
        raise PoolError(f"the batch system has not taken the request: {words}")
    return job


def cancel(system: str, job: str) -> None:
    """Take a request back."""
    run([*SYSTEMS[system].cancel, job])
