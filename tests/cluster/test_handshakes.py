"""QoS 2 handshakes that go on at another node (docs/SESSIONS.md), one thing at a time."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet, NodeWorld
from tests.cluster.test_takeover import LASTING, lasting, published, subscribe
from tests.harness import FakeClient

from starlingmq.cluster.links.control_frames import HandshakeCall, HandshakeQuestion, HandshakeReply
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.qos2.qos2_store import COMPLETED, FACTS, HELD, LATER, UNKNOWN, Qos2Store
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT
from starlingmq.core.context.remote_qos2 import RemoteQos2
from starlingmq.core.messages.message import Message
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBCOMP, PUBREC, PUBREL

NOT_FOUND = 0x92


def hold(client: FakeClient, payload: bytes = b"x", packet_id: int = 5, dup: bool = False) -> None:
    """PUBLISH and PUBREC."""
    client.send(Publish(b"t", payload, 2, packet_id=packet_id, dup=dup))
    assert client.expect(Ack) == Ack(PUBREC, packet_id)


def release(fleet: Fleet, client: FakeClient, packet_id: int = 5, seconds: float = 1.0) -> int:
    """PUBREL and the reason of PUBCOMP."""
    client.send(Ack(PUBREL, packet_id))
    fleet.advance(seconds)
    answer = client.expect(Ack)
    assert (answer.type, answer.packet_id) == (PUBCOMP, packet_id)
    return answer.reason


def counters(fleet: Fleet, place: int) -> RemoteQos2:
    return fleet[place].cluster.qos2.counters


def watch(fleet: Fleet, place: int = 2) -> FakeClient:
    watcher = fleet.connect(place, "watcher")
    subscribe(watcher, b"t", 2)
    return watcher


def got(watcher: FakeClient) -> list[bytes]:
    """The messages since the last call, each acknowledged."""
    packets = watcher.receive()
    for packet in packets:
        if isinstance(packet, Publish) and packet.packet_id:
            watcher.send(Ack(PUBREC, packet.packet_id))
    return published(packets)


@pytest.mark.parametrize("version", [4, 5])
def test_a_pubrel_at_another_node_completes_the_handshake(version: int) -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0, version=version))
    client = lasting(fleet, 1, version=version)
    assert release(fleet, client) == 0
    assert got(watcher) == [b"x"]
    assert release(fleet, client) == 0  # again, and now it is known here
    assert got(watcher) == []
    found = counters(fleet, 1)
    assert (found.questions, found.windows, found.calls, found.hits, found.broadcasts) == (1, 1, 1, 1, 0)


def test_a_handshake_that_stays_at_its_node_asks_no_other_node() -> None:
    fleet = Fleet(3)
    client = lasting(fleet, 0)
    hold(client)
    assert release(fleet, client) == 0
    assert not [e for e in fleet.carried if isinstance(e.body, (HandshakeCall, HandshakeReply))]


def test_a_pubrel_repeated_at_a_third_node_is_answered_truly() -> None:
    """PUBCOMP is lost; and then the node that completed it is gone."""
    fleet = Fleet(3)
    watcher = watch(fleet, 0)
    hold(lasting(fleet, 0))
    client = lasting(fleet, 1)
    client.send(Ack(PUBREL, 5))
    fleet.advance(0.2)
    client.receive()
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    client = lasting(fleet, 2)
    assert release(fleet, client) == 0
    assert got(watcher) == [b"x"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_pubrel_that_no_node_knows_is_not_found_or_closes_the_connection_once(version: int) -> None:
    fleet = Fleet(3)
    lasting(fleet, 0, version=version)
    client = lasting(fleet, 1, version=version)
    if version == 5:
        assert release(fleet, client) == NOT_FOUND
        return
    subscribe(client, b"mine", 1)
    client.send(Ack(PUBREL, 5))
    fleet.advance(0.5)
    assert client.closed
    client = lasting(fleet, 1, version=version)
    assert client.connack.session_present
    assert release(fleet, client) == 0
    fleet.connect(2, "other").send(Publish(b"mine", b"still"))
    fleet.advance(0.5)
    assert got(client) == [b"still"]


def test_a_3_1_1_client_that_goes_from_node_to_node_is_closed_once_by_each_at_most() -> None:
    fleet = Fleet(3)
    closed = []
    for turn in range(9):
        client = lasting(fleet, turn % 3, version=4)
        client.send_all([Ack(PUBREL, packet_id) for packet_id in range(1, 101)])
        fleet.advance(1.0)
        closed.append(client.closed)
        if not client.closed:
            assert client.receive() == [Ack(PUBCOMP, packet_id) for packet_id in range(1, 101)]
    assert closed == [True] * 3 + [False] * 6


def test_a_3_1_1_client_gets_no_pubcomp_before_the_node_that_holds_its_message_is_back() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0, version=4))
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(6.0)
    for _ in range(3):  # never PUBCOMP for what may be held there
        client = lasting(fleet, 1, version=4)
        client.send(Ack(PUBREL, 5))
        fleet.advance(9.0)
        assert not client.closed
        fleet.advance(2.0)
        assert client.closed
    assert counters(fleet, 1).timed_out == 3
    fleet.heal()
    fleet.advance(2.0)
    client = lasting(fleet, 1, version=4)
    assert release(fleet, client) == 0
    assert got(watcher) == [b"x"]


def test_a_handshake_that_a_client_left_behind_outlives_await_rel_timeout() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    client = lasting(fleet, 0)
    hold(client)
    lasting(fleet, 1).drop()
    fleet.advance(400.0)  # await_rel_timeout is 300 s
    assert release(fleet, lasting(fleet, 1)) == 0
    assert got(watcher) == [b"x"]


def test_an_abandoned_older_handshake_is_not_taken_for_the_newer_one() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0), b"abandoned")
    hold(lasting(fleet, 1), b"current")
    client = lasting(fleet, 2)
    assert release(fleet, client) == 0
    fleet.advance(1.0)
    assert got(watcher) == [b"current"]


def test_an_older_handshake_is_not_released_while_a_node_that_may_have_a_newer_one_is_away() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0), b"abandoned")
    hold(lasting(fleet, 1), b"current")
    fleet.cut(2, 1)
    fleet.cut(2, 3)
    fleet.advance(6.0)
    client = lasting(fleet, 2)
    client.send(Ack(PUBREL, 5))
    fleet.advance(5.0)
    assert not client.receive(), "nobody can know yet"
    fleet.heal()
    fleet.advance(4.0)
    assert client.expect(Ack) == Ack(PUBCOMP, 5)
    assert got(watcher) == [b"current"]


def test_a_long_unreachable_node_counts_as_not_having_the_handshake() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0))
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(6.0)
    client = lasting(fleet, 1)
    assert release(fleet, client, seconds=11.0) == NOT_FOUND
    assert got(watcher) == []


def test_a_repeated_publish_cancels_the_handshake_at_another_node() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0))
    client = lasting(fleet, 1)
    client.send(Publish(b"t", b"x", 2, packet_id=5, dup=True))
    fleet.advance(0.2)
    assert client.expect(Ack) == Ack(PUBREC, 5)
    assert len(fleet[0].cluster.qos2.store) == 0
    assert release(fleet, client) == 0
    assert got(watcher) == [b"x"]


def test_clean_start_forgets_handshakes_everywhere() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0))
    lasting(fleet, 1)
    client = fleet.connect(2, "c", clean_start=True, properties=LASTING)
    assert release(fleet, client) == NOT_FOUND
    client = lasting(fleet, 1)
    assert release(fleet, client) == NOT_FOUND
    assert got(watcher) == []


def test_handshakes_from_before_a_clean_start_do_not_count() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0))
    lasting(fleet, 1)
    hold(fleet.connect(2, "c", clean_start=True, properties=LASTING), b"y", packet_id=6)
    client = lasting(fleet, 1)
    assert release(fleet, client) == NOT_FOUND
    assert release(fleet, client, packet_id=6) == 0
    assert got(watcher) == [b"y"]


def test_a_client_that_is_back_at_the_node_that_holds_it() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0))
    lasting(fleet, 1)
    client = lasting(fleet, 0)
    assert release(fleet, client) == 0
    assert got(watcher) == [b"x"]


def test_many_questions_are_one_call_for_each_node() -> None:
    fleet = Fleet(3)
    for number in range(50):
        hold(lasting(fleet, 0, f"c{number}"))
    clients = [lasting(fleet, 1, f"c{number}") for number in range(50)]
    fleet.advance(1.0)
    for client in clients:
        client.send(Ack(PUBREL, 5))
    fleet.advance(0.2)
    assert [client.expect(Ack) for client in clients] == [Ack(PUBCOMP, 5)] * 50
    found = counters(fleet, 1)
    assert (found.windows, found.calls, found.entries) == (1, 1, 50)


def test_no_local_applies_to_messages_released_by_another_node() -> None:
    fleet = Fleet(2)
    client = lasting(fleet, 0)
    client.send(Subscribe(1, [SubscribeRequest(b"t", 2, no_local=True)], {}))
    client.expect(Suback)
    hold(client)
    client = lasting(fleet, 1)
    fleet.advance(1.0)
    client.send(Ack(PUBREL, 5))
    fleet.advance(1.0)
    assert client.receive() == [Ack(PUBCOMP, 5)]


def test_everything_goes_on_in_its_order() -> None:
    """PUBRECs in the order of the PUBLISHes, and messages in the order of the PUBRELs, wherever they are held."""
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0), b"1", 1)
    client = lasting(fleet, 1)
    fleet.advance(1.0)
    client.send(Ack(PUBREL, 1))
    client.send(Publish(b"t", b"2", 2, packet_id=2, dup=True))
    client.send(Publish(b"t", b"3", 2, packet_id=3))
    fleet.advance(0.2)
    assert client.receive() == [Ack(PUBCOMP, 1), Ack(PUBREC, 2), Ack(PUBREC, 3)]
    for packet_id in (9, 2, 3):
        client.send(Ack(PUBREL, packet_id))
    fleet.advance(0.5)
    answers = client.receive()
    assert [(a.packet_id, a.reason) for a in answers if isinstance(a, Ack)] == [(9, NOT_FOUND), (2, 0), (3, 0)]
    assert got(watcher) == [b"1", b"2", b"3"]


def test_an_abandoned_handshake_that_only_all_together_can_tell() -> None:
    """The hint knows nothing of the packet id, two others do: all are asked, and the later of the two goes its way."""
    fleet = Fleet(4)
    watcher = watch(fleet, 3)
    hold(lasting(fleet, 0), b"abandoned")
    hold(lasting(fleet, 1), b"current")
    client = lasting(fleet, 2)
    hold(client, b"other", packet_id=6)
    client = lasting(fleet, 3)
    assert release(fleet, client) == 0
    fleet.advance(1.0)
    assert got(watcher) == [b"current"]
    assert counters(fleet, 3).broadcasts == 1


def test_a_reply_waits_until_its_content_is_stored() -> None:
    fleet = Fleet(2)
    hold(lasting(fleet, 0))
    lasting(fleet, 1)
    fleet.advance(1.0)
    node, there = fleet[0], fleet[1]
    epoch = there.state.ctx.sessions["c"].epoch
    node.state.ctx.recording = True
    node.cluster.received(fleet_call(there, ("c", 5, epoch, 0, 1)), fleet.now)
    node.state.turn(fleet.now)
    node.cluster.turn(fleet.now)
    ready = node.state.take_ready()
    assert [write.kind for write in ready.writes] == [FACT_PUT]
    assert [client.stored_from for client in ready.dirty if client.client_id == "$handshakes"] == [0]
    assert not node.cluster.qos2.take_replies()


def fleet_call(node: NodeWorld, *questions: HandshakeQuestion) -> Envelope:
    members = node.cluster.members
    assert members.me is not None
    other = node.cluster.status()[0].member
    call = HandshakeCall(1, questions)
    return Envelope(members.me.number, members.me.incarnation, other.number, other.incarnation, call)


def test_an_answer_for_a_lost_connection_is_not_given_to_the_next_one() -> None:
    """It would be a success that the connection which hears it never asked for."""
    fleet = Fleet(3)
    hold(lasting(fleet, 0))
    client = lasting(fleet, 1)
    fleet.advance(1.0)
    fleet.cut(1, 2, both=False)  # the call gets there, its reply does not come back
    client.send(Ack(PUBREL, 5))
    fleet.advance(0.2)
    client.drop()
    client = lasting(fleet, 1)
    fleet.heal()
    fleet.advance(1.5)
    assert client.receive() == []
    assert release(fleet, client) == 0


def test_a_node_that_has_not_heard_of_the_takeover_answers_later() -> None:
    fleet = Fleet(2)
    hold(lasting(fleet, 0))
    node = fleet[0]
    node.cluster.received(fleet_call(fleet[1], ("c", 5, 1 << 60, 0, 1)), fleet.now)
    node.state.turn(fleet.now)
    node.cluster.turn(fleet.now)
    node.carry_out(node.state.take_ready())
    assert [reply.answers for _, reply in node.cluster.qos2.take_replies()] == [((LATER, 0, 0),)]


def test_the_node_that_has_routed_a_message_says_so_to_the_next_node_that_asks() -> None:
    """The node that was asked first has never heard of the message."""
    fleet = Fleet(3)
    watcher = watch(fleet)
    hold(lasting(fleet, 0))
    client = lasting(fleet, 1)
    fleet.advance(1.0)
    fleet.cut(1, 2, both=False)
    client.send(Ack(PUBREL, 5))
    fleet.advance(0.2)
    client.drop()
    fleet.advance(0.1)
    fleet.heal()
    client = lasting(fleet, 2)
    assert release(fleet, client) == 0
    assert got(watcher) == [b"x"]


def test_handshakes_that_stayed_here_survive_a_crash() -> None:
    fleet = Fleet(2)
    node = fleet[0]
    node.state.ctx.recording = True
    client = lasting(fleet, 0)
    hold(client, b"held", 5)
    hold(client, b"completed before", 6)
    assert release(fleet, client, 6) == 0
    hold(client, b"completed since", 7)
    client = lasting(fleet, 1)
    fleet.advance(1.0)
    assert release(fleet, client, 7) == 0
    facts: dict[bytes, bytes] = {}
    for write in node.writes:
        if write.kind == FACT_PUT:
            facts[write.topic] = write.value
        elif write.kind == FACT_DELETE:
            facts.pop(write.topic, None)
    routed: list[Message] = []
    stays = Qos2Store(routed.append, lambda *_: None, lambda *_: None, 3600.0)
    stays.restore({key: fact for key, fact in facts.items() if key.startswith(FACTS)})
    epoch = fleet[1].state.ctx.sessions["c"].epoch
    known = [stays.look("c", packet_id, epoch, 0)[0] for packet_id in (5, 6, 7, 8)]
    assert known == [HELD, COMPLETED, COMPLETED, UNKNOWN]
    assert stays.release("c", 5, epoch, 0, 1, fleet.now)[0] == COMPLETED
    assert [message.payload for message in routed] == [b"held"]
