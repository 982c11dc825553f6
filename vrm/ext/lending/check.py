"""`vrm malleable check`: tests whether a program can lend cores while it runs.

The program runs twice unchanged, and then with random changes of its cores, by the same means as in a job: the
kernel's affinity masks of all its threads, and the file that the shim follows. It must end in the same way each
time: with exit status 0, and with a successful verification if it verifies itself, otherwise with the same output.
Parts of the output that differ between the unchanged runs (times, dates) are ignored, and numbers need only be
close, because sums of several threads differ in their last digits."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.live.launch.base import Launcher, read_result, tail
from vrm.ext.lending.job_variables import following
from vrm.ext.lending.nodes import lending, masks
from vrm.live.runner import proc
from vrm.model import Node, RankSlot

TOLERANCE = 1e-6
"""Allowed relative difference between numbers in the output."""

FASTEST, SLOWEST = 0.0005, 0.03
"""Least and greatest number of seconds between two changes."""

ANSWER = 0.3
"""Longest time in seconds to wait until a change is followed before the next one. This is done for every second
change on average, at random."""

AGAIN = 16
"""Number of changes after which the processes are searched again."""

BUSY = 3
"""Number of run times to wait for the first parallel region before changes begin without it."""

RUNS, VAIN = 600, 60
"""Maximum number of runs in which all changes should be made, and of runs without any change, even on a busy
machine."""


@dataclass(frozen=True)
class Trial:
    """A program to check, and how to start it."""

    launcher: Launcher
    program: Path
    arguments: Sequence[str]
    slots: Sequence[RankSlot]
    nodes: Sequence[Node]
    variables: Mapping[str, str]
    changes: int = 100
    tolerance: float = TOLERANCE
    limit: float = 3600.0
    seed: int = 1


@dataclass(frozen=True)
class CheckRun:
    """One run. `last` is the last line of its standard error; `followed` is the number of changes that some process
    has confirmed."""

    seconds: float
    code: int
    output: str
    verification: str | None
    last: str = ""
    changes: int = 0
    followed: int = 0
    threads: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """The result. `kind` is malleable, affinity (the number of threads does not follow, but the program is correct
    on fewer cores), not malleable, or unchecked; `reason` explains it in words."""

    kind: str
    reason: str
    rigid: list[CheckRun] = field(default_factory=list)
    changed: list[CheckRun] = field(default_factory=list)


def check(trial: Trial) -> Verdict:
    """Run the program and return the verdict."""
    rigid = [_run(trial, None) for _ in range(2)]
    for ran in rigid:
        fault = _wrong(ran)
        if fault:
            return Verdict("unchecked", f"it fails without any change: {fault}", rigid)
    why = following(trial.program, "check", 0, trial.variables).rigid
    draw = random.Random(trial.seed)
    changed: list[CheckRun] = []
    made = 0
    while made < trial.changes and len(changed) < (RUNS if made else VAIN):
        whole = max(one.seconds for one in rigid)
        patience = BUSY * whole if not changed or any(one.followed for one in changed) else 0.0
        ran = _run(replace(trial, limit=60.0 + 20 * whole, changes=trial.changes - made), draw, patience)
        changed.append(ran)
        made += ran.changes
        fault = _wrong(ran)
        if not fault and difference(rigid, ran, trial.tolerance):  # perhaps the time matters
            rigid.append(_run(trial, None))
            fault = difference(rigid, ran, trial.tolerance)
        if fault:
            return Verdict("not malleable", f"after {made} changes {fault}", rigid, changed)
    followed = sum(ran.followed for ran in changed)
    if not made:
        return Verdict("unchecked", f"it runs for {rigid[0].seconds:.2f} s, too short for any change", rigid, changed)
    if not followed:
        return Verdict("affinity", f"correct after {made} changes, but its number of threads stays: "
                       + (why or "it has opened no parallel region of an OpenMP runtime that is followed"),
                       rigid, changed)
    seen = sorted(frozenset().union(*(ran.threads for ran in changed)))
    return Verdict("malleable", f"correct after {made} changes; its threads followed {followed} of them, with "
                   f"{', '.join(map(str, seen))} threads per rank", rigid, changed)


def _wrong(ran: CheckRun) -> str:
    if ran.code == -signal.SIGALRM:
        return f"it did not end within {ran.seconds:.0f} s"
    if ran.code:
        return f"it ended with status {ran.code}" + (f": {ran.last[:200]}" if ran.last else "")
    if ran.verification not in (None, "SUCCESSFUL"):
        return f"its verification says {ran.verification}"
    return ""


def difference(rigid: Sequence[CheckRun], ran: CheckRun, tolerance: float) -> str:
    """Return how the output of a run differs from what all unchanged runs have in common; "" for no difference."""
    if ran.verification is not None:
        return ""  # it verifies itself
    texts = [one.output.split("\n") for one in (*rigid, ran)]
    *lengths, length = map(len, texts)
    if len(set(lengths)) == 1 and length != lengths[0]:
        return f"it wrote {length} lines, not {lengths[0]}"
    for number, lines in enumerate(zip(*texts), 1):
        words = [line.split() for line in lines]
        *lengths, length = map(len, words)
        if len(set(lengths)) == 1 and length != lengths[0]:
            return f"line {number} of its output is {lines[-1].strip()!r}, not {lines[0].strip()!r}"
        for *before, now in zip(*words):
            if len(set(before)) == 1 and not _close(before[0], now, tolerance):
                return f"line {number} of its output says {now}, not {before[0]}"
    return ""


_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:[eEdD][-+]?[0-9]+)?")


def _close(word: str, other: str, tolerance: float) -> bool:
    if _NUMBER.sub("#", word) != _NUMBER.sub("#", other):
        return word == other
    for one, two in zip(_NUMBER.findall(word), _NUMBER.findall(other)):
        if not any(sign in one + two for sign in ".eEdD"):
            if one != two:
                return False
            continue
        a, b = (float(re.sub("[dD]", "e", text)) for text in (one, two))
        if abs(a - b) > tolerance * max(abs(a), abs(b)):
            return False
    return True


def _run(trial: Trial, draw: random.Random | None, patience: float = 0.0) -> CheckRun:
    """Run the program once; with random changes if `draw` is given. Changes begin as soon as the program has made
    its file, which it does in its first parallel region, or after `patience` seconds."""
    run = f"check-{uuid.uuid4().hex[:12]}"
    variables: dict[str, str] = dict(trial.variables)
    if draw is not None:
        variables.update(following(trial.program, run, 0, {**_environment(trial), **variables}).variables)
    with tempfile.TemporaryDirectory(prefix="vrm-check-") as folder:
        trial.launcher.run_id = run
        launch = trial.launcher.command(0, trial.program, trial.slots, trial.nodes, Path(folder) / "check.0.rf",
                                        trial.arguments, variables)
        for path, text in launch.files.items():
            Path(path).write_text(text)
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        bound = launch.affinity
        start = time.monotonic()
        with output.open("wb") as out, errors.open("wb") as complaints:
            process = subprocess.Popen(
                launch.argv, env=dict(launch.env), stdin=subprocess.DEVNULL, stdout=out, stderr=complaints,
                start_new_session=True, preexec_fn=(lambda: os.sched_setaffinity(0, bound)) if bound else None)
        changes = CoreChanges(run, trial, draw, time.monotonic() + patience) if draw is not None else None
        try:
            code = _wait(process, start + trial.limit, changes, trial.changes)
        finally:
            _sweep(run)
            process.wait()
            if changes is not None:
                changes.hear()
            for place in lending.places(run, None):
                lending.remove(place)
        seconds = time.monotonic() - start
        ran = CheckRun(seconds, code, output.read_text(errors="replace"), read_result(output).verification,
                  _last_line(tail(errors), trial.launcher))
        return ran if changes is None else replace(ran, changes=changes.made, followed=changes.followed,
                                                   threads=frozenset(changes.threads))


def _last_line(text: str, launcher: Launcher) -> str:
    """Return the last line of the program itself, without the lines that the launcher adds when a rank has failed."""
    own = re.split(r"^-{40,}$", text, maxsplit=1, flags=re.MULTILINE)[0]
    complaint = re.compile(launcher.complaints or "$^")
    return next((line.strip() for line in reversed(own.splitlines())
                 if line.strip() and not complaint.match(line.strip())), "")


def _environment(trial: Trial) -> Mapping[str, str]:
    found: Any = getattr(trial.launcher, "env", {})
    return dict(found)


def _wait(process: subprocess.Popen[bytes], until: float, changes: CoreChanges | None, wanted: int) -> int:
    """Return the exit status of a run; -SIGALRM if it took too long."""
    while True:
        pause = until - time.monotonic()
        if pause <= 0:
            return -signal.SIGALRM
        if changes is not None and changes.made < wanted:
            pause = min(pause, changes.pause() if changes.made else FASTEST)
        try:
            return process.wait(pause)
        except subprocess.TimeoutExpired:
            if changes is not None and changes.made < wanted:
                changes.make()


def _sweep(run: str) -> None:
    """Kill the remaining processes of a run."""
    marks = proc.marks(run, None)
    while True:
        left = [process for process, environment in proc.marked()
                if all(mark in environment for mark in marks)]
        if not left:
            return
        for process in left:
            proc.kill(process)
        time.sleep(0.01)


class CoreChanges:
    """Makes random changes of the cores of a run: of all ranks at the same time, between one thread and all. Numbers
    of threads that the program has not used yet come first."""

    def __init__(self, run: str, trial: Trial, draw: random.Random, begin: float) -> None:
        self.marks = proc.marks(run, 0)
        self.place = lending.folder(run, 0)
        self.variables = [os.fsencode(name + "=") for name in trial.launcher.rank_variables]
        self.most = max(1, int(trial.variables.get("OMP_NUM_THREADS", "0")) or max(
            len(slot.cores) for slot in trial.slots))
        self.draw = draw
        self.made = self.followed = self.epoch = self.last = self.newest = 0
        self.threads: set[int] = set()
        self.masks: dict[int, frozenset[int]] = {}
        self.begin = begin
        self.patient = 0.0
        self.ranked: list[tuple[tuple[int, int], int]] = []

    def pause(self) -> float:
        """Return the number of seconds until the next change."""
        return self.draw.uniform(FASTEST, SLOWEST)

    def _look(self) -> None:
        found = [(process, environment) for process, environment in proc.marked()
                 if all(mark in environment for mark in self.marks)]
        self.ranked = [(process, rank) for (process, _), rank in zip(
            found, masks.ranks_of(found, self.variables)) if rank is not None]

    def make(self) -> None:
        """Make one change if it is time for it."""
        if time.monotonic() < self.patient and not self.hear():
            return
        if not self.epoch:
            if not os.path.isdir(self.place) and time.monotonic() < self.begin:
                return
            self._look()
        elif self.epoch % AGAIN == 0:
            self._look()
        ranked = self.ranked
        if not ranked:
            return
        others = [n for n in range(1, self.most + 1) if n != self.last] or [1]
        threads = self.draw.choice([n for n in others if n not in self.threads] or others)
        part, self.epoch, self.last = self.draw.random(), self.epoch + 1, threads
        said = []
        for (pid, started), rank in ranked:
            if rank not in self.masks:
                self.masks[rank] = _mask(pid)
            of = sorted(self.masks[rank])
            size = max(1, len(of) * threads // self.most)
            first = int(part * (len(of) - size + 1))
            cpus = frozenset(of[first:first + size])
            masks.confine(pid, cpus)
            said.append(lending.write_order(self.place, pid, started, self.epoch, cpus, (threads, self.most)))
        self.made += 1
        follow = [one for one in said if one is not None]
        self._count(follow)
        if follow and self.draw.random() < 0.5:
            self.patient = time.monotonic() + ANSWER

    def hear(self) -> bool:
        """Return whether the last change is followed; count the changes that processes have confirmed."""
        said = [lending.write_order(self.place, *process, 0, ()) for process, _ in self.ranked]  # epoch 0: only read
        self._count([one for one in said if one is not None])
        return self.newest == self.epoch

    def _count(self, said: Sequence[Mapping[str, int]]) -> None:
        newest = max((one["acknowledged"] for one in said), default=0)
        self.followed += newest > self.newest
        self.newest = max(newest, self.newest)
        self.threads |= {one["threads"] for one in said if one["threads"]}


def _mask(pid: int) -> frozenset[int]:
    """Return the CPUs that any thread of a process may use; its runtime may have bound each thread to a core."""
    found: set[int] = set()
    for thread in proc.threads(pid):
        try:
            found |= os.sched_getaffinity(thread)
        except OSError:
            continue  # it has ended
    return frozenset(found or os.sched_getaffinity(0))
