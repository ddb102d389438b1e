"""NATS clients on different nodes: the routes are those of MQTT."""

from __future__ import annotations

from tests.cluster.fleet import Fleet
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.wire.mqtt import Publish, Suback, Subscribe, SubscribeRequest


def test_pub_sub_and_requests_across_nodes() -> None:
    fleet = Fleet(2)
    here, there = connect(fleet[0]), connect(fleet[1])
    assert there.said("SUB a.> 1", "PING") == ["PONG"]
    here.hpub("a.b", "A: b", b"hi", "r")
    assert there.heard() == [Msg("a.b", "1", b"hi", "r", "A: b")]
    here.pub("a", b"not a.>")
    assert there.heard() == []
    assert here.said("SUB _INBOX.x 7", "SUB help 8", "UNSUB 8", "PING") == ["PONG"]
    there.pub("help", b"?", "_INBOX.x")
    assert there.said("SUB help 2", "PING") == ["PONG"]
    here.pub("help", b"?", "_INBOX.x")
    assert there.heard() == [Msg("help", "2", b"?", "_INBOX.x")]
    there.pub("_INBOX.x", b"!")
    assert here.heard() == [Msg("_INBOX.x", "7", b"!")]
    there.fake.drop()
    fleet.advance(1.0)
    here.pub("help", b"?", "_INBOX.x")
    assert here.heard() == [Msg("_INBOX.x", "7", b"", headers=" 503")]


def test_a_request_need_not_be_flushed() -> None:
    """The way of an answer is known where the request is answered: routes and messages of a node go in order."""
    fleet = Fleet(3)
    asking, answering = connect(fleet[0]), connect(fleet[2])
    assert answering.said("SUB svc 1", "PING") == ["PONG"]
    asking.send("SUB _INBOX.a.* 1", "PUB svc _INBOX.a.1 1", "?")
    assert answering.heard() == [Msg("svc", "1", b"?", "_INBOX.a.1")]
    answering.pub("_INBOX.a.1", b"!")
    assert asking.heard() == [Msg("_INBOX.a.1", "1", b"!")]


def test_a_flush_says_that_all_nodes_know_of_the_subscriptions() -> None:
    fleet = Fleet(2)
    here, there = connect(fleet[0]), connect(fleet[1])
    verbose = connect(fleet[0], verbose=True)
    fleet.cut(1, 2)
    here.send("SUB a 1", "PING", "PUB a 1", "x")
    assert verbose.said("SUB a 1") == []
    assert here.heard() == []
    fleet.heal()
    fleet.advance(3.0)
    assert here.heard() == ["PONG", Msg("a", "1", b"x")]
    assert verbose.heard() == ["+OK", Msg("a", "1", b"x")]
    there.pub("a", b"y")
    assert here.heard() == [Msg("a", "1", b"y")]


def test_both_protocols_across_nodes() -> None:
    fleet = Fleet(2)
    nats = connect(fleet[0])
    mqtt = fleet[1].connect("m")
    mqtt.send(Subscribe(1, [SubscribeRequest(b"a/#", 1)]))
    mqtt.expect(Suback)
    nats.send("SUB b.* 1", "PING")
    nats.heard()
    nats.pub("a.b", b"to mqtt")
    assert mqtt.expect(Publish).payload == b"to mqtt"
    mqtt.send(Publish(b"b/1", b"to nats", 0))
    assert nats.heard() == [Msg("b.1", "1", b"to nats")]


def test_a_queue_over_two_nodes() -> None:
    fleet = Fleet(2)
    members = [connect(fleet[0]), connect(fleet[1])]
    for member in members:
        assert member.said("SUB jobs workers 1", "PING") == ["PONG"]
    publisher = connect(fleet[0])
    for number in range(100):
        publisher.pub("jobs", b"%d" % number)
    fleet.advance(0.5)
    got = [[message for message in member.heard() if isinstance(message, Msg)] for member in members]
    assert sorted(int(message.payload) for messages in got for message in messages) == list(range(100))
    assert all(20 < len(messages) < 80 for messages in got)


def test_a_node_that_is_cut_off_says_so() -> None:
    fleet = Fleet(3)
    peer, idle = connect(fleet[0]), connect(fleet[0])
    idle.send("SUB b 1", "PING")
    idle.heard()
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(60.0)
    assert fleet[0].state.ctx.isolated
    assert peer.said("SUB a 1") == []
    assert peer.closed  # without a word: it is to go to another node
    late = NatsPeer(fleet[0])
    assert late.said("CONNECT {}")[-1] == "-ERR 'Node Is Isolated'"
    idle.pub("b", b"at most once")
    assert idle.heard() == [Msg("b", "1", b"at most once")]
