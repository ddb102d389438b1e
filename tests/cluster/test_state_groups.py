"""Shared groups across nodes: one member gets each message, wherever members are."""

from __future__ import annotations

from tests.cluster.fleet import Fleet
from tests.cluster.subscribers import payloads, subscribe

from starlingmq.core.context.ready import Deliveries
from starlingmq.core.messages.message import Message
from starlingmq.wire.mqtt import Publish


def test_a_shared_group_across_nodes_gives_each_message_to_one_member() -> None:
    fleet = Fleet(3)
    members = [fleet.connect(place, f"m{place}{index}") for place in range(3) for index in range(2)]
    for member in members:
        subscribe(member, b"$share/g/t", 1)
    fleet.advance(0.5)  # the group has to have its primary
    publisher = fleet.connect(0, "p")
    for number in range(120):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number + 1))
    fleet.advance(1.5)  # where the primary is another node, it may look again only then
    got = [payloads(member) for member in members]
    assert sorted(int(payload) for one in got for payload in one) == list(range(120))
    assert all(len(one) >= 5 for one in got)


def test_an_ordinary_subscriber_beside_a_group_gets_everything_once() -> None:
    fleet = Fleet(2)
    plain, member, publisher = fleet.connect(1, "b"), fleet.connect(1, "m"), fleet.connect(0, "p")
    subscribe(plain, b"t", 1)
    subscribe(member, b"$share/g/t", 1)
    for number in range(10):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number + 1))
    fleet.advance(0.5)  # the group has to have its primary
    assert len(payloads(plain)) == len(payloads(member)) == 10


def test_a_group_message_whose_members_have_just_gone_is_passed_on_to_a_node_with_members() -> None:
    """n1 chose n2 while the last member there unsubscribed."""
    fleet = Fleet(3)
    member = fleet.connect(2, "m")
    subscribe(member, b"$share/g/t", 2)
    state = fleet[1].state
    state.ctx.recording = True
    message = Message(b"t", b"p", 2, False, b"", 0.0, "a", fleet.now)
    message.origin, message.sequence = 1, 7
    state.publishing.deliver(message, b"$share/g/t", state.ctx.cluster.links[1])
    state.ctx.recording = False
    fleet.advance(0.5)
    assert payloads(member) == [b"p"]
    written = [write for write in fleet[1].writes if isinstance(write, Deliveries)]
    stored = [(each.message.origin, each.message.sequence) for write in written for each in write.outgoings]
    assert (1, 7) in stored  # so it does not come twice
    assert fleet[1].dropped == {}
