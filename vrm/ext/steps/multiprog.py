"""`srun --multi-prog`: a file defines which program each task runs.

A line has tasks, a program and arguments: `0 ./master`, `1-3,7 ./worker %t %o`, `* ./others`. `%t` is the number of
the task, `%o` its position among the tasks of the line."""

from __future__ import annotations

import re
import shlex

from vrm.ext.steps.options import UsageError


def words(path: str, text: str, tasks: int) -> list[str]:
    """Return the command of all tasks: a shell that continues as the program of its task. Raises UsageError for an
    invalid file."""
    programs: dict[int, tuple[int, list[str]]] = {}  # by task: its position in the line, and the words of the line
    rest: list[str] = []
    for number, line in enumerate(text.replace("\\\n", "  ").splitlines(), 1):
        try:
            said = shlex.split(line, comments=True)
            if len(said) == 1:
                raise ValueError("it names no program")
            if said[:1] == ["*"]:
                rest = rest or said[1:]
            elif said:
                _add(programs, said)
        except ValueError as error:
            raise UsageError(f"{path}: line {number}: {error}; a line is tasks, a program and its arguments: "
                             "1-3 ./worker %t") from None
    missing = [task for task in range(tasks) if task not in programs]
    if missing and not rest:
        raise UsageError(f"Configuration file {path} invalid, no record for task id {missing[0]}")
    programs.update((task, (place, rest)) for place, task in enumerate(missing))
    return ["/bin/sh", "-c", "\n".join(_lines(programs, tasks)), "srun"]


def several(parts: list[tuple[int, list[str], dict[str, str]]]) -> list[str]:
    """Return the command of all tasks of a heterogeneous step: a shell that continues as the program of its task's
    part. Each of `parts` has a number of tasks, the words of its program, and variables."""
    lines, first = [], 0
    for tasks, said, variables in parts:
        own = "".join(f" {name}={shlex.quote(value)}" for name, value in variables.items())
        lines.append(f'[ "$SLURM_PROCID" -lt {first} ] || [ "$SLURM_PROCID" -ge {first + tasks} ] || '
                     f"{{ export{own}; exec {shlex.join(said)}; }}")
        first += tasks
    return ["/bin/sh", "-c", "\n".join(lines), "srun"]


def _add(programs: dict[int, tuple[int, list[str]]], said: list[str]) -> None:
    """Add the tasks of one line."""
    for place, task in enumerate(_tasks(said[0])):
        if task in programs:
            raise ValueError(f"task {task} has a program already")
        programs[task] = place, said[1:]


def _tasks(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) - int(first) > 1 << 20:
            raise ValueError(f"`{text}` is not a list of tasks")
        found += range(int(first), int(last or first) + 1)
    return found


def _lines(programs: dict[int, tuple[int, list[str]]], tasks: int) -> list[str]:
    """Return a shell line for each run of consecutive tasks that have the same program."""
    lines, task = [], 0
    while task < tasks:
        (place, said), last = programs[task], task
        while last + 1 < tasks and programs[last + 1] == (place + last + 1 - task, said):
            last += 1
        lines.append(f'[ "$SLURM_PROCID" -lt {task} ] || [ "$SLURM_PROCID" -gt {last} ] || exec '
                     + " ".join(_filled(word, task - place) for word in said))
        task = last + 1
    return lines


def _filled(word: str, less: int) -> str:
    """Quote a word for the shell and replace `%t` and `%o`; `%o` is the task's number minus `less`."""
    parts = re.split("(%[to])", word)
    values = {"%t": '"$SLURM_PROCID"', "%o": f'"$((SLURM_PROCID - {less}))"'}
    return "".join(values.get(part) or shlex.quote(part) for part in parts if part) or "''"
