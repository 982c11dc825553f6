"""Which nodes this run owns, and until when: asked of the batch system around it.

| kind | nodes | cores of each | end |
|---|---|---|---|
| hostfile | the file that the configuration names (`vrm.live.batch.hostfile`) | `slots=N`, `name:N` | that of the batch job around, if there is one |
| a batch system | as its file in this package says | the same | the same |
| machine | this one | | never |

CPUs that batch systems count may be hardware threads: what is really there, and what a cpuset leaves
of it, is for the probe to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from collections.abc import Mapping, Sequence

from vrm.live.batch.asking import ANSWER_SECONDS, answer_of
from vrm.live.batch.base import BatchJob, NodeShare, PathLike, around, read_text, systems
from vrm.live.batch.hostfile import parse_hostfile
from vrm.system.hosts import host_name

@dataclass(frozen=True)
class Allocation:
    """Nodes by the names that launchers use, in the batch system's order, each once.

    `cores` are those granted on a host, as far as the batch system tells. `job` is the batch
    job's id. `end` is when it ends in seconds since the epoch, None if that is never or not
    known. `runs` is how often it was begun (0: not said).
    """

    kind: str
    hosts: tuple[str, ...]
    cores: Mapping[str, int] = field(default_factory=dict)
    job: str = ""
    end: float | None = None
    runs: int = 0
    shares: Mapping[str, NodeShare] = field(default_factory=dict)


def find_allocation(env: Mapping[str, str], hostfile: PathLike | None = None) -> Allocation:
    """The allocation that the environment tells of, or a file of hosts; else this machine.

    Asks the batch system's programs for what the environment does not say, each for at most
    `ANSWER_SECONDS`. Raises AllocationError when nodes are named in a way that makes no sense.
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
            return answer_of(argv, env, ANSWER_SECONDS)

        if hostfile is None:
            cores.update(batch.granted(said, hosts, run))
        shares = {host: share for host, share in batch.shares(env, said, hosts, run).items()
                  if share != NodeShare()}
    kind = "hostfile" if batch is None or hostfile is not None else batch.name
    return Allocation(kind, tuple(hosts), cores, batch.job_id(env) if batch else "", said.end,
                      said.runs, shares)


def end_of(allocation: Allocation, env: Mapping[str, str]) -> float | None:
    """When the allocation ends, asked anew: administrators extend jobs.

    Waits for the answer, at most `ANSWER_SECONDS` for each program: call it in a thread.
    What `allocation` says is the answer if the batch system gives none.
    """
    said = ask(env).end
    return allocation.end if said is None else said


def batch_system(env: Mapping[str, str]) -> str:
    """The batch system whose job this environment is of, "" for none."""
    system = around(env)
    return system.name if system else ""


def batch_job(env: Mapping[str, str], runs: int = 0) -> str:
    """Which batch job this environment is of, such as `slurm 4711`; empty outside of one.

    A job that the batch system has put back into its queue and runs again is another one:
    `slurm 4711 again 1`. `runs` is how often it was begun, where the batch system's programs say
    it.
    """
    system = around(env)
    job = system.job_id(env) if system else ""
    if system is None or not job:
        return ""
    restarts = system.restarts(env, runs)
    return f"{system.name} {job}" + (f" again {restarts}" if restarts else "")


def kill_delay(job: str) -> float:
    """Seconds that the batch system of a job such as `slurm 4711` leaves between its SIGTERM and
    its SIGKILL, where the site has not changed it; the shortest known for others."""
    system = systems().get(job.partition(" ")[0])
    known = [each.kill_delay for each in systems().values() if each.kill_delay is not None]
    return min(known) if system is None or system.kill_delay is None else system.kill_delay


def attach_command(env: Mapping[str, str]) -> tuple[str, ...]:
    """What adds a session to the batch job of this environment, before `-p PID` or a command; none
    where there is no batch job, or that is not needed."""
    system = around(env)
    return system.attach_command(env) if system else ()


def ask(env: Mapping[str, str], seconds: float = ANSWER_SECONDS) -> BatchJob:
    """Ask the batch system of a job: its programs one after the other, of which each may take so
    many seconds and the first with an answer counts; else what the environment says."""
    system = around(env)
    if system is None:
        return BatchJob()
    job = system.job_id(env)
    # The id becomes a word of a command line: it must look like one.
    if re.fullmatch(r"[A-Za-z0-9][\w.\[\]-]*", job):
        for argv, parse in system.questions(job):
            answer = parse(answer_of(argv, env, seconds))
            if answer.end is not None or answer.cores:
                return answer
    return BatchJob(system.own_end(env))
