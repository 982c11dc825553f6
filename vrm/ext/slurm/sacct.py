"""`sacct`: the accounting records of jobs and of their steps; `seff`: what a job has used of what it had."""

from __future__ import annotations

import math
from typing import NamedTuple
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.slurm.forms import json_output, formats, times, state_names
from vrm.ext.slurm.calls.answers import Answer, Call
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.forms.formats import SacctField
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.forms.options import Options
from vrm.model import JobState
from vrm.model.quantities import memory_text
from vrm.ext.steps.records import BATCH, Step

OPTIONS = Options("sacct",
    "A accounts v, b brief n, . delimiter v, e helpformat n, E endtime v, h help n, j jobs v, . json m, "
    "l long n, n noheader n, . name v, o format v, p parsable n, P parsable2 n, q qos v, r partition v, "
    "s state v, S starttime v, u user v, . uid v user, U usage n help, X allocations n, "
    "a allusers n -, . array n -, D duplicates n -, . expand-patterns n -, F flags v -, . federation n -, "
    "g gid v -, . group v -, L allclusters n -, . local n -, M clusters v -, . cluster v -, . noconvert n -, "
    "T truncate n -, . units v, . use-local-uid n -, v verbose n -, W wckeys v -, . whole-hetjob m -, "
    "x associations v -, "
    "B batch-script n !, c completion n !, . env-vars n !, f file v !, i nnodes v !, I ncpus v !, "
    "k timelimit-min v !, K timelimit-max v !, N nodelist v !, R reason v !")

UNITS = "KMGTP"
"""Units of memory, each 1024 times the one before."""

DEFAULT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
BRIEF = "jobid,state,exitcode"
LONG = ("jobid,jobidraw,jobname,partition,maxvmsize,maxrss,averss,ntasks,alloccpus,elapsed,state,exitcode,"
        "reqmem,nodelist")


class UsedResources(NamedTuple):
    """CPU time in seconds, and memory of the largest process in bytes (0: not known)."""

    user: float
    system: float
    memory: int


def used_resources(steps: Sequence[Step], script: bool) -> UsedResources:
    """Return what a job has used as far as it is recorded. With `script` only the script's own part: the record of a
    script includes its steps."""
    of_steps = [step for step in steps if step.step != BATCH]
    user, system = sum(step.user for step in of_steps), sum(step.system for step in of_steps)
    memory = max((step.maxrss for step in of_steps), default=0)
    whole = next((step for step in steps if step.step == BATCH), None)
    if whole is None:
        return UsedResources(0.0, 0.0, 0) if script else UsedResources(user, system, memory)
    if not script:
        return UsedResources(max(user, whole.user), max(system, whole.system), max(memory, whole.maxrss))
    return UsedResources(max(0.0, whole.user - user), max(0.0, whole.system - system),
                         whole.maxrss if whole.maxrss > memory else 0)


class SacctRow:
    """A line of sacct: a job, or one of its steps. `program` is the step unless the step is the script itself."""

    def __init__(self, job: JobView, handler: RequestHandler, step: Step | None = None) -> None:
        self.job, self.handler, self.step = job, handler, step
        self.suffix = "" if step is None else f".{step.step}"
        self.program = step if step is not None and step.step != BATCH else None

    @property
    def state(self) -> str:
        """State in Slurm's terms."""
        if self.step is None:
            word = state_names.state(self.job)
            cancelled = word == "CANCELLED" and state_names.reason(self.job) != "DependencyNeverSatisfied"
            return f"{word} by {self.handler.site.uid}" if cancelled else word
        if self.step.step == BATCH and self.job.cause in _OF_BATCH:
            return _OF_BATCH[self.job.cause]
        return _STEP_STATES.get(self.step.state, self.step.state.upper())

    @property
    def start(self) -> float:
        """Start time; infinity if it waits."""
        if self.step is not None:
            return self.step.start
        return math.inf if self.job.state is JobState.QUEUED else self.job.start

    @property
    def end(self) -> float:
        """End time; infinity if it has not ended."""
        if self.step is not None and math.isfinite(self.step.end):
            return self.step.end if self.job.state.ended or self.step.state != "running" else math.inf
        return self.job.end if self.job.state.ended else math.inf

    @property
    def seconds(self) -> float:
        """Run time so far, in seconds."""
        if not math.isfinite(self.start):
            return 0.0
        return max(0.0, (self.end if math.isfinite(self.end) else self.handler.now) - self.start)

    @property
    def waited(self) -> float:
        """Waiting time of the job, in seconds."""
        return max(0.0, min(self.job.start, self.handler.now) - self.job.job.submit)

    @property
    def code(self) -> str:
        """Exit status as `code:signal`."""
        if self.step is None and state_names.state(self.job) in _EXIT_CODE_OF_SCRIPT:
            return "0:0"
        if self.program is None or self.program.exit_code is None:
            return state_names.exit_code(self.job)
        value = self.program.exit_code
        return f"0:{value - 128}" if value > 128 and self.program.state != "failed" else f"{value}:0"

    @property
    def cores(self) -> int:
        """Number of cores that it has or had."""
        if self.program is not None:
            return self.program.cores
        return self.job.cpus if self.job.cores or self.job.state is JobState.QUEUED else 0

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the nodes where it runs or ran."""
        return self.job.nodes if self.step is None else self.step.nodes.split()

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.nodes) or int(self.step is None)

    @property
    def tres(self) -> str:
        """Allocated resources in Slurm's TRES format."""
        return f"billing={self.cores},cpu={self.cores},node={self.count}" if self.cores else ""

    @property
    def memory(self) -> str:
        """Memory that the job requests."""
        request = self.job.job.request
        size = request.mem_per_node or request.mem_per_task * request.tasks
        return memory_text(size) if size else "0"

    @property
    def used(self) -> UsedResources:
        """CPU time and memory that it has used."""
        if self.program is not None:
            return UsedResources(self.program.user, self.program.system, self.program.maxrss)
        return used_resources(self.handler.steps(self.job), self.step is not None)

    @property
    def peak(self) -> str:
        """Memory of the largest process of a step; "" for a job, where it is not known."""
        return f"{self.used.memory // 1024}K" if self.step is not None and self.used.memory else ""


def sacct(call: Call, handler: RequestHandler) -> Answer:
    """Return the table of jobs and steps."""
    given, rest = OPTIONS.parse(call.arguments)
    known = columns(handler, call.env)
    if "units" in given:
        unit = given["units"][:1].upper()
        if not unit or unit not in UNITS:
            raise OPTIONS.error(f"Invalid unit type '{given['units']}'. Possible options are '{UNITS}'")
        known.update((name, in_unit(known[name], unit)) for name in ("maxrss", "averss", "reqmem"))
    if "helpformat" in given:
        return Answer(formats.help_of([field.name for field in known.values()]))
    chosen = OPTIONS.checked('Invalid field requested: "{}"', formats.fields, given.get("format") or (
        LONG if "long" in given else BRIEF if "brief" in given else call.env.get("SACCT_FORMAT") or DEFAULT), known)
    if rest:
        raise OPTIONS.error(f"`{rest[0]}` is one word too many; ids go behind -j")
    rows = _rows(given, handler)
    if "json" in given:
        steps: dict[int, list[tuple[Step, str]]] = {}
        for row in rows:
            if row.step is not None:
                steps.setdefault(row.job.id, []).append((row.step, _STEP_STATES.get(row.step.state, "FAILED")))
        return Answer(json_output.document(call, handler, "jobs", (
            json_output.recorded(row.job, steps.get(row.job.id, ()), handler) for row in rows if row.step is None)))
    return Answer(formats.table(chosen, rows, given))


def in_unit(field: SacctField, unit: str) -> SacctField:
    """Return a column of memory with all amounts in this unit, with two decimals unless they are whole."""
    def converted(row: SacctRow) -> str:
        text = field.value(row) if field.value else ""
        if text[-1:] not in UNITS or not text:
            return text
        size = float(text[:-1]) * 1024.0 ** (UNITS.index(text[-1]) - UNITS.index(unit))
        return f"{size:.0f}{unit}" if size.is_integer() else f"{size:.2f}{unit}"

    return field._replace(value=converted)


def _rows(given: Mapping[str, str], handler: RequestHandler) -> list[SacctRow]:
    """Return the requested jobs, each followed by its steps."""
    site, now = handler.site, handler.now
    users = state_names.split(given.get("user", ""))
    if (users and not set(users) & {site.user, str(site.uid)}) or given.get("accounts"):
        return []
    states = OPTIONS.checked("Invalid state: {}", state_names.states_of, given["state"]) if given.get("state") else None
    jobs = OPTIONS.checked("Bad job/step specified: {}", state_names.find, handler,
                           given["jobs"].replace(" ", ""))[0] if (
        "jobs" in given) else handler.jobs()

    def moment(key: str, default: float) -> float:
        if key not in given:
            return default
        return OPTIONS.checked(f"Invalid time specification: {given[key]}", times.when, given[key], now)
    since = moment("starttime", -math.inf if "jobs" in given else times.when("midnight", now))
    until = moment("endtime", math.inf)
    # sacct compares times in whole seconds.
    jobs = [job for job in state_names.selected(jobs, given, site) if int(job.job.submit) <= until and job.end >= since
            and (states is None or state_names.state(job) in states)]
    if "allocations" in given:
        return [SacctRow(job, handler) for job in jobs]
    found = []
    for job in jobs:
        found.append(SacctRow(job, handler))
        steps = handler.steps(job)
        if job.job.payload.script and job.state is not JobState.QUEUED and math.isfinite(job.start) and not any(
                step.step == "batch" for step in steps):
            steps = [_batch(job), *steps]
        found += [SacctRow(job, handler, step)
                  for step in sorted(steps, key=lambda step: (step.step != "batch", _number(step)))]
    return found


def _number(step: Step) -> int:
    return int(step.step) if step.step.isdigit() else -1


def _batch(job: JobView) -> Step:
    """Return the step of a script for which no record exists (yet)."""
    return Step(job.id, "batch", "batch", job.start, job.end, job.state.value, job.code, 1,
                job.cores[0] if job.cores else 1, job.nodes[0] if job.nodes else "")


_OF_BATCH = {"timeout": "CANCELLED", "node": "CANCELLED", "memory": "OUT_OF_MEMORY"}
"""State of the script's step when the manager has ended the job for this cause."""

_EXIT_CODE_OF_SCRIPT = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
"""States of jobs whose own line shows exit code 0:0; only the line of the script shows the signal."""

_STEP_STATES = {"completed": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED", "timeout": "TIMEOUT",
                "running": "RUNNING"}

EMPTY = (
    "AdminComment", "Associd", "AveCPUFreq", "AveDiskRead", "AveDiskWrite", "AvePages", "AveVMSize", "BlockID",
    "ConsumedEnergy", "ConsumedEnergyRaw", "Container", "DBIndex", "FailedNode", "Flags", "Layout",
    "MaxDiskRead", "MaxDiskReadNode", "MaxDiskReadTask", "MaxDiskWrite", "MaxDiskWriteNode", "MaxDiskWriteTask",
    "MaxPages", "MaxPagesNode", "MaxPagesTask", "MaxRSSNode", "MaxRSSTask", "MaxVMSize", "MaxVMSizeNode",
    "MaxVMSizeTask", "McsLabel", "MinCPU", "MinCPUNode", "MinCPUTask", "ReqCPUFreq", "ReqCPUFreqGov",
    "ReqCPUFreqMax", "ReqCPUFreqMin", "ReservationId", "ReqReservation", "SystemComment",
    "TRESUsageInAve", "TRESUsageInMax", "TRESUsageInMaxNode", "TRESUsageInMaxTask", "TRESUsageInMin",
    "TRESUsageInMinNode", "TRESUsageInMinTask", "TRESUsageInTot", "TRESUsageOutAve", "TRESUsageOutMax",
    "TRESUsageOutMaxNode", "TRESUsageOutMaxTask", "TRESUsageOutMin", "TRESUsageOutMinNode",
    "TRESUsageOutMinTask", "TRESUsageOutTot", "WCKey", "WCKeyID")
"""Columns of sacct that vrm leaves empty."""


def columns(handler: RequestHandler, env: Mapping[str, str]) -> dict[str, SacctField]:
    """Return the columns of sacct by their names in lower case."""
    site = handler.site

    def at(moment: float) -> str:
        return times.moment(moment, env, "Unknown")

    def only_job(read: Callable[[JobView], str]) -> Callable[[SacctRow], str]:
        return lambda row: read(row.job) if row.step is None else ""

    rows = [
        SacctField("JobID", -12, lambda row: row.job.shown_id + row.suffix),
        SacctField("JobIDRaw", 12, lambda row: f"{row.job.id}{row.suffix}"),
        SacctField("JobName", 10, lambda row: row.job.name if row.step is None else row.step.name),
        SacctField("State", 10, lambda row: row.state), SacctField("ExitCode", 8, lambda row: row.code),
        SacctField("DerivedExitCode", 15, only_job(state_names.exit_code)),
        SacctField("Submit", 19, lambda row: at(row.job.job.submit)),
        SacctField("Eligible", 19, lambda row: at(row.job.eligible)),
        SacctField("Start", 19, lambda row: at(row.start)),
        SacctField("End", 19, lambda row: at(row.end)),
        SacctField("Elapsed", 10, lambda row: times.elapsed(row.seconds)),
        SacctField("ElapsedRaw", 10, lambda row: str(int(row.seconds))),
        SacctField("NodeList", 15, lambda row: state_names.node_list(row.nodes) or "None assigned"),
        SacctField("NNodes", 8, lambda row: str(row.count)),
        SacctField("AllocNodes", 10, lambda row: str(row.count if row.job.nodes else 0)),
        SacctField("NCPUS", 10, lambda row: str(row.cores)), SacctField("AllocCPUS", 10, lambda row: str(row.cores)),
        SacctField("ReqCPUS", 8, lambda row: str(row.job.job.request.cores)),
        SacctField("NTasks", 8, lambda row: "" if row.step is None else str(row.step.tasks)),
        SacctField("Account", 10, lambda row: ""),
        SacctField("Partition", 10, only_job(lambda job: state_names.partition(job, site))),
        SacctField("MaxRSS", 10, lambda row: row.peak),
        SacctField("AveRSS", 10, lambda row: row.peak if row.step is not None and row.step.tasks == 1 else ""),
        SacctField("AveCPU", 10, lambda row: "" if row.step is None else times.elapsed(
            (row.used.user + row.used.system) / row.step.tasks)),
        SacctField("UserCPU", 10, lambda row: times.cpu(row.used.user)),
        SacctField("SystemCPU", 10, lambda row: times.cpu(row.used.system)),
        SacctField("TotalCPU", 10, lambda row: times.cpu(row.used.user + row.used.system)),
        SacctField("Reason", 22, only_job(state_names.reason)),
        SacctField("User", 9, only_job(lambda job: site.user)),
        SacctField("UID", 6, only_job(lambda job: str(site.uid))),
        SacctField("Group", 9, only_job(lambda job: site.group)),
        SacctField("GID", 6, only_job(lambda job: str(site.gid))),
        SacctField("Cluster", 10, lambda row: "vrm"),
        SacctField("WorkDir", 20, only_job(lambda job: job.job.payload.directory)),
        SacctField("Timelimit", 10, only_job(lambda job: times.elapsed(job.job.walltime))),
        SacctField("TimelimitRaw", 12, only_job(lambda job: str(job.minutes))),
        SacctField("Comment", 14, only_job(lambda job: job.details.more.get("comment", ""))),
        SacctField("Priority", 10, only_job(lambda job: str(job.priority))),
        SacctField("QOS", 10, only_job(lambda job: "normal")), SacctField("QOSREQ", 10, only_job(lambda job: "")),
        SacctField("QOSRAW", 10, only_job(lambda job: "")),
        SacctField("ReqMem", 10, lambda row: row.memory), SacctField("AllocTRES", 10, lambda row: row.tres),
        SacctField("ReqTRES", 10, lambda row: row.tres),
        SacctField("CPUTime", 10, lambda row: times.elapsed(row.seconds * row.cores)),
        SacctField("CPUTimeRAW", 10, lambda row: str(int(row.seconds) * row.cores)),
        SacctField("Constraints", 10, only_job(lambda job: job.features)),
        SacctField("Reservation", 20, only_job(lambda job: job.details.more.get("reservation", ""))),
        SacctField("ReqNodes", 8, lambda row: str(row.job.job.request.least_nodes)),
        SacctField("Restarts", 8, only_job(lambda job: str(job.requeued))),
        SacctField("Planned", 10, lambda row: "" if row.step else times.elapsed(row.waited)),
        SacctField("PlannedCPU", 10, lambda row: ""), SacctField("PlannedCPURAW", 10, lambda row: ""),
        SacctField("Reserved", 10, lambda row: "" if row.step else times.elapsed(row.waited)),
        SacctField("ResvCPU", 10, lambda row: ""), SacctField("ResvCPURAW", 10, lambda row: ""),
        SacctField("Suspended", 10, lambda row: times.elapsed(0)),
        SacctField("SubmitLine", 20, lambda row: ""),
        SacctField("StdOut", 20, only_job(lambda job: handler.files(job)[0])),
        SacctField("StdErr", 20, only_job(lambda job: handler.files(job)[1])),
        SacctField("StdIn", 20, only_job(lambda job: handler.files(job)[2])),
        *(SacctField(name, 10, None) for name in EMPTY)]
    return {field.name.lower(): field for field in sorted(rows, key=lambda field: field.name)}


SEFF = Options("seff", "d debug n -, f full n -, h help n", "[options] JOB")


def seff(call: Call, handler: RequestHandler) -> Answer:
    """Return the efficiency of a job; of an array named by its id, that of its first job."""
    _, rest = SEFF.parse(call.arguments)
    if len(rest) != 1:
        raise SEFF.error("name one job, for example seff 12")
    found, _ = SEFF.checked("Job not found.", state_names.find, handler, rest[0])
    if not found:
        return Answer("Job not found.\n", code=2)
    job, row = found[0], SacctRow(found[0], handler)
    state, site = state_names.state(job), handler.site
    lines = [f"Job ID: {job.id}", *([] if job.array is None else [f"Array Job ID: {job.shown_id}"]), "Cluster: vrm",
             f"User/Group: {site.user}/{site.group}",
             f"State: {state}" + f" (exit code {job.code or 0})" * job.state.ended]
    if row.cores > 1:
        lines += [f"Nodes: {row.count}", f"Cores per node: {row.cores // row.count}"]
    else:
        lines += [f"Cores: {row.cores}"]
    if job.state is JobState.QUEUED:
        return Answer("\n".join([*lines, "Efficiency not available for jobs in the PENDING state."]) + "\n")
    used, held = row.used, row.cores * row.seconds
    request = job.job.request
    asked = request.mem_per_node * row.count or request.mem_per_task * request.tasks
    cpu = used.user + used.system
    lines += [f"CPU Utilized: {times.elapsed(cpu)}",
              f"CPU Efficiency: {100 * cpu / held if held else 0:.2f}% of {times.elapsed(held)} core-walltime",
              f"Job Wall-clock time: {times.elapsed(row.seconds)}", f"Memory Utilized: {_size(used.memory)}"]
    if asked:
        lines.append(f"Memory Efficiency: {100 * used.memory / asked:.2f}% of {_size(asked)} "
                     f"({_size(asked / row.count)}/node)")
    if not job.state.ended:
        lines.append("WARNING: Efficiency statistics may be misleading for RUNNING jobs.")
    return Answer("\n".join(lines) + "\n")


def _size(amount: float) -> str:
    """Return an amount of memory, given in bytes, in the largest unit in which it is at least 1."""
    amount /= 1024
    for unit in ("KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.2f} {unit}"
        amount /= 1024
    return f"{amount:.2f} TB"
