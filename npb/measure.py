#!/usr/bin/env python3
"""Run built benchmarks under mpirun and print their times as rows of a table.

Made for the tables in README.md: what stands there was printed by this.
"""

import argparse
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Dict, List, Optional, Sequence

from build import APPS, CLASSES, SOURCE_DIRECTORY

_FIELD = re.compile(r"^ ([A-Z][A-Za-z/ ]*?) *= +(\S.*?)\s*$")


class CannotRun(RuntimeError):
    """A program did not print a result block; the text says why."""


class NotAllowed(CannotRun):
    """The program does not run on so many ranks (squares, powers of two): no failure."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The fastest repetition of one program on one number of ranks.

    The fastest, because other load on the machine can only add to a time.
    """

    executable: str
    ranks: int
    seconds: float
    mops: float
    verified: bool

    def row(self) -> str:
        """The measurement as one line of a Markdown table."""
        verification = "successful" if self.verified else "UNSUCCESSFUL"
        return (
            f"| {self.executable} | {self.ranks} | {self.seconds:.2f} | {self.mops:.0f} "
            f"| {verification} |"
        )


def result_block(output: str) -> Dict[str, str]:
    """Fields of the result block a benchmark printed, empty if there is none.

    Launchers may print around it; of a field that occurs twice the last counts.
    """
    start = output.rfind(" Benchmark Completed")
    found = (_FIELD.match(line) for line in output[max(start, 0) :].splitlines())
    return {match[1]: match[2] for match in found if match} if start >= 0 else {}


def run_once(mpirun: Sequence[str], ranks: int, executable: pathlib.Path) -> Dict[str, str]:
    """Run a program and return its result block; raises CannotRun without one."""
    done = subprocess.run(
        [*mpirun, "-np", str(ranks), str(executable)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        check=False,
    )
    block = result_block(done.stdout)
    if not block:
        said = [line for line in done.stderr.splitlines() if line.strip("- ")]
        reason = said[0].strip() if said else f"exit status {done.returncode}, no message"
        kind = NotAllowed if f"cannot run on {ranks} ranks" in reason else CannotRun
        raise kind(f"{executable.name} on {ranks}: {reason}")
    return block


def measure(
    mpirun: Sequence[str], ranks: int, executable: pathlib.Path, repetitions: int
) -> Measurement:
    """Run a program several times; raises CannotRun when it gives no result."""
    blocks = [run_once(mpirun, ranks, executable) for _ in range(repetitions)]
    return Measurement(
        executable=executable.name,
        ranks=ranks,
        seconds=min(float(block["Time in seconds"]) for block in blocks),
        mops=max(float(block["Mop/s total"]) for block in blocks),
        verified=all(block["Verification"] == "SUCCESSFUL" for block in blocks),
    )


def _mpirun_command(wished: Optional[str]) -> List[str]:
    found = shutil.which(wished or "mpirun")
    if found is None:
        raise CannotRun(f"no {wished or 'mpirun'} found; name it with --mpirun PATH")
    version = subprocess.run(
        [found, "--version"], stdout=subprocess.PIPE, universal_newlines=True, check=False
    )
    # Open MPI alone refuses more ranks than cores unless told.
    return [found, "--oversubscribe"] if "Open MPI" in version.stdout else [found]


def _comma_list(text: str) -> List[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _counts(text: str) -> List[int]:
    counts = [int(part) for part in _comma_list(text)]
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of counts from 1")
    return counts


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Command line; returns 0 all verified, 1 some not or not run, 2 could not begin."""
    parser = argparse.ArgumentParser(
        prog="measure.py", description="Time built benchmarks and print table rows."
    )
    parser.add_argument("--apps", type=_comma_list, default=list(APPS), metavar="LIST")
    parser.add_argument("--classes", type=_comma_list, default=["A"], metavar="LIST")
    parser.add_argument("--ranks", type=_counts, default=[1, 2, 4], metavar="LIST")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N")
    parser.add_argument("--mpirun", metavar="PATH", help="(default: mpirun on PATH)")
    parser.add_argument("--bin", default=str(SOURCE_DIRECTORY / "bin"), metavar="DIRECTORY")
    options = parser.parse_args(arguments)

    wanted = [
        pathlib.Path(options.bin) / f"{app}.{problem_class}.x"
        for app in options.apps
        for problem_class in options.classes
    ]
    present = [executable for executable in wanted if executable.is_file()]
    for executable in wanted:
        if executable not in present:
            print(f"measure.py: {executable} is not there; build.py makes it", file=sys.stderr)
    unknown = set(options.classes) - set(CLASSES)
    if not present or unknown or options.repetitions < 1:
        print("measure.py: nothing to measure", file=sys.stderr)
        return 2
    try:
        mpirun = _mpirun_command(options.mpirun)
    except CannotRun as problem:
        print(f"measure.py: {problem}", file=sys.stderr)
        return 2

    complete = len(present) == len(wanted)
    print("| program | ranks | seconds | Mop/s | verification |")
    print("|---|---:|---:|---:|---|")
    for executable in present:
        for ranks in options.ranks:
            try:
                measured = measure(mpirun, ranks, executable, options.repetitions)
            except CannotRun as problem:
                print(f"measure.py: {problem}", file=sys.stderr)
                complete = complete and isinstance(problem, NotAllowed)
                continue
            print(measured.row(), flush=True)
            complete = complete and measured.verified
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
