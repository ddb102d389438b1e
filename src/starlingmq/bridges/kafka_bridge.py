"""The shell around ``kafka_state``: one bridge to Kafka, with its session at this broker and Kafka's clients.

An attempt: Kafka answers, the session of the bridge is resumed at this broker, messages pass both ways. When Kafka or
the session ends, both do, and the next attempt follows: messages out wait in the session, records in wait in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from starlingmq.bridges.bridge import DIAL_SECONDS, NearHandle
from starlingmq.bridges.bridge_relay import BridgeCounts, number
from starlingmq.bridges.kafka_records import KafkaSource, kafka_topic, message_parts, record_headers, record_value
from starlingmq.bridges.kafka_state import NONE, InFlow, Partition, Sent
from starlingmq.bridges.session_bridge import SessionBridge
from starlingmq.bridges.site_mark import SITES_MAX, marked
from starlingmq.client.options import V5
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.core.publish.bridges import sites_of
from starlingmq.net.driver import Driver
from starlingmq.wire.frames import publish_frame
from starlingmq.wire.mqtt import decode_publish
from starlingmq.wire.properties import (
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
)
from starlingmq.wire.reasons import MqttError

if TYPE_CHECKING:
    from starlingmq.bridges.kafka_clients import KafkaReader, KafkaWriter

log = logging.getLogger("starlingmq")

INFLIGHT: Final = 1000  # messages on their way to Kafka, unless the settings say another number
HEAD: Final = 16  # bytes of a PUBLISH besides topic, properties and payload, at most


class KafkaBridge(SessionBridge):
    def __init__(
        self, config: BridgeConfig, driver: Driver, site: str, elected: Callable[[], bool], counts: BridgeCounts
    ) -> None:
        super().__init__(config, driver, site, elected, counts)
        sources = [KafkaSource(topic) for topic in config.topics if topic.direction == "in"]
        self._sources = {source.name: source for source in sources}
        self._server = ",".join(config.servers)
        self._far_site = ""
        self._writer: KafkaWriter | None = None
        self._reader: KafkaReader | None = None
        self._alone = False  # Kafka has refused a batch: records go one by one until it is known which

    # An attempt

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

    def _runs(self) -> None:
        super()._runs()
        reader = self._reader
        if reader is not None:
            name, producers = self.config.name, self._driver.state.publishing.producers
            flow = self._in = InFlow(number(self._limits, RECEIVE_MAXIMUM, 65_535))
            reader.own = lambda partition: producers.position(log_name(name, partition))
            reader.positions = flow.positions
            reader.begun.set()
            self.set_reading()

    async def _close(self) -> None:
        await super()._close()
        writer, reader = self._writer, self._reader
        if writer is not None and writer.batch_refused:
            self._alone = True
        self._writer = self._reader = None
        for client in (writer, reader):
            if client is not None:
                client.stop()
        await asyncio.gather(*[client.stopped() for client in (writer, reader) if client is not None])

    def _reads_no_more(self) -> None:
        if self._reader is not None:
            self._reader.room.clear()

    def _reads_there(self) -> bool:
        return bool(self._sources)

    # Packets of this broker

    def _message(self, near: NearHandle, first: int, data: bytes, start: int, end: int) -> None:
        packet = decode_publish(first, data, start, end, V5)
        name = kafka_topic(self._topics, packet.topic)
        sites = sites_of(packet.properties) if packet.properties else []
        writer, counts = self._writer, self.counts
        if writer is None or not name or self._far_site in sites or len(sites) >= SITES_MAX:
            counts.kept_out += 1
            self._send(self._out.done(self._out.take(packet.packet_id, packet.qos, 0)))
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
        self._hold(near, self._out.full())

    # Kafka

    def _reported(self, reports: list[tuple[Sent, bool]]) -> None:
        for sent, stored in reports:
            if not stored:
                self.counts.refused += 1
            self._send(self._out.done(sent))
        found = self._alone and not self._out.sent and any(not stored for _, stored in reports)
        if found and self.config.start != "once":
            self._alone = False
            self._end("")  # and with batches at once
        near = self._near
        if near is not None:
            self._hold(near, self._out.full())

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
