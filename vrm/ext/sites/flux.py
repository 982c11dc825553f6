"""Flux: an instance around, made by `flux batch`, `flux alloc`, or `flux start` under another batch system.

Nodes, their cores and GPUs, and the end are in its resource set (`flux resource R`, RFC 20); `flux exec` starts vrm's
runner on all nodes.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.live.batch.asking import ANSWER_SECONDS, answer_of
from vrm.live.batch.base import (MEND, AllocationError, BatchJob, BatchSystem, Environment, NodeShare, Question,
                                 indices_of)
from vrm.live.nodes.topology import fold
from vrm.model.forms.hosts import expand
from vrm.system.transports.base import Transport

QUESTION = ("flux", "resource", "R")

_NODE = "VRM_FLUX_NODE"

# On each node: its name, as its broker has it; and word of the end, which Flux gives when all have ended.
_NAMED = (f'{_NODE}=$(flux getattr hostname) && export {_NODE} || exit; trap "" HUP INT TERM USR1 USR2; '
          f'"$@"; echo "error: ${_NODE}: task 0: ended" >&2')


class Flux(BatchSystem):
    """Flux, from 0.50 on."""

    name = "flux"
    title = "Flux"
    signs = ("FLUX_URI",)
    kill_delay = 5.0  # job-exec's kill-timeout

    def job_id(self, env: Environment) -> str:
        """That of the job which is this instance, in ASCII."""
        return env.get("FLUX_ENCLOSING_ID", "").replace("\u0192", "f")

    def hosts(self, env: Environment) -> dict[str, int]:
        """Those of the instance, in the order of their ranks."""
        said = answer_of(QUESTION, env, ANSWER_SECONDS)
        hosts, answer = parse_resources(said)
        if not hosts:
            raise AllocationError(f"`{' '.join(QUESTION)}` names no node of this Flux instance; {MEND}")
        return {host: answer.cores.get(host, 0) for host in hosts}

    def questions(self, job: str) -> Sequence[Question]:
        """The resource set once more: an instance's end may be moved."""
        return ((QUESTION, lambda text: parse_resources(text)[1]),)

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """GPUs."""
        return {host: share for host, share in answer.shares.items() if host in hosts}


def parse_resources(text: str) -> tuple[tuple[str, ...], BatchJob]:
    """The nodes of a resource set in the order of their ranks, and their cores, GPUs and end; none in other texts."""
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
    """The rank of each node of the instance around."""
    said = answer_of(("flux", "getattr", "hostlist"), os.environ, ANSWER_SECONDS).strip()
    try:
        return {host: rank for rank, host in enumerate(expand(said))}
    except ValueError:
        return {}


def _on(hosts: Sequence[str]) -> tuple[str, ...]:
    """The command that starts a program on these nodes; Flux refuses the rank of one that it does not know.

    stdbuf, since `flux exec` keeps back what it prints into a pipe (seen in 0.88)."""
    ranks = _ranks()
    return ("stdbuf", "-oL", "flux", "exec", "--quiet", "-r", fold(ranks.get(host, len(ranks)) for host in hosts))


def transport() -> Transport:
    """One `flux exec` for all nodes: Flux brings its input to each, and lines back."""
    return Transport(
        "flux", lambda host, timeout: _on([host]),
        group=lambda hosts, number, timeout: (*_on(list(expand(hosts))), "/bin/sh", "-c", _NAMED, "sh"), own_name=_NODE,
        chosen=lambda env: bool(env.get("FLUX_URI") and shutil.which("flux", path=env.get("PATH"))))
