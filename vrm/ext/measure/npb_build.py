"""Builds the official NAS Parallel Benchmarks (NPB-MPI 3.3 and 3.4), or the bundled ones, and installs the
executables in the configuration's directory of programs.

vrm does not include the official source: the user names the archive or the unpacked directory. It is never
modified; every program is built in its own copy, several at a time. Flags that make newer compilers accept the old
Fortran and C code are added only after a compiler has reported an error.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from collections.abc import Callable, Sequence

import vrm

from vrm.system.errors import UserError

APPS = ("bt", "cg", "ep", "ft", "is", "lu", "mg", "sp")
CLASSES = ("S", "W", "A", "B", "C", "D", "E", "F")
C_PROGRAMS = ("is", "dt")
"""The programs that need no Fortran compiler."""

BUILT, UNCHANGED, FAILED = "built", "unchanged", "failed"

NO_COMPILER = ("install an MPI with its compilers (Debian: apt install gcc gfortran make "
               "libopenmpi-dev openmpi-bin), load your site's MPI module, or name it with {option}")


class BuildError(UserError):
    """Nothing can be built; the text gives the reason and the remedy."""


@dataclass(frozen=True)
class BuildResult:
    """The result for one executable; `message` is the first error if `status` is FAILED, `flags` are the flags
    added for the compilers."""

    app: str
    problem_class: str
    path: Path
    status: str
    message: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompilerRemedy:
    """An error message of a compiler, and the flag that makes the compiler accept the code.

    `language` is Fortran or C: the flag is added for this language, also for linking.
    """

    complaint: re.Pattern[str]
    language: str
    flag: str


REMEDIES = (
    # gfortran 10 and newer; before, both were accepted silently.
    CompilerRemedy(re.compile(r"Error: (?:Type|Rank) mismatch (?:between actual argument|in argument)"),
                   "Fortran", "-fallow-argument-mismatch"),
    CompilerRemedy(re.compile(r"Error: .*(?:BOZ|-fno-allow-invalid-boz)"), "Fortran",
                   "-fallow-invalid-boz"),
    # gcc 14 and newer.
    CompilerRemedy(re.compile(r"error: .*implicit(?:ly)? declar"), "C",
                   "-Wno-error=implicit-function-declaration"),
    CompilerRemedy(re.compile(r"error: .*(?:type defaults to .int|-Wimplicit-int)"), "C",
                   "-Wno-error=implicit-int"),
    # gcc 10 and newer: tentative definitions in several files.
    CompilerRemedy(re.compile(r"multiple definition of"), "C", "-fcommon"),
    # Static arrays above 2 GB: large classes on few ranks.
    CompilerRemedy(re.compile(r"relocation truncated to fit"), "Fortran", "-mcmodel=medium"),
    CompilerRemedy(re.compile(r"relocation truncated to fit"), "C", "-mcmodel=medium"),
)


@dataclass(frozen=True)
class Compilers:
    """The compilers; `fortran` is None if there is none, and `why` gives the reason."""

    mpicc: str
    fortran: str | None
    make: str
    why: str = ""


def find_tools(mpicc: str | None = None, fortran: str | None = None) -> Compilers:
    """Return the MPI compilers: those given, else those on PATH. Raises BuildError without a C compiler or without
    make; without a Fortran compiler the programs in C can still be built."""
    make = shutil.which("make") or shutil.which("gmake")
    if make is None:
        raise BuildError("no make on PATH; install it (Debian: apt install make)")
    found = shutil.which(mpicc or "mpicc")
    if found is None:
        what = f"no MPI C compiler {mpicc}" if mpicc else "no mpicc on PATH"
        raise BuildError(f"{what}; {NO_COMPILER.format(option='--mpicc PATH')}")
    why = _compiler_fault(found)
    if why:
        raise BuildError(f"{found} does not work ({why}); "
                         + NO_COMPILER.format(option="--mpicc PATH"))
    # A compiler in the directory of mpicc belongs to the same MPI.
    wished = [fortran] if fortran else ["mpifort", "mpif90", "mpif77"]
    beside = str(Path(found).parent)
    path = os.environ.get("PATH", os.defpath)
    for name in wished:
        candidate = shutil.which(name, path=beside) or shutil.which(name, path=path)
        if candidate:
            why = _compiler_fault(candidate)
            if not why:
                return Compilers(found, candidate, make)
            why = f"{candidate} does not work ({why})"
            break
    else:
        why = f"no MPI Fortran compiler {fortran or '(mpifort, mpif90)'} found"
    return Compilers(found, None, make, f"{why}; {NO_COMPILER.format(option='--mpifc PATH')}")


def _compiler_fault(compiler: str) -> str:
    """Return why a compiler wrapper cannot compile, "" if it can: the compiler that it calls may be missing."""
    done = _run([compiler, "--version"], Path.cwd())
    return "" if done.returncode == 0 else (done.stdout.strip().splitlines() or ["no message"])[0]


# ------------------------------------------------------------------------------- the source


@dataclass(frozen=True)
class NpbSource:
    """An unpacked NPB-MPI. `by_ranks` is true if executables are built for a fixed number of ranks (3.3). `others`
    are further suites in the same archive or directory, which are not used."""

    directory: Path
    by_ranks: bool
    others: tuple[Path, ...] = ()

    def apps(self) -> list[str]:
        """Return the programs in the suite."""
        return [path.parent.name.lower() for path in _makefiles(self.directory)]


def _makefiles(root: Path) -> list[Path]:
    """Return the makefiles of the programs, whose directories have names of two capital letters."""
    return sorted(root.glob("[A-Z][A-Z]/Makefile"))


def open_source(path: Path, scratch: Path) -> NpbSource:
    """Find the NPB-MPI in a directory or an archive (unpacked into `scratch`). Raises BuildError if there is none."""
    path = Path(path)
    if path.is_dir():
        top = path
    elif path.is_file():
        top = scratch / "source"
        top.mkdir()
        _unpack(path, top)
    else:
        raise BuildError(f"{path}: no such file or directory; name the archive NPB3.4.x.tar.gz "
                         "(it can be had from NASA's NAS division) or its unpacked directory")
    found = _find_mpi(top)
    if not found:
        others = sorted({file.parent.parent.name for file in top.glob("**/sys/setparams.c")})
        raise BuildError(
            f"{path}: no NPB-MPI in it (a directory with sys/make.common, config/ and programs "
            "such as BT/)" + (f"; it holds {', '.join(others)}, which do not use MPI" if others
                              else ""))
    root, *rest = found
    rules = "".join(part.read_text(errors="replace")
                    for part in [root / "sys/make.common", *_makefiles(root)]
                    if part.is_file())
    return NpbSource(root, bool(re.search(r"\$[({]NPROCS[)}]", rules)), tuple(rest))


def _find_mpi(top: Path) -> list[Path]:
    """Return the directories that have the layout of an NPB and use MPI, from the top level down; on one level the
    newest version first."""
    found: list[Path] = []
    for level in ([top], top.glob("*/"), top.glob("*/*/")):
        for place in sorted(level, key=_version, reverse=True):
            common = place / "sys" / "make.common"
            if common.is_file() and (place / "config").is_dir() and re.search(
                    r"\$[({]MPI(?:FC|F77|CC)[)}]", common.read_text(errors="replace")):
                found.append(place)
    return found


def _version(place: Path) -> tuple[list[int], str]:
    """Return a sort key that puts NPB3.4-MPI after NPB3.3-MPI: the numbers of the name, then the name."""
    return [int(digits) for digits in re.findall(r"\d+", place.name)], place.name


def _unpack(archive: Path, into: Path) -> None:
    """Unpack files and directories. Raises BuildError for one outside the archive's own tree, and for a bad
    archive."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                target = os.path.normpath(member.name)
                if os.path.isabs(target) or target.split(os.sep)[0] == "..":
                    raise BuildError(f"{archive}: `{member.name}` would be written outside of the "
                                     "archive's directory; this is not an NPB archive")
                if member.isdir():
                    (into / target).mkdir(parents=True, exist_ok=True)
                elif member.isfile():
                    (into / target).parent.mkdir(parents=True, exist_ok=True)
                    content = tar.extractfile(member)
                    assert content is not None  # a regular file has content
                    with open(into / target, "wb") as file:
                        shutil.copyfileobj(content, file)
                    os.chmod(into / target, 0o755 if member.mode & 0o100 else 0o644)
                    os.utime(into / target, (member.mtime, member.mtime))
                # The suite has neither links nor devices: other members are ignored.
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BuildError(f"{archive}: not an archive, or not complete (expected a .tar, compressed or "
                         "not); download it again") from error
    except OSError as error:
        raise BuildError(f"{archive}: cannot be unpacked in {into}: {error.strerror or error}"
                         ) from error


# ---------------------------------------------------------------------------------- building


def make_def(tools: Compilers, fortran_flags: Sequence[str], c_flags: Sequence[str]) -> str:
    """Return the text of config/make.def, for 3.3 and 3.4."""
    fortran = tools.fortran or "false"
    return f"""# Written by vrm npb build.
MPIFC = {fortran}
MPIF77 = {fortran}
FLINK = {fortran}
FMPI_LIB =
FMPI_INC =
FFLAGS = {' '.join(fortran_flags)}
FLINKFLAGS = $(FFLAGS)
MPICC = {tools.mpicc}
CLINK = {tools.mpicc}
CMPI_LIB =
CMPI_INC =
CFLAGS = {' '.join(c_flags)}
CLINKFLAGS = $(CFLAGS)
CC = {shutil.which('cc') or shutil.which('gcc') or tools.mpicc}
BINDIR = ../bin
RAND = randi8
CONVERTFLAG = -DFORTRAN_REC_SIZE=1
"""


def suite_def(apps: Sequence[str], classes: Sequence[str], ranks: Sequence[int] = ()) -> str:
    """Return the text of config/suite.def: a line for each program, class and (in 3.3) rank count."""
    return "# Written by vrm npb build.\n" + "".join(
        f"{app}\t{problem_class}{tail}\n" for app in apps for problem_class in classes
        for tail in ([f"\t{count}" for count in ranks] or [""]))


@dataclass(frozen=True)
class BuildRequest:
    """What to build: programs, classes, target directory, rank counts (for 3.3), flags, and the number of programs
    built at a time."""

    apps: tuple[str, ...]
    classes: tuple[str, ...]
    out: Path
    ranks: tuple[int, ...] = ()
    flags: tuple[str, ...] = ("-O3",)
    jobs: int = 1


Report = Callable[[BuildResult], None]


def build_official(path: Path, order: BuildRequest, tools: Compilers, report: Report,
                   work: Path | None = None,
                   note: Callable[[str], None] = lambda text: None) -> list[BuildResult]:
    """Build an NPB-MPI and install the successful executables in `order.out`. `note` is called with information
    that the user should see first: which of several suites is used.

    `work` is the directory to build in; it is kept, with make.def, suite.def and a log of each program. By default
    a temporary directory is used. Raises BuildError if nothing can be built.
    """
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".npb-build.", dir=order.out))
    except OSError as error:
        raise BuildError(f"cannot write to {order.out}: {error.strerror}; choose another place "
                         "with --out DIRECTORY") from error
    try:
        source = open_source(path, scratch)
        if source.others:
            note(_choice(source, path))
        _check(source, order, path)
        place = scratch if work is None else _work_directory(work, order)
        halt = threading.Event()
        with ThreadPoolExecutor(max_workers=order.jobs) as pool:
            tasks = [pool.submit(_build_app, app, source, order, tools, place, report, halt)
                     for app in order.apps]
            try:
                return [result for task in tasks for result in task.result()]
            except BaseException:
                halt.set()  # Ctrl-C: executables not started yet are not built
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _choice(source: NpbSource, path: Path) -> str:
    """Return a message: which of several suites is used, and how to choose another."""
    others = ", ".join(other.name for other in source.others)
    choose = "unpack it and name" if path.is_file() else "name"
    return (f"{path} holds several suites: {source.directory.name} is taken, not {others}; to "
            f"build another, {choose} its directory, for example --source "
            f".../{source.others[0].name}")


def _work_directory(work: Path, order: BuildRequest) -> Path:
    """Create the directory to build in. Directories of the programs that an earlier build left there are replaced;
    raises BuildError for one that vrm did not make."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        for tree in (work / app for app in order.apps):
            if tree.exists():
                if not (tree / "config/suite.def").is_file():
                    raise BuildError(f"{tree} is there and was not made by vrm npb build; name "
                                     "another directory with --work")
                shutil.rmtree(tree)
    except OSError as error:
        raise BuildError(f"cannot write to {work}: {error.strerror}; choose another place with "
                         "--work DIR") from error
    return work


def _check(source: NpbSource, order: BuildRequest, path: Path) -> None:
    there = source.apps()
    missing = [app for app in order.apps if app not in there]
    if missing:
        raise BuildError(f"{path}: no source of {', '.join(missing)}; there are "
                         f"{', '.join(there) or 'no programs'}")
    if source.by_ranks and not order.ranks:
        raise BuildError(f"{path} is NPB 3.3, which makes an executable for each number of ranks, "
                         "such as bt.A.4; say which with --ranks 1,4,16")


def _build_app(app: str, source: NpbSource, order: BuildRequest, tools: Compilers, place: Path, report: Report,
               halt: threading.Event) -> list[BuildResult]:
    """Build a program in all its classes in a copy of the tree."""
    tree = place / app
    # Copy only what this program needs, without old object files and executables of the user.
    others = {name.upper() for name in source.apps()} - {app.upper()}
    shutil.copytree(source.directory, tree, symlinks=True, ignore=lambda folder, names: [
        name for name in names if name.endswith((".o", ".mod", ".obj"))
        or (Path(folder) == source.directory and (name in others or name == "bin"))])
    (tree / "bin").mkdir()
    for script in (tree / "sys").iterdir():
        if script.name.startswith("print_"):
            script.chmod(0o755)  # archives made on other systems lose the executable bit
    (tree / "config" / "suite.def").write_text(suite_def([app], order.classes, order.ranks))
    added: dict[str, list[str]] = {"Fortran": [], "C": []}
    results: list[BuildResult] = []
    for problem_class in order.classes:
        for count in (order.ranks if source.by_ranks else (0,)):
            name = f"{app}.{problem_class}.{count or 'x'}"
            built = BuildResult(app, problem_class, order.out / name, BUILT)
            if halt.is_set():
                return results
            if tools.fortran is None and app not in C_PROGRAMS:
                built = replace(built, status=FAILED, message=tools.why)
            else:
                built = _build_one(built, tree, order, tools, count, added)
            report(built)
            results.append(built)
    return results


def _build_one(built: BuildResult, tree: Path, order: BuildRequest, tools: Compilers, ranks: int,
               added: dict[str, list[str]]) -> BuildResult:
    command = [tools.make, built.app, f"CLASS={built.problem_class}"]
    command += [f"NPROCS={ranks}"] if ranks else []
    log = tree / f"{built.path.name}.log"
    text = ""
    while True:
        (tree / "config" / "make.def").write_text(
            make_def(tools, [*order.flags, *added["Fortran"]], [*order.flags, *added["C"]]))
        done = _run(command, tree)
        text += f"$ {' '.join(command)}\n{done.stdout}"
        log.write_text(text)
        if done.returncode == 0:
            break
        helpful = [remedy for remedy in REMEDIES if remedy.complaint.search(done.stdout)
                   and remedy.flag not in added[remedy.language]]
        if not helpful:
            return replace(built, status=FAILED, message=first_error(done.stdout,
                                                                     done.returncode))
        for remedy in helpful:
            added[remedy.language].append(remedy.flag)
    made = tree / "bin" / built.path.name
    if not made.is_file():
        return replace(built, status=FAILED, message=f"make reported no error, but did not build "
                                                     f"{made.name}")
    # Copied under another name and renamed: the target is never incomplete, a running executable stays intact.
    partial = built.path.with_name(f".{built.path.name}.{os.getpid()}")
    try:
        shutil.copy2(made, partial)
        os.replace(partial, built.path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        return replace(built, status=FAILED, message=f"cannot write {built.path}: "
                                                     f"{error.strerror}")
    flags = added["C" if built.app in C_PROGRAMS else "Fortran"]
    return replace(built, flags=tuple(flags))


def _run(command: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in English, with all output in one text. Status 127 if it cannot be started.

    It runs in its own session: otherwise Ctrl-C would end the compiler too, which would look like a compile error
    before vrm handles the interrupt.
    """
    try:
        return subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                              env={**os.environ, "LC_ALL": "C"}, start_new_session=True,
                              check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, f"{command[0]}: {error.strerror}", None)


_PLACE = re.compile(r"^(\S+?):(\d+):(?:\d+:)?\s*$")
_ERROR = re.compile(r"(?:^|\s)(?:fatal )?error:|undefined reference|multiple definition|"
                    r"No rule to make target|command not found", re.IGNORECASE)
_MAKE = re.compile(r"g?make(?:\[\d+\])?: ")


def first_error(output: str, status: int) -> str:
    """Return the first error in the output of a compiler, with its location in the source.

    gfortran prints the location some lines above its `Error:`, other compilers on the same line.
    """
    place = ""
    lines = [line.rstrip() for line in output.splitlines()]
    for line in lines:
        found = _PLACE.match(line)
        if found:
            place = f"{found[1]}:{found[2]}: "
        elif _ERROR.search(line):
            return f"{place}{line.strip()}" if line.startswith("Error:") else line.strip()
    # Otherwise the last line that make did not print itself.
    last = [line.strip() for line in lines if line.strip() and not _MAKE.match(line)]
    return last[-1] if last else f"make ended with status {status} and printed nothing"


# ------------------------------------------------------------------------------- the bundled


def bundled() -> ModuleType:
    """Import the build program of the bundled benchmarks: from npb/ of a checkout, or from the package of an
    installed vrm. Raises BuildError if it is not installed."""
    package = Path(vrm.__file__).resolve().parent
    places = [package / "npb" / "build.py", package.parent / "npb" / "build.py"]
    path = next((place for place in places if place.is_file()), places[0])
    spec = importlib.util.spec_from_file_location("vrm_npb_build", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise BuildError(f"the sources of the bundled programs are not in {path.parent}; install "
                         "vrm again, or name the official suite with --source NPB3.4.x.tar.gz")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def build_bundled(order: BuildRequest, mpicc: str | None, report: Report,
                  extra_flags: Sequence[str] = ()) -> list[BuildResult]:
    """Build the bundled programs. Raises BuildError if nothing can be built."""
    program = bundled()

    def convert(result: Any) -> BuildResult:
        return BuildResult(result.app, result.problem_class, Path(result.path), result.status,
                           result.message)

    try:
        return [convert(result) for result in program.build(
            order.apps, order.classes, mpicc, order.out, order.jobs,
            lambda result: report(convert(result)), extra_flags)]
    except (program.NoCompiler, ValueError) as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"cannot write to {order.out}: {error.strerror}; choose another place "
                         "with --out DIRECTORY") from error
