"""What clients and managers say to each other: it comes back as it was, and what is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.slurm.calls import wire
from vrm.ext.slurm.calls.client import call_from_json, call_to_json
from vrm.ext.slurm.calls.wire import Call

TEXT = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
NAMES = TEXT.map(lambda text: text.replace("=", "") or "X")
CALLS = st.builds(Call, TEXT, st.lists(TEXT, max_size=5), TEXT, st.dictionaries(NAMES, TEXT, max_size=4))


@given(CALLS)
@settings(deadline=None)
def test_a_call_comes_back_as_it_was(call: Call) -> None:
    data = call.packed()
    assert wire.size_of(data) == len(data)
    assert wire.call_of(data) == call
    assert call_from_json(call_to_json(call)) == call


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_what_is_no_call_is_refused(data: bytes) -> None:
    try:
        size = wire.size_of(data)
        wire.call_of(wire.HEADER.pack(wire.MAGIC, len(data)) + data)
    except wire.WireError:
        return
    assert size is None or size <= wire.LARGEST + wire.HEADER.size


@given(st.lists(st.tuples(st.sampled_from([b"O", b"E", b"X"]), st.binary(max_size=30)), max_size=5), st.data())
@settings(deadline=None)
def test_frames_come_in_any_parts(sent: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    whole = b"".join(wire.frame(kind, text) for kind, text in sent)
    cut = data.draw(st.integers(0, len(whole)))
    first, rest = wire.frames(whole[:cut])
    then, left = wire.frames(rest + whole[cut:])
    assert first + then == sent and not left


def test_a_long_answer_comes_in_frames_that_every_client_takes() -> None:
    text = "é" * (wire.LARGEST // 2 + 12345)
    found, rest = wire.frames(wire.texts([(b"O", text), (b"E", ""), (b"E", "x")]))
    assert not rest and max(len(data) for _, data in found) <= 1 << 20
    assert b"".join(data for kind, data in found if kind == b"O").decode() == text and found[-1] == (b"E", b"x")


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(wire.WireError):
        wire.size_of(wire.HEADER.pack(wire.MAGIC, wire.LARGEST + 1))
    with pytest.raises(wire.WireError):
        wire.frames(wire.FRAME.pack(b"O", wire.LARGEST + 1))
