"""`steps.csv`: one line for each step of a script job, written when the step ends, and one line `batch` for the
script, written when the script has ended.

Steps write their lines themselves, each with one append. Therefore this module must load fast: it imports nothing
that takes milliseconds."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    PathLike = str | os.PathLike[str]

COLUMNS = ("job", "step", "name", "start", "end", "state", "exit_code", "tasks", "cores", "nodes", "user", "system",
           "maxrss", "began")
HEADER = ",".join(COLUMNS) + "\n"

BATCH = "batch"
"""Name of the step that is the script itself."""


class Step:
    """A step that has ended.

    `job` is vrm's id of the job; `step` is 0, 1, ..., or `batch`; `name` is the name of the program. `start` and
    `end` are in seconds since the epoch. `state` is completed, failed, cancelled or timeout. `exit_code` is the
    status that a shell would show (128 plus the number of a signal); None if not known. `tasks` and `cores` are
    totals over all `nodes`, a list of names with blanks between them. `user` and `system` are the CPU seconds of its
    processes on all nodes, `maxrss` the bytes of the largest process (see `vrm.ext.steps.resource_use`); the values of
    the script include those of its steps. `began` is the time when its job was started; it distinguishes the attempts
    of a requeued job. It is None if an older version of vrm wrote the line."""

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
    """Append a step's line. Raises OSError if it cannot be written, or if the file belongs to another user."""
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
    """Return the steps of each job in the order of their ends, only those of its last attempt, followed by the line
    `batch`. Lines say when their attempt began; in lines of older versions, which do not, a `batch` line ends an
    attempt. If a step was recorded twice, because its srun was killed in between, the first line counts. Lines
    damaged by a crash are skipped; a missing file means no steps."""
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
            except ValueError:  # the header, or a damaged line
                continue
            last = tries.setdefault(found.job, _Try())
            if last.belongs_to_later_attempt(found):
                last = tries[found.job] = _Try()
            last.take(found)
    return {job: last.all for job, last in tries.items()}


class _Try:
    """The steps of one attempt of a job."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.steps: dict[tuple[str, float], Step] = {}
        self.batch: Step | None = None

    def belongs_to_later_attempt(self, step: Step) -> bool:
        """Return whether the step belongs to a later attempt."""
        began = _began(step)
        if self.began is not None and began is not None:
            return began > self.began
        if self.batch is None or (step.step, step.start) in self.steps:
            return False
        return step.step != BATCH or step.start != self.batch.start

    def take(self, step: Step) -> None:
        """Add a step, unless it belongs to an earlier attempt."""
        began = _began(step)
        if self.began is not None and began is not None and began < self.began:
            return
        self.began = began if self.began is None else self.began
        if step.step == BATCH:  # written twice if a manager was killed in between
            self.batch = step
        else:
            self.steps.setdefault((step.step, step.start), step)

    @property
    def all(self) -> list[Step]:
        """Its steps, followed by the script."""
        return [*self.steps.values(), *([self.batch] if self.batch is not None else ())]


def _began(step: Step) -> float | None:
    """Return when the step's job was started. A script starts with its job."""
    return step.start if step.step == BATCH and step.began is None else step.began
