"""The streams and the clients of other nodes, as JetStream of this node uses them (cluster.streams)."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.messages.message import Message
from starlingmq.core.router.router import Route
from starlingmq.core.streams.far_read import FarRead, ReadTold

STAYS: Final = 0  # a member of its group
LOST: Final = 1  # it was a member, and its session has ended
UNSUBSCRIBED: Final = 2
ALL: Final = 0  # in place of the number of a reader: all members of groups of which the home is not told again


@mypyc_attr(allow_interpreted_subclasses=True)
class FarStreams:
    def acknowledge(self, requester: Requester, subject: bytes, payload: bytes, reply: bytes) -> bool:
        """An acknowledgement, or an answer to a flow control request. Returns whether it is for a stream of another
        node."""
        raise NotImplementedError

    def show(self, message: Message, route: Route) -> None:
        """A message, or a status, of a push consumer: give it to its receivers, of which some are at other nodes."""
        raise NotImplementedError

    def answer(self, node: int, client_id: str, reply: bytes, payload: bytes) -> None:
        """Answer a publisher of another node, once the writes of this turn are stored."""
        raise NotImplementedError

    def gone(self, requester: Requester) -> None:
        """Its connection has ended, and it has asked other nodes for messages."""
        raise NotImplementedError

    # Sessions of MQTT (core.jetstream.far_readers)

    def is_elsewhere(self, name: str) -> bool:
        """Whether a stream of this name is another node's, as far as is known here."""
        raise NotImplementedError

    def home_of(self, name: str) -> int:
        """The number of that node; 0: it is no member."""
        raise NotImplementedError

    def subjects(self, name: str) -> list[bytes]:
        """The topics of a stream of another node."""
        raise NotImplementedError

    def ask_read(self, read: FarRead) -> int:
        """Ask the home of a stream, in place of what the same reader has asked before. Returns the number of that node;
        0: it is not reached."""
        raise NotImplementedError

    def end_read(self, home: int, reader: int, left: int) -> None:
        """It wants nothing more: for now (``STAYS``), or as a member of a group."""
        raise NotImplementedError

    def reaches_all(self) -> bool:
        """Whether all nodes of the cluster are reached."""
        raise NotImplementedError

    def acknowledge_read(self, reply: bytes, payload: bytes) -> None:
        """A message of a queue, for which ``reply`` stands."""
        raise NotImplementedError

    def tell_read(self, read: FarRead, told: ReadTold) -> None:
        """From the home: the next of what was asked for."""
        raise NotImplementedError


def is_wanted_elsewhere(route: Route) -> bool:
    """Whether another node has receivers."""
    for subscription in route.subscriptions:
        if subscription.session.node != 0:
            return True
    for group in route.groups:  # noqa: SIM110  a generator would be made
        if group.nodes:
            return True
    return False
