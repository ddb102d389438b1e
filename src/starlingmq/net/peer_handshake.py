"""How two nodes come to trust each other, as bytes in and bytes out; net/peers.py carries them.

1. The dialler says who it is, whom it wants and which versions it speaks, with a nonce: ``hello``.
2. The listener answers with who it is, the highest version that both speak and a nonce of its own: ``challenge``.
3. The dialler proves that it knows the cluster's secret, then the listener does: ``proof``, ``accepted``.

A proof is HMAC-SHA256, under the secret, of the side that makes it and of both messages as they were sent: names,
numbers, incarnations, nonces and versions. So neither side can be made to answer for the other, an old conversation is
of no use, and nobody in between talks the version down. It says nothing about what comes after: that is for TLS.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final, NoReturn

from google.protobuf.message import DecodeError

from starlingmq.net.proto import peers_pb2 as pb

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
NONCE_BYTES: Final = 32


class RefusedError(Exception):
    """The two nodes will not talk to each other; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a node says of itself. ``secret`` never travels; empty when the cluster has none."""

    cluster: str
    name: str
    number: int
    incarnation: int
    software: str
    secret: bytes
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX


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

    def hello(self) -> bytes:
        return pb.Dialler(hello=pb.Hello.FromString(self._hello)).SerializeToString()

    def proof(self, answer: bytes) -> bytes:
        """From the listener's challenge. Raises RefusedError."""
        message = _read_listener(answer)
        challenge = message.challenge
        if len(challenge.nonce) != NONCE_BYTES:
            raise RefusedError("it does not answer as a node would")
        if challenge.number != self.target:
            raise RefusedError(f"node {challenge.name} (number {challenge.number}) is there, not number {self.target}")
        if not self.me.version_min <= challenge.version <= self.me.version_max:
            raise RefusedError(f"it wants protocol version {challenge.version}, which this node does not speak")
        self.version = challenge.version
        self._challenge = challenge.SerializeToString()
        return pb.Dialler(proof=_proof(b"dialler", self.me.secret, self._hello, self._challenge)).SerializeToString()

    def finish(self, answer: bytes) -> None:
        """From the listener's proof. Raises RefusedError."""
        expected = _proof(b"listener", self.me.secret, self._hello, self._challenge)
        if not hmac.compare_digest(_read_listener(answer).accepted, expected):
            raise RefusedError("it does not know the secret of the cluster")


class Answering:
    """The side that listens: ``challenge``, ``accept``, in this order; then ``number`` and ``incarnation`` hold."""

    def __init__(self, me: Identity, nonce: bytes) -> None:
        self.me = me
        self._nonce = nonce
        self._hello = b""
        self._challenge = b""
        self.name = ""
        self.number = 0
        self.incarnation = 0
        self.version = 0

    def challenge(self, message: bytes) -> bytes:
        """From the dialler's hello. Raises RefusedError."""
        hello = _read_dialler(message).hello
        me = self.me
        self.name = hello.name
        if len(hello.nonce) != NONCE_BYTES or not hello.number:
            raise RefusedError("that is not how a node begins")
        if hello.cluster != me.cluster:
            raise RefusedError(f"node {me.name} is of cluster {me.cluster}, node {hello.name} of {hello.cluster}")
        if hello.target != me.number:
            raise RefusedError(f"this is node {me.name} (number {me.number}), not number {hello.target}")
        version = min(me.version_max, hello.version_max)
        if version < max(me.version_min, hello.version_min):
            raise RefusedError(
                f"node {me.name} speaks protocol versions {me.version_min} to {me.version_max}, "
                f"node {hello.name} {hello.version_min} to {hello.version_max}; upgrade the older one"
            )
        self.number, self.incarnation, self.version = hello.number, hello.incarnation, version
        challenge = pb.Challenge(
            version=version,
            name=me.name,
            number=me.number,
            incarnation=me.incarnation,
            nonce=self._nonce,
            software=me.software,
        )
        self._hello, self._challenge = hello.SerializeToString(), challenge.SerializeToString()
        return pb.Listener(challenge=challenge).SerializeToString()

    def accept(self, message: bytes) -> bytes:
        """From the dialler's proof. Raises RefusedError."""
        expected = _proof(b"dialler", self.me.secret, self._hello, self._challenge)
        if not hmac.compare_digest(_read_dialler(message).proof, expected):
            raise RefusedError(f"node {self.name} does not know the secret of the cluster")
        accepted = _proof(b"listener", self.me.secret, self._hello, self._challenge)
        return pb.Listener(accepted=accepted).SerializeToString()


def refusal(error: RefusedError) -> bytes:
    """What the listener answers in place of anything else."""
    return pb.Listener(refused=str(error)).SerializeToString()


def _proof(side: bytes, secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    parts = (b"starlingmq peers", side, hello, challenge)
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret, text, "sha256")


def _read_dialler(data: bytes) -> pb.Dialler:
    try:
        return pb.Dialler.FromString(data)
    except DecodeError:
        _not_a_node()


def _read_listener(data: bytes) -> pb.Listener:
    try:
        message = pb.Listener.FromString(data)
    except DecodeError:
        _not_a_node()
    if message.refused:
        raise RefusedError(" ".join(message.refused.split())[:300])
    return message


def _not_a_node() -> NoReturn:
    raise RefusedError("what it says can not be read") from None
