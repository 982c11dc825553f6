"""Dumps of Slurm's accounting: `sacct --parsable2` (or `--parsable`) with a header line.

What a job held is taken from AllocTRES, otherwise from ReqTRES, otherwise from the columns NNodes, NCPUS, ReqMem and
AllocGRES. Lines of steps are ignored. Jobs of an array and parts of a heterogeneous job are separate jobs. For a job
that was requeued (`sacct --duplicates`), the last run is used. Columns: the manual page of sacct; ReqMem ends in `n`
(each node) or `c` (each core) before Slurm 21.08.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vrm.model.amounts import GPU, MEMORY
from vrm.workload.rows import RowRequest, Rows, clock, gibibytes, moment, program, whole

DUMP = ("sacct -a -X -S 2024-01-01 -E 2024-02-01 --parsable2 --format=JobIDRaw,JobID,User,JobName,"
        "Partition,Submit,Start,End,ElapsedRaw,TimelimitRaw,State,NNodes,NCPUS,ReqMem,AllocTRES,"
        "ReqTRES,Constraints > sacct.txt")
"""The command that makes a dump with all columns that are read."""

SIZES = ("AllocTRES", "ReqTRES", "NCPUS", "AllocCPUS", "ReqCPUS")
"""At least one of these columns is needed."""

_REQMEM = re.compile(r"(.*?)([nc]?)")
_GRES = re.compile(r"(?:gres[:/])?([A-Za-z_][\w.+-]*)(?::([A-Za-z_][\w.+-]*))?(?:[:=](\d+[kKmM]?))?")


class SacctDump(Rows):
    """Reads the jobs of a dump that ran and have ended."""

    @staticmethod
    def tells(first: str) -> bool:
        """Return whether a file's first line is the header of a dump."""
        names = first.strip().split("|")
        return len(names) > 2 and any(name in ("JobID", "JobIDRaw") for name in names)

    def asked(self) -> Iterator[RowRequest]:
        """Yield the jobs of the lines."""
        lines = self.lines()
        number, header = next(((number, line) for number, line in lines if line.strip()), (1, ""))
        names = header.strip().split("|")
        place = {name: index for index, name in enumerate(names) if name}
        self._check(number, place)
        width = len(names) - (not names[-1])  # with --parsable, a | also follows the last column
        kept: dict[str, RowRequest] = {}
        numbers: dict[str, int] = {}
        for number, line in lines:
            if not line.strip():
                continue
            cells = line.split("|")
            if len(cells) - (len(cells) > width and not cells[-1]) != width:
                self.dirt["dropped: cut off, or with other columns than the header"] += 1
                continue
            row = {name: cells[index].strip() for name, index in place.items()}
            text = row.get("JobIDRaw") or row["JobID"]
            if "." in text or "." in row.get("JobID", ""):
                self.dirt["lines of steps (no jobs)"] += 1
                continue
            try:
                one = self._job(row, numbers)
            except ValueError as error:
                raise self.wrong(f"not a value of its column ({error}); make the dump with: {DUMP}",
                                 number) from error
            if one is None:
                continue
            if text in kept:
                self.dirt["dropped: an earlier run of a job that was requeued"] += 1
                del kept[text]
            kept[text] = one
        yield from kept.values()

    def _check(self, number: int, place: dict[str, int]) -> None:
        missing = [name for name, others in (
            ("JobID", ("JobIDRaw",)), ("Submit", ()), ("Start", ()), ("End", ("Elapsed", "ElapsedRaw")),
            ("State", ()), ("AllocTRES", SIZES)) if not {name, *others} & set(place)]
        if missing:
            raise self.wrong(f"no column {', '.join(missing)}; make the dump with: {DUMP}", number)

    def _job(self, row: dict[str, str], numbers: dict[str, int]) -> RowRequest | None:
        """Return the job of a line; None for a job that never ran or has not ended, which is counted."""
        state = row["State"].split(" ")[0].rstrip("+")
        begin, end = moment(row["Start"]), moment(row.get("End", ""))
        submit = moment(row["Submit"])
        if submit is None or begin is None:
            self.dirt["dropped: never ran"] += 1
            return None
        run = clock(row.get("ElapsedRaw") or row.get("Elapsed", ""))
        if state in ("RUNNING", "SUSPENDED", "PENDING", "RESIZING") or (end is None and not run):
            self.dirt["dropped: has not ended"] += 1
            return None
        if not run and end is not None:
            run = end - begin
        if state == "REQUEUED":
            self.dirt["dropped: an earlier run of a job that was requeued"] += 1
            return None
        limit = clock(row.get("Timelimit", ""))
        if row.get("TimelimitRaw", "").isdigit():
            limit = 60.0 * int(row["TimelimitRaw"])
        nodes, cores, total, per_node, licences = self._held(row)
        return RowRequest(_number(row, numbers), submit, run, limit, nodes, cores, total=total,
                          per_node=per_node, licences=licences, features=self._features(row),
                          user=row.get("User", ""), app=program(row.get("JobName", "")),
                          queue=row.get("Partition", "").split(",")[0], start=begin)

    def _held(self, row: dict[str, str]) -> tuple[int, int, dict[str, float], dict[str, float],
                                                  dict[str, float]]:
        """Return nodes, cores, amounts over all nodes, amounts of each node, and licences."""
        tres = _tres(row.get("AllocTRES", "") or row.get("ReqTRES", ""))
        more = _tres(row.get("ReqTRES", ""))
        nodes = whole(tres.get("node", "") or row.get("NNodes", "") or row.get("AllocNodes", "")
                      or row.get("ReqNodes", ""))
        cores = whole(tres.get("cpu", "") or row.get("NCPUS", "") or row.get("AllocCPUS", "")
                      or row.get("ReqCPUS", ""))
        total, licences = _resources(tres)
        per_node: dict[str, float] = {}
        wanted = row.get("ReqMem", "")
        size = tres.get("mem", "") or more.get("mem", "")
        if size:
            total[MEMORY] = gibibytes(size, "m")
        elif wanted and wanted != "?":
            found = _REQMEM.fullmatch(wanted)
            assert found is not None
            each = gibibytes(found[1], "m")
            if found[2] == "n":
                per_node[MEMORY] = each
            else:
                total[MEMORY] = each * (cores if found[2] == "c" else 1)
        if not any(name.startswith("gres/") for name in tres):
            for name, amount in _gres(row.get("AllocGRES", "")).items():
                total[name] = total.get(name, 0) + amount
            if not row.get("AllocGRES"):
                per_node.update(_gres(row.get("ReqGRES", "")))
        return nodes, cores, total, per_node, licences

    def _features(self, row: dict[str, str]) -> frozenset[str]:
        text = row.get("Constraints", "").strip("[]() ")
        if not text or text.lower() in ("(null)", "null"):
            return frozenset()
        if re.search(r"[|*!()\[\]]", text):
            self.dirt["constraints with choices: not followed"] += 1
            return frozenset()
        return frozenset(word.strip() for word in re.split("[&,]", text) if word.strip())


def _number(row: dict[str, str], numbers: dict[str, int]) -> int:
    """Return the number of a job: JobIDRaw, otherwise JobID. A job `7_3` of an array, or `7+1`, without JobIDRaw gets
    its own number, above 2^40."""
    for name in ("JobIDRaw", "JobID"):
        if row.get(name, "").isdigit():
            return int(row[name])
    text = row.get("JobIDRaw") or row["JobID"]
    if not re.match(r"\d", text):
        raise ValueError(f"`{text[:30]}` is not a job number")
    return numbers.setdefault(text, (1 << 40) + len(numbers))


def _tres(text: str) -> dict[str, str]:
    """Parse `cpu=4,mem=4G,gres/gpu=2` into a mapping."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _resources(tres: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the resources and the licences of a list of TRES. An entry with a type (`gres/gpu:a100=2`) is a part of
    `gres/gpu`."""
    total: dict[str, float] = {}
    typed: dict[str, float] = {}
    licences: dict[str, float] = {}
    for name, value in tres.items():
        kind, _, which = name.partition("/")
        if kind == "gres":
            plain, _, sort = which.partition(":")
            into = typed if sort else total
            into[plain] = into.get(plain, 0) + whole(value)
        elif kind == "license":
            licences[which.partition("@")[0]] = whole(value)
    return {**typed, **total}, licences


def _gres(text: str) -> dict[str, float]:
    """Parse `gpu:2` or `gpu:k80:1,craynetwork:0`, the forms of AllocGRES and ReqGRES."""
    found: dict[str, float] = {}
    for part in text.split(",") if text and text.lower() != "(null)" else ():
        match = _GRES.fullmatch(part.strip().partition("(")[0])
        if match is None:
            raise ValueError(part)
        name, amount = match[1], match[3]
        found[name] = found.get(name, 0) + (whole(amount) if amount else 1)
    return found


def fields() -> list[str]:
    """Return the columns that are read."""
    return DUMP.partition("--format=")[2].partition(" ")[0].split(",")


assert GPU == "gpu"  # also Slurm's name
