"""An installation without a checkout: the wheel that the tree makes, in an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from collections.abc import Iterator

import pytest

from conftest import mpirun_environment
from vrm.results.jobs import read_jobs

ROOT = Path(__file__).resolve().parents[1]
HERE = str(Path(sys.executable).parent)
MPICC = shutil.which("mpicc") or shutil.which("mpicc", path=HERE)

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


def run(*argv: object, cwd: Path) -> str:
    """What a command prints on standard output; fails the test when it fails."""
    done = subprocess.run([str(word) for word in argv], cwd=cwd, env=mpirun_environment(),
                          stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from a copy of the tree, which stays as it is."""
    pytest.importorskip("pip", reason="no pip in this environment")
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("vrm", "npb", "config"):
        shutil.copytree(ROOT / name, tree / name,
                        ignore=shutil.ignore_patterns("__pycache__", "bin"))
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir",
        folder, tree, cwd=folder)
    return next(folder.glob("vrm-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The `vrm` of a fresh environment with the wheel; its dependencies are those of this one."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "env")
    python = place / "env/bin/python"
    library = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                       cwd=place).strip())
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (library / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel, cwd=place)
    yield place / "env/bin/vrm"


def test_all_files_of_the_package_are_in_it(installed: Path, tmp_path: Path) -> None:
    where = Path(run(installed.parent / "python", "-c", "import vrm; print(vrm.__file__)",
                     cwd=tmp_path).strip()).parent
    assert installed.parents[1] in where.parents, "it is not the checkout's"
    wanted = {path.relative_to(ROOT) for folder in ("vrm", "npb")
              for path in (ROOT / folder).rglob("*.*") if path.is_file()
              and not {"__pycache__", "bin"} & set(path.parts[len(ROOT.parts):])}
    wanted -= {Path("npb/measure.py")}  # a measurement of the checkout's
    have = {Path("vrm") / path.relative_to(where) for path in where.rglob("*.*")}
    assert {path if path.parts[0] == "vrm" else "vrm" / path for path in wanted} <= have


def test_the_reference_of_the_configuration_is_printed(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "help", "config", cwd=tmp_path) == (ROOT / "config/reference.yaml").read_text()


def test_the_manual_page_is_where_man_looks_for_it(installed: Path, tmp_path: Path) -> None:
    page = installed.parents[1] / "share/man/man1/vrm.1"
    assert page.read_text(encoding="utf-8") == run(installed, "help", "--man", cwd=tmp_path)


@pytest.mark.skipif(not MPICC, reason="no mpicc")
def test_the_bundled_programs_are_built_and_run(installed: Path, tmp_path: Path) -> None:
    built = run(installed, "npb", "build", "--apps", "is", "--classes", "S", "--out", "bin",
                "--mpicc", MPICC, cwd=tmp_path)
    assert "1 of 1 executables" in built
    (tmp_path / "queue").write_text("is.S.x 1 10 0\nend\n")
    (tmp_path / "vrm.yaml").write_text(
        "Applications: {Path: bin, Queue: queue}\nNodes: 1\nSockets: 1\nCores: 1\nLog: log\n"
        f"Launcher: {{Mpirun: {Path(MPICC).with_name('mpirun')}}}\n")
    run(installed, "-c", "vrm.yaml", cwd=tmp_path)
    row, = read_jobs(tmp_path / "log/jobs.csv")
    assert (row.app, row.status) == ("is.S.x", "completed")
