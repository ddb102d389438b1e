"""The handshake of two nodes, byte for byte: who is let in, who is told why not, and what a liar gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.net.peers.peer_handshake import (
    ACCEPTED,
    CHALLENGE,
    HELLO,
    NONCE_BYTES,
    PROOF,
    TICKET,
    TICKET_SECONDS,
    Answering,
    Dialling,
    Identity,
    Parts,
    Proved,
    RefusedError,
    parts,
)
from starlingmq.net.proto import peers_pb2 as pb

ONE: Final = Identity("flock", "one", 1, 5, "0.1", b"0123456789abcdef", version_min=1, version_max=1)
TWO: Final = Identity("flock", "two", 2, 7, "0.1", b"0123456789abcdef", version_min=1, version_max=1)
HERE: Final = "ipv4:127.0.0.1:4711"
NONCE: Final = b"\1" * NONCE_BYTES


def sides(one: Identity = ONE, two: Identity = TWO, target: int = 2) -> tuple[Dialling, Answering]:
    return Dialling(one, target, bytes(NONCE_BYTES)), Answering(two, b"key")


def ask(dialling: Dialling, answering: Answering) -> dict[str, bytes]:
    """The fields that the dialler sends with its proof."""
    return dialling.proof(answering.challenge(dialling.hello(), HERE, NONCE, 0.0))


def shake_hands(dialling: Dialling, answering: Answering) -> Proved:
    proved = answering.admit(ask(dialling, answering), HERE, 0.0)
    dialling.finish({ACCEPTED: proved.accepted})
    return proved


def changed(told: Parts, field: str, value: object) -> dict[str, bytes]:
    """An answer of the listener with another challenge."""
    challenge = pb.Challenge.FromString(told[CHALLENGE])
    setattr(challenge, field, value)
    return {**told, CHALLENGE: challenge.SerializeToString()}


def test_two_nodes_that_know_the_secret_know_each_other_then() -> None:
    dialling, answering = sides()
    proved = shake_hands(dialling, answering)
    assert (proved.name, proved.number, proved.incarnation) == ("one", 1, 5)
    assert dialling.version == proved.version == 1


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
    proof = ask(dialling, answering)[PROOF]
    with pytest.raises(RefusedError, match="it does not know the cluster secret"):
        dialling.finish({ACCEPTED: proof})


def test_the_proof_of_a_listener_is_none_of_a_dialler() -> None:
    dialling, answering = sides()
    told = ask(dialling, answering)
    accepted = answering.admit(told, HERE, 0.0).accepted
    with pytest.raises(RefusedError, match="does not know the cluster secret"):
        Answering(TWO, b"key").admit({**told, PROOF: accepted}, HERE, 0.0)


def test_a_proof_is_good_once() -> None:
    dialling, answering = sides()
    told = ask(dialling, answering)
    answering.admit(told, HERE, 0.0)
    with pytest.raises(RefusedError, match="was used before"):
        answering.admit(told, HERE, TICKET_SECONDS - 0.1)
    with pytest.raises(RefusedError, match="timed out"):
        answering.admit(told, HERE, TICKET_SECONDS)


def test_a_proof_is_good_for_its_connection_and_for_the_process_that_asked() -> None:
    dialling, answering = sides()
    told = ask(dialling, answering)
    for other, peer in ((answering, "ipv4:127.0.0.1:4712"), (Answering(TWO, b"another key"), HERE)):
        with pytest.raises(RefusedError, match="not a valid handshake of a node"):
            other.admit(told, peer, 0.0)


def test_a_proof_for_one_challenge_does_not_answer_another() -> None:
    dialling, answering = sides()
    proof = ask(dialling, answering)[PROOF]
    again = answering.challenge(dialling.hello(), HERE, b"\2" * NONCE_BYTES, 0.0)
    with pytest.raises(RefusedError, match="does not know the cluster secret"):
        answering.admit({**again, **dialling.hello(), PROOF: proof}, HERE, 0.0)


def test_wrong_proofs_leave_nothing_behind() -> None:
    dialling, answering = sides(replace(ONE, secret=b"something else!!"))
    for _ in range(100):
        with pytest.raises(RefusedError):
            answering.admit(ask(dialling, answering), HERE, 0.0)
    assert not answering._used


def test_used_tickets_are_forgotten_when_they_have_run_out() -> None:
    _, answering = sides()
    for turn in range(100):
        now = turn * TICKET_SECONDS
        dialling, _ = sides()
        answering.admit(dialling.proof(answering.challenge(dialling.hello(), HERE, NONCE, now)), HERE, now)
        assert len(answering._used) == 1


@pytest.mark.parametrize(("field", "value"), [("version", 1), ("incarnation", 8), ("name", "eve")])
def test_a_handshake_that_was_changed_on_the_way_is_refused(field: str, value: object) -> None:
    dialling, answering = sides(replace(ONE, version_max=2), replace(TWO, version_max=2))
    told = dialling.proof(changed(answering.challenge(dialling.hello(), HERE, NONCE, 0.0), field, value))
    with pytest.raises(RefusedError, match="not a valid handshake of a node"):
        answering.admit(told, HERE, 0.0)


def test_another_node_at_that_address_is_not_taken_for_the_one_that_is_meant() -> None:
    dialling, answering = sides()
    answer = answering.challenge(dialling.hello(), HERE, NONCE, 0.0)
    with pytest.raises(RefusedError, match=r"^the node there is two \(number 3\), not number 2$"):
        dialling.proof(changed(answer, "number", 3))


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_that_was_not_offered_is_not_spoken(version: int) -> None:
    dialling, answering = sides()
    answer = answering.challenge(dialling.hello(), HERE, NONCE, 0.0)
    with pytest.raises(RefusedError, match=f"protocol version {version}, which this node does not support"):
        dialling.proof(changed(answer, "version", version))


@given(st.dictionaries(st.sampled_from((HELLO, CHALLENGE, TICKET, PROOF, ACCEPTED)), st.binary(max_size=100)))
def test_anything_else_is_refused_in_one_line(told: dict[str, bytes]) -> None:
    dialling, answering = sides()
    ask(dialling, answering)
    for step in (
        lambda: answering.challenge(told, HERE, NONCE, 0.0),
        lambda: answering.admit(told, HERE, 0.0),
        lambda: dialling.proof(told),
        lambda: dialling.finish(told),
    ):
        with pytest.raises(RefusedError) as refused:
            step()
        assert str(refused.value).isprintable()


def test_long_parts_of_metadata_are_left_out() -> None:
    assert parts(((HELLO, bytes(1024)), (PROOF, bytes(1025)), ("user-agent", "x"))) == {HELLO: bytes(1024)}
