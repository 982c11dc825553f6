"""What the runner of a node does with what is on its way to it, while nobody may want that any more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from vrm.live.runner import wire
from vrm.live.runner.runner import DOUBT, SETTLED, Runner


class Place:
    """A runner, what the relay writes to it, and the orders that it has carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inbox, self.relay = os.pipe()
        self.said, outbox = os.pipe()
        self.wake, self.woken = os.pipe()
        self.runner = Runner(b"n1", inbox, outbox, self.wake)
        self.runner.more.register(inbox)
        self.done: list[int] = []
        monkeypatch.setattr(self.runner, "carry_out", lambda number, what: self.done.append(number))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(monkeypatch)
    yield place
    for number in (place.runner.inbox, place.runner.outbox, place.said, place.wake, place.woken):
        os.close(number)


def test_what_the_relay_has_sent_last_does_not_begin_when_it_is_gone(node: Place) -> None:
    os.write(node.relay, b"an order")
    assert node.runner.read() == b"an order"
    os.write(node.relay, b"another")
    os.close(node.relay)
    assert node.runner.read() == b""


@pytest.mark.parametrize("silence", [DOUBT / 2, 2 * DOUBT])
def test_after_a_silence_an_order_is_held_until_the_relay_answers(node: Place, silence: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node may have been given up meanwhile: then nobody answers."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    heard = node.runner.check_silence(clock[0] - silence)
    node.runner.take(1, wire.marshal.dumps(15, wire.PORTABLE))
    doubtful = silence > DOUBT
    assert node.done == ([] if doubtful else [1])
    if doubtful:
        assert wire.part_of(os.read(node.said, 4096).rstrip(b"\n"))[0] == b"n1", "it asks"
    clock[0] += SETTLED
    node.runner.check_silence(heard)
    assert node.done == [1]
    os.close(node.relay)
