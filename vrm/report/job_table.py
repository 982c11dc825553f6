"""`jobs.csv` as columns of numbers, for reports of many thousand jobs.

The file is read in one go. Where anything in it is odd, `vrm.results.jobs.read_jobs` reads it line
by line instead, and names the line that is wrong.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

from vrm.model.job import JobState, application_kind
from vrm.report.density import Places
from vrm.results.jobs import (_PARSERS, JobRow, PathLike, _converters, _id, _plain, _ranks, _split, read_jobs,
                              seconds_of)
from vrm.results.metrics import ran
from vrm.results.summary import Columns

MOST = 10 ** 15
"""Numbers, seconds and cores are below this."""

_ranges = re.compile(r"/(\d+)(?:-(\d+))?").findall
_FIELDS = fields(JobRow)
_TIMES = ("submit", "start", "end", "walltime", "app_time")
_TEXTS = tuple(name for name, parse in _PARSERS.items() if parse is _plain)


@dataclass(frozen=True)
class JobTable:
    """The jobs of a list; `columns` are those of `JobRow`, a list of values each.

    What is computed is kept. `Columns` and the arrays of `chosen` are of the jobs that ran, in
    the order of the list.
    """

    columns: Dict[str, Sequence[Any]]

    @classmethod
    def read(cls, path: PathLike) -> "JobTable":
        """The jobs of a file; raises as `read_jobs`."""
        try:
            return cls(_quickly(path))
        except (ValueError, IndexError):
            return cls.of(list(read_jobs(path)))

    @classmethod
    def of(cls, rows: Sequence[JobRow]) -> "JobTable":
        """The table of some rows."""
        return cls({column.name: [getattr(row, column.name) for row in rows]
                    for column in _FIELDS})

    def __len__(self) -> int:
        return len(self.columns["id"])

    @cached_property
    def rows(self) -> Tuple[JobRow, ...]:
        """The jobs one by one."""
        return tuple(map(JobRow, *(self.columns[column.name] for column in _FIELDS)))

    @cached_property
    def jobs(self) -> List[JobRow]:
        """The jobs that ran, in the order of their starts."""
        return sorted(ran(self.rows), key=lambda row: (row.start, row.id))

    @cached_property
    def chosen(self) -> Any:
        """Which jobs ran, as an array."""
        import numpy as np
        return ~(np.isnan(self._times("start")) | np.isnan(self._times("end")))

    @cached_property
    def ran(self) -> Columns:
        """The jobs that ran, for metrics."""
        import numpy as np
        ran = self.chosen
        completed = JobState.COMPLETED.value
        submit, start, end, lent, borrowed = (self._times(name)[ran] for name
                                              in ("submit", "start", "end", "lent", "borrowed"))
        grown = np.where(borrowed > 0, borrowed - self._cores[ran] * (end - start), 0.0)
        return Columns(submit, start, end, self._cores[ran],
                       np.array([status == completed for status in self.columns["status"]],
                                bool)[ran], np.zeros(int(ran.sum()), np.int64),
                       lent=lent - grown)

    @cached_property
    def app_time(self) -> Any:
        """The application's own measurement (s) of each job that ran, else its running time."""
        import numpy as np
        measured = self._times("app_time")[self.chosen]
        return np.where(np.isnan(measured), self.ran.end - self.ran.start, measured)

    @cached_property
    def work(self) -> Tuple[Any, ...]:
        """Equal for two lists of the same jobs."""
        import numpy as np
        ids, procs = (np.array(self.columns[name], np.int64) for name in ("id", "procs"))
        order, apps = np.lexsort((procs, ids)), self.columns["app"]
        return ids[order].tobytes(), procs[order].tobytes(), [apps[at] for at in order.tolist()]

    @cached_property
    def kinds(self) -> frozenset:
        """The applications, without their classes, that ran."""
        from itertools import compress
        return frozenset(map(application_kind, set(compress(self.columns["app"],
                                                            self.chosen.tolist()))))

    def _times(self, name: str) -> Any:
        """A column of times (s); not a number where there is none."""
        import numpy as np
        return np.array(self.columns[name], float)

    def nameless(self, name: "re.Pattern[str]") -> bool:
        """Whether no job has an exit code, nor a program that is called otherwise."""
        codes, programs = self._codes_and_programs
        return codes == {None} and all(map(name.fullmatch, programs))

    @cached_property
    def _codes_and_programs(self) -> Tuple[Set[Any], Set[str]]:
        return set(self.columns["exit_code"]), set(self.columns["app"])

    @cached_property
    def _all_places(self) -> Places:
        return Places.read(self.columns["cores"])

    @cached_property
    def places(self) -> Places:
        """The nodes and cores of the jobs that ran."""
        import numpy as np
        if self.chosen.all():
            return self._all_places
        found = self._all_places.of(self.chosen)
        return Places(found.names, found.part, (np.cumsum(self.chosen) - 1)[found.job])

    @cached_property
    def _cores(self) -> Any:
        """What `JobRow.processors` is of each job."""
        import numpy as np
        places = self._all_places
        sizes = np.array([min(_size(text), MOST) for text in places.names], float)
        held = np.bincount(places.job, sizes[places.part], len(self)).astype(np.int64) \
            if places.names else 0
        bare = np.array([not text for text in self.columns["cores"]], bool)
        return np.where(bare, np.array(self.columns["procs"], np.int64), held)


def _size(part: str) -> int:
    """The cores in a part of the column `cores`."""
    if "-" not in part:
        return part.count("/")
    return sum(int(last or first) - int(first) + 1 for first, last in _ranges(part))


# ------------------------------------------------------------------------------------- reading


def _quickly(path: PathLike) -> Dict[str, Sequence[Any]]:
    """The columns of a file; ValueError or IndexError where `read_jobs` is to look."""
    with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        header = file.readline()
        text = file.read()
    text = text[:text.rfind("\n") + 1]  # a last line without its end is being written
    if not header.endswith("\n") or not text:
        return {column.name: [] for column in _FIELDS} if not header.endswith("\n") else \
            {name: [] for name, _, _ in _converters(os.fspath(path), _split(header))}
    convert = _converters(os.fspath(path), _split(header))
    escaped = "\\" in text
    found, commas = _fields(text)
    columns: Dict[str, Sequence[Any]] = {}
    for column, (name, index, parse) in zip(_FIELDS, convert):
        if parse is not _PARSERS[name]:  # the file has no such column
            columns[name] = [column.default] * len(found[0])
            continue
        texts = found[index]
        if commas and name in _TEXTS and "\0" in "".join(texts):
            texts = [each.replace("\0", ",") for each in texts]
        columns[name] = _parsed(name, texts, escaped)
    return columns


def _fields(text: str) -> Tuple[List[Sequence[str]], bool]:
    """The fields of whole lines by column, and whether commas in them are written as NUL."""
    import numpy as np
    plain = _freed(text) if '"' in text else text
    if plain and "\r" not in text:
        codes = np.frombuffer(plain.encode(), np.uint8)
        ends = codes[(codes == ord(",")) | (codes == ord("\n"))] == ord("\n")
        width = int(ends.argmax()) + 1
        if len(ends) % width == 0:
            by_line = ends.reshape(-1, width)
            if by_line[:, -1].all() and not by_line[:, :-1].any():
                cells = plain[:-1].replace("\n", ",").split(",")
                return [cells[index::width] for index in range(width)], plain is not text
    return list(zip(*map(_split, text[:-1].split("\n")))), False


def _freed(text: str) -> str:
    """The text without quotes, with NUL for each comma between them; empty where it is not that
    simple."""
    parts = text.split('"')
    outside, inside = parts[::2], parts[1::2]
    if len(outside) == len(inside) or not all(outside) or "\0" in text \
            or any("\n" in part for part in inside) \
            or not {part[0] for part in outside[1:]} | {part[-1] for part in outside[:-1]} \
            <= {",", "\n"}:
        return ""
    parts[1::2] = [part.replace(",", "\0") for part in inside]
    return "".join(parts)


def _parsed(name: str, texts: Sequence[str], escaped: bool) -> Sequence[Any]:
    """The values of a column; ValueError as its parser."""
    parse = _PARSERS[name]
    if parse is _plain:
        return list(map(_plain, texts)) if escaped else texts
    if name in _TIMES:
        return _seconds(texts, parse)
    if parse in (_id, _ranks):
        whole = list(map(int, texts))
        if not (0 if parse is _id else 1) <= min(whole) <= max(whole) <= MOST:
            raise ValueError(name)
        return whole
    known = {text: parse(text) for text in set(texts)}
    return list(map(known.__getitem__, texts))


def _seconds(texts: Sequence[str], parse: Callable[[str], Any]) -> Sequence[Any]:
    if "" in texts and parse is not seconds_of:
        known = {text: parse(text) for text in set(texts)}
        return list(map(known.__getitem__, texts))
    import numpy as np
    values = np.array(list(map(float, texts)))
    if not (np.abs(values) < MOST).all():
        raise ValueError("no number of seconds")
    return values.tolist()
