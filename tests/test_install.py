"""A release: what it builds, and an installation without a checkout, from its wheel, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import vrm
from conftest import mpirun_environment
from vrm.results.jobs import read_jobs

ROOT = Path(__file__).resolve().parents[1]
HERE = str(Path(sys.executable).parent)
MPICC = shutil.which("mpicc") or shutil.which("mpicc", path=HERE)

pytestmark = pytest.mark.slow


def run(*argv: object, cwd: Path, **variables: str) -> str:
    """What a command prints on standard output; fails the test when it fails."""
    done = subprocess.run([str(word) for word in argv], cwd=cwd, env={**mpirun_environment(), **variables},
                          stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def checkout(tree: Path, umask: int) -> Path:
    """The tree as it is now, as a commit of a repository of its own; written under this umask."""
    before = os.umask(umask)
    try:
        tree.mkdir(parents=True)
        listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).exists():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).write_bytes((ROOT / name).read_bytes())
                (tree / name).chmod((ROOT / name).stat().st_mode & 0o777 & ~umask)
        who = [word for key in ("user.name=test", "user.email=test@localhost") for word in ("-c", key)]
        when = {"GIT_AUTHOR_DATE": "2026-01-01T12:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T12:00:00Z"}
        run("git", "init", "--quiet", cwd=tree)
        run("git", "add", "--all", "--force", cwd=tree)
        run("git", *who, "commit", "--quiet", "--message", "the tree", cwd=tree, **when)
    finally:
        os.umask(before)
    return tree


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the files of a release of the tree."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout of git")
    folder = tmp_path_factory.mktemp("release")
    tree = checkout(folder / "tree", 0o022)
    run(sys.executable, "packaging/release.py", "--draft", "--only-build", "--out", folder / "dist", cwd=tree)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(release: Path) -> Path:
    """The wheel of the release."""
    return next(release.glob("vrm-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `vrm` of a fresh environment with the wheel; its dependencies are those of this one."""
    pytest.importorskip("pip", reason="no pip in this environment")
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "env")
    python = place / "env/bin/python"
    library = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                       cwd=place).strip())
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (library / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel, cwd=place)
    return place / "env/bin/vrm"


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


def test_two_builds_in_different_places_are_the_same(release: Path, tmp_path: Path) -> None:
    """Also by another user, whose files nobody else may read, at another time."""
    other = checkout(tmp_path / "a longer name" / "tree", 0o077)
    (tmp_path / "out").mkdir()
    code = "import pathlib, release; release.build(pathlib.Path('../../out').resolve(), '1767268800')"
    run(sys.executable, "-c", "import os; os.umask(0o022)\n" + code, cwd=other, PYTHONPATH=str(other / "packaging"))
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(made) == 2
    for name in made:
        assert (tmp_path / "out" / name).read_bytes() == (release / name).read_bytes(), name


def test_the_sums_are_those_of_the_files(release: Path) -> None:
    printed = run("sha256sum", "--check", "SHA256SUMS", cwd=release)
    assert "vrm-" in printed and "recipes/conda/recipe.yaml: OK" in printed


def test_a_release_needs_a_publisher_and_a_commit(tmp_path: Path) -> None:
    def refusal(*words: str) -> str:
        done = subprocess.run([sys.executable, "packaging/release.py", *words, "--out", str(tmp_path / "out")], cwd=tree,
                              text=True, check=False, stderr=subprocess.PIPE)
        assert done.returncode == 1 and not (tmp_path / "out").exists()
        return done.stderr

    tree = checkout(tmp_path / "tree", 0o022)
    assert "[metadata]: url, download_url, maintainer, maintainer_email: missing" in refusal()
    (tree / "README.md").write_text("changed")
    assert "README.md" in refusal("--draft")


def test_the_source_distribution_has_what_tests_and_documentation_need(release: Path) -> None:
    with tarfile.open(next(release.glob("vrm-*.tar.gz"))) as packed:
        have = {name.partition("/")[2] for name in packed.getnames()}
    listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files"], cwd=ROOT, text=True, check=True,
                            stdout=subprocess.PIPE).stdout.split("\n")
    assert {name for name in listed if name and (ROOT / name).exists()} - have == {".gitignore"}


def test_the_wheel_is_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        pictures = [name for name in packed.namelist() if name.endswith((".png", ".svg", ".html"))]
    assert wheel.stat().st_size < 2_000_000
    assert pictures == ["vrm/ext/study/report/page.html"]


def test_the_documentation_comes_with_it(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "docs", cwd=tmp_path) == (ROOT / "docs/README.md").read_text()
    pages = sorted((ROOT / "docs").rglob("*.md"))
    for page in (pages[0], pages[-1]):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert run(installed, "docs", name, cwd=tmp_path) == page.read_text()


@pytest.mark.skipif(not shutil.which("man") or not shutil.which("groff"), reason="no man and groff")
def test_man_shows_the_manual_page(installed: Path, tmp_path: Path) -> None:
    shown = run("man", "--pager=cat", "vrm", cwd=tmp_path, MANPATH=str(installed.parents[1] / "share/man"))
    assert "vrm submit" in shown


def test_a_queue_is_made_and_simulated_with_it(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "--version", cwd=tmp_path) == f"vrm {vrm.__version__}\n"
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o755)
    run(installed, "init", cwd=tmp_path)
    (tmp_path / "queue").write_text("program 1 60\nprogram 1 30\n")
    run(installed, "check", cwd=tmp_path)
    run(installed, "simulate", "queue", "--nodes", "1", "--sockets", "1", "--cores", "2", "--out", "runs", cwd=tmp_path)
    assert [row.status for row in read_jobs(tmp_path / "runs/jobs.csv")] == ["completed", "completed"]


def test_it_is_installed_with_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    if subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps", "wcwidth"], cwd=tmp_path, check=False,
                      stderr=subprocess.DEVNULL).returncode:
        pytest.skip("pip cannot reach packages")
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    run(tmp_path / "env/bin/vrm", "simulate", "lublin:16:20", "--backfill", "easy", "--out", "runs", cwd=tmp_path)


@pytest.mark.mpi
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
