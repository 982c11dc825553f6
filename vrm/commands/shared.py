"""Code that commands share: finding the configuration, argument types, progress messages and shell completion."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any
from collections.abc import Sequence

from vrm.system.errors import UserError

if TYPE_CHECKING:
    from vrm.run.rundir import RunDirectory


ON = "--on"
"""The option that must come first to run a command on another machine."""

BOUND = 10.0
"""Default threshold of the bounded slowdown in seconds: `vrm.results.metrics.THRESHOLD`, whose import would take half
of the start time of a command."""


class CannotRun(UserError):
    """A command that cannot be carried out; the text gives the reason and what to do."""


def default_config() -> str | None:
    """Return the configuration to use if none is named: $VRM_CONFIG, else ./vrm.yaml if it exists, else None."""
    named = os.environ.get("VRM_CONFIG")
    return named or ("vrm.yaml" if os.path.exists("vrm.yaml") else None)


def settings_of(arguments: argparse.Namespace) -> Any:
    """Return the settings of the configuration that the command line names."""
    from vrm.config.schema import load
    return load(_config_of(arguments), bool(getattr(arguments, "client", ())))


def run_of(arguments: argparse.Namespace) -> RunDirectory:
    """Return the directory of the run that the command line names, without checking the rest of its configuration."""
    from vrm.config.paths import places
    from vrm.run.rundir import RunDirectory
    return RunDirectory.of(places(_config_of(arguments)) or settings_of(arguments))


def _config_of(arguments: argparse.Namespace) -> str | None:
    """Return the path of the configuration that the command line names, or the default one.

    A default ./vrm.yaml is used only if no other user can have written it.
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


def extension_option(name: str, called: str = "") -> Any:
    """Return what an extension registers for an option of vrm; messages call it `--name`, or `called` if given.
    Raises CannotRun if there is none, or it cannot be loaded."""
    from vrm.system import plugins
    found = plugins.find("vrm.options", name)
    if found is not None:
        return plugins.load(found)
    raise CannotRun(f"{called or f'--{name}'} is an option {plugins.MISSING}")


def nothing_yet(run: RunDirectory) -> str:
    """Return the advice for a directory in which no manager has written a state."""
    from vrm.report.overviews import overviews
    shown = [f"`{each.command}`" for each in overviews(run.directory, run.log).values() if each.command]
    return f"no manager has written {run.state} yet; " + (
        f"{' and '.join(shown)} shows what was begun with this configuration" if shown else
        "go to the directory in which it runs, or name its configuration with -c FILE")


def words(text: str) -> tuple[str, ...]:
    """Return `a,b` as ("a", "b"); at least one word."""
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` names nothing; write a list such as a,b")
    return found


def counts(text: str) -> tuple[int, ...]:
    """Return `1,2,4` as (1, 2, 4)."""
    return tuple(count(word) for word in words(text))


def count(text: str) -> int:
    """Return a positive integer."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 1 up")
    return number


def ids_of(words: Sequence[str]) -> list[int]:
    """Return the ids that these words name: each word is an id, a list or a range, as 3,5-7. Raises CannotRun."""
    from vrm.model.quantities import numbers
    found: list[int] = []
    for text in words:
        try:
            found += numbers(text)
        except ValueError:
            raise CannotRun(f"`{text}` is not an id or a range such as 3-7") from None
    return found


def seconds(text: str) -> float:
    """Return a time above 0 in seconds."""
    from vrm.model.quantities import FORMS, seconds_of
    try:
        found = seconds_of(text)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time above 0: {FORMS}")
    return found


def moment(text: str) -> float:
    """Return a time of 0 or more in seconds."""
    from vrm.model.quantities import seconds_of
    try:
        return seconds_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time such as 3600, 90m, 36h or 5d") from None


def factor(text: str) -> float:
    """Return a number above 0."""
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
    """Print a line of progress on standard error, so that results can be piped."""
    print(text, file=sys.stderr, flush=True)


# -------------------------------------------------- possible words, for completion in a shell


def job_ids(parsed_args: argparse.Namespace, **context: Any) -> list[str]:
    """Return the ids of the running, waiting and ended jobs."""
    from vrm.results.jobs import read_jobs
    from vrm.results.state import current, read

    run = run_of(parsed_args)
    found = [str(row.id) for row in read_jobs(run.jobs)] if run.jobs.exists() else []
    if run.state.exists():
        found += [str(job["id"]) for job in current(read(run.state))["jobs"]]
    return found


def programs(parsed_args: argparse.Namespace, **context: Any) -> list[str]:
    """Return the names of the programs that a job can use."""
    known = settings_of(parsed_args).applications
    return sorted([*known.programs, *(entry.name for entry in os.scandir(known.path)
                                      if entry.is_file() and os.access(entry.path, os.X_OK))])
