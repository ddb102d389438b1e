"""Publications that are numbered: who publishes them again, because it does not know what became of them, publishes
nothing twice.

A producer is a name, under which messages are published in epochs (of a Spark sink: a partition of a query, in its
batches). Within an epoch messages are numbered from 0, and whoever tries an epoch again has the same ones in the same
order. Spoken in User Properties of MQTT 5, so that nothing is added to a PUBLISH, nor passed on::

    CONNECT   starlingmq-producer: NAME, starlingmq-epoch: E
    CONNACK   starlingmq-next: N, starlingmq-digest: D    N messages of E are here, and D is the digest over them
              starlingmq-node: NAME                       which node this is: no other one knows

The first PUBLISH on this connection is then number N of epoch E, the next one N+1. Of each the law is::

    epoch and number               QoS 1, 2                          QoS 0
    the next one                   published, and known from now on  the same
    an earlier one                 acknowledged, not published       not published
    ... the last one, and another  refused: 0x99                     not published
    a later one                    refused: 0x83 (2: PUBCOMP 0x92)   published: what lies between is lost

A later one means that the one before it was refused: nothing may be left out, for it would count as published. An epoch
above the producer's begins with number 0; one below it is done. At QoS 2 a message counts when it goes its way, at
PUBREL. What is known of a producer goes into the journal in the record of the message itself, so no crash can keep one
without the other; and CONNACK waits until what it tells is stored.

A producer has no session that lasts: what is sent again on its next connection would get other numbers. A name is one
user's. It is forgotten ``limits.producer_expiry`` after its last connection or message.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context import Context
from starlingmq.core.message import Message
from starlingmq.core.ready import FACT_DELETE, PRODUCER_PUT, Write
from starlingmq.core.session.production import STATE, Producer, Production
from starlingmq.core.session.session import Client
from starlingmq.wire.producer_properties import DIGEST, EPOCH, NEXT, NODE, PRODUCER
from starlingmq.wire.properties import USER_PROPERTY, Properties
from starlingmq.wire.reasons import ProtocolError

PRODUCER_FACT: Final = b"producer/"  # and its key: a fact, what is known of it
NAME_BYTES_MAX: Final = 256
EPOCH_MAX: Final = (1 << 63) - 1
LOOK_SECONDS: Final = 60.0  # between two looks at who may be forgotten
LOOK_PIECE: Final = 1000


def later_state(one: bytes, other: bytes) -> bytes:
    """Of two states of a producer the one that came later: epoch and number only rise."""
    return one if one[:16] >= other[:16] else other


class Producers:
    ctx: Context
    by_key: dict[bytes, Producer]  # about in the order of their last use
    shared: bool  # clients that come back to the same address may come to another node
    node: str  # the name of this one
    _look_at: float

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.by_key = {}
        self.shared = False
        self.node = ""
        self._look_at = 0.0

    def restore(self, facts: dict[bytes, bytes]) -> None:
        """Take what the store gives back out of its facts."""
        found: list[Producer] = []
        for fact in [fact for fact in facts if fact.startswith(PRODUCER_FACT)]:
            epoch, next, digest, used = STATE.unpack(facts.pop(fact))
            producer = Producer(fact[len(PRODUCER_FACT) :], float(used))
            producer.epoch, producer.next, producer.digest = epoch, next, digest
            found.append(producer)
        for producer in sorted(found, key=lambda each: each.used):
            self.by_key[producer.key] = producer

    def refusal(self, client: Client, properties: Properties) -> str:
        """Why this CONNECT can not be a producer's; "" if it can, or is none."""
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
        """A connection is accepted: if it is a producer's, ``agreed`` gets what it is to know."""
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
        told = "done" if epoch < producer.epoch else str(next)
        agreed[USER_PROPERTY] = [(NEXT, told), (DIGEST, f"{digest:08x}"), (NODE, self.node)]

    def publish(self, production: Production, number: int, digest: int, message: Message) -> None:
        """It goes its way: that and what is written now is one."""
        producer = production.producer
        producer.epoch = production.epoch
        producer.next = number + 1
        producer.digest = digest
        producer.used = self.ctx.now
        if self.ctx.recording:
            self.ctx.write(Write(PRODUCER_PUT, topic=producer.key, message=message, value=producer.state()))

    def tick(self) -> None:
        """Now and then: forget who has not been heard of for long."""
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
            del self.by_key[producer.key]
            if self.ctx.recording:
                self.ctx.write(Write(FACT_DELETE, topic=PRODUCER_FACT + producer.key))


def named_by(properties: Properties) -> tuple[str, int] | None:
    """Name and epoch of the producer whose CONNECT has these properties; None for all others. Raises ProtocolError."""
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
    return name, number


def key_of(client: Client, name: str) -> bytes:
    return b"%b\0%b" % (client.username.encode(), name.encode())
