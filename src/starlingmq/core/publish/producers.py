"""Numbered publications: a producer that publishes messages again, because it does not know whether they arrived,
publishes none twice.

A producer is a name under which messages are published in epochs (a Spark sink: a partition of a query, in batches).
Within an epoch messages are numbered from 0, and a repeated epoch has the same messages in the same order. The protocol
uses User Properties of MQTT 5, and adds nothing to a PUBLISH or to forwarded messages::

    CONNECT   starlingmq-producer: NAME, starlingmq-epoch: E
              starlingmq-also: OTHER                      as often as ALSO_MAX: other producers of this user
    CONNACK   starlingmq-next: N, starlingmq-digest: D    N messages of E have arrived, and D is the digest over them;
                                                          N is "done" if the producer is at a later epoch
              starlingmq-node: NAME                       the name of this node: other nodes do not know
              starlingmq-also: N OTHER                    N of each of those, for the same epoch

The first PUBLISH on this connection is then number N of epoch E, the next one N+1. The rule for each::

    epoch and number               QoS 1, 2                          QoS 0
    the next one                   published, and recorded           the same
    an earlier one                 acknowledged, not published       not published
    ... the last one, but another  refused: 0x99                     not published
    one of an earlier epoch        refused: 0x99                     not published
    a later one                    refused: 0x83 (2: PUBCOMP 0x92)   published: those between are lost

A later number means that the one before it was refused: no number may be skipped, for it would count as published. An
epoch above the producer's begins with number 0. Messages of an epoch below it are of an attempt that is late, or that
another one has overtaken, and must not count as published. At QoS 2 a message counts when it is routed, at PUBREL.
The state of a producer is in the journal record of the message itself, so no crash can separate the two; and CONNACK
waits until the state that it tells is stored.

A producer has no persistent session, because messages that are sent again on its next connection would get other
numbers. A name belongs to one user. It is removed ``limits.producer_expiry`` after its last connection or message.

This broker's own bridges publish the records of logs under names that no client can have (``log``). Those stay until
``forget_logs``. They use no User Properties, and their epochs are positions (core.session.production).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_DELETE, PRODUCER_PUT, Write
from starlingmq.core.messages.message import Message
from starlingmq.core.session.production import STATE, Producer, Production
from starlingmq.core.session.session import Client
from starlingmq.wire.producer_properties import ALSO, ALSO_MAX, DIGEST, EPOCH, NEXT, NODE, PRODUCER
from starlingmq.wire.properties import USER_PROPERTY, Properties
from starlingmq.wire.reasons import ProtocolError

PRODUCER_FACT: Final = b"producer/"  # and its key: the name of a fact, whose value is the state of the producer
NAME_BYTES_MAX: Final = 256
EPOCH_MAX: Final = (1 << 63) - 1
LOOK_SECONDS: Final = 60.0  # between two searches for expired producers
LOOK_PIECE: Final = 1000
LOG: Final = b"\0log/"  # before the names of logs; ``key_of`` gives no such key, as names are without NUL


def later_state(one: bytes, other: bytes) -> bytes:
    """The later one of two states of a producer: epoch and number only rise."""
    return one if one[:16] >= other[:16] else other


class Producers:
    ctx: Context
    by_key: dict[bytes, Producer]  # roughly in the order of their last use
    shared: bool  # clients that reconnect to the same address may reach another node
    node: str  # the name of this node
    _look_at: float

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.by_key = {}
        self.shared = False
        self.node = ""
        self._look_at = 0.0

    def restore(self, facts: dict[bytes, bytes]) -> None:
        """Remove and use the producers among the facts of the store."""
        found: list[Producer] = []
        for fact in [fact for fact in facts if fact.startswith(PRODUCER_FACT)]:
            epoch, next, digest, used = STATE.unpack(facts.pop(fact))
            producer = Producer(fact[len(PRODUCER_FACT) :], float(used))
            producer.epoch, producer.next, producer.digest = epoch, next, digest
            found.append(producer)
        for producer in sorted(found, key=lambda each: each.used):
            self.by_key[producer.key] = producer

    def refusal(self, client: Client, properties: Properties) -> str:
        """Why this CONNECT cannot be one of a producer; "" if it can, or is none."""
        named = named_by(properties)
        if named is None:
            return ""
        if self.shared:
            return (
                "several nodes share this port (reuse_port, serve --workers), but only one of them knows the "
                "producer; connect to a port of one node"
            )
        if len(self.by_key) >= self.ctx.limits.producers and key_of(client, named[0]) not in self.by_key:
            return "producer limit reached (limits.producers)"
        return ""

    def begin(self, client: Client, properties: Properties, agreed: Properties) -> None:
        """A connection is accepted: if it is a producer's, add the CONNACK properties to ``agreed``."""
        named = named_by(properties)
        if named is None:
            return
        name, epoch = named
        key = key_of(client, name)
        producer = self.by_key.pop(key, None) or Producer(key, self.ctx.now)
        self.by_key[key] = producer
        producer.used = self.ctx.now
        here = epoch == producer.epoch
        next = producer.next if here else 0
        digest = producer.digest if here else 0
        client.production = Production(producer, epoch, next, digest)
        told = [(NEXT, progress(producer, epoch)), (DIGEST, f"{digest:08x}"), (NODE, self.node)]
        for other in others_of(properties):
            told.append((ALSO, f"{progress(self.by_key.get(key_of(client, other)), epoch)} {other}"))
        agreed[USER_PROPERTY] = told

    def publish(self, production: Production, number: int, digest: int, message: Message) -> None:
        """The message is routed. The state is stored together with it."""
        producer = production.producer
        producer.epoch = production.epoch
        producer.next = number + 1
        producer.digest = digest
        producer.used = self.ctx.now
        if self.ctx.recording:
            self.ctx.write(Write(PRODUCER_PUT, topic=producer.key, message=message, value=producer.state()))

    def log(self, name: str) -> Producer:
        """The producer of a log: the bridge, a slash, and its name there."""
        key = LOG + name.encode()
        producer = self.by_key.get(key)
        if producer is None:
            producer = self.by_key[key] = Producer(key, self.ctx.now)
        return producer

    def position(self, name: str) -> int:
        """The epoch of the producer of a log; 0 if nothing was published."""
        producer = self.by_key.get(LOG + name.encode())
        return 0 if producer is None else producer.epoch

    def forget_logs(self, bridges: Iterable[str]) -> None:
        """Remove the producers of logs, except those of these bridges."""
        kept = {LOG + bridge.encode() for bridge in bridges}
        for key in [key for key in self.by_key if key.startswith(LOG) and key[: key.find(b"/", len(LOG))] not in kept]:
            self._remove(key)

    def tick(self) -> None:
        """From time to time: remove producers that have not been used for long."""
        now = self.ctx.now
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        oldest: list[Producer] = []
        for producer in self.by_key.values():
            if len(oldest) == LOOK_PIECE:
                break
            oldest.append(producer)
        before = now - self.ctx.limits.producer_expiry
        for producer in oldest:
            if producer.used > before:
                break
            if producer.key.startswith(LOG):
                self.by_key[producer.key] = self.by_key.pop(producer.key)  # the next search begins with others
            else:
                self._remove(producer.key)

    def _remove(self, key: bytes) -> None:
        del self.by_key[key]
        if self.ctx.recording:
            self.ctx.write(Write(FACT_DELETE, topic=PRODUCER_FACT + key))


def progress(producer: Producer | None, epoch: int) -> str:
    """How many messages of this epoch have arrived, as CONNACK says it."""
    if producer is None or producer.epoch < epoch:
        return "0"
    return str(producer.next) if producer.epoch == epoch else "done"


def others_of(properties: Properties) -> list[str]:
    """The other producers that a CONNECT asks for."""
    pairs = properties.get(USER_PROPERTY)
    names: list[str] = []
    if isinstance(pairs, list):
        for pair in pairs:
            if isinstance(pair, tuple) and pair[0] == ALSO:
                names.append(pair[1])
    return names


def named_by(properties: Properties) -> tuple[str, int] | None:
    """Name and epoch of the producer whose CONNECT has these properties; None for other clients. Raises
    ProtocolError."""
    pairs = properties.get(USER_PROPERTY)
    name = epoch = ""
    if isinstance(pairs, list):
        for pair in pairs:
            if isinstance(pair, tuple):
                if pair[0] == PRODUCER:
                    name = pair[1]
                elif pair[0] == EPOCH:
                    epoch = pair[1]
    if not name:
        return None
    number = int(epoch) if epoch.isdecimal() and len(epoch) < 20 else -1
    if len(name.encode()) > NAME_BYTES_MAX or not 0 <= number <= EPOCH_MAX:
        raise ProtocolError(
            f"{PRODUCER} may have at most {NAME_BYTES_MAX} bytes, and needs the property {EPOCH}, a number"
        )
    others = others_of(properties)
    if len(others) > ALSO_MAX or any(len(other.encode()) > NAME_BYTES_MAX for other in others):
        raise ProtocolError(f"at most {ALSO_MAX} properties {ALSO}, with at most {NAME_BYTES_MAX} bytes each")
    return name, number


def key_of(client: Client, name: str) -> bytes:
    return b"%b\0%b" % (client.username.encode(), name.encode())
