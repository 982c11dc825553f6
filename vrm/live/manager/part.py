"""The hooks that a manager's loop calls in its parts, and the events that parts observe."""

from __future__ import annotations

import math
import selectors
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vrm.live.manager.records.records import EndedJob
from vrm.model import Booking, Job
from vrm.model.forms import json_checks
from vrm.run.command_files import Command
from vrm.run.journal.history import RunHistory
from vrm.scheduling import Start

POLL = 0.2
"""Seconds between looks at the queue file and the commands (another host may write these files; then no
notification arrives)."""


Question = Callable[[], Command]
"""Return an answer that takes long to make and changes nothing; a copy of the manager calls it."""

CommandHandler = Callable[[Command, str], Command | Question]
"""Carry out the command file of this name and return the answer. Raises ValueError, KeyError or TypeError for an
invalid command."""


class Part:
    """A part of a manager. In each turn of the loop all parts `look`, then the run decides, then all parts `act` and
    `tidy`, each time in the order of the manager's list. A part overrides the hooks that it needs. All times are in
    seconds of the manager's clock.

    A part of an extension may have events of its own in the journal (`vrm.live.manager.liverun.LiveRun.record`).
    `events` maps the names of these events to the names of their values, with a check of each value;
    vrm.model.forms.json_checks has some checks. `name` and `package` are those under which the part was added. `observes`:
    the event classes that it observes.
    """

    name = ""
    package = ""
    events: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {}
    observes: tuple[type, ...] = (object,)

    def happened(self, event: str, values: Mapping[str, Any]) -> None:
        """Take in an event of this part that an earlier manager recorded. Called in the order of the events, before
        `recall`."""

    def recall(self, past: RunHistory) -> None:
        """Take in what earlier managers of the run have recorded."""

    def begin(self, selector: selectors.BaseSelector) -> None:
        """The loop begins: register files that wake it, each with a function to call then."""

    def end(self) -> None:
        """The loop has ended."""

    def look(self, now: float, files: bool) -> None:
        """Take in what has happened. `files`: also look at files that other hosts may write."""

    def act(self, now: float) -> None:
        """Carry out the decisions."""

    def tidy(self, now: float) -> None:
        """Do work that can wait until the next jobs have started."""

    def deadline(self, now: float) -> float:
        """Return the latest time at which this part needs the next turn."""
        return math.inf

    def resume(self) -> None:
        """Continue with the jobs that earlier managers of the run have started and that the run follows again."""

    def starts(self, start: Start, now: float) -> bool:
        """Return True if this part starts a job that the run has decided to start. Then this part alone starts it, as
        soon as that is possible."""
        return False

    def moving(self, job_id: int) -> bool:
        """Return whether ranks of a running job are being moved, so that they may not be where the booking says."""
        return False

    def keeps(self, job_id: int) -> bool:
        """Return whether the record of an ended job must wait for data from this part."""
        return False

    def busy(self) -> bool:
        """Return whether work is in progress: the run does not end before it is done, even when it is stopped."""
        return False

    def expects(self, now: float) -> bool:
        """Return whether more input may come; a run that is not stopped waits for it."""
        return False

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the functions that carry out this part's commands, by the command's name (`do`)."""
        return {}

    def repeats(self) -> Collection[str]:
        """Return the commands of this part that are called again although an earlier manager has carried them out; the
        part itself knows what was done."""
        return ()

    def likely(self) -> float:
        """Return until when a client is likely to send a request. Work that can wait is done after that, and shares
        the sync of the journal with it. Infinity: a client waits for the next turn."""
        return -math.inf

    def observe(self, event: object) -> None:
        """Handle an event: a report of an agent (`vrm.live.nodes.node_watch.NodeEvent`), or one of the classes below."""

    def leave(self) -> None:
        """The manager ends, for whatever reason: clean up."""


def overrides(part: Part, hook: str) -> bool:
    """Return whether a part overrides this hook."""
    return getattr(getattr(part, hook), "__func__", None) is not getattr(Part, hook)


class Parts(tuple[Part, ...]):
    """The parts of a manager, in order."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._having: dict[str, list[Part]] = {}
        self._observers: dict[type, list[Part]] = {}

    def having(self, hook: str) -> list[Part]:
        """Return the parts that override a hook. Calling only these saves time in each turn."""
        found = self._having.get(hook)
        if found is None:
            found = self._having[hook] = [part for part in self if overrides(part, hook)]
        return found

    def observers(self, kind: type) -> list[Part]:
        """Return the parts that observe events of a class."""
        found = self._observers.get(kind)
        if found is None:
            found = self._observers[kind] = [part for part in self.having("observe") if issubclass(kind, part.observes)]
        return found


def event_fault(part: Part, event: str, values: Mapping[str, Any]) -> str:
    """Return why this is not an event that the part declares; "" if it is one."""
    if event not in part.events:
        return f"the part {part.name} of {part.package} has no event `{event}`"
    wrong = json_checks.fault(values, dict(part.events[event]), {})
    return f"event {event} of the part {part.name} of {part.package}: {wrong}" if wrong else ""


@dataclass(frozen=True)
class NodeClosed:
    """Nothing starts on this node (its number in the cluster) for now."""

    node: int


@dataclass(frozen=True)
class JobHeldForCommand:
    """A command concerns this job; the job must not start meanwhile."""

    job_id: int


@dataclass(frozen=True)
class ProgramPrepared:
    """A program that is not a script is about to start with the environment `env`. Observers add to `variables`."""

    booking: Booking
    program: Path
    env: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptPrepared:
    """A script is about to start with the environment `env`; `folder` is for files of its own. Observers add `files`
    (their texts, by path) and further `variables`. `alone`: the job has all cores of its nodes. `gpus`: see
    `vrm.live.launch.visible_gpus.VisibleGpus.listed`."""

    booking: Booking
    program: str
    folder: Path
    env: Mapping[str, str]
    alone: bool
    gpus: Sequence[str]
    files: dict[Path, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobEnded:
    """A job that ran has ended; next it is closed or requeued. The folder of a script still exists."""

    outcome: EndedJob


@dataclass(frozen=True)
class JobReleased:
    """A job is over and its cores are free; the verdict on how it ended may follow later."""

    job: Job


@dataclass(frozen=True)
class RecordPrepared:
    """The record of an ended job is about to be written; observers add what they know to `outcome`."""

    outcome: EndedJob


@dataclass(frozen=True)
class JobLaunched:
    """The processes of a job are being started."""

    job: Job


@dataclass(frozen=True)
class RunStopping:
    """Nothing starts in this run any more."""


@dataclass(frozen=True)
class StateWritten:
    """The state file shows the run as of `time`."""

    time: float
