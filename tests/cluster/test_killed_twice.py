"""All nodes are killed again when they have hardly begun to hand sessions over."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from tests.cluster.killed_twice_world import run
from tests.few import few

from starlingmq.cluster.takeover.takeover_source import TakeoverSource


@pytest.mark.parametrize("seed", few(range(6), 0, 1))
def test_acknowledged_messages_come_though_all_nodes_are_killed_again_and_again(seed: int) -> None:
    assert run(seed).books.acknowledged_count


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_sessions_arrive_though_sources_do_not_describe_them_again() -> None:
    with patch.object(TakeoverSource, "describe_again", lambda self, outbound: None):
        assert sum(run(seed).books.acknowledged_count for seed in range(2))
