"""docs/dev/architecture.md: every module, class and function that it names is there, and its table of rooms
is the one that imports are held to."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from support.rooms import DIRECT

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(vrm(?:\.\w+)+)(?:\(\))?`", PAGE)))
PATHS = sorted(set(re.findall(r"`((?:vrm|tests|config|docs)/[\w/.]+)`", PAGE)))


def found(name: str) -> Any:
    """What a dotted name stands for: a module, or something in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_is_there(name: str) -> None:
    assert found(name) is not None


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_the_page_are_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_table_of_rooms_is_that_of_the_imports() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]+ \| ([\w., ]*)\|$", PAGE, re.MULTILINE)
    said: dict[str, set[str]] = {room: set(filter(None, re.split(r"[, ]+", below)))
                                 for room, below in rows}
    assert said == {room: set(below.split()) for room, below in DIRECT.items()}


def test_arrows_of_the_picture_go_down() -> None:
    rows = {room.replace("/", "."): int(number)
            for number, rooms in re.findall(r"^ +(\d)   (.*)$", PAGE.split("```")[1], re.MULTILINE)
            for room in re.findall(r"[a-z]+(?:/[a-z]+)?", re.sub(r"\(.*?\)", "", rooms))}
    assert set(DIRECT) <= set(rows)
    assert all(rows[other] < rows[room] for room in DIRECT for other in DIRECT[room].split())


def test_steps_of_a_job_are_in_order() -> None:
    steps = re.findall(r"^\| (\d+) ", PAGE, re.MULTILINE)
    assert steps == [str(number) for number in range(1, 11)] and len(NAMES) > 50
