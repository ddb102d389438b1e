"""A queue that was promised more than its limit keeps it over crashes (docs/CLUSTER.md, Messages that waited)."""

from __future__ import annotations

import pytest
from tests.conformance.kit import acknowledge, messages, persistent, publish, subscribe
from tests.harness import FakeClient
from tests.storage.world import StoredWorld

from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.migration_state import Held

BOUND = 5
MANY = 20


def with_promised(world: StoredWorld, count: int = MANY) -> FakeClient:
    """A publisher, and a client that is away and was promised so many messages."""
    reader = persistent(world, "reader", 5)
    subscribe(reader, "t", qos=1)
    reader.drop()
    publisher = world.connect("publisher")
    world.state.ctx.promised = True
    for number in range(count):
        publish(publisher, "t", b"%d" % number, qos=1, packet_id=number + 1)
    world.state.ctx.promised = False
    return publisher


def read(world: StoredWorld) -> list[bytes]:
    reader = persistent(world, "reader", 5)
    found: list[bytes] = []
    while sent := messages(reader):
        for message in sent:
            found.append(message.payload)
            acknowledge(reader, message)
    return found


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("count", [BOUND, MANY])
def test_a_restart_and_new_messages_drop_nothing_that_was_promised(count: int, checkpoint: bool) -> None:
    world = StoredWorld(max_mqueue_len=BOUND)
    with_promised(world, count)
    if checkpoint:
        world.checkpoint()
    for life in range(2):
        world.restart()
        publisher = world.connect("publisher")
        publish(publisher, "t", b"after %d" % life, qos=1, packet_id=1)
    assert world.dropped == {}
    assert read(world) == [*(b"%d" % number for number in range(count)), b"after 0", b"after 1"]


def test_a_client_that_stays_away_is_left_with_its_limit() -> None:
    world = StoredWorld(max_mqueue_len=BOUND)
    publisher = with_promised(world)
    for number in range(MANY + BOUND + 1):
        publish(publisher, "t", b"new %d" % number, qos=1, packet_id=number + 1)
    world.restart()
    assert read(world) == [b"new %d" % number for number in range(MANY + 1, MANY + BOUND + 1)]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_restarts_do_not_raise_the_limit(checkpoint: bool) -> None:
    world = StoredWorld(max_mqueue_len=BOUND)
    publisher = with_promised(world)
    for life in range(4):
        for number in range(2 * BOUND):
            publish(publisher, "t", b"%d %d" % (life, number), qos=1, packet_id=number + 1)
        if checkpoint:
            world.checkpoint()
        world.restart()
        publisher = world.connect("publisher")
    assert len(read(world)) <= BOUND


@pytest.mark.interpreted_only("a method is replaced")
def test_an_exception_leaves_no_later_message_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError

    world = StoredWorld(max_mqueue_len=BOUND)
    with_promised(world, 0)
    session = world.state.ctx.sessions["reader"]
    outgoing = Outgoing(Message(b"t", b"", 1, False, b"", 0.0, "", 0.0), 1, False, b"", None)
    monkeypatch.setattr(world.state.delivery, "offer", fails)
    with pytest.raises(RuntimeError):
        world.state.mover.put(session, outgoing)
    with pytest.raises(RuntimeError):
        world.state.delivery.let_in(session, [Held(1, (), outgoing)])
    assert not world.state.ctx.promised
