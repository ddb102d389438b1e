"""The handshake of two nodes, byte for byte: who is let in, who is told why not, and what a liar gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.net.peers.peer_handshake import (
    JOIN,
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    Answering,
    Challenge,
    Dialling,
    Identity,
    Proved,
    RefusedError,
)

ONE: Final = Identity("flock", "one", 1, 5, "0.1", b"0123456789abcdef", version_min=1, version_max=1)
TWO: Final = Identity("flock", "two", 2, 7, "0.1", b"0123456789abcdef", version_min=1, version_max=1)
NONCE: Final = b"\1" * NONCE_BYTES


def sides(one: Identity = ONE, two: Identity = TWO, target: int = 2) -> tuple[Dialling, Answering]:
    return Dialling(one, target, bytes(NONCE_BYTES), JOIN), Answering(two, NONCE)


def shake_hands(dialling: Dialling, answering: Answering) -> Proved:
    proved = answering.admit(dialling.proof(answering.challenge(dialling.hello)))
    dialling.finish(proved.accepted)
    return proved


def changed(message: bytes, field: str, value: object) -> bytes:
    """Another challenge."""
    challenge = msgspec.msgpack.decode(message, type=Challenge)
    return msgspec.msgpack.encode(msgspec.structs.replace(challenge, **{field: value}))


def test_two_nodes_that_know_the_secret_know_each_other_then() -> None:
    dialling, answering = sides()
    proved = shake_hands(dialling, answering)
    assert (proved.name, proved.number, proved.incarnation, proved.purpose) == ("one", 1, 5, JOIN)
    assert dialling.version == proved.version == 1 and dialling.incarnation == 7


def test_the_highest_version_that_both_speak_is_taken() -> None:
    dialling, answering = sides(replace(ONE, version_max=4), replace(TWO, version_min=2, version_max=3))
    assert shake_hands(dialling, answering).version == dialling.version == 3


@pytest.mark.parametrize(
    ("one", "two", "target", "reason"),
    [
        (
            replace(ONE, cluster="swarm"),
            TWO,
            2,
            "node two belongs to cluster flock, node one to swarm; set the same cluster.name on both",
        ),
        (ONE, TWO, 3, r"this node is two \(number 2\), not number 3"),
        (
            replace(ONE, secret=b"something else!!"),
            TWO,
            2,
            "node one does not know the cluster secret; set the same cluster.secret on all nodes",
        ),
        (
            ONE,
            replace(TWO, secret=b""),
            2,
            "node one does not know the cluster secret; set the same cluster.secret on all nodes",
        ),
        (ONE, replace(TWO, version_min=2, version_max=3), 2, "node two supports .* 2 to 3, node one 1 to 1; upgrade"),
        (replace(ONE, number=0), TWO, 2, "not a valid handshake of a node"),
        (replace(ONE, name="one\n2026 ERROR forged"), TWO, 2, "not a valid handshake of a node"),
        (replace(ONE, name=""), TWO, 2, "not a valid handshake of a node"),
        (
            replace(ONE, cluster="swarm\nforged"),
            TWO,
            2,
            "node two belongs to cluster flock, node one to another cluster; set the same cluster.name on both",
        ),
    ],
)
def test_a_node_that_does_not_belong_is_refused_with_the_reason(
    one: Identity, two: Identity, target: int, reason: str
) -> None:
    dialling, answering = sides(one, two, target)
    with pytest.raises(RefusedError, match=reason) as refused:
        shake_hands(dialling, answering)
    assert str(refused.value).isprintable()


def test_a_listener_that_echoes_the_handshake_is_refused() -> None:
    dialling, answering = sides()
    proof = dialling.proof(answering.challenge(dialling.hello))
    with pytest.raises(RefusedError, match="it does not know the cluster secret"):
        dialling.finish(proof)


def test_the_proof_of_a_listener_is_none_of_a_dialler() -> None:
    dialling, answering = sides()
    accepted = answering.admit(dialling.proof(answering.challenge(dialling.hello))).accepted
    _, same = sides()
    same.challenge(dialling.hello)
    with pytest.raises(RefusedError, match="does not know the cluster secret"):
        same.admit(accepted)


def test_a_proof_is_good_for_one_connection() -> None:
    dialling, answering = sides()
    proof = dialling.proof(answering.challenge(dialling.hello))
    another = Answering(TWO, b"\2" * NONCE_BYTES)
    another.challenge(dialling.hello)
    with pytest.raises(RefusedError, match="does not know the cluster secret"):
        another.admit(proof)
    answering.admit(proof)


def test_a_proof_is_good_for_the_purpose_that_was_asked_for() -> None:
    dialling, answering = sides()
    answering.challenge(Dialling(ONE, 2, bytes(NONCE_BYTES), "copy").hello)
    proof = dialling.proof(Answering(TWO, NONCE).challenge(dialling.hello))
    with pytest.raises(RefusedError, match="does not know the cluster secret"):
        answering.admit(proof)


def test_a_proof_before_the_challenge_is_refused() -> None:
    _, answering = sides()
    with pytest.raises(RefusedError, match="not a valid handshake of a node"):
        answering.admit(bytes(32))


@pytest.mark.parametrize(("field", "value"), [("version", 1), ("incarnation", 8), ("name", "eve")])
def test_a_handshake_that_was_changed_on_the_way_is_refused(field: str, value: object) -> None:
    dialling, answering = sides(replace(ONE, version_max=2), replace(TWO, version_max=2))
    proof = dialling.proof(changed(answering.challenge(dialling.hello), field, value))
    with pytest.raises(RefusedError, match="does not know the cluster secret"):
        answering.admit(proof)


def test_another_node_at_that_address_is_not_taken_for_the_one_that_is_meant() -> None:
    dialling, answering = sides()
    with pytest.raises(RefusedError, match=r"^the node there is two \(number 3\), not number 2$"):
        dialling.proof(changed(answering.challenge(dialling.hello), "number", 3))


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_that_was_not_offered_is_not_spoken(version: int) -> None:
    dialling, answering = sides()
    with pytest.raises(RefusedError, match=f"protocol version {version}, which this node does not support"):
        dialling.proof(changed(answering.challenge(dialling.hello), "version", version))


@given(st.binary(max_size=100))
def test_anything_else_is_refused_in_one_line(message: bytes) -> None:
    dialling, answering = sides()
    asked, answered = sides()
    asked.proof(answered.challenge(asked.hello))
    for step in (
        lambda: answering.challenge(message),
        lambda: answered.admit(message),
        lambda: dialling.proof(message),
        lambda: asked.finish(message),
    ):
        with pytest.raises(RefusedError) as refused:
            step()
        assert str(refused.value).isprintable()


def test_a_deeply_nested_addition_of_a_stranger_is_refused_in_one_line() -> None:
    """As deep as the limit of a message allows, which some Pythons read and others do not."""
    dialling, answering = sides()
    depth = MESSAGE_BYTES_MAX - len(dialling.hello) - 1
    message = bytes([dialling.hello[0] + 1]) + dialling.hello[1:] + b"\x91" * depth + b"\xc0"
    assert len(message) == MESSAGE_BYTES_MAX
    try:
        answering.challenge(message)
    except RefusedError as refused:
        assert str(refused) == "not a valid handshake of a node"
