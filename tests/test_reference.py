"""The pages of docs/reference/ that come from the code are those that the code gives now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def maker() -> Any:
    """The program that makes the pages, as a module."""
    found = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(maker().PAGES))
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / "reference" / page).read_text(encoding="utf-8") == maker().PAGES[page](), (
        "out of date: type `python docs/make_reference.py`")
