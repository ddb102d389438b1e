"""Short queues, and a node that is back: they drop no message that the others have accepted for it meanwhile."""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

import pytest
from tests.cluster.limited_world import run
from tests.few import few

from starlingmq.cluster.links.peer_transport import _SEQUENCE_BITS, PeerTransport
from starlingmq.core.delivery.forward_batch import ForwardReader

FOUND: Final = 77
"""Frames that were on the way when a cut began arrived after it, before the two nodes were connected again."""

patches = pytest.mark.interpreted_only("what is compiled can not be patched")


@pytest.mark.parametrize("seed", few([*range(8), FOUND], 0, 1, FOUND))
def test_what_waits_for_a_node_comes_whatever_its_queues_take(seed: int) -> None:
    assert run(seed).books.acknowledged_count


def _received(self: PeerTransport, blob: bytes, incarnation: int, sequence: int, made_at: float, kept: bool) -> None:
    reader = ForwardReader(blob, self.peer.number, made_at)
    reader.kept = kept
    self._inbox.append((reader, incarnation << _SEQUENCE_BITS | sequence))


@patches
def test_the_worlds_find_frames_that_were_on_the_way_when_a_cut_began() -> None:
    with patch.object(PeerTransport, "received", _received), pytest.raises(AssertionError, match="is lost"):
        run(FOUND)


@patches
@pytest.mark.long(
    kept="tests/cluster/test_limited_worlds.py::test_what_waits_for_a_node_comes_whatever_its_queues_take"
)
def test_the_worlds_find_a_node_that_does_not_say_what_has_waited() -> None:
    with (
        patch.object(PeerTransport, "keep", lambda self, seconds: None),
        pytest.raises(AssertionError, match="is lost"),
    ):
        for seed in range(8):
            run(seed)
