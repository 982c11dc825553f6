"""`scontrol`: shows jobs, nodes and partitions in full; holds, releases, requeues and changes jobs."""

from __future__ import annotations

import math
import os
import re
from functools import partial
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.slurm.forms import json_output, times, state_names
from vrm.ext.slurm.calls.answers import Answer, Call, CallRefused, Reply, DeferredAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView, NodeView
from vrm.ext.slurm.forms.options import Options
from vrm.ext.slurm.sstat import UsageAnswer
from vrm.ext.slurm.updating import update
from vrm.model import JobState
from vrm.model.forms.hosts import expand

OPTIONS = Options("scontrol",
    "h help n, . json m, o oneliner n, Q quiet n, "
    "a all n -, d details n -, F future n -, . hide n -, M clusters v -, . local n -, . sibling n -, u uid v -, "
    "v verbose n -, "
    ". yaml m !", "[options] show job|node|partition|config|hostnames|hostlist|licenses, hold|release|requeue IDS, "
                  "update JobId=ID NAME=VALUE, write batch_script ID, wait_job ID, top IDS, listpids [ID], ping")

_ACTS = {"hold": "hold", "uhold": "hold", "release": "release", "requeue": "requeue"}


def scontrol(call: Call, handler: RequestHandler) -> Reply:
    """Carry out a subcommand."""
    given, rest = OPTIONS.parse(call.arguments)
    if rest in (["help"], ["version"]):
        OPTIONS.parse([f"--{rest[0]}"])
    if not rest:
        raise OPTIONS.error("vrm has no prompt of its own here; name what is to be done, as scontrol show job")
    act, what = rest[0].lower(), rest[1:]
    if act in _ACTS:
        return _each(_ACTS[act], what, handler, call.token)
    acts: dict[str, Callable[[], Reply]] = {
        "show": lambda: _show(what, given, call, handler), "update": lambda: update(what, handler, OPTIONS),
        "ping": lambda: Answer(f"Slurmctld(primary) at {handler.site.host} is UP\n"),
        "wait_job": lambda: _wait(what, handler), "top": lambda: _top(what, handler),
        "listpids": lambda: _pids(what, handler)}
    if act in acts:
        return acts[act]()
    if act in ("suspend", "resume"):
        raise OPTIONS.error(f"vrm cannot {act} jobs: a job that runs keeps its cores until it ends. `scontrol hold` "
                            "keeps one from starting, `scontrol requeue` runs it again later")
    if act == "write" and what[:1] == ["batch_script"]:
        return _script(what[1:], handler)
    raise OPTIONS.error(f"vrm cannot {rest[0]}; it knows show, hold, release, requeue, update, write, "
                        "wait_job, top, listpids and ping")


_NONE = {**dict.fromkeys(("lic", "burstbuffer", "federation", "topology", "aliases", "assoc_mgr", "frontend"), ""),
         **dict.fromkeys(("reservation", "reservations"), "No reservations in the system\n"),
         **dict.fromkeys(("step", "steps"), "No steps in the system\n"),
         "licenses": "No licenses configured in Slurm.\n"}
"""Output of `scontrol show` for kinds of objects that vrm does not have."""


def _show(what: Sequence[str], given: Mapping[str, str], call: Call, handler: RequestHandler) -> Answer:
    if not what:
        raise OPTIONS.error("show what? For example scontrol show job")
    kind, equals, name = what[0].partition("=")
    kind, names = kind.lower(), [name, *what[1:]] if equals else what[1:]
    if kind in _KINDS:
        return _KINDS[kind](names, given, call, handler)
    if kind in _NONE:
        return Answer(_NONE[kind])
    raise OPTIONS.error(f"invalid entity: {what[0]} for keyword: show")


def hostnames(names: Sequence[str], call: Call) -> Answer:
    """Return the names of a list of nodes, one per line; without a list those of the job in which the command runs."""
    text = names[0] if names else call.env.get("SLURM_JOB_NODELIST") or call.env.get("VRM_NODELIST", "")
    if not text:
        raise OPTIONS.error("which nodes? This is not a job of vrm, and no list is given")
    return Answer("".join(f"{name}\n" for name in OPTIONS.checked(f"Invalid hostlist: {text}: {{}}", expand, text)))


def alone(call: Call) -> int | None:
    """Handle `scontrol show hostnames`, which needs no manager; return None for everything else."""
    _, rest = OPTIONS.parse(call.arguments)
    if len(rest) < 2 or rest[0].lower() != "show" or not re.fullmatch("hostnames?", rest[1].lower()):
        return None
    print(hostnames(rest[2:], call).out, end="")
    return 0


def _named(names: Sequence[str], known: Mapping[str, object], kind: str, many: str) -> list[Any]:
    """Return the objects in `known` with these names; all objects without names. Raises CallRefused for an unknown
    name."""
    if not names:
        return list(known.values())
    wanted = [each for name in names for each in OPTIONS.checked(
        f"Invalid name of {many}: {{}}", expand, name.partition("=")[2] or name)]
    for name in wanted:
        if name not in known:
            raise CallRefused(f"{kind} {name} not found")
    return [known[name] for name in wanted]


def _blocks(texts: Sequence[str], given: Mapping[str, str]) -> Answer:
    if "oneliner" in given:
        return Answer("".join(" ".join(text.split()) + "\n" for text in texts))
    return Answer("".join(f"{text}\n\n" for text in texts))


def _jobs(names: Sequence[str], given: Mapping[str, str], call: Call, handler: RequestHandler) -> Answer:
    jobs, missing = _find(",".join(names), handler) if names else (handler.jobs(), [])
    if missing:
        raise CallRefused("slurm_load_jobs error: Invalid job id specified")
    if "json" in given:
        return Answer(json_output.document(call, handler, "jobs", (json_output.queued(job, handler) for job in jobs)))
    if not jobs:
        return Answer("No jobs in the system\n")
    return _blocks([job_text(job, handler) for job in jobs], given)


def _find(text: str, handler: RequestHandler) -> tuple[list[JobView], list[str]]:
    return OPTIONS.checked("Invalid job id specified: {}", state_names.find, handler, text.removeprefix("JobId="))


def _each(act: str, names: Sequence[str], handler: RequestHandler, token: str) -> Answer:
    """Hold, release or requeue jobs."""
    if not names:
        raise OPTIONS.error(f"which job? For example scontrol {act} 12")
    does: dict[str, Callable[[int], None]] = {
        "hold": handler.hold, "release": handler.release, "requeue": partial(handler.requeue, command=token)}
    wrong: list[str] = []
    for name in names:
        text = re.sub(r"(?i)^(jobid|job)=", "", name)
        jobs, missing = _find(text, handler)
        wrong += [f"{each}: Invalid job id specified" for each in missing]
        for job in jobs:
            if act == "release" and job.state is JobState.QUEUED and job.why != "held":
                continue  # as in Slurm, releasing a job that is not held succeeds
            try:
                does[act](job.id)
            except CallRefused as error:
                wrong.append(f"{job.shown_id}: {error}")
    return Answer(err="".join(f"scontrol: error: {line}\n" for line in wrong), code=int(bool(wrong)))


class NodesAnswer(DeferredAnswer):
    """Waits until a job has its nodes; the exit status is 1 if it has ended by then."""

    def __init__(self, handler: RequestHandler, job_id: int) -> None:
        self._handler, self._id = handler, job_id

    def poll(self) -> Answer | None:
        """Return the answer when the job runs or has ended."""
        job, = self._handler.jobs([self._id])
        if job.state is JobState.QUEUED:
            return None
        return Answer(f"Job {job.shown_id} is {'no longer running' if job.state.ended else 'ready'}\n",
                      code=int(job.state.ended))


def _wait(names: Sequence[str], handler: RequestHandler) -> Reply:
    jobs, missing = _find(names[0], handler) if names else ([], ["?"])
    if missing or len(jobs) != 1:
        raise OPTIONS.error("expected a job id: for example scontrol wait_job 12")
    return NodesAnswer(handler, jobs[0].id)


def _top(names: Sequence[str], handler: RequestHandler) -> Answer:
    """Give waiting jobs a higher priority than all other jobs."""
    jobs, missing = _find(",".join(names), handler) if names else ([], ["?"])
    if missing or not jobs:
        raise CallRefused("scontrol: error: Invalid job id specified")
    first = max(job.job.priority for job in handler.jobs(ended=False)) if handler.jobs(ended=False) else 0
    for number, job in enumerate(reversed(jobs), 1):
        try:
            handler.change(job.id, {"priority": first + number})
        except CallRefused as error:
            raise CallRefused(f"scontrol: error: job {job.shown_id}: {error}") from error
    return Answer()


def _pids(names: Sequence[str], handler: RequestHandler) -> Reply:
    """List the processes of running steps, as far as their nodes report them."""
    text, _, step = (names[0] if names else "").partition(".")
    jobs, missing = _find(text, handler) if text else (handler.jobs(ended=False), [])
    if missing:
        raise CallRefused("scontrol: error: Invalid job id specified")
    jobs = [job for job in jobs if job.state is JobState.RUNNING]
    look = handler.usage(jobs)

    def answer() -> Answer | None:
        found = look()
        if found is None:
            return None
        rows = [(str(pid), job.shown_id, usage.step) for job, here in zip(jobs, found) for usage in here
                for pid in usage.pids if step in ("", usage.step)]
        if not rows and text:
            return Answer(err=f"scontrol: error: no processes of {names[0]} run\n", code=1)
        return Answer("PID      JOBID    STEPID   LOCALID GLOBALID\n"
                      + "".join(f"{pid:<8} {job:<8} {name:<8} {'-':<7} {'-':<8}\n" for pid, job, name in rows))
    return answer() or UsageAnswer(answer)


def _script(names: Sequence[str], handler: RequestHandler) -> Answer:
    """Print the script of a job on standard output."""
    jobs, missing = _find(names[0], handler) if names else ([], ["?"])
    if missing or not jobs or not jobs[0].job.payload.copy:
        raise CallRefused("job script retrieval failed: Invalid job id specified")
    text = os.fsdecode(handler.script(jobs[0].id))
    if len(names) > 1 and names[1] == "-":
        return Answer(text)
    raise OPTIONS.error("vrm prints scripts and writes no file: scontrol write batch_script ID - > FILE")


def _nodes(names: Sequence[str], given: Mapping[str, str], call: Call, handler: RequestHandler) -> Answer:
    nodes = _named(names, {node.name: node for node in handler.nodes()}, "Node", "nodes")
    if "json" in given:
        return Answer(json_output.document(call, handler, "nodes", (
            json_output.node(node, state_names.partitions_of(node, handler.site)) for node in nodes)))
    return _blocks([node_text(node, handler) for node in nodes], given)


def _partitions(names: Sequence[str], given: Mapping[str, str], _: Call, handler: RequestHandler) -> Answer:
    parts = _named(names, {name: name for name in state_names.partitions(handler.site)}, "Partition", "partitions")
    return _blocks([partition_text(name, handler) for name in parts], given)


_KINDS: Mapping[str, Callable[[Sequence[str], Mapping[str, str], Call, RequestHandler], Answer]] = {
    **{"hostnames"[:end]: lambda names, _, call, __: hostnames(names, call) for end in range(5, 10)},
    **{"hostlistsorted"[:end]: lambda names, *_: Answer(
        state_names.node_list(names[0].split(",") if names else []) + "\n")
       for end in range(5, 15)},
    **dict.fromkeys(("job", "jobs", "jobid"), _jobs), **dict.fromkeys(("node", "nodes", "nodename"), _nodes),
    **dict.fromkeys(("partition", "partitions", "partitionname"), _partitions),
    "config": lambda _, __, ___, handler: Answer(_config(handler))}
"""The function that shows each kind of object."""


# ------------------------------------------------------------------------------------- texts


def _lines(*lines: Sequence[tuple[str, str]]) -> str:
    return "\n   ".join(" ".join(f"{key}={value}" for key, value in line) for line in lines)


def job_text(job: JobView, handler: RequestHandler) -> str:
    """Return everything that is known of a job."""
    site, env = handler.site, {"SLURM_TIME_FORMAT": "standard"}
    waits, request, payload = job.state is JobState.QUEUED, job.job.request, job.job.payload
    used = job.ran(handler.now)
    cores = job.cpus
    count = job.node_count
    output, errors, given = handler.files(job)

    def at(seconds: float) -> str:
        return times.moment(seconds, env, "Unknown")
    array = [] if job.array is None else [("ArrayJobId", str(job.array)), ("ArrayTaskId", str(job.details.index)),
                                         *([("ArrayTaskThrottle", str(job.limit))] if job.limit else [])]
    return _lines(
        [("JobId", str(job.id)), *array, ("JobName", job.name)],
        [("UserId", f"{site.user}({site.uid})"), ("GroupId", f"{site.group}({site.gid})"), ("MCS_label", "N/A")],
        [("Priority", "0" if job.why == "held" else str(job.priority)),
         ("Nice", str(-job.job.priority)), ("Account", "(null)"), ("QOS", "normal")],
        [("JobState", state_names.state(job)), ("Reason", state_names.reason(job)),
         ("Dependency", state_names.dependency(job))],
        [("Requeue", str(int(job.details.more.get("requeue") != "no"))), ("Restarts", str(job.requeued)),
         ("BatchFlag", str(int(payload.script))), ("Reboot", "0"),
         ("ExitCode", state_names.exit_code(job))],
        [("RunTime", times.elapsed(used)), ("TimeLimit", times.elapsed(job.job.walltime)), ("TimeMin", "N/A")],
        [("SubmitTime", at(job.job.submit)), ("EligibleTime", at(job.eligible))],
        [("AccrueTime", at(job.job.submit))],
        [("StartTime", at(job.start)), ("EndTime", at(job.known_end)),
         ("Deadline", times.moment(job.deadline, env, "N/A"))],
        [("SuspendTime", "None"), ("SecsPreSuspend", "0"), ("LastSchedEval", at(handler.now)), ("Scheduler", "Main")],
        [("Partition", state_names.partition(job, site)), ("AllocNode:Sid", f"{site.host}:0")],
        [("ReqNodeList", state_names.node_list(request.nodelist) or "(null)"),
         ("ExcNodeList", state_names.node_list(request.exclude) or "(null)")],
        [("NodeList", state_names.node_list(job.nodes) or ("(null)" if waits else ""))],
        *([[("BatchHost", job.nodes[0])]] if job.nodes else []),
        [("NumNodes", str(count)), ("NumCPUs", str(cores)), ("NumTasks", str(job.job.procs)),
         ("CPUs/Task", str(job.job.cores)), ("ReqB:S:C:T", "0:0:*:*")],
        [("TRES", f"cpu={cores},node={count},billing={cores}"
          + f",mem={job.memory_text}" * (job.memory_text != "0"))],
        [("Socks/Node", "*"), ("NtasksPerN:B:S:C", f"{request.tasks_per_node or 0}:0:*:*"), ("CoreSpec", "*")],
        [("MinCPUsNode", str(job.job.cores)), ("MinMemoryNode", job.memory_text),
         ("MinTmpDiskNode", "0")],
        [("Features", job.features or "(null)"), ("DelayBoot", "00:00:00")],
        [("OverSubscribe", "NO" if job.job.exclusive else "OK"), ("Contiguous", "0"),
         ("Licenses", job.licences or "(null)"), ("Network", "(null)")],
        [("Command", payload.file or "(null)")],
        [("WorkDir", payload.directory)],
        *([[("Comment", job.details.more["comment"])]] if job.details.more.get("comment") else []),
        [("StdErr", errors)],
        [("StdIn", given or "/dev/null")],
        [("StdOut", output)])


def node_text(node: NodeView, handler: RequestHandler) -> str:
    """Return everything that is known of a node."""
    memory = node.memory >> 20
    return _lines(
        [("NodeName", node.name), ("Arch", os.uname().machine), ("CoresPerSocket", str(node.real_cores))],
        [("CPUAlloc", str(node.allocated)), ("CPUEfctv", str(node.cores)),
         ("CPUTot", str(node.cores)), ("CPULoad", "N/A")],
        [("AvailableFeatures", ",".join(node.features) or "(null)")],
        [("ActiveFeatures", ",".join(node.features) or "(null)")],
        [("Gres", f"gpu:{node.gpus // 1000}" if node.gpus else "(null)")],
        [("NodeAddr", node.name), ("NodeHostName", node.name), ("Version", state_names.VERSION.split()[1])],
        [("OS", os.uname().sysname)],
        [("RealMemory", str(memory)), ("AllocMem", str(node.memory_taken >> 20)),
         ("FreeMem", str(node.memory - node.memory_taken >> 20)), ("Sockets", str(len(node.sockets))), ("Boards", "1")],
        [("State", state_names.node_state(node)), ("ThreadsPerCore", str(node.threads)), ("TmpDisk", "0"),
         ("Weight", "1"),
         ("Owner", "N/A"), ("MCS_label", "N/A")],
        [("Partitions", ",".join(state_names.partitions_of(node, handler.site)))],
        [("CfgTRES", f"cpu={node.cores},mem={memory}M,billing={node.cores}")],
        [("AllocTRES", f"cpu={node.allocated}" if node.allocated else "")])


def partition_text(name: str, handler: RequestHandler) -> str:
    """Return everything that is known of a partition."""
    site = handler.site
    nodes = state_names.members(name, handler.nodes(), site)
    cores, longest = sum(node.cores for node in nodes), state_names.longest(name, site, handler.now)
    left = times.elapsed(longest) if longest < math.inf else "UNLIMITED"
    return _lines(
        [("PartitionName", name)],
        [("AllowGroups", "ALL"), ("AllowAccounts", "ALL"), ("AllowQos", "ALL")],
        [("AllocNodes", "ALL"), ("Default", "YES" if name == state_names.default_partition(site) else "NO"),
         ("QoS", "N/A")],
        [("DefaultTime", times.elapsed(state_names.default_time(name, site))),
         ("DisableRootJobs", "NO"), ("ExclusiveUser", "NO"),
         ("GraceTime", "0"), ("Hidden", "NO")],
        [("MaxNodes", "UNLIMITED"), ("MaxTime", left), ("MinNodes", "0"), ("LLN", "NO"),
         ("MaxCPUsPerNode", "UNLIMITED")],
        [("Nodes", state_names.node_list([node.name for node in nodes]))],
        [("PriorityJobFactor", "1"), ("PriorityTier", "1"), ("RootOnly", "NO"), ("ReqResv", "NO"),
         ("OverSubscribe", "YES:4")],
        [("OverTimeLimit", "NONE"), ("PreemptMode", "OFF")],
        [("State", "UP"), ("TotalCPUs", str(cores)), ("TotalNodes", str(len(nodes))), ("SelectTypeParameters", "NONE")],
        [("JobDefaults", "(null)")],
        [("DefMemPerNode", "UNLIMITED"), ("MaxMemPerNode", "UNLIMITED")])


def _config(handler: RequestHandler) -> str:
    site = handler.site
    rows = [("AccountingStorageType", "accounting_storage/slurmdbd"), ("ClusterName", "vrm"), ("MaxArraySize", "10000"),
            ("MaxJobCount", "100000"), ("MinJobAge", "300 sec"), ("KillWait", "30 sec"),
            ("SchedulerType", "sched/backfill"), ("SelectType", "select/cons_tres"),
            ("SLURM_CONF", "/dev/null"), ("SLURM_VERSION", state_names.VERSION.split()[1]),
            ("SlurmctldHost[0]", site.host), ("SlurmUser", f"{site.user}({site.uid})"),
            ("StateSaveLocation", site.directory)]
    when = times.moment(handler.now, {}, "Unknown")
    return (f"Configuration data as of {when}\n" + "".join(f"{key:<23} = {value}\n" for key, value in sorted(rows))
            + f"\nSlurmctld(primary) at {site.host} is UP\n")
