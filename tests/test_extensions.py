"""vrm's own extensions: they come to vrm as installed packages do, by names in a file; the core imports none of them."""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from collections.abc import Iterator

import pytest

import vrm
from conftest import mpirun_environment, wait_until
from vrm import cli
from vrm.results.jobs import read_jobs
from vrm.scheduling.registry import PolicyError, Registry
from vrm.system import plugins

HOUSE = Path(vrm.__file__).parent

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("vrm.api", "session"): "the page of all public names; each is loaded when it is used first"}
"""The modules of the core that name an extension, each with the reason."""

USES = {"advice": "estimates forecast learning measured study", "allocations": "advice begin forecast study", "begin": "generate measured", "building": "", "counting": "building", "energy": "", "estimates": "", "formulas": "", "follow": "", "forecast": "counting formulas learning measured study", "formats": "", "generate": "formats measured", "help": "advice",
        "learning": "measured", "lending": "building", "measure": "energy generate measured study", "measured": "", "pbs": "slurm",
        "planning": "", "remote": "", "reserve": "", "session": "", "sites": "", "slurm": "building steps", "steps": "", "study": "generate lending measured", "top": "",
        "urgent": "forecast lending"}
"""The extensions, and which others each uses."""


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file instead of the one that names vrm's own extensions."""
    file = tmp_path / "entry_points.ini"
    monkeypatch.setattr(plugins, "DECLARED", file)
    yield file
    plugins._declared.cache_clear()


def test_a_name_in_the_file_is_one_of_vrms_own(declared: Path) -> None:
    declared.write_text("# a comment\n[vrm.orderings]\nTwice = vrm.model.quantities:seconds_of\n")
    things = Registry("thing", "vrm.orderings")
    things.register("once")(str)
    assert things.names == ["once", "Twice"] and things.added == [] and things.knows(" twice ")
    assert things.own("twice") is None and things.get("TWICE") is things.find("twice")
    assert things.get("twice").__name__ == "seconds_of"
    with pytest.raises(PolicyError, match="unknown thing `twic`; did you mean Twice"):
        things.find("twic")


def test_no_package_takes_the_place_of_such_a_name(declared: Path) -> None:
    declared.write_text("[vrm.orderings]\ntwice = vrm.model.quantities:seconds_of\n")
    mine, = plugins.own("vrm.orderings")
    assert (mine.package, mine.path) == ("vrm", "vrm.model.quantities:seconds_of")
    assert plugins.find("vrm.orderings", "Twice") == mine and not plugins.clash(mine, ())
    assert "vrm has one of that name" in plugins.clash(mine._replace(package="other", path="other:twice"), ())


def test_what_cannot_be_loaded_is_said(declared: Path) -> None:
    declared.write_text("[vrm.orderings]\ngone = vrm.model.quantities:gone\n")
    with pytest.raises(PolicyError, match="has no attribute 'gone'"):
        Registry("thing", "vrm.orderings").get("gone")


def test_without_the_file_there_is_nothing(declared: Path) -> None:
    assert plugins.own("vrm.commands") == () and plugins.find_own("vrm.orderings", "twice") is None


# ---------------------------------------------------------------------- what imports what


def modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """The modules of vrm in a folder, with their files."""
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(("vrm", *path.relative_to(HOUSE).with_suffix("").parts))
        yield name.removesuffix(".__init__"), path


def named(path: Path) -> set[str]:
    """The modules that a file imports, and the names of such in its texts, but in those that explain."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            found |= set(re.findall(r"vrm(?:\.\w+)+", node.value))
    return found


def capability(name: str) -> str:
    """The capability of a module: `study` of `vrm.ext.study.report.html_page`; "" of one of the core."""
    return name.split(".")[2] if name.startswith("vrm.ext.") else ""


def test_the_core_names_no_extension() -> None:
    found = {(name, capability(other)) for name, path in modules(HOUSE) if not capability(name) and name != "vrm.ext"
             for other in named(path) if capability(other)}
    assert found == set(EXCEPTIONS)


def test_extensions_name_each_other_only_where_it_is_said() -> None:
    found = {name: set() for name in USES}
    for name, path in modules(HOUSE / "ext"):
        if name != "vrm.ext":
            found[capability(name)] |= {capability(other) for other in named(path)} - {"", capability(name)}
    assert found == {name: set(others.split()) for name, others in USES.items()}
    assert [*TopologicalSorter(found).static_order()]  # in no circle


def test_the_page_has_the_same_table() -> None:
    page = (HOUSE.parent / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| `vrm/ext/(\w+)` \| [^|]+ \| ([\w, ]*)\|$", page, re.MULTILINE)
    assert {name: set(filter(None, re.split("[, ]+", others))) for name, others in said} == {
        name: set(others.split()) for name, others in USES.items()}
    assert {path.name for path in (HOUSE / "ext").iterdir() if (path / "__init__.py").exists()} == set(USES)


def test_each_declared_name_stands_for_something() -> None:
    groups = plugins._declared(plugins.DECLARED)
    assert set(groups) <= set(plugins.GROUPS)
    assert all(callable(plugins.load(plugin)) for group in groups.values() for plugin in group)


def test_a_command_of_an_extension_is_found_alone() -> None:
    whole = cli.parser().commands()
    for plugin in plugins.own("vrm.commands"):
        alone = cli.parser([plugin.name]).commands()
        assert list(alone) == ["run", "shell", plugin.name] and cli.modules_of([plugin.name]) == []
        assert alone[plugin.name].format_help() == whole[plugin.name].format_help()


def test_commands_of_the_core_do_not_read_what_extensions_add() -> None:
    code = "import sys, vrm.cli; vrm.cli.parser(['queue']); print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"configparser", "vrm.system.plugins", "vrm.ext"} & set(done.stdout.split())


# ---------------------------------------------------------------------- a vrm without them


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a vrm that has no extensions."""
    place = tmp_path_factory.mktemp("core")
    shutil.copytree(HOUSE, place / "vrm", ignore=lambda folder, names: ["ext"] if Path(folder) == HOUSE else [])
    return place


def typed(core: Path, words: str, cwd: Path, status: int = 0) -> str:
    """What this vrm prints, on both outputs."""
    env = {**mpirun_environment(), "PYTHONPATH": str(core)}
    done = subprocess.run([sys.executable, "-m", "vrm.cli", *words.split()], cwd=cwd, env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout
    return done.stdout


@contextlib.contextmanager
def running(core: Path, cwd: Path) -> Iterator[None]:
    """A manager of this vrm, until its jobs have ended; jobs may be given to it inside."""
    words = [sys.executable, "-m", "vrm.cli", "run", "--here", "--wait"]
    with subprocess.Popen(words, cwd=cwd, env={**mpirun_environment(), "PYTHONPATH": str(core)}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as manager:
        try:
            wait_until((cwd / "logs" / "state").exists, "it runs")
            yield
            said, _ = manager.communicate(timeout=60)
        finally:
            manager.kill()
    assert manager.returncode in (0, 1), said


def test_without_extensions_workloads_are_simulated(core: Path, tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("a 6 100 0\nb 2 60 0\nend\n")
    said = typed(core, "simulate queue --nodes 2 --sockets 1 --cores 4 --algorithm FCFS --backfill easy --policy pack "
                 "--out out", tmp_path)
    assert "2 completed" in said or "jobs/s" in said, said
    assert [row.status for row in read_jobs(tmp_path / "out" / "jobs.csv")] == ["completed"] * 2
    assert (HOUSE / "ext").exists() and not (core / "vrm" / "ext").exists()


def test_without_extensions_a_queue_is_run(core: Path, tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "hello").chmod(0o755)
    (tmp_path / "queue").write_text("hello 1 60 0\nhello 1 60 0\nend\n")
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Queue: queue}\nLauncher: {Kind: direct}\nLog: logs\n")
    assert "2 completed" in typed(core, "run --here", tmp_path)
    assert (tmp_path / "logs" / "hello.0.o").read_text() == "hello\n"
    assert "hello" in typed(core, "queue --all", tmp_path)


def test_without_extensions_scripts_are_run_and_commands_obeyed(core: Path, tmp_path: Path) -> None:
    """A script finds its job in variables, and an mpirun in it the agent; there is no srun of vrm's."""
    (tmp_path / "job.sh").write_text("#!/bin/sh\necho $VRM_JOB_ID $SLURM_NTASKS $(basename $VRM_STEPS)\nls $VRM_STEPS\n"
                                     "ls $(dirname $OMPI_MCA_plm_rsh_agent)\n")
    (tmp_path / "queue").write_text("job.sh 2 60 script=1\njob.sh 1 60 script=1 hold=1\n")
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Queue: queue}\nLauncher: {Kind: direct}\nLog: logs\n"
                                       "Nodes: 1\nSockets: 1\nCores: 2\nEmulate: true\n")
    with running(core, tmp_path):
        assert "job 2" in typed(core, "submit job.sh 1 60 --script", tmp_path)
        typed(core, "cancel 1", tmp_path)
        with open(tmp_path / "queue", "a") as queue:
            queue.write("end\n")
    assert (tmp_path / "logs" / "job.sh.0.o").read_text().split() == [
        "0", "2", "job.sh.0.steps", "cores", "nodes", "bash_env", "vrm-agent", "vrm-daemon", "vrm-rank", "vrm-rsh"]
    assert {row.id: row.status for row in read_jobs(tmp_path / "logs" / "jobs.csv")} == {
        0: "completed", 1: "cancelled", 2: "completed"}
    assert not [*(tmp_path / "logs" / "rankfiles").glob("*.steps")] and not (tmp_path / "logs" / "steps.csv").exists()


def test_without_extensions_their_policies_are_not_known(core: Path, tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("a 6 100 0\nend\n")
    machine = "simulate queue --nodes 2 --sockets 1 --cores 4"
    assert "unknown backfilling `sd`; known: none, easy, list, conservative, " in typed(
        core, f"{machine} --backfill sd", tmp_path, 2)
    assert "unknown node order `weighted`; known: number, first-fit, heatmap " in typed(
        core, f"{machine} --node-order weighted", tmp_path, 2)
    assert "unknown estimator `accasim`; known: requested (or" in typed(core, f"{machine} --estimates accasim", tmp_path, 2)
    for words, name in (("--algorithm q/t", "expression"), ("--starvation 25", "starvation")):
        assert f"the option `{name}` is one of vrm's extensions, which are not in this installation" in typed(
            core, f"{machine} --backfill easy {words}", tmp_path, 2)
    assert "unknown ordering `PRB`; " in typed(core, f"{machine} --algorithm PRB", tmp_path, 2)
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Queue: queue}\nLauncher: {Kind: hydra}\n")
    assert "unknown launcher `hydra`; known: openmpi, direct " in typed(core, "run --here", tmp_path, 2)
    (tmp_path / "vrm.yaml").unlink()
    (tmp_path / "vrm.yaml").write_text("Forecast: no\n")
    assert "vrm.yaml:1: Forecast: the extension forecast of vrm, which adds it, is not in this installation" in typed(
        core, "run --here", tmp_path, 2)
    (tmp_path / "vrm.yaml").unlink()
    (tmp_path / "ranks").write_text("a a b\nb a b\n")
    assert "the reader of measurements `heatmap` is one of vrm's extensions, which are not in this installation" in typed(
        core, f"{machine} --heatmap ranks", tmp_path, 2)
    assert "PowerCap is a constraint of vrm's extensions, which are not in this installation (vrm/ext)" in typed(
        core, f"{machine} --power-cap 900", tmp_path, 2)


def test_without_extensions_their_commands_say_what_is_missing(core: Path, tmp_path: Path) -> None:
    said = typed(core, "help", tmp_path)
    for plugin in plugins.own("vrm.commands"):
        assert f"\n  {plugin.name} " not in said
    for name in ("report", "top", "slurm"):
        assert (f"vrm: `{name}` is a command of vrm's extensions, which are not in this installation (vrm/ext); install vrm "
                "again, with all its files") in typed(core, name, tmp_path, 2)
    assert "vrm: --on is an option of vrm's extensions, which are not in this installation" in typed(
        core, "--on somewhere queue", tmp_path, 2)
    for words, said in (("run --here -- ./give-jobs.sh", "`-- PROGRAM`"), ("shell", "`vrm shell`")):
        assert f"vrm: {said} is an option of vrm's extensions, which are not in" in typed(core, words, tmp_path, 2)
    assert "vrm: --man is an option of vrm's extensions, which are not in" in typed(core, "help --man", tmp_path, 2)
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Queue: queue}\n")
    assert "vrm: --wait is an option of" in typed(core, "submit a 1 --wait", tmp_path, 2)
