"""The commands that vrm answers, by their names: who answers them, and where.

A command is one row of `TABLE`: its name, and the function that answers it as `module:function`. The
function is called by the manager with a `vrm.front.wire.Call` and a `vrm.front.counter.Counter`.
`LOCAL` are those that the client does itself, without asking the manager: the function is called
with the call alone and gives the exit status, or None: then the manager is asked.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import NoReturn
from collections.abc import Callable

from vrm.front.answers import Answer, Handler, Refused, Reply, Told
from vrm.front.counter import Counter
from vrm.front.wire import Call

TABLE: dict[str, str] = {
    "sbatch": "vrm.front.sbatch:sbatch",
    "squeue": "vrm.front.squeue:squeue",
    "scancel": "vrm.front.scancel:scancel",
    "scontrol": "vrm.front.scontrol:scontrol",
    "sacct": "vrm.front.sacct:sacct",
    "sinfo": "vrm.front.sinfo:sinfo",
    "srun": "vrm.front.blocking:srun",
    "salloc": "vrm.front.blocking:salloc",
    "sacctmgr": "vrm.front.others:sacctmgr",
    "sshare": "vrm.front.others:nothing",
    "sprio": "vrm.front.others:nothing",
    "sstat": "vrm.front.sstat:sstat",
    "mpirun": "vrm.front.blocking:mpirun",
    "mpiexec": "vrm.front.blocking:mpirun",
    "qsub": "vrm.front.pbs_qsub:qsub",
    "qstat": "vrm.front.pbs_qstat:qstat",
    "qdel": "vrm.front.pbs_jobs:qdel",
    "qhold": "vrm.front.pbs_jobs:qhold",
    "qrls": "vrm.front.pbs_jobs:qrls",
    "qalter": "vrm.front.pbs_jobs:qalter",
    "pbsnodes": "vrm.front.pbs_nodes:pbsnodes",
    "qselect": "vrm.front.pbs_jobs:qselect",
    "qrerun": "vrm.front.pbs_jobs:qrerun",
    "qsig": "vrm.front.pbs_jobs:qsig",
    "sbcast": "vrm.front.others:refused",
    "pbsdsh": "vrm.front.others:refused",
    **dict.fromkeys((
        "sattach", "strigger", "sdiag", "sreport", "scrontab", "sview", "smap", "scrun", "sgather",
        "qmove", "qmsg", "qmgr", "tracejob", "qorder", "qenable", "qdisable", "qstart", "qstop", "qterm", "qrun",
        "pbs_rsub", "pbs_rstat", "pbs_rdel", "pbs_ralter", "pbs_release_nodes", "pbs_tmrsh", "pbs_attach"),
        "vrm.front.others:refused"),
}

LAUNCHERS = frozenset(("mpirun", "mpiexec"))
"""Commands that only programs behind `vrm run --` find: in a script the real ones are to be found."""

SUBMITTING = frozenset(("sbatch", "qsub", "srun", "salloc")) | LAUNCHERS
"""Commands that bring jobs."""

READING = frozenset(("squeue", "sacct", "sinfo", "sacctmgr", "sshare", "sprio", "sstat", "qstat", "pbsnodes",
                     "qselect",
                     "scontrol:show"))
"""Commands that change nothing, some only with that first argument: without an answer they give up."""

LOCAL: dict[str, str] = {"sbcast": "vrm.front.sbcast:sbcast", "pbsdsh": "vrm.front.sbcast:pbsdsh"}

ALONE: dict[str, str] = {"scontrol": "vrm.front.scontrol:alone", "sacct": "vrm.front.past:sacct"}
"""What the client does itself where no manager runs; as `LOCAL`."""


def function_of(where: str) -> Handler:
    """The function at `module:function`."""
    module, _, name = where.partition(":")
    found: Handler = getattr(importlib.import_module(module), name)
    return found


_handler = lru_cache(maxsize=None)(function_of)


def reply_to(call: Call, counter: Counter) -> Reply:
    """What the command answers; Refused when it is not carried out."""
    where = TABLE.get(call.name)
    if where is None:
        raise Refused(f"vrm has no command {call.name}")
    if not where:
        raise Refused(f"{call.name}: error: vrm does not answer this command yet")
    try:
        return _handler(where)(call, counter)
    except Told as told:
        return told.answer


class _Unknown:
    """In place of a `Counter`, where no manager knows of jobs."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _Asked


class _Asked(Exception):
    """An answer needs to know of jobs."""


def unasked(call: Call) -> Answer | None:
    """What a command answers without any manager: to `--help` and `--version`, or why it is refused. None: it has to
    ask one."""
    try:
        _handler(TABLE[call.name])(call, _Unknown())
    except Told as told:
        return told.answer
    except Refused as refused:
        return Answer(err=f"{refused}\n", code=refused.code)
    except _Asked:
        pass
    return None


def reads(call: Call) -> bool:
    """Whether the command changes nothing."""
    return not READING.isdisjoint((call.name, ":".join([call.name, *call.arguments[:1]])))


def alone(name: str) -> Callable[[Call], int | None] | None:
    """What the client does itself where no manager runs, if anything."""
    return function_of(ALONE[name]) if name in ALONE else None  # type: ignore[return-value]


def local(name: str) -> Callable[[Call], int | None] | None:
    """What the client does itself, if anything."""
    return function_of(LOCAL[name]) if name in LOCAL else None  # type: ignore[return-value]
