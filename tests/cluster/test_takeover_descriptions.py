"""The description of a session (``Head``), when its target or its source was restarted."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_takeover import LASTING, lasting, subscribe

import starlingmq
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.outbound_states import OutboundState
from starlingmq.cluster.takeover.transfer_frames import Head, Takeover, Whole
from starlingmq.wire.mqtt import Connect


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")
@pytest.mark.parametrize("restarted", [0, 1])
def test_a_target_that_lost_the_description_of_a_session_gets_it_again_after_a_restart(restarted: int) -> None:
    """Of the source, or of the target. Without it, the target could not accept any message of the session."""
    fleet = Fleet(3)
    first = lasting(fleet, 0)
    subscribe(first, b"t", 1)
    first.drop()
    home, target = fleet[0].cluster.number, fleet[1].cluster.number
    fleet.mute = {(home, target)}
    second = fleet[1].open(5, "c")
    second.send(Connect(5, "c", False, properties=LASTING))
    fleet.advance(0.2)
    migrations = fleet[0].cluster.takeovers.migrations
    assert list(migrations.outbound_sessions) and not second.output
    outbound = next(iter(migrations.outbound_sessions.values()))
    said: list[object] = []
    with patch.object(Migrations, "say", lambda self, node, frame: said.append(frame)):
        if restarted == 0:
            fleet[0].cluster.takeovers._resume()
        else:
            fleet[0].cluster.takeovers._source.asked(target, Takeover("c", outbound.epoch, False, False, None))
    heads = [frame for frame in said if isinstance(frame, Head)]
    assert [(head.client_id, head.epoch, [each.whole for each in head.granted]) for head in heads] == [
        ("c", outbound.epoch, [b"t"])
    ]
    assert any(isinstance(frame, Whole) for frame in said) == (outbound.state is OutboundState.QUEUE)
