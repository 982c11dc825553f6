"""The pages of docs/reference/ that come from the code are those that the code gives now."""

from __future__ import annotations

import pytest

from make_reference import HERE, PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert (HERE / page).read_text(encoding="utf-8") == PAGES[page](), (
        "out of date: type `python tests/make_reference.py`")
