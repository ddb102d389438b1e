"""The streams and the clients of other nodes, as JetStream of this node uses them (cluster.streams)."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.messages.message import Message
from starlingmq.core.router.router import Route


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


def is_wanted_elsewhere(route: Route) -> bool:
    """Whether another node has receivers."""
    for subscription in route.subscriptions:
        if subscription.session.node != 0:
            return True
    for group in route.groups:  # noqa: SIM110  a generator would be made
        if group.nodes:
            return True
    return False
