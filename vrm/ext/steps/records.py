"""`steps.csv`: one line for each step of a script job, written when the step ends, and one line `batch` when
the script itself has ended.

Steps write it themselves, each with one append, so this module is quick to load: it imports nothing of what
takes milliseconds.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    PathLike = str | os.PathLike[str]

COLUMNS = ("job", "step", "name", "start", "end", "state", "exit_code", "tasks", "cores", "nodes", "user", "system",
           "maxrss", "began")
HEADER = ",".join(COLUMNS) + "\n"

BATCH = "batch"
"""The step that is the script itself."""


class Step:
    """A step that ended.

    `job` is vrm's id of the job, `step` 0, 1 and so on, or `batch`; `name` the program's. `start` and
    `end` are seconds since the epoch. `state` is completed, failed, cancelled or timeout; `exit_code` what
    a shell would show (128 and the number of a signal), None where it is not known. `tasks` and `cores`
    count over all `nodes`, whose names have a blank between them. `user` and `system` are the CPU seconds of
    its processes on all nodes, `maxrss` the bytes of the largest of them (see `vrm.ext.steps.used`); those of the
    script are of its steps, too. `began` is when its job was started, by which the tries of a job are told apart; None
    where an older version wrote the line.
    """

    __slots__ = COLUMNS

    def __init__(self, job: int, step: str, name: str, start: float, end: float, state: str,
                 exit_code: int | None, tasks: int, cores: int, nodes: str, user: float = 0.0, system: float = 0.0,
                 maxrss: int = 0, began: float | None = None) -> None:
        self.job, self.step, self.name = job, step, name
        self.start, self.end, self.state, self.exit_code = start, end, state, exit_code
        self.tasks, self.cores, self.nodes = tasks, cores, nodes
        self.user, self.system, self.maxrss, self.began = user, system, maxrss, began

    def __repr__(self) -> str:
        return f"Step({self.line.rstrip()})"

    @property
    def line(self) -> str:
        """The step's line, with its line end."""
        name = "".join(each if each.isprintable() else "?" for each in self.name)
        if "," in name or '"' in name:
            name = '"' + name.replace('"', '""') + '"'
        code = "" if self.exit_code is None else self.exit_code
        began = "" if self.began is None else f"{self.began:.3f}"
        return (f"{self.job},{self.step},{name},{self.start:.3f},{self.end:.3f},{self.state},{code},"
                f"{self.tasks},{self.cores},{self.nodes},{self.user:.3f},{self.system:.3f},{self.maxrss},"
                f"{began}\n")


def append(path: PathLike, step: Step) -> None:
    """Write a step's line. OSError when it cannot be written, or the file is not one's own."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid():
            raise PermissionError(1, "belongs to another account; remove it", os.fspath(path))
        text = step.line if about.st_size else HEADER + step.line
        os.write(handle, text.encode(errors="replace"))
    finally:
        os.close(handle)


def read_steps(path: PathLike) -> dict[int, list[Step]]:
    """The steps of each job, in the order of their ends, those of its last try only, with the line `batch` behind
    them. Lines say when their try began; where an older version has not written that, a `batch` line ends a try. Of a
    step that was recorded twice, since its srun was killed in between, the first line counts. Lines that a crash has
    torn are left out; no file means no steps."""
    import csv

    tries: dict[int, _Try] = {}
    try:
        file = open(path, encoding="utf-8", errors="replace", newline="")
    except FileNotFoundError:
        return {}
    with file:
        for words in csv.reader(line.replace("\0", "?") for line in file):
            try:
                job, step, name, start, end, state, code, tasks, cores, nodes, *more = words
                user, system, maxrss, began = {0: ["0", "0", "0", ""], 3: [*more, ""]}.get(len(more), more)
                found = Step(int(job), step, name, float(start), float(end), state,
                             int(code) if code else None, int(tasks), int(cores), nodes,
                             float(user), float(system), int(maxrss), float(began) if began else None)
            except ValueError:  # the header, or a torn line
                continue
            last = tries.setdefault(found.job, _Try())
            if last.is_over(found):
                last = tries[found.job] = _Try()
            last.take(found)
    return {job: last.all for job, last in tries.items()}


class _Try:
    """The steps of one try of a job."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.steps: dict[tuple[str, float], Step] = {}
        self.batch: Step | None = None

    def is_over(self, step: Step) -> bool:
        """Whether the step is of a later try."""
        began = _began(step)
        if self.began is not None and began is not None:
            return began > self.began
        if self.batch is None or (step.step, step.start) in self.steps:
            return False
        return step.step != BATCH or step.start != self.batch.start

    def take(self, step: Step) -> None:
        """A step of this try, or of an earlier one."""
        began = _began(step)
        if self.began is not None and began is not None and began < self.began:
            return
        self.began = began if self.began is None else self.began
        if step.step == BATCH:  # written twice where a manager was killed in between
            self.batch = step
        else:
            self.steps.setdefault((step.step, step.start), step)

    @property
    def all(self) -> list[Step]:
        """Its steps, with the script behind them."""
        return [*self.steps.values(), *([self.batch] if self.batch is not None else ())]


def _began(step: Step) -> float | None:
    """When the step's job was started: the script begins then."""
    return step.start if step.step == BATCH and step.began is None else step.began
