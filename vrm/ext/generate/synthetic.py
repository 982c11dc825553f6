"""The workload format `lublin:PROCESSORS:JOBS[:SEED]` (`vrm.workloads`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vrm.ext.generate.lublin import Lublin
from vrm.simulation.inputs import WorkloadError
from vrm.workload.submission import Submission
from vrm.workload.swf import Selection


class LublinWorkload:
    """Jobs drawn by the model of Lublin and Feitelson: `lublin:PROCESSORS:JOBS`, optionally with `:SEED` (default 0).
    The same text is the same workload in every run.

    Submission times are divided by `load` of the rules. Raises WorkloadError for another form.
    """

    header: dict[str, str] = {}
    unix_start: int | None = None

    def __init__(self, text: str, rules: Selection = Selection()) -> None:
        found = re.fullmatch(r"lublin:([0-9]+):([1-9][0-9]*)(?::([0-9]+))?", text)
        if not found:
            raise WorkloadError(f"`{text}` is not of the form lublin:PROCESSORS:JOBS[:SEED], as "
                                "lublin:256:5000")
        processors, jobs, seed = (int(number or 0) for number in found.groups())
        try:
            self._model = Lublin(processors)
        except ValueError as error:
            raise WorkloadError(f"`{text}`: {error}") from error
        self._jobs, self._seed = jobs, seed
        self.processors: int | None = processors
        self.rules = rules
        self.taken = self._drawn = 0
        self.dirt: dict[str, int] = {}

    @property
    def read(self) -> float:
        """The share of the jobs that have been drawn (0 to 1)."""
        return self._drawn / self._jobs

    def __iter__(self) -> Iterator[Submission]:
        self.taken = self._drawn = 0
        for one in self._model.jobs(self._jobs, self._seed):
            self._drawn += 1
            if not self.rules.wants(one.job.id, one.job.submit):
                continue
            if self.rules.jobs is not None and self.taken >= self.rules.jobs:
                return
            self.taken += 1
            if self.rules.load != 1:
                one = one._replace(job=one.job.but(submit=one.job.submit / self.rules.load))
            yield one
