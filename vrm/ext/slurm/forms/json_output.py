"""The output of `--json`, in the structure of Slurm 23.11 (data_parser v0.0.40): tools look for `state.current[0]`
of sacct, `job_state[0]` of squeue, and numbers that may be unset or infinite."""

from __future__ import annotations

import math
from typing import Any
from collections.abc import Callable, Iterable, Sequence

from vrm.ext.slurm.forms import state_names
from vrm.ext.slurm.calls.answers import Call
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView, NodeView
from vrm.ext.steps.records import Step

Json = dict[str, Any]


def document(call: Call, handler: RequestHandler, key: str, records: Iterable[Json]) -> str:
    """Return the whole JSON text: the records under `key`, and metadata."""
    from vrm.system.printing.output import json_parts

    release = state_names.VERSION.split()[1]
    site, version = handler.site, dict(zip(("major", "minor", "micro"), release.split(".")))
    meta = {"plugin": {"type": "openapi/slurmctld", "name": "vrm", "data_parser": "data_parser/v0.0.40",
                       "accounting_storage": ""},
            "client": {"source": "", "user": site.user, "group": site.group}, "command": list(call.arguments),
            "slurm": {"version": version, "release": release, "cluster": "vrm"}}
    return "".join(json_parts({key: iter(records), "meta": meta, "errors": [], "warnings": []}, "")) + "\n"


def number(value: float | None) -> Json:
    """Return a number that may be unset (None) or infinite."""
    known = value is not None and math.isfinite(value)
    return {"set": known, "infinite": value is not None and not known, "number": int(value) if known else 0}  # type: ignore[arg-type]


def moment(value: float) -> Json:
    """Return a time; unset if it is not known."""
    return number(value if value < math.inf else None)


def ended(text: str) -> Json:
    """Return an exit status that is given as `code:signal`."""
    code, _, signal = text.partition(":")
    status = "SIGNALED" if signal not in ("", "0") else "ERROR" if code != "0" else "SUCCESS"
    return {"status": [status], "return_code": number(int(code)),
            "signal": {"id": number(int(signal) if status == "SIGNALED" else None), "name": ""}}


def queued(job: JobView, handler: RequestHandler) -> Json:
    """Return a job in the form of squeue and scontrol."""
    site, request, payload = handler.site, job.job.request, job.job.payload
    count = job.node_count
    return {
        "account": "", "array_job_id": number(job.array or 0),
        "array_task_id": number(job.details.index if job.array is not None else None), "batch_flag": payload.script,
        "batch_host": job.nodes[0] if job.nodes else "", "cluster": "vrm", "command": payload.file,
        "comment": job.details.more.get("comment", ""), "cpus": number(job.cpus),
        "cpus_per_task": number(job.job.cores), "current_working_directory": payload.directory,
        "dependency": state_names.dependency(job).replace("(null)", ""), "eligible_time": moment(job.eligible),
        "end_time": moment(job.known_end), "excluded_nodes": state_names.node_list(request.exclude),
        "exit_code": ended(state_names.exit_code(job)), "features": job.features,
        "group_id": site.gid, "group_name": site.group, "hold": job.why == "held", "job_id": job.id,
        "job_state": [state_names.state(job)], "name": job.name, "nice": -job.job.priority, "node_count": number(count),
        "nodes": state_names.node_list(job.nodes), "partition": state_names.partition(job, site),
        "priority": number(job.priority), "qos": "normal", "requeue": True,
        "required_nodes": state_names.node_list(request.nodelist), "restart_cnt": job.requeued,
        **dict(zip(("standard_output", "standard_error", "standard_input"), handler.files(job))),
        "start_time": moment(job.start), "state_description": "", "state_reason": state_names.reason(job),
        "submit_time": moment(job.job.submit), "tasks": number(job.job.procs), "time_limit": number(job.minutes),
        "tres_alloc_str": f"cpu={job.cpus},node={count}" if job.nodes else "",
        "tres_req_str": f"cpu={job.cpus},node={count}", "user_id": site.uid, "user_name": site.user}


def _tres(cpus: int, nodes: int) -> list[Json]:
    return [{"type": "cpu", "name": "", "id": 1, "count": cpus}, {"type": "node", "name": "", "id": 4, "count": nodes}]


def _seconds(value: float) -> Json:
    return {"seconds": int(value), "microseconds": int(value % 1 * 1e6)}


def recorded(job: JobView, steps: Sequence[tuple[Step, str]], handler: RequestHandler) -> Json:
    """Return a job in the form of sacct; `steps` are its steps with their states."""
    site, count = handler.site, job.node_count
    memory = job.job.request
    user, system = (sum(each) for each in zip((0.0, 0.0), *((step.user, step.system) for step, _ in steps
                                                            if step.step == "batch")))
    stamps = {key: int(value) if value < math.inf else 0 for key, value in
              (("start", job.start), ("end", job.end), ("eligible", job.eligible), ("submission", job.job.submit))}
    return {
        "account": "", "allocation_nodes": len(job.nodes),
        "array": {"job_id": job.array or 0, "limits": {"max": {"running": {"tasks": 0}}}, "task": "",
                  "task_id": number(job.details.index if job.array is not None else None)},
        "association": {"account": "", "cluster": "vrm", "partition": "", "user": site.user, "id": 0},
        "cluster": "vrm", "comment": {"administrator": "", "job": job.details.more.get("comment", ""), "system": ""},
        "constraints": job.features, "container": "",
        "derived_exit_code": ended(state_names.exit_code(job)), "exit_code": ended(state_names.exit_code(job)),
        "flags": [],
        "group": site.group, "job_id": job.id, "kill_request_user": "", "licenses": "", "name": job.name,
        "nodes": state_names.node_list(job.nodes) or "None assigned", "partition": state_names.partition(job, site),
        "priority": number(job.priority), "qos": "normal",
        "required": {"CPUs": job.job.request.cores, "memory_per_cpu": number(None),
                     "memory_per_node": number(memory.mem_per_node >> 20 if memory.mem_per_node else None)},
        "reservation": {"id": 0, "name": job.details.more.get("reservation", 0)}, "script": "",
        "state": {"current": [state_names.state(job)], "reason": state_names.reason(job)},
        "steps": [_step(job, step, state, handler.now) for step, state in steps], "submit_line": job.job.payload.file,
        "time": {**stamps, "elapsed": int(job.ran(handler.now)), "suspended": 0, "user": _seconds(user),
                 "system": _seconds(system), "total": _seconds(user + system),
                 "limit": number(job.minutes)},
        "tres": {"allocated": _tres(job.cpus, count) if job.nodes else [], "requested": _tres(job.cpus, count)},
        "used_gres": "", "user": site.user, "wckey": {"wckey": "", "flags": []},
        "working_directory": job.job.payload.directory}


def _step(job: JobView, step: Step, state: str, now: float) -> Json:
    nodes = step.nodes.split()
    return {
        "exit_code": ended(f"{step.exit_code or 0}:0"), "kill_request_user": "",
        "nodes": {"count": len(nodes), "range": state_names.node_list(nodes), "list": nodes}, "state": [state],
        "step": {"id": f"{job.id}.{step.step}", "name": step.name}, "tasks": {"count": step.tasks},
        "task": {"distribution": "Unknown"},
        "time": {"start": moment(step.start), "end": moment(step.end),
                 "elapsed": int(max(0.0, (now if step.end == math.inf else step.end) - step.start)),
                 "suspended": 0, "user": _seconds(step.user), "system": _seconds(step.system),
                 "total": _seconds(step.user + step.system)},
        "tres": {"allocated": _tres(step.cores, len(nodes))}}


def nodes_of(partition: str, nodes: Sequence[NodeView], handler: RequestHandler) -> Json:
    """Return nodes of a partition that are alike, in the form of sinfo."""
    def both(read: Callable[[NodeView], int]) -> Json:
        return {"minimum": min(map(read, nodes)), "maximum": max(map(read, nodes))}
    names = [node.name for node in nodes]
    taken, cores = sum(node.allocated for node in nodes), sum(node.cores for node in nodes)
    states = [state_names.node_state(node) for node in nodes]
    idle, down = states.count("IDLE"), states.count("DOWN")
    site, features = handler.site, ",".join(nodes[0].features)
    return {
        "node": {"state": [states[0]]}, "cluster": "vrm", "comment": "", "reason": {"description": "", "user": ""},
        "nodes": {"allocated": len(nodes) - idle - down, "idle": idle, "other": down, "total": len(nodes),
                  "hostnames": names, "addresses": names, "nodes": names},
        "cpus": {**both(lambda node: node.cores), "allocated": taken, "idle": cores - taken, "other": 0,
                 "total": cores},
        "sockets": both(lambda node: len(node.sockets)), "cores": both(lambda node: node.real_cores),
        "threads": both(lambda node: node.threads), "disk": {"minimum": 0, "maximum": 0},
        "memory": {**both(lambda node: node.memory >> 20), "allocated": sum(node.memory_taken for node in nodes) >> 20},
        "weight": {"minimum": 1, "maximum": 1}, "features": {"total": features, "active": features},
        "gres": {"total": f"gpu:{nodes[0].gpus // 1000}" if nodes[0].gpus else "", "used": ""},
        "partition": {"name": partition, "nodes": {"total": len(nodes)}, "partition": {"state": ["UP"]},
                      "defaults": {"time": number(round(site.default_time / 60))},
                      "maximums": {"time": number((site.end - handler.now) / 60)}}}


def node(found: NodeView, partitions: Sequence[str]) -> Json:
    """Return a node in the form of scontrol."""
    return {"name": found.name, "hostname": found.name, "address": found.name, "state": [state_names.node_state(found)],
            "cpus": found.cores, "effective_cpus": found.cores, "alloc_cpus": found.allocated,
            "alloc_idle_cpus": found.cores - found.allocated, "real_memory": found.memory >> 20,
            "alloc_memory": found.memory_taken >> 20, "sockets": len(found.sockets), "cores": found.real_cores,
            "threads": found.threads, "features": list(found.features), "active_features": list(found.features),
            "partitions": list(partitions)}


