"""From a message to all its receivers: the sessions, groups and streams on its route, here and on other nodes."""

from __future__ import annotations

from typing import Final

from starlingmq.core.context import Context
from starlingmq.core.message import Message
from starlingmq.core.ready import QUEUE_DELETE, QUEUE_PUT, STREAM_PUT
from starlingmq.core.routing.acknowledgements import Acknowledgements
from starlingmq.core.routing.forwarding import Forwarding
from starlingmq.core.routing.router import Route
from starlingmq.core.routing.stream import Stream
from starlingmq.core.routing.transmission import expiry_property
from starlingmq.core.session.migration_state import Held, MigrationState
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.session import Session, Subscription
from starlingmq.wire.mqtt import publish_frame

GROUP_WORK: Final = 4  # for the selection of a member


class Delivery(Acknowledgements):
    forwarding: Forwarding

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.forwarding = Forwarding(ctx, self)

    def fan_out(self, message: Message, route: Route, publisher: Session | None, frame: bytes = b"") -> int:
        """Deliver a message to all receivers of its route. Returns their number. ``frame`` is the PUBLISH as received,
        if plain 3.x receivers at QoS 0 get exactly these bytes."""
        ctx = self.ctx
        frame4, frame5 = frame, b""  # QoS 0 frames for 3.x and 5: made for the first that needs one, shared by all
        audit = ctx.audit
        if audit is not None and (route.reserved or not audit.accepted(message, publisher)):
            audit = None
        acknowledged = message.qos != 0
        alone = len(route.subscriptions) == 1
        for subscription in route.subscriptions:
            session = subscription.session
            client = session.client
            if (
                client is None
                or not subscription.plain
                or not client.plain
                or client.blocked
                or client.size > ctx.write_buffer
            ):
                self.give(message, subscription, publisher)
                continue
            if acknowledged and subscription.qos != 0:
                if not self.transmit_shared(session, client, message, subscription.qos, alone):
                    self.give(message, subscription, publisher)
                continue
            if session.queue is not None and session.queue.qos0 != 0:
                self.give(message, subscription, publisher)
                continue
            if client.version == 5:
                if not frame5:
                    properties = message.properties
                    if message.expires_at != 0.0:
                        properties += expiry_property(message, ctx.now)
                    frame5 = publish_frame(message.topic, message.payload, 0, False, False, 0, 5, properties)
                whole = frame5
            else:
                if not frame4:
                    frame4 = publish_frame(message.topic, message.payload, 0, False, False, 0, 4, b"")
                whole = frame4
            client.frames.append(whole)
            client.size += len(whole)
            if audit is not None:
                audit.passed(session, message, 0)
            ctx.counters.publish_sent += 1
            if not client.dirty:
                client.dirty = True
                ctx.ready.dirty.append(client)
            if client.waiting != 0 and client.stored_from < 0:
                client.stored_from = 0
        found = len(route.subscriptions)
        if publisher is None or publisher.node == 0:  # the node of a group has stored it already
            ctx.work -= GROUP_WORK * len(route.groups)
            for group in route.groups:
                if self.sharing.take(group, message, publisher):
                    found += 1
            if route.streams:
                found += self.keep(message, route.streams)
        if found == 0 and route.given_up:
            ctx.counters.drop("search_limit")
        ctx.work -= found
        return found

    def keep(self, message: Message, streams: list[Stream]) -> int:
        """Add a message that enters here to the streams that want it. Returns the number of streams. At QoS 1 and 2 all
        accept it: the message was accepted only after checking that they are not full."""
        ctx = self.ctx
        kept = 0
        for stream in streams:
            if message.qos == 0 and (stream.full or ctx.refusing):
                ctx.drop("stream_full" if stream.full else "storage_failing", stream.client_id)
                stream.dropped += 1
                continue
            kept += 1
            ctx.note(STREAM_PUT, stream, Outgoing(message, message.qos, message.retain, b"", None))
        return kept

    def give(self, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        """Deliver a message to one session, with all options of its subscription."""
        session = subscription.session
        if session.node != 0:
            if publisher is None or publisher.node == 0:  # only the node where it entered forwards a message
                self.forwarding.forward(message, subscription, publisher)
            return
        if subscription.no_local:
            client = session.client
            if client is not None and client.protocol_handler is not None:
                client.protocol_handler.deliver(client, message, subscription, publisher)
                return
            own = publisher is not None and publisher.node != 0 and message.publisher == session.client_id
            if own or session is publisher:  # own: it was held on another node from the time when its client was there
                instead = subscription.when_own
                if instead is None:
                    return  # [MQTT-3.8.3-3]
                subscription = instead
        if session.ended:
            return
        qos = message.qos if message.qos < subscription.qos else subscription.qos
        retain = message.retain and subscription.retain_as_published  # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        outgoing = Outgoing(message, qos, retain, subscription.ids, None)
        moving = session.moving
        if moving is not None:
            if moving.target != 0:
                self.ctx.cluster.leave(session)
            if not self._takes(session, moving, outgoing, publisher):
                return
        if self.ctx.audit is not None:
            self.ctx.audit.due(session, message, qos)
        self.offer(session, outgoing, publisher)

    def _takes(self, session: Session, moving: MigrationState, outgoing: Outgoing, publisher: Session | None) -> bool:
        """Whether this node delivers it to a migrating session (see core.session.migration_state). A held message is
        stored, because no other node may have it."""
        node = self.ctx.node if publisher is None or publisher.node == 0 else publisher.node
        if moving.takes(node, outgoing):
            return True
        if moving.held and moving.held[-1].outgoing is outgoing:
            outgoing.promised = True  # as ``let_in`` offers it
            self.ctx.note(QUEUE_PUT, session, outgoing)
        return False

    def let_in(self, session: Session, opened: list[Held]) -> None:
        """Messages that were held for a session that migrated."""
        for held in opened:
            outgoing = held.outgoing
            self.ctx.note(QUEUE_DELETE, session, outgoing)
            if self.ctx.audit is not None:
                self.ctx.audit.due(session, outgoing.message, outgoing.qos)
            if outgoing.message.expired(self.ctx.now):
                self.drop(session, outgoing, "expired")
            elif self.barred(session, outgoing):
                self.drop(session, outgoing, "revoked")
            else:
                self.offer(session, outgoing, None, promised=True)
        if len(opened) != 0 and session.moving is not None and session.moving.target != 0:
            self.ctx.cluster.leave(session)

    def pass_on(self, session: Session, ended: bool) -> None:
        """A group member has disconnected: messages that it has not begun to receive go to other members.

        ``ended``: permanently, so that its unacknowledged QoS 1 messages are free, too. A QoS 2 message that it was
        sent stays its own [MQTT-4.8.2-5] [MQTT-4.8.2-6].
        """
        queue = session.queue
        if queue is not None and queue.shared != 0:  # the last one first: each goes before those that were given back
            passed = [outgoing for outgoing in reversed(queue.drawn()) if self.sharing.give_back(outgoing)]
            for outgoing in passed:
                self.ctx.note(QUEUE_DELETE, session, outgoing)
                if self.ctx.audit is not None:
                    self.ctx.audit.dropped(session.client_id, outgoing.message, outgoing.qos, "passed_on")
            queue.take_out(passed)
            if len(queue) == 0:
                session.queue = None
        window = session.window
        if ended and window is not None:
            for packet_id, outgoing in reversed(list(window.entries.items())):
                if outgoing.source is None:
                    continue
                if outgoing.qos == 1:
                    if self.sharing.give_back(outgoing):
                        window.discard(packet_id)
                else:
                    self.sharing.settle(outgoing)
