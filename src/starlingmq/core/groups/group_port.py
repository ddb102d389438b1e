"""The interface to the messages of shared groups for the rest of the core."""

from __future__ import annotations

from starlingmq.core.groups.group import Group
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import Session, Subscription


class GroupPort:
    """Implemented by core.delivery.group_engine."""

    def take(self, group: Group, message: Message, publisher: Session | None) -> bool:
        """A message for a group has entered here. Returns whether there is a receiver for it."""
        raise NotImplementedError

    def passes_through(self, group: Group) -> bool:
        """Whether messages that enter here go to members of this node without being stored or queued first."""
        raise NotImplementedError

    def hand(self, group: Group, member: Subscription, message: Message, publisher: Session | None) -> None:
        """Give a message to a selected member of a group that ``passes_through``."""
        raise NotImplementedError

    def settle(self, outgoing: Outgoing, refused: bool = False) -> None:
        """A member has acknowledged a lent message; ``refused``: with an error."""
        raise NotImplementedError

    def give_back(self, outgoing: Outgoing) -> bool:
        """A member has left without acknowledging this message; False if its group has ended, too."""
        raise NotImplementedError

    def competes(self, outgoing: Outgoing) -> bool:
        """Whether it is a message of a work queue, which is given to others at any QoS."""
        raise NotImplementedError

    def session_connected(self, session: Session) -> None:
        """A member has a connection again."""
        raise NotImplementedError

    def relieve(self, session: Session) -> None:
        """A member (or a group queue) may take more."""
        raise NotImplementedError

    def emptied(self, group: Group, lost: bool) -> None:
        """The last member here, and anywhere, has left: ``lost`` with its connection, or by unsubscribing."""
        raise NotImplementedError

    def joined(self, group: Group) -> None:
        """It has a member here again, or another one."""
        raise NotImplementedError

    def changed(self, group: Group) -> None:
        """The group queue may advance: a member may be able to take messages that could not be given before."""
        raise NotImplementedError

    def line_of(self, group: Group) -> Session:
        """The group queue of this node."""
        raise NotImplementedError
