"""`squeue`: shows waiting and running jobs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from collections.abc import Callable, Iterable, Iterator, Mapping

from vrm.ext.slurm.forms import json_output, formats, times, state_names
from vrm.ext.slurm.calls.answers import Answer, Call
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.forms.formats import Value
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.forms.options import Options
from vrm.model import JobState
from vrm.model.quantities import fold

OPTIONS = Options("squeue",
    "A account v, h noheader n, j jobs v, . json n, L licenses v licences, l long n, . me n, n name v, "
    "w nodelist v, o format v, O Format v, p partition v, q qos v, R reservation v, S sort v, . start n, "
    "s steps m, t states v, u user v, . users v user, "
    "a all n -, r array n, . array-unique n -, . federation n -, . hide n -, . local n -, M clusters v -, "
    ". noconvert n -, . priority n -, . sibling n -, v verbose n -, "
    "i iterate v !, . notme n !, . yaml m !")

DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"

ACTIVE = ("PENDING", "RUNNING", "COMPLETING")


def squeue(call: Call, handler: RequestHandler) -> Answer:
    """Return the table of jobs."""
    given, rest = OPTIONS.parse(call.arguments)
    env = call.env
    if rest:
        raise OPTIONS.error(f"unrecognized argument {rest[0]}")
    if "steps" in given:
        return Answer("" if "noheader" in given else "         STEPID     NAME PARTITION     USER      TIME NODELIST\n")
    table = _table(given, env, handler)
    jobs, failed = _chosen(given, env, handler)
    if failed:
        return Answer(err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    if not ("array" in given or "json" in given or env.get("SQUEUE_ARRAY") or "_" in given.get("jobs", "")):
        jobs = list(_folded(jobs))
    jobs = _sorted(jobs, given.get("sort", env.get("SQUEUE_SORT", "")), handler)
    if "json" in given:
        return Answer(json_output.document(call, handler, "jobs", (json_output.queued(job, handler) for job in jobs)))
    return Answer(table.lines(jobs, "noheader" not in given), table.complaints("squeue"))


def _table(given: Mapping[str, str], env: Mapping[str, str], handler: RequestHandler) -> formats.TextTable:
    letters, names = columns(handler, env)
    if "Format" in given:
        return formats.names(given["Format"], names)
    text = given.get("format", START if "start" in given else LONG if "long" in given else None)
    if text is None and env.get("SQUEUE_FORMAT2"):
        return formats.names(env["SQUEUE_FORMAT2"], names)
    return formats.letters(env.get("SQUEUE_FORMAT") or DEFAULT if text is None else text, letters)


def _chosen(given: Mapping[str, str], env: Mapping[str, str], handler: RequestHandler) -> tuple[list[JobView], bool]:
    """Return the jobs to show, and whether a single requested job does not exist."""
    site = handler.site
    states = OPTIONS.checked("Invalid job state specified: {}", state_names.states_of, given.get("states") or env.get(
        "SQUEUE_STATES") or ("PENDING" if "start" in given else ",".join(ACTIVE)))
    ended = states is None or any(state not in ACTIVE for state in states)
    if "jobs" in given:
        jobs, missing = OPTIONS.checked("Invalid job id: {}", state_names.find, handler, given["jobs"])
        if missing and not jobs and len(state_names.split(given["jobs"])) == 1:
            return [], True
    else:
        jobs = handler.jobs(ended=ended)
    if states is not None:
        jobs = [job for job in jobs if state_names.state(job) in states]
    users = set(state_names.split(given["user"])) if "user" in given else None
    if users is not None and not users & {site.user, str(site.uid)}:
        return [], False
    jobs = state_names.selected(jobs, given, site)
    if "licences" in given:
        named = set(state_names.split(given["licences"]))
        jobs = [job for job in jobs if named & {name for name, _ in job.job.request.licences}]
    if "nodelist" in given:
        from vrm.model.forms.hosts import expand
        on = set(OPTIONS.checked("Invalid node name: {}", expand, given["nodelist"]))
        jobs = [job for job in jobs if on & set(job.nodes)]
    return jobs, False


def _folded(jobs: Iterable[JobView]) -> Iterator[JobView]:
    """Yield the jobs; one line for those of an array that have not started yet and wait for the same reason."""
    groups: dict[object, list[JobView]] = {}
    for job in jobs:
        waits = job.array is not None and job.state is JobState.QUEUED and not job.begun
        groups.setdefault((job.array, job.why, job.job.priority, job.job.walltime) if waits else job.id, []).append(job)
    for key, (first, *others) in groups.items():
        indices = [job.details.index or 0 for job in (first, *others)]
        limit = f"%{first.limit}" if first.limit else ""
        yield first if key == first.id else replace(first, tasks=fold(indices) + limit)


_ORDER = {"PENDING": 0, "RUNNING": 1, "SUSPENDED": 2, "COMPLETING": 9}

_SORTS: dict[str, Callable[[JobView, RequestHandler], Any]] = {
    "i": lambda job, handler: job.id, "A": lambda job, handler: job.id, "F": lambda job, handler: job.array or job.id,
    "t": lambda job, handler: _ORDER.get(state_names.state(job), 5), "T": lambda job, handler: state_names.state(job),
    "P": lambda job, handler: state_names.partition(job, handler.site), "j": lambda job, handler: job.name,
    "p": lambda job, handler: job.job.priority, "Q": lambda job, handler: job.job.priority,
    "S": lambda job, handler: job.start, "e": lambda job, handler: job.end, "V": lambda job, handler: job.job.submit,
    "M": lambda job, handler: job.ran(handler.now), "l": lambda job, handler: job.job.walltime,
    "u": lambda job, handler: handler.site.user, "D": lambda job, handler: job.node_count, "C":
    lambda job, handler: job.cpus, "N": lambda job, handler: job.nodes}


def _sorted(jobs: list[JobView], keys: str, handler: RequestHandler) -> list[JobView]:
    """Return the jobs in the order of `-S`; without it waiting jobs first."""
    for word in reversed((keys or "t").split(",")):
        found = _SORTS.get(word.strip().lstrip("+-"))
        if found is None:
            raise OPTIONS.error(f"Invalid sort field: {word}")
        jobs = sorted(jobs, key=lambda job, key=found: key(job, handler),  # type: ignore[misc]
                      reverse=word.strip().startswith("-"))
    return jobs


def _gpus(job: JobView) -> str:
    request = job.job.request
    count = request.gpus_per_node or request.gpus_per_task
    return f"gres:gpu:{count}" if count else "N/A"


def _tres(job: JobView) -> str:
    return f"cpu={job.cpus},node={job.node_count},billing={job.cpus}"


_CONSTANT = """
(null) admin_comment allocnodes=ALLOC_NODES burstbuffer=BURST_BUFFER burstbufferstate=BURST_BUFFER_STATE
(null) clusterfeature=CLUSTER_FEATURES container mcslabel network system_comment
N/A accruetime=ACCRUE_TIME cpus-per-tres hetjobid=HET_JOB_ID hetjobidset=HET_JOB_ID_SET hetjoboffset=HET_JOB_OFFSET
N/A lastschedeval=LAST_SCHED_EVAL mem-per-tres ntpercore=NTASKS_PER_CORE ntpersocket=NTASKS_PER_SOCKET
N/A resizetime=RESIZE_TIME tres-bind tres-freq tres-per-job tres-per-socket tres-per-task
0 allocsid=ALLOC_SID associd=ASSOC_ID boardspernode=BOARDS_PER_NODE derivedec=DERIVED_EC reboot reqswitch=REQ_SWITCH
0 ntperboard=NTASKS_PER_BOARD ntpernode=NTASKS_PER_NODE
0:00 delayboot=DELAY_BOOT mintime=TIME_MIN wait4switch
NA siblingsactive=ACTIVE_SIBLINGS siblingsactiveraw=ACTIVE_SIBLINGS_RAW
NA siblingsviable=VIABLE_SIBLINGS siblingsviableraw=VIABLE_SIBLINGS_RAW
NotSet profile
"""
"""Columns about what vrm does not have: what Slurm prints for a job without it, and their names, with the heading where
it is not the name in capitals."""


def _constant() -> Iterator[tuple[str, str, str, Value]]:
    for line in _CONSTANT.split("\n"):
        value, _, names = line.partition(" ")
        for name, equals, heading in (word.partition("=") for word in names.split()):
            yield "", name, heading if equals else name.upper().replace("-", "_"), partial(_always, value)


def _always(value: str, job: JobView) -> str:
    return value


def columns(handler: RequestHandler, env: Mapping[str, str]) -> tuple[formats.Known, formats.Known]:
    """Return the columns by the letters and by the names of formats."""
    site = handler.site

    def where(job: JobView) -> str:
        if job.state is JobState.QUEUED or job.state in (JobState.FAILED, JobState.TIMEOUT):
            return f"({state_names.reason(job)})"
        return state_names.node_list(job.nodes)

    def first(job: JobView) -> str:
        return job.nodes[0] if job.nodes else "n/a"

    rows: list[tuple[str, str, str, Value]] = [
        ("A", "jobid", "JOBID", lambda job: str(job.id)),
        ("i", "jobarrayid", "JOBID", lambda job: job.shown_id),
        ("F", "arrayjobid", "ARRAY_JOB_ID", lambda job: str(job.array or job.id)),
        ("K", "arraytaskid", "ARRAY_TASK_ID",
         lambda job: "N/A" if job.array is None else job.tasks or str(job.details.index)),
        ("t", "statecompact", "ST", lambda job: state_names.STATES[state_names.state(job)]),
        ("T", "state", "STATE", state_names.state),
        ("j", "name", "NAME", lambda job: job.name),
        ("u", "username", "USER", lambda job: site.user),
        ("U", "userid", "UID", lambda job: str(site.uid)),
        ("g", "groupname", "GROUP", lambda job: site.group),
        ("G", "groupid", "GROUP", lambda job: str(site.gid)),
        ("P", "partition", "PARTITION", lambda job: state_names.partition(job, site)),
        ("r", "reason", "REASON", state_names.reason),
        ("R", "reasonlist", "NODELIST(REASON)", where),
        ("N", "nodelist", "NODELIST", lambda job: state_names.node_list(job.nodes)),
        ("B", "batchhost", "EXEC_HOST", first),
        ("D", "numnodes", "NODES", lambda job: str(job.node_count)),
        ("C", "numcpus", "CPUS", lambda job: str(job.cpus)),
        ("c", "mincpus", "MIN_CPUS", lambda job: str(job.job.cores)),
        ("m", "minmemory", "MIN_MEMORY", lambda job: job.memory_text),
        ("d", "mintmpdisk", "MIN_TMP_DISK", lambda job: "0"),
        ("b", "tres-per-node", "TRES_PER_NODE", _gpus),
        ("l", "timelimit", "TIME_LIMIT", lambda job: times.used(job.job.walltime)),
        ("M", "timeused", "TIME", lambda job: times.used(job.ran(handler.now))),
        ("L", "timeleft", "TIME_LEFT", lambda job: times.used(max(0.0, job.job.walltime - job.ran(handler.now)))),
        ("S", "starttime", "START_TIME", lambda job: times.moment(job.start, env)),
        ("e", "endtime", "END_TIME", lambda job: times.moment(job.known_end, env)),
        ("V", "submittime", "SUBMIT_TIME", lambda job: times.moment(job.job.submit, env)),
        ("Z", "workdir", "WORK_DIR", lambda job: job.job.payload.directory),
        ("z", "reqb:s:c:t", "S:C:T", lambda job: "*:*:*"),
        ("k", "comment", "COMMENT", lambda job: job.details.more.get("comment") or "(null)"),
        ("a", "account", "ACCOUNT", lambda job: "(null)"),
        ("q", "qos", "QOS", lambda job: "normal"),
        ("E", "dependency", "DEPENDENCY", state_names.dependency),
        ("f", "feature", "FEATURES", lambda job: job.features or "(null)"),
        ("h", "oversubscribe", "OVER_SUBSCRIBE", lambda job: "NO" if job.job.exclusive else "OK"),
        ("n", "reqnodes", "REQ_NODES", lambda job: state_names.node_list(job.job.request.nodelist)),
        ("x", "excnodes", "EXC_NODES", lambda job: state_names.node_list(job.job.request.exclude)),
        ("Y", "schednodes", "SCHEDNODES", lambda job: "(null)"),
        ("o", "command", "COMMAND", lambda job: job.job.payload.file or "(null)"),
        ("p", "priority", "PRIORITY", lambda job: f"{max(0.0, 0.5 + job.job.priority / 1e9):.15f}"),
        ("Q", "prioritylong", "PRIORITY", lambda job: str(job.priority)),
        ("v", "reservation", "RESERVATION", lambda job: job.details.more.get("reservation") or "(null)"),
        ("W", "licenses", "LICENSES", lambda job: job.licences or "(null)"),
        ("w", "wckey", "WCKEY", lambda job: "(null)"),
        ("y", "nice", "NICE", lambda job: str(-job.job.priority)),
        ("s", "selectjobinfo", "SELECT_JOBINFO", lambda job: ""),
        ("O", "contiguous", "CONTIGUOUS", lambda job: "0"),
        ("H", "sockets", "SOCKETS_PER_NODE", lambda job: "*"),
        ("I", "cores", "CORES_PER_SOCKET", lambda job: "*"),
        ("J", "threads", "THREADS_PER_CORE", lambda job: "*"),
        ("X", "corespec", "CORE_SPEC", lambda job: "N/A"),
        ("", "cluster", "CLUSTER", lambda job: "vrm"),
        ("", "exit_code", "EXIT_CODE", lambda job: str(job.code or 0)),
        ("", "jobname", "NAME", lambda job: job.name),
        ("", "numtasks", "TASKS", lambda job: str(job.job.procs)),
        ("", "cpus-per-task", "CPUS_PER_TASK", lambda job: str(job.job.cores)),
        ("", "restartcnt", "RESTART_COUNT", lambda job: str(job.requeued)),
        ("", "stdout", "STDOUT", lambda job: handler.files(job)[0]),
        ("", "stderr", "STDERR", lambda job: handler.files(job)[1]),
        ("", "stdin", "STDIN", lambda job: handler.files(job)[2] or "/dev/null"),
        ("", "eligibletime", "ELIGIBLE_TIME", lambda job: times.moment(job.eligible, env)),
        ("", "tres-alloc", "TRES_ALLOC", _tres), ("", "tres", "TRES_ALLOC", _tres),
        ("", "batchflag", "BATCH_FLAG", lambda job: str(int(job.job.payload.script))),
        ("", "maxcpus", "MAX_CPUS", lambda job: "0"), ("", "maxnodes", "MAX_NODES", lambda job: "0"),
        ("", "nodes", "NODES", lambda job: str(job.node_count)),
        ("", "gres", "TRES_PER_NODE", _gpus), ("", "sct", "S:C:T", lambda job: "*:*:*"),
        ("", "shared", "OVER_SUBSCRIBE", lambda job: "NO" if job.job.exclusive else "OK"),
        ("", "pendingtime", "PENDING_TIME",
         lambda job: str(int(max(0.0, min(job.start, handler.now) - job.job.submit)))),
        ("", "requeue", "REQUEUE", lambda job: str(int(job.details.more.get("requeue") != "no"))),
        ("", "deadline", "DEADLINE", lambda job: times.moment(job.deadline, env)),
        *_constant(),
    ]
    return formats.index_columns(rows)
