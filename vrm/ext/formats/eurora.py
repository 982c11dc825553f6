"""Traces of Eurora, the machine of AccaSim's authors (CINECA, 2014), in the format in which their group publishes
them.

One line is a job:

    id;program;user;queue;submitted__node;cores;gpus;mics;KiB#...__start;end;nodes;cores;memory;limit;...

with dates such as `2014-03-31 11:09:04` and the limit as hours and minutes. The reader uses what the job held on its
nodes, not what it requested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vrm.model.amounts import GPU, MEMORY
from vrm.workload.rows import RowRequest, Rows, moment, program

_LINE = re.compile(r"(\d+);([^;]*);([^;]*);([^;]*);([^;_]*)__([^_]*)__(.*)")


class EuroraTrace(Rows):
    """Reads the jobs of a trace."""

    @staticmethod
    def tells(line: str) -> bool:
        """Return whether a line is one of a trace."""
        return _LINE.match(line) is not None

    def asked(self) -> Iterator[RowRequest]:
        """Yield the jobs of the lines."""
        for number, line in self.lines():
            if not line.strip():
                continue
            found = _LINE.fullmatch(line.strip())
            rest = found[7].split(";") if found else []
            if found is None or len(rest) < 6:
                self.dirt["dropped: no job, or cut off"] += 1
                continue
            try:
                hours, _, minutes = rest[5].partition(":")
                submit, begin, end = (moment(text) for text in (found[5], rest[0], rest[1]))
                if submit is None or begin is None or end is None:
                    self.dirt["dropped: never ran"] += 1
                    continue
                parts = [tuple(map(int, part.split(";"))) for part in found[6].split("#") if part]
                _, cores, gpus, mics, memory = (sum(each) for each in zip(*parts))
            except ValueError as error:
                raise self.wrong(f"{error}; the form is id;program;user;queue;submitted__node;cores;"
                                 "gpus;mics;KiB#__start;end;nodes;cores;memory;HH:MM;...", number) from error
            total: dict[str, float] = {MEMORY: memory / (1 << 20), GPU: gpus, "mic": mics}
            yield RowRequest(int(found[1]), submit, end - begin, 3600.0 * int(hours) + 60.0 * int(minutes or 0),
                             len(parts), cores, total=total, user=found[3], app=program(found[2]),
                             queue=found[4], start=begin)
