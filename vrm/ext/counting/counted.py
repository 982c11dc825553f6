"""The record of a simulation that only counts free units: the jobs as columns, and which of them started when. The
ends, the queue and the utilisation over time, and the records of `vrm.simulation.results.Results` are computed from
these."""

from __future__ import annotations

from typing import Any

from vrm.model.cluster import Cluster
from vrm.model.job import Job, Request
from vrm.ext.counting.placing import Countable, Placer
from vrm.simulation.results import OVERTOOK, Results, uninterrupted
from vrm.workload.columns import Block

BATCH = 1000
"""Number of starts that are written at a time."""


class Counted:
    """Records a simulation that only counts free units.

    `log` has the numbers of the jobs in the order of their starts (~number for a refused job), and `times` the
    times of these events; `overtook` are the positions in `log` of backfilled jobs.
    """

    def __init__(self, results: Results) -> None:
        import numpy as np
        self.log: list[int] = []
        self.times: list[float] = []
        self.overtook: list[int] = []
        self._results = results
        self._jobs = 0
        self._written = False
        self._numbers = np.empty((4, 0), np.int64)  # id, processors, user, application
        self._seconds = np.empty((3, 0))  # submission, run time, estimate
        self._handed = self._overtook = self._named = 0  # how much of `log`, `overtook`, applications was handed over

    def place(self, policy: Countable, cluster: Cluster) -> bool:
        """Have the placements of the jobs computed if their lines are written; return whether they are."""
        self._written = self._results.placed_by(lambda lines: Placer(policy, cluster, lines))
        return self._written

    def add(self, block: Block) -> int:
        """Add jobs; return the number of the first one."""
        import numpy as np
        first, self._jobs = self._jobs, self._jobs + len(block)
        if self._jobs > self._numbers.shape[1]:  # at least double the capacity
            more = self._jobs
            self._numbers = np.concatenate([self._numbers, np.empty((4, more), np.int64)], 1)
            self._seconds = np.concatenate([self._seconds, np.empty((3, more))], 1)
        here = slice(first, self._jobs)
        self._numbers[:, here] = block.ids, block.procs, block.user, block.app
        self._seconds[:, here] = block.submit, block.run, block.estimate
        return first

    def columns(self, first: int, stop: int) -> list[list[Any]]:
        """Return ids, processors, submissions, run times and estimates of the jobs with numbers from `first` to
        before `stop`."""
        return [column[first:min(stop, self._jobs)].tolist() for column in (*self._numbers[:2], *self._seconds)]

    def job(self, number: int, request: Request | None) -> Job:
        """Return a job; `request` is its request if that is more than its processors."""
        job_id, procs, _, app = self._numbers[:, number].tolist()
        submit, _, estimate = self._seconds[:, number].tolist()
        return Job(job_id, list(self._results.apps)[app], procs, estimate, submit, request=request)

    def write_ended(self, ended: int) -> None:
        """Write the jobs that have ended; `ended` is their total number."""
        import numpy as np
        with uninterrupted():
            log = np.array(self.log[self._handed:], np.int64)
            how = np.where(log < 0, -1, 0)
            how[np.array(self.overtook[self._overtook:], np.int64) - self._handed] = OVERTOOK
            log ^= log >> 63  # ~number becomes number
            ids, procs, _, app = self._numbers[:, log]
            submit, run, estimate = self._seconds[:, log]
            start = np.array(self.times[self._handed:], float)
            apps = list(self._results.apps)
            self._results.hand_over_counted((
                ended, len(log), np.stack([ids, procs, app, how]).tobytes(),
                np.stack([submit, start, start + run, estimate]).tobytes(), apps[self._named:]))
            self._handed, self._overtook, self._named = len(self.log), len(self.overtook), len(apps)

    def finish(self, ended: int, moments: int) -> None:
        """Record everything: `ended` jobs have ended, at `moments` distinct times something happened."""
        import numpy as np
        known = min(len(self.log), len(self.times))  # an interrupt may have come between them
        del self.log[known:], self.times[known:]
        while self.overtook and self.overtook[-1] >= known:
            self.overtook.pop()
        if self._written:
            self.write_ended(ended)
        log, starts = np.array(self.log, np.int64), np.array(self.times, float)
        self.log, self.times = [], []
        how = np.zeros(known, np.int64)
        how[self.overtook] = OVERTOOK
        came = np.ones(self._jobs, np.int64)
        if (log < 0).any():
            began = log >= 0
            came[~log[~began]] = 0
            log, starts, how = log[began], starts[began], how[began]
        ids, procs, users, apps = self._numbers[:, :self._jobs]
        submits, runs, estimates = self._seconds[:, :self._jobs]
        ends = starts + runs[log]
        order = np.lexsort((ids[log], ends))  # as they ended
        moment = self._moments(moments, submits, came, procs, starts, procs[log], ends[order], procs[log[order]])
        order = order[:ended]
        log = log[order]
        records = np.empty((ended, 10))
        numbers = records.view(np.int64)
        for place, column in ((0, ids), (1, procs), (2, procs), (3, users), (4, apps)):
            numbers[:, place] = column[log]
        numbers[:, 5] = how[order]
        for place, column, chosen in ((6, submits, log), (7, starts, order), (8, ends, order), (9, estimates, log)):
            records[:, place] = column[chosen]
        self._results.counted(records, moment)

    @staticmethod
    def _moments(count: int, submits: Any, came: Any, procs: Any, starts: Any, begun: Any, ends: Any, ended: Any
                 ) -> Any:
        """Return the first `count` times at which something happened: time, queued jobs, queued cores, busy cores.
        `submits`, `starts` and `ends` are sorted; `came` is 0 for jobs that were refused."""
        import numpy as np
        every = np.concatenate([submits, starts, ends])
        every.sort(kind="stable")
        new = np.ones(len(every), bool)
        np.not_equal(every[1:], every[:-1], out=new[1:])
        at = every[new][:count]
        found = np.empty((len(at), 4))
        found[:, 0] = at

        def until(when: Any, *amounts: Any) -> list[Any]:
            """Return the sums of the amounts of all events (at the times `when`) up to each moment."""
            place = np.searchsorted(when, at, "right")
            return [np.append(0, np.cumsum(each))[place] for each in amounts]

        jobs, cores = until(submits, came, came * procs)
        place = np.searchsorted(starts, at, "right")
        found[:, 1] = jobs - place
        busy = np.append(0, np.cumsum(begun))[place]
        found[:, 2] = cores - busy
        found[:, 3] = busy - until(ends, ended)[0]
        return found
