"""Clients of other nodes at the home of a stream: what is late, lost, refused or goes wrong there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.cluster.stream_disk import LOOP, DiskFleet, DiskNode
from tests.cluster.stream_fleet import JetStreamPeer, StreamFleet
from tests.cluster.test_streams_across_nodes import seen_by_all

from starlingmq.admin.copy_actions import Removal
from starlingmq.admin.member_actions import MemberActions
from starlingmq.admin.operator_problem import ImpossibleAction
from starlingmq.cluster.streams.cluster_streams import QUESTIONS_MAX
from starlingmq.cluster.streams.stream_registry import BYTES_MAX, Entries, RegistryChange, StreamEntry
from starlingmq.core.context.ready import Deliveries
from starlingmq.core.messages.message import Message
from starlingmq.storage.streams.stream_files import StreamActionError

REGISTRY = b"/starlingmq/test/jetstream"


class Writing(RegistryChange):
    """Other entries, whatever they were."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries

    def decide(self, entries: Entries) -> Entries:
        return self.entries

    def done(self) -> None:
        pass


def three(fleet: StreamFleet) -> list[JetStreamPeer]:
    """Clients, one at each node, and a stream at the first."""
    peers = [JetStreamPeer(fleet, place) for place in range(3)]
    assert "error" not in peers[0].make("S", "s")
    seen_by_all(fleet, "S")
    return peers


def test_a_request_of_a_later_level_is_refused_before_anything_changes() -> None:
    fleet = StreamFleet(3)
    peers = three(fleet)
    later = "Nats-Required-Api-Level: 99"
    config = {"name": "S", "subjects": ["s", "more"], "storage": "memory"}
    before = fleet[0].cluster.streams.registry.changes
    for peer in peers:
        for request, body in (
            ("UPDATE.S", config),
            ("DELETE.S", b""),
            ("CREATE.T", config | {"name": "T", "subjects": ["t"]}),
        ):
            reply = peer.request(f"$JS.API.STREAM.{request}", body, headers=later)
            fleet.advance(3.0)
            answer = peer.answer(reply)
            assert answer is not None and b'"err_code":10185' in answer.payload
        entries = fleet[0].cluster.streams.registry.entries
        assert {name: (entry.subjects, entry.ending) for name, entry in entries.items()} == {"S": (("s",), 0.0)}
        assert peer.api("STREAM.INFO.S")["config"]["subjects"] == ["s"]
        assert fleet[0].cluster.streams.registry.changes == before


def test_what_a_far_client_removes_is_stored_before_it_is_told() -> None:
    fleet = DiskFleet(3)
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s", storage="file")
    seen_by_all(fleet, "S")
    for _ in range(3):
        other.ask("s", b"x")
    node: Any = fleet[0]
    keep, stored = node._keep, []

    def look() -> None:
        told = b'"purged":3' in b"".join(
            outgoing.message.payload
            for write in node.writes
            if isinstance(write, Deliveries)
            for outgoing in write.outgoings
        )
        keep()
        if told:
            stored.append([value for fact, value in node.disk.facts.items() if fact.startswith(b"js/f/")])

    node._keep = look
    assert other.api("STREAM.PURGE.S")["purged"] == 3
    assert stored == [[b"4"]]


def test_a_client_that_was_gone_before_its_request_was_passed_on_waits_for_nothing() -> None:
    fleet = StreamFleet(3)
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    fleet[1].etcd.streams.pop(REGISTRY)  # its node looks for the stream before it passes on
    home.make("S", "s")
    home.consume("S", "c")
    other.peer.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5}', other.inbox)
    other.peer.fake.drop()
    fleet.advance(1.0)
    assert "S" in fleet[1].cluster.streams.registry.entries
    assert home.api("CONSUMER.INFO.S.c")["num_waiting"] == 0


def test_the_end_of_a_client_is_told_again_when_something_is_sent_to_it() -> None:
    fleet = StreamFleet(3)
    home, other, _ = three(fleet)
    home.consume("S", "c")
    other.peer.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5}', other.inbox)
    fleet.advance(0.1)
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(10.0)
    other.peer.fake.drop()
    fleet.advance(1.0)
    fleet.heal()
    fleet.advance(10.0)
    home.ask("s", b"x")
    fleet.advance(0.5)
    assert home.api("CONSUMER.INFO.S.c")["num_waiting"] == 0 and fleet[0].cluster.streams._far == {}


def test_a_request_that_fails_at_the_home_stops_no_others() -> None:
    fleet = DiskFleet(3)
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s", storage="file")
    seen_by_all(fleet, "S")
    home.ask("s", b"x")
    fleet.kill("n1")
    fleet.serve("n1")
    fleet.advance(10.0)
    node = fleet.named("n1")
    assert isinstance(node, DiskNode)

    def unreadable(seq: int, count: int) -> Any:
        raise OSError("a bad disk")

    (definition,) = node.disk.streams.values()
    vars(definition.log)["read"] = unreadable
    first = other.inbox + ".a"
    other.peer.send(
        f"PUB $JS.API.STREAM.MSG.GET.S {first} 9", '{"seq":1}', f"PUB $JS.API.STREAM.INFO.S {other.inbox}.b 0", ""
    )
    assert other.wait(lambda: other.answer(f"{other.inbox}.b"), 3.0) and other.answer(first) is None


def test_requests_of_far_clients_take_their_share_of_a_turn() -> None:
    fleet = StreamFleet(3)
    _, other, _ = three(fleet)
    ctx: Any = fleet[0].state.ctx
    asked = other.request("$JS.API.STREAM.INFO.S")
    assert other.wait(lambda: other.answer(asked), 3.0)
    used = []
    peers = fleet[0].state.peers
    hear = peers.control
    assert hear is not None

    def look(node: int, payload: bytes) -> None:
        before = ctx.work
        hear(node, payload)
        used.append(before - ctx.work)

    peers.control = look
    other.peer.send(*[f"PUB $JS.API.STREAM.INFO.S {other.inbox}.{number} 0\r\n" for number in range(10)])
    fleet.advance(0.5)
    assert sum(used) >= 320


def test_a_stream_that_is_registered_without_an_answer_of_etcd_gets_messages_again() -> None:
    fleet = StreamFleet(3)
    _, other, third = three(fleet)
    entry = fleet[1].cluster.streams.registry.entries["S"]
    fleet[0].cluster.streams.leaving = True
    fleet[1].cluster.streams.change(Writing({}))
    fleet.advance(0.5)
    assert "error" not in other.make("T", "s")
    fleet.advance(0.5)
    fleet[0].cluster.streams.leaving = False
    third.make("U", "u")
    fleet.advance(0.5)
    assert fleet[0].state.jetstream.is_aside(fleet[0].state.jetstream.streams["S"])
    entries = fleet[1].cluster.streams.registry.entries
    fleet[1].cluster.streams.change(Writing({"S": entry, "U": entries["U"]}))
    fleet.advance(0.5)
    assert third.ask("s", b"x") == {"stream": "S", "seq": 1}


def test_a_deletion_that_comes_to_a_former_home_does_not_end_the_stream_of_another_one() -> None:
    fleet = StreamFleet(3)
    home, other, third = three(fleet)
    fleet[0].cluster.streams.leaving = True
    fleet[2].etcd.streams.pop(REGISTRY)  # it will not hear that the stream is another one
    fleet[1].cluster.streams.change(Writing({}))
    fleet.advance(0.5)
    assert "error" not in other.make("S", "s")
    fleet[0].cluster.streams.leaving = False
    fleet[0].cluster.streams.on_change()
    fleet.advance(0.5)
    assert fleet[2].cluster.streams.registry.entries["S"].home == "n1"
    for request in ("STREAM.DELETE.S", "STREAM.PURGE.S", "STREAM.INFO.S"):
        assert third.api(request)["error"]["err_code"] == 10008
    fleet.advance(0.5)
    assert fleet[1].cluster.streams.registry.entries["S"].home == "n2"
    assert home.ask("s", b"x") == {"stream": "S", "seq": 1} and "S" in fleet[1].state.jetstream.streams


def test_a_change_of_a_stream_whose_entry_ends_meanwhile_is_refused() -> None:
    fleet = StreamFleet(3)
    home, _, _ = three(fleet)
    streams = fleet[0].cluster.streams
    streams.on_change = lambda: None  # it has not seen the deletion yet
    config = {"name": "S", "subjects": ["s", "more"], "storage": "memory"}
    entry = streams.registry.entries["S"]
    ending = StreamEntry(entry.home, entry.subjects, entry.config, 1.0)
    fleet[1].cluster.streams.change(Writing({"S": ending}))
    fleet.advance(0.5)
    for request, body in (("UPDATE", config), ("DELETE", b"")):
        assert home.api(f"STREAM.{request}.S", body)["error"]["err_code"] == 10008
    assert streams.registry.entries["S"] == ending


def test_lists_that_wait_for_other_nodes_are_bounded() -> None:
    fleet = StreamFleet(3)
    _, other, _ = three(fleet)
    fleet.cut(1, 2, False)
    inboxes = [f"{other.inbox}.l{number}" for number in range(QUESTIONS_MAX + 10)]
    for each in inboxes:
        other.peer.pub("$JS.API.STREAM.LIST", b"", each)
    assert len(fleet[1].cluster.streams._questions) == QUESTIONS_MAX
    early = other.answer(inboxes[-1])
    assert early is not None and b'"missing":["S"]' in early.payload and other.answer(inboxes[0]) is None
    fleet.heal()
    fleet.advance(5.0)
    assert all(other.answer(each) for each in inboxes) and not fleet[1].cluster.streams._questions


@pytest.mark.parametrize("crew", ["", "crew"])
def test_a_push_consumer_waits_for_the_node_of_its_subscriber(crew: str) -> None:
    fleet = StreamFleet(3)
    home, other, _ = three(fleet)
    other.peer.send(f"SUB push {crew} 9")
    config = {"durable_name": "p", "ack_policy": "none", "deliver_subject": "push", "deliver_group": crew}
    assert "error" not in home.api("CONSUMER.DURABLE.CREATE.S.p", {"stream_name": "S", "config": config})
    home.ask("s", b"1")
    fleet.cut(1, 2)
    fleet.cut(2, 3)
    fleet.advance(10.0)
    home.ask("s", b"2")
    fleet.advance(1.0)
    fleet.heal()
    fleet.advance(10.0)
    other.look()
    assert [each.payload for each in other.messages] == [b"1", b"2"]
    home.ask("s", b"3")
    fleet.advance(1.0)
    other.look()
    assert [each.payload for each in other.messages] == [b"1", b"2", b"3"]


def test_the_clock_of_another_node_does_not_lead_the_times_of_a_stream() -> None:
    fleet = StreamFleet(3)
    three(fleet)
    state = fleet[0].state
    stream = state.jetstream.streams["S"]
    peer = state.peers.by_number[2]
    for seconds in (86400.0, -86400.0):
        message = Message(b"s", b"x", 1, False, b"", 0.0, "$nats/1", fleet.now + seconds)
        state.jetstream.arrived(message, stream, peer.session, True)
    assert stream.index.last == 2
    assert [stream.index.time_of(seq) for seq in (1, 2)] == [fleet.now, fleet.now]


def test_an_isolated_home_delivers_nothing_and_sends_its_clients_to_other_nodes() -> None:
    """Another node may serve its streams, in its place."""
    fleet = StreamFleet(3)
    home, _, _ = three(fleet)
    home.consume("S", "c", ack_wait=int(15e9))
    waiting, asking = JetStreamPeer(fleet, 0, "waiting"), JetStreamPeer(fleet, 0, "asking")
    home.ask("s", b"x")
    (first,) = home.pull("S", "c", 1)
    waiting.peer.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", waiting.inbox)
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(20.0)
    assert fleet[0].state.ctx.isolated
    waiting.look()
    assert waiting.messages == [], "it was due again meanwhile"
    asking.peer.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", asking.inbox)
    home.peer.pub(first.reply, b"+ACK")
    assert asking.peer.closed and home.peer.closed
    fleet.heal()
    fleet.advance(10.0)
    waiting.look()
    assert [each.payload for each in waiting.messages] == [b"x"]


@pytest.mark.parametrize(
    "told", [b"?", b"[]", b'{"streams":[1],"memory":"x"}', b'{"streams":"x"}', b'{"streams":[{}]}']
)
def test_what_another_node_tells_in_another_form_spoils_no_list(told: bytes) -> None:
    fleet = StreamFleet(3)
    home, other, _ = three(fleet)
    other.make("T", "t")
    seen_by_all(fleet, "T")
    fleet[0].cluster.streams.on_ask = lambda names: told
    found = other.api("STREAM.LIST")
    assert ([each["config"]["name"] for each in found["streams"]], found["missing"]) == (["T"], ["S"])
    assert other.api("INFO")["streams"] == 1 and home.api("INFO")["streams"] == 2


def test_acknowledgements_go_to_the_home_and_not_to_a_stream_of_the_same_name_that_is_aside() -> None:
    fleet = StreamFleet(3)
    home, other, _ = three(fleet)
    home.consume("S", "c")
    fleet[0].cluster.streams.leaving = True
    fleet[1].cluster.streams.change(Writing({}))
    fleet.advance(0.5)
    assert "error" not in other.make("S", "s") and "error" not in other.consume("S", "c")
    fleet[0].cluster.streams.leaving = False
    fleet[0].cluster.streams.on_change()
    fleet.advance(0.5)
    assert home.ask("s", b"x") == {"stream": "S", "seq": 1}
    (message,) = home.pull("S", "c", 1)
    assert home.ask(message.reply, b"+ACK") is not None
    assert other.api("CONSUMER.INFO.S.c")["num_ack_pending"] == 0


def test_a_home_that_has_lost_its_disk_says_which_streams_are_empty(caplog: pytest.LogCaptureFixture) -> None:
    fleet = DiskFleet(3)
    home, *_ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s", storage="file")
    home.make("M", "m")
    seen_by_all(fleet, "M")
    fleet.kill("n1")
    del fleet.disks["n1"]
    fleet.serve("n1")
    fleet.advance(10.0)
    assert sorted(fleet.nodes[2].state.jetstream.streams) == ["M", "S"]
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == [
        "stream S is in the registry of the cluster, and was not here: it was made again, without the messages it had"
    ]


def test_a_deletion_of_an_operator_that_a_crash_cut_short_is_completed() -> None:
    fleet = DiskFleet(3)
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s", storage="file")
    seen_by_all(fleet, "S")
    home.ask("s", b"x")
    node: Any = fleet[0]
    node.admin.files_wait.append("S")
    deleting = LOOP.create_task(node.admin.delete("S"))
    fleet.advance(1.0)
    assert node.state.jetstream.streams == {} and not deleting.done()
    assert other.make("S", "s")["error"]["err_code"] == 10008, "it is being deleted"
    deleting.cancel()
    fleet.kill("n1")
    fleet.serve("n1")
    fleet.advance(10.0)
    assert [node.cluster.streams.registry.entries for node in fleet.nodes] == [{}, {}, {}]
    assert fleet.disks["n1"].streams == {} and other.make("S", "s")["did_create"]


def test_a_deletion_of_an_operator_is_told_when_the_registry_knows_it() -> None:
    fleet = DiskFleet(3)
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    home.make("S", "s", storage="file")
    seen_by_all(fleet, "S")
    node: Any = fleet[0]
    fleet.etcd.lose_leader(fleet.now, 5.0)
    fleet.advance(1.0)
    deleting = LOOP.create_task(node.admin.delete("S"))
    fleet.advance(3.5)
    with pytest.raises(StreamActionError, match="etcd"):
        deleting.result()
    assert other.api("STREAM.INFO.S")["config"]["name"] == "S"
    fleet.advance(5.0)
    deleting = LOOP.create_task(node.admin.delete("S"))
    while not deleting.done():
        fleet.advance(0.01)
    deleting.result()
    assert fleet[0].cluster.streams.registry.entries == {} and fleet.disks["n1"].streams == {}


class ClusterOfFleet:
    """The part of a node that ``cluster.forget`` uses."""

    name = "n2"
    copies = None

    def __init__(self, fleet: StreamFleet) -> None:
        self.fleet = fleet

    def names(self) -> dict[int, str]:
        return {node.cluster.number: node.name for node in self.fleet.nodes}

    async def forget(self, name: str, force: bool, seconds: float) -> str:
        return f"there is no member {name}"

    async def forget_server(self, name: str) -> None:
        pass

    async def forget_streams(self, home: str) -> str:
        outcome: list[str] = []
        self.fleet[1].cluster.streams.forget_home(home, outcome.append)
        self.fleet.advance(1.0)
        return outcome[0]


async def test_streams_of_a_node_that_is_no_member_any_more_can_be_forgotten() -> None:
    fleet = StreamFleet(3)
    home, *_ = three(fleet)
    entries = fleet[1].cluster.streams.registry.entries
    lost = StreamEntry("lost", ("t",), "")
    fleet[1].cluster.streams.change(Writing({**entries, "T": lost}))
    fleet.advance(0.5)
    assert home.make("U", "t")["error"]["err_code"] == 10065
    cluster: Any = ClusterOfFleet(fleet)
    drain: Any = SimpleNamespace(state=fleet[1].cluster)
    actions = MemberActions(cluster, drain, lambda: (), lambda *rest: None)
    with pytest.raises(ImpossibleAction, match="lost has streams of JetStream, which would be lost: T"):
        await actions.forget(lambda *rest: None, Removal("lost"))
    await actions.forget(lambda *rest: None, Removal("lost", force=True))
    assert home.make("U", "t")["did_create"]
    with pytest.raises(ImpossibleAction, match="there is no member lost"):
        await actions.forget(lambda *rest: None, Removal("lost", force=True))


def test_an_answer_of_before_a_restart_is_given_to_no_other_connection() -> None:
    fleet = StreamFleet(3)
    _, other, _ = three(fleet)
    old = other.peer.client.client_id
    fleet.restart(1)
    fleet.advance(10.0)
    again = JetStreamPeer(fleet, 1)
    again.peer.send("SUB answers.* 9")
    streams = fleet[0].cluster.streams
    for client_id, topic in ((old, b"answers/old"), (again.peer.client.client_id, b"answers/again")):
        streams.answer(fleet[1].cluster.number, client_id, topic, b"x")
        streams.wake()
        fleet.advance(0.1)
    again.look()
    assert [each.subject for each in again.messages] == ["answers.again"]


def test_a_deletion_that_copies_may_not_have_is_answered_and_completed_later() -> None:
    fleet = StreamFleet(3)
    _, _, third = three(fleet)
    node: Any = fleet[0]
    service = node.driver.on_request.__self__.load()
    service.when_copied = lambda then: then(False)
    assert third.api("STREAM.DELETE.S")["success"]
    assert [*fleet[2].cluster.streams.registry.entries] == ["S"]
    del service.when_copied
    fleet.advance(3.0)
    assert fleet[2].cluster.streams.registry.entries == {}


def test_an_update_that_its_home_refuses_in_the_end_is_not_carried_out() -> None:
    fleet = StreamFleet(3)
    home, other, third = three(fleet)
    limits = {"max_ack_pending": 5}
    config = {"name": "S", "subjects": ["s", "more"], "storage": "memory", "consumer_limits": limits}
    asked = other.request("$JS.API.STREAM.UPDATE.S", config)
    made = home.request(
        "$JS.API.CONSUMER.DURABLE.CREATE.S.c",
        {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 9}},
    )
    fleet.advance(1.0)
    answers = [home.answer(made), other.answer(asked)]
    assert [each is not None and b"error" in each.payload for each in answers] == [False, True]
    assert third.api("STREAM.INFO.S")["config"]["subjects"] == ["s"]
    assert fleet[2].cluster.streams.registry.entries["S"].subjects == ("s",)
    assert third.make("T", "more")["did_create"]


def test_a_stream_that_has_no_room_in_the_registry_is_refused_for_good() -> None:
    fleet = StreamFleet(3)
    home, *_ = three(fleet)
    entries = fleet[1].cluster.streams.registry.entries
    fleet[1].cluster.streams.change(Writing({**entries, "T": StreamEntry("n3", ("t",), "x" * (BYTES_MAX - 900))}))
    fleet.advance(0.5)
    assert home.make("U", "u", description="x" * 900)["error"]["err_code"] == 10023


def test_a_node_that_cannot_read_the_registry_does_not_say_that_there_is_no_such_stream() -> None:
    fleet = StreamFleet(3)
    _, other, _ = three(fleet)
    fleet[1].cluster.streams.registry._read(b"later")
    assert other.api("STREAM.INFO.S")["config"]["name"] == "S"
    assert other.api("STREAM.INFO.T")["error"]["err_code"] == 10008


def test_properties_in_an_order_of_a_hook_are_stored_whole() -> None:
    fleet = StreamFleet(3)
    three(fleet)
    state = fleet[0].state
    stream = state.jetstream.streams["S"]
    user, reply = b"\x26\0\1a\0\1b", b"\x08\0\3r/1"
    for properties in (reply + user, user + reply):
        message = Message(b"s", b"x", 1, False, properties, 0.0, "$nats/1", fleet.now)
        state.jetstream.arrived(message, stream, state.peers.by_number[2].session, True)
    stored = [stream.message(seq) for seq in (1, 2)]
    assert [each and each.properties for each in stored] == [user, user + reply]


def test_a_request_ends_whose_messages_are_not_heard_any_more() -> None:
    fleet = StreamFleet(3)
    home, other, third = three(fleet)
    home.consume("S", "c")
    other.peer.send("SUB later 7")
    for inbox in (other.inbox, "later"):
        other.peer.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5}', inbox)
    fleet.advance(0.1)
    other.peer.send("UNSUB 2")
    for number in range(4):
        third.ask("s", b"%d" % number)
    fleet.advance(0.1)
    other.look()
    assert [each.payload for each in other.messages] == [b"1", b"2", b"3"], "the first was sent to the other request"
    assert home.api("CONSUMER.INFO.S.c")["num_waiting"] == 1
