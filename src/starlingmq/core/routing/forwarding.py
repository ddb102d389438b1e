"""Forwarding of messages from the node where they entered to other nodes of the cluster.

Invariant: messages to a node do not overtake each other, since that node recognises duplicates by the order of
sequences.
"""

from __future__ import annotations

from starlingmq.core.context import Context
from starlingmq.core.message import Message
from starlingmq.core.routing.forward_batch import FOR_THE_NODE
from starlingmq.core.routing.session_delivery import SessionDelivery
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.session import Session, Subscription


class Forwarding:
    ctx: Context
    delivery: SessionDelivery

    def __init__(self, ctx: Context, delivery: SessionDelivery) -> None:
        self.ctx = ctx
        self.delivery = delivery

    def forward(self, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        """Forward a message to another node: at once if the link accepts it, else through its queue.

        It is kept until that node has stored it if a subscriber there is durable, and if it has to wait. Messages do
        not overtake each other: the receiver recognises duplicates by the order of sequences.
        """
        ctx = self.ctx
        session = subscription.session
        if session.ended:
            return
        if message.sequence == 0:
            if message.offset >= 0:  # it was held: its stored record has no sequence
                message = message.copy()
            ctx.sequence += 1
            message.sequence = ctx.sequence
            message.origin = ctx.node
        durable = subscription.durable and message.qos != 0
        self._pass_to_node(session, Outgoing(message, message.qos, message.retain, b"", None), durable, publisher)

    def forward_to_member(self, message: Message, session: Session, key: bytes, stored: bool) -> None:
        """Hand a message of the group ``key`` over to a node with members: from here on that node has it, or it waits
        for that node. It is sent beside the messages for the node's other subscribers, with a sequence of its own."""
        ctx = self.ctx
        message = message.copy()
        ctx.sequence += 1
        message.sequence = ctx.sequence
        message.origin = ctx.node
        self._pass_to_node(session, Outgoing(message, message.qos, message.retain, key, None), stored, None)

    def send_to_node(self, session: Session, payload: bytes) -> None:
        """A message for the node itself (see cluster.takeover.takeover), in order with its other messages, and as
        reliable."""
        ctx = self.ctx
        ctx.sequence += 1
        message = Message(b"$node", payload, 1, False, b"", 0.0, "", ctx.now)
        message.sequence = ctx.sequence
        message.origin = ctx.node
        self._pass_to_node(session, Outgoing(message, 1, False, FOR_THE_NODE, None), True, None)

    def _pass_to_node(self, session: Session, outgoing: Outgoing, durable: bool, publisher: Session | None) -> None:
        ctx = self.ctx
        delivery = self.delivery
        message = outgoing.message
        if ctx.audit is not None:
            ctx.audit.due(session, message, message.qos)
        client = session.client
        queue = session.queue
        if client is None:
            if message.qos == 0:
                delivery.drop(session, outgoing, "peer_unreachable")
            else:
                delivery.enqueue(session, outgoing, publisher)
            return
        window = session.window
        if (
            client.blocked
            or ctx.refusing
            or delivery.links_postponed
            or client.size > ctx.write_buffer
            or (queue is not None and len(queue) != 0)
            or (window is not None and window.full())
        ):
            if message.qos == 0 and not durable and queue is not None and queue.bytes > ctx.max_queue_bytes:
                delivery.drop(session, outgoing, "slow_peer_qos0")
            else:
                delivery.enqueue(session, outgoing, publisher)
                # the latter are sent after refused frames have been answered
                if ctx.refusing or delivery.links_postponed:
                    delivery.wait(session)
        elif durable and ctx.recording:
            delivery.transmit_acknowledged(session, client, delivery.window(session, client), outgoing)
        else:
            delivery.transmit(client, outgoing, 0, False)
