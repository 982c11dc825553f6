"""Workloads as CSV with a header line, for data without a format of its own: each row is a job, and the names of
columns define their meaning (`COLUMNS`). Case, blanks and hyphens in names do not matter."""

from __future__ import annotations

import csv
import gzip
import io
import re
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast
from collections.abc import Iterator, Sequence

from vrm.model.amounts import GPU, MEMORY, people, said
from vrm.model.quantities import seconds_of
from vrm.workload.rows import RowRequest, Rows, clock, gibibytes, moment, program
from vrm.workload.submission import Submission

COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("id", "job", "job_id", "jobid", "job_number"),
    "submit": ("submit", "submitted", "submit_time", "submission_time", "arrival", "arrival_time"),
    "start": ("start", "start_time", "starting_time", "begin"),
    "end": ("end", "end_time", "finish_time", "finish"),
    "run": ("run", "runtime", "run_time", "duration", "elapsed", "execution_time"),
    "limit": ("estimate", "walltime", "limit", "timelimit", "time_limit", "requested_time"),
    "nodes": ("requested_nodes", "nodes", "num_nodes", "node_count"),
    "cores": ("requested_cores", "cores", "cpus", "ncpus", "requested_cpus"),
    "tasks": ("tasks", "procs", "ranks", "ntasks"),
    "cores_per_task": ("cores_per_task", "cpus_per_task"),
    "tasks_per_node": ("tasks_per_node", "ranks_per_node"),
    "features": ("features", "constraints"),
    "licences": ("licences", "licenses"),
    "exclusive": ("exclusive",),
    "user": ("user", "username", "uid"),
    "app": ("app", "program", "executable", "name", "job_name", "jobname"),
    "queue": ("queue", "partition", "class"),
}
"""The values that are read, and the names of columns that may have them: the first name that exists is used. Amounts
have names of their own (see `amount_of`)."""

_AMOUNT = re.compile(r"(?P<name>[a-z][a-z0-9_]*?)(?:s)?(?P<where>_per_node|_per_task)?"
                     r"(?:_(?P<unit>[kmgt]i?b|bytes))?")
_MEMORIES = ("mem", "memory")


def normal(name: str) -> str:
    """Return a column name in the form of `COLUMNS`."""
    return re.sub(r"[\s-]+", "_", name.strip().strip('"').lower())


def amount_of(column: str, resources: frozenset[str]) -> tuple[str, str, str] | None:
    """Parse a column name such as `mem_mib`, `gpus_per_task` or `ssd_per_node`: returns the resource, where it counts
    (`per_task`, `per_node`, or "": all nodes) and the unit of its numbers; None if it is not an amount. Besides memory
    and GPUs, only the `resources` of the machine are recognised."""
    found = _AMOUNT.fullmatch(column)
    if found is None:
        return None
    where = (found["where"] or "")[1:]
    if found["name"] in _MEMORIES:
        unit = found["unit"] or ""
        return MEMORY, where, "b" if unit == "bytes" else unit[:1]
    if found["unit"]:
        return None
    name = found["name"]
    if name == GPU or name in resources:
        return name, where, ""
    plain = column[:len(column) - len(found["where"] or "")]
    return (plain, where, "") if plain in resources else None


WRITTEN = ("id", "submit", "run", "limit", "tasks", "cores_per_task", "nodes", "tasks_per_node", "features",
           "licences", "exclusive", "user", "app", "queue")
"""The columns that `write` writes, besides amounts."""


def write(path: str | Path, submissions: Sequence[Submission], unix_start: int = 0,
          remark: str = "") -> None:
    """Write a workload as a table, which `TableWorkload` reads; a path that ends in `.gz` is compressed. Times are
    seconds since the epoch if `unix_start` gives the time 0. For a range of nodes, only the minimum is written."""
    kinds = {one.job.request for one in submissions}
    amounts = sorted({(name, where) for each in kinds for where in ("per_task", "per_node")
                      for name, _ in getattr(each, where)})
    columns = [f"{'mem' if name == MEMORY else name}_{where}" for name, where in amounts]
    path = Path(path)
    with ExitStack() as stack:
        raw: IO[bytes] = stack.enter_context(open(path, "wb"))
        if path.suffix == ".gz":  # without name and time, so that equal tables give equal files
            raw = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0)))
        out = stack.enter_context(io.TextIOWrapper(raw, "utf-8", newline="\n"))
        if remark:
            out.write(f"# {remark}\n")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*WRITTEN, *columns])
        for job, run, *_ in submissions:
            request = job.request
            held = [dict(getattr(request, where)).get(name, 0) for name, where in amounts]
            writer.writerow([
                job.id, f"{job.submit + unix_start:.12g}", f"{run:.12g}", f"{job.walltime:.12g}",
                request.tasks, request.cores_per_task,
                request.nodes[0] if request.nodes != (1, 0) else "", request.tasks_per_node or "",
                ",".join(sorted(request.features)),
                ",".join(f"{name}:{people(name, amount):g}" for name, amount in request.licences),
                int(request.exclusive), job.user, job.app, job.queue,
                *(said(name, amount) if amount else "" for (name, _), amount in zip(amounts, held))])


class TableWorkload(Rows):
    """Reads the jobs of a table."""

    @staticmethod
    def tells(first: str) -> bool:
        """Return whether a line is the header of a table of jobs."""
        found = {normal(name) for name in re.split("[,;\t]", first)}

        def has(what: str) -> bool:
            return bool(found & set(COLUMNS[what]))

        return has("submit") and (has("run") or (has("start") and has("end")))

    def asked(self) -> Iterator[RowRequest]:
        """Yield the jobs of the rows."""
        lines = ((number, line) for number, line in self.lines()
                 if line.strip() and not line.startswith("#"))
        number, header = next(lines, (1, ""))
        delimiter = max(",;\t", key=header.count)
        names = [normal(name) for name in next(csv.reader([header], delimiter=delimiter))]
        place = {what: names.index(name) for what, known in COLUMNS.items()
                 for name in reversed(known) if name in names}
        amounts = self._amounts(names, set(place.values()))
        count = 0
        for number, line in lines:
            cells = next(csv.reader([line], delimiter=delimiter))
            if len(cells) != len(names):
                self.dirt["dropped: cut off, or with other columns than the header"] += 1
                continue
            row = {what: cells[index].strip() for what, index in place.items()}
            count += 1
            try:
                one = self._job(row, count, cells, amounts)
            except ValueError as error:
                raise self.wrong(str(error), number) from error
            if one is not None:
                yield one

    def _amounts(self, names: list[str], taken: set[int]) -> list[tuple[int, str, str, str]]:
        """Return the columns with amounts: index, resource, where (`per_task`, `per_node` or ""), and unit."""
        found = []
        for index, name in enumerate(names):
            known = None if index in taken else amount_of(name, self.rules.resources)
            if known is not None:
                found.append((index, *known))
        return found

    def _job(self, row: dict[str, str], count: int, cells: list[str],
             amounts: list[tuple[int, str, str, str]]) -> RowRequest | None:
        submit = _time(row, "submit")
        begin, end = _time(row, "start"), _time(row, "end")
        if submit is None:
            self.dirt["dropped: no submission time"] += 1
            return None
        run = _length(row, "run")
        if not run:
            if begin is None or end is None:
                self.dirt["dropped: never ran"] += 1
                return None
            run = end - begin
        held: dict[str, dict[str, float]] = {"": {}, "per_node": {}, "per_task": {}}
        for index, name, where, unit in amounts:
            if cells[index].strip():
                held[where][name] = held[where].get(name, 0.0) + _amount(name, cells[index], unit)
        tasks, width = _count(row, "tasks"), _count(row, "cores_per_task")
        cores = _count(row, "cores") or tasks * (width or 1)
        if width and not tasks:
            tasks = cores // width
        return RowRequest(_count(row, "id") if "id" in row else count, submit, run,
                          _length(row, "limit"), _count(row, "nodes"), cores, tasks,
                          _count(row, "tasks_per_node"), held[""], held["per_node"], held["per_task"],
                          _licences(row.get("licences", "")),
                          frozenset(re.findall(r"[^\s,&;]+", row.get("features", ""))),
                          row.get("exclusive", "0").lower() in ("1", "true", "yes"), row.get("user", ""),
                          program(row["app"]) if "app" in row else "", row.get("queue", ""), begin)


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError:
        found = clock(text)
        if not found and text.lower() not in ("unlimited", "none", "-1", "00:00"):
            raise
        return found


def _length(row: dict[str, str], what: str) -> float:
    text = row.get(what, "")
    if not text:
        return 0.0
    try:
        return _seconds(text)
    except ValueError:
        raise ValueError(f"{what}: `{text[:40]}` is not a time; write seconds, 90m or 1:30:00") from None


def _time(row: dict[str, str], what: str) -> float | None:
    text = row.get(what, "")
    try:
        return moment(text)
    except ValueError:
        raise ValueError(f"{what}: `{text[:40]}` is not a time; write seconds, or a date as "
                         "2024-03-31T02:30:00") from None


def _count(row: dict[str, str], what: str) -> int:
    text = row.get(what, "")
    try:
        value = float(text or 0)
        if value % 1 or (value < 0 and value != -1):
            raise ValueError(text)
    except ValueError:
        raise ValueError(f"{what}: `{text[:40]}` is not a whole number, 0 or more") from None
    return max(0, int(value))


def _amount(name: str, text: str, unit: str) -> float:
    try:
        if name == MEMORY:
            if not unit and re.fullmatch(r"[0-9.]+", text.strip()) and float(text):
                raise ValueError(text)
            return gibibytes(text, unit.replace("b", ""))
        value = float(text)
        if not 0 <= value < float("inf"):
            raise ValueError(text)
        return value
    except ValueError:
        wanted = ("write a unit, 4G, or name the column mem_mib" if name == MEMORY else
                  "write a number, 0 or more")
        raise ValueError(f"{name}: `{text[:40]}` is not an amount; {wanted}") from None


def _licences(text: str) -> dict[str, float]:
    """Parse `ansys:1,abaqus:2` into numbers by name."""
    found: dict[str, float] = {}
    for part in filter(None, re.split(r"[,;\s]+", text)):
        name, _, amount = part.partition(":")
        if not re.fullmatch(r"\d+", amount or "1"):
            raise ValueError(f"licences: `{part[:40]}`; write NAME:NUMBER")
        found[name] = found.get(name, 0.0) + float(amount or 1)
    return found
