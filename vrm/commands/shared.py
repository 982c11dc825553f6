"""What the commands share: the configuration they use, words on the command line, progress."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any
from collections.abc import Sequence

if TYPE_CHECKING:
    from pathlib import Path

    from vrm.run.rundir import RunDirectory


ON = "--on"
"""The option that comes first where a command line is for another machine."""

BOUND = 10.0
"""Seconds below which run times do not count in the bounded slowdown, unless the user says otherwise:
`vrm.results.metrics.THRESHOLD`, whose import takes half of the time in which a command starts."""


class CannotRun(Exception):
    """A command that cannot be carried out; the text says why and what to do."""


def default_config() -> str | None:
    """The configuration to use when none is named: $VRM_CONFIG, else ./vrm.yaml if it exists."""
    named = os.environ.get("VRM_CONFIG")
    return named or ("vrm.yaml" if os.path.exists("vrm.yaml") else None)


def settings_of(arguments: argparse.Namespace) -> Any:
    """The settings that the command line names."""
    from vrm.config.schema import load
    return load(_config_of(arguments), bool(getattr(arguments, "client", ())))


def run_of(arguments: argparse.Namespace) -> RunDirectory:
    """The directory of the run that the command line names. The rest of its configuration is not judged."""
    from vrm.config.paths import places
    from vrm.run.rundir import RunDirectory
    return RunDirectory.of(places(_config_of(arguments)) or settings_of(arguments))


def _config_of(arguments: argparse.Namespace) -> str | None:
    """The configuration that the command line names.

    A ./vrm.yaml that nobody has named is used only if nobody else can have written it.
    """
    from vrm.system.trust import distrust
    config = getattr(arguments, "config", default_config())
    if config is not None and not hasattr(arguments, "config") and "VRM_CONFIG" not in os.environ:
        reason = distrust(config, allow="name it with -c", there=True)
        if not reason and not os.path.isfile(config):
            reason = f"{config} is not a file; name a configuration with -c"
        if reason:
            raise CannotRun(reason)
    return config


def of_extension(name: str, called: str = "") -> Any:
    """What an extension does at an option of vrm, which people know as `--name` or as it is `called`. CannotRun where
    none does, or it cannot be had."""
    from vrm.system import plugins
    try:
        found = plugins.find("vrm.options", name)
        if found is not None:
            return plugins.load(found)
    except plugins.PluginError as error:
        raise CannotRun(str(error)) from error
    raise CannotRun(f"{called or f'--{name}'} is an option {plugins.MISSING}")


def nothing_yet(state: Path) -> str:
    """What to do where no manager has written a state."""
    return (f"no manager has written {state} yet; go to the directory in which it runs, or name its configuration "
            "with -c FILE")


def words(text: str) -> tuple[str, ...]:
    """`a,b` as ("a", "b"); at least one."""
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` names nothing; write a list such as a,b")
    return found


def counts(text: str) -> tuple[int, ...]:
    """`1,2,4` as (1, 2, 4)."""
    return tuple(count(word) for word in words(text))


def count(text: str) -> int:
    """A whole number, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 1 up")
    return number


def ids_of(words: Sequence[str]) -> list[int]:
    """The ids that these words name: each an id, or a list or range as 3,5-7. CannotRun."""
    from vrm.model.quantities import numbers
    found: list[int] = []
    for text in words:
        try:
            found += numbers(text)
        except ValueError:
            raise CannotRun(f"`{text}` is not an id or a range such as 3-7") from None
    return found


def seconds(text: str) -> float:
    """A time above 0 in seconds."""
    from vrm.model.quantities import FORMS, seconds_of
    try:
        found = seconds_of(text)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time above 0: {FORMS}")
    return found


def moment(text: str) -> float:
    """A time from 0 on in seconds."""
    from vrm.model.quantities import seconds_of
    try:
        return seconds_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time such as 3600, 90m, 36h or 5d") from None


def factor(text: str) -> float:
    """A number above 0."""
    return _number(text, "a number above 0")


def _number(text: str, wanted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is not {wanted}")
    return number


def tell(text: str) -> None:
    """A line of progress: on standard error, so that results can be piped."""
    print(text, file=sys.stderr, flush=True)


# -------------------------------------------------- what can stand there, for completion in a shell


def job_ids(parsed_args: argparse.Namespace, **context: Any) -> list[str]:
    """The ids of the jobs that run and wait, and of those that have ended."""
    from vrm.results.jobs import read_jobs
    from vrm.results.state import current, read

    run = run_of(parsed_args)
    found = [str(row.id) for row in read_jobs(run.jobs)] if run.jobs.exists() else []
    if run.state.exists():
        found += [str(job["id"]) for job in current(read(run.state))["jobs"]]
    return found


def programs(parsed_args: argparse.Namespace, **context: Any) -> list[str]:
    """The names of the programs that a job can name."""
    known = settings_of(parsed_args).applications
    return sorted([*known.programs, *(entry.name for entry in os.scandir(known.path)
                                      if entry.is_file() and os.access(entry.path, os.X_OK))])
