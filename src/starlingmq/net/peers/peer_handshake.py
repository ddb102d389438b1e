"""The handshake in which two nodes prove to each other that they know the secret: bytes in, bytes out
(net/peers/peer_server.py transports them).

All of it travels in the metadata of two calls on one connection. gRPC limits metadata (``METADATA_BYTES_MAX``) and
holds messages back until the handler reads them, so a stranger cannot make the node read a message.

1. Call ``Challenge``. The dialler sends ``hello``: its name, the node it wants, its protocol versions, a nonce. The
   listener answers with ``challenge``: its name, the highest version that both speak, a nonce; and with a ``ticket``,
   which seals hello, challenge, the address of the dialler and a time. The listener keeps no state for a stranger.
2. Call ``Join``. The dialler sends hello, challenge and ticket again, and its ``proof``. The listener checks the
   ticket, then the proof, and answers with its own proof (``accepted``). Then the dialler sends envelopes.

A proof is the HMAC-SHA256, under the secret, of the side that makes it and of hello and challenge as they were sent:
names, cluster, numbers, incarnations, nonces and versions. So a proof is useless in the other direction (reflection),
to another node or process, or with another version (downgrade). A ticket is valid once, for ``TICKET_SECONDS``, from
the address that it was issued to, so a recorded proof is useless too (replay). The secret does not protect the bytes
after the handshake: TLS does. Every holder of the secret may claim to be any node.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from starlingmq.names import plain_name
from starlingmq.net.proto import peers_pb2 as pb

VERSION_MIN: Final = 2
VERSION_MAX: Final = 2
NONCE_BYTES: Final = 32
TICKET_SECONDS: Final = 10.0
METADATA_BYTES_MAX: Final = 8192
PART_BYTES_MAX: Final = 1024  # of hello and of challenge
SEAL_BYTES: Final = 32

# Keys of metadata; gRPC accepts bytes under keys that end with -bin.
HELLO: Final = "hello-bin"
CHALLENGE: Final = "challenge-bin"
TICKET: Final = "ticket-bin"
PROOF: Final = "proof-bin"
ACCEPTED: Final = "accepted-bin"

Parts = Mapping[str, bytes]
Metadata = Iterable[tuple[str, str | bytes]]


class RefusedError(Exception):
    """The handshake failed; the message is one line with the reason."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that a node claims. ``secret`` never travels; it is empty when the cluster has none."""

    cluster: str
    name: str
    number: int
    incarnation: int
    software: str
    secret: bytes
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX


@dataclass(frozen=True, slots=True)
class Proved:
    """A dialler that has proved that it knows the secret. ``accepted`` is the listener's answer."""

    name: str
    number: int
    incarnation: int
    version: int
    accepted: bytes


class Dialling:
    """The side that dials node ``target``: ``hello``, ``proof``, ``finish``, in this order."""

    def __init__(self, me: Identity, target: int, nonce: bytes) -> None:
        self.me = me
        self.target = target
        self._hello = pb.Hello(
            cluster=me.cluster,
            name=me.name,
            number=me.number,
            incarnation=me.incarnation,
            version_min=me.version_min,
            version_max=me.version_max,
            nonce=nonce,
            target=target,
            software=me.software,
        ).SerializeToString()
        self._challenge = b""
        self.version = 0
        self.incarnation = 0  # of the listener

    def hello(self) -> dict[str, bytes]:
        """Metadata of the call ``CHALLENGE``."""
        return {HELLO: self._hello}

    def proof(self, answer: Parts) -> dict[str, bytes]:
        """Metadata of the call ``CONNECT``, from the listener's answer to the first call. Raises RefusedError."""
        encoded, ticket = answer.get(CHALLENGE, b""), answer.get(TICKET, b"")
        challenge = _challenge(encoded)
        if len(challenge.nonce) != NONCE_BYTES or not plain_name(challenge.name) or not ticket:
            raise RefusedError("it does not speak the protocol between nodes")
        if challenge.number != self.target:
            raise RefusedError(
                f"the node there is {challenge.name} (number {challenge.number}), not number {self.target}"
            )
        if not self.me.version_min <= challenge.version <= self.me.version_max:
            raise RefusedError(f"it selected protocol version {challenge.version}, which this node does not support")
        self.version = challenge.version
        self.incarnation = challenge.incarnation
        self._challenge = encoded
        proof = _proof(b"dialler", self.me.secret, self._hello, encoded)
        return {HELLO: self._hello, CHALLENGE: encoded, TICKET: ticket, PROOF: proof}

    def finish(self, answer: Parts) -> None:
        """Checks the listener's answer to the second call. Raises RefusedError."""
        expected = _proof(b"listener", self.me.secret, self._hello, self._challenge)
        if not hmac.compare_digest(answer.get(ACCEPTED, b""), expected):
            raise RefusedError("it does not know the cluster secret; set the same cluster.secret on all nodes")


class Answering:
    """The listening side, for all nodes that dial it. ``key`` seals tickets and never leaves the process."""

    def __init__(self, me: Identity, key: bytes) -> None:
        self.me = me
        self._key = key
        self._used: dict[bytes, float] = {}  # tickets that came with a valid proof -> when they expire

    def challenge(self, told: Parts, peer: str, nonce: bytes, now: float) -> dict[str, bytes]:
        """The answer to the call ``CHALLENGE`` from ``peer``. Raises RefusedError."""
        encoded = told.get(HELLO, b"")
        hello = _hello(encoded)
        me = self.me
        if len(hello.nonce) != NONCE_BYTES or not hello.number or not plain_name(hello.name):
            raise RefusedError("not a valid handshake of a node")
        if hello.cluster != me.cluster:
            other = hello.cluster if plain_name(hello.cluster) else "another cluster"
            raise RefusedError(
                f"node {me.name} belongs to cluster {me.cluster}, node {hello.name} to {other}; set the same "
                "cluster.name on both"
            )
        if hello.target != me.number:
            raise RefusedError(f"this node is {me.name} (number {me.number}), not number {hello.target}")
        version = min(me.version_max, hello.version_max)
        if version < max(me.version_min, hello.version_min):
            raise RefusedError(
                f"node {me.name} supports protocol versions {me.version_min} to {me.version_max}, node "
                f"{hello.name} {hello.version_min} to {hello.version_max}; upgrade the older one"
            )
        challenge = pb.Challenge(
            version=version,
            name=me.name,
            number=me.number,
            incarnation=me.incarnation,
            nonce=nonce,
            software=me.software,
        ).SerializeToString()
        until = int((now + TICKET_SECONDS) * 1000).to_bytes(8, "big")
        return {CHALLENGE: challenge, TICKET: until + self._seal(until, peer, encoded, challenge)}

    def admit(self, told: Parts, peer: str, now: float) -> Proved:
        """Checks the call ``CONNECT`` from ``peer``. Raises RefusedError."""
        encoded, challenge = told.get(HELLO, b""), told.get(CHALLENGE, b"")
        ticket, proof = told.get(TICKET, b""), told.get(PROOF, b"")
        until, seal = ticket[:8], ticket[8:]
        if not hmac.compare_digest(seal, self._seal(until, peer, encoded, challenge)):
            raise RefusedError("not a valid handshake of a node")
        if int.from_bytes(until, "big") <= now * 1000:
            raise RefusedError("its handshake timed out")
        hello, answered = _hello(encoded), _challenge(challenge)
        if not hmac.compare_digest(proof, _proof(b"dialler", self.me.secret, encoded, challenge)):
            raise RefusedError(
                f"node {hello.name} does not know the cluster secret; set the same cluster.secret on all nodes"
            )
        self._used = {each: time for each, time in self._used.items() if time > now}
        if seal in self._used:
            raise RefusedError(f"node {hello.name} sent a proof that was used before")
        self._used[seal] = now + TICKET_SECONDS
        accepted = _proof(b"listener", self.me.secret, encoded, challenge)
        return Proved(hello.name, hello.number, hello.incarnation, answered.version, accepted)

    def _seal(self, until: bytes, peer: str, hello: bytes, challenge: bytes) -> bytes:
        return _digest(self._key, (b"starlingmq ticket", until, peer.encode(), hello, challenge))


def parts(metadata: Metadata | None) -> dict[str, bytes]:
    """The keys of the handshake in metadata, if they are short enough."""
    return {
        key: value
        for key, value in metadata or ()
        if key in (HELLO, CHALLENGE, TICKET, PROOF, ACCEPTED)
        and isinstance(value, bytes)
        and len(value) <= PART_BYTES_MAX
    }


def _proof(side: bytes, secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    return _digest(secret, (b"starlingmq peers", side, hello, challenge))


def _digest(key: bytes, texts: tuple[bytes, ...]) -> bytes:
    return hmac.digest(key, b"".join(len(text).to_bytes(4, "big") + text for text in texts), "sha256")


def _hello(data: bytes) -> pb.Hello:
    try:
        return pb.Hello.FromString(data)
    except DecodeError:
        raise RefusedError("not a valid handshake of a node") from None


def _challenge(data: bytes) -> pb.Challenge:
    try:
        return pb.Challenge.FromString(data)
    except DecodeError:
        raise RefusedError("it does not speak the protocol between nodes") from None
