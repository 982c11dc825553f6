"""`jobs.csv` as columns of numbers, for reports on many thousands of jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, compress
from typing import Any
from collections.abc import Sequence

from vrm.model.forms.fields import TABLE
from vrm.model.job import Component, JobState, application_kind
from vrm.ext.study.report.node_density import Places
from vrm.results.energy import PowerSpan, power_of_rows
from vrm.results.job_columns import COLUMNS, MOST, NAMES, PathLike, read_values
from vrm.results.jobs import JobRow, cores_in
from vrm.results.metrics import ran
from vrm.results.summary import JobArrays


@lru_cache(maxsize=1024)
def programs_of(coupled: str) -> tuple[Component, ...]:
    """Return the programs of a coupled job, parsed from its column `coupled`."""
    found: tuple[Component, ...] = next(field for field in TABLE if field.word == "coupled").kind.read(coupled)
    return found


@dataclass(frozen=True)
class JobTable:
    """The jobs of a jobs.csv; `columns` are the fields of `JobRow`, a list of values each.

    Computed values are cached. `JobArrays` and the arrays of `chosen` contain the jobs that ran, in the order of
    the file.
    """

    columns: dict[str, Sequence[Any]]

    @classmethod
    def read(cls, path: PathLike) -> JobTable:
        """Read the jobs of a file; raises the same errors as `read_jobs`."""
        columns: dict[str, list[Any]] = {name: [] for name in NAMES}
        for values in read_values(path):
            count = len(values["id"])
            for column in COLUMNS:
                columns[column.name] += values.get(column.name) or [column.default] * count
        return cls({**columns})

    @classmethod
    def of(cls, rows: Sequence[JobRow]) -> JobTable:
        """Make a table of some rows."""
        return cls({name: [getattr(row, name) for row in rows] for name in NAMES})

    def __len__(self) -> int:
        return len(self.columns["id"])

    @cached_property
    def rows(self) -> tuple[JobRow, ...]:
        """The jobs as `JobRow`s."""
        return tuple(map(JobRow, *(self.columns[name] for name in NAMES)))

    @cached_property
    def jobs(self) -> list[JobRow]:
        """The jobs that ran, in the order of their starts."""
        return sorted(ran(self.rows), key=lambda row: (row.start, row.id))

    @cached_property
    def chosen(self) -> Any:
        """Whether each job ran, as a boolean array."""
        import numpy as np
        return ~(np.isnan(self._times("start")) | np.isnan(self._times("end")))

    @cached_property
    def ran(self) -> JobArrays:
        """The jobs that ran, as arrays for the metrics."""
        import numpy as np
        ran = self.chosen
        completed = JobState.COMPLETED.value
        submit, start, end, lent, borrowed = (self._times(name)[ran] for name
                                              in ("submit", "start", "end", "lent", "borrowed"))
        grown = np.where(borrowed > 0, borrowed - self._cores[ran] * (end - start), 0.0)
        return JobArrays(submit, start, end, self._cores[ran],
                       np.array([status == completed for status in self.columns["status"]],
                                bool)[ran], np.zeros(int(ran.sum()), np.int64),
                       lent=lent - grown)

    @cached_property
    def drawn(self) -> list[PowerSpan]:
        """The power and energy of the jobs; empty if no job's power is known."""
        known = any(self.columns["power"]) or any(self.columns["energy"])
        return power_of_rows(self.rows) if known else []

    @cached_property
    def app_time(self) -> Any:
        """The time (s) that the application measured, for each job that ran; else its running time."""
        import numpy as np
        measured = self._times("app_time")[self.chosen]
        return np.where(np.isnan(measured), self.ran.end - self.ran.start, measured)

    @cached_property
    def work(self) -> tuple[Any, ...]:
        """A value that is equal for two tables of the same jobs."""
        import numpy as np
        ids, procs = (np.array(self.columns[name], np.int64) for name in ("id", "procs"))
        order, apps = np.lexsort((procs, ids)), self.columns["app"]
        return ids[order].tobytes(), procs[order].tobytes(), [apps[at] for at in order.tolist()]

    @cached_property
    def kinds(self) -> frozenset[Any]:
        """The applications that ran, without their classes; for coupled jobs, their programs."""
        names = ([each.app for each in programs_of(coupled)] if coupled else [app]
                 for app, coupled in zip(self.columns["app"], self.columns["coupled"]))
        return frozenset(map(application_kind, set(chain.from_iterable(compress(names, self.chosen.tolist())))))

    def _times(self, name: str) -> Any:
        """Return a column of times (s) as an array; NaN for missing values."""
        import numpy as np
        return np.array(self.columns[name], float)

    def has_generated_names(self, name: re.Pattern[str]) -> bool:
        """Return whether no job has an exit code and all program names match `name`."""
        codes, programs = self._codes_and_programs
        return codes == {None} and all(map(name.fullmatch, programs))

    @cached_property
    def _codes_and_programs(self) -> tuple[set[Any], set[str]]:
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
        """The value of `JobRow.processors` for each job."""
        import numpy as np
        places = self._all_places
        sizes = np.array([min(cores_in(text), MOST) for text in places.names], float)
        held = np.bincount(places.job, sizes[places.part], len(self)).astype(np.int64) \
            if places.names else 0
        bare = np.array([not text for text in self.columns["cores"]], bool)
        return np.where(bare, np.array(self.columns["procs"], np.int64), held)
