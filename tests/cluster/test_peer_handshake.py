"""The handshake of two nodes, byte for byte: who is let in, who is told why not, and what a liar gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.net.peer_handshake import NONCE_BYTES, Answering, Dialling, Identity, RefusedError, refusal
from starlingmq.net.proto import peers_pb2 as pb

ONE: Final = Identity("flock", "one", 1, 5, "0.1", b"0123456789abcdef")
TWO: Final = Identity("flock", "two", 2, 7, "0.1", b"0123456789abcdef")


def sides(one: Identity = ONE, two: Identity = TWO, target: int = 2) -> tuple[Dialling, Answering]:
    return Dialling(one, target, bytes(NONCE_BYTES)), Answering(two, b"\1" * NONCE_BYTES)


def shake_hands(dialling: Dialling, answering: Answering) -> None:
    dialling.finish(answering.accept(dialling.proof(answering.challenge(dialling.hello()))))


def test_two_nodes_that_know_the_secret_know_each_other_then() -> None:
    dialling, answering = sides()
    shake_hands(dialling, answering)
    assert (answering.name, answering.number, answering.incarnation) == ("one", 1, 5)
    assert dialling.version == answering.version == 1


def test_the_highest_version_that_both_speak_is_taken() -> None:
    dialling, answering = sides(replace(ONE, version_max=4), replace(TWO, version_min=2, version_max=3))
    shake_hands(dialling, answering)
    assert dialling.version == answering.version == 3


@pytest.mark.parametrize(
    ("one", "two", "target", "reason"),
    [
        (replace(ONE, cluster="swarm"), TWO, 2, "node two is of cluster flock, node one of swarm"),
        (ONE, TWO, 3, r"this is node two \(number 2\), not number 3"),
        (replace(ONE, secret=b"something else!!"), TWO, 2, "node one does not know the secret of the cluster"),
        (ONE, replace(TWO, secret=b""), 2, "node one does not know the secret of the cluster"),
        (ONE, replace(TWO, version_min=2, version_max=3), 2, "node two speaks .* 2 to 3, node one 1 to 1; upgrade"),
        (replace(ONE, number=0), TWO, 2, "that is not how a node begins"),
    ],
)
def test_who_does_not_belong_is_told_why(one: Identity, two: Identity, target: int, reason: str) -> None:
    dialling, answering = sides(one, two, target)
    with pytest.raises(RefusedError, match=reason) as refused:
        shake_hands(dialling, answering)
    with pytest.raises(RefusedError) as told:
        dialling.proof(refusal(refused.value))
    assert str(told.value) == str(refused.value) and "\n" not in str(told.value)


def test_a_listener_that_only_repeats_what_it_hears_proves_nothing() -> None:
    dialling, answering = sides()
    proof = pb.Dialler.FromString(dialling.proof(answering.challenge(dialling.hello()))).proof
    with pytest.raises(RefusedError, match="it does not know the secret"):
        dialling.finish(pb.Listener(accepted=proof).SerializeToString())


def test_an_old_conversation_is_of_no_use() -> None:
    dialling, answering = sides()
    hello = dialling.hello()
    proof = dialling.proof(answering.challenge(hello))
    answering.accept(proof)
    again = Answering(TWO, b"\2" * NONCE_BYTES)
    again.challenge(hello)
    with pytest.raises(RefusedError, match="does not know the secret"):
        again.accept(proof)


@pytest.mark.parametrize(("field", "changed"), [("version", 1), ("incarnation", 8), ("name", "eve")])
def test_nobody_in_between_changes_a_word(field: str, changed: object) -> None:
    dialling, answering = sides(replace(ONE, version_max=2), replace(TWO, version_max=2))
    listener = pb.Listener.FromString(answering.challenge(dialling.hello()))
    setattr(listener.challenge, field, changed)
    proof = dialling.proof(listener.SerializeToString())
    with pytest.raises(RefusedError, match="does not know the secret"):
        answering.accept(proof)


def test_another_node_at_that_address_is_not_taken_for_the_one_that_is_meant() -> None:
    dialling, answering = sides()
    listener = pb.Listener.FromString(answering.challenge(dialling.hello()))
    listener.challenge.number = 3
    with pytest.raises(RefusedError, match=r"^node two \(number 3\) is there, not number 2$"):
        dialling.proof(listener.SerializeToString())


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_that_was_not_offered_is_not_spoken(version: int) -> None:
    dialling, answering = sides()
    listener = pb.Listener.FromString(answering.challenge(dialling.hello()))
    listener.challenge.version = version
    with pytest.raises(RefusedError, match=f"protocol version {version}, which this node does not speak"):
        dialling.proof(listener.SerializeToString())


@given(st.binary(max_size=100))
def test_anything_else_is_refused_in_one_line(data: bytes) -> None:
    dialling, answering = sides()
    dialling.proof(answering.challenge(dialling.hello()))
    for step in (Answering(TWO, bytes(NONCE_BYTES)).challenge, answering.accept, dialling.proof, dialling.finish):
        with pytest.raises(RefusedError, match=r"\A[^\n]+\Z"):
            step(data)
