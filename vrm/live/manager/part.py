"""What the loop of a manager asks of its parts."""

from __future__ import annotations

import math
import selectors
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vrm.live.manager.records.records import EndedJob
from vrm.model import Booking, Job
from vrm.model.forms import shapes
from vrm.run.control import Command
from vrm.run.journal.past import Past
from vrm.scheduling import Start

POLL = 0.2
"""Seconds between looks at the queue file and the commands (files may be written on another
host, where no notification comes from)."""


Question = Callable[[], Command]
"""Gives an answer that takes long, and changes nothing: a copy of the manager calls it."""

Obey = Callable[[Command, str], Command | Question]
"""Carries out a command file, which has this name, and gives the answer; ValueError, KeyError or TypeError for what is
no command."""


class Part:
    """A part of a manager. In each turn of the loop all parts look, then the run decides, then all parts act, and
    tidy up, each time in the order of the manager's list. A part overrides what it needs. All times are in seconds of
    the manager's clock.

    A part of an extension may have events of its own in the journal (`vrm.live.manager.liverun.LiveRun.record`): `events`
    has a check of each value, by the events' names and the names of their values; vrm.model.forms.shapes has some checks. `name`
    and `package` are those under which it was added. `observes`: the classes of what it takes notice of."""

    name = ""
    package = ""
    events: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {}
    observes: tuple[type, ...] = (object,)

    def happened(self, event: str, values: Mapping[str, Any]) -> None:
        """Take in an event of its own that an earlier manager of the run has recorded; called in their order, before
        `recall`."""

    def recall(self, past: Past) -> None:
        """Learn what earlier managers of the run have recorded."""

    def begin(self, selector: selectors.BaseSelector) -> None:
        """The loop begins: register what wakes it, each with a function to call then."""

    def end(self) -> None:
        """The loop is over."""

    def look(self, now: float, files: bool) -> None:
        """Take in what has happened. `files`: look at files, too, which other hosts may write."""

    def act(self, now: float) -> None:
        """Carry out what was decided."""

    def tidy(self, now: float) -> None:
        """Do what can wait until the next jobs have started."""

    def deadline(self, now: float) -> float:
        """When the next turn is due at the latest, for this part."""
        return math.inf

    def resume(self) -> None:
        """Go on with the jobs that earlier managers of the run have started: the run has them now."""

    def starts(self, start: Start, now: float) -> bool:
        """Whether this part starts a job that the run has decided to start; it does so when it can be, and nobody else
        does then."""
        return False

    def moving(self, job_id: int) -> bool:
        """Whether ranks of a running job are being moved: they may be elsewhere than it is said."""
        return False

    def keeps(self, job_id: int) -> bool:
        """Whether the record of a job that has ended is to wait, for what this part will know of it."""
        return False

    def busy(self) -> bool:
        """Whether something is being done: the run does not end before it is done, not even when it is stopped."""
        return False

    def expects(self, now: float) -> bool:
        """Whether more may come, for which a run waits that is not stopped."""
        return False

    def commands(self) -> Mapping[str, Obey]:
        """What this part does at commands of people, by what they ask (`do`)."""
        return {}

    def repeats(self) -> Collection[str]:
        """Those of its commands that it is asked again where an earlier manager has carried them out, since it knows
        what was done."""
        return ()

    def likely(self) -> float:
        """Until when somebody is likely to ask something: what can wait waits until then, and shares the sync of the
        journal. Infinity: somebody waits for the next turn."""
        return -math.inf

    def observe(self, event: object) -> None:
        """Take notice of an event: what an agent reports (`vrm.live.nodes.nodewatch.NodeEvent`), or one of the classes
        below."""

    def leave(self) -> None:
        """The manager ends, however it does: leave nothing behind."""


def overrides(part: Part, hook: str) -> bool:
    """Whether a part does something at this hook."""
    return getattr(getattr(part, hook), "__func__", None) is not getattr(Part, hook)


class Parts(tuple[Part, ...]):
    """The parts of a manager, in order."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._having: dict[str, list[Part]] = {}
        self._observers: dict[type, list[Part]] = {}

    def having(self, hook: str) -> list[Part]:
        """Those that override a hook: a turn for a short job has time for no others."""
        found = self._having.get(hook)
        if found is None:
            found = self._having[hook] = [part for part in self if overrides(part, hook)]
        return found

    def observers(self, kind: type) -> list[Part]:
        """Those that take notice of events of a class."""
        found = self._observers.get(kind)
        if found is None:
            found = self._observers[kind] = [part for part in self.having("observe") if issubclass(kind, part.observes)]
        return found


def event_fault(part: Part, event: str, values: Mapping[str, Any]) -> str:
    """Why this is not an event that a part declares; "" where it is."""
    if event not in part.events:
        return f"the part {part.name} of {part.package} has no event `{event}`"
    wrong = shapes.fault(values, dict(part.events[event]), {})
    return f"event {event} of the part {part.name} of {part.package}: {wrong}" if wrong else ""


@dataclass(frozen=True)
class Closed:
    """Nothing starts on a node (its number in the cluster) for now."""

    node: int


@dataclass(frozen=True)
class JobAsked:
    """Somebody asks something of a job: it is not to start meanwhile."""

    job_id: int


@dataclass(frozen=True)
class ProgramPrepared:
    """A program that is no script is about to be started with these variables. `variables` are what else it is given."""

    booking: Booking
    program: Path
    env: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptPrepared:
    """A script is about to be started with these variables, in its `folder` for files of its own. `files` (their texts, by
    path) and further `variables` are what else it is given. `alone`: it has all cores of its nodes. `gpus`: as
    `vrm.live.launch.visible.Visible.listed` has them."""

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
    """A job that ran has ended; next it is closed, or waits again. The folder of a script is still there."""

    outcome: EndedJob


@dataclass(frozen=True)
class JobLeft:
    """A job is over, and its cores are free; how it has ended may be decided later."""

    job: Job


@dataclass(frozen=True)
class RecordPrepared:
    """The record of a job that has ended is about to be written; what else is known of it goes into the `outcome`."""

    outcome: EndedJob


@dataclass(frozen=True)
class Launched:
    """The processes of a job are being started."""

    job: Job


@dataclass(frozen=True)
class Stopped:
    """Nothing starts in this run any more."""


@dataclass(frozen=True)
class Shown:
    """What people see of the run is as it is at this time."""

    time: float
