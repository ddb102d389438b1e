"""The description of a session (``Head``) that is lost, and that its target gets all the same."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_takeover import LASTING, lasting, publish, published, subscribe

from starlingmq.cluster.takeover.inbound import ASK_SECONDS
from starlingmq.cluster.takeover.migrations import FACTS, Migrations
from starlingmq.cluster.takeover.outbound_states import OutboundState
from starlingmq.cluster.takeover.transfer_frames import Head, Takeover, TransferFrame, Whole
from starlingmq.core.context.ready import FACT_PUT
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import PUBLISHED, Outgoing
from starlingmq.core.session.session import MOVED_PREFIX, NEVER
from starlingmq.wire.mqtt import Connack, Connect


@pytest.mark.interpreted_only("what is compiled can not be patched")
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
    with patch.object(Migrations, "send", lambda self, node, frame: said.append(frame)):
        if restarted == 0:
            fleet[0].cluster.takeovers._resume()
        else:
            fleet[0].cluster.takeovers._source.asked(target, Takeover("c", outbound.epoch, False, False, None))
    heads = [frame for frame in said if isinstance(frame, Head)]
    assert [(head.client_id, head.epoch, [each.whole for each in head.granted]) for head in heads] == [
        ("c", outbound.epoch, [b"t"])
    ]
    assert any(isinstance(frame, Whole) for frame in said) == (outbound.state is OutboundState.QUEUE)


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_a_target_that_misses_the_description_of_a_connected_source_asks_it_again() -> None:
    """No node restarts. Without this, the client would never get its session."""
    fleet = Fleet(3)
    first = lasting(fleet, 0)
    subscribe(first, b"t", 1)
    first.drop()
    dropped: list[TransferFrame] = []
    say = Migrations.send

    def lose_the_first(migrations: Migrations, node: int, said: TransferFrame) -> None:
        if isinstance(said, Head) and not dropped:
            dropped.append(said)
        else:
            say(migrations, node, said)

    with patch.object(Migrations, "send", lose_the_first):
        second = fleet[1].open(5, "c")
        second.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(1.0)
        assert dropped and not second.output
        fleet.advance(ASK_SECONDS)
    answer = second.expect(Connack)
    assert answer.session_present


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_a_silent_source_is_asked_ever_more_seldom_and_only_while_it_is_connected() -> None:
    fleet = Fleet(3)
    lasting(fleet, 0).drop()
    asked: list[float] = []
    say = Migrations.send

    def answer_nothing(migrations: Migrations, node: int, said: TransferFrame) -> None:
        if isinstance(said, Takeover):
            asked.append(fleet[1].state.ctx.now)
        elif not isinstance(said, Head):
            say(migrations, node, said)

    with patch.object(Migrations, "send", answer_nothing):
        fleet[1].open(5, "c").send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(200.0, 0.25)
        pauses = [round(later - earlier) for earlier, later in pairwise(asked)]
        assert pauses == [5, 10, 20, 40, 80]
        home = fleet[0].cluster.number
        others = [node.cluster.number for node in fleet.nodes[1:]]
        fleet.parted = {way for other in others for way in ((home, other), (other, home))}
        fleet.advance(200.0, 0.25)
        assert len(asked) == 6


def test_the_window_of_a_session_that_was_leaving_is_read_back_before_it_is_handed_over() -> None:
    """Only the places of its messages in the journal are in memory after a restart of its source."""
    fleet = Fleet(2)
    node, target = fleet[0], fleet[1].cluster.number
    session = node.state.restoring.session(99, f"{MOVED_PREFIX}5/{target}/c", NEVER)
    stored = Outgoing(Message.at(3), 1, False, b"", None)
    stored.stage = PUBLISHED
    node.state.restoring.window(session, 1, stored)
    node.cluster.takeovers._restored(session, target, 5, "c")
    assert node.state.mover.take_window(session) == []
    assert session in node.state.ctx.ready.reads


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_messages_that_arrive_before_the_description_reach_the_client() -> None:
    """The source has removed what it has sent, and sends it once. A target that restarts meanwhile has stored it."""
    fleet = Fleet(3)
    fleet[1].state.ctx.recording = True
    first = lasting(fleet, 0)
    subscribe(first, b"t", 1)
    publisher = fleet.connect(0, "p")
    publish(publisher, b"t", b"in the window")
    first.drop()
    publish(publisher, b"t", b"in the queue")
    dropped: list[TransferFrame] = []
    send = Migrations.send

    def lose_the_first(migrations: Migrations, node: int, frame: TransferFrame) -> None:
        if isinstance(frame, Head) and not dropped:
            dropped.append(frame)
        else:
            send(migrations, node, frame)

    with patch.object(Migrations, "send", lose_the_first):
        second = fleet[1].open(5, "c")
        second.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(1.0)
        (inbound,) = fleet[1].cluster.takeovers.migrations.of("c")
        assert dropped and not second.output
        assert len(inbound.kept) == 2
        stored = {write.topic: write.value for write in fleet[1].writes if write.kind == FACT_PUT}
        restored = Fleet(1)[0].cluster.takeovers
        restored._go_on({name: fact for name, fact in stored.items() if name.startswith(FACTS)})
        assert restored.migrations.of("c")[0].kept == inbound.kept
        fleet.advance(ASK_SECONDS)
    assert second.expect(Connack).session_present
    assert published(second.receive()) == [b"in the window", b"in the queue"]
    assert not inbound.kept
