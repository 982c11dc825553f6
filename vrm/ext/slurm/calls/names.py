"""The commands that vrm answers, by their names: who answers them, and where.

Those of a batch system are a `Dialect`: Slurm's are SLURM; extensions name others under `[vrm.dialects]`
(`vrm.system.plugins`), each as a function that gives a `Dialect`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import cache, lru_cache, reduce
from typing import NoReturn
from collections.abc import Callable, Mapping

from vrm.ext.slurm.calls.answers import Answer, Handler, Refused, Reply, HelpAnswer
from vrm.ext.slurm.calls.counter import Counter
from vrm.ext.slurm.calls.wire import Call
from vrm.system import plugins

LAUNCHERS = frozenset(("mpirun", "mpiexec"))
"""Commands that only programs behind `vrm run --` find: in a script the real ones are to be found."""


@dataclass(frozen=True)
class Dialect:
    """The commands of a batch system.

    `answers` has each command and the function that answers it, as `module:function`: the manager calls it with a
    `vrm.ext.slurm.calls.wire.Call` and a `vrm.ext.slurm.calls.counter.Counter`. `submitting` bring jobs; `blocking` of
    them print what their job does, so that no other manager can go on where they have begun. `reading` change nothing,
    some only with that first argument: without an answer they give up. Of these `about_jobs` have answers that are the
    longer the more jobs there are. What is in `local` the client does itself, without asking the manager: the function
    is called with the call alone and gives the exit status, or None: then the manager is asked. So is what is in
    `alone`, where no manager runs.
    """

    answers: Mapping[str, str]
    submitting: frozenset[str] = frozenset()
    blocking: frozenset[str] = frozenset()
    reading: frozenset[str] = frozenset()
    about_jobs: frozenset[str] = frozenset()
    local: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Dialect) -> Dialect:
        """The commands of both; one that both have is the other's."""
        return Dialect({**self.answers, **other.answers}, self.submitting | other.submitting,
                       self.blocking | other.blocking, self.reading | other.reading, self.about_jobs | other.about_jobs,
                       {**self.local, **other.local}, {**self.alone, **other.alone})


SLURM = Dialect(
    {"sbatch": "vrm.ext.slurm.sbatch:sbatch",
     "squeue": "vrm.ext.slurm.squeue:squeue",
     "scancel": "vrm.ext.slurm.scancel:scancel",
     "scontrol": "vrm.ext.slurm.scontrol:scontrol",
     "sacct": "vrm.ext.slurm.sacct:sacct",
     "sinfo": "vrm.ext.slurm.sinfo:sinfo",
     "srun": "vrm.ext.slurm.blocking:srun",
     "salloc": "vrm.ext.slurm.blocking:salloc",
     "sattach": "vrm.ext.slurm.blocking:sattach",
     "sacctmgr": "vrm.ext.slurm.others:sacctmgr",
     "sshare": "vrm.ext.slurm.others:nothing",
     "sprio": "vrm.ext.slurm.others:nothing",
     "sstat": "vrm.ext.slurm.sstat:sstat",
     "mpirun": "vrm.ext.slurm.blocking:mpirun",
     "mpiexec": "vrm.ext.slurm.blocking:mpirun",
     **dict.fromkeys(("sbcast", "strigger", "sdiag", "sreport", "scrontab", "sview", "smap", "scrun",
                      "sgather"), "vrm.ext.slurm.others:refused")},
    submitting=frozenset(("sbatch", "srun", "salloc")) | LAUNCHERS,
    blocking=frozenset(("srun", "salloc", "sattach")) | LAUNCHERS,
    reading=frozenset(("squeue", "sacct", "sinfo", "sacctmgr", "sshare", "sprio", "sstat", "scontrol:show")),
    about_jobs=frozenset(("squeue", "sacct", "scontrol")),
    local={"sbcast": "vrm.ext.slurm.sbcast:sbcast"},
    alone={"scontrol": "vrm.ext.slurm.scontrol:alone", "sacct": "vrm.ext.slurm.calls.past:sacct"})


@cache
def everything() -> Dialect:
    """All commands, of Slurm and of the others."""
    others: list[Dialect] = []
    plugins.use("vrm.dialects", (), lambda plugin, give: others.append(give()))
    return reduce(Dialect.__or__, [*others, SLURM])


@lru_cache(maxsize=128)
def dialect(name: str) -> Dialect:
    """The commands among which one of this name is: Slurm's or those of an extension of vrm's own, before installed
    packages are looked for, which takes longer."""
    if name in SLURM.answers:
        return SLURM
    own = (plugins.load(plugin)() for plugin in plugins.own("vrm.dialects"))
    return next((each for each in own if name in each.answers), None) or everything()


def function_of(where: str) -> Handler:
    """The function at `module:function`."""
    module, _, name = where.partition(":")
    found: Handler = getattr(importlib.import_module(module), name)
    return found


_handler = cache(function_of)


def reply_to(call: Call, counter: Counter) -> Reply:
    """What the command answers; Refused when it is not carried out."""
    where = dialect(call.name).answers.get(call.name)
    if where is None:
        raise Refused(f"vrm has no command {call.name}")
    try:
        return _handler(where)(call, counter)
    except HelpAnswer as told:
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
        _handler(dialect(call.name).answers[call.name])(call, _Unknown())
    except HelpAnswer as told:
        return told.answer
    except Refused as refused:
        return Answer(err=f"{refused}\n", code=refused.code)
    except _Asked:
        pass
    return None


def reads(call: Call) -> bool:
    """Whether the command changes nothing."""
    return not dialect(call.name).reading.isdisjoint((call.name, ":".join([call.name, *call.arguments[:1]])))


def submits(name: str) -> bool:
    """Whether the command brings jobs."""
    return name in dialect(name).submitting


def alone(name: str) -> Callable[[Call], int | None] | None:
    """What the client does itself where no manager runs, if anything."""
    where = dialect(name).alone.get(name)
    return function_of(where) if where else None  # type: ignore[return-value]


def local(name: str) -> Callable[[Call], int | None] | None:
    """What the client does itself, if anything."""
    where = dialect(name).local.get(name)
    return function_of(where) if where else None  # type: ignore[return-value]
