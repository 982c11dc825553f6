"""Generates random mixes of jobs from a seed, written at once, or live while a manager runs. The file always records
the seconds until the next job in the fifth column, so that a mix can be replayed.

The default draws as in the founding work: applications and rank counts uniformly, and 3 to 10 whole seconds from one
submission to the next.
"""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from collections.abc import Callable, Iterator, Sequence

from vrm.system.files import write_atomically
from vrm.ext.generate.npb import allows, rule
from vrm.model.forms.field_types import LONGEST_TIME, FieldError, check_app
from vrm.workload.grammar import LineError, QueueLine, parse_line, show
from vrm.workload.writer_marker import HEARTBEAT, WriterMarker
from vrm.system.errors import UserError

END = "end\n"


class GenerateError(UserError, ValueError):
    """A mix cannot be generated or written; the text says why and what to do."""


@dataclass(frozen=True)
class Arrival:
    """When jobs arrive: `uniform` whole seconds from `low` to `high` between two jobs, `poisson` with a mean of `mean`
    seconds between two, or all at `once`."""

    kind: str = "uniform"
    low: int = 3
    high: int = 10
    mean: float = 6.5

    def delay(self, draw: random.Random) -> float:
        """Draw the seconds until the next job, in hundredths."""
        if self.kind == "uniform":
            return float(self.low + _below(draw, self.high - self.low + 1))
        if self.kind == "poisson":
            return round(-self.mean * math.log(1.0 - draw.random()), 2)
        return 0.0


ARRIVALS = "uniform:LOW-HIGH, poisson:MEAN or once"


def parse_arrival(text: str) -> Arrival:
    """Parse `uniform`, `uniform:3-10`, `poisson:6.5` (seconds) or `once`. Raises GenerateError for anything else."""
    kind, _, value = text.partition(":")
    try:
        if kind == "once" and not value:
            return Arrival("once")
        if kind == "uniform":
            low, _, high = (value or "3-10").partition("-")
            arrival = Arrival("uniform", int(low), int(high or low))
            if 0 <= arrival.low <= arrival.high:
                return arrival
        if kind == "poisson":
            mean = float(value or "6.5")
            if 0 < mean < math.inf:
                return Arrival("poisson", mean=mean)
    except ValueError:
        pass  # reported below, like any other text that is not an arrival
    raise GenerateError(f"arrival `{text}` is not understood; write {ARRIVALS} (seconds)")


Choice = tuple[str, int, float]
"""An executable, its ranks and the estimate in seconds."""


def choices(table: dict[tuple[str, int], float], apps: Sequence[str] = (),
            classes: Sequence[str] = (), ranks: Sequence[int] = ()) -> dict[str, list[Choice]]:
    """Return the choices by executable: the entries of a table of estimates that match.

    `apps` are executables or names without class (`cg`); an empty filter matches everything. Raises GenerateError if
    something that is named has no estimate.
    """
    def wanted(app: str) -> bool:
        words = app.split(".")
        named = not apps or app in apps or words[0] in apps
        return named and (not classes or app in apps or any(word in classes for word in words[1:2]))

    found: dict[str, list[Choice]] = {}
    for (app, count), seconds in table.items():
        if wanted(app) and (not ranks or count in ranks):
            found.setdefault(app, []).append((app, count, seconds))
    where = "in the table of estimates; measure it with `vrm calibrate`, or give --estimate SECONDS"
    for app in apps:
        if not any(app == known or app == known.split(".")[0] for known in found):
            raise GenerateError(f"{app}{_with(classes, ranks)} is not {where}")
    for name in classes:
        if not any(known.split(".")[1:2] == [name] for known in found):
            raise GenerateError(f"nothing of class {name}{_with((), ranks)} is {where}")
    if not found:
        raise GenerateError(f"nothing{_with(classes, ranks)} is {where}")
    return found


def _with(classes: Sequence[str], ranks: Sequence[int]) -> str:
    return (f" in class {' or '.join(classes)}" if classes else "") + (
        f" on {' or '.join(map(str, ranks))} rank(s)" if ranks else "")


def constant(apps: Sequence[str], classes: Sequence[str], ranks: Sequence[int], seconds: float
             ) -> dict[tuple[str, int], float]:
    """Return a table with one estimate for all: every app in every class on the rank counts that it allows.

    Raises GenerateError for an app that allows none of them.
    """
    table: dict[tuple[str, int], float] = {}
    for app in apps:
        names = [app] if "." in app else [f"{app}.{name}.x" for name in classes]
        if not names:
            raise GenerateError(f"{app} wants a class: give --classes S, or the executable's name "
                                f"as {app}.S.x")
        counts = [count for count in ranks if allows(app, count)]
        if not counts:
            raise GenerateError(f"{app} runs on {rule(app)}, which none of --ranks "
                                f"{','.join(map(str, ranks))} is")
        table.update({(name, count): seconds for name in names for count in counts})
    return table


@dataclass(frozen=True)
class Mix:
    """A mix of jobs: their number, their choices and their arrival. `exclusive` is the share (0 to 1) of jobs that
    share no node; estimates are multiplied by `margin`."""

    jobs: int
    seed: int
    choices: dict[str, list[Choice]]
    arrival: Arrival = Arrival()
    exclusive: float = 0.0
    margin: float = 1.0

    def lines(self) -> Iterator[QueueLine]:
        """Yield the jobs, always the same ones for the same seed. The last one has no delay."""
        draw = random.Random(self.seed)
        apps = sorted(self.choices)
        for number in range(self.jobs):
            rows = sorted(self.choices[apps[_below(draw, len(apps))]])
            app, procs, seconds = rows[_below(draw, len(rows))]
            exclusive = draw.random() < self.exclusive
            delay = self.arrival.delay(draw)
            yield QueueLine(app, procs, float(max(1, math.ceil(seconds * self.margin - 1e-9))),
                            exclusive, delay if number + 1 < self.jobs else 0.0)


def _below(draw: random.Random, count: int) -> int:
    """Draw an integer from 0 to below `count`. Only `random()` gives the same values in every Python."""
    return int(draw.random() * count)


def check(mix: Mix) -> None:
    """Raise GenerateError for a mix that no queue file can hold."""
    if mix.jobs < 1:
        raise GenerateError(f"a mix has 1 job or more, not {mix.jobs}")
    if not 0 <= mix.exclusive <= 1:
        raise GenerateError(f"the exclusive share is from 0 to 1, not {mix.exclusive:g}")
    if not 0 < mix.margin < math.inf:
        raise GenerateError(f"the margin is above 0, not {mix.margin:g}")
    longest = mix.margin * max(seconds for rows in mix.choices.values() for *_, seconds in rows)
    if max(longest, mix.arrival.high, mix.arrival.mean) > LONGEST_TIME:
        raise GenerateError(f"no estimate and no delay may be longer than {LONGEST_TIME} s")
    for app in mix.choices:
        try:
            check_app(app)
        except FieldError as error:
            raise GenerateError(error.said(show)) from error


def write_at_once(mix: Mix, queue: Path, header: str, replace: bool = False) -> None:
    """Write the whole recorded queue with its `end` line. Raises GenerateError if the file already exists (unless
    `replace`) or cannot be written."""
    check(mix)
    text = f"# {header}\n" + "".join(f"{line}\n" for line in mix.lines()) + END
    _make_folder(queue)
    try:
        if replace:
            write_atomically(queue, text)
        else:
            with open(queue, "x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as error:
        raise GenerateError(f"{queue} exists; name another file, or replace it with "
                            "--force") from error
    except OSError as error:
        raise GenerateError(f"cannot write {queue}: {error.strerror}") from error


def write_live(mix: Mix, queue: Path, header: str, resume: bool = False, speed: float = 1.0,
               tell: Callable[[str], None] = lambda text: None,
               pause: Callable[[float], None] = time.sleep) -> None:
    """Append the jobs as time passes, `speed` times faster than their delays.

    A marker file next to the queue shows managers that more lines may follow. `resume` continues a file that holds the
    first jobs of this mix. Raises GenerateError if another file exists there or the file cannot be written.
    """
    check(mix)
    lines = list(mix.lines())
    _make_folder(queue)
    try:
        done = _written(queue, lines) if resume else None
        if done is None and queue.exists() and queue.stat().st_size:
            raise GenerateError(f"{queue} exists; continue it with --resume, or name "
                                "another file")
        with WriterMarker(queue) as marker:
            if done is None:
                _append(queue, f"# {header}\n")
            for number, line in enumerate(lines[done or 0:], (done or 0) + 1):
                _append(queue, f"{line}\n")
                marker.beat()
                tell(f"[{number}/{len(lines)}] {line}")
                left = (line.delay or 0.0) / speed
                while left > 0:
                    part = min(left, HEARTBEAT / 2)
                    pause(part)
                    marker.beat()
                    left -= part
            _append(queue, END)
    except RuntimeError as error:
        raise GenerateError(str(error)) from error
    except OSError as error:
        raise GenerateError(f"cannot write {queue}: {error.strerror}") from error


def _make_folder(queue: Path) -> None:
    try:
        queue.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GenerateError(f"cannot write {queue}: {error.strerror}") from error


def _append(queue: Path, text: str) -> None:
    """Append to the file that has this name now: an editor may have replaced it."""
    with open(queue, "a", encoding="utf-8") as file:
        file.write(text)


def _written(queue: Path, lines: Sequence[QueueLine]) -> int | None:
    """Return the number of jobs of the mix that a file holds, None if there is no file; cut the file after its last
    complete line. Raises GenerateError if it holds something else."""
    try:
        raw = queue.read_bytes()
    except FileNotFoundError:
        return None
    kept = raw[:raw.rfind(b"\n") + 1]
    count = 0
    for number, text in enumerate(kept.decode("utf-8", "replace").splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        if text.strip() == END.strip():
            raise GenerateError(f"{queue} is complete: it has its `end` line; name another file")
        try:
            same = count < len(lines) and parse_line(text) == lines[count]
        except LineError:
            same = False
        if not same:
            raise GenerateError(f"{queue}:{number}: this is not job {count + 1} of the mix; use "
                                "the options of the first time, with the same --seed, or name another "
                                "file")
        count += 1
    if not kept:
        return None
    if len(kept) < len(raw):
        os.truncate(queue, len(kept))
    return count
