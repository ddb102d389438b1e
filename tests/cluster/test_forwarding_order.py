"""The order of messages on the way to another node, which recognises duplicates by the order of their sequences."""

from __future__ import annotations

from tests.cluster.fleet import Fleet

from starlingmq.core.delivery.forward_batch import ForwardReader
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import PUBLISHED, Outgoing
from starlingmq.core.session.queue import MessageQueue


def test_a_qos_0_message_does_not_overtake_messages_that_an_earlier_life_sent_and_that_are_not_read_back_yet() -> None:
    """The other node would drop them: their sequences are lower. Among them may be the description of a session."""
    fleet = Fleet(2)
    state, number = fleet[0].state, fleet[1].cluster.number
    peer = state.peers.by_number[number]
    session = peer.session
    state.peers.down(peer)
    peer.begun = False  # as after a restart
    sent = Outgoing(Message.at(3), 1, False, b"", None)
    sent.stage = PUBLISHED
    state.restoring.window(session, 7, sent)
    late = Message(b"late", b"", 0, False, b"", 0.0, "", state.ctx.now)
    late.sequence = 5
    session.queue = MessageQueue(0, 0)
    session.queue.push(Outgoing(late, 0, False, b"", None), state.ctx.now)
    state.peers.up(peer)
    assert not peer.client.frames and session in state.ctx.ready.reads
    early = Message(b"early", b"", 1, False, b"", 0.0, "", state.ctx.now)
    early.sequence, early.offset = 4, 3
    state.loaded(session, {3: early}, state.ctx.now)
    reader = ForwardReader(b"".join(peer.client.frames), number, state.ctx.now)
    assert [reader.next().message.topic, reader.next().message.topic] == [b"early", b"late"]


def test_frames_for_a_node_do_not_overtake_earlier_ones_that_were_not_stored() -> None:
    """The disk fails in one turn and works in the next: the frames of both wait for their commits."""
    fleet = Fleet(2)
    state, other = fleet[0].state, fleet[1].cluster.number
    client, refusal = state.ctx.cluster.links[other].client, state.refusal
    assert client is not None
    client.frames.clear()
    client.waiting, refusal.refused_turns = 2, 1
    client.waiting -= 1
    assert refusal.answer(client, b"first") == b""
    refusal.over()
    assert not refusal.turn_answered(), "frames of a later turn are still to come"
    client.waiting -= 1
    assert refusal.released(client, b"second") == b""
    assert client.frames == [b"first", b"second"]
    assert refusal.released(client, b"third") == b"third"
