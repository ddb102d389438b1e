"""PUBs in one read have the outcome they have one by one, though those with one subject are routed together."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.harness import World
from tests.nats.talk import Msg, connect, subscribe

from starlingmq.config.settings import QueueGroupsConfig
from starlingmq.core.context.context import TURN_WORK
from starlingmq.core.groups.member_selection import STRATEGIES
from starlingmq.core.session.connection import HELD, TURN_OVER
from starlingmq.wire.mqtt import Publish

payloads = st.sampled_from([b"", b"x", b"PUB a 1\r\nx", b"\r\n", b"y" * 12])
subjects = st.sampled_from([b"a", b"b", b"c.d"])
FORMS = (
    b"PUB %b %d\r\n%b\r\n",
    b"pub %b %d\r\n%b\r\n",
    b"PUB  %b  %d\r\n%b\r\n",
    b"PUB %b 0%d\r\n%b\r\n",
    b"PUB %b\t%d\r\n%b\r\n",
    b"PUB %b %d\n%b\r\n",
    b"PUB %b %d \r\n%b\r\n",
    b"PUB %b answers %d\r\n%b\r\n",
)


def pub(subject: bytes, payload: bytes, form: int = 0) -> bytes:
    return FORMS[form] % (subject, len(payload), payload)


pubs = st.builds(pub, subjects, payloads, st.just(0) | st.integers(0, len(FORMS) - 1))
runs = st.builds(lambda one, count: [one] * count, pubs, st.integers(1, 5))
reads = st.lists(runs | st.just([b"PING\r\n"]), max_size=8).map(lambda parts: [one for part in parts for one in part])


class Receivers(NamedTuple):
    mqtt: bool = False  # an MQTT client subscribes to one of the subjects
    mqtt_member: bool = False  # and one is a member of the queue group
    limited: int = 0  # messages after which one of the subscriptions ends
    strategy: str = "random"
    second_group: bool = False
    verbose: bool = False
    two_of_one: bool = False  # a connection has two members of the group, and a subscription beside it


def outcome(receivers: Receivers, reads: list[bytes]) -> tuple[object, ...]:
    """The messages of each client, and the counters."""
    world = World()
    world.state.groups.configure(QueueGroupsConfig(strategy=cast(Any, receivers.strategy)))
    publisher = connect(world, verbose=receivers.verbose, echo=False)
    publisher.send("SUB > own")
    everything, deaf_to_headers, one = (
        connect(world),
        connect(world, headers=False, no_responders=False),
        connect(world),
    )
    everything.send("SUB > 1", "SUB a 2")
    deaf_to_headers.send("SUB *.d 1")
    one.send("SUB a a-long-sid")
    if receivers.limited:
        one.send(f"UNSUB a-long-sid {receivers.limited}")
    members = [connect(world) for _ in range(3)]
    for member in members:
        member.send("SUB b workers 7")
    if receivers.second_group:
        members[0].send("SUB b others 8")
    if receivers.two_of_one:
        members[1].send("SUB b workers 9", "SUB b direct")
    devices = [world.connect("device"), world.connect("worker")]
    if receivers.mqtt:
        subscribe(devices[0], "a", 1)
    if receivers.mqtt_member:
        subscribe(devices[1], "$share/workers/b", 0)
    publisher.heard()
    for read in reads:
        publisher.send_raw(read)
    group = world.state.router.group(b"$share/workers/b")
    assert group is not None
    counters = world.state.ctx.counters
    return (
        [peer.heard() for peer in (publisher, everything, deaf_to_headers, one, *members)],
        [[p.payload for p in device.receive() if isinstance(p, Publish)] for device in devices],
        (counters.publish_received, counters.publish_sent, publisher.client.published, publisher.closed),
        (group.received, group.given, group.waiting(), world.dropped),
    )


receivers = st.builds(
    Receivers,
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
    st.sampled_from(sorted(set(STRATEGIES) - {"least_inflight"})),  # it depends on what was written before
    st.booleans(),
    st.sampled_from([False, False, True]),
    st.booleans(),
)


@settings(deadline=None)
@given(receivers, reads)
@example(Receivers(), [pub(b"a", b"x")] * 5)
@example(Receivers(strategy="round_robin"), [pub(b"b", b"x"), pub(b"b", b"longer")] * 5)
@example(Receivers(mqtt_member=True), [pub(b"b", b"x")] * 20)
@example(Receivers(), [pub(b"a", b"x"), pub(b"a", b"x", 3), b"PUB a 00\r\n\r\n", pub(b"a", b"PUB a 1\r\nx")])
def test_pubs_in_one_read_have_the_outcome_of_pubs_one_by_one(receivers: Receivers, sent: list[bytes]) -> None:
    one_by_one = outcome(receivers, sent)
    assert outcome(receivers, [b"".join(sent)]) == one_by_one
    stream = b"".join(sent)
    pieces = [stream[at : at + 17] for at in range(0, len(stream), 17)]
    assert outcome(receivers, pieces) == one_by_one


def test_a_malformed_pub_within_a_run_ends_the_connection_after_those_before_it() -> None:
    for bad in (b"PUB a x\r\n", b"PUB a 1\r\nxy\r\n", b"PUB a 99999999999\r\n", b"PUB a 1\rx"):
        world = World()
        peer, publisher = connect(world), connect(world)
        peer.send("SUB a 1")
        publisher.send_raw(pub(b"a", b"x") * 3 + bad + pub(b"a", b"never"))
        assert peer.heard() == [Msg("a", "1", b"x")] * 3
        assert publisher.closed


def test_a_run_ends_with_the_work_of_a_turn() -> None:
    world = World()
    peer, publisher = connect(world), connect(world)
    peer.send("SUB a 1", "SUB * 2")
    search = 4  # one place is visited, and two subscriptions are found
    world.state.receive(publisher.client, pub(b"a", b"x") * 5000, world.now)
    assert world.state.ctx.counters.publish_received == (TURN_WORK - search + 2) // 3
    assert publisher.client.halted == TURN_OVER
    world.run()
    assert len(peer.heard()) == 10_000


def test_a_run_holds_its_publisher_before_a_slow_receiver_is_closed() -> None:
    world = World(queue_bytes=10_000, write_buffer=1000)
    slow, publisher = connect(world), connect(world)
    slow.send("SUB a 1")
    slow.fake.block()
    publisher.send_raw(pub(b"a", b"x" * 900) * 50)
    assert publisher.client.halted & HELD
    assert not slow.closed
    assert world.dropped == {}


def test_a_run_without_a_turn_in_between_holds_its_publisher_at_half_of_the_limit() -> None:
    world = World(queue_bytes=10_000, write_buffer=1000)
    receiver, publisher = connect(world), connect(world)
    receiver.send("SUB a 1")
    world.state.receive(publisher.client, pub(b"a", b"x" * 90) * 500, world.now)
    assert publisher.client.halted & HELD
    assert 5000 < receiver.client.size < 6200
    assert not receiver.closed


def test_messages_that_no_member_can_take_wait_in_the_group_queue_in_their_order() -> None:
    world = World(write_buffer=1000)
    members, publisher = [connect(world) for _ in range(2)], connect(world)
    for member in members:
        member.send("SUB a workers 1")
    sent = [b"%03d" % number * 30 for number in range(100)]
    world.state.receive(publisher.client, b"".join(pub(b"a", payload) for payload in sent), world.now)
    group = world.state.router.group(b"$share/workers/a")
    assert group is not None
    assert all(1000 < member.client.size < 1200 for member in members)
    assert group.waiting() == 100 - group.given > 50
    world.run()
    heard = [[frame.payload for frame in member.heard() if isinstance(frame, Msg)] for member in members]
    assert sorted(heard[0] + heard[1]) == sent
    assert all(each == sorted(each) for each in heard)


def test_a_run_goes_to_members_in_turn() -> None:
    world = World()
    world.state.groups.configure(QueueGroupsConfig(strategy="round_robin"))
    members, publisher = [connect(world) for _ in range(3)], connect(world)
    for member in members:
        member.send("SUB a workers 1")
    publisher.send_raw(pub(b"a", b"x") * 30)
    assert [len(member.heard()) for member in members] == [10, 10, 10]


def test_a_random_member_gets_about_its_share_of_a_run() -> None:
    world = World()
    members, publisher = [connect(world) for _ in range(4)], connect(world)
    for member in members:
        member.send("SUB a workers 1")
    publisher.send_raw(pub(b"a", b"x") * 4000)
    shares = [len(member.heard()) for member in members]
    assert sum(shares) == 4000
    assert all(900 < share < 1100 for share in shares)
