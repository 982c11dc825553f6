"""vrm's own extensions: they come to vrm as installed packages do, by names in a file; the core imports none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from vrm.scheduling.registry import PolicyError, Registry
from vrm.system import plugins


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file in the place of the one that names vrm's own extensions."""
    file = tmp_path / "entry_points.ini"
    monkeypatch.setattr(plugins, "DECLARED", file)
    yield file
    plugins._declared.cache_clear()


def test_a_name_in_the_file_is_one_of_vrms_own(declared: Path) -> None:
    declared.write_text("# a comment\n[vrm.orderings]\nTwice = vrm.model.times:seconds_of\n")
    things = Registry("thing", "vrm.orderings")
    things.register("once")(str)
    assert things.names == ["once", "Twice"] and things.added == [] and things.knows(" twice ")
    assert things.own("twice") is None and things.get("TWICE") is things.find("twice")
    assert things.get("twice").__name__ == "seconds_of"
    with pytest.raises(PolicyError, match="unknown thing `twic`; did you mean Twice"):
        things.find("twic")


def test_no_package_takes_the_place_of_such_a_name(declared: Path) -> None:
    declared.write_text("[vrm.orderings]\ntwice = vrm.model.times:seconds_of\n")
    mine, = plugins.own("vrm.orderings")
    assert (mine.package, mine.path) == ("vrm", "vrm.model.times:seconds_of")
    assert plugins.find("vrm.orderings", "Twice") == mine and not plugins.clash(mine, ())
    assert "vrm has one of that name" in plugins.clash(mine._replace(package="other", path="other:twice"), ())


def test_what_cannot_be_loaded_is_said(declared: Path) -> None:
    declared.write_text("[vrm.orderings]\ngone = vrm.model.times:gone\n")
    with pytest.raises(PolicyError, match="has no attribute 'gone'"):
        Registry("thing", "vrm.orderings").get("gone")


def test_without_the_file_there_is_nothing(declared: Path) -> None:
    assert plugins.own("vrm.commands") == () and plugins.find_own("vrm.orderings", "twice") is None
