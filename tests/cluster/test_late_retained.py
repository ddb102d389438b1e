"""Retained messages that wait for etcd, and are late when they can be written."""

from __future__ import annotations

from math import inf

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_retained import retain, shown

from starlingmq.cluster.retained import retained_writer


def the_later_of_two_is_retained_after_etcd_was_away(first_back: str) -> None:
    """n1 takes a message, n2 a later one, and then their etcds come back, this one first."""
    fleet = Fleet(3)
    publishers = [fleet.connect(place, f"p{place}") for place in range(2)]
    retain(publishers[1], b"a/1", b"before")
    fleet.advance(0.2)
    for name in ("n1", "n2"):
        fleet.etcd.cut(name)
    retain(publishers[0], b"a/1", b"old")
    retain(publishers[0], b"a/2", b"of n1 only")
    fleet.advance(2.0)
    retain(publishers[1], b"a/1", b"new")
    fleet.advance(2.0)
    for name in sorted(("n1", "n2"), key=lambda name: name != first_back):
        fleet.etcd.heal(name, fleet.now)
        fleet.advance(3.0)
    assert [shown(node) for node in fleet.nodes] == [{b"a/1": b"new", b"a/2": b"of n1 only"}] * 3
    assert [node.cluster.retained.writer.mark == node.cluster.retained.writer.last for node in fleet.nodes] == [
        True
    ] * 3


@pytest.mark.parametrize("first_back", ["n1", "n2"])
def test_the_later_of_two_is_retained_after_etcd_was_away(first_back: str) -> None:
    the_later_of_two_is_retained_after_etcd_was_away(first_back)


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_an_earlier_message_that_replaces_a_later_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_writer, "LATE_SECONDS", inf)
    the_later_of_two_is_retained_after_etcd_was_away("n1")
    with pytest.raises(AssertionError):
        the_later_of_two_is_retained_after_etcd_was_away("n2")


def test_a_message_replaces_one_that_was_known_when_it_was_accepted_whatever_the_clocks_say() -> None:
    """The clock of n2 is ahead: its message is of the future."""
    fleet = Fleet(2)
    first, second = (fleet.connect(place, f"p{place}") for place in range(2))
    fleet[1].state.ctx.at(fleet.now + 60.0)
    retain(second, b"a/1", b"old")
    fleet.advance(0.2)
    fleet.etcd.cut("n1")
    retain(first, b"a/1", b"new")
    fleet.advance(2.0)
    fleet.etcd.heal("n1", fleet.now)
    fleet.advance(3.0)
    assert [shown(node) for node in fleet.nodes] == [{b"a/1": b"new"}] * 2
