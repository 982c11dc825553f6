"""`sstat`: shows what the steps of running jobs use now, measured from their processes on all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Callable

from vrm.ext.slurm.forms import formats, times, state_names
from vrm.ext.slurm.calls.answers import Answer, Call, DeferredAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.forms.formats import SacctField
from vrm.ext.slurm.calls.jobs import JobView, StepUsage
from vrm.ext.slurm.forms.options import Options
from vrm.model import JobState
from vrm.ext.steps.records import BATCH

OPTIONS = Options("sstat",
    "a allsteps n, e helpformat n, h help n, i pidformat n, j jobs v, n noheader n, o format v, "
    ". fields v format, p parsable n, P parsable2 n, "
    ". noconvert n -, v verbose n -", "[options] -j JOB[.STEP]")

DEFAULT = (
    "JobID,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,AveRSS,MaxPages,MaxPagesNode,"
    "MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AveCPUFreq,ReqCPUFreqMin,ReqCPUFreqMax,"
    "ReqCPUFreqGov,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,MaxDiskReadTask,AveDiskRead,MaxDiskWrite,"
    "MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,TRESUsageInAve,TRESUsageInMax,TRESUsageInMaxNode,"
    "TRESUsageInMaxTask,TRESUsageInMin,TRESUsageInMinNode,TRESUsageInMinTask,TRESUsageInTot,TRESUsageOutAve,"
    "TRESUsageOutMax,TRESUsageOutMaxNode,TRESUsageOutMaxTask,TRESUsageOutMin,TRESUsageOutMinNode,"
    "TRESUsageOutMinTask,TRESUsageOutTot")
"""Slurm's default columns; vrm leaves most of them empty."""

PIDS = "JobID,Nodelist,Pids"


@dataclass(frozen=True)
class SstatRow:
    """A running step."""

    job: JobView
    usage: StepUsage


def sstat(call: Call, handler: RequestHandler) -> Answer | DeferredAnswer:
    """Return the table of steps."""
    given, rest = OPTIONS.parse(call.arguments)
    known = _columns()
    if "helpformat" in given:
        return Answer(formats.help_of(sorted(field.name for field in known.values())))
    if rest or not given.get("jobs"):
        raise OPTIONS.error("You didn't give me any jobs to stat: sstat -j JOB[.STEP]")
    chosen = OPTIONS.checked('Invalid field requested: "{}"', formats.fields,
                             given.get("format") or (PIDS if "pidformat" in given else DEFAULT), known)
    named = {word: _jobs(word, handler) for word in state_names.split(given["jobs"])}
    look = handler.usage([job for jobs in named.values() for job in jobs])

    def answer() -> Answer | None:
        found = look()
        if found is None:
            return None
        left, rows, wrong = iter(found), [], ""
        for word, jobs in named.items():
            here = [SstatRow(job, usage) for job in jobs for usage in next(left)]
            some, why = _steps(word, "allsteps" in given, jobs, here)
            rows += some
            wrong += f"sstat: error: {why}\n" * bool(why)
        return Answer(formats.table(chosen, rows, given), wrong)
    return answer() or UsageAnswer(answer)


class UsageAnswer(DeferredAnswer):
    """An answer that is ready once the nodes have reported."""

    def __init__(self, poll: Callable[[], Answer | None]) -> None:
        self._poll = poll

    def poll(self) -> Answer | None:
        """Return the answer; None if it is not ready."""
        return self._poll()


def _jobs(word: str, handler: RequestHandler) -> list[JobView]:
    """Return the running jobs that a word names."""
    found, _ = OPTIONS.checked(f"Bad job/step specified: {word}", state_names.find, handler, word.partition(".")[0])
    return [job for job in found if job.state is JobState.RUNNING]


def _steps(word: str, every: bool, jobs: list[JobView], rows: list[SstatRow]) -> tuple[list[SstatRow], str]:
    """Return those of the running steps in `rows` that a word names, and an error text ("": none)."""
    number, dot, step = word.partition(".")
    if not jobs:
        return [], f"couldn't get steps for job {number}: it does not run"
    if dot:
        rows = [row for row in rows if row.usage.step == step]
    elif not every:
        rows = [row for row in rows if row.usage.step != BATCH]
    return rows, "" if rows else f"no steps running for job {word}"


def _kib(size: float) -> str:
    return f"{round(size / 1024)}K"


def _columns() -> dict[str, SacctField]:
    """Return the columns by their names in lower case."""
    def each(seconds: float, row: SstatRow) -> str:
        return times.elapsed(seconds / row.usage.tasks)
    known = {
        "JobID": SacctField("JobID", -12, lambda row: f"{row.job.shown_id}.{row.usage.step}"),
        "MaxRSS": SacctField("MaxRSS", 10, lambda row: _kib(row.usage.largest)),
        "AveRSS": SacctField("AveRSS", 10, lambda row: _kib(row.usage.memory / row.usage.tasks)),
        "MaxRSSNode": SacctField("MaxRSSNode", 10, lambda row: row.usage.node),
        "AveCPU": SacctField("AveCPU", 10, lambda row: each(row.usage.cpu, row)),
        "MinCPU": SacctField("MinCPU", 10, lambda row: ""),
        "NTasks": SacctField("NTasks", 8, lambda row: str(row.usage.tasks)),
        "Nodelist": SacctField("Nodelist", 20, lambda row: ",".join(row.usage.nodes)),
        "Pids": SacctField("Pids", 20, lambda row: ",".join(map(str, row.usage.pids)))}
    names = [*DEFAULT.split(","), "Nodelist", "Pids", "ConsumedEnergyRaw", "ReqCPUFreq"]
    return {name.lower(): known.get(name) or SacctField(name, max(10, len(name)), None) for name in names}
