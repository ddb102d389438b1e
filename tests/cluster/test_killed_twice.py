"""All nodes are killed again when they have hardly begun to hand sessions over."""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

import pytest
from tests.cluster.killed_twice_world import run
from tests.few import few

import starlingmq
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.core.session.session_transfer import SessionTransfer
from starlingmq.wire.reasons import ProtocolError

FOUND: Final = 69
"""A source was killed after it had asked its disk for the window that it was about to hand over. That needs nodes which
ask for lost routes again only after a second, as they do without ``RouteTable.connected``."""


@pytest.mark.parametrize("seed", few(range(6), 0, 1))
def test_acknowledged_messages_come_though_all_nodes_are_killed_again_and_again(seed: int) -> None:
    assert run(seed).books.acknowledged_count


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")
def test_sessions_arrive_though_sources_do_not_describe_them_again() -> None:
    with (
        patch.object(RouteTable, "connected", lambda self, number, now: None),
        patch.object(TakeoverSource, "describe_again", lambda self, outbound: None),
    ):
        assert run(FOUND).books.acknowledged_count


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")
def test_the_worlds_find_a_window_that_is_handed_over_without_being_read_back() -> None:
    with (
        patch.object(RouteTable, "connected", lambda self, number, now: None),
        patch.object(TakeoverSource, "describe_again", lambda self, outbound: None),
        patch.object(SessionTransfer, "go_on_leaving", lambda self, session: None),
        pytest.raises(ProtocolError, match="without a topic"),
    ):
        run(FOUND)
