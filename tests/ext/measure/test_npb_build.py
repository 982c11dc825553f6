"""`vrm npb build`, with real compilers on a small tree of our own that has the layout and the flaws
of the official suite: arguments of differing types, BOZ constants where they are not allowed.
"""

from __future__ import annotations
from support import warm

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

from conftest import mpirun_environment, wait_until
from vrm.ext.measure import npb_build
from vrm.ext.measure.npb_build import BuildError, first_error, make_def, suite_def

pytestmark = pytest.mark.mpi

HAS_C = shutil.which("mpicc") and shutil.which("make")
HAS_FORTRAN = HAS_C and shutil.which("gfortran") and (shutil.which("mpif90")
                                                      or shutil.which("mpifort"))
needs_c = pytest.mark.skipif(not HAS_C, reason="needs mpicc and make")
needs_fortran = pytest.mark.skipif(not HAS_FORTRAN, reason="needs mpicc, mpif90, gfortran, make")

TOP = """
CLASS=U
{rules}
header:
\t@ sys/print_header
"""
COMMON = """
PROGRAM = $(BINDIR)/$(BENCHMARK).$(CLASS).{tail}
CLASS=U
default:: ${{PROGRAM}}
config:
\t@cd ../sys; ${{MAKE}} all
\t../sys/setparams ${{BENCHMARK}} ${{CLASS}}
../common/${{RAND}}.o: ../common/${{RAND}}.f90
\tcd ../common; $({fortran}) -c $(FFLAGS) ${{RAND}}.f90
"""
FORTRAN_MAKE = """
BENCHMARK={app}
include ../config/make.def
include ../sys/make.common
${{PROGRAM}}: config
\t@$(MAKE) {app}.o ../common/${{RAND}}.o
\t${{FLINK}} ${{FLINKFLAGS}} -o ${{PROGRAM}} {app}.o ../common/${{RAND}}.o ${{FMPI_LIB}}
{app}.o: {app}.f90 npbparams.h
\t${fortran} -c $(FFLAGS) {app}.f90
"""
C_MAKE = """
BENCHMARK=is
include ../config/make.def
include ../sys/make.common
${PROGRAM}: config
\t@$(MAKE) is.o
\t${CLINK} ${CLINKFLAGS} -o ${PROGRAM} is.o ${CMPI_LIB}
is.o: is.c npbparams.h
\t$(MPICC) -c $(CFLAGS) is.c
"""
SETPARAMS = r"""
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    FILE *file;
    if (argc < 3 || strchr("SWABC", argv[2][0]) == NULL) {
        printf("setparams: class %s is not one of S W A B C\n", argc < 3 ? "" : argv[2]);
        return 1;
    }
    file = fopen("npbparams.h", "w");
    if (strcmp(argv[1], "is") == 0)
        fprintf(file, "#define CLASS '%c'\n", argv[2][0]);
    else
        fprintf(file, "      character, parameter :: problem_class = '%c'\n", argv[2][0]);
    return fclose(file);
}
"""
BOZ = """
integer(8) function mask(x)
  integer(8) :: x
  integer(8), parameter :: bits = Z'7FFFFFFF'
  mask = iand(x, bits)
end function mask
"""
MISMATCH = """
program ep
  include 'mpif.h'
  include 'npbparams.h'
  integer :: error, numbers(1)
  double precision :: values(1)
  integer(8), external :: mask
  call mpi_init(error)
  numbers = 0
  values = 0
  call first(numbers)
  call first(values)
  print *, 'EP class ', problem_class, mask(-1_8)
  call mpi_finalize(error)
end program ep
subroutine first(x)
  integer :: x(1)
  x = 1
end subroutine first
"""
CLEAN = """
program cg
  include 'npbparams.h'
  integer(8), external :: mask
  print *, 'CG class ', problem_class, mask(-1_8)
end program cg
"""
BROKEN = "program bt\n  print *, undefined_function(1\nend program bt\n"
IS = r"""
#include <mpi.h>
#include <stdio.h>
#include "npbparams.h"
int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    printf("IS class %c\n", CLASS);
    MPI_Finalize();
    return 0;
}
"""


def suite(root: Path, version: str = "3.4") -> Path:
    """Write the tree NPB<version>-MPI below `root` and return it."""
    old = version == "3.3"
    fortran, tail = ("MPIF77", "$(NPROCS)") if old else ("MPIFC", "x")
    top = root / f"NPB{version}" / f"NPB{version}-MPI"
    passed = "CLASS=$(CLASS)" + (" NPROCS=$(NPROCS)" if old else "")
    rules = "\n".join(f"{app}: header\n\tcd {app.upper()}; $(MAKE) {passed}"
                      for app in ("bt", "cg", "ep", "is"))
    files: dict[str, str] = {
        "Makefile": TOP.format(rules=rules),
        "config/make.def.template": "MPIFC = f90\n", "config/suite.def.template": "ep\tS\n",
        "sys/make.common": COMMON.format(tail=tail, fortran=fortran),
        "sys/Makefile": "include ../config/make.def\nall: setparams\nsetparams: setparams.c\n"
                        "\t$(CC) -o setparams setparams.c\n",
        "sys/setparams.c": SETPARAMS, "sys/print_header": "#!/bin/sh\necho a small suite\n",
        "common/randi8.f90": BOZ,
        "EP/ep.f90": MISMATCH,
        "EP/Makefile": FORTRAN_MAKE.format(app="ep", fortran=f"({fortran})"),
        "CG/cg.f90": CLEAN, "CG/Makefile": FORTRAN_MAKE.format(app="cg", fortran=f"({fortran})"),
        "BT/bt.f90": BROKEN, "BT/Makefile": FORTRAN_MAKE.format(app="bt", fortran=f"({fortran})"),
        "IS/is.c": IS, "IS/Makefile": C_MAKE}
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return top


def vrm(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return warm.run(["npb", "build", *arguments], cwd=cwd, env={**mpirun_environment(), **env}, timeout=120)


def run(program: Path) -> str:
    return subprocess.run(["mpirun", "--oversubscribe", "-np", "1", str(program)], text=True,
                          env=mpirun_environment(), stdout=subprocess.PIPE, timeout=60,
                          check=True).stdout


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")
            if path.is_file()}


@needs_fortran
def test_flags_are_added_where_old_fortran_needs_them_and_the_programs_run(tmp_path: Path) -> None:
    top = suite(tmp_path)
    before = snapshot(top)
    done = vrm("--source", str(top), "--apps", "ep,cg,is", "--classes", "S,A", "--out", "bin",
               cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(re.findall(r"^\[\d/6\] (\S+): (.*?)(?:; about .* left)?$", done.stdout, re.M))
    assert sorted(lines) == ["cg.A.x", "cg.S.x", "ep.A.x", "ep.S.x", "is.A.x", "is.S.x"]
    assert lines["ep.A.x"] == ("built (with -fallow-argument-mismatch -fallow-invalid-boz)"
                               ) or lines["ep.A.x"] == (
        "built (with -fallow-invalid-boz -fallow-argument-mismatch)")
    assert lines["cg.A.x"] == "built (with -fallow-invalid-boz)"
    assert lines["is.A.x"] == "built"
    assert "6 of 6 executables" in done.stdout
    for name in ("ep.A.x", "cg.S.x", "is.A.x"):
        assert f"{name[:2].upper()} class {name[3]}" in run(tmp_path / "bin" / name)
    assert snapshot(top) == before, "the user's source was changed"
    assert sorted(os.listdir(tmp_path / "bin")) == sorted(lines)


@needs_fortran
def test_a_failure_is_named_and_the_rest_is_installed(tmp_path: Path) -> None:
    suite(tmp_path)
    done = vrm("--source", "NPB3.4", "--apps", "bt,is", "--classes", "W", "--out", "bin",
               "--work", "work", cwd=tmp_path)
    assert done.returncode == 1
    assert "bt.W.x: failed (bt, class W): bt.f90:2: Error:" in done.stderr
    assert os.listdir(tmp_path / "bin") == ["is.W.x"]
    assert "1 of 2 executables" in done.stdout
    tree = tmp_path / "work" / "bt"
    assert "bt\tW\n" in (tree / "config/suite.def").read_text()
    assert "FFLAGS = -O3" in (tree / "config/make.def").read_text()
    assert "undefined_function" in (tree / "bt.W.x.log").read_text()


@needs_fortran
def test_the_archive_and_a_class_the_suite_does_not_know(tmp_path: Path) -> None:
    suite(tmp_path)
    archive = tmp_path / "NPB3.4.9.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "NPB3.4", "NPB3.4")
    shutil.rmtree(tmp_path / "NPB3.4")
    done = vrm("--source", archive.name, "--apps", "cg", "--classes", "S,F", "--out", "bin",
               cwd=tmp_path)
    assert done.returncode == 1
    assert os.listdir(tmp_path / "bin") == ["cg.S.x"]
    assert ("cg.F.x: failed (cg, class F): setparams: class F is not one of S W A B C\n"
            in done.stderr)


@needs_c
def test_the_older_suite_makes_an_executable_for_each_rank_count(tmp_path: Path) -> None:
    suite(tmp_path, "3.3")
    done = vrm("--source", "NPB3.3", "--apps", "is", "--classes", "S", "--out", "bin",
               cwd=tmp_path)
    assert done.returncode == 2 and "--ranks" in done.stderr
    done = vrm("--source", "NPB3.3", "--apps", "is", "--classes", "S", "--ranks", "1,4",
               "--out", "bin", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(os.listdir(tmp_path / "bin")) == ["is.S.1", "is.S.4"]


@needs_c
@pytest.mark.parametrize("form", ["directory", "archive"])
def test_of_several_suites_the_newest_is_taken_and_said(tmp_path: Path, form: str) -> None:
    for version in ("3.3", "3.4"):
        suite(tmp_path / "made", version)
        shutil.move(tmp_path / f"made/NPB{version}/NPB{version}-MPI",
                    tmp_path / f"all/NPB{version}-MPI")
    (tmp_path / "all/NPB3.0-MPI").mkdir()
    source = "all"
    if form == "archive":
        source = "all.tar.gz"
        with tarfile.open(tmp_path / source, "w:gz") as tar:
            tar.add(tmp_path / "all", "all")
    done = vrm("--source", source, "--apps", "is", "--classes", "S", "--out", "bin", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert os.listdir(tmp_path / "bin") == ["is.S.x"]  # 3.3 would make is.S.1
    assert "NPB3.4-MPI is taken, not NPB3.3-MPI" in done.stdout
    assert "--source .../NPB3.3-MPI" in done.stdout and ("unpack" in done.stdout) == (
        form == "archive")
    done = vrm("--source", "all/NPB3.3-MPI", "--apps", "is", "--classes", "S", "--ranks", "1",
               "--out", "old", cwd=tmp_path)
    assert os.listdir(tmp_path / "old") == ["is.S.1"] and "taken" not in done.stdout


@pytest.mark.parametrize("complaint, flag", [
    # gfortran 12 on common/randi8.f90 of NPB 3.4, and on EP.
    ("   24 |       parameter(i246m1=X'00003FFFFFFFFFFF')\n      |                       1\nError: "
     "Hexadecimal constant at (1) uses nonstandard X instead of Z "
     "[see '-fno-allow-invalid-boz']\n", "-fallow-invalid-boz"),
    ("Error: BOZ literal constant at (1) is neither a data-stmt value nor an actual argument to "
     "INT/REAL/DBLE/CMPLX intrinsic subprogram [see '-fno-allow-invalid-boz']\n",
     "-fallow-invalid-boz"),
    ("Error: Type mismatch between actual argument at (1) and actual argument at (2) "
     "(REAL(8)/INTEGER(4)).\n", "-fallow-argument-mismatch")])
def test_what_compilers_say_of_the_official_source_has_a_remedy(complaint: str, flag: str) -> None:
    assert [remedy.flag for remedy in npb_build.REMEDIES
            if remedy.complaint.search(complaint)] == [flag]


@needs_c
def test_without_fortran_the_program_in_c_is_built(tmp_path: Path) -> None:
    suite(tmp_path)
    beside = tmp_path / "tools"
    beside.mkdir()
    # As on a machine whose wrapper is there but whose gfortran is not.
    (beside / "mpif90").write_text("#!/bin/sh\necho 'gfortran: not found'\nexit 1\n")
    (beside / "mpif90").chmod(0o755)
    done = vrm("--source", "NPB3.4", "--apps", "is,cg", "--classes", "S", "--out", "bin",
               "--mpifc", str(beside / "mpif90"), cwd=tmp_path)
    assert done.returncode == 1
    assert os.listdir(tmp_path / "bin") == ["is.S.x"]
    assert "cg.S.x: failed" in done.stderr and "gfortran" in done.stderr


@needs_c
@pytest.mark.parametrize("command, made", [
    (["-m", "vrm.cli", "npb", "build", "--source", "NPB3.4"], ["is.S.x"]),
    (["-m", "vrm.cli", "npb", "build"], []),
    ([str(Path(npb_build.bundled().__file__))], [])], ids=["official", "bundled", "build.py"])
def test_interrupted_it_reports_no_failures(tmp_path: Path, command: list[str],
                                            made: list[str]) -> None:
    """Ctrl-C goes to the compilers, too, and the official suite's make: these are let go on."""
    suite(tmp_path)
    compiler = tmp_path / "slow-mpicc"
    compiler.write_text(f"""#!/bin/sh
        case $* in *is.c*) : >> {tmp_path}/compiling
            while [ ! -e {tmp_path}/go ]; do sleep 0.02; done;; esac
        exec mpicc "$@"
    """)
    compiler.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, *command, "--apps", "is", "--classes", "S,W", "--out", "bin", "-j", "1",
         "--mpicc", str(compiler)], cwd=tmp_path, env=mpirun_environment(), text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until((tmp_path / "compiling").exists, "the compiler runs")
    os.killpg(process.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in said, said
    assert "failed" not in said and "Traceback" not in said, said
    assert set(made) <= set(os.listdir(tmp_path / "bin"))


@needs_c
def test_the_bundled_programs_are_built_without_a_source(tmp_path: Path) -> None:
    done = vrm("--apps", "ep", "--classes", "S", "--out", "bin", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "bin/ep.S.x").exists()
    again = vrm("--apps", "ep", "--classes", "S", "--out", "bin", cwd=tmp_path)
    assert "ep.S.x: unchanged" in again.stdout


@needs_c
@pytest.mark.parametrize("arguments, message", [
    (["--source", "nix.tar.gz"], "no such file"),
    (["--source", "text"], "text: not an archive, or not complete (expected a .tar"),
    (["--source", "cut.tar.gz"], "cut.tar.gz: not an archive, or not complete"),
    (["--source", "NPB3.4", "--apps", "ep", "--work", "text"], "another place with --work"),
    (["--source", "NPB3.4", "--apps", "ep", "--work", "mine"], "mine/ep is there and was not made"),
    (["--source", "empty"], "no NPB-MPI in it"),
    (["--source", "serial"], "NPB3.4-SER, which do not use MPI"),
    (["--source", "NPB3.4", "--apps", "ft"], "no source of ft; there are bt, cg, ep, is"),
    (["--classes", "Q"], "there is no class Q"),
    (["--work", "w"], "--work is for the official suite"),
    (["--source", "NPB3.4", "--mpicc", "/nix/mpicc"], "no MPI C compiler /nix/mpicc"),
    (["--source", "evil.tar"], "outside"),
])
def test_what_cannot_be_built_is_said_with_the_mend(tmp_path: Path, arguments: list[str],
                                                    message: str) -> None:
    suite(tmp_path)
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine/ep").mkdir(parents=True)
    with tarfile.open(tmp_path / "whole.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "NPB3.4", "NPB3.4")
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[:len(whole) // 2])
    serial = tmp_path / "serial/NPB3.4-SER/sys"
    serial.mkdir(parents=True)
    (serial / "setparams.c").touch()
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../out"), io.BytesIO(b""))
    done = vrm(*arguments, "--out", "bin", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "bin").exists() or not os.listdir(tmp_path / "bin")
    assert (tmp_path / "mine/ep").is_dir()


def test_without_an_mpi_compiler_it_says_how_to_get_one(tmp_path: Path) -> None:
    suite(tmp_path)
    (tmp_path / "path").mkdir()
    if shutil.which("make"):
        (tmp_path / "path/make").symlink_to(shutil.which("make"))
    done = vrm("--source", "NPB3.4", "--out", "bin", cwd=tmp_path, PATH=str(tmp_path / "path"))
    assert done.returncode == 2 and "install" in done.stderr and "Traceback" not in done.stderr


def test_the_files_for_the_suite() -> None:
    tools = npb_build.Compilers("/m/mpicc", "/m/mpif90", "make")
    text = make_def(tools, ["-O3", "-fallow-invalid-boz"], ["-O2"])
    values = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    assert values["MPIFC"] == values["MPIF77"] == values["FLINK"] == "/m/mpif90"
    assert values["FFLAGS"] == "-O3 -fallow-invalid-boz" and values["CFLAGS"] == "-O2"
    assert values["BINDIR"] == "../bin" and values["RAND"] == "randi8"
    lines = suite_def(["ep", "cg"], ["S", "A"]).splitlines()[1:]
    assert lines == ["ep\tS", "ep\tA", "cg\tS", "cg\tA"]
    assert suite_def(["ep"], ["S"], [1, 4]).splitlines()[1:] == ["ep\tS\t1", "ep\tS\t4"]


@pytest.mark.parametrize("output, error", [
    ("x.f:43:40:\n\n   43 |  call f(a)\n      |  1\nError: Type mismatch in argument\n"
     "make: *** [x.o] Error 1\n", "x.f:43: Error: Type mismatch in argument"),
    ("is.c:3:5: error: unknown type name 'foo'\nmake: *** Error 1",
     "is.c:3:5: error: unknown type name 'foo'"),
    ("a.o: in function `main':\na.c:(.text+0x5): undefined reference to `f'\n",
     "a.c:(.text+0x5): undefined reference to `f'"),
    ("x.f:1:2:\n\nWarning: old\ny.f:7:1:\n\nError: new\n", "y.f:7: Error: new"),
    ("make: *** No rule to make target 'ft'.  Stop.\n",
     "make: *** No rule to make target 'ft'.  Stop."),
    (" no class F\nmake[1]: *** [Makefile:9: config] Error 1\nmake: *** [cg] Error 2\n",
     "no class F"),
    ("just this\n", "just this"), ("", "make ended with status 2 and printed nothing")])
def test_the_first_error_of_a_compiler(output: str, error: str) -> None:
    assert first_error(output, 2) == error


@pytest.mark.parametrize("complaint, flag", [
    ("Error: Type mismatch between actual argument at (1) and actual argument at (2) (INTEGER(4)/"
     "REAL(8)).", "-fallow-argument-mismatch"),
    ("Error: Rank mismatch in argument 'x' at (1) (scalar and rank-1)",
     "-fallow-argument-mismatch"),
    ("Error: BOZ literal constant at (1) is neither a data-stmt value nor an actual argument",
     "-fallow-invalid-boz"),
    ("ld: is.o:(.bss+0x0): multiple definition of `key'; c.o: first defined here", "-fcommon"),
    ("is.c:9: error: implicit declaration of function 'timer' [-Wimplicit-function-declaration]",
     "-Wno-error=implicit-function-declaration"),
    ("ft.f:(.text+0x10): relocation truncated to fit: R_X86_64_32S", "-mcmodel=medium"),
    ("Error: Syntax error in expression at (1)", None)])
def test_flags_belong_to_complaints(complaint: str, flag: str) -> None:
    flags = {remedy.flag for remedy in npb_build.REMEDIES if remedy.complaint.search(complaint)}
    assert flags == ({flag} if flag else set())


def test_a_vrm_without_its_source_tree_says_so(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npb_build.vrm, "__file__", str(tmp_path / "vrm/__init__.py"))
    with pytest.raises(BuildError, match="--source"):
        npb_build.bundled()
