"""The members of a shared group on this node, and those with a connection."""

from __future__ import annotations

from starlingmq.core.groups.member_selection import ANY_SIZE
from starlingmq.core.routing.filter_tree import Subscriber
from starlingmq.core.session.session import Session, Subscription


class GroupMembers(Subscriber):
    members: list[Subscription]
    keepers: int  # number of members at QoS 1 or 2, which are not NATS clients
    limited: bool  # a member with a connection may have a Maximum Packet Size
    _present: list[Subscription]  # members with a connection, and some that lost it lately
    _indexes: dict[str, int]  # client id -> index in members

    def __init__(self) -> None:
        self.members = []
        self.keepers = 0
        self.limited = False
        self._present = []
        self._indexes = {}

    def enlist(self, session: Session) -> None:
        """Record in a session that it is a member."""
        raise NotImplementedError

    def strike(self, session: Session) -> None:
        """... and that it is not any more."""
        raise NotImplementedError

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
