"""All nodes are killed again when they have hardly begun to hand sessions over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

import pytest
from tests.cluster.killed_twice_world import run
from tests.few import few

from starlingmq.cluster.membership import quorum
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.core.session.session_transfer import SessionTransfer
from starlingmq.wire.reasons import ProtocolError

FOUND: Final = 69
"""A source was killed after it had asked its disk for the window that it was about to hand over. That needs nodes which
find each other as slowly as ``slow_to_meet`` makes them."""


@contextmanager
def slow_to_meet() -> Iterator[None]:
    """Lost routes are asked for again after a second, and a stream that has opened waits for the next heartbeat."""
    with (
        patch.object(RouteTable, "connected", lambda self, number, now: None),
        patch.object(Quorum, "beat_now", lambda self: None),
        patch.object(quorum, "HASTE", 4),
        patch.object(TakeoverSource, "describe_again", lambda self, outbound: None),
    ):
        yield


@pytest.mark.parametrize("seed", few(range(6), 0, 1))
def test_acknowledged_messages_come_though_all_nodes_are_killed_again_and_again(seed: int) -> None:
    assert run(seed).books.acknowledged_count


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_sessions_arrive_though_sources_do_not_describe_them_again() -> None:
    with slow_to_meet():
        assert run(FOUND).books.acknowledged_count


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_the_worlds_find_a_window_that_is_handed_over_without_being_read_back() -> None:
    with (
        slow_to_meet(),
        patch.object(SessionTransfer, "go_on_leaving", lambda self, session: None),
        pytest.raises(ProtocolError, match="without a topic"),
    ):
        run(FOUND)
