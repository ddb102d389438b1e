"""Consumers of JetStream as NATS connections have them: the hub, without its API."""

from __future__ import annotations

import json
from typing import cast

from tests.auth.test_acl import acl
from tests.harness import World
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT
from starlingmq.core.jetstream.bound_consumer import BoundConsumer, StoredConsumer
from starlingmq.core.jetstream.hub import JetStream
from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.consumer_state import ConsumerState, StoredPending, decode_state, encode_state
from starlingmq.core.streams.pending_messages import Pending
from starlingmq.core.streams.policies import WORK_QUEUE, StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream, SequenceLog

PULL = b'{"batch":10,"expires":60000000000}'
NEXT = "$JS.ACK.S.c.1.1.1.0.0"


class Log(SequenceLog):
    """``messages`` from 1 on. None: damaged."""

    def __init__(self, messages: list[Message | None]) -> None:
        self.messages = messages
        self.fails = False

    def stored(self) -> int:
        return len(self.messages) + 1

    def read(self, seq: int, count: int) -> list[Message | None]:
        if self.fails:
            raise OSError(5, "Input/output error")
        return self.messages[seq - 1 : seq - 1 + count] or [None]


def written(*payloads: bytes) -> list[Message | None]:
    return [Message(b"s/a", payload, 1, False, b"", 0.0, "p", 1000.0) for payload in payloads]


class Hub:
    """A stream S of ``s.>`` with a consumer c."""

    def __init__(self, log: SequenceLog | None = None) -> None:
        self.world = World()
        self.jetstream: JetStream = self.world.state.jetstream
        self.jetstream.enabled = True
        policy = StreamPolicy()
        policy.subjects = [b"s/+/#"]
        self.stream = SequencedStream(self.world.state.ctx, "S", 7, policy, b"{}", self.world.now, log, 1)

    def begin(self) -> None:
        if isinstance(self.stream.log, Log):
            for message in self.stream.log.messages:
                self.stream.restore(message)
        self.jetstream.add(self.stream)
        self.reader = self.consumer("c")

    def consumer(self, name: str) -> BoundConsumer:
        return self.jetstream.add_consumer(self.stream, name, ConsumerPolicy(), b"{}", self.world.now, b"")

    def requester(self, peer: NatsPeer) -> Requester:
        return self.jetstream.requester(peer.client, cast(NatsClient, peer.client.protocol_handler))

    def client(self, rules: str = "rules: [{allow: all}]") -> NatsPeer:
        peer = connect(self.world)
        peer.client.rights = acl(rules).rights("", "ops", "")
        peer.said("SUB _INBOX.> 9")
        return peer


def test_only_those_who_may_read_a_stream_get_messages_for_an_acknowledgement() -> None:
    hub = Hub()
    hub.begin()
    owner, guest = hub.client(), hub.client("rules: [{deny: stream, streams: [S]}, {allow: all}]")
    for _ in range(3):
        owner.pub("s.a", b"secret")
    guest.pub(NEXT, b"+NXT", reply="_INBOX.1")
    hub.world.run()
    assert (guest.heard(), hub.reader.consumer.requests.count) == ([], 0)
    owner.pub(NEXT, b"+NXT", reply="_INBOX.1")
    hub.world.run()
    assert len(owner.heard()) == 1


def test_what_an_acknowledgement_asks_for_ends_with_its_connection() -> None:
    hub = Hub()
    hub.begin()
    peer = hub.client()
    peer.pub(NEXT, b'+NXT {"batch":5}', reply="_INBOX.1")
    hub.world.run()
    assert hub.reader.consumer.requests.count == 1
    peer.fake.drop()
    assert hub.reader.consumer.requests.count == 0


def test_streams_of_a_node_without_jetstream_cause_no_turns() -> None:
    hub = Hub()
    hub.begin()
    hub.world.run()
    hub.jetstream.enabled = False
    hub.client().pub("s.a", b"x")
    assert hub.stream.index.count == 1
    assert not hub.jetstream.pending()


def test_a_refusal_is_json_whatever_it_names_and_waits_for_no_store() -> None:
    hub = Hub()
    hub.begin()
    peer = hub.client()
    peer.hpub("s.a", 'Nats-Msg-Id: "a\\\x01\tb"', b"1", reply="_INBOX.1")
    peer.hpub("s.a", "Nats-Expected-Last-Msg-Id: other", b"2", reply="_INBOX.2")
    answers = [json.loads(each.payload) for each in peer.heard() if isinstance(each, Msg)]
    assert answers[0] == {"stream": "S", "seq": 1}
    assert answers[1]["error"]["description"] == 'wrong last msg ID: "a\\\x01\tb"'
    hub.stream.policy.sealed = True
    hub.world.state.ctx.record(True)
    peer.client.stored_from = -1
    held: list[int] = []
    hub.world.carry_out = lambda ready: held.append(peer.client.stored_from)  # type: ignore[method-assign]
    peer.pub("s.a", b"3", reply="_INBOX.3")
    assert held[0] < 0


def got(peer: NatsPeer) -> list[bytes]:
    return [each.payload for each in peer.heard() if isinstance(each, Msg)]


def test_a_damaged_message_is_passed_over() -> None:
    log = Log(written(b"1", b"2", b"3"))
    hub = Hub(log)
    hub.begin()
    log.messages[1] = None
    peer = hub.client()
    hub.jetstream.pull(hub.reader, b"_INBOX/1", PULL, hub.requester(peer))
    hub.world.run()
    assert got(peer) == [b"1", b"3"]
    assert hub.reader.waiting_messages() == 0


def test_a_log_that_cannot_be_read_is_tried_again_and_other_consumers_go_on() -> None:
    log = Log(written(b"1", b"2"))
    hub = Hub(log)
    hub.begin()
    other = Hub.consumer(hub, "d")
    log.fails = True
    peer = hub.client()
    hub.jetstream.pull(hub.reader, b"_INBOX/1", PULL, hub.requester(peer))
    hub.jetstream.pull(other, b"_INBOX/2", b'{"batch":1,"no_wait":true}', hub.requester(peer))
    hub.world.run()
    assert got(peer) == []
    log.fails = False
    hub.world.advance(1.5)
    assert sorted(got(peer)) == [b"1", b"1", b"2"]


def test_acknowledgements_of_one_turn_are_stored_once_before_they_are_answered() -> None:
    hub = Hub(Log(written(*[b"%d" % each for each in range(50)])))
    hub.begin()
    peer = hub.client()
    hub.jetstream.pull(hub.reader, b"_INBOX/1", b"50", hub.requester(peer))
    hub.world.advance(1.0)
    acks = [each.reply for each in peer.heard() if isinstance(each, Msg)]
    assert len(acks) == 50
    hub.world.state.ctx.record(True)
    stored: list[bytes] = []
    hub.world.carry_out = lambda ready: stored.extend(  # type: ignore[method-assign]
        each.value for each in ready.writes if each.kind == FACT_PUT
    )
    peer.send_raw(b"".join(b"PUB %b _INBOX.2 0\r\n\r\n" % reply.encode() for reply in acks))
    assert len(stored) == 1
    state = decode_state(StoredConsumer(hub.reader.fact(), stored[0]).state)
    assert (state.floor, state.pending) == (50, [])


def test_what_was_done_before_a_crash_leaves_a_work_queue_at_the_start() -> None:
    hub = Hub(Log(written(b"1", b"2", b"3")))
    hub.stream.policy.retention = WORK_QUEUE
    hub.begin()
    state = ConsumerState()
    state.next, state.delivered, state.number, state.floor = 3, 2, 2, 0
    state.pending = [StoredPending(2, 2)]  # the first one is acknowledged
    hub.jetstream.remove_consumer(hub.reader)
    hub.jetstream.remove_done()
    assert hub.stream.index.count == 3
    hub.jetstream.add_consumer(hub.stream, "c", ConsumerPolicy(), b"{}", hub.world.now, encode_state(state))
    hub.jetstream.remove_done()
    assert [seq for seq in (1, 2, 3) if hub.stream.index.has(seq)] == [2, 3]


def test_a_consumer_that_may_not_be_idle_at_all_leaves_time_for_others() -> None:
    hub = Hub()
    hub.begin()
    peer = hub.client()
    policy = ConsumerPolicy()
    policy.inactive = 1e-9
    reader = hub.jetstream.add_consumer(hub.stream, "d", policy, b"{}", hub.world.now, b"")
    hub.jetstream.pull(reader, b"_INBOX/1", b'{"batch":1}', hub.requester(peer))
    hub.world.run()
    hub.world.advance(0.3)
    assert not reader.gone
    assert hub.jetstream.due_at > hub.world.now + 0.1


def test_timers_that_came_too_early_leave_nothing_behind() -> None:
    hub = Hub()
    hub.begin()
    hub.reader.consumer.policy.inactive = 86_400.0
    hub.reader.consumer.change(hub.reader.consumer.policy, hub.world.now)
    hub.stream.policy.allow_ttl = True
    peer = hub.client()
    for number in range(200):
        hub.jetstream.pull(hub.reader, b"_INBOX/1", b'{"batch":1,"expires":100000000}', hub.requester(peer))
        peer.hpub("s.a", f"Nats-TTL: 1s\r\nNats-Msg-Id: {number}")
        hub.world.advance(1.5)
    assert hub.stream.index.count == 0
    assert len(hub.jetstream._ends) <= 70
    assert len(hub.jetstream._timers) <= 70
    hub.world.advance(300.0)
    assert len(hub.jetstream._ends) <= 1


def test_a_consumer_of_the_store_that_is_deleted_at_once_does_not_come_back() -> None:
    hub = Hub(Log(written(b"1")))
    hub.begin()
    reader = hub.jetstream.add_consumer(
        hub.stream, "d", ConsumerPolicy(), b"{}", hub.world.now, encode_state(ConsumerState())
    )
    hub.world.state.ctx.record(True)
    hub.jetstream.remove_consumer(reader)
    deleted = [each.topic for each in hub.world.state.ctx.ready.writes if each.kind == FACT_DELETE]
    assert deleted == [reader.fact()]


def test_a_state_with_many_pending_messages_is_stored_less_often() -> None:
    hub = Hub(Log(written(*[b"%d" % each for each in range(10)])))
    hub.begin()
    stored: list[float] = []
    hub.world.state.ctx.record(True)
    hub.world.carry_out = lambda ready: stored.extend(  # type: ignore[method-assign]
        hub.world.now for each in ready.writes if each.kind == FACT_PUT and each.topic == hub.reader.fact()
    )
    for sequence in range(1 << 14):
        hub.reader.consumer.pending.wait(1000 + sequence, Pending(1000 + sequence, 0.0), hub.world.now + 30.0)
    begun = hub.world.now
    for _ in range(40):
        hub.jetstream._changed(hub.reader)
        hub.world.advance(0.1)
    assert len(stored) <= 11  # instead of 20: every 0.4 s
    assert hub.world.now - begun > 3.9
    hub.world.advance(1.0)
    assert len(stored) <= 12 and not hub.jetstream._unsaved  # the last change is stored, too


def test_facts_of_a_stream_whose_deletion_a_crash_has_cut_short_are_removed_at_the_start() -> None:
    hub = Hub(Log(written(b"1")))
    hub.begin()
    facts = {b"js/c/7/c": b"", b"js/f/9": b"4", b"js/r/9/0": b"\x01", b"js/c/9/other": b"", b"other": b""}
    hub.jetstream.restore(hub.stream, facts)
    hub.jetstream.restored(facts)
    assert facts == {b"other": b""}
    hub.world.state.ctx.record(True)
    hub.jetstream.forget_lost()
    deleted = {each.topic for each in hub.world.state.ctx.ready.writes if each.kind == FACT_DELETE}
    assert deleted == {b"js/f/9", b"js/r/9/0", b"js/c/9/other"}


def test_a_client_remembers_no_consumers_that_have_ended() -> None:
    """Such as the one that it makes for each time that it fetches something."""
    hub = Hub(Log(written(b"1")))
    hub.begin()
    peer = hub.client()
    for number in range(1000):
        reader = hub.consumer(f"c{number}")
        hub.jetstream.pull(reader, b"_INBOX/1", b'{"batch":2}', hub.requester(peer))
        hub.world.run()
        hub.jetstream.remove_consumer(reader)
    assert len(hub.requester(peer).pulls) <= 512


def test_the_files_of_a_stream_go_before_its_facts() -> None:
    hub = Hub(Log(written(b"1", b"2")))
    hub.begin()
    hub.world.state.ctx.record(True)
    hub.reader.stored = True
    hub.stream.remove(1)
    hub.stream.flush()
    hub.world.state.ctx.ready.renew()
    hub.jetstream.remove(hub.stream)
    assert not [each for each in hub.world.state.ctx.ready.writes if each.kind == FACT_DELETE]
    hub.stream.forget()
    deleted = [each.topic for each in hub.world.state.ctx.ready.writes if each.kind == FACT_DELETE]
    assert deleted == [b"js/c/7/c", b"js/f/7"]
