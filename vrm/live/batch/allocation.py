"""Finds out which nodes this run may use, and until when, from the batch system around it.

| kind | nodes | cores of each | end |
|---|---|---|---|
| hostfile | the file that the configuration names (`vrm.live.batch.hostfile`) | `slots=N`, `name:N` | the end of the surrounding batch job, if any |
| a batch system | see its file in this package | likewise | likewise |
| machine | this machine | | never |

The CPUs that batch systems count may be hardware threads. The probe on the node finds out what is really there, and
what a cpuset leaves of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from collections.abc import Mapping, Sequence

from vrm.live.batch.queries import ANSWER_SECONDS, command_output
from vrm.live.batch.base import BatchJob, NodeShare, PathLike, around, read_text, systems
from vrm.live.batch.hostfile import parse_hostfile
from vrm.system.hosts import host_name

@dataclass(frozen=True)
class Allocation:
    """Nodes by the names that launchers use, in the batch system's order, each once.

    `cores`: cores granted on a host, as far as the batch system reports them. `job`: the batch job's id. `end`: when it
    ends in seconds since the epoch; None if never or not known. `runs`: how often the batch job was started (0: not
    known).
    """

    kind: str
    hosts: tuple[str, ...]
    cores: Mapping[str, int] = field(default_factory=dict)
    job: str = ""
    end: float | None = None
    runs: int = 0
    shares: Mapping[str, NodeShare] = field(default_factory=dict)


def find_allocation(env: Mapping[str, str], hostfile: PathLike | None = None) -> Allocation:
    """Return the allocation of the environment or of a host file; without either, this machine.

    Queries the batch system's programs for what the environment does not contain, each for at most
    `ANSWER_SECONDS`. Raises AllocationError if the names of the nodes are invalid.
    """
    batch = around(env)
    hosts: dict[str, int]
    if hostfile is not None:
        hosts = parse_hostfile(read_text(hostfile, "Hosts.File", "correct the path"), str(hostfile))
    elif batch is None:
        return Allocation("machine", (host_name(),))
    else:
        hosts = batch.hosts(env)
    said = ask(env)
    cores = {host: count for host, count in hosts.items() if count}
    shares: dict[str, NodeShare] = {}
    if batch is not None:
        def run(argv: Sequence[str]) -> str:
            return command_output(argv, env, ANSWER_SECONDS)

        if hostfile is None:
            cores.update(batch.granted(said, hosts, run))
        shares = {host: share for host, share in batch.shares(env, said, hosts, run).items()
                  if share != NodeShare()}
    kind = "hostfile" if batch is None or hostfile is not None else batch.name
    return Allocation(kind, tuple(hosts), cores, batch.job_id(env) if batch else "", said.end,
                      said.runs, shares)


def end_of(allocation: Allocation, env: Mapping[str, str]) -> float | None:
    """Query again when the allocation ends, because administrators may extend jobs.

    Waits for the answer, at most `ANSWER_SECONDS` for each program: call it in a thread.
    Without an answer, return the end in `allocation`.
    """
    said = ask(env).end
    return allocation.end if said is None else said


def batch_system(env: Mapping[str, str]) -> str:
    """Return the name of the batch system whose job has this environment; "" if none."""
    system = around(env)
    return system.name if system else ""


def batch_job(env: Mapping[str, str], runs: int = 0) -> str:
    """Return the batch job that has this environment, such as `slurm 4711`; "" outside of one.

    A job that the batch system has requeued and runs again is another one: `slurm 4711 again 1`. `runs`: how often it
    was started, if the batch system's programs report that.
    """
    system = around(env)
    job = system.job_id(env) if system else ""
    if system is None or not job:
        return ""
    restarts = system.restarts(env, runs)
    return f"{system.name} {job}" + (f" again {restarts}" if restarts else "")


def kill_delay(job: str) -> float:
    """Return the seconds that the batch system of a job such as `slurm 4711` waits between SIGTERM and
    SIGKILL, unless the site has changed it; for an unknown system, the shortest delay of the known ones."""
    system = systems().get(job.partition(" ")[0])
    known = [each.kill_delay for each in systems().values() if each.kill_delay is not None]
    return min(known) if system is None or system.kill_delay is None else system.kill_delay


def attach_command(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that adds a session to the batch job of this environment, to be followed by `-p PID` or a
    command; empty if there is no batch job, or if adding is not needed."""
    system = around(env)
    return system.attach_command(env) if system else ()


def ask(env: Mapping[str, str], seconds: float = ANSWER_SECONDS) -> BatchJob:
    """Query the batch system of a job. Its programs are called one after the other, each for at most `seconds`, until
    one answers; without an answer, use the environment."""
    system = around(env)
    if system is None:
        return BatchJob()
    job = system.job_id(env)
    # The id becomes an argument of a command: it must look like an id.
    if re.fullmatch(r"[A-Za-z0-9][\w.\[\]-]*", job):
        for argv, parse in system.questions(job):
            answer = parse(command_output(argv, env, seconds))
            if answer.end is not None or answer.cores:
                return answer
    return BatchJob(system.own_end(env))
