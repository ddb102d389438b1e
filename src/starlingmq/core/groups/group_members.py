"""The members of a shared group at this node: who has joined, and who of them has a connection."""

from __future__ import annotations

from starlingmq.core.routing.filter_tree import Subscriber
from starlingmq.core.session.session import Session, Subscription


class GroupMembers(Subscriber):
    members: list[Subscription]
    keepers: int  # how many of them are at QoS 1 or 2, so none of NATS
    _present: list[Subscription]  # members with a connection, and some that were lately
    _places: dict[str, int]  # client id -> index in members

    def __init__(self) -> None:
        self.members = []
        self.keepers = 0
        self._present = []
        self._places = {}

    def enlist(self, session: Session) -> None:
        """Note with a session that it is a member."""
        raise NotImplementedError

    def strike(self, session: Session) -> None:
        """... and that it is none any more."""
        raise NotImplementedError

    def join(self, subscription: Subscription) -> None:
        """Add a member, or replace what it subscribed with before."""
        session = subscription.session
        place = self._places.get(session.client_id)
        if place is None:
            self._places[session.client_id] = len(self.members)
            self.members.append(subscription)
        else:
            self._let_go(self.members[place])
            self.members[place] = subscription
        if subscription.qos != 0:
            self.keepers += 1
        self.enlist(session)
        client = session.client
        if client is not None:
            main = client.session
            if main is not None and main is not session:  # of a NATS client: what it takes is known of its connection
                self.enlist(main)
            self._appear(subscription)

    def leave(self, session: Session) -> None:
        place = self._places.get(session.client_id, -1)
        if place < 0 or self.members[place].session is not session:
            return  # not (any more) a member, or a later session of the same client is
        del self._places[session.client_id]
        self._let_go(self.members[place])
        last = self.members.pop()
        if place < len(self.members):
            self.members[place] = last
            self._places[last.session.client_id] = place

    def _let_go(self, member: Subscription) -> None:
        member.present = False
        if member.qos != 0:
            self.keepers -= 1
        session = member.session
        self.strike(session)
        client = session.client
        if client is not None and client.session is not None and client.session is not session:
            self.strike(client.session)

    def come(self, session: Session) -> None:
        """A member has a connection again."""
        place = self._places.get(session.client_id, -1)
        if place >= 0 and self.members[place].session is session:
            self._appear(self.members[place])

    def _appear(self, member: Subscription) -> None:
        if not member.present:
            member.present = True
            self._present.append(member)

    def _purge(self) -> None:
        """Those that are not there any more, all at once."""
        there: list[Subscription] = []
        for member in self._present:
            if member.present and (member.session.client is None or member.session.ended):
                member.present = False
            if member.present:
                there.append(member)
        self._present = there

    def online(self) -> int:
        """Members here with a connection."""
        self._purge()
        return len(self._present)
