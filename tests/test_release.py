"""What a release says of itself agrees: versions, licence, and which Python and libraries it needs; in setup.cfg, in the
files that cite it, and in the recipes of packaging/.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import yaml

import vrm

ROOT = Path(__file__).resolve().parents[1]


def setup() -> configparser.ConfigParser:
    """What setup.cfg says."""
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def requirements() -> dict[str, tuple[str, str]]:
    """The least version of each library, and the first that is too new, by its name in small letters."""
    lines = setup()["options"]["install_requires"].split("\n")[1:]
    found = [re.fullmatch(r"(\S+) >= (\S+), < (\S+)", line) for line in lines]
    return {line[1].lower(): (line[2], line[3]) for line in found if line}


def release_program() -> Any:
    """packaging/release.py, as a module."""
    spec = util.spec_from_file_location("release", ROOT / "packaging" / "release.py")
    assert spec and spec.loader
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the recipes, filled in."""
    out = tmp_path_factory.mktemp("recipes")
    release_program().recipes(out, "0" * 64)
    return out


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == vrm.__version__
    release = vrm.__version__.partition(".dev")[0]
    assert f"\n## {release}" in (ROOT / "CHANGELOG.md").read_text()


def test_what_cites_it_agrees_with_the_setup() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    codemeta = json.loads((ROOT / "codemeta.json").read_text())
    known = setup()
    assert codemeta["name"] == known["metadata"]["name"]
    assert codemeta["description"] == known["metadata"]["description"]
    assert codemeta["version"] == citation["version"] == vrm.__version__
    assert codemeta["license"] == f"https://spdx.org/licenses/{known['metadata']['license']}"
    assert citation["license"] == known["metadata"]["license"]
    assert [each["name"] for each in codemeta["author"]] == [each["name"] for each in citation["authors"]]
    assert codemeta["runtimePlatform"] == f"Python {known['options']['python_requires']}"
    assert codemeta["softwareRequirements"] == known["options"]["install_requires"].split("\n")[1:]
    assert codemeta.get("url") == citation.get("url") == known["metadata"].get("url")


def test_the_recipe_for_conda_agrees_with_the_setup(recipes: Path) -> None:
    recipe = yaml.safe_load((recipes / "conda/recipe.yaml").read_text())
    assert recipe["context"]["version"] == vrm.__version__
    assert recipe["about"]["license"] == "MIT"
    assert recipe["about"]["summary"] == setup()["metadata"]["description"]
    python, *libraries, system = recipe["requirements"]["run"]
    assert python == f"python {setup()['options']['python_requires']}" and system == "__linux"
    assert libraries == sorted(f"{name} >={least},<{over}" for name, (least, over) in requirements().items())
    assert recipe["build"]["python"]["entry_points"] == setup()["options.entry_points"]["console_scripts"].split("\n")[1:]


def test_the_recipe_for_spack_agrees_with_the_setup(recipes: Path) -> None:
    def spec(name: str, least: str, over: str) -> str:
        """`@3.2:3` is from 3.2 to the last 3.x: what Spack writes for >= 3.2, < 4."""
        last = str(int(over) - 1)
        return f"py-{name}@{least}:{last}" if least != last else f"py-{name}@{last}"

    text = (recipes / "spack/packages/vrm/package.py").read_text()
    assert f'version("{vrm.__version__}", sha256="{"0" * 64}")' in text and 'license("MIT")' in text
    needs = re.findall(r'^    depends_on\("([^"]+)", type=\("build", "run"\)\)', text, re.M)
    assert needs == [f"python@{setup()['options']['python_requires'].removeprefix('>=')}:",
                     *sorted(spec(name, *bounds) for name, bounds in requirements().items())]
    plots = [re.sub(" [<>]= ?|, < ", " ", line).lower().split() for line in setup()["options.extras_require"]["plots"].split("\n")[1:]]
    assert re.findall(r'^        depends_on\("([^"]+)"', text, re.M) == [spec(*each) for each in plots]


def test_the_easyconfig_agrees_with_the_setup(recipes: Path) -> None:
    path, = (recipes / "easybuild").iterdir()
    values = {"name": "vrm", "version": vrm.__version__}
    for node in ast.parse(path.read_text()).body:
        assert isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id not in values:
            tree = ast.parse(ast.unparse(node.value).replace("(name, version,", "('vrm', 'itself',"), mode="eval")
            values[node.targets[0].id] = ast.literal_eval(tree)
    assert path.name == f"vrm-{vrm.__version__}-foss-{values['toolchain']['version']}.eb"
    versions = {each[0].lower(): each[1] for each in [*values["dependencies"], *values["exts_list"]]}
    bundles = {"psutil": "python-bundle-pypi", "numpy": "scipy-bundle"}  # has it in a version of its own
    for name, (least, over) in requirements().items():
        if name in bundles:
            assert bundles[name] in versions
        else:
            assert numbers(least) <= numbers(versions[name]) < numbers(over), name


def numbers(version: str) -> list[int]:
    """The numbers of a version."""
    return [int(part) for part in version.split(".")]


@pytest.mark.parametrize("name", ["apptainer/vrm.def", "docker/Dockerfile"])
def test_containers_install_this_release(recipes: Path, name: str) -> None:
    text = (recipes / name).read_text()
    assert f"pip install --no-cache-dir --no-deps /tmp/vrm/vrm-{vrm.__version__}-py3-none-any.whl" in text
    assert "pip install --no-cache-dir --require-hashes --requirement /tmp/vrm/requirements.txt" in text
    assert re.search(r'(License |licenses=")MIT', text)


@pytest.mark.parametrize("name", ["modules/vrm.lua", "modules/vrm.tcl"])
def test_module_files_are_of_this_release(recipes: Path, name: str) -> None:
    text = (recipes / name).read_text()
    assert f"/opt/vrm/{vrm.__version__}" in text and f"Version: {vrm.__version__}" in text and "License: MIT" in text


def test_recipes_are_filled_in(recipes: Path) -> None:
    for path in recipes.rglob("*"):
        assert path.is_dir() or not re.search("@[A-Z][A-Z0-9]*@", path.read_text()), path


def test_the_licence_is_there_and_named() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.startswith("MIT License") and "the vrm authors" in text
    assert setup()["metadata"]["license"] == "MIT"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == "MIT"


def test_libraries_have_bounds_and_ci_has_their_versions() -> None:
    wanted = setup()["options"]["install_requires"].split("\n")[1:]
    locked = (ROOT / ".ci/constraints.txt").read_text().lower()
    for line in wanted:
        assert ">=" in line and "<" in line, line
        assert re.search(rf"^{line.split()[0].lower()}==", locked, re.M), line


def test_the_oldest_python_is_said_once() -> None:
    oldest = setup()["options"]["python_requires"].removeprefix(">=")
    text = (ROOT / "tasks.py").read_text()
    assert f"({oldest.replace('.', ', ')})" in text and f"Python {oldest} or newer" in text
    assert f"Python {oldest} or newer" in (ROOT / "README.md").read_text()


def test_the_project_has_no_links() -> None:
    """A link into one machine's folders is dead in every other clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout of git")
    listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "--stage"], cwd=ROOT, text=True,
                            check=True, stdout=subprocess.PIPE).stdout.splitlines()
    assert listed and [line for line in listed if line.startswith("120000")] == []


def test_tasks_explains_itself() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tasks.py")], text=True, check=False,
                          stdout=subprocess.PIPE)
    assert done.returncode == 2 and "--quick" in done.stdout


def test_what_is_installed_already_is_not_installed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT)
    import tasks

    constraints, calls = tmp_path / "constraints", []
    metadata = tmp_path / "env/lib/python3/site-packages/vrm-1.dist-info"
    metadata.mkdir(parents=True)
    monkeypatch.setattr(tasks, "VENV", tmp_path / "env")
    monkeypatch.setattr(tasks, "environment", lambda: None)
    monkeypatch.setattr(tasks, "mpi_tools", lambda: ["mpirun", "mpicc"])
    monkeypatch.setattr(tasks, "pip", lambda *words: calls.append(words[-1]))
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    for _ in range(2):
        tasks.install()
        tasks.install("test")
    assert calls == [".", ".[test]"]
    constraints.write_text("PyYAML==6.0\n")
    tasks.install("test")
    tasks.install("test")
    assert calls[2:] == [".[test]"]
    metadata.rmdir()
    tasks.install("test")
    assert calls[3:] == [".[test]"]


def test_the_paper_cites_what_its_bibliography_has() -> None:
    text, entries = (ROOT / "paper/paper.md").read_text(), (ROOT / "paper/paper.bib").read_text()
    assert set(re.findall(r"@(\w+)", text)) == set(re.findall(r"^@\w+\{(\w+),$", entries, re.M))
    assert len(text.split()) <= 1100
