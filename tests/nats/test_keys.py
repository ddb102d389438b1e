"""Clients that sign with an NKey: its text, the nonce of INFO, who comes in."""

from __future__ import annotations

import base64
import json
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest
from nacl.signing import SigningKey
from tests.harness import World
from tests.nats.talk import NatsPeer

from starlingmq.config.nats_section import NatsConfig
from starlingmq.config.nkeys import user_key
from starlingmq.net.listeners.nkey_signatures import verifier

VIOLATION = "-ERR 'Authorization Violation'"


class User:
    """A key pair as the library of NATS makes it."""

    def __init__(self, number: int) -> None:
        raw = bytes([number]) * 32
        self.pair = nkeys.from_seed(bytearray(nkeys.encode_seed(raw, nkeys.PREFIX_BYTE_USER)))
        self.raw = SigningKey(raw).verify_key.encode()
        self.text: str = self.pair.public_key.decode()

    def sign(self, nonce: str) -> bytes:
        signature: bytes = self.pair.sign(nonce.encode())
        return signature


ANN, BEN = User(1), User(2)


def world(*known: User, **settings: Any) -> World:
    made = World(**settings)
    made.state.nats.keys.verify = verifier(True)
    made.state.nats.configure(NatsConfig(nkeys=tuple(user.text for user in known)))
    return made


def sign_in(peer: NatsPeer, user: User, nonce: str | None = None, **options: object) -> list[object]:
    signature = base64.b64encode(user.sign(peer.info["nonce"] if nonce is None else nonce)).decode()
    return list(
        peer.said("CONNECT " + json.dumps({"nkey": user.text, "sig": signature, "verbose": False, **options}), "PING")
    )


def test_the_text_of_a_key() -> None:
    assert user_key(ANN.text) == ANN.raw
    account = nkeys.from_seed(bytearray(nkeys.encode_seed(b"a" * 32, nkeys.PREFIX_BYTE_ACCOUNT))).public_key.decode()
    flipped = ANN.text[:20] + ("A" if ANN.text[20] != "A" else "B") + ANN.text[21:]
    for text in (
        "",
        "U",
        account,
        flipped,
        ANN.text.lower(),
        ANN.text[:-1] + "1",
        ANN.text[:-1] + "\u00e9",
        ANN.text + "A",
    ):
        with pytest.raises(ValueError, match="not a public NKey of a user"):
            user_key(text)


def test_a_client_that_signs_the_nonce_is_admitted_by_its_key() -> None:
    made = world(ANN)
    peer = NatsPeer(made)
    assert peer.info["auth_required"] is True
    assert len(peer.info["nonce"]) == 16
    assert sign_in(peer, ANN) == ["PONG"]
    assert peer.client.username == ANN.text
    verbose = NatsPeer(made)
    assert sign_in(verbose, ANN, verbose=True) == ["+OK", "PONG"]
    assert verbose.info["nonce"] != peer.info["nonce"]


def test_both_spellings_of_a_signature() -> None:
    made = world(ANN)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for padding in ("", "="):
            peer = NatsPeer(made)
            text = encode(ANN.sign(peer.info["nonce"])).decode().strip("=") + 2 * padding
            assert peer.said(f'CONNECT {{"nkey":"{ANN.text}","sig":"{text}","verbose":false}}', "PING") == ["PONG"]


def test_a_client_without_a_valid_signature_is_refused() -> None:
    made = world(ANN)
    nonce = NatsPeer(made).info["nonce"]  # of another connection
    assert sign_in(NatsPeer(made), ANN, nonce) == [VIOLATION]
    assert sign_in(NatsPeer(made), BEN) == [VIOLATION]
    for options in (
        {"nkey": ANN.text},
        {"nkey": ANN.text, "sig": "x"},
        {"nkey": ANN.text, "sig": "A" * 86},
        {"nkey": ANN.text, "sig": "A" * 3000},
        {"nkey": ANN.text, "sig": "\u00e9"},
        {"nkey": "U", "sig": "A" * 86},
        {"user": "ann", "pass": "secret"},
        {"nkey": ""},
        {},
    ):
        peer = NatsPeer(made)
        assert peer.said("CONNECT " + json.dumps(options), "PING") == [VIOLATION]
        assert peer.closed
    assert NatsPeer(made).said("PING") == [VIOLATION]


def test_the_hook_decides_about_all_keys() -> None:
    made = world(ANN, ask_authenticate=True)
    listed = NatsPeer(made)
    assert sign_in(listed, ANN) == []
    question = made.question()
    assert (question.nkey, question.listed) == (ANN.text, True)
    made.answer(question, 0)
    assert listed.heard() == ["PONG"]
    peer = NatsPeer(made)
    assert sign_in(peer, BEN) == []
    question = made.question()
    assert (question.nkey, question.listed) == (BEN.text, False)
    assert question.connect is not None and question.connect.username == BEN.text
    made.answer(question, 0)
    assert peer.heard() == ["PONG"]
    assert sign_in(NatsPeer(made), BEN, "not the nonce") == [VIOLATION]  # and no hook is asked
    plain = NatsPeer(made)
    plain.send(f'CONNECT {{"user":"{BEN.text}","verbose":false}}')
    assert made.question().nkey == ""


def test_without_keys_nobody_is_asked_to_sign() -> None:
    peer = NatsPeer(World())
    assert "nonce" not in peer.info
    assert peer.said(f'CONNECT {{"nkey":"{ANN.text}","sig":"x","verbose":false}}', "PING") == ["PONG"]
