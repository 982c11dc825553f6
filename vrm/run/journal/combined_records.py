"""Many journal records as one: jobs that were submitted one after the other (`jobs`), and complete lives of jobs
(`lives`).

A manager rewrites a long journal (`vrm.run.journal.compaction`): values that many jobs share are
stored once, and the others in lists with one item for each job. `unfolded` returns the original records again, except
the times of `ran`, which are not used.

| `jobs` | |
|---|---|
| `ids` | the jobs, as ranges, ascending |
| `made`, `of` | contents of `job` records, without the following values; which of these each job has |
| `submits`, `lines`, `commands` | lists of these values; the last two only if the records had them |
| `position` | that of the last record, if they had one |
| `time` | the latest submission |

| `lives` | |
|---|---|
| `ids` | the jobs, in the order of their ends |
| `start`, `end` | the times; null for a job that never started |
| `places`, `on` | placements, and which of these each job had |
| `backfilled` | positions in these lists of the backfilled jobs |
| `ways`, `how` | contents of `end` records, without id and time; which of these each job has |
| `time` | the latest end |
"""

from __future__ import annotations

import marshal
from typing import Any
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.model.forms import json_checks
from vrm.model.forms.json_checks import Check
from vrm.model.quantities import fold, numbers

Record = dict[str, Any]

JOBS, LIVES = "jobs", "lives"

LISTS = {"submit": "submits", "line": "lines", "command": "commands"}
"""Values of a job's record that have a list each, and the names of these lists."""

_APART = frozenset(("event", "id", "position", *LISTS))

WANTED: dict[str, dict[str, Check]] = {
    JOBS: {"ids": json_checks.text, "made": json_checks.list_of(json_checks.mapping),
           "of": json_checks.list_of(json_checks.count),
           "submits": json_checks.list_of(json_checks.number), "time": json_checks.number},
    LIVES: {"ids": json_checks.list_of(json_checks.count),
            "start": json_checks.list_of(json_checks.maybe(json_checks.number)),
            "end": json_checks.list_of(json_checks.number), "places": json_checks.list_of(json_checks.mapping),
            "on": json_checks.list_of(json_checks.maybe(json_checks.count)),
            "backfilled": json_checks.list_of(json_checks.count),
            "ways": json_checks.list_of(json_checks.mapping), "how": json_checks.list_of(json_checks.count),
            "time": json_checks.number},
}
"""Required values of both records, and their checks."""


class UniqueValues:
    """Distinct values in the order in which they were added."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._at: dict[bytes, int] = {}

    def add(self, value: Any) -> int:
        """Return the position of a value; add it if it is new."""
        key = marshal.dumps(value, 2)
        at = self._at.get(key)
        if at is None:
            at = self._at[key] = len(self.values)
            self.values.append(value)
        return at


def jobs_record(records: Sequence[Record]) -> Record:
    """Return `job` records as one; they must have the same keys and ascending ids, and none may be an array."""
    made, first = UniqueValues(), records[0]
    of = [made.add({key: value for key, value in each.items() if key not in _APART}) for each in records]
    found: Record = {"ids": fold([each["id"] for each in records]), "made": made.values, "of": of,
                     "time": max(each["submit"] for each in records)}
    found.update((name, [each[key] for each in records]) for key, name in LISTS.items() if key in first)
    if "position" in first:
        found["position"] = records[-1]["position"]
    return found


Life = tuple[int, Any, Any]  # of vrm.run.journal.record_checks, which imports this file: StartRecord, EndRecord
"""A job id, the record of its start (None if it never started), and the record of its end."""


def lives_record(lives: Sequence[Life]) -> Record:
    """Return lives of jobs as one record."""
    places, ways = UniqueValues(), UniqueValues()
    return {"ids": [job_id for job_id, _, _ in lives],
            "start": [None if start is None else start.time for _, start, _ in lives],
            "end": [end.time for _, _, end in lives],
            "on": [None if start is None else places.add(start.placement) for _, start, _ in lives],
            "places": places.values, "backfilled": [at for at, (_, start, _) in enumerate(lives)
                                                    if start is not None and start.backfilled],
            "how": [ways.add(end.way) for _, _, end in lives],
            "ways": ways.values, "time": max(end.time for _, _, end in lives)}


def ids_of(record: Record) -> Sequence[int]:
    """Return the job ids of a folded record."""
    return numbers(record["ids"]) if record["event"] == JOBS else record["ids"]


def jobs_in(record: Record) -> int:
    """Return how many jobs a record submits."""
    if record["event"] == JOBS:
        return len(ids_of(record))
    return array_size(record) if record["event"] == "job" else 0


def array_size(record: Record) -> int:
    """Return the number of jobs in a `job` record, which may be an array."""
    return len(numbers(record["array"])) if "array" in record else 1


def fault(record: Record, next_id: int, unsound: Callable[[Record], str], waits: Callable[[int], bool]) -> str:
    """Return why a folded record, whose values are valid by themselves, is not possible; "" if it is. `next_id`: the
    id of the next job; `unsound(record)` returns what is wrong with a `job` record; `waits(id)`: the job was
    submitted and has not started."""
    wrong = _lists_fault(record)
    if wrong:
        return f"{record['event']}: {wrong}"
    ids = ids_of(record)
    if record["event"] == JOBS:
        if ids[0] < next_id:
            return f"job {ids[0]} exists already"
        made = ({"event": "job", "id": 0, "submit": 0.0, **each} for each in record["made"])
        return next(filter(None, map(unsound, made)), "")
    odd = [job_id for job_id in ids if not waits(job_id)]
    return f"lives of job {odd[0]}, which never came, or started or ended before" if odd else ""


def _lists_fault(record: Record) -> str:
    """Return why the lists of a folded record do not match; "" if they do."""
    try:
        ids = ids_of(record)
    except ValueError:
        return "ids is wrong"
    if not ids or len(set(ids)) < len(ids) or (record["event"] == JOBS and list(ids) != sorted(ids)):
        return "ids is wrong"
    of_jobs = record["event"] == JOBS
    for name in ("of", *LISTS.values()) if of_jobs else ("start", "end", "on", "how"):
        if name in record and (type(record[name]) is not list or len(record[name]) != len(ids)):
            return f"{name} is not of {len(ids)} jobs"
    for table, name in (("made", "of"),) if of_jobs else (("places", "on"), ("ways", "how")):
        if any(at is not None and at >= len(record[table]) for at in record[name]):
            return f"{name} is wrong"
    if not of_jobs and [at is None for at in record["on"]] != [at is None for at in record["start"]]:
        return "on is wrong"
    return ""


def lives_of(record: Record) -> Iterator[tuple[int, Record | None, Record]]:
    """Yield the jobs of a `lives` record, each with the records of its start and end."""
    backfilled = {record["ids"][at] for at in record["backfilled"] if at < len(record["ids"])}
    for job_id, began, ended, on, how in zip(*(record[name] for name in ("ids", "start", "end", "on", "how"))):
        start = None if began is None else {"event": "start", "id": job_id, "time": began,
                                            "backfilled": job_id in backfilled, "placement": record["places"][on]}
        yield job_id, start, {"event": "end", "id": job_id, "time": ended, **record["ways"][how]}


def unfolded(records: Iterable[Record], of: int | None = None) -> Iterator[Record]:
    """Yield the records, with folded ones replaced by the records of single jobs. `of`: from folded records only
    those of this job."""
    for record in records:
        if record["event"] == JOBS:
            yield from _jobs(record, of)
        elif record["event"] == LIVES:
            if of is None or of in record["ids"]:
                for job_id, start, end in lives_of(record):
                    if of in (None, job_id):
                        yield from filter(None, (start, end))
        else:
            yield record


def _jobs(record: Record, of: int | None) -> Iterator[Record]:
    lists = [(key, record[name]) for key, name in LISTS.items() if name in record]
    for at, job_id in enumerate(ids_of(record)):
        if of in (None, job_id):
            yield {"event": "job", "id": job_id, **record["made"][record["of"][at]],
                   **{key: values[at] for key, values in lists},
                   **({"position": record["position"]} if "position" in record else {})}


def commands_of(record: Record) -> list[str]:
    """Return the commands that were carried out according to a record."""
    if record["event"] == JOBS:
        return list(record.get("commands", ()))
    return [record["command"]] if record.get("command") else []


def jobs_with_details(record: Record) -> Iterable[int]:
    """Return the jobs about which a record has more than plain submissions, starts and ends."""
    plain = record["event"] == "job" or (record["event"] in ("start", "end") and not record.get("command")
                                         and "as" not in record)
    if plain or "id" not in record:
        return ()
    first = record["id"]
    others = () if record.get("to") is None else (record["to"],)
    return (*range(first, first + array_size(record)), *others)
