"""The transport to one peer: connects ``core.peers.peer_receivers``, for which it looks like a connection, with
``cluster.links.peer_link``.

Output of the core for a peer becomes a data frame when it may be sent, that is, after the commit that it waits for.
Input is passed to the core as far as it has capacity. While the core does not read (because of a slow subscriber),
input waits here, and the link tells the other side that there is no room.

A message that waited for this node was accepted without its limits, so its queues take it beyond them (``kept``): what
was to be sent while the two were not connected, or was sent to an earlier incarnation; and what arrives before this
node counts as connected here, or within ``member_timeout`` after that.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_backlog import PeerBacklog
from starlingmq.cluster.links.peer_frames import DataAck
from starlingmq.cluster.links.peer_link import PeerLink
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.delivery.forward_batch import ForwardReader, count_tracked, first_sequence

if TYPE_CHECKING:
    from starlingmq.core.broker import BrokerState
    from starlingmq.core.peers.peer_receivers import PeerReceiver

_SEQUENCE_BITS: Final = 40
_SEQUENCE: Final = (1 << _SEQUENCE_BITS) - 1
_LINK_WORK: Final = 512  # of each turn, whatever clients here have used up
ACK_SECONDS: Final = 0.01
"""How long an acknowledgement may wait for a frame in the same direction, or for more frames to be stored. Nothing
waits for it. It costs as much as a frame does, and with few messages would follow each of them."""
ACK_SECONDS_ALONG: Final = ACK_SECONDS / 2
"""An acknowledgement is sent this much earlier together with a frame. With messages in both directions, one with each
frame would nearly double the cost of a message."""
# of the window: once this part is stored and unacknowledged, the acknowledgement does not wait, to keep the sender
# going
ACK_PART: Final = 4


class Port:
    """The part of ``Client.transport`` that the shell uses, for a link."""

    __slots__ = ("transport",)

    def __init__(self, transport: PeerTransport) -> None:
        self.transport = transport

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def pause_reading(self) -> None:
        self.transport.link.hold(True)

    def resume_reading(self) -> None:
        self.transport.link.hold(False)

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """No effect: a link ends when its node is no longer a member."""

    def abort(self) -> None:
        """No effect, as with ``close``."""


class DataPort(Port):
    __slots__ = ()

    def write(self, data: bytes) -> None:
        self.transport.send(data)


class AckPort(Port):
    """Receives the marks of stored data frames, eight bytes each; only the highest one matters. It is usually the last
    one, but marks that were delayed by a disk failure arrive after later ones."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        self.transport.stored(max([int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]))


class PeerTransport:
    link: PeerLink
    peer: PeerReceiver
    data_frames: int  # sent, including repetitions
    messages_taken: int  # tracked messages that the node has acknowledged
    lost_at: float  # when the connection was lost; 0.0: it is connected, or never was
    behind_since: float  # since when it is connected without all of its routes; 0.0: they are complete

    def __init__(self, broker: BrokerState, member: MemberInfo, link: PeerLink, window: int) -> None:
        self._broker = broker
        self._window = window
        self.link = link
        self.peer = broker.peers.add(member.number, DataPort(self), AckPort(self), member.first, member.since)
        self.data_frames = 0
        self.messages_taken = 0
        self.lost_at = 0.0
        self.behind_since = 0.0
        self._ack: DataAck | None = None  # to be sent; a later one replaces it
        self._ack_from = 0  # the incarnation that it is for
        self._ack_at = inf  # when it is sent at the latest
        self._no_room = False  # the last one told the peer that there is no room
        self._inbox: deque[tuple[ForwardReader, int]] = deque()
        self._calm_at = 0.0  # until then, what comes from that node may have waited
        self._backlog = PeerBacklog()
        self._backlog.lose(0, self.peer.session.dropped)
        self._kept_until = 0  # sequence of the last message that waited when the node was connected; 0: all are sent

    # Out

    def keep(self, seconds: float) -> None:
        """The node is connected: messages that wait for it were accepted here without its limits. So are those that
        come from it within so many seconds: frames that it had sent before arrive after relayed ones."""
        self._calm_at = self._broker.ctx.now + seconds
        self._backlog.begin(self.waiting(), self.messages_taken, self.peer.session.dropped)
        self._kept_until = self._broker.ctx.sequence
        self.link.keep()

    def lose(self) -> None:
        """The node is not connected any more."""
        self._follow_backlog()
        self._backlog.lose(self.messages_taken, self.peer.session.dropped)
        self.lost_at = self._broker.ctx.now

    def send(self, data: bytes) -> None:
        tracked = self.peer.session.window is not None  # created by the first tracked message, and kept
        if self._kept_until != 0 and first_sequence(data) > self._kept_until:
            self._kept_until = 0
        self.link.offer(data, count_tracked(data) if tracked else 0, self._broker.ctx.now, self._kept_until != 0)
        if self.link.room() == 0:
            self._broker.blocked(self.peer.client)

    def acknowledged(self, messages: int, now: float) -> None:
        if messages:
            self.messages_taken += messages
            self._broker.peers.taken(self.peer, messages)
        if self.peer.client.blocked and 2 * self.link.room() >= self._window:
            self._broker.drained(self.peer.client, now)

    def stored(self, mark: int) -> None:
        self._note(self.link.stored((mark >> _SEQUENCE_BITS, mark & _SEQUENCE)))

    def _note(self, ack: DataAck | None) -> None:
        if ack is None:
            return
        if self._ack_at == inf:
            self._ack_at = self._broker.ctx.now + ACK_SECONDS
        self._ack = ack
        self._ack_from = self.link.source_incarnation

    def take_ack(self, now: float, along: bool) -> DataAck | None:
        """The acknowledgement to send now. ``along``: a frame goes the same way."""
        link = self.link
        if link.ack_due:
            self._note(link.stored((link.source_incarnation, 0)))
        ack = self._ack
        if ack is not None and self._ack_from == link.source_incarnation:
            many = link.unsaid * ACK_PART >= self._window
            due_at = self._ack_at - ACK_SECONDS_ALONG if along else self._ack_at
            if not (now >= due_at or many or self._no_room or ack.room == 0):
                return None
            link.unsaid = 0
            self._no_room = ack.room == 0
        else:
            ack = None
        self._ack = None
        self._ack_at = inf
        return ack

    def waiting(self) -> int:
        """Messages for that node that it has not acknowledged."""
        queue, window = self.peer.session.queue, self.peer.session.window
        return (0 if queue is None else len(queue)) + (0 if window is None else len(window.entries))

    def backlog(self) -> PeerBacklog:
        """As of now."""
        self._follow_backlog()
        return self._backlog

    def _follow_backlog(self) -> None:
        self._backlog.follow(self.waiting(), self.messages_taken, self.peer.session.dropped)

    def idle(self) -> bool:
        """Whether nothing is owed to that node. Frames that wait until they are stored, or copied, are owed as well."""
        session, client = self.peer.session, self.peer.client
        waits = client.waiting != 0 or len(client.frames) != 0 or session.queue is not None
        return not waits and self.link.unacknowledged() == 0

    # In

    def received(self, blob: bytes, incarnation: int, sequence: int, made_at: float, kept: bool) -> None:
        mark = incarnation << _SEQUENCE_BITS | sequence
        reader = ForwardReader(blob, self.peer.number, made_at)
        # frames that were on the way when a cut began do not say so
        reader.kept = kept or self.peer.session.client is None or self._broker.ctx.now < self._calm_at
        self._inbox.append((reader, mark))

    def drop_unreadable(self) -> None:
        """Drops the rest of a blob that cannot be decoded: sending it again would not help."""
        _, mark = self._inbox.popleft()
        self.stored(mark)

    def wake_at(self, config: ClusterConfig) -> float:
        """The time of the next check, apart from what ``link`` has to send."""
        when = self._ack_at
        if not self.lost_at and not self.behind_since:
            return when
        now = self._broker.ctx.now
        if self.lost_at and now < self.lost_at + config.member_timeout:
            when = min(when, self.lost_at + config.member_timeout)
        if self.behind_since and now < self.behind_since + config.subscribe_ack_timeout:
            when = min(when, self.behind_since + config.subscribe_ack_timeout)
        return when

    def waits(self) -> bool:
        """Whether received messages wait for the core."""
        return len(self._inbox) != 0

    def deliver(self) -> bool:
        """Passes messages to the core as far as it accepts them in this turn. Returns whether more are left. Some are
        accepted in each turn: clients here whose messages use it up must not stop those of other nodes."""
        ctx = self._broker.ctx
        inbox = self._inbox
        if inbox:
            ctx.assure_work(_LINK_WORK)
        while inbox and ctx.work > 0 and self.peer.client.halted == 0 and not ctx.refusing:
            reader, mark = inbox[0]
            if self._broker.peers.receive(self.peer, reader, mark):
                inbox.popleft()
        return bool(inbox) and self.peer.client.halted == 0 and not ctx.refusing
