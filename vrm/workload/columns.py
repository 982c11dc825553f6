"""The jobs of a trace as columns of numbers, for a loop that needs no `Job` object for each.

Most rows of a trace are whole numbers, and need not be dropped or changed; they are read thousands at a time. All
other rows go one by one through the rules of `vrm.workload.swf`, so that these rules exist only once. The columns
hold the jobs of the trace in its order.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from itertools import islice
from typing import Any
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.model.job import Request
from vrm.workload.submission import Submission

BLOCK = 1 << 20
"""Bytes that are read at a time."""

JOBS = 4096
"""Number of jobs in a block that is made of submissions."""

LONGEST = 2.0 ** 53
"""Largest time in seconds: beyond it a float cannot distinguish one second from the next."""

_REMARKS = (b";", b"#", b"")

_FIELDS = (0, 1, 3, 7, 8, 11, 13, 17)
"""The fields of a row that are read, from 0: number, submission, run time, processors, estimate, user, program; and
the last field, which shows that the row is complete."""


@dataclass(frozen=True)
class Block:
    """Jobs in order, as numpy arrays. Times are in seconds; `user` and `app` are numbers from `Names`. `requests`
    has, by position in the block, the requests of jobs that need more than `procs` cores."""

    ids: Any
    procs: Any
    submit: Any
    run: Any
    estimate: Any
    user: Any
    app: Any
    requests: dict[int, Request]

    def __len__(self) -> int:
        return len(self.ids)


class Names(dict[str, int]):
    """Numbers of names; a new name gets the next number. The names `first` have numbers from the start."""

    def __init__(self, *first: str) -> None:
        super().__init__(zip(first, range(len(first))))
        self._first = len(first)

    def forget(self) -> None:
        """Remove all names except `first`."""
        for name in list(self)[self._first:]:
            del self[name]

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number

    def of(self, codes: Any, text: Callable[[int], str]) -> Any:
        """Return the numbers of an array of codes, whose names are `text(code)`."""
        import numpy as np
        found, places = np.unique(codes, return_inverse=True)
        return np.array([self[text(code)] for code in found.tolist()], np.int64)[places]


def of_submissions(submissions: Iterable[Submission], users: Names, apps: Names) -> Iterator[Block]:
    """Yield the submissions as blocks of columns."""
    source = iter(submissions)
    while True:
        block = list(islice(source, JOBS))
        if not block:
            return
        yield _block(block, users, apps)


def _block(block: Sequence[Submission], users: Names, apps: Names) -> Block:
    """Return some submissions as a block of columns."""
    import numpy as np
    jobs = [one.job for one in block]
    return Block(
        np.array([job.id for job in jobs], np.int64), np.array([job.procs for job in jobs], np.int64),
        np.array([job.submit for job in jobs]), np.array([one.run for one in block]),
        np.array([job.expected for job in jobs]), np.array([users[job.user] for job in jobs], np.int64),
        np.array([apps[job.app] for job in jobs], np.int64),
        {at: job.request for at, job in enumerate(jobs) if not job.request.plain})


OneByOne = Callable[[Sequence[bytes], int], Iterator[Submission]]
"""Yields the submissions of some lines; the number is that of the first line."""


def of_lines(stream: Any, one_by_one: OneByOne, largest: int | None, users: Names, apps: Names
             ) -> list[Block] | None:
    """Return the columns of a whole trace; None if its rows are not sorted by submission time, or job numbers do not
    increase. `largest` is the number of processors of the machine: larger jobs are dropped."""
    blocks: list[Block] = []
    before, latest, number = -2, -1.0, 1
    line = stream.readline()
    while line and line.lstrip()[:1] in _REMARKS:
        number += 1
        line = stream.readline()
    while line:
        text = line + stream.read(BLOCK) + stream.readline()
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        found = _numbers(text, lines)
        if found is None:
            block = _block(list(one_by_one(text.split(b"\n"), number)), users, apps)
            ids, submit = block.ids, block.submit
        else:
            ids, submit = found[0], found[1]
            block = _of_numbers(found, text, number, one_by_one, largest, users, apps)
        if len(ids):
            if (ids[0] <= before or submit[0] < latest or (ids[1:] <= ids[:-1]).any()
                    or (submit[1:] < submit[:-1]).any()):
                return None
            before, latest = int(ids[-1]), float(submit[-1])
        blocks.append(block)
        number += lines
        line = stream.readline()
    return blocks


def _numbers(text: bytes, lines: int) -> Any:
    """Return the fields of all rows of a text as an array (field, row); None unless each line is a complete row of
    whole numbers."""
    import numpy as np
    if b"+" in text or b"-0" in text:  # another spelling of a number is another name
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for example for a number that is not whole
            found = np.loadtxt(io.BytesIO(text), np.int64, comments=None, usecols=_FIELDS, ndmin=2)
    except (ValueError, Warning):
        return None
    return np.ascontiguousarray(found.T) if len(found) == lines else None


def _of_numbers(found: Any, text: bytes, number: int, one_by_one: OneByOne, largest: int | None,
                users: Names, apps: Names) -> Block:
    """Return the columns of the rows `found` in a text, which begins at line `number` of the trace. Rows that need a
    rule are read one by one."""
    import numpy as np
    ids, submit, run, procs, estimate, user, app, _ = found
    plain = ((ids >= -1) & (submit >= 0) & (submit < LONGEST) & (run > 0) & (procs > 0)
             & (estimate >= run) & (estimate < LONGEST))
    if largest is not None:
        plain &= procs <= largest
    others = np.flatnonzero(~plain).tolist()
    if others:
        lines = text.split(b"\n")
        for at in others:
            for job, *_ in one_by_one([lines[at]], number + at):
                procs[at], estimate[at], plain[at] = job.procs, job.expected, True
        ids, submit, run, procs, estimate, user, app, _ = found[:, plain]
    return Block(ids, procs, submit, run, estimate,
                 users.of(user, lambda code: "" if code < 0 else str(code)),
                 apps.of(app, lambda code: "app" if code < 0 else f"app{code}"), {})
