"""Python's collector of cyclic garbage while a program starts."""

from __future__ import annotations

import gc

import pytest

from vrm.system.memory import no_collections


def test_nothing_is_collected_while_a_program_starts_and_all_is_afterwards() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(KeyError), no_collections():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() > frozen
    gc.unfreeze()
