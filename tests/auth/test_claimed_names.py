"""Logins whose user name is known only after CONNECT: failures are counted, delayed, banned and logged by that name."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from scramp import ScramClient  # type: ignore[import-untyped]

from starlingmq.auth import chain
from starlingmq.wire.mqtt import Auth, Connack, Connect, Disconnect
from starlingmq.wire.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, Properties
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Passwd, Serve
from tests.auth.logins import FAST, knock, scram, token
from tests.auth.test_bans import bans
from tests.auth.test_methods import response, service
from tests.peer import Peer


async def test_failed_scram_logins_count_for_the_name_of_the_exchange_not_for_that_of_connect(
    serve: Serve, passwd: Passwd, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a balancer only the name slows down guessing, so the client must not choose another one to count for."""
    failures = {"delay": "20ms", "exempt": ["127.0.0.0/8"]}
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, "failures": failures})
    took = []
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        for _ in range(5):
            began = time.monotonic()
            assert await scram(broker.address(), "ann", "wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
            took.append(time.monotonic() - began)
    assert took[-1] >= 0.32, "twice as long each time"
    assert "user 'ann': authentication refused" in caplog.text, "the log names the user who was guessed"
    began = time.monotonic()
    assert await scram(broker.address(), "bob", "wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert time.monotonic() - began < took[-1], "another name is not slowed down"
    assert await scram(broker.address(), "ann", "right") == 0


async def test_scram_under_another_name_than_that_of_connect_is_refused(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, **FAST})
    for username, outcome in (("bob", Reason.BAD_USER_NAME_OR_PASSWORD), ("ann", 0), ("", 0), (None, 0)):
        assert await scram(broker.address(), "ann", "right", username=username) == outcome


async def test_a_banned_user_gets_no_scram_challenge(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, **FAST})
    broker.ban("user", "ann", 60.0, "she left")
    assert await scram(broker.address(), "ann", "wrong") == Reason.BANNED


async def test_a_refused_reauthentication_does_not_rename_the_client(
    serve: Serve, passwd: Passwd, caplog: pytest.LogCaptureFixture
) -> None:
    """Its will would be published with the rights of the user that it claimed to be."""
    file = passwd(ann="right", bob="other")
    broker = await serve(auth={"password": {"file": file}, "session_owner": "client_id", **FAST})
    client = ScramClient(["SCRAM-SHA-256"], "ann", "right")
    peer = await Peer.open(broker.address())
    properties: Properties = {AUTHENTICATION_METHOD: "SCRAM-SHA-256"}
    properties[AUTHENTICATION_DATA] = client.get_client_first().encode()
    peer.send(Connect(5, "s", True, properties=properties))
    challenge: Any = (await peer.expect(Auth)).properties[AUTHENTICATION_DATA]
    client.set_server_first(challenge.decode())
    properties[AUTHENTICATION_DATA] = client.get_client_final().encode()
    peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, properties))
    assert (await peer.expect(Connack)).reason == 0
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        properties[AUTHENTICATION_DATA] = b"n,,n=bob,r=nonce"
        peer.send(Auth(Reason.RE_AUTHENTICATE, properties))
        assert (await peer.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED, "0x86 is not for DISCONNECT"
    assert "user 'ann': re-authentication failed" in caplog.text
    await peer.close()


async def test_a_refused_token_is_logged_with_the_name_that_it_claims(
    serve: Serve, secret_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve(auth={"jwt": {"secret_file": secret_file}, **FAST})
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        for wrong in (token(key=b"x" * 32), token(exp=1)):
            assert await knock(broker.address(), "whatever", wrong) == Reason.BAD_USER_NAME_OR_PASSWORD
    assert caplog.text.count("user 'ann': authentication refused") == 1
    assert caplog.text.count("user 'ann': its token has expired") == 1
    assert await knock(broker.address(), "whatever", token(sub="\ud800")) == Reason.BAD_USER_NAME_OR_PASSWORD


def test_nameless_failures_from_exempt_networks_count_together() -> None:
    """A guesser of NATS tokens gives no name; from elsewhere its address counts."""
    found = bans(exempt=("10.0.0.0/8",))
    assert [found.failed(1.0, "10.1.2.3", "")[0] for _ in range(3)] == [0.1, 0.2, 0.4]
    assert found.failed(1.0, "192.0.2.1", "")[0] == 0.1


async def test_a_service_names_the_user_for_whom_a_failure_counts_and_is_asked_for_each_protocol_version(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(question: dict[str, Any]) -> bytes:
        if question["version"] == 4:
            return response({"result": "deny", "username": "ann"})
        return response({"result": "allow"})

    async with service(answer) as (url, asked):
        broker = await serve(auth={"http": {"url": url}, **FAST})
        with caplog.at_level(logging.INFO, "starlingmq.clients"):
            assert await knock(broker.address(), "whatever", b"p", 4) == 4
        assert "user 'ann': authentication refused" in caplog.text
        assert await knock(broker.address(), "whatever", b"p", 5) == 0, "the answer for another version is not used"
        assert [question["version"] for question in asked] == [4, 5]


async def test_a_refusal_is_sent_before_the_connection_would_time_out(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check may have waited for its turn before the delay begins; both together stay below mqtt.connect_timeout."""
    monkeypatch.setattr(chain, "ANSWERED", 0.3)
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, "failures": {"delay": "5s"}})
    began = time.monotonic()
    assert await knock(broker.address(), "ann", b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert 0.25 < time.monotonic() - began < 4.0
