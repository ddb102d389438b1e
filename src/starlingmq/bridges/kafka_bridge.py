"""The shell around ``kafka_state``: one bridge to Kafka, with its session at this broker and Kafka's clients.

An attempt: Kafka answers, the session of the bridge is resumed at this broker, messages pass both ways. When Kafka or
the session ends, both do, and the next attempt follows: messages out wait in the session, records in wait in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from starlingmq.bridges.bridge import DIAL_SECONDS, LINGER_SECONDS, Bridge, NearHandle
from starlingmq.bridges.bridge_relay import FILTERS_MAX, BridgeCounts, number
from starlingmq.bridges.bridge_sessions import state_frame, state_will
from starlingmq.bridges.kafka_records import KafkaSource, kafka_topic, message_parts, record_headers, record_value
from starlingmq.bridges.kafka_state import NONE, InFlow, OutFlow, Partition, Sent
from starlingmq.bridges.site_mark import SITES_MAX, marked
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.client_frames import Frames
from starlingmq.client.errors import explain
from starlingmq.client.options import NEVER_EXPIRES, V5
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.core.publish.bridges import sites_of
from starlingmq.core.session.production import LogProduction
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.net.driver import Driver
from starlingmq.wire.frames import ack_frame, publish_frame
from starlingmq.wire.mqtt import decode, decode_publish, encode
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
from starlingmq.wire.properties import (
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SESSION_EXPIRY_INTERVAL,
    Properties,
)
from starlingmq.wire.reasons import MqttError

if TYPE_CHECKING:
    from starlingmq.bridges.kafka_clients import KafkaReader, KafkaWriter

log = logging.getLogger("starlingmq")

INFLIGHT: Final = 1000  # messages on their way to Kafka, unless the settings say another number
DRAIN_SECONDS: Final = 2.0  # for what is on its way when a bridge ends in order
HEAD: Final = 16  # bytes of a PUBLISH besides topic, properties and payload, at most


class KafkaBridge(Bridge):
    def __init__(
        self, config: BridgeConfig, driver: Driver, site: str, elected: Callable[[], bool], counts: BridgeCounts
    ) -> None:
        super().__init__(config, driver, site, elected, counts)
        self._topics = TopicMap(config.topics, outwards=True)
        sources = [KafkaSource(topic) for topic in config.topics if topic.direction == "in"]
        self._sources = {source.name: source for source in sources}
        self._server = ",".join(config.servers)
        self._far_site = ""
        self._writer: KafkaWriter | None = None
        self._reader: KafkaReader | None = None
        self._why = ""  # the attempt ends
        self._alone = False  # Kafka has refused a batch: records go one by one until it is known which
        self._begin_flows()

    def _begin_flows(self) -> None:
        self._out = OutFlow()
        self._in = InFlow(0)
        self._production = LogProduction()
        self._frames = Frames()
        self._limits: Properties = {}  # of this broker, as its CONNACK says
        self._welcomed = asyncio.Event()
        self._settled = asyncio.Event()
        self._steps = 0  # answers that are missing until it is
        self._acks: list[bytes] = []

    # An attempt

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
        # The import takes a quarter of a second, the first time.
        clients = await asyncio.to_thread(import_module, "starlingmq.bridges.kafka_clients")
        settings = client_settings(self.config, self._site)
        node = self._driver.state.publishing.producers.node
        if self._topics.entries:
            self._writer = clients.KafkaWriter(settings, self._end, self._reported, self._alone)
        if self._sources:
            self._reader = clients.KafkaReader(settings, self._end, list(self._sources), node, self._came, self._placed)
        for client in (self._writer, self._reader):
            if client is not None:
                client.begin()
                await self._or_over(client.greeted, DIAL_SECONDS)
                self._far_site = client.greeted.result()

    async def _join(self) -> None:
        """Resume the session at this broker, and subscribe."""
        config = self.config
        near = self._near = NearHandle(self)
        near.client = self._driver.opened(near, BRIDGE_LISTENER, f"bridge {config.name}")
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
            SubscribeRequest(name, qos, True, retain, 0 if retain else 2)
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

    def _runs(self) -> None:
        self._becomes("connected")
        self._connected_at = self._driver.clock()
        self.problem = ""
        self.complaints = []
        log.info("bridge %s: connected to %s", self.config.name, self._server)
        reader = self._reader
        if reader is not None:
            name, producers = self.config.name, self._driver.state.publishing.producers
            flow = self._in = InFlow(number(self._limits, RECEIVE_MAXIMUM, 65_535))
            reader.own = lambda partition: producers.position(log_name(name, partition))
            reader.positions = flow.positions
            reader.begun.set()
            self.set_reading()

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
        if self.config.start != "lazy" or self._sources or session is None:
            return True
        return bool(session.queue) or (session.window is not None and bool(session.window.entries))

    def _end(self, problem: str) -> None:
        if self._over is not None and not self._over.done():
            self._why = problem
            self._over.set_result(None)

    async def _close(self) -> None:
        near, writer, reader = self._near, self._writer, self._reader
        if near is not None and near.client is not None and not self._why:
            self._driver.blocked(near.client)
            if reader is not None:
                reader.room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while self._out.sent or not self._in.idle():
                        await asyncio.sleep(0.01)
        if writer is not None and writer.batch_refused:
            self._alone = True
        self._near = self._writer = self._reader = None
        for client in (writer, reader):
            if client is not None:
                client.stop()
        if near is not None:
            near.close()
        await asyncio.gather(*[client.stopped() for client in (writer, reader) if client is not None])

    # Packets of this broker

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
                self._acknowledge([ack_frame(0x70, packet.packet_id)])
            elif packet.reason >= 0x80 and self._in.refused_for_good(packet.packet_id):
                self.counts.refused += 1
            elif packet.reason >= 0x80:
                self._end(f"this broker takes no message now: {explain(packet.reason, packet.properties)}")
            else:
                self._in.acknowledged(packet.packet_id)
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

    def _message(self, near: NearHandle, first: int, data: bytes, start: int, end: int) -> None:
        packet = decode_publish(first, data, start, end, V5)
        name = kafka_topic(self._topics, packet.topic)
        sites = sites_of(packet.properties) if packet.properties else []
        writer, counts = self._writer, self.counts
        if writer is None or not name or self._far_site in sites or len(sites) >= SITES_MAX:
            counts.kept_out += 1
            self._acknowledge(self._out.done(self._out.take(packet.packet_id, packet.qos, 0)))
            return
        sent = self._out.take(packet.packet_id, packet.qos, len(packet.payload) + len(packet.properties))
        headers = record_headers(packet, marked(packet.properties, self._site))
        try:
            if not writer.write(sent, name, packet.topic, record_value(packet), headers):
                self._reported([(sent, False)])
        except Exception as error:  # of librdkafka, which is known to kafka_clients only
            self._end(str(error))
            return
        counts.messages_out += 1
        counts.bytes_out += len(packet.payload)
        if packet.dup:
            counts.again += 1
        if self._out.full() and not near.blocked and near.client is not None:
            near.blocked = True
            self._driver.blocked(near.client)

    def _acknowledge(self, frames: list[bytes]) -> None:
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

    # Kafka

    def _reported(self, reports: list[tuple[Sent, bool]]) -> None:
        for sent, stored in reports:
            if not stored:
                self.counts.refused += 1
            self._acknowledge(self._out.done(sent))
        found = self._alone and not self._out.sent and any(not stored for _, stored in reports)
        if found and self.config.start != "once":
            self._alone = False
            self._end("")  # and with batches at once
        near = self._near
        if near is not None and near.client is not None and near.blocked and not self._out.full():
            near.blocked = False
            asyncio.get_running_loop().call_soon(self._drained, near)

    def _drained(self, near: NearHandle) -> None:
        if near.client is not None and not near.blocked:
            self._driver.drained(near.client)

    def _placed(self, partition: Partition, begin: int, problem: str) -> None:
        """A partition is read from ``begin`` on."""
        topic, which = partition
        said = f"{topic}: {problem}" if which == NONE else f"{topic}, partition {which}: {problem}"
        if problem and said not in self.complaints:
            self.complaints.append(said)
            log.warning("bridge %s: %s", self.config.name, said)
        if begin != NONE:
            producer = self._driver.state.publishing.producers.log(log_name(self.config.name, partition))
            self._in.begin(partition, producer, begin)

    def _came(self, records: list[Any]) -> None:
        frames: list[bytes] = []
        try:
            for record in records:
                self._record(record, frames)
        except Exception:
            # Nothing of the batch is written, so no place in ``coming`` is taken for that of another record.
            log.exception("internal error in bridge %s; please report it", self.config.name)
            self._end("internal error")
            return
        self._write(frames)
        self.set_reading()

    def _record(self, record: Any, frames: list[bytes]) -> None:
        source = self._sources[record.topic()]
        partition = (source.name, record.partition())
        payload = record.value() or b""
        topic = source.mqtt_topic(record.key())
        qos, retain, properties = message_parts(headers_of(record), record.key(), source.qos)
        sites = sites_of(properties)
        marks = marked(properties, self._far_site)
        size = len(topic) + len(payload) + len(marks) + HEAD
        most = number(self._limits, MAXIMUM_PACKET_SIZE, 0)
        if not self._takes(topic) or self._site in sites or len(sites) >= SITES_MAX or 0 < most < size:
            self.counts.kept_out += 1
            self._in.pass_by(partition, record.offset())
            return
        qos = min(qos, number(self._limits, MAXIMUM_QOS, 2))
        retain = retain and self.config.retain and number(self._limits, RETAIN_AVAILABLE, 1) == 1
        packet_id, place = self._in.offer(partition, record.offset(), qos, size)
        self._production.coming.append(place)
        frames.append(publish_frame(topic, payload, qos, retain, False, packet_id, V5, marks))
        self.counts.messages_in += 1
        self.counts.bytes_in += len(payload)

    def _takes(self, topic: bytes) -> bool:
        """Whether this broker accepts messages with this topic: it would close the connection otherwise."""
        if not topic:
            return False
        try:
            return not self._driver.state.router.resolve(topic).reserved
        except MqttError:
            return False

    def set_reading(self) -> None:
        reader, near = self._reader, self._near
        if reader is not None and near is not None:
            if near.reads and not self._in.full():
                reader.room.set()
            else:
                reader.room.clear()


def headers_of(record: Any) -> list[tuple[str, bytes | None]]:
    """None if a name is no UTF-8: the client of Kafka decodes all of them, or none."""
    try:
        return record.headers() or []
    except UnicodeDecodeError:
        return []


def log_name(bridge: str, partition: Partition) -> str:
    return f"{bridge}/{partition[0]}/{partition[1]}"


def client_settings(config: BridgeConfig, site: str) -> dict[str, Any]:
    """Those of librdkafka for writer and reader. Raises OSError if the file of the password cannot be read."""
    parts = [urlsplit(server) for server in config.servers]
    secure = parts[0].scheme == "kafka+ssl"
    login, tls = config.credentials, config.tls
    client_id = config.client_id or f"{config.name}-{site}"
    hosts = [f"[{each.hostname}]" if ":" in (each.hostname or "") else each.hostname or "" for each in parts]
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(f"{host}:{each.port or 9092}" for host, each in zip(hosts, parts, strict=True)),
        "client.id": client_id,
        "security.protocol": ("SASL_" if login.username else "") + ("SSL" if secure else "PLAINTEXT"),
    }
    if login.username:
        password = login.password or ""
        if login.password_file:
            password = Path(login.password_file).read_text().removesuffix("\n")
        settings |= {"sasl.mechanism": login.sasl, "sasl.username": login.username, "sasl.password": password}
    if secure:
        settings |= {"enable.ssl.certificate.verification": not tls.insecure or bool(tls.ca)}
        settings |= {"ssl.endpoint.identification.algorithm": "none" if tls.insecure else "https"}
        files = {
            "ssl.ca.location": tls.ca,
            "ssl.certificate.location": tls.cert,
            "ssl.key.location": tls.key or tls.cert,
        }
        settings |= {name: path for name, path in files.items() if path}
    return settings
