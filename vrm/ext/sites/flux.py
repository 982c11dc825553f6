"""Flux: vrm inside a Flux instance, made by `flux batch`, `flux alloc`, or `flux start` under another batch system.

Nodes, their cores and GPUs, and the end are read from its resource set (`flux resource R`, RFC 20). `flux exec`
starts vrm's runner on all nodes."""

from __future__ import annotations

import functools
import json
import os
import shutil
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.live.batch.queries import ANSWER_SECONDS, command_output
from vrm.live.batch.base import (REMEDY, AllocationError, BatchJob, BatchSystem, Environment, NodeShare, Question,
                                 indices_of)
from vrm.live.nodes.topology import fold
from vrm.model.forms.hosts import expand
from vrm.system.transports.base import Transport

QUESTION = ("flux", "resource", "R")

_NODE = "VRM_FLUX_NODE"

# Run on each node: set its name, as its broker knows it; and report the end, which Flux reports only when all have
# ended.
_NAMED = (f'{_NODE}=$(flux getattr hostname) && export {_NODE} || exit; trap "" HUP INT TERM USR1 USR2; '
          f'"$@"; echo "error: ${_NODE}: task 0: ended" >&2')


class Flux(BatchSystem):
    """Flux 0.50 or newer."""

    name = "flux"
    title = "Flux"
    signs = ("FLUX_URI",)
    kill_delay = 5.0  # kill-timeout of job-exec

    def job_id(self, env: Environment) -> str:
        """Return the id of the job that is this instance, in ASCII."""
        return env.get("FLUX_ENCLOSING_ID", "").replace("\u0192", "f")

    def hosts(self, env: Environment) -> dict[str, int]:
        """Return the nodes of the instance in the order of their ranks."""
        said = command_output(QUESTION, env, ANSWER_SECONDS)
        hosts, answer = parse_resources(said)
        if not hosts:
            raise AllocationError(f"`{' '.join(QUESTION)}` names no node of this Flux instance; {REMEDY}")
        return {host: answer.cores.get(host, 0) for host in hosts}

    def questions(self, job: str) -> Sequence[Question]:
        """Return the command that reads the resource set again: the end of an instance may change."""
        return ((QUESTION, lambda text: parse_resources(text)[1]),)

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """Return the granted GPUs."""
        return {host: share for host, share in answer.shares.items() if host in hosts}


def parse_resources(text: str) -> tuple[tuple[str, ...], BatchJob]:
    """Return the nodes of a resource set in the order of their ranks, and their cores, GPUs and end; no nodes for
    other texts."""
    try:
        execution: dict[str, Any] = json.loads(text)["execution"]
        hosts = tuple(host for part in execution["nodelist"] for host in expand(part))
        cores: dict[str, int] = {}
        shares: dict[str, NodeShare] = {}
        at = 0
        for group in execution["R_lite"]:
            for _ in indices_of(str(group["rank"])) or ():
                children = group["children"]
                cores[hosts[at]] = len(indices_of(children.get("core", "")) or ())
                gpus = indices_of(children["gpu"]) if children.get("gpu") else ()
                shares[hosts[at]] = NodeShare(gpus=len(gpus or ()), indices=gpus)
                at += 1
        end = float(execution.get("expiration") or 0.0)
    except (ValueError, KeyError, TypeError, IndexError):
        return (), BatchJob()
    return hosts, BatchJob(end or None, cores, shares=shares)


@functools.cache
def _ranks() -> dict[str, int]:
    """Return the rank of each node of the surrounding instance."""
    said = command_output(("flux", "getattr", "hostlist"), os.environ, ANSWER_SECONDS).strip()
    try:
        return {host: rank for rank, host in enumerate(expand(said))}
    except ValueError:
        return {}


def _on(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the command that starts a program on these nodes. For a node that Flux does not know it contains an
    invalid rank, which Flux refuses.

    stdbuf is needed because `flux exec` buffers its output into a pipe (seen in 0.88)."""
    ranks = _ranks()
    return ("stdbuf", "-oL", "flux", "exec", "--quiet", "-r", fold(ranks.get(host, len(ranks)) for host in hosts))


def transport() -> Transport:
    """Return the transport: one `flux exec` for all nodes, which forwards its input to each node and returns their
    lines."""
    return Transport(
        "flux", lambda host, timeout: _on([host]),
        group=lambda hosts, number, timeout: (*_on(list(expand(hosts))), "/bin/sh", "-c", _NAMED, "sh"), own_name=_NODE,
        chosen=lambda env: bool(env.get("FLUX_URI") and shutil.which("flux", path=env.get("PATH"))))
