"""The cluster port, before and after the secret: handshakes, messages as bytes, and envelopes, nearly right.

Before: nothing but the project's own refusal comes of what a stranger says, and nothing of it is a proof. After: a
message is envelopes or a FrameError, and no more envelopes than bytes.
"""

from __future__ import annotations

from random import Random
from typing import Final

from starlingmq.cluster.links.control_frames import (
    Allotment,
    GroupPull,
    GroupReport,
    GroupState,
    HandshakeAnswer,
    HandshakeCall,
    HandshakeQuestion,
    HandshakeReply,
    Heartbeat,
    MemberInfo,
    Membership,
    OperatorCall,
    OperatorReply,
    Pull,
    RouteSnapshot,
    SyncRequest,
)
from starlingmq.cluster.links.peer_frames import Body, Data, DataAck, Envelope, RouteApplied, RouteRecords
from starlingmq.cluster.links.record_bytes import PackedRecords, RouteRecord
from starlingmq.net.peers.peer_codec import FrameError, encode, join, split
from starlingmq.net.peers.peer_handshake import JOIN, NONCE_BYTES, Answering, Dialling, Identity, RefusedError
from starlingmq.net.peers.peer_wire import MessageReader, WireError, ending, framed

STEPS: Final = 60
TELLING: Final = (0x00, 0x01, 0x0A, 0x7F, 0x80, 0xFF)
LIMIT: Final = 1000  # bytes of a message
ONE: Final = Identity("flock", "one", 1, 5, "0.1", b"0123456789abcdef")
TWO: Final = Identity("flock", "two", 2, 7, "0.1", b"0123456789abcdef")
STRANGER: Final = Identity("flock", "one", 1, 5, "0.1", b"fedcba9876543210")
MEMBERS: Final = Membership(3, (MemberInfo("one", 1, 5, "127.0.0.1:1", "0.1", True), MemberInfo("two", 2, 7, "a:2")))
QUESTION: Final[HandshakeQuestion] = ("client", 7, 1, 2, 3)
ANSWER: Final[HandshakeAnswer] = (1, 2, 3)
BODY_SAMPLES: Final[tuple[Body, ...]] = (
    Heartbeat(
        epoch=1,
        version=2,
        vector={1: (2, 3), 2: (4, 5)},
        heard={1: 2},
        relayed={2: 3},
        connected=frozenset([1, 2]),
        serving=True,
        membership=MEMBERS,
        number=4,
        taken={2: 1},
        listeners=("mqtt://a:1",),
    ),
    RouteRecords(1, 2, PackedRecords((RouteRecord(b"a/+", 1), RouteRecord(b"$share/g/#", 2))), ((1, 1),)),
    RouteApplied(1, 2, 3),
    SyncRequest(1, 2, 3),
    RouteSnapshot(1, 2, 3, True, PackedRecords((RouteRecord(b"a/#", 1),)), 1),
    Data(1, 2, bytes(range(200))),
    DataAck(1, 2),
    HandshakeCall(1, (QUESTION,)),
    HandshakeReply(1, 2, (ANSWER,)),
    GroupPull(1, (Pull(b"g/a", 1, (Allotment(1, 2, 3, 4, 5),), True),)),
    GroupReport(1, (GroupState(b"g/a", 1, 2, 3, 4, ((1, 2),), True, 5, 6),)),
    OperatorCall(1, b'{"question":"status"}'),
    OperatorReply(1, b'{"answer":{}}'),
)
MESSAGES: Final = [join([encode(Envelope(1, 5, 2, 7, body))]) for body in BODY_SAMPLES]


def run(seed: int) -> int:
    """One episode; how many things were said. Raises AssertionError, or whatever was let through."""
    rng = Random(seed)
    for _ in range(STEPS):
        before(rng)
        wire(rng)
        after(rng)
    honest(rng)
    return 3 * STEPS


def before(rng: Random) -> None:
    """A stranger that has seen the handshake of a node, and says something like it under another secret."""
    answering = Answering(TWO, rng.randbytes(NONCE_BYTES))
    dialling = Dialling(STRANGER, 2, rng.randbytes(NONCE_BYTES), JOIN)
    try:
        challenge = answering.challenge(mutated(rng, dialling.hello, (dialling.hello,)))
        proof = dialling.proof(mutated(rng, challenge, (challenge,)))
    except RefusedError as error:
        assert str(error).isprintable(), error
        proof = rng.randbytes(rng.choice((0, 31, 32, 33)))
    try:
        answering.admit(mutated(rng, proof, (proof,)))
    except RefusedError as error:
        assert str(error).isprintable(), error
    else:
        raise AssertionError("a stranger was let in")
    try:
        dialling.finish(rng.randbytes(rng.choice((0, 31, 32, 33))))
    except RefusedError:
        return
    raise AssertionError("a stranger was taken for a node")


def wire(rng: Random) -> None:
    """Messages, nearly right, in pieces: what comes out is no longer than what went in and within the limit."""
    whole = b"".join(framed(rng.randbytes(rng.randrange(50))) for _ in range(4)) + ending("enough")
    data = mutated(rng, whole, (whole,))
    reader = MessageReader(LIMIT)
    found = 0
    try:
        while data:
            size = rng.randrange(1, len(data) + 1)
            messages = reader.feed(data[:size])
            assert all(len(message) <= LIMIT for message in messages)
            found += sum(map(len, messages))
            data = data[size:]
    except WireError as error:
        assert "\n" not in str(error), error
    assert found <= 4 * len(whole) + 4000


def after(rng: Random) -> None:
    message = b"".join(rng.choice(MESSAGES) for _ in range(rng.randrange(1, 4)))
    message = mutated(rng, message, tuple(MESSAGES))
    try:
        envelopes = split(message)
    except FrameError as error:
        assert "\n" not in str(error), error
        return
    assert len(envelopes) <= len(message)
    for envelope in envelopes:
        assert isinstance(envelope.body, Body)
        size = len(encode(envelope))
        assert size <= 4 * len(message) + 1000, "an envelope is not much more than the bytes it came in"


def honest(rng: Random) -> None:
    """A node is let in after all of it."""
    dialling = Dialling(ONE, 2, rng.randbytes(NONCE_BYTES), JOIN)
    answering = Answering(TWO, rng.randbytes(NONCE_BYTES))
    dialling.finish(answering.admit(dialling.proof(answering.challenge(dialling.hello))).accepted)


def mutated(rng: Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    """The bytes with up to three kinds of damage; one in five as they are."""
    if rng.random() < 0.2:
        return data
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(damaged) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(damaged):
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(damaged):
            damaged[at] = rng.choice(TELLING)
        elif kind == 2:
            del damaged[at:]
        elif kind == 3:
            del damaged[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 5:
            other = rng.choice(others)
            damaged[at:] = other[rng.randrange(len(other) + 1) :]
        else:
            damaged[at:at] = damaged[at : at + rng.randrange(1, 40)] * rng.choice((1, 1, 30))
    return bytes(damaged)
