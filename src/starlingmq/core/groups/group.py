"""A shared subscription group: which member gets the next message (docs/GROUPS.md).

A selected member can take the message now: it has a connection that is read, an empty queue, and room in its window. If
there is no such member, the message waits in the group queue. core.delivery.group_engine hands messages over.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from mypy_extensions import i64

from starlingmq.core.groups.member_selection import (
    ANY_SIZE,
    HASH_CLIENT,
    HASH_TOPIC,
    LEAST_INFLIGHT,
    LOCAL_FIRST,
    LOOKS_MAX,
    RANDOM,
    ROOM_LOOKS,
    ROOM_MAX,
    ROUND_ROBIN,
    STICKY,
    Room,
    accepts,
    in_flight,
    takes,
)
from starlingmq.core.messages.message import Message
from starlingmq.core.session.connection import WORKING
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.topics.filter_tree import Subscriber

LINGERS: Final = 1 << 31
"""In place of a node's number of members: it has none, but lost the last one with its connection, and waits for it."""
KEEPS: Final = 1 << 30
"""Added to a node's number of members: some of them are at QoS 1 or 2, so they are MQTT clients."""

# The generator MINSTD, which is good enough to select members. All products fit an i64: compiled, larger ones are
# objects, and cost more than the rest of a delivery.
_MULTIPLIER: Final = 48271
_MODULUS: Final = 2147483647
_SPREAD: Final = 69621  # between the states of groups that were made one after the other


class Group(Subscriber):
    """``name`` and ``filter`` as in $share/name/filter."""

    members: list[Subscription]
    keepers: int  # number of members at QoS 1 or 2, which are not NATS clients
    limited: bool  # a member with a connection may have a Maximum Packet Size
    _present: list[Subscription]  # members with a connection, and some that lost it lately
    _indexes: dict[str, int]  # client id -> index in members
    name: bytes
    filter: bytes
    strategy: int
    nodes: dict[int, Subscription]  # other nodes with members, or whose last member was lost lately, by number ...
    counts: dict[int, int]  # ... and the number of members of each
    keeping: dict[int, None]  # nodes with a member at QoS 1 or 2
    rooms: dict[int, Room]  # at the primary: what nodes can take; at another node: what it may send there (standing)
    waits_at: dict[int, int]  # at the primary: numbers of messages in the group queues of other nodes
    line: Session | None  # the group queue of this node, whose window has messages lent to members; None: never used
    full: bool  # no member here could take messages at the last check
    growth: int  # at that check: by how much windows of members with room may grow (``room``)
    gone_at: float  # the time when it ends, since its last member here was lost; 0.0: unset
    unreached: dict[int, None]  # nodes that are unreachable: shared by all groups (core.router.router)
    node: int  # the number of this node, in a cluster
    primary: bool  # this node selects members: it was elected, or there is no cluster
    # another node is the primary, but lets this node select for messages that enter here, within ``rooms``
    standing: bool
    chooser: int  # number of the primary's node; 0: there is none, or no cluster
    epoch: int  # the group epoch, as far as this node knows; 0: no primary, or no cluster
    received: int  # messages that entered here
    given: int  # messages given to members here
    redelivered: int  # messages that a member had, and did not acknowledge before it left
    feeder: object | None  # it reads a stream (core.streams.feeder)
    _state: int
    _turn: int
    _sticky: Subscription | None

    def __init__(
        self, name: bytes, filter: bytes, seed: int, strategy: int = RANDOM, unreached: dict[int, None] | None = None
    ) -> None:
        self.members = []
        self.keepers = 0
        self.limited = False
        self._present = []
        self._indexes = {}
        self.unreached = {} if unreached is None else unreached
        self.name = name
        self.filter = filter
        self.strategy = strategy
        self.nodes = {}
        self.counts = {}
        self.keeping = {}
        self.rooms = {}
        self.line = None
        self.full = False
        self.growth = 0
        self.gone_at = 0.0
        self.node = 0
        self.primary = True
        self.standing = False
        self.chooser = 0
        self.epoch = 0
        self.waits_at = {}
        self.received = 0
        self.given = 0
        self.redelivered = 0
        self.feeder = None
        self._state = seed * _SPREAD % (_MODULUS - 1) + 1
        self._turn = 0
        self._sticky = None

    def key(self) -> object:
        return self

    def share(self) -> bytes:
        """The filter that its members subscribe to."""
        return b"$share/%b/%b" % (self.name, self.filter)

    def enlist(self, session: Session) -> None:
        if session.shares is None:
            session.shares = {}
        session.shares[self] = None

    def strike(self, session: Session) -> None:
        shares = session.shares
        if shares is not None and self in shares:
            del shares[self]
            if not shares:
                session.shares = None

    def waiting(self) -> int:
        """Messages in the group queue here."""
        line = self.line
        if line is None:
            return 0
        owed = 0 if line.window is None else len(line.window.owed)
        return owed if line.queue is None else owed + len(line.queue)

    def has_members(self) -> bool:
        """Whether there is a member on any node."""
        for member in self.members:
            if not member.session.ended:
                return True
        return any(count != 0 for count in self.counts.values())

    def keeps(self) -> bool:
        """Whether messages of NATS clients wait as long as those of MQTT clients: some member is at QoS 1 or 2, or no
        member has ever decided it."""
        return self.keepers != 0 or len(self.keeping) != 0 or not self.has_members()

    # Other nodes

    def join_node(self, subscription: Subscription, count: int) -> None:
        """The number of members of another node, with or without ``KEEPS``, or ``LINGERS``."""
        node = subscription.session.node
        if count == 0:
            self.leave_node(node)
            return
        self.nodes[node] = subscription
        self.counts[node] = 0 if count == LINGERS else count & ~KEEPS
        if count != LINGERS and count & KEEPS:
            self.keeping[node] = None
        else:
            self.keeping.pop(node, None)

    def leave_node(self, node: int) -> None:
        self.nodes.pop(node, None)
        self.keeping.pop(node, None)
        self.counts.pop(node, None)
        self.rooms.pop(node, None)
        self.waits_at.pop(node, None)

    def can_take(self, node: int, online: int, room: int, limit: int = 0, growth: int = 0) -> None:
        """The state of another node's members, as it reports it."""
        subscription = self.nodes.get(node)
        if subscription is None:
            return
        self.rooms[node] = Room(subscription, online, room, limit, growth)

    def wants(self) -> bool:
        """Whether messages enter here, and the primary on another node has allowed this node little or no selection."""
        if self.primary or self.received == 0:
            return False
        return not self.standing or any(room.left * 2 < room.given for room in self.rooms.values())

    # Selection

    def reaches(self, room: Room) -> bool:
        """Whether messages for the members of that node arrive there now."""
        session = room.subscription.session
        return session.client is not None and session.node not in self.unreached

    def _able(self, room: Room, message: Message) -> bool:
        """Whether the members of that node can take the message, as far as this node knows."""
        return room.left > 0 and room.accepts(message) and self.reaches(room)

    def too_large(self, message: Message) -> bool:
        """Whether there are connected members, at nodes that are reached, and none of them accepts a message of this
        size. Those of a node that has not said what they accept may."""
        found = False
        for member in self._present:
            client = member.session.client
            if client is not None and member.present and not member.session.ended:
                if accepts(client, member, message):
                    return False
                found = True
        for node, subscription in self.nodes.items():
            if self.counts.get(node, 0) == 0 or subscription.session.client is None or node in self.unreached:
                continue
            room = self.rooms.get(node)
            if room is None:
                return False  # it has not said yet what its members accept
            if room.online != 0:
                if room.limit == 0 or room.accepts(message):  # 0: a node of an earlier version
                    return False
                found = True
        return found

    def orphaned(self) -> bool:
        """Whether the primary is unreachable. Until there is another one, each node gives its messages to its own
        members, and to others within their allotment."""
        return self.chooser in self.unreached

    def choose(self, message: Message, write_buffer: int) -> Subscription | None:
        """The receiver of a message: a member here, or (``session.node``) the members of another node. None: none can
        take it now. ``write_buffer``: bytes from which on a connection counts as not read."""
        if not self.rooms:
            return self.choose_here(message, write_buffer)
        here = len(self._present)
        total = here
        for room in self.rooms.values():
            if self._able(room, message):
                total += room.online
        if total == 0:
            return None
        if self.strategy == HASH_TOPIC or self.strategy == HASH_CLIENT:
            return self._hashed(message, write_buffer, self._index(message, total))
        index = here
        if here != 0 and (self.strategy == LOCAL_FIRST or total == here):
            index = 0
        elif total != 0:
            index = self._index(message, total)
        member: Subscription | None = None
        if index < here:
            member = self.choose_here(message, write_buffer)
            if member is not None:
                return member
            index = here
        index -= here
        second: Subscription | None = None
        for room in self.rooms.values():
            if self._able(room, message):
                second = room.subscription
                index -= room.online
                if index < 0:
                    return second
        return second if second is not None else self.choose_here(message, write_buffer)

    def _hashed(self, message: Message, write_buffer: int, index: int) -> Subscription | None:
        """All nodes count the members in the same order, that of the nodes: so wherever a topic enters, it goes to the
        same member."""
        found: Subscription | None = None
        for node in sorted([self.node, *self.rooms]):
            if node == self.node:
                member = self.choose_here(message, write_buffer)
                index -= len(self._present)
            else:
                room = self.rooms[node]
                able = self._able(room, message)
                member = room.subscription if able else None
                index -= room.online if able else 0
            if member is not None:
                found = member
                if index < 0:
                    break
        return found

    def choose_here(self, message: Message, write_buffer: int) -> Subscription | None:
        """A member of this node; None if none can take the message now."""
        while True:
            present = self._present
            count = len(present)
            if count == 0:
                return None
            if self.strategy == LEAST_INFLIGHT:
                start = self._least(count)
            elif self.strategy == STICKY:
                start = self._stuck(count)
            else:
                start = self._index(message, count)
            gone = False
            for step in range(count):
                index = start + step
                if index >= count:
                    index -= count
                member = present[index]
                session = member.session
                client = session.client
                if client is None or not member.present or session.ended:
                    gone = True
                    break
                if takes(member, session, client, message, write_buffer):
                    if self.strategy == STICKY:
                        self._sticky = member
                    return member
            if not gone:
                return None
            self._purge()

    def _index(self, message: Message, count: int) -> int:
        strategy = self.strategy
        if strategy == ROUND_ROBIN:
            self._turn += 1
            return self._turn % count
        if strategy == HASH_TOPIC:
            return crc32(message.topic) % count
        if strategy == HASH_CLIENT:
            return crc32(message.publisher.encode()) % count
        return self._draw() % count

    def _stuck(self, count: int) -> int:
        sticky = self._sticky
        if sticky is not None:
            for index in range(count):
                if self._present[index] is sticky:
                    return index
        return self._draw() % count

    def _least(self, count: int) -> int:
        start = self._draw() % count
        best = start
        least = -1
        for step in range(min(count, LOOKS_MAX)):
            index = (start + step) % count
            busy = in_flight(self._present[index].session)
            if least < 0 or busy < least:
                best, least = index, busy
                if least == 0:
                    break
        return best

    def _draw(self) -> int:
        state: i64 = self._state
        state = state * _MULTIPLIER % _MODULUS
        self._state = state
        return state

    def room(self, write_buffer: int) -> int:
        """The number of messages that the members here can take now. Sets ``growth``: a window that grows is small as
        long as its member keeps up with a few messages, and may be sent more without a question (group_pull)."""
        self._purge()
        present = self._present
        count = len(present)
        looks = min(count, ROOM_LOOKS)
        found = growth = 0
        for index in range(looks):
            member = present[index]
            session = member.session
            client = session.client
            if client is None or client.blocked or client.size > write_buffer:
                continue
            if client.protocol_handler is not None and client.halted & WORKING:  # see ``takes``
                continue
            if session.queue is not None and len(session.queue) != 0:
                continue
            window = session.window
            limit = ROOM_MAX
            if client.protocol_handler is None and member.qos != 0:
                limit = min(ROOM_MAX, client.window_limit if window is None else window.limit)
            free = limit if window is None else max(0, limit - len(window.entries))
            found += free
            if free != 0 and client.window_grows:
                growth += ROOM_MAX - limit
        self.full = found == 0
        self.growth = growth if looks == count else growth * count // looks
        return found if looks == count else found * count // looks

    # Members here

    def join(self, subscription: Subscription) -> None:
        """Add a member, or replace its earlier subscription."""
        session = subscription.session
        index = self._indexes.get(session.client_id)
        if index is None:
            self._indexes[session.client_id] = len(self.members)
            self.members.append(subscription)
        else:
            self._let_go(self.members[index])
            self.members[index] = subscription
        if subscription.qos != 0:
            self.keepers += 1
        self.enlist(session)
        client = session.client
        if client is not None:
            main = client.session
            # of a NATS client: the state of its connection is in the main session
            if main is not None and main is not session:
                self.enlist(main)
            self._appear(subscription)

    def leave(self, session: Session) -> None:
        index = self._indexes.get(session.client_id, -1)
        if index < 0 or self.members[index].session is not session:
            return  # it is not a member any more, or a later session of the same client is
        del self._indexes[session.client_id]
        self._let_go(self.members[index])
        last = self.members.pop()
        if index < len(self.members):
            self.members[index] = last
            self._indexes[last.session.client_id] = index

    def _let_go(self, member: Subscription) -> None:
        member.present = False
        if member.qos != 0:
            self.keepers -= 1
        session = member.session
        self.strike(session)
        client = session.client
        if client is not None and client.session is not None and client.session is not session:
            self.strike(client.session)

    def member_connected(self, session: Session) -> None:
        """A member has a connection again."""
        index = self._indexes.get(session.client_id, -1)
        if index >= 0 and self.members[index].session is session:
            self._appear(self.members[index])

    def _appear(self, member: Subscription) -> None:
        client = member.session.client
        if client is not None and client.max_packet != 0:
            self.limited = True
        if not member.present:
            member.present = True
            self._present.append(member)

    def _purge(self) -> None:
        """Remove all members without a connection at once."""
        there: list[Subscription] = []
        for member in self._present:
            if member.present and (member.session.client is None or member.session.ended):
                member.present = False
            if member.present:
                there.append(member)
        self._present = there

    def limit(self) -> int:
        """The largest Maximum Packet Size of the members here with a connection; ANY_SIZE: one of them has none; 0:
        there are no such members."""
        self._purge()
        if not self.limited:
            return ANY_SIZE if self._present else 0
        largest = 0
        self.limited = False
        for member in self._present:
            client = member.session.client
            if client is not None:
                self.limited = self.limited or client.max_packet != 0
                largest = max(largest, client.max_packet or ANY_SIZE)
        return largest

    def online(self) -> int:
        """Number of members here with a connection."""
        self._purge()
        return len(self._present)
