"""What a release says of itself agrees: versions, licence, and which Python and libraries it needs."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import vrm

ROOT = Path(__file__).resolve().parents[1]


def setup() -> configparser.ConfigParser:
    """What setup.cfg says."""
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == vrm.__version__
    release = vrm.__version__.partition(".dev")[0]
    assert f"\n## {release}" in (ROOT / "CHANGELOG.md").read_text()


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
