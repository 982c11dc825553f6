"""The commands that vrm answers, by name: which function answers each, and whether in the manager or in the client.

The commands of a batch system form a `Dialect`. SLURM is the one of Slurm; extensions register others under
`[vrm.dialects]` (`vrm.system.plugins`), each as a function that returns a `Dialect`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import cache, lru_cache, reduce
from typing import NoReturn
from collections.abc import Callable, Mapping

from vrm.ext.slurm.calls.answers import Answer, Handler, CallRefused, Reply, HelpAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.wire import Call
from vrm.system import plugins

LAUNCHERS = frozenset(("mpirun", "mpiexec"))
"""Commands that only programs started by `vrm run --` find on PATH; scripts of jobs find the real ones."""


@dataclass(frozen=True)
class Dialect:
    """The commands of a batch system.

    `answers` maps each command to the function that answers it, as `module:function`: the manager calls it with a
    `vrm.ext.slurm.calls.wire.Call` and a `vrm.ext.slurm.calls.handler.RequestHandler`. Commands in `submitting` submit
    jobs. Those in `blocking` print the output of their job; after they have begun to print, no other manager can
    continue them. `reading` commands change nothing (`name:argument`: only with that first argument); without an
    answer they give up. `about_jobs` are those of them whose answers grow with the number of jobs. Commands in
    `local` are handled by the client itself: the function gets only the call and returns the exit status, or None to
    send the call to the manager. The functions in `alone` do the same where no manager runs."""

    answers: Mapping[str, str]
    submitting: frozenset[str] = frozenset()
    blocking: frozenset[str] = frozenset()
    reading: frozenset[str] = frozenset()
    about_jobs: frozenset[str] = frozenset()
    local: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Dialect) -> Dialect:
        """Return the commands of both; a command in both is taken from `other`."""
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
     "sacctmgr": "vrm.ext.slurm.accounting:sacctmgr",
     "sshare": "vrm.ext.slurm.accounting:nothing",
     "sprio": "vrm.ext.slurm.accounting:nothing",
     "sstat": "vrm.ext.slurm.sstat:sstat",
     "seff": "vrm.ext.slurm.sacct:seff",
     "mpirun": "vrm.ext.slurm.blocking:mpirun",
     "mpiexec": "vrm.ext.slurm.blocking:mpirun",
     **dict.fromkeys(("sbcast", "strigger", "sdiag", "sreport", "scrontab", "sview", "smap", "scrun",
                      "sgather"), "vrm.ext.slurm.accounting:refused")},
    submitting=frozenset(("sbatch", "srun", "salloc")) | LAUNCHERS,
    blocking=frozenset(("srun", "salloc", "sattach")) | LAUNCHERS,
    reading=frozenset(("squeue", "sacct", "sinfo", "sacctmgr", "sshare", "sprio", "sstat", "seff", "scontrol:show")),
    about_jobs=frozenset(("squeue", "sacct", "scontrol")),
    local={"sbcast": "vrm.ext.slurm.sbcast:sbcast"},
    alone={"scontrol": "vrm.ext.slurm.scontrol:alone",
           **dict.fromkeys(("sacct", "seff"), "vrm.ext.slurm.calls.past_handler:recorded")})


@cache
def everything() -> Dialect:
    """Return the commands of Slurm and of all other dialects."""
    others: list[Dialect] = []
    plugins.use("vrm.dialects", (), lambda plugin, give: others.append(give()))
    return reduce(Dialect.__or__, [*others, SLURM])


@lru_cache(maxsize=128)
def dialect(name: str) -> Dialect:
    """Return the dialect that has this command: Slurm's, else one of vrm's own extensions, and only then those of
    installed packages, because searching for these takes longer."""
    if name in SLURM.answers:
        return SLURM
    own = (plugins.load(plugin)() for plugin in plugins.own("vrm.dialects"))
    return next((each for each in own if name in each.answers), None) or everything()


def function_of(where: str) -> Handler:
    """Return the function at `module:function`."""
    module, _, name = where.partition(":")
    found: Handler = getattr(importlib.import_module(module), name)
    return found


_handler = cache(function_of)


def reply_to(call: Call, handler: RequestHandler) -> Reply:
    """Return the reply of the command. Raises CallRefused if it is not carried out."""
    where = dialect(call.name).answers.get(call.name)
    if where is None:
        raise CallRefused(f"vrm has no command {call.name}")
    try:
        return _handler(where)(call, handler)
    except HelpAnswer as told:
        return told.answer


class _NoHandler:
    """Replaces a `RequestHandler` where no manager runs: any use raises `_HandlerNeeded`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _HandlerNeeded


class _HandlerNeeded(Exception):
    """An answer depends on jobs, which only a manager knows."""


def unasked(call: Call) -> Answer | None:
    """Return the answer of a command that needs no manager: `--help`, `--version`, or a refusal. None if it needs
    one."""
    try:
        _handler(dialect(call.name).answers[call.name])(call, _NoHandler())
    except HelpAnswer as told:
        return told.answer
    except CallRefused as refused:
        return Answer(err=f"{refused}\n", code=refused.code)
    except _HandlerNeeded:
        pass
    return None


def reads(call: Call) -> bool:
    """Return whether the call changes nothing."""
    return not dialect(call.name).reading.isdisjoint((call.name, ":".join([call.name, *call.arguments[:1]])))


def submits(name: str) -> bool:
    """Return whether the command submits jobs."""
    return name in dialect(name).submitting


def alone(name: str) -> Callable[[Call], int | None] | None:
    """Return the client's function for the command where no manager runs; None if there is none."""
    where = dialect(name).alone.get(name)
    return function_of(where) if where else None  # type: ignore[return-value]


def local(name: str) -> Callable[[Call], int | None] | None:
    """Return the client's function that replaces the manager for the command; None if there is none."""
    where = dialect(name).local.get(name)
    return function_of(where) if where else None  # type: ignore[return-value]
