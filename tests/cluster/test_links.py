"""One end of a link, frame by frame."""

from __future__ import annotations

from math import inf

from tests.harness import World

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import Data, DataAck
from starlingmq.cluster.links.peer_link import PeerLink
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.core.delivery.forward_batch import encode_forward
from starlingmq.core.messages.message import Message


def begin(window: int = 100) -> PeerLink:
    """Incarnation 3 here, 7 there."""
    link = PeerLink(3, window, 1.0)
    link.reset_sender(7)
    return link


def test_frames_are_numbered_and_acknowledged_by_messages() -> None:
    link = begin()
    for count in (1, 20, 300):
        link.offer(b"x" * 10, count, 0.0)
    assert link.take(0.0, 1000) == [Data(1, 1, b"x" * 10), Data(2, 20, b"x" * 10), Data(3, 300, b"x" * 10)]
    assert link.take(0.0, 1000) == [] and link.room() == 70
    assert link.acknowledged(DataAck(2, 100), 7, 3, 0.1) == 21
    assert link.acknowledged(DataAck(2, 100), 7, 3, 0.1) == 0
    assert link.acknowledged(DataAck(3, 100), 7, 3, 0.1) == 300
    assert link.room() == 100 and link.wake_at() == inf


def test_nothing_is_sent_before_the_peer_is_known() -> None:
    link = PeerLink(3, 100, 1.0)
    link.offer(b"a", 1, 0.0)
    assert link.take(0.0, 1000) == [] and link.wake_at() == inf
    link.reset_sender(7)
    assert link.wake_at() == 0.0
    assert link.take(0.0, 1000) == [Data(1, 1, b"a")]


def test_a_new_incarnation_gets_frames_that_the_earlier_one_has_not_acknowledged() -> None:
    link = begin()
    for blob in (b"a", b"b", b"c"):
        link.offer(blob, 1, 0.0)
    link.take(0.0, 1000)
    link.acknowledged(DataAck(1, 100), 7, 3, 0.0)
    link.reset_sender(8)
    assert link.take(0.0, 1000) == [Data(1, 1, b"b", kept=True), Data(2, 1, b"c", kept=True)]
    assert link.acknowledged(DataAck(1, 100), 7, 3, 0.0) == 0, "of the peer before"
    assert link.acknowledged(DataAck(2, 100), 8, 3, 0.0) == 2


def test_an_unacknowledged_frame_is_resent_in_time_despite_newer_frames() -> None:
    link = begin()
    link.offer(b"a", 1, 0.0)
    link.take(0.0, 1000)
    assert link.wake_at() == 1.0
    link.offer(b"b", 1, 0.0)
    assert link.take(0.9, 1000) == [Data(2, 1, b"b", 0.9)]
    assert link.wake_at() == 1.0
    assert link.take(1.0, 1000) == [Data(1, 1, b"a", 1.0), Data(2, 1, b"b", 1.0)]


def test_a_new_life_of_the_peer_is_told_how_long_frames_have_waited() -> None:
    link = begin()
    link.offer(b"a", 1, 0.0)
    link.offer(b"b", 1, 0.0)
    link.take(0.0, 1000)
    link.acknowledged(DataAck(1, 100), 7, 3, 0.0)
    link.offer(b"c", 1, 84.0)
    link.reset_sender(8)
    assert link.take(85.0, 1000) == [Data(1, 1, b"b", 85.0, True), Data(2, 1, b"c", 1.0, True)]


def test_the_peer_is_told_which_frames_waited_while_it_was_not_connected() -> None:
    link = begin()
    link.offer(b"sent", 1, 0.0)
    link.take(0.0, 1000)
    link.keep()
    link.resend()
    link.offer(b"queued", 1, 0.0, kept=True)
    link.offer(b"new", 1, 0.0)
    assert [(data.blob, data.kept) for data in link.take(0.1, 1000)] == [
        (b"sent", True),
        (b"queued", True),
        (b"new", False),
    ]
    link.reset_sender(8)
    link.offer(b"later", 1, 0.1)
    assert [data.kept for data in link.take(0.1, 1000)] == [True, True, True, False]


def test_a_limit_of_bytes_is_for_one_call() -> None:
    link = begin()
    for _ in range(4):
        link.offer(b"x" * 20, 1, 0.0)
    assert len(link.take(0.0, 30)) == 2
    assert link.wake_at() == 0.0
    assert len(link.take(0.0, 30)) == 2


def test_the_window_bounds_outstanding_frames_except_for_one_large_frame() -> None:
    link = begin()
    for size in (250, 60, 60):
        link.offer(bytes(size), 1, 0.0)
    assert [data.sequence for data in link.take(0.0, 1000)] == [1]
    link.acknowledged(DataAck(1, 100), 7, 3, 0.0)
    assert [data.sequence for data in link.take(0.0, 1000)] == [2]
    link.acknowledged(DataAck(2, 100), 7, 3, 0.0)
    assert [data.sequence for data in link.take(0.0, 1000)] == [3]


def test_without_room_one_frame_at_a_time_asks_whether_there_is_some() -> None:
    link = begin()
    link.offer(b"a", 1, 0.0)
    link.take(0.0, 1000)
    link.acknowledged(DataAck(1, 0), 7, 3, 0.0)
    link.offer(b"b", 1, 0.0)
    link.offer(b"c", 1, 0.0)
    assert link.take(0.1, 1000) == [Data(2, 1, b"b")]
    assert link.take(1.0, 1000) == []
    assert link.take(1.2, 1000) == [Data(2, 1, b"b", 1.2)]
    link.acknowledged(DataAck(2, 100), 7, 3, 1.3)
    assert link.take(1.3, 1000) == [Data(3, 1, b"c", 1.3)]


def test_only_the_next_frame_is_taken_and_one_acknowledgement_covers_a_commit() -> None:
    link = begin()
    assert link.received(Data(1, 1, b"a"), 7, 3) == b"a"
    assert link.received(Data(1, 1, b"a"), 7, 3) is None
    assert link.received(Data(3, 1, b"c"), 7, 3) is None
    assert link.received(Data(2, 1, b"b"), 7, 3) == b"b"
    assert link.stored(link.mark()) == DataAck(2, 100)
    assert link.stored(link.mark()) is None
    assert link.received(Data(2, 1, b"b"), 7, 3) is None
    assert link.stored(link.mark()) == DataAck(2, 100), "repeated"


def test_a_commit_acknowledges_only_frames_from_before_it() -> None:
    link = begin()
    link.received(Data(1, 1, b"a"), 7, 3)
    mark = link.mark()
    link.received(Data(2, 1, b"b"), 7, 3)
    assert link.stored(mark) == DataAck(1, 100)
    mark = link.mark()
    link.received(Data(1, 1, b"c"), 8, 3)  # by a new incarnation
    assert link.stored(mark) == DataAck(0, 100)
    assert link.stored(link.mark()) == DataAck(1, 100)


def test_frames_of_another_pair_of_incarnations_are_not_looked_at() -> None:
    link = begin()
    assert link.received(Data(1, 1, b"a"), 7, 2) is None
    assert link.received(Data(1, 1, b"a"), 7, 0) is None
    assert link.source_incarnation == 0 and not link.ack_due
    assert link.received(Data(1, 1, b"a"), 7, 3) == b"a"
    assert link.received(Data(2, 1, b"b"), 6, 3) is None
    assert link.received(Data(2, 1, b"b"), 7, 3) == b"b"


def test_a_held_receiver_takes_frames_within_its_window_and_announces_new_room() -> None:
    link = begin(100)
    assert link.received(Data(1, 1, bytes(60)), 7, 3) is not None
    link.hold(True)
    assert link.stored(link.mark()) == DataAck(1, 0)
    assert link.received(Data(2, 1, bytes(40)), 7, 3) is not None, "was on its way"
    assert link.received(Data(3, 1, bytes(10)), 7, 3) is None
    assert link.stored(link.mark()) == DataAck(2, 0)
    link.hold(False)
    assert link.ack_due and link.stored(link.mark()) == DataAck(2, 100)
    assert link.received(Data(3, 1, bytes(10)), 7, 3) is not None


def test_clients_that_use_up_each_turn_do_not_stop_messages_of_other_nodes() -> None:
    broker = World().state
    broker.peers.join(1, 1)
    transport = PeerTransport(broker, MemberInfo("n2", 2, 7, ""), PeerLink(3, 100, 1.0), 100)
    message = Message(b"t", b"", 0, False, b"", 0.0, "c", broker.ctx.now)
    frames = []
    for number in range(3):
        message.sequence = (7 << 40) + number + 1
        frames.append(encode_forward(message, b"", False, broker.ctx.now))
    transport.received(b"".join(frames), 7, 1, broker.ctx.now, False)
    broker.ctx.work = -1000
    assert not transport.deliver()
    assert broker.ctx.counters.forwards_received == 3
