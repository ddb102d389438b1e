"""A bridge into something that is no broker: its session at this broker is handled packet by packet.

A message of the session is acknowledged once the other side has it, in order (``OutFlow``); a message that the bridge
publishes here is acknowledged to it by this broker (``InFlow``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from starlingmq.bridges.bridge import DIAL_SECONDS, LINGER_SECONDS, Bridge, NearHandle
from starlingmq.bridges.bridge_relay import FILTERS_MAX, BridgeCounts
from starlingmq.bridges.bridge_sessions import state_frame, state_will
from starlingmq.bridges.kafka_state import InFlow, OutFlow
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.client_frames import Frames
from starlingmq.client.errors import explain
from starlingmq.client.options import NEVER_EXPIRES, V5
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.core.session.production import LogProduction
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.net.driver import Driver
from starlingmq.wire.frames import ack_frame
from starlingmq.wire.mqtt import decode, encode
from starlingmq.wire.packets import (
    PUBLISH,
    PUBREL,
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties
from starlingmq.wire.reasons import MqttError

log = logging.getLogger("starlingmq")

DRAIN_SECONDS: Final = 2.0  # for what is on its way when a bridge ends in order
INFLIGHT: Final = 1000  # messages on their way to the other side, unless the settings say another number


class SessionBridge(Bridge):
    """``_message`` gets the messages of the session."""

    replays = True  # retained messages come at a new subscription, if the settings say retain

    def __init__(
        self, config: BridgeConfig, driver: Driver, site: str, elected: Callable[[], bool], counts: BridgeCounts
    ) -> None:
        super().__init__(config, driver, site, elected, counts)
        self._topics = TopicMap(config.topics, outwards=True)
        self._why = ""  # the attempt ends
        self._begin_flows()

    def _begin_flows(self) -> None:
        self._out = OutFlow()
        self._in = InFlow(0)
        self._production = self._new_production()
        self._frames = Frames()
        self._limits: Properties = {}  # of this broker, as its CONNACK says
        self._welcomed = asyncio.Event()
        self._settled = asyncio.Event()
        self._steps = 0  # answers that are missing until it is
        self._acks: list[bytes] = []

    def _new_production(self) -> LogProduction:
        return LogProduction()

    def _message(self, near: NearHandle, first: int, data: bytes, start: int, end: int) -> None:
        """A PUBLISH of this broker."""
        raise NotImplementedError

    def _servers(self) -> tuple[str, ...]:
        return self.config.servers[:1]  # an attempt is for all of them

    async def _attempt(self, server: str) -> bool:
        self._becomes("connecting")
        self._why = ""
        self._over = asyncio.get_running_loop().create_future()
        self._begin_flows()
        ran = False
        try:
            await self._greet()
            await self._join()
            self._runs()
            ran = True
            await self._until_over()
        except TimeoutError:
            self._why = f"{self._server} did not answer within {DIAL_SECONDS:g} s"
        except (OSError, ImportError, ValueError) as error:
            self._why = str(error)
        finally:
            await self._close()
        self._note_problem(self._why)
        return ran

    async def _greet(self) -> None:
        """Reach the other side. Raises OSError, ImportError, ValueError, TimeoutError."""
        raise NotImplementedError

    def _runs(self) -> None:
        self._becomes("connected")
        self._connected_at = self._driver.clock()
        self.problem = ""
        self.complaints = []
        log.info("%s: connected to %s", self.label, self._server)

    async def _close(self) -> None:
        near = self._near
        if near is not None and near.client is not None and not self._why:
            self._driver.blocked(near.client)
            self._reads_no_more()
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while self._out.sent or not self._in.idle():
                        await asyncio.sleep(0.01)
        self._near = None
        if near is not None:
            near.close()

    def _reads_no_more(self) -> None:
        """Nothing more is to come from the other side."""

    async def _join(self) -> None:
        """Resume the session at this broker, and subscribe."""
        config = self.config
        near = self._near = NearHandle(self)
        near.client = self._driver.opened(near, BRIDGE_LISTENER, self.label)
        properties: Properties = {
            SESSION_EXPIRY_INTERVAL: NEVER_EXPIRES,
            RECEIVE_MAXIMUM: config.max_inflight or INFLIGHT,
        }
        told = config.notifications != "off"
        will = state_will(config.name) if told else None
        self._write([encode(Connect(V5, self.client_id, False, 0, None, None, will, properties), V5)])
        await self._or_over(self._welcomed.wait())
        frames = [state_frame(config.name, V5)] if told else []
        packets = [*self._subscribing(), Pingreq()]
        self._steps = len(packets)
        self._write(frames + [encode(packet, V5) for packet in packets])
        await self._or_over(self._settled.wait())
        if self._near is not None and self._near.client is not None:
            self._near.client.production = self._production

    def _subscribing(self) -> list[Packet]:
        """The packets that change the subscriptions of the session into those of the settings."""
        session, retain = self.session, self.config.retain
        there = {} if session is None else dict(session.subscriptions())
        wanted = {name: min(qos, 1) for name, qos in self._topics.filters().items()}
        new = [
            SubscribeRequest(name, qos, True, retain, 0 if retain and self.replays else 2)
            for name, qos in wanted.items()
            if name not in there or (there[name].qos, there[name].retain_as_published) != (qos, retain)
        ]
        old = [name for name in there if name not in wanted]
        packets: list[Packet] = [
            Subscribe(at + 1, new[at : at + FILTERS_MAX]) for at in range(0, len(new), FILTERS_MAX)
        ]
        if old:
            packets.append(Unsubscribe(len(new) + 1, old))
        return packets

    async def _or_over(self, wanted: Awaitable[object], seconds: float | None = None) -> None:
        """Wait for it. Raises ConnectionError if the attempt ends before, TimeoutError."""
        assert self._over is not None
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(wanted), self._over]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrived = not waiting[0].cancel()
        if self._over.done():
            raise ConnectionError(self._why)
        if not arrived:
            raise TimeoutError
        waiting[0].result()

    async def _until_over(self) -> None:
        assert self._over is not None
        seen = -1
        while not self._over.done():
            if self.config.start == "lazy" and seen == self.counts.messages_out and not self._has_work():
                return
            seen = self.counts.messages_out
            await asyncio.wait([self._over], timeout=LINGER_SECONDS if self.config.start == "lazy" else None)

    def _has_work(self) -> bool:
        session = self.session
        if self.config.start != "lazy" or self._reads_there() or session is None:
            return True
        return bool(session.queue) or (session.window is not None and bool(session.window.entries))

    def _end(self, problem: str) -> None:
        if self._over is not None and not self._over.done():
            self._why = problem
            self._over.set_result(None)

    def near_received(self, handle: NearHandle, data: bytes) -> None:
        if handle is not self._near:
            return
        try:
            for first, whole, start, end in self._frames.feed(data):
                if first >> 4 == PUBLISH:
                    self._message(handle, first, whole, start, end)
                else:
                    self._packet(decode(first, whole, start, end, V5))
        except MqttError as error:
            self._end(f"this broker broke the protocol: {error.detail}")
        self.set_reading()

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Ack):
            if packet.type == PUBREL:  # of a message that came before the settings had QoS 1 for it
                self._send([ack_frame(0x70, packet.packet_id)])
            else:
                self._published(packet)
        elif isinstance(packet, Connack):
            self._limits = packet.properties
            if packet.reason != 0:
                self._end(f"this broker refused the connection: {explain(packet.reason, packet.properties)}")
            self._welcomed.set()
        elif isinstance(packet, (Suback, Unsuback, Pingresp)):
            refused = [] if isinstance(packet, Pingresp) else [each for each in packet.reasons if each >= 0x80]
            if refused and isinstance(packet, Suback):
                self._end(f"this broker refuses a filter: {explain(refused[0])}")
            self._steps -= 1
            if self._steps == 0:
                self._settled.set()
        elif isinstance(packet, Disconnect):
            self._end(f"this broker closed the connection: {explain(packet.reason, packet.properties)}")

    def _published(self, packet: Ack) -> None:
        """This broker has answered a PUBLISH."""
        if packet.reason < 0x80:
            self._in.acknowledged(packet.packet_id)
        elif self._in.refused_for_good(packet.packet_id):
            self.counts.refused += 1
        else:
            self._end(f"this broker takes no message now: {explain(packet.reason, packet.properties)}")

    def _reads_there(self) -> bool:
        """Whether anything may come from the other side."""
        return False

    def _send(self, frames: list[bytes]) -> None:
        """The driver may be in its turn, so it gets them afterwards."""
        if frames and not self._acks:
            asyncio.get_running_loop().call_soon(self._flush)
        self._acks += frames

    def _flush(self) -> None:
        frames, self._acks = self._acks, []
        self._write(frames)

    def _write(self, frames: list[bytes]) -> None:
        near = self._near
        if frames and near is not None and near.client is not None:
            self._driver.received(near.client, b"".join(frames))

    def _drained(self, near: NearHandle) -> None:
        if near.client is not None and not near.blocked:
            self._driver.drained(near.client)

    def _hold(self, near: NearHandle, full: bool) -> None:
        """The broker is to wait while too much is on its way, and no longer."""
        if full and not near.blocked and near.client is not None:
            near.blocked = True
            self._driver.blocked(near.client)
        elif not full and near.blocked and near.client is not None:
            near.blocked = False
            asyncio.get_running_loop().call_soon(self._drained, near)
