"""The two ends of the handshakes against simple reference models."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.session_twins import DictInbound, ListWindow, message, outgoing
from tests.few import drawn, live

from starlingmq.core.session.qos import MAX_PACKET_ID, Inbound, SendWindow

places = st.integers(0, 7)
seconds = st.sampled_from([0.0, 0.25, 0.9, 1.0, 7.0])


class WindowAsTheListSays(RuleBasedStateMachine):
    @initialize(limit=st.integers(1, 6), last_id=st.sampled_from([0, 1, 65530, 65534, 65535]))
    def begin(self, limit: int, last_id: int) -> None:
        self.window = SendWindow(limit)
        self.window.last_id = last_id
        self.twin = ListWindow(last_id)
        self.now = 1000.0

    def id_at(self, place: int) -> int:
        """Return the id of a message in flight, or an unknown one."""
        sent = self.twin.sent
        return sent[place].packet_id if place < len(sent) else (place * 9999 + 17) % 65536

    @precondition(lambda self: not self.window.full())
    @rule(qos=st.sampled_from([1, 2]))
    def add(self, qos: int) -> None:
        item = outgoing(qos)
        packet_id = self.window.add(item, self.now)
        assert packet_id == self.twin.add(item, self.now)
        assert 0 < packet_id <= MAX_PACKET_ID

    @rule(place=places)
    def puback(self, place: int) -> None:
        packet_id = self.id_at(place)
        assert self.window.acknowledged(packet_id) is self.twin.take(packet_id, 1, False)

    @rule(place=places)
    def pubrec(self, place: int) -> None:
        packet_id = self.id_at(place)
        sent = self.twin.find(packet_id)
        known = sent is not None and sent.item.qos == 2
        assert self.window.received(packet_id, self.now) == known
        if sent is not None and known:
            sent.released = True
            sent.at = self.now

    @rule(place=places)
    def refusing_pubrec(self, place: int) -> None:
        packet_id = self.id_at(place)
        assert self.window.refused(packet_id) is self.twin.take(packet_id, 2, False)

    @rule(place=places)
    def pubcomp(self, place: int) -> None:
        packet_id = self.id_at(place)
        assert self.window.completed(packet_id) is self.twin.take(packet_id, 2, True)

    @rule(place=places)
    def discard(self, place: int) -> None:
        packet_id = self.id_at(place)
        self.window.discard(packet_id)
        self.twin.sent = [sent for sent in self.twin.sent if sent.packet_id != packet_id]

    @rule(interval=seconds)
    def send_again_what_is_due(self, interval: float) -> None:
        due = self.window.due(self.now - interval)
        wanted = [sent for sent in self.twin.sent if sent.at <= self.now - interval]
        assert due == [(sent.packet_id, sent.item) for sent in wanted]
        for sent in wanted:
            sent.item.sent_at = sent.at = self.now

    @rule()
    def a_new_connection_owes_everything(self) -> None:
        self.window.owe_all()
        assert [*self.window.owed][::-1] == [sent.packet_id for sent in self.twin.sent]
        assert self.window.full() or not self.twin.sent
        self.window.owed.clear()

    @rule(time=seconds)
    def time_passes(self, time: float) -> None:
        self.now += time

    @invariant()
    def order_and_bound(self) -> None:
        assert [*self.window.entries.items()] == [(sent.packet_id, sent.item) for sent in self.twin.sent]
        assert self.window.full() == (len(self.twin.sent) >= self.window.limit or bool(self.window.owed))
        if self.twin.sent:
            assert self.window.oldest() == min(sent.at for sent in self.twin.sent)


class InboundAsTheDictsSay(RuleBasedStateMachine):
    ids = st.integers(1, 5)

    def __init__(self) -> None:
        super().__init__()
        self.inbound = Inbound()
        self.twin = DictInbound()
        self.now = 1000.0

    @rule(packet_id=ids)
    def publish(self, packet_id: int) -> None:
        if self.inbound.holds(packet_id):
            return  # repeated: the first stands
        held = message(b"%d" % packet_id)
        self.inbound.hold(packet_id, held, self.now)
        self.twin.held[packet_id] = held, self.now
        self.twin.completed.pop(packet_id, None)

    @rule(packet_id=ids)
    def publish_that_is_not_wanted(self, packet_id: int) -> None:
        if not self.inbound.holds(packet_id):
            self.inbound.answered(packet_id, self.now)
            self.twin.completed[packet_id] = self.now

    @rule(packet_id=ids)
    def pubrel(self, packet_id: int) -> None:
        """Handle a PUBREL, possibly repeated: a message is routed once."""
        held = self.twin.held.pop(packet_id, None)
        assert self.inbound.release(packet_id, self.now) is (None if held is None else held[0])
        if held is not None:
            self.twin.completed[packet_id] = self.now

    @rule(timeout=seconds)
    def sweep(self, timeout: float) -> None:
        before = self.now - timeout
        abandoned = [packet_id for packet_id, (_, since) in self.twin.held.items() if since <= before]
        assert self.inbound.sweep(before)[1] == len(abandoned)
        for packet_id in abandoned:
            del self.twin.held[packet_id]
        for packet_id, since in list(self.twin.completed.items()):
            remembered = self.inbound.completed(packet_id)
            assert remembered or since <= before + 1.0, "forgotten too early"
            assert not remembered or since > before, "remembered for too long"
            if not remembered:
                del self.twin.completed[packet_id]

    @rule(time=seconds)
    def time_passes(self, time: float) -> None:
        self.now += time

    @invariant()
    def the_same_is_held(self) -> None:
        assert self.inbound.held == len(self.twin.held)
        for packet_id in range(7):
            assert self.inbound.holds(packet_id) == (packet_id in self.twin.held)
            assert self.inbound.completed(packet_id) == (packet_id in self.twin.completed)
        times = [since for _, since in self.twin.held.values()] + [*self.twin.completed.values()]
        if times:
            assert min(times) - 1.0 <= self.inbound.oldest() <= min(times)


@drawn(25, 200)
def test_the_window_is_as_the_list_says(examples: int) -> None:
    live(WindowAsTheListSays, examples)


@drawn(25, 200)
def test_inbound_messages_are_as_the_dicts_say(examples: int) -> None:
    live(InboundAsTheDictsSay, examples)


@pytest.mark.parametrize("used", [1, 500])
def test_every_id_can_be_out_at_once(used: int) -> None:
    """Finding the last free id must not depend on its position."""
    window = SendWindow(MAX_PACKET_ID)
    ids = [window.add(outgoing(1), 0.0) for _ in range(MAX_PACKET_ID)]
    assert sorted(ids) == list(range(1, MAX_PACKET_ID + 1))
    assert window.full()
    window.acknowledged(used)
    assert window.add(outgoing(1), 0.0) == used
