"""Cut markers at moments that random worlds rarely reach: each scene, and the planted mistakes that it finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs
from msgspec.structs import replace
from tests.cluster import test_takeover, test_takeover_crashes
from tests.cluster.fleet import Fleet, NodeWorld
from tests.cluster.mistakes import Mistake, acknowledged, each_mistake, each_scene, numbers
from tests.cluster.test_takeover import LASTING, PUBACK, lasting, publish, published, subscribe

from starlingmq.cluster.links.control_frames import RouteSnapshot
from starlingmq.cluster.links.peer_frames import Envelope, RouteRecords
from starlingmq.cluster.takeover.cut_markers import CutMarkers
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.transfer_frames import Barrier, ShortBarrier
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.session.migration_state import OPEN
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Subscribe, SubscribeRequest


def messages_before_a_marker_are_delivered_first() -> None:
    """A third node sends a message before its cut marker, which the former owner cannot pass on for a while, and a
    message after the marker, which arrives directly."""
    fleet = Fleet(3)
    new, former, third = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.mute = {(new, third)}  # so the third node is not asked for its marker
    client = lasting(fleet, 0)
    assert client.connack.session_present
    fleet.advance(0.2)
    fleet.mute.add((former, new))
    publish(publisher, b"t", b"before")
    fleet.mute.discard((new, third))
    fleet[0].cluster.connected(third, fleet.now)
    fleet.advance(0.2)
    publish(publisher, b"t", b"after", packet_id=2)
    fleet.advance(0.2)
    assert published(client.receive()) == []
    fleet.speak()
    fleet.advance(0.2)
    assert published(client.receive()) == [b"before", b"after"]


def a_marker_counts_that_arrives_before_its_takeover() -> None:
    """The former owner receives a third node's cut marker for the new owner before it is asked for the session. The new
    owner has made a new session. The former owner must not deliver messages that come after that marker."""
    fleet = Fleet(3)
    fleet.keep_owners_at(2, 0)
    new, former, _ = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.parted = {(new, former)}
    client = lasting(fleet, 0)
    assert not client.connack.session_present
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))  # its SUBACK waits for the markers
    fleet.advance(4.0)
    publish(publisher, b"t", b"one")
    fleet.advance(0.2)
    fleet.speak()
    fleet.advance(5.0)
    packets = client.receive()
    assert published(packets) == [b"one"] and acknowledged(packets)


def a_marker_counts_that_arrives_before_its_session() -> None:
    """A session is still on its way to a node that its client has left. A third node's cut marker for the next owner,
    which this session cannot reach, arrives before the session does."""
    fleet = Fleet(4)
    home, between, new, _ = numbers(fleet)
    publisher, client = fleet.connect(3, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 2)
    client.drop()
    fleet.parted = {(home, between), (new, between)}
    for place in (1, 2):
        client.drop()
        client = fleet[place].open(5, "c")
        client.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
    fleet.advance(4.0)
    assert not client.expect(Connack).session_present
    client.send(Subscribe(1, [SubscribeRequest(b"t", 2)]))  # its SUBACK waits for the markers
    fleet.advance(4.0)
    fleet.parted.discard((home, between))
    fleet[0].cluster.connected(between, fleet.now)
    fleet.advance(0.5)
    publish(publisher, b"t", b"one", 2)
    early = client.receive()
    assert published(early) == [b"one"]
    fleet.speak()
    fleet.advance(5.0)
    late = client.receive()
    assert published(late) == [], "it comes twice"
    assert acknowledged([*early, *late])
    assert not any(node.cluster.takeovers.outbound_count() for node in fleet.nodes), "a node still waits for a marker"


def markers_of_an_owner_in_between_do_not_count_for_the_next() -> None:
    """A client gets a new session at another node, receives a message there, and returns to its first node. That node
    learns of all this only after it has handed the session to itself, as the latest owner."""
    fleet = Fleet(5)
    former, between, third, *others = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.parted = {(between, former), (third, former)}
    fleet.mute = {(other, former) for other in others}
    client = lasting(fleet, 1)
    assert not client.connack.session_present
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))  # its SUBACK waits for the markers
    fleet.advance(4.0)
    publish(publisher, b"t", b"one")
    taken = client.expect(Publish)  # before its SUBACK, which waits for markers that do not come
    client.send(Ack(PUBACK, taken.packet_id))
    client.drop()
    fleet.parted, fleet.mute = set(), fleet.mute | fleet.parted  # it is heard, but slow
    fleet.advance(1.0)
    client = fleet[0].open(5, "c")
    client.send(Connect(5, "c", False, properties=LASTING))
    fleet.advance(0.2)
    fleet.speak()
    fleet.advance(4.0)
    assert client.expect(Connack).session_present
    publish(publisher, b"t", b"two")
    fleet.advance(0.2)
    assert published(client.receive()) == [b"two"]


def a_node_that_joins_twice_sends_its_markers_again() -> None:
    """A joining node sends a cut marker while a third node is away, so the marker does not count. The joining node's
    lease expires: the others forget it, and it joins once more."""
    fleet = Fleet(3)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    away = fleet[2].cluster.number
    for node in fleet.nodes[:2]:
        fleet.cut(node.cluster.number, away)
    fleet.advance(4.0)
    joiner = fleet.begin()
    fleet.cut(away + 1, away)
    fleet.advance(0.5)
    assert joiner.cluster.number == away + 1
    lasting(fleet, 1)
    fleet.advance(0.5)
    fleet.etcd.expire_lease(joiner.name, fleet.now)
    fleet.advance(0.5)
    assert joiner.cluster.members.state == "joining"
    fleet.heal()
    fleet.advance(10.0)
    assert joiner.cluster.serving
    for number, place in enumerate((0, 3, 1)):
        client = lasting(fleet, place)
        assert client.connack.session_present
        fleet.advance(0.5)
        publish(fleet.connect(3, "q"), b"t", b"%d" % number)
        publish(publisher, b"t", b"again", packet_id=2)
        fleet.advance(0.1)
        assert published(client.receive())[-2:] == [b"%d" % number, b"again"]
    assert not any(node.cluster.takeovers.migrations.all_inbound() for node in fleet.nodes), (
        "a node still waits for a marker"
    )


def a_marker_waits_for_the_routes_of_the_new_owner() -> None:
    """A third node is asked for its marker before the routes of the new owner have reached it. What it sends until it
    has them goes to the former owner only."""
    fleet = Fleet(3)
    new, _, third = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    carry = fleet.carry

    def carry_no_routes(source: NodeWorld, hop: int, envelope: Envelope) -> None:
        is_way = (envelope.source, envelope.target) == (new, third)
        if not (is_way and isinstance(envelope.body, RouteRecords | RouteSnapshot)):
            carry(source, hop, envelope)

    fleet.carry = carry_no_routes  # type: ignore[method-assign]
    client = lasting(fleet, 0)
    assert client.connack.session_present
    fleet.advance(0.2)
    publish(publisher, b"t", b"before")
    fleet.advance(0.2)
    assert published(client.receive()) == [b"before"]
    fleet.carry = carry  # type: ignore[method-assign]
    fleet.advance(4.0)
    publish(publisher, b"t", b"after", packet_id=2)
    assert published(client.receive()) == [b"after"]
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the move is not complete"


def puts_at_once(self: CutMarkers, node: int, barrier: Barrier | ShortBarrier) -> None:
    barrier.version = 0
    put(self, node, barrier)


put = CutMarkers.put
moved = test_takeover.test_a_client_that_reconnects_elsewhere_finds_its_session_and_its_queue
marks_hold = test_takeover_crashes.test_marks_of_a_session_that_leaves_hold_after_a_crash

MISTAKES: dict[str, Mistake] = {
    "the queue does not wait for the markers": Mistake(
        InboundSession, "ordered", lambda *_: True, messages_before_a_marker_are_delivered_first
    ),
    "messages of this node are delivered at once": Mistake(
        InboundSession, "stage", lambda *_: OPEN, messages_before_a_marker_are_delivered_first
    ),
    "messages before the markers are taken from both owners": Mistake(
        Delivery, "_takes", lambda *_: True, messages_before_a_marker_are_delivered_first
    ),
    "the former owner delivers after the markers": Mistake(OutboundSession, "mark", lambda *_: None, moved),
    "markers are forgotten in a crash": Mistake(OutboundSession, "restore", lambda *_: None, marks_hold),
    "markers that arrive before their session are ignored": Mistake(
        InboundDelivery, "overtaken", lambda *_: None, a_marker_counts_that_arrives_before_its_session
    ),
    "markers that arrive before their takeover are ignored": Mistake(
        CutMarkers, "_came_for", lambda *_: None, a_marker_counts_that_arrives_before_its_takeover
    ),
    "a marker does not wait for routes": Mistake(
        CutMarkers, "put", puts_at_once, a_marker_waits_for_the_routes_of_the_new_owner
    ),
    "markers count for messages to their own owner": Mistake(
        OutboundSession,
        "is_earlier",
        lambda self, epoch: self.epoch <= epoch,
        markers_of_an_owner_in_between_do_not_count_for_the_next,
    ),
    "a node that joins once more keeps its incarnation": Mistake(
        structs,
        "replace",
        lambda me, incarnation=0, **changes: replace(me, **changes),
        a_node_that_joins_twice_sends_its_markers_again,
    ),
}


@each_scene(MISTAKES)
def test_the_scene_ends_well(scene: Callable[[], None]) -> None:
    scene()


@each_mistake(
    MISTAKES,
    "the queue does not wait for the markers",
    "the former owner delivers after the markers",
    "markers that arrive before their takeover are ignored",
    "a node that joins once more keeps its incarnation",
)
def test_each_mistake_is_found(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.must_show(monkeypatch)
