"""Messages of groups are queued, go to members that can receive them, and have one holder: with and without a store."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.harness import FakeClient, World
from tests.nats.talk import Msg, NatsPeer, connect
from tests.storage.world import StoredWorld

from starlingmq.config.settings import QueueGroupsConfig
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_stats import figures
from starlingmq.core.groups.member_selection import ROOM_MAX
from starlingmq.core.messages.message import Message
from starlingmq.core.session.qos import WINDOW_START
from starlingmq.wire.mqtt import Ack, Publish, Subscribe, SubscribeRequest, Unsubscribe
from starlingmq.wire.packets import PUBACK, PUBREC
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties

SHARE = b"$share/g/t"


@pytest.fixture(params=[World, StoredWorld])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.param()
    return made


def member(world: World, name: str, qos: int = 1, expiry: int = 0, **properties: int) -> FakeClient:
    agreed: Properties = {SESSION_EXPIRY_INTERVAL: expiry}
    if "window" in properties:
        agreed[RECEIVE_MAXIMUM] = properties["window"]
    client = world.connect(name, 5, expiry == 0, properties=agreed)
    client.send(Subscribe(1, [SubscribeRequest(SHARE, qos)]))
    return client


def publish(world: World, *payloads: bytes, qos: int = 1) -> list[int]:
    """Publish and return the reason codes."""
    client = world.connect("publisher")
    for number, payload in enumerate(payloads):
        client.send(Publish(b"t", payload, qos, packet_id=number + 1 if qos else 0))
    answers = [packet.reason for packet in client.receive() if isinstance(packet, Ack)]
    client.drop()
    return answers


def got(client: FakeClient, acknowledge: bool = True) -> list[bytes]:
    messages = [packet for packet in client.receive() if isinstance(packet, Publish)]
    if acknowledge:
        client.send_all([Ack(PUBACK, message.packet_id) for message in messages if message.qos == 1])
    return [message.payload for message in messages]


def heard(peer: NatsPeer) -> list[bytes]:
    return [frame.payload for frame in peer.heard() if isinstance(frame, Msg)]


def group(world: World) -> Group:
    found = world.state.router.group(SHARE)
    assert found is not None
    return found


def test_one_group_of_both_protocols(world: World) -> None:
    mqtt, nats = member(world, "m"), connect(world)
    nats.send("SUB t g 1")
    publish(world, *(b"%d" % number for number in range(100)))
    nats.pub("t", b"from nats")
    here, there = got(mqtt), heard(nats)
    assert sorted(here + there) == sorted([b"from nats", *(b"%d" % number for number in range(100))])
    assert min(len(here), len(there)) > 20


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_waits_while_no_member_can_take_it(world: World, qos: int) -> None:
    slow = member(world, "slow", qos)
    slow.block()
    publish(world, b"1", b"2", b"3", qos=qos)
    assert group(world).waiting() == 3
    slow.unblock()
    assert got(slow) == [b"1", b"2", b"3"]
    world.run()
    assert group(world).waiting() == 0


def test_room_is_that_of_windows_as_they_are_and_growth_what_those_with_room_may_gain(world: World) -> None:
    def seen() -> tuple[int, int]:
        found = group(world)
        return found.room(world.state.ctx.write_buffer), found.growth

    limited = member(world, "limited", window=50)
    assert seen() == (50, 0)
    limited.drop()
    member(world, "grows")
    assert seen() == (WINDOW_START, ROOM_MAX - WINDOW_START)
    publish(world, *[b"x"] * 40)
    assert seen() == (60, ROOM_MAX - WINDOW_START)
    publish(world, *[b"x"] * 60)
    assert seen() == (0, 0)


def test_a_full_window_passes_on_to_who_has_room(world: World) -> None:
    one, two = member(world, "one", window=1), member(world, "two", window=1)
    publish(world, b"1", b"2", b"3")
    taken = got(one, False) + got(two, False)
    assert sorted(taken) == [b"1", b"2"] and group(world).waiting() == 1
    one.send(Ack(PUBACK, 1))
    assert got(one, False) == [b"3"]


@pytest.mark.parametrize("expiry", [0, 100])
def test_a_member_that_leaves_with_unacknowledged_messages_frees_them(world: World, expiry: int) -> None:
    one = member(world, "one", expiry=expiry)
    publish(world, b"1", b"2", b"3")
    assert got(one, False) == [b"1", b"2", b"3"]
    two = member(world, "two")
    one.drop()
    if expiry:
        assert got(two) == []  # the member may reconnect and receive them
        world.advance(200)
    assert got(two) == [b"1", b"2", b"3"]
    assert group(world).redelivered == 3


def test_lent_messages_wait_again_after_a_crash() -> None:
    world = StoredWorld()
    one = member(world, "one")
    publish(world, b"1", b"2", b"3")
    assert got(one, False) == [b"1", b"2", b"3"]
    one.send(Ack(PUBACK, 2))
    world.restart()
    assert group(world).waiting() == 2
    assert got(member(world, "two")) == [b"1", b"3"]
    world.restart()
    assert got(member(world, "three")) == []


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_line_survives_a_crash_and_what_was_given_does_not_come_again(checkpointed: bool) -> None:
    world = StoredWorld()
    nats = connect(world)
    nats.send("SUB t g 1")
    nats.pub("t", b"taken")
    assert heard(nats) == [b"taken"]
    nats.fake.drop()
    publish(world, *(b"%03d" % number for number in range(600)))
    if checkpointed:
        world.checkpoint()
    world.restart()
    assert figures(group(world))["lag"] == 600
    nats = connect(world)
    nats.send("SUB t g 1")
    world.run()
    assert heard(nats) == [b"%03d" % number for number in range(600)]
    world.restart()
    assert group(world).waiting() == 0


def test_lasting_members_take_over_what_they_are_sent(world: World) -> None:
    """Such a message belongs to its member across connections, and is no longer in the group queue."""
    one = member(world, "one", qos=2, expiry=100)
    publish(world, b"1", qos=2)
    client = world.connect("publisher", 5, False)
    assert client is not None
    one.drop()
    two = member(world, "two")
    publish(world, b"2")
    assert got(two) == [b"2"]
    assert group(world).waiting() == 0


def test_the_group_waits_for_lost_members_and_not_for_those_that_left(world: World) -> None:
    one = member(world, "one")
    one.drop()
    assert publish(world, b"kept") == [0x10]
    assert got(member(world, "two")) == [b"kept"]
    leaving = member(world, "two")
    leaving.send(Unsubscribe(2, [SHARE]))
    assert world.state.router.group(SHARE) is None
    assert publish(world, b"gone") == [0x10]
    assert got(member(world, "three")) == []


def test_the_grace_ends(world: World) -> None:
    member(world, "one").drop()
    publish(world, b"1")
    world.advance(31.0)
    assert world.state.router.group(SHARE) is None
    assert world.state.ctx.counters.dropped["group_gone"] == 1
    assert not [name for name in world.state.ctx.sessions if name.startswith("$group/")]
    assert got(member(world, "two")) == []


def test_a_request_to_members_that_were_lost_has_no_responders(world: World) -> None:
    nats, asking = connect(world), connect(world, headers=True, no_responders=True)
    nats.send("SUB svc g 1")
    nats.fake.drop()
    asking.send("SUB _INBOX.1 1")
    asking.pub("svc", b"?", "_INBOX.1")
    assert asking.heard()[-1] == Msg("_INBOX.1", "1", b"", headers=" 503")
    later = connect(world)
    later.send("SUB svc g 1")
    assert heard(later) == []


def test_lines_are_bounded(world: World) -> None:
    world.state.groups.configure(QueueGroupsConfig(max_waiting=5, retention=10.0))
    member(world, "one", expiry=1000).drop()
    publish(world, *(b"%d" % number for number in range(8)))
    assert world.state.ctx.counters.dropped["group_full"] == 3
    world.advance(5.0)
    publish(world, b"8", b"9")
    world.advance(7.0)
    assert world.state.ctx.counters.dropped["group_retention"] == 3
    back = world.connect("one", 5, False, properties={SESSION_EXPIRY_INTERVAL: 1000})
    assert got(back) == [b"8", b"9"]


def test_a_full_line_takes_what_another_node_has_handed_over(world: World) -> None:
    """That node does not have it any more."""
    world.state.groups.configure(QueueGroupsConfig(max_waiting=5))
    member(world, "one", expiry=1000).drop()
    publish(world, *(b"%d" % number for number in range(5)))
    for number in range(5, 12):
        world.state.groups.arrived(group(world), Message(b"t", b"%d" % number, 1, False, b"", 0.0, "", world.now))
    back = world.connect("one", 5, False, properties={SESSION_EXPIRY_INTERVAL: 1000})
    world.advance(1.0)
    assert got(back) == [b"%d" % number for number in range(12)]
    assert world.dropped == {}


def test_publishers_are_held_while_members_are_slow(world: World) -> None:
    world.state.groups.configure(QueueGroupsConfig(max_waiting=10))
    slow = member(world, "slow")
    slow.block()
    publisher = world.connect("p")
    publisher.send_all([Publish(b"t", b"%d" % number, 1, packet_id=number + 1) for number in range(9)])
    assert publisher.client.halted
    slow.unblock()
    assert not publisher.client.halted
    assert got(slow) == [b"%d" % number for number in range(9)]


def test_a_message_too_large_for_a_member_does_not_stay_lent(world: World) -> None:
    small = world.connect("small", 5, properties={0x27: 100})
    small.send(Subscribe(1, [SubscribeRequest(SHARE, 1)]))
    small.receive()
    publish(world, b"x" * 200)
    world.run()
    assert figures(group(world))["lent"] == 0 and group(world).waiting() == 0


def test_a_refused_qos_2_message_is_settled(world: World) -> None:
    one = member(world, "one", qos=2)
    publisher = world.connect("p")
    publisher.send(Publish(b"t", b"1", 2, packet_id=1))
    publisher.send(Ack(0x6, 1))
    (message,) = [packet for packet in one.receive() if isinstance(packet, Publish)]
    one.send(Ack(PUBREC, message.packet_id, 0x80))
    world.run()
    assert figures(group(world))["lent"] == 0 and group(world).waiting() == 0


def test_a_member_without_echo_is_not_chosen_for_its_own(world: World) -> None:
    one, two = connect(world, echo=False), connect(world)
    one.send("SUB t g 1")
    two.send("SUB t g 1")
    for number in range(20):
        one.pub("t", b"%d" % number)
    assert heard(one) == [] and len(heard(two)) == 20


# Choice of the member


def shares(world: World, strategy: str, count: int, topics: int = 1) -> list[Counter[str]]:
    """Return the messages that each of ten members received of ``count`` by two publishers, by publisher and topic."""
    world.state.groups.configure(QueueGroupsConfig(strategies={"g": strategy}))  # type: ignore[dict-item]
    peers = [connect(world) for _ in range(10)]
    for peer in peers:
        peer.send("SUB t.* g 1")
    publishers = [connect(world) for _ in range(2)]
    for place, publisher in enumerate(publishers):
        lines = [f"PUB t.{number % topics} 1\r\n{place}" for number in range(count // 2)]
        for start in range(0, len(lines), 1000):
            publisher.send(*lines[start : start + 1000])
    found = []
    for peer in peers:
        found.append(Counter(f"{m.payload.decode()} {m.subject}" for m in peer.heard() if isinstance(m, Msg)))
    assert sum(sum(each.values()) for each in found) == count
    return found


def test_at_random_all_get_alike() -> None:
    totals = [sum(each.values()) for each in shares(World(), "random", 20_000)]
    assert max(totals) <= 1.1 * 2000


def test_one_after_the_other() -> None:
    assert [sum(each.values()) for each in shares(World(), "round_robin", 1000)] == [100] * 10


def test_always_the_same() -> None:
    assert sorted(sum(each.values()) for each in shares(World(), "sticky", 1000))[-2:] == [0, 1000]


@pytest.mark.parametrize(("strategy", "place"), [("hash_topic", 1), ("hash_client", 0)])
def test_by_topic_or_publisher(strategy: str, place: int) -> None:
    found = shares(World(), strategy, 1000, 50)
    owners: dict[str, set[int]] = {}
    for number, each in enumerate(found):
        for key in each:
            owners.setdefault(key.split()[place], set()).add(number)
    assert all(len(those) == 1 for those in owners.values())
    if strategy == "hash_topic":
        assert len({number for those in owners.values() for number in those}) > 5


def test_the_least_busy_member_is_selected() -> None:
    world = World()
    world.state.groups.configure(QueueGroupsConfig(strategy="least_inflight"))
    quick, lazy = member(world, "quick"), member(world, "lazy")
    publish(world, *(b"%d" % number for number in range(10)))
    assert len(got(lazy, False)) == len(got(quick)) == 5
    publish(world, *(b"%d" % number for number in range(5)))
    assert (got(lazy, False), len(got(quick))) == ([], 5)


@pytest.mark.parametrize("store_qos0", [True, False])
def test_qos_0_does_not_wait_for_a_group_that_has_no_member(world: World, store_qos0: bool) -> None:
    world.state.ctx.store_qos0 = store_qos0
    member(world, "one").drop()
    publish(world, b"before", qos=0)
    publish(world, b"kept")
    assert got(member(world, "two")) == [b"kept"]
    assert world.state.ctx.counters.dropped == {"offline_qos0": 1}


def test_qos_0_in_line_goes_with_the_last_member(world: World) -> None:
    """The member accepts one message at a time, or none; its queue is then a mixture."""
    one = member(world, "one", window=1)
    publish(world, b"in flight", b"1")
    publish(world, b"2", qos=0)
    publish(world, b"3")
    publish(world, *(b"%d" % number for number in range(4, 400)), qos=0)
    one.drop()
    assert got(member(world, "two")) == [b"in flight", b"1", b"3"]
    assert world.state.ctx.counters.dropped["offline_qos0"] == 397
    assert group(world).waiting() == 0


def test_qos_0_waits_for_a_member_that_is_away_with_its_session(world: World) -> None:
    member(world, "one", expiry=100).drop()
    publish(world, b"0", qos=0)
    assert got(world.connect("one", 5, False, properties={SESSION_EXPIRY_INTERVAL: 100})) == [b"0"]


def test_qos_0_that_a_blocked_member_did_not_take_is_not_for_a_later_one(world: World) -> None:
    one = member(world, "one")
    one.block()
    publish(world, b"0", qos=0)
    one.drop()
    assert got(member(world, "two")) == []
