"""The interface to the MQTT clients that read streams, for the parts of the core below them."""

from __future__ import annotations

from starlingmq.core.limits.access import Rights
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.wire.packets import Subscribe, SubscribeRequest


class ReadPort:
    """Implemented by core.jetstream.stream_readers."""

    why: str  # of the last refused subscription

    def subscribe(
        self,
        client: Client,
        session: Session,
        request: SubscribeRequest,
        packet: Subscribe,
        share: tuple[bytes, bytes] | None,
    ) -> int:
        """Returns the reason code for SUBACK."""
        raise NotImplementedError

    def unsubscribe(self, session: Session, whole: bytes, subscription: Subscription) -> None:
        """The session does not have this subscription any more."""
        raise NotImplementedError

    def restore(self, session: Session, whole: bytes, subscription: Subscription) -> None:
        """A subscription of the store, at a start."""
        raise NotImplementedError

    def position_of(self, session: Session, whole: bytes) -> bytes:
        """The position of the session by this subscription, for ``set_position``; b"": it has no position."""
        raise NotImplementedError

    def set_position(self, session: Session, whole: bytes, position: bytes) -> None:
        """The session has arrived from another node with this position."""
        raise NotImplementedError

    def allows(self, rights: Rights, whole: bytes) -> bool:
        """Whether a subscription may go on with other rights."""
        raise NotImplementedError

    def relieve(self, session: Session) -> None:
        """A session that reads may have room for more."""
        raise NotImplementedError

    def session_connected(self, session: Session) -> None:
        """It is about to send its window again."""
        raise NotImplementedError

    def session_gone(self, session: Session) -> None:
        """Its connection has ended."""
        raise NotImplementedError

    def session_leaves(self, session: Session) -> None:
        """Another node gets its window."""
        raise NotImplementedError

    def group_advanced(self, feeder: object) -> None:
        """A group that reads a stream has no waiting messages."""
        raise NotImplementedError

    def group_ended(self, feeder: object) -> None:
        raise NotImplementedError

    def settle(self, outgoing: Outgoing, refused: bool) -> None:
        """A message of a work queue was acknowledged, or refused."""
        raise NotImplementedError

    def give_back(self, outgoing: Outgoing) -> None:
        """A session has ended without an acknowledgement of this message of a work queue."""
        raise NotImplementedError
