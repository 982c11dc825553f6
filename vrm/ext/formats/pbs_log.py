"""Accounting logs of PBS (OpenPBS, PBS Professional) and Torque: lines `date;type;id;key=value ...`.

A job is its `E` record, which has its request and its times; other records are ignored. A request is
`Resource_List.select` (chunks, `2:ncpus=16:mem=4gb:ngpus=2`), Torque's `Resource_List.nodes` (`2:ppn=6:gpus=1`), or
the totals `ncpus`, `nodect`, `mem`, `ngpus`. Each chunk is on its own node; with `place=pack`, all are on one. The
logs of several days can be joined with `cat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vrm.model.amounts import GPU, MEMORY
from vrm.workload.rows import RowRequest, Rows, clock, gibibytes, program, whole

_RECORD = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;([A-Za-z]);([^;]*);(.*)")
_PAIR = re.compile(r'([\w.]+)=("[^"]*"|\S*)')
_CORES = ("ncpus", "ppn", "procs")
_NO_AMOUNTS = ("walltime", "cput", "place", "select", "nodes", "nodect", "neednodes", "ncpus", "mem",
               "vmem", "pmem", "pvmem", "ngpus", "mpiprocs", "ompthreads", "mpiprocs", "procs", "pcput")


class PbsLog(Rows):
    """Reads the jobs of a log that have ended."""

    @staticmethod
    def tells(line: str) -> bool:
        """Return whether a line is a record of a log."""
        return _RECORD.match(line) is not None

    def asked(self) -> Iterator[RowRequest]:
        """Yield the jobs of the records."""
        numbers: dict[str, int] = {}
        kept: dict[str, RowRequest] = {}
        for number, line in self.lines():
            if not line.strip() or line.startswith("#"):
                continue
            record = _RECORD.fullmatch(line)
            if record is None:
                self.dirt["dropped: no record, or cut off"] += 1
                continue
            kind, name, rest = record.groups()
            if kind != "E":
                continue
            says = {key: value.strip('"') for key, value in _PAIR.findall(rest)}
            if "end" not in says:
                self.dirt["dropped: no record, or cut off"] += 1
                continue
            if not says.get("start", "").isdigit() or says["start"] == "0":
                self.dirt["dropped: never ran"] += 1  # also the record of an array as a whole
                continue
            try:
                one = self._job(name, says, numbers)
            except ValueError as error:
                raise self.wrong(f"job {name}: {error} is not understood; correct the record, or put "
                                 "a # before it", number) from error
            if name in kept:
                self.dirt["dropped: an earlier run of a job that was requeued"] += 1
                del kept[name]
            kept[name] = one
        yield from kept.values()

    def _job(self, name: str, says: dict[str, str], numbers: dict[str, int]) -> RowRequest:
        begin, end = float(says["start"]), float(says["end"])
        submit = float(says.get("qtime") or says.get("ctime") or begin)
        wanted = {key.partition(".")[2]: value for key, value in says.items()
                  if key.startswith("Resource_List.")}
        chunks = _chunks(wanted)
        nodes = sum(count for count, _ in chunks)
        if len({tuple(sorted(each.items())) for _, each in chunks}) > 1:
            self.dirt["chunks that differ: taken as equal ones"] += 1
        cores = sum(count * whole(_first(each, _CORES) or "1") for count, each in chunks)
        if not chunks:
            nodes = whole(wanted.get("nodect", ""))
            cores = whole(_first(wanted, ("ncpus", "procs")) or "") or nodes
        place = wanted.get("place", "")
        if place.startswith("pack"):
            nodes = 1
        return RowRequest(_number(name, numbers), submit, end - begin, clock(wanted.get("walltime", "")),
                          nodes, cores, total=self._total(wanted, chunks),
                          exclusive="excl" in place, user=says.get("user", ""),
                          app=program(says.get("jobname", "")), queue=says.get("queue", ""), start=begin)

    def _total(self, wanted: dict[str, str], chunks: list[tuple[int, dict[str, str]]]) -> dict[str, float]:
        """Return the amounts of resources that a job has in total."""
        total: dict[str, float] = {}
        for count, each in chunks:
            for key, value in each.items():
                amount = _amount(key, value)
                if amount:
                    total[_NAMES.get(key, key)] = total.get(_NAMES.get(key, key), 0) + count * amount
        for key in ("mem", "ngpus"):  # totals, if the chunks do not have the amounts
            if key in wanted and _NAMES[key] not in total:
                total[_NAMES[key]] = _amount(key, wanted[key]) or 0.0
        for key, value in wanted.items():
            if key not in _NO_AMOUNTS and key in self.rules.resources and key not in total:
                total[key] = float(value)
        return total


_NAMES = {"mem": MEMORY, "ngpus": GPU, "gpus": GPU, "nmics": "mic", "mics": "mic"}


def _amount(key: str, value: str) -> float | None:
    """Return the amount of a resource of a chunk; None if it is not an amount."""
    if key == "mem":
        return gibibytes(value)
    if key in _CORES or (key in _NO_AMOUNTS and key != "ngpus"):
        return None
    return float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else None


def _chunks(wanted: dict[str, str]) -> list[tuple[int, dict[str, str]]]:
    """Return the chunks of `select` or Torque's `nodes`: for each, their number and their values."""
    found: list[tuple[int, dict[str, str]]] = []
    for part in filter(None, (wanted.get("select") or wanted.get("nodes") or "").split("+")):
        first, *words = part.split(":")
        count = 1
        if first.isdigit():
            count = int(first)
        else:
            words = [first, *words]  # the name of a host, or a chunk without a number
        pairs = (word.partition("=") for word in words)
        found.append((count, {key: value for key, equals, value in pairs if equals}))
    return found


def _first(says: dict[str, str], names: tuple[str, ...]) -> str:
    return next((says[name] for name in names if says.get(name)), "")


def _number(name: str, numbers: dict[str, int]) -> int:
    """Return 1234 for `1234.server`; a job `1234[5]` of an array gets its own number, above 2^40."""
    text = name.partition(".")[0]
    if text.isdigit():
        return int(text)
    if not re.match(r"\d", text):
        raise ValueError(f"`{text[:30]}`")
    return numbers.setdefault(text, (1 << 40) + len(numbers))
