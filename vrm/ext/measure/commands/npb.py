"""The command `vrm npb build`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any
from collections.abc import Callable

from vrm.commands.parsing import command, group
from vrm.commands.shared import CannotRun, count, counts, settings_of, words


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the group of commands to the main parser."""
    actions = group(commands, "npb", "build the NAS Parallel Benchmarks",
                    "vrm npb build --classes S,W,A")
    parser = command(
        actions, "build", build, "build benchmark programs into Applications.Path", [shared],
        "vrm npb build --classes S,W,A\n"
        "vrm npb build --source NPB3.4.3.tar.gz --apps cg,ft --classes B",
        "Builds the official suite from its archive or directory (--source), or the programs that "
        "come with vrm. Those that are already built are not built again.",
        usage="%(prog)s [--source FILE|DIR] [--apps LIST] [--classes LIST] [options]")
    add = parser.add_argument
    add("--source", metavar="FILE|DIR", help="NPB3.4.x.tar.gz (or 3.3) or its unpacked directory; "
        "default: the programs that come with vrm")
    add("--apps", metavar="LIST", type=words, help="of bt,cg,ep,ft,is,lu,mg,sp (default: all); of those that come with "
        "vrm also with threads in each rank: ep-omp,cg-omp,mg-omp,stream-omp,insitu-omp")
    add("--classes", metavar="LIST", type=words, default=("S", "W", "A"),
        help="of S,W,A,B,C,D,E,F (default: S,W,A)")
    add("--ranks", metavar="LIST", type=counts, default=(),
        help="NPB 3.3 only: the rank counts, one executable for each")
    add("--out", metavar="DIR", help="where to install (default: Applications.Path)")
    add("--mpicc", metavar="PATH", help="MPI C compiler (default: mpicc on PATH)")
    add("--mpifc", metavar="PATH", help="MPI Fortran compiler (default: mpifort or mpif90 next to "
        "mpicc, else on PATH)")
    add("--flags", metavar="FLAGS", type=shlex.split, default=[],
        help="further compiler flags, for example --flags=-march=native")
    add("--work", metavar="DIR", help="build there and keep it (make.def, suite.def, logs)")
    add("-j", "--jobs", metavar="N", type=count, default=len(os.sched_getaffinity(0)),
        help="programs at a time (default: usable cores)")


class Progress:
    """Prints a line for each executable that is built, with its number and the time left."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.begun = time.monotonic()
        self.lock = threading.Lock()

    def report(self, built: Any) -> None:
        """Print the line of an executable. Thread-safe: several threads build."""
        from vrm.ext.measure import npb_build
        from vrm.ext.measure.bench import duration

        with self.lock:
            self._print(built, npb_build.FAILED, duration)

    def _print(self, built: Any, failed: str, duration: Callable[[float], str]) -> None:
        self.done += 1
        name = f"[{self.done}/{self.total}] {built.path.name}"
        if built.status == failed:
            print(f"{name}: failed ({built.app}, class {built.problem_class}): {built.message}",
                  file=sys.stderr, flush=True)
            return
        left = (time.monotonic() - self.begun) / self.done * (self.total - self.done)
        print(f"{name}: {built.status}" + (f" (with {' '.join(built.flags)})" if built.flags else "")
              + (f"; about {duration(left)} left" if left >= 1 else ""), flush=True)


def build(arguments: argparse.Namespace) -> int:
    """Run `vrm npb build`; return 0 if everything was built, 1 if some builds failed, 2 if it could not start."""
    from vrm.ext.measure import npb_build

    out = Path(arguments.out).absolute() if arguments.out else settings_of(
        arguments).applications.path
    apps = tuple(app.lower() for app in arguments.apps or npb_build.APPS)
    classes = tuple(name.upper() for name in arguments.classes)
    for name in classes:
        if name not in npb_build.CLASSES:
            raise CannotRun(f"there is no class {name}; the classes are "
                            f"{', '.join(npb_build.CLASSES)}")

    total = len(set(apps)) * len(set(classes)) * max(1, len(set(arguments.ranks)))
    report = Progress(total).report

    try:
        if arguments.source is None:
            for option in ("ranks", "work", "mpifc"):
                if getattr(arguments, option):
                    raise CannotRun(f"--{option} is for the official suite; name it with --source")
            order = npb_build.BuildRequest(apps, classes, out, jobs=arguments.jobs)
            results = npb_build.build_bundled(order, arguments.mpicc, report, arguments.flags)
        else:
            order = npb_build.BuildRequest(apps, classes, out, arguments.ranks,
                                    ("-O3", *arguments.flags), arguments.jobs)
            tools = npb_build.find_tools(arguments.mpicc, arguments.mpifc)
            work = Path(arguments.work).absolute() if arguments.work else None
            results = npb_build.build_official(Path(arguments.source), order, tools, report, work,
                                               lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        print("vrm: interrupted; what was built is installed", file=sys.stderr)
        return 130
    failed = [built for built in results if built.status == npb_build.FAILED]
    print(f"{len(results) - len(failed)} of {len(results)} executables are in {out}")
    return 1 if failed else 0
