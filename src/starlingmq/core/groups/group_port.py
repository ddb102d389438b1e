"""What the rest of the core asks of whoever looks after the messages of shared groups."""

from __future__ import annotations

from starlingmq.core.groups.group import Group
from starlingmq.core.message import Message
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.session import Session


class GroupPort:
    """It is core.groups.group_engine."""

    def take(self, group: Group, message: Message, publisher: Session | None) -> bool:
        """A message that a group wants has entered here; whether there is anyone that it is for."""
        raise NotImplementedError

    def settle(self, outgoing: Outgoing) -> None:
        """A member is done with what it was lent."""
        raise NotImplementedError

    def give_back(self, outgoing: Outgoing) -> bool:
        """A member has gone and left this; False when its group has too."""
        raise NotImplementedError

    def come(self, session: Session) -> None:
        """A member has come back."""
        raise NotImplementedError

    def relieve(self, session: Session) -> None:
        """A member (or a group's own line) may take more."""
        raise NotImplementedError

    def emptied(self, group: Group, lost: bool) -> None:
        """The last member here, and anywhere, has left: ``lost`` with its connection, or because it wanted to."""
        raise NotImplementedError

    def joined(self, group: Group) -> None:
        """It has a member here again, or another one."""
        raise NotImplementedError

    def changed(self, group: Group) -> None:
        """Its line may move up: somebody may be able to take what could not be given before."""
        raise NotImplementedError

    def line_of(self, group: Group) -> Session:
        """Where messages of a group wait at this node."""
        raise NotImplementedError
