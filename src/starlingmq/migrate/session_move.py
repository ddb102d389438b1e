"""Moves one session from the old broker to this one, without a gap and without a second copy.

Both brokers exchange all messages over a bridge. The session of client C is taken over by a connection under C's client
id; ``Y`` is what it sends, ``X`` is what the same subscriptions get here, in a *gathering* session. Where both have a
message, one copy is dropped. The bridge keeps the order of each QoS, so three markers cut both streams::

    here                                     old broker
    1. connect as C                      ->  C's other connection ends; Y begins
    2. X begins, publish M (QoS 2)       ->  M is in Y after every message that was published here before 2
    3. X gets K1, then K2                <-  publish K1 (QoS 1) and K2 (QoS 2) once M is in Y
    4. K2 is in X and in Y: C's session gets Y, then X, then its subscriptions; its session there ends

A message that was published here belongs to Y before M, and to X after it: it bears the mark of this site in Y. One
that was published there belongs to Y before K2, and to X after K1 (QoS 1) or K2 (QoS 2). So nothing is lost; at QoS 2
nothing is doubled; at QoS 1 a message between two markers may come twice. Y is acknowledged once it is stored here.

If the line or a broker fails in the middle, the gathering session stays, the move begins again and drops nothing: then
messages of the seam may come twice at every QoS.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.core.context.ready import SUBSCRIPTION_PUT, Write
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import PUBLISHED, RELEASED, Outgoing
from starlingmq.core.peers.session_transfer import Granted
from starlingmq.core.publish.bridges import sites_of
from starlingmq.core.session.session import BRIDGE_PREFIX, MOVING_PREFIX, NEVER, SEEN_PREFIX, Session
from starlingmq.migrate.described import StoredSession
from starlingmq.migrate.old_session import OldBrokerError, OldConnection
from starlingmq.migrate.taken_sessions import as_message, encoded_identifiers, granted_of, put_held
from starlingmq.net.driver import Driver
from starlingmq.wire.mqtt import Ack, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL

GATHERING: Final = MOVING_PREFIX  # before the client id: a session that is here while the move is not complete
SEEN: Final = SEEN_PREFIX  # likewise: it gets K2
MARKERS: Final = b"$follow/"
FIRST_ID: Final = 65_534  # of K1 and K2; clients use low packet ids
LOOK_SECONDS: Final = 0.01  # between two looks whether K2 has come, which reports nothing by itself
MOVE_SECONDS: Final = 60.0
BATCH_BYTES: Final = 1 << 20


class SessionMove:
    """``known``: the session as the old broker has written it, from after ``connection`` has taken it over."""

    def __init__(self, driver: Driver, config: BridgeConfig, known: StoredSession, connection: OldConnection) -> None:
        self.driver = driver
        self.state = driver.state
        self.known = known
        self.connection = connection
        self.messages = 0  # from the old session
        self._from_bridge = BRIDGE_PREFIX + config.name
        self._site = self.state.ctx.site
        self._names = [prefix + known.client_id for prefix in (GATHERING, SEEN)]
        self._markers = MARKERS + secrets.token_hex(4).encode()
        self._drops = True  # it is the first attempt
        self._m_seen = self._k_seen = False
        self._taken: set[int] = set()  # packet ids of QoS 2 messages of this connection
        self._unstored: list[Packet] = []  # acknowledgements that wait until the messages are stored

    async def run(self) -> None:
        """Raises OldBrokerError; then another move continues it."""
        async with asyncio.timeout(MOVE_SECONDS):
            session = self._begin()
            filters = [SubscribeRequest(self._markers + b"/+", 2)]
            self.connection.send(Subscribe(1, filters))
            self._gather()
            await self._stored()
            while not self._k_seen:
                await self._take(session, await self.connection.next())
                if self._unstored and not self.connection.ready():
                    await self._acknowledge()
            await self._acknowledge()
            await self._until_seen()
            await self._complete(session)
        await self.connection.end_session()

    # The two sessions here

    def _begin(self) -> Session:
        self._at()
        found, state = self.known, self.state
        there = state.ctx.sessions.get(found.client_id)
        self._drops = there is None
        if there is not None:
            return there
        left = max(0.0, found.expires_at - state.ctx.now) if found.expires_at else float(found.expiry)
        expiry = min(found.expiry, NEVER)
        session = state.mover.arrive(found.client_id, 0, expiry, left, [], 0, False, False, found.owner)
        for packet_id, message in found.held.items():
            put_held(state, session, packet_id, as_message(message, state.ctx.now))
        return session

    def _gather(self) -> None:
        """From now on the messages for C gather here; M goes to the old broker after all earlier ones."""
        self._at()
        gathering = [*granted_of(self.known), Granted(self._markers + b"/+", 2, False, False, b"")]
        wanted = (gathering, [Granted(self._markers + b"/k2", 2, False, False, b"")])
        for name, granted in zip(self._names, wanted, strict=True):
            self.state.ctx.unbound(name)
            self.state.mover.arrive(name, 0, NEVER, 0.0, granted, 0, False, False, None)
        now = self.state.ctx.now
        self.state.publishing.route(Message(self._markers + b"/m", b"", 2, False, b"", 0.0, "", now), None)

    def _at(self) -> None:
        self.state.ctx.at(self.driver.clock())
        self.driver.request_turn()

    async def _stored(self) -> None:
        if not await self.driver.stored():
            raise OldBrokerError("this broker cannot store its messages at the moment")

    # Y

    async def _take(self, session: Session, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._message(session, packet)
            if packet.qos:
                self._unstored.append(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        elif isinstance(packet, Suback) and packet.reasons[0] >= 0x80:
            raise OldBrokerError("the bridge's user may not subscribe to $follow/#")
        elif isinstance(packet, Ack) and packet.type == PUBREL:
            if packet.packet_id not in self._taken:
                self._at()
                nothing = Message(MARKERS, b"", 2, False, b"", 0.0, "", self.state.ctx.now)
                self.state.mover.put_window(session, packet.packet_id, RELEASED, Outgoing(nothing, 2, False, b"", None))
            self._taken.discard(packet.packet_id)
            self._unstored.append(Ack(PUBCOMP, packet.packet_id))
        elif isinstance(packet, Ack) and packet.type == PUBREC:
            if packet.reason >= 0x80:
                raise OldBrokerError("the bridge's user may not publish to $follow/#")
            self.connection.send(Ack(PUBREL, packet.packet_id))

    def _message(self, session: Session, packet: Publish) -> None:
        if packet.qos == 2:
            self._taken.add(packet.packet_id)
        if packet.topic.startswith(MARKERS):
            self._marker(packet.topic)
        elif not self._dropped(packet):
            self._at()
            now = self.state.ctx.now
            expires_at = now + packet.expiry if packet.expiry >= 0 else 0.0
            message = Message(
                packet.topic, packet.payload, packet.qos, packet.retain, packet.properties, expires_at, "", now
            )
            identifiers = encoded_identifiers(packet.subscription_ids or ())
            outgoing = Outgoing(message, packet.qos, packet.retain, identifiers, None)
            self.messages += 1
            if packet.dup:
                self.state.mover.put_window(session, packet.packet_id, PUBLISHED, outgoing)
            else:
                self.state.mover.put(session, outgoing)

    def _marker(self, topic: bytes) -> None:
        if topic == self._markers + b"/m" and not self._m_seen:
            self._m_seen = True
            self.connection.send(
                Publish(self._markers + b"/k1", b"", 1, packet_id=FIRST_ID),
                Publish(self._markers + b"/k2", b"", 2, packet_id=FIRST_ID + 1),
            )
        elif topic == self._markers + b"/k2":
            self._k_seen = True

    def _dropped(self, packet: Publish) -> bool:
        """Whether X has it."""
        if not self._drops or packet.dup:
            return False
        return self._k_seen or (self._m_seen and self._site in sites_of(packet.properties))

    async def _acknowledge(self) -> None:
        await self._stored()
        unstored, self._unstored = self._unstored, []
        self.connection.send(*unstored)

    # X

    async def _until_seen(self) -> None:
        while True:
            seen = self.state.ctx.sessions.get(self._names[1])
            if seen is not None and seen.queue is not None and len(seen.queue):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _complete(self, session: Session) -> None:
        gathering = self.state.ctx.sessions[self._names[0]]
        k1 = k2 = False
        while True:
            self._at()
            batch = self.state.mover.take_queue(gathering, BATCH_BYTES)
            for each in batch:
                message = each.message
                if message.topic.startswith(MARKERS):
                    k1 = k1 or message.topic == self._markers + b"/k1"
                    k2 = k2 or message.topic == self._markers + b"/k2"
                    continue
                here = message.publisher != self._from_bridge
                if not self._drops or here or k2 or (k1 and message.qos < 2):
                    self.state.mover.put(session, Outgoing(message, each.qos, each.retain, each.ids, None))
            if batch:
                await self._stored()
            elif gathering.queue is None or not len(gathering.queue):
                break
            else:
                await asyncio.sleep(LOOK_SECONDS)  # it is being read back
        self._subscribe(session)
        for name in self._names:
            self.state.ending.end(self.state.ctx.sessions[name])
            self.state.ctx.rebound(name)
        await self._stored()

    def _subscribe(self, session: Session) -> None:
        state = self.state
        for each in granted_of(self.known):
            before = session.subscription(each.whole)
            state.restoring.subscription(
                session, each.whole, each.qos, each.no_local, each.retain_as_published, each.ids
            )
            after = session.subscription(each.whole)
            assert after is not None
            state.subscribing.count(each.whole, session, before, after, arrives=True)
            if state.ctx.recording:
                state.ctx.write(Write(SUBSCRIPTION_PUT, session, topic=each.whole, subscription=after))
