"""A session belongs to its user: another user with the same client id gets no byte of it (``auth.session_owner``)."""

from __future__ import annotations

import msgspec
import pytest
from tests.harness import FakeClient, World

from starlingmq.core.session.session_user import RULES
from starlingmq.storage.session_values import decode_session, encode_session
from starlingmq.wire.mqtt import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Will,
)
from starlingmq.wire.packets import PUBCOMP, PUBREL
from starlingmq.wire.properties import (
    AUTHENTICATION_METHOD,
    SESSION_EXPIRY_INTERVAL,
    WILL_DELAY_INTERVAL,
    Properties,
)
from starlingmq.wire.reasons import Reason

LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 3600}


def join(world: World, user: str | None, clean: bool = False, will: Will | None = None) -> FakeClient:
    return world.connect("c", clean_start=clean, username=user, will=will, properties=LASTING)


def subscribe(client: FakeClient, filter: bytes, qos: int = 1) -> None:
    client.send(Subscribe(1, [SubscribeRequest(filter, qos)]))
    client.expect(Suback)


def test_another_user_begins_a_new_session_and_gets_nothing_of_the_earlier_one() -> None:
    world = World()
    ann = join(world, "ann")
    subscribe(ann, b"t", 2)
    publisher = world.connect("p")
    publisher.send(Publish(b"t", b"sent, not acknowledged", 1, packet_id=1))
    ann.drop()
    publisher.send(Publish(b"t", b"queued", 1, packet_id=2))
    bob = join(world, "bob")
    assert not bob.connack.session_present and bob.receive() == []
    assert world.state.ctx.counters.dropped["another_user"] == 2
    assert (world.state.ctx.counters.errors, world.state.ctx.counters.noted) == ({}, {"another_user": 1})
    (notice,) = world.notices
    assert not notice.closing and notice.username == "bob", "he is served, so nothing of his was closed"
    assert notice.detail == "it begins a new session; the session of user 'ann' with this client id has ended"
    publisher.send(Publish(b"t", b"later", 1, packet_id=3))
    assert bob.receive() == [], "it has none of the subscriptions"
    bob.drop()
    ann = join(world, "ann")
    assert not ann.connack.session_present, "and neither does the first user come into what the second one left"


@pytest.mark.parametrize(("first", "second"), [(None, "bob"), ("ann", None), ("", None)])
def test_a_client_without_a_name_is_a_user_of_its_own(first: str | None, second: str | None) -> None:
    world = World()
    join(world, first).drop()
    assert join(world, second).connack.session_present == ((first or "") == (second or ""))


def test_the_same_user_goes_on() -> None:
    world = World()
    subscribe(join(world, "ann"), b"t")
    again = join(world, "ann")
    assert again.connack.session_present
    world.connect("p").send(Publish(b"t", b"x", 1, packet_id=1))
    assert again.expect(Publish).payload == b"x"


def test_the_connection_of_the_first_user_ends_and_its_will_is_published_though_it_has_a_delay() -> None:
    world = World()
    watcher = world.connect("w")
    subscribe(watcher, b"gone", 0)
    ann = join(world, "ann", will=Will(b"gone", b"ann's", properties={WILL_DELAY_INTERVAL: 60}))
    join(world, "bob")
    assert ann.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER and ann.closed
    assert watcher.expect(Publish).payload == b"ann's"


def test_another_user_releases_no_message_that_is_held() -> None:
    world = World()
    watcher = world.connect("w")
    subscribe(watcher, b"t", 2)
    ann = join(world, "ann")
    ann.send(Publish(b"t", b"held", 2, packet_id=5))
    ann.drop()
    bob = join(world, "bob")
    bob.send(Ack(PUBREL, 5))
    assert bob.expect(Ack) == Ack(PUBCOMP, 5, Reason.PACKET_IDENTIFIER_NOT_FOUND)
    assert watcher.receive() == []


def test_users_who_share_client_ids_share_sessions_if_the_settings_say_so() -> None:
    world = World(session_owner=RULES["client_id"])
    join(world, "ann").drop()
    assert join(world, "bob").connack.session_present


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("version", "code"), [(5, Reason.CLIENT_IDENTIFIER_NOT_VALID), (4, 2)])
def test_another_user_is_refused_while_the_session_lives_if_the_settings_say_so(
    connected: bool, clean: bool, version: int, code: int
) -> None:
    world = World(session_owner=RULES["refuse"])
    ann = join(world, "ann")
    subscribe(ann, b"t")
    if not connected:
        ann.drop()
    bob = world.open(version, "c")
    bob.send(Connect(version, "c", clean, username="bob"))
    assert bob.expect(Connack).reason == code and bob.closed
    assert ann.closed == (not connected) and join(world, "ann").connack.session_present
    world.clients[-1].drop()
    world.advance(4000.0)
    assert join(world, "bob").connack.reason == 0, "it is over"


def test_a_user_name_does_not_change_within_a_connection() -> None:
    world = World(ask_authenticate=True)
    method: Properties = {AUTHENTICATION_METHOD: "M", SESSION_EXPIRY_INTERVAL: 3600}
    client = world.open(5, "c")
    client.send(Connect(5, "c", False, username="ann", properties=method))
    world.answer(world.question(), 0, username="ann")
    client.expect(Connack)
    client.send(Auth(Reason.RE_AUTHENTICATE, {AUTHENTICATION_METHOD: "M"}))
    world.answer(world.question(), 0, username="ann")
    assert client.expect(Auth).reason == 0
    client.send(Auth(Reason.RE_AUTHENTICATE, {AUTHENTICATION_METHOD: "M"}))
    world.answer(world.question(), 0, username="bob")
    assert client.expect(Disconnect).reason == Reason.NOT_AUTHORIZED and client.closed


def test_the_owner_is_stored_with_the_session_and_one_without_is_the_first_users_who_comes() -> None:
    world = World()
    join(world, "ann").drop()
    session = world.state.ctx.sessions["c"]
    data = encode_session(session)
    assert decode_session(data).owner == "ann"
    before = msgspec.msgpack.encode(msgspec.msgpack.decode(data)[:-2])  # as earlier versions stored it
    assert decode_session(before).owner is None
    session.owner = decode_session(before).owner
    bob = join(world, "bob")
    assert bob.connack.session_present and session.owner == "bob"
    assert not join(world, "ann").connack.session_present
