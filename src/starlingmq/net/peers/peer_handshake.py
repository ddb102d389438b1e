"""The handshake in which two nodes prove to each other that they know the secret: bytes in, bytes out
(net/peers/peer_connection.py transports them).

It is four messages at the beginning of each connection:

    dialler                                   listener
      | -- hello ----------------------------> |   who it is, whom it wants, its protocol versions, what for, a nonce
      | <--------------------------- challenge |   who it is, the highest version that both speak, a nonce
      | -- proof ----------------------------> |
      | <---------------------------- accepted |   the listener's own proof

A proof is the HMAC-SHA256, under the secret, of the side that makes it and of hello and challenge as they were sent:
names, cluster, numbers, incarnations, nonces, versions and purpose. So a proof is useless in the other direction
(reflection), to another node or process, with another version (downgrade), or on another connection, which has other
nonces (replay). The secret does not protect the bytes after the handshake: TLS does. Every holder of the secret may
claim to be any node.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

import msgspec

from starlingmq.cluster.links.control_frames import Number
from starlingmq.config.plain_names import plain_name

VERSION_MIN: Final = 5
VERSION_MAX: Final = 5
NONCE_BYTES: Final = 32
MESSAGE_BYTES_MAX: Final = 1024  # of each of the four

# The purpose of a connection.
JOIN: Final = "join"  # envelopes from the dialler
HOLD: Final = "hold"  # nothing: it ends with the process (net/peers/process_watch.py)
COPY: Final = "copy"  # copies of the dialler's data (net/peers/copy_link.py)
PURPOSES: Final = (JOIN, HOLD, COPY)


class DiallerHello(msgspec.Struct, array_like=True, frozen=True):
    """Fields are only ever added at the end of this and of ``Challenge``, and those that are not known are ignored."""

    cluster: str
    name: str
    number: Number
    incarnation: Number
    version_min: Number  # of this protocol, that the dialler speaks
    version_max: Number
    nonce: bytes
    target: Number  # number of the node that it means to reach
    software: str
    purpose: str


class Challenge(msgspec.Struct, array_like=True, frozen=True):
    version: Number  # the highest that both speak
    name: str
    number: Number
    incarnation: Number
    nonce: bytes
    software: str


MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_encode = msgspec.msgpack.encode
_hello = msgspec.msgpack.Decoder(DiallerHello)
_challenge = msgspec.msgpack.Decoder(Challenge)


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
    purpose: str
    accepted: bytes


class Dialling:
    """The side that dials node ``target``: ``hello``, ``proof``, ``finish``, in this order."""

    def __init__(self, me: Identity, target: int, nonce: bytes, purpose: str) -> None:
        self.me = me
        self.target = target
        versions = me.version_min, me.version_max
        self.hello = _encode(
            DiallerHello(me.cluster, me.name, me.number, me.incarnation, *versions, nonce, target, me.software, purpose)
        )
        self._challenge = b""
        self.version = 0
        self.incarnation = 0  # of the listener

    def proof(self, message: bytes) -> bytes:
        """The answer to the listener's challenge. Raises RefusedError."""
        try:
            challenge = _challenge.decode(message)
        except MALFORMED:
            raise RefusedError("it does not speak the protocol between nodes") from None
        if len(challenge.nonce) != NONCE_BYTES or not plain_name(challenge.name):
            raise RefusedError("it does not speak the protocol between nodes")
        if challenge.number != self.target:
            raise RefusedError(
                f"the node there is {challenge.name} (number {challenge.number}), not number {self.target}"
            )
        if not self.me.version_min <= challenge.version <= self.me.version_max:
            raise RefusedError(f"it selected protocol version {challenge.version}, which this node does not support")
        self.version = challenge.version
        self.incarnation = challenge.incarnation
        self._challenge = message
        return _proof(b"dialler", self.me.secret, self.hello, message)

    def finish(self, accepted: bytes) -> None:
        """Checks the listener's proof. Raises RefusedError."""
        expected = _proof(b"listener", self.me.secret, self.hello, self._challenge)
        if not hmac.compare_digest(accepted, expected):
            raise RefusedError("it does not know the cluster secret; set the same cluster.secret on all nodes")


class Answering:
    """The listening side of one connection: ``challenge``, ``admit``, in this order, each once."""

    def __init__(self, me: Identity, nonce: bytes) -> None:
        self.me = me
        self._nonce = nonce
        self._message = b""
        self._hello: DiallerHello | None = None
        self._challenge = b""
        self._version = 0

    def challenge(self, message: bytes) -> bytes:
        """The answer to ``hello``. Raises RefusedError."""
        me = self.me
        try:
            hello = _hello.decode(message)
        except MALFORMED:
            raise RefusedError("not a valid handshake of a node") from None
        valid = len(hello.nonce) == NONCE_BYTES and hello.purpose in PURPOSES
        if not valid or not hello.number or not plain_name(hello.name):
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
        self._message, self._hello, self._version = message, hello, version
        self._challenge = _encode(Challenge(version, me.name, me.number, me.incarnation, self._nonce, me.software))
        return self._challenge

    def admit(self, proof: bytes) -> Proved:
        """Checks the dialler's proof. Raises RefusedError."""
        hello, secret = self._hello, self.me.secret
        if hello is None:
            raise RefusedError("not a valid handshake of a node")
        if not hmac.compare_digest(proof, _proof(b"dialler", secret, self._message, self._challenge)):
            raise RefusedError(
                f"node {hello.name} does not know the cluster secret; set the same cluster.secret on all nodes"
            )
        accepted = _proof(b"listener", secret, self._message, self._challenge)
        return Proved(hello.name, hello.number, hello.incarnation, self._version, hello.purpose, accepted)


def _proof(side: bytes, secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    texts = (b"starlingmq peers", side, hello, challenge)
    return hmac.digest(secret, b"".join(len(text).to_bytes(4, "big") + text for text in texts), "sha256")
