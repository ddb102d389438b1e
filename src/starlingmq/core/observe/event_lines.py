"""The lines of a batch of events, and its JSON (docs/STREAMS.md, The broker's own events).

A line is one event, or a run: the same event of messages with consecutive numbers of this node. A burst of one
publisher to one receiver is thus one line of each kind. Everything that lines repeat (names, the time, the high digits
of numbers) is encoded once.
"""

from __future__ import annotations

from typing import Final

import msgspec
from librt.strings import BytesWriter

Event = dict[str, object]

NAMES_MAX: Final = 10_000  # encoded names of clients and topics that are remembered
LOW: Final = 1000  # numbers below it are encoded in advance


class EventLine:
    """``id`` is that of the first of ``run`` messages, and ``number`` its last part; 0: the id is not one of this
    process, or is marked. ``fields`` are the JSON members that only this kind of event has, each after a comma."""

    n: int
    at: float
    id: bytes
    number: int
    client: str
    topic: bytes
    qos: int
    fields: bytes
    run: int

    def __init__(
        self, n: int, at: float, id: bytes, number: int, client: str, topic: bytes, qos: int, fields: bytes
    ) -> None:
        self.n = n
        self.at = at
        self.id = id
        self.number = number
        self.client = client
        self.topic = topic
        self.qos = qos
        self.fields = fields
        self.run = 1

    def event(self) -> Event:
        """The event as readers of a batch decode it. The line must not be a run."""
        event: Event = {
            "n": self.n,
            "at": self.at,
            "id": self.id.decode(),
            "client": self.client,
            "topic": self.topic.decode(),
            "qos": self.qos,
        }
        if len(self.fields) != 0:
            event.update(msgspec.json.decode(b"{" + self.fields[1:] + b"}"))
        return event


class EventEncoder:
    """Encodes batches of one node. Numbers are written by their high digits, which change rarely, and a table."""

    _low: list[bytes]  # the three low digits; empty before the first batch
    _high: int
    _high_digits: bytes
    _at: float
    _at_digits: bytes
    _clients: dict[str, bytes]
    _topics: dict[bytes, bytes]

    def __init__(self) -> None:
        self._low = []
        self._high = -1
        self._high_digits = b""
        self._at = -1.0
        self._at_digits = b""
        self._clients = {}
        self._topics = {}

    def encode(self, node: str, prefix: bytes, life: int, batch: int, lines: list[EventLine]) -> bytes:
        """The payload of a batch. ``prefix``: how the ids of this process begin."""
        if not self._low:
            self._low = [b"%03d" % number for number in range(LOW)]
        own = msgspec.json.encode(prefix.decode())[:-1]  # without the last quote
        out = BytesWriter()
        out.write(b'{"node":%b,"life":%d,"batch":%d,"events":[' % (msgspec.json.encode(node), life, batch))
        first = True
        for line in lines:
            out.write(b'{"n":' if first else b',{"n":')
            first = False
            self._number(out, line.n)
            if line.at != self._at:
                self._at = line.at
                self._at_digits = b',"at":' + msgspec.json.encode(line.at) + b',"id":'
            out.write(self._at_digits)
            if line.number != 0:
                out.write(own)
                self._number(out, line.number)
                out.write(b'","client":')
            else:
                out.write(msgspec.json.encode(line.id.decode()))
                out.write(b',"client":')
            out.write(self._client(line.client))
            out.write(self._topic(line.topic))
            out.append(48 + line.qos)
            out.write(line.fields)
            if line.run != 1:
                out.write(b',"run":%d' % line.run)
            out.append(125)
        out.write(b"]}")
        return out.getvalue()

    def _number(self, out: BytesWriter, value: int) -> None:
        high = value // LOW
        if high != self._high:
            self._high = high
            self._high_digits = b"%d" % high
        out.write(self._high_digits)
        out.write(self._low[value - high * LOW])

    def _client(self, client: str) -> bytes:
        known = self._clients.get(client)
        if known is None:
            if len(self._clients) >= NAMES_MAX:
                self._clients.clear()
            known = self._clients[client] = msgspec.json.encode(client)
        return known

    def _topic(self, topic: bytes) -> bytes:
        """The topic and the name of the next member."""
        known = self._topics.get(topic)
        if known is None:
            if len(self._topics) >= NAMES_MAX:
                self._topics.clear()
            known = self._topics[topic] = b',"topic":' + msgspec.json.encode(topic.decode()) + b',"qos":'
        return known
