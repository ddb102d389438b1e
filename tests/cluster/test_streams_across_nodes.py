"""JetStream in a cluster: a stream is at one node, and used from all."""

from __future__ import annotations

import msgspec
import pytest
from tests.auth.test_acl import acl
from tests.cluster.stream_fleet import JetStreamPeer, StreamFleet
from tests.nats.talk import Msg

from starlingmq.cluster.etcd.etcd_requests import Put, Txn
from starlingmq.cluster.streams.stream_registry import Entries, RegistryChange


@pytest.fixture
def fleet() -> StreamFleet:
    return StreamFleet(3)


def seen_by_all(fleet: StreamFleet, name: str) -> None:
    for _ in range(200):
        if all(name in node.cluster.streams.registry.entries for node in fleet.nodes):
            return
        fleet.advance(0.02)
    raise AssertionError(f"not all nodes know {name}")


def test_a_stream_that_one_node_makes_is_used_from_the_others(fleet: StreamFleet) -> None:
    home, other, third = (JetStreamPeer(fleet, place) for place in range(3))
    made = home.make("S", "s.>")
    assert made["did_create"] and made["config"]["name"] == "S"
    seen_by_all(fleet, "S")
    assert [node.state.jetstream.streams.keys() for node in fleet.nodes] == [{"S"}, set(), set()]
    info = other.api("STREAM.INFO.S")
    assert (info["config"]["subjects"], info["cluster"]) == (["s.>"], {"name": "test", "leader": "n1"})
    assert [each.ask("s.a", b"%d" % number) for number, each in enumerate((home, other, third))] == [
        {"stream": "S", "seq": 1},
        {"stream": "S", "seq": 2},
        {"stream": "S", "seq": 3},
    ]
    assert other.consume("S", "c")["name"] == "c"
    got = third.pull("S", "c", 3)
    assert [(each.subject, each.payload) for each in got] == [("s.a", b"0"), ("s.a", b"1"), ("s.a", b"2")]
    for each in got:
        assert third.ask(each.reply, b"+ACK") is not None, "an acknowledgement with a reply subject is answered"
    info = home.api("CONSUMER.INFO.S.c")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 3)
    assert other.api("STREAM.MSG.GET.S", {"seq": 2})["message"]["subject"] == "s.a"


def test_a_name_and_a_subject_belong_to_one_stream(fleet: StreamFleet) -> None:
    home, other, third = (JetStreamPeer(fleet, place) for place in range(3))
    assert "error" not in home.make("S", "s.>")
    seen_by_all(fleet, "S")
    assert other.make("T", "s.a")["error"]["err_code"] == 10065
    assert other.make("S", "other")["error"]["err_code"] == 10058
    assert third.make("S", "s.>")["did_create"], "the same again is no error"
    asked = [each.request("$JS.API.STREAM.CREATE.R", body) for each, body in ((other, R), (third, R), (home, R))]
    fleet.advance(3.0)
    for peer, reply in zip((other, third, home), asked, strict=True):
        answer = peer.answer(reply)
        assert answer is not None and b"error" not in answer.payload
    assert sum("R" in node.state.jetstream.streams for node in fleet.nodes) == 1


R = {"name": "R", "subjects": ["r"], "storage": "memory"}


def test_a_new_stream_is_answered_when_all_nodes_send_messages_to_it(fleet: StreamFleet) -> None:
    home, _, third = (JetStreamPeer(fleet, place) for place in range(3))
    fleet.cut(1, 3)
    reply = home.request("$JS.API.STREAM.CREATE.R", R)
    fleet.advance(0.3)
    assert home.answer(reply) is None and "R" in fleet[0].state.jetstream.streams
    fleet.heal()
    assert home.wait(lambda: home.answer(reply), 3.0)
    assert third.ask("r", b"x") == {"stream": "R", "seq": 1}
    fleet.cut(1, 3)
    fleet.cut(1, 2)
    fleet.cut(2, 3)
    reply = home.request("$JS.API.STREAM.CREATE.T", R | {"name": "T", "subjects": ["t"]})
    assert home.wait(lambda: home.answer(reply), 3.0), "nodes that are lost are not waited for"


def test_a_new_stream_is_found_at_a_node_that_has_not_heard_of_it(fleet: StreamFleet) -> None:
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    fleet[1].etcd.streams.pop(b"/starlingmq/test/jetstream")
    assert "error" not in home.make("S", "s")
    assert fleet[1].cluster.streams.registry.entries == {}
    assert other.api("STREAM.INFO.S")["cluster"]["leader"] == "n1"
    assert other.api("STREAM.INFO.T")["error"]["err_code"] == 10059


def test_changes_and_deletions_are_made_at_the_home(fleet: StreamFleet) -> None:
    home, other, third = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s.>")
    seen_by_all(fleet, "S")
    config = {"name": "S", "subjects": ["s.>", "more"], "storage": "memory"}
    assert other.api("STREAM.UPDATE.S", config)["config"]["subjects"] == ["s.>", "more"]
    fleet.advance(0.5)
    assert third.ask("more", b"x") == {"stream": "S", "seq": 1}
    assert third.make("T", "more")["error"]["err_code"] == 10065
    assert other.api("STREAM.DELETE.S") == {"type": "io.nats.jetstream.api.v1.stream_delete_response", "success": True}
    fleet.advance(0.5)
    assert [list(node.cluster.streams.registry.entries) for node in fleet.nodes] == [[], [], []]
    assert home.api("STREAM.INFO.S")["error"]["err_code"] == 10059
    assert third.make("T", "more")["did_create"]


def test_lists_and_sums_are_those_of_all_nodes(fleet: StreamFleet) -> None:
    peers = [JetStreamPeer(fleet, place) for place in range(3)]
    for place, peer in enumerate(peers):
        peer.make(f"S{place}", f"s{place}.>")
        seen_by_all(fleet, f"S{place}")
        peer.ask(f"s{place}.a", b"text")
    for peer in peers:
        assert peer.api("STREAM.NAMES")["streams"] == ["S0", "S1", "S2"]
        assert peer.api("STREAM.NAMES", {"subject": "s1.a"})["streams"] == ["S1"]
        found = peer.api("STREAM.LIST")
        assert [(each["config"]["name"], each["state"]["messages"]) for each in found["streams"]] == [
            ("S0", 1),
            ("S1", 1),
            ("S2", 1),
        ]
        assert "missing" not in found and found["total"] == 3
        account = peer.api("INFO")
        assert (account["streams"], account["memory"] > 0) == (3, True)
    fleet.cut(1, 3)
    fleet.cut(2, 3)
    fleet.advance(10.0)
    found = peers[0].api("STREAM.LIST")
    assert [each["config"]["name"] for each in found["streams"]] == ["S0", "S1"] and found["missing"] == ["S2"]


def test_a_push_consumer_delivers_to_subscribers_of_other_nodes(fleet: StreamFleet) -> None:
    home, other, third = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s.>")
    seen_by_all(fleet, "S")
    other.peer.send("SUB push 9")
    config = {"durable_name": "p", "ack_policy": "explicit", "deliver_subject": "push"}
    third.api("CONSUMER.DURABLE.CREATE.S.p", {"stream_name": "S", "config": config})
    third.request("s.a", b"hi", headers="A: b")
    assert other.wait(lambda: other.messages, 3.0)
    (message,) = other.messages
    assert message[:3] == ("s.a", "9", b"hi") and message.headers == "A: b"
    assert message.reply.startswith("$JS.ACK.S.p.1.1.1.")
    other.ask(message.reply, b"+ACK")
    assert home.api("CONSUMER.INFO.S.p")["num_ack_pending"] == 0


def test_members_of_a_deliver_group_on_different_nodes_share_messages(fleet: StreamFleet) -> None:
    home, other, third = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s.>")
    seen_by_all(fleet, "S")
    other.peer.send("SUB push crew 9")
    third.peer.send("SUB push crew 9")
    config = {"durable_name": "p", "ack_policy": "explicit", "deliver_subject": "push", "deliver_group": "crew"}
    assert "error" not in home.api("CONSUMER.DURABLE.CREATE.S.p", {"stream_name": "S", "config": config})
    for number in range(20):
        home.ask("s.a", b"%d" % number)
    fleet.advance(1.0)
    third.look()
    other.look()
    assert len(third.messages) == len(other.messages) == 10
    assert sorted(int(each.payload) for each in third.messages + other.messages) == list(range(20))
    assert {each.subject for each in third.messages} == {"s.a"}


def test_without_etcd_streams_go_on_and_changes_are_refused(fleet: StreamFleet) -> None:
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s.>")
    seen_by_all(fleet, "S")
    fleet.etcd.lose_leader(fleet.now, 60.0)
    fleet.advance(3.0)
    assert other.ask("s.a", b"x") == {"stream": "S", "seq": 1}
    for asked in (other.make("T", "t"), other.api("STREAM.DELETE.S")):
        assert asked["error"]["err_code"] == 10008
    assert list(fleet[0].state.jetstream.streams) == ["S"]


def test_a_home_that_is_away_is_said_to_be_away(fleet: StreamFleet) -> None:
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s.>")
    seen_by_all(fleet, "S")
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(10.0)
    assert other.api("STREAM.INFO.S")["error"]["err_code"] == 10008
    answer = other.api("CONSUMER.MSG.NEXT.S.c", b"1")
    assert isinstance(answer, Msg) and answer.headers == " 503"
    reply = other.request("s.a", b"kept", headers="Nats-Msg-Id: 1")
    fleet.advance(1.0)
    assert other.answer(reply) is None
    fleet.heal()
    fleet.advance(10.0)
    assert other.answer(reply) is not None, "messages wait for the home, as those of persistent sessions"


def test_a_client_that_is_gone_is_sent_nothing(fleet: StreamFleet) -> None:
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s.>")
    seen_by_all(fleet, "S")
    home.consume("S", "c")
    other.peer.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5,"expires":60000000000}', other.inbox)
    fleet.advance(0.1)
    assert home.api("CONSUMER.INFO.S.c")["num_waiting"] == 1
    other.peer.fake.drop()
    fleet.advance(0.1)
    assert home.api("CONSUMER.INFO.S.c")["num_waiting"] == 0
    assert fleet[0].cluster.streams._far == {}


def test_a_home_that_was_restarted_has_the_streams_of_the_registry(fleet: StreamFleet) -> None:
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s.>")
    seen_by_all(fleet, "S")
    fleet.restart(0)
    fleet.advance(10.0)
    assert list(fleet[0].state.jetstream.streams) == ["S"]
    assert other.ask("s.a", b"x") == {"stream": "S", "seq": 1}, "it was in memory"


def test_a_stream_that_the_registry_does_not_know_is_registered_by_its_node(fleet: StreamFleet) -> None:
    """Of a broker that was alone, or of an etcd that was lost."""
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    for name, subject in (("S", "s"), ("T", "t"), ("U", "u")):
        home.make(name, subject)
    seen_by_all(fleet, "U")
    away: list[str] = []
    fleet[1].cluster.streams.forget_home("n1", away.append)
    fleet.advance(1.0)
    assert away == [""]
    assert [sorted(node.cluster.streams.registry.entries) for node in fleet.nodes] == [["S", "T", "U"]] * 3
    assert other.ask("s", b"x") == {"stream": "S", "seq": 1}


def test_a_stream_whose_subjects_are_those_of_another_one_gets_no_messages(fleet: StreamFleet) -> None:
    home, other, third = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s")
    seen_by_all(fleet, "S")
    fleet[0].cluster.streams.leaving = True
    away: list[str] = []
    fleet[1].cluster.streams.forget_home("n1", away.append)
    fleet.advance(1.0)
    assert "error" not in other.make("T", "s", "more")
    fleet.advance(0.5)
    fleet[0].cluster.streams.leaving = False
    third.make("U", "u")
    fleet.advance(0.5)
    assert sorted(fleet[0].cluster.streams.registry.entries) == ["T", "U"]
    assert [third.ask("s", b"x"), home.ask("s", b"y")] == [{"stream": "T", "seq": 1}, {"stream": "T", "seq": 2}]
    assert fleet[0].state.jetstream.streams["S"].index.last == 0
    other.api("STREAM.DELETE.T")
    fleet.advance(0.5)
    assert third.ask("s", b"z") == {"stream": "S", "seq": 1}, "its subjects are free again"


def test_a_deletion_that_a_crash_cut_short_is_completed(fleet: StreamFleet) -> None:
    home = JetStreamPeer(fleet, 0)
    home.make("S", "s")
    seen_by_all(fleet, "S")
    fleet[0].cluster.streams.on_change = lambda: None  # it dies before it does anything
    registry = fleet[1].cluster.streams.registry

    class Ending(RegistryChange):
        def decide(self, entries: Entries) -> Entries:
            return {name: msgspec.structs.replace(entry, ending=1.0) for name, entry in entries.items()}

        def done(self) -> None:
            pass

    fleet[1].cluster.streams.change(Ending())
    fleet.advance(0.5)
    assert registry.entries["S"].ending and "S" in fleet[0].state.jetstream.streams
    for place in (0, 1):
        assert JetStreamPeer(fleet, place).make("S", "s")["error"]["err_code"] == 10008, "the name is not free yet"
    fleet.restart(0)
    fleet.advance(10.0)
    assert registry.entries == {} and fleet[0].state.jetstream.streams == {}


def test_a_creation_whose_answer_is_lost_is_completed_by_its_home(fleet: StreamFleet) -> None:
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    assert "error" not in home.make("FIRST", "first")
    seen_by_all(fleet, "FIRST")
    reply = home.request("$JS.API.STREAM.CREATE.R", R)
    fleet.etcd.lose_leader(fleet.now, 5.0)
    fleet.advance(30.0)
    answer = home.answer(reply)
    assert answer is not None and b"10008" in answer.payload
    assert "error" not in home.api("STREAM.CREATE.R", R)
    assert "error" not in other.api("STREAM.CREATE.R", R)
    assert sum("R" in node.state.jetstream.streams for node in fleet.nodes) == 1


def test_a_stream_that_its_home_cannot_store_is_in_no_registry(fleet: StreamFleet) -> None:
    home = JetStreamPeer(fleet, 0)
    assert home.make("S", "s", storage="file")["error"]["err_code"] == 10023, "these nodes have no data directories"
    fleet.advance(0.5)
    assert [node.cluster.streams.registry.entries for node in fleet.nodes] == [{}, {}, {}]


def test_frames_of_another_version_are_told_of(fleet: StreamFleet) -> None:
    fleet[0].state.peers.send(2, b"J" + b"\x91\x92\x7f\x00")
    fleet.run()
    fleet.advance(0.1)
    assert any("node 1: a frame about streams is malformed" in each for each in fleet[1].said)


def test_a_registry_that_cannot_be_read_is_told_of_and_refuses_changes(fleet: StreamFleet) -> None:
    home = JetStreamPeer(fleet, 0)
    home.make("S", "s")
    fleet.etcd.session("stranger").request(Txn("x", (), (Put(b"/starlingmq/test/jetstream", b"later"),), ()), fleet.now)
    fleet.advance(0.5)
    assert any("the registry of streams in etcd cannot be read" in each for each in fleet[0].said)
    assert home.make("T", "t")["error"]["err_code"] == 10008
    assert home.ask("s", b"x") == {"stream": "S", "seq": 1}


def test_rights_are_those_at_the_node_of_the_client(fleet: StreamFleet) -> None:
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s")
    seen_by_all(fleet, "S")
    home.consume("S", "c")
    home.ask("s", b"x")
    rules = "default: allow\nrules:\n- {deny: stream, streams: [S], users: [guest]}\n"
    other.peer.client.rights = acl(rules).rights("", "guest", "")
    assert other.pull("S", "c", 1) == []
    assert other.api("STREAM.MSG.GET.S", {"seq": 1}, 1.0) is None
    assert other.api("STREAM.INFO.S")["state"]["messages"] == 1
    other.peer.client.rights = None
    assert len(other.pull("S", "c", 1)) == 1
