"""Where a run's files are: the short way to know it says what the whole configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, strategies as st

from vrm.config.paths import OF_EXTENSIONS, KEYS, RunPaths, places
from vrm.config.problems import ConfigError
from vrm.config.schema import Settings, load
from vrm.system.plugins import own

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "config"
PATHS = st.one_of(st.sampled_from(["logs", "../up", "/tmp/x", "~/runs", "~nobody-here/x", "$HOME/a", "${HOME}b", "$NOT_SET/x",
                                   "a$$b", " spaced ", "", "  ", "a\tb"]),
                  st.none(), st.integers(), st.lists(st.text(max_size=2), max_size=1))


def whole(path: Path | None) -> RunPaths | None:
    """What all of the configuration says; None where something is wrong with it."""
    try:
        found = load(path)
    except ConfigError:
        return None
    return RunPaths(found.log, found.state, found.directory)


def test_the_keys_are_those_of_the_settings() -> None:
    assert {field.alias for field in Settings.model_fields.values()} == {
        *KEYS, *(key for key in OF_EXTENSIONS if "." not in key)}
    assert {*OF_EXTENSIONS} == {plugin.name for plugin in own("vrm.keys")}
    assert all(plugin.path.split(".")[2] == OF_EXTENSIONS[plugin.name] for plugin in own("vrm.keys"))


@pytest.mark.parametrize("path", [*sorted(EXAMPLES.rglob("*.yaml")), None])
def test_of_the_examples_and_the_defaults(path: Path | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert places(path and str(path)) == whole(path)


@example(keys={"Log": "a", "Version": "2"}, tail="")
@example(keys={"Log": "a", "Version": None}, tail="")
@example(keys={"Logs": "a"}, tail="")
@example(keys={"Log": "a"}, tail="Log: b\n")
@given(keys=st.dictionaries(st.sampled_from(["Log", "State", "Directory"]), PATHS),
       tail=st.sampled_from(["", "!tag x: 1\n", "Log: b\n"]))
def test_the_same_paths_or_no_answer(tmp_path_factory: pytest.TempPathFactory, keys: dict, tail: str) -> None:
    path = tmp_path_factory.mktemp("run") / "vrm.yaml"
    path.write_text(yaml.safe_dump(keys) + tail if keys else tail)
    try:
        found = places(str(path))
    except ConfigError:
        found = None
    assert found == whole(path)


def test_what_else_is_wrong_is_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "vrm.yaml"
    path.write_text("Log: here\nNodes: many\n")
    assert places(str(path)) == RunPaths(tmp_path / "here", tmp_path / "here" / "state", tmp_path / "here")
    assert whole(path) is None
