"""Complete answers of vrm are the recorded ones (tests/data/answers): a change of a text is seen and judged.
`python tests/make_answers.py` records them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.answers import ANSWERS, COMMANDS, ERRORS, answers, made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the commands are typed."""
    folder = tmp_path_factory.mktemp("answers").resolve() / "site"
    made(folder)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_an_answer_is_the_recorded_one(name: str, place: Path) -> None:
    assert answers(name, place) == (ANSWERS / f"{name}.txt").read_text(encoding="utf-8")


def test_there_are_enough_messages() -> None:
    assert len({*ERRORS}) == len(ERRORS) > 60
    text = (ANSWERS / "errors.txt").read_text(encoding="utf-8")
    assert text.count("[exit status ") == len(ERRORS) and "Traceback" not in text
