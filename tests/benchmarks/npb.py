#!/usr/bin/env python3
"""The programs of npb/ on one rank against plain serial Fortran (npb_plain.f90) of the same steps.

python tests/benchmarks/npb.py [--apps ep,is,...] [--class A] [--rounds 5] [--mpicc PATH] [--quick]
python tests/benchmarks/npb.py --official DIR --apps cg       # against the suite's own executables

`--official` names the directory where `vrm npb build --source NPB3.4.x.tar.gz --out DIR` put them.

Both are compiled with -O3 by the same GCC, run in turns, so that drift of the machine hits them
alike, and have to agree on every residual, norm and checksum that the plain version prints.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from prettytable import PrettyTable

HERE = Path(__file__).resolve().parent
NPB = HERE.parent.parent / "npb"
APPS = ("ep", "is", "cg", "mg", "ft", "lu", "sp", "bt")
ALLOWED, ALLOWED_OFFICIAL = 1.3, 1.05
"""How many times as long as the plain version, and as the official one, a program may take."""


def run(argv: list[str]) -> str:
    """What a program prints."""
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def ours(argv: list[str]) -> tuple[float, dict[str, float]]:
    """Seconds and verified values of a benchmark."""
    text = run(argv)
    seconds = re.search(r"Time in seconds = *(\S+)", text)
    assert seconds and re.search(r"Verification *= *SUCCESSFUL", text), text
    return float(seconds[1]), {" ".join(found[1].split()): float(found[2]) for found in
                               re.finditer(r"^ (.+?) +(\S+), official", text, re.MULTILINE)}


def plain(argv: list[str]) -> tuple[float, dict[str, float]]:
    """The same of the plain version."""
    text = run(argv)
    seconds = re.search(r"^seconds +(\S+)", text, re.MULTILINE)
    assert seconds, text
    return float(seconds[1]), {" ".join(found[1].split()): float(found[2]) for found in
                               re.finditer(r"^result (.+) = *(\S+)", text, re.MULTILINE)}


def main() -> int:
    """Build both, let them take turns, print the table; 1 when one is slower than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--apps", default=",".join(APPS))
    parser.add_argument("--class", dest="problem_class", default="A", choices=("S", "W", "A"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mpicc", default="mpicc")
    parser.add_argument("--official", metavar="DIR", type=Path)
    parser.add_argument("--quick", action="store_true",
                        help="one small program once, however long it takes")
    options = parser.parse_args()
    if options.quick:
        options.apps, options.problem_class, options.rounds = "ep", "S", 1
    apps = options.apps.split(",")
    wanted = ["mpirun", options.mpicc] if options.official else ["gfortran", "mpirun", options.mpicc]
    missing = [tool for tool in wanted if not shutil.which(tool)]
    other = "official" if options.official else "plain Fortran"
    allowed = ALLOWED_OFFICIAL if options.official else ALLOWED
    if missing or not set(apps) <= set(APPS):
        parser.error(f"wanted are {', '.join(missing)} on PATH" if missing
                     else f"the programs are {', '.join(APPS)}")
    table = PrettyTable(["program", "npb/, s", f"{other}, s", "ratio"], align="r")
    slower = []
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, str(NPB / "build.py"), "--apps", options.apps, "--classes",
             options.problem_class, "--mpicc", options.mpicc, "--out", folder])
        if not options.official:
            run(["gfortran", "-O3", "-J", folder, str(HERE / "npb_plain.f90"), "-o",
                 f"{folder}/plain"])
        for app in apps:
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(options.rounds):
                mine, right = ours(["mpirun", "-np", "1",
                                    f"{folder}/{app}.{options.problem_class}.x"])
                theirs, found = ours(["mpirun", "-np", "1", str(
                    options.official / f"{app}.{options.problem_class}.x")]) if (
                    options.official) else plain([f"{folder}/plain", app, options.problem_class])
                times[0].append(mine)
                times[1].append(theirs)
                for label, value in ({} if options.official else found).items():
                    assert abs(value - right[label]) <= 1e-8 * abs(right[label]), (app, label)
            mine, theirs = map(statistics.median, times)
            table.add_row([f"{app}.{options.problem_class}", f"{mine:.2f}", f"{theirs:.2f}",
                           f"{mine / theirs:.2f}"])
            print(f"{app}: {mine:.2f} s against {theirs:.2f} s", file=sys.stderr, flush=True)
            slower += [app] if mine > allowed * theirs else []
    print(table)
    return 1 if slower and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
