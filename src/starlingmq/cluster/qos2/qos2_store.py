"""QoS 2 handshakes of clients that went to another node: the handshakes that each of their stays has left here.

A stay is the time from a client's connection to a node until its connection to another one. Its epoch is the last one
by which the node owned the client id, so of two stays the one with the higher epoch is the later one, on whatever node.
Handshakes belong to the stay in which their PUBLISH arrived (``core.context.remote_qos2`` describes where to look), and
continue as they would have::

    HELD      --release--> COMPLETED  this node routes the message
    HELD      --cancel --> unknown    the client has published it again at another node
    COMPLETED --cancel --> unknown
    HELD, COMPLETED --``memory`` seconds after the stay--> unknown; HELD messages are counted as dropped

``await_rel_timeout`` does not apply here: while the client is away, its handshakes live as long as its session, and
this node only knows that the session is elsewhere.

Invariants:

- A question by the owner of epoch *e* is answered from stays before *e*, and not before the ``floor`` of its session
  (its clean start). Of several stays, the latest one that has the packet id counts.
- A message is routed in the turn whose commit makes its handshake COMPLETED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from starlingmq.cluster.qos2.stay_values import StayValue, decode_stay, encode_stay
from starlingmq.core.messages.message import Message
from starlingmq.core.session.qos import Inbound
from starlingmq.core.turn.timers import TimerWheel

UNKNOWN: Final = 0
HELD: Final = 1
COMPLETED: Final = 2
LATER: Final = 3  # this cannot be answered or done at the moment

STAYS_MAX: Final = 8  # kept for a client; a client repeats a PUBREL as soon as it connects elsewhere
SWEEP_AT_ONCE: Final = 500
FACTS: Final = b"q"  # prefix of the keys of all facts of this module
STAY: Final = FACTS + b"s"  # epoch, client id: end of the stay, the packet ids completed by then
HANDSHAKE: Final = FACTS + b"h"  # epoch, packet id, client id: the message; empty: completed after the stay
NUMBER: Final = 8  # bytes of an epoch in a key

Answer = tuple[int, int]  # kind, epoch of the stay
NOTHING: Final[Answer] = (UNKNOWN, 0)

_encode: Any = msgspec.msgpack.encode
_decode_message: Any = msgspec.msgpack.Decoder(tuple[float, bytes, bytes, int, bool, bytes, float, str, float]).decode


class Qos2Entry:
    client_id: str
    epoch: int
    inbound: Inbound
    owner: str | None  # the session's user: questions of other users do not find the stay
    ended_at: float
    kept: dict[int, None]  # packet ids with a fact of their own: held when the stay ended

    def __init__(self, client_id: str, epoch: int, inbound: Inbound, ended_at: float, owner: str | None = None) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.inbound = inbound
        self.owner = owner
        self.ended_at = ended_at
        self.kept = {}

    def is_of(self, user: str | None) -> bool:
        return user is None or self.owner is None or self.owner == user


class Qos2Store:
    """``route`` routes a message, ``store`` writes a fact (None deletes it), ``drop`` counts dropped messages of a
    client."""

    memory: float  # seconds

    def __init__(
        self,
        route: Callable[[Message], None],
        store: Callable[[bytes, bytes | None], None],
        drop: Callable[[str, int], None],
        memory: float,
    ) -> None:
        self._route = route
        self._store = store
        self._drop = drop
        self.memory = memory
        self._stays: dict[str, list[Qos2Entry]] = {}  # by client id, by ascending epoch
        self._wheel = TimerWheel()

    def __len__(self) -> int:
        return sum([len(stays) for stays in self._stays.values()])

    # A stay ends

    def leave(self, client_id: str, epoch: int, inbound: Inbound, now: float, owner: str | None = None) -> None:
        """The client has gone to another node: its held and completed handshakes stay here."""
        for earlier in self._stays.get(client_id, ()):
            if earlier.epoch == epoch:  # it was leaving before, for a node that was forgotten
                _merge(inbound, earlier.inbound)
                earlier.inbound = Inbound()
                self._forget(earlier)
                break
        stay = Qos2Entry(client_id, epoch, inbound, now, owner)
        for packet_id, entry in inbound.entries.items():
            if entry.message is not None:
                entry.message = entry.message.copy()  # the session's own storage of it will be gone
                stay.kept[packet_id] = None
                self._store(_handshake_key(stay, packet_id), _message_fact(entry.message, entry.since))
        self._store(_stay_key(stay), _stay_fact(stay))
        self._put(stay)

    def _put(self, stay: Qos2Entry) -> None:
        stays = self._stays.setdefault(stay.client_id, [])
        stays.append(stay)
        stays.sort(key=_epoch)
        self._wheel.add(stay, stay.ended_at + self.memory)
        if len(stays) > STAYS_MAX:
            self._forget(stays[0])

    def restore(self, facts: dict[bytes, bytes]) -> None:
        """Restores the stays that an earlier incarnation of this node stored."""
        found: dict[bytes, Qos2Entry] = {}
        for key, value in facts.items():
            if key.startswith(STAY):
                known = decode_stay(value)
                ended_at, completed = known.ended_at, known.completed
                inbound = Inbound()
                for at in range(0, len(completed), 2):
                    inbound.answered(int.from_bytes(completed[at : at + 2], "big"), ended_at)
                epoch, client_id = key[len(STAY) :][:NUMBER], key[len(STAY) + NUMBER :]
                stay = Qos2Entry(
                    client_id.decode(),
                    int.from_bytes(epoch, "big"),
                    inbound,
                    ended_at,
                    known.owner if known.owned else None,
                )
                found[epoch + client_id] = stay
        for key, value in facts.items():
            if key.startswith(HANDSHAKE):
                epoch, rest = key[len(HANDSHAKE) :][:NUMBER], key[len(HANDSHAKE) + NUMBER :]
                of = found.get(epoch + rest[2:])
                if of is None:
                    continue
                packet_id = int.from_bytes(rest[:2], "big")
                if value:
                    since, message = _message(value)
                    of.inbound.hold(packet_id, message, since)
                else:
                    of.inbound.answered(packet_id, of.ended_at)
                of.kept[packet_id] = None
        for stay in sorted(found.values(), key=_epoch):
            self._put(stay)

    # Questions

    def look(self, client_id: str, packet_id: int, before: int, floor: int, user: str | None = None) -> Answer:
        """The state of a handshake in stays before epoch ``before`` and not before ``floor``, of that user (None:
        any)."""
        stay = self._find(client_id, packet_id, before, floor, user)
        if stay is None:
            return NOTHING
        return (HELD if stay.inbound.holds(packet_id) else COMPLETED, stay.epoch)

    def release(
        self,
        client_id: str,
        packet_id: int,
        before: int,
        floor: int,
        bound: int,
        now: float,
        user: str | None = None,
    ) -> Answer:
        """Like ``look``. If the handshake is HELD since ``bound`` or later, its message is routed now."""
        stay = self._find(client_id, packet_id, before, floor, user)
        if stay is None:
            return NOTHING
        if not stay.inbound.holds(packet_id):
            return (COMPLETED, stay.epoch)
        if stay.epoch < bound:
            return (HELD, stay.epoch)
        message = stay.inbound.release(packet_id, now)
        assert message is not None
        self._route(message)
        self._store(_handshake_key(stay, packet_id), b"")
        return (COMPLETED, stay.epoch)

    def cancel(self, client_id: str, packet_id: int, before: int, user: str | None = None) -> None:
        """The client has reused the packet id at another node, since epoch ``before``."""
        for stay in list(self._stays.get(client_id, ())):
            if stay.epoch >= before or packet_id not in stay.inbound.entries or not stay.is_of(user):
                continue
            if not stay.inbound.abandon(packet_id):
                del stay.inbound.entries[packet_id]
            kept = packet_id in stay.kept
            if kept:
                self._lose(stay, packet_id)
            if not stay.inbound.entries:
                self._forget(stay)
            elif not kept:
                self._store(_stay_key(stay), _stay_fact(stay))

    def newest(self, client_id: str, before: int, floor: int, user: str | None = None) -> int:
        """The epoch of the latest of those stays that has left anything; 0: none."""
        for stay in reversed(self._stays.get(client_id, [])):
            if floor <= stay.epoch < before and stay.is_of(user):
                return stay.epoch
        return 0

    def _find(self, client_id: str, packet_id: int, before: int, floor: int, user: str | None) -> Qos2Entry | None:
        for stay in reversed(self._stays.get(client_id, [])):
            if floor <= stay.epoch < before and packet_id in stay.inbound.entries and stay.is_of(user):
                return stay
        return None

    # Time

    def sweep(self, now: float) -> None:
        """Forgets stays that ended too long ago."""
        for item in self._wheel.due(now, SWEEP_AT_ONCE):
            assert isinstance(item, Qos2Entry)
            self._forget(item)

    def _forget(self, stay: Qos2Entry) -> None:
        self._wheel.remove(stay, stay.ended_at + self.memory)
        stays = self._stays[stay.client_id]
        stays.remove(stay)
        if not stays:
            del self._stays[stay.client_id]
        if stay.inbound.held:
            self._drop(stay.client_id, stay.inbound.held)
        for packet_id in list(stay.kept):
            self._lose(stay, packet_id)
        self._store(_stay_key(stay), None)

    def _lose(self, stay: Qos2Entry, packet_id: int) -> None:
        stay.kept.pop(packet_id, None)
        self._store(_handshake_key(stay, packet_id), None)

    def wake_at(self) -> float:
        """When ``sweep`` has something to do; 0.0: never."""
        return self._wheel.wake_at()


def _epoch(stay: Qos2Entry) -> int:
    return stay.epoch


def _stay_key(stay: Qos2Entry) -> bytes:
    return STAY + stay.epoch.to_bytes(NUMBER, "big") + stay.client_id.encode()


def _handshake_key(stay: Qos2Entry, packet_id: int) -> bytes:
    return HANDSHAKE + stay.epoch.to_bytes(NUMBER, "big") + packet_id.to_bytes(2, "big") + stay.client_id.encode()


def _stay_fact(stay: Qos2Entry) -> bytes:
    return encode_stay(StayValue(stay.ended_at, _completed(stay), stay.owner is not None, stay.owner or ""))


def _completed(stay: Qos2Entry) -> bytes:
    """The packet ids that were completed when the stay ended."""
    return b"".join([packet_id.to_bytes(2, "big") for packet_id in stay.inbound.entries if packet_id not in stay.kept])


def _merge(inbound: Inbound, earlier: Inbound) -> None:
    for packet_id, entry in earlier.entries.items():
        if packet_id not in inbound.entries:
            if entry.message is not None:
                inbound.hold(packet_id, entry.message, entry.since)
            else:
                inbound.answered(packet_id, entry.since)


def _message_fact(message: Message, since: float) -> bytes:
    return bytes(
        _encode(
            (
                since,
                message.topic,
                message.payload,
                message.qos,
                message.retain,
                message.properties,
                message.expires_at,
                message.publisher,
                message.published_at,
            )
        )
    )


def _message(fact: bytes) -> tuple[float, Message]:
    since, topic, payload, qos, retain, properties, expires_at, publisher, published_at = _decode_message(fact)
    return since, Message(topic, payload, qos, retain, properties, expires_at, publisher, published_at)
