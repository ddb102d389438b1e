"""The reason of a refused login, as the client is told it and as the log has it: the true one, with the user's name."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from starlingmq.core.connect.connect_verdict import NO_ANONYMOUS, NO_METHOD
from starlingmq.core.context.ready import Notice
from starlingmq.hooks import AuthRequest, AuthResult
from starlingmq.log import NAME_MAX
from starlingmq.node.connection_log import NoticeLog
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.properties import REASON_STRING
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Passwd, Serve
from tests.auth.logins import FAST, token
from tests.peer import Peer


async def refused(address: str, username: str | None, password: bytes | None = None) -> object:
    """The Reason String of a refusal."""
    peer = await Peer.open(address, 5)
    peer.send(Connect(5, "c", True, username=username, password=password))
    connack = await peer.expect(Connack)
    assert connack.reason >= 0x80 and await peer.ended()
    await peer.close()
    return connack.properties.get(REASON_STRING)


@pytest.mark.parametrize("with_rules", [False, True])
async def test_a_user_name_that_nothing_can_check_is_named_with_the_true_reason(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, with_rules: bool
) -> None:
    rules = tmp_path / "rules"
    rules.write_text("rules: []\n")
    acl = {"acl": {"file": str(rules)}} if with_rules else {}
    broker = await serve(auth={"allow_anonymous": False, "failures": {"delay": 0}, **acl})
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        assert await refused(broker.address(), "ann", b"hunter2") == NO_METHOD
        assert await refused(broker.address(), None) == NO_ANONYMOUS
    named, nameless = [record.message for record in caplog.records]
    assert f"of client 'c', user 'ann': {NO_METHOD}" in named and "hunter2" not in caplog.text
    assert f"of client 'c': {NO_ANONYMOUS}" in nameless


async def test_a_wrong_password_is_logged_with_the_name_of_the_user(
    serve: Serve, passwd: Passwd, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, "failures": {"delay": 0}})
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        assert await refused(broker.address(), "ann", b"hunter2") == "authentication refused"
        assert await refused(broker.address(), None) == NO_ANONYMOUS
    assert "of client 'c', user 'ann': authentication refused" in caplog.records[0].message
    assert vars(caplog.records[0])["user"] == "ann" and "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"exp": time.time() - 60}, "its token has expired (exp)"),
        ({"nbf": time.time() + 36_000}, "its token is not valid yet (nbf, iat): check the clocks"),
        ({"aud": "others"}, "its token is for another audience (auth.jwt.audience)"),
        ({"iss": "others"}, "its token is of another issuer (auth.jwt.issuer)"),
        ({"sub": 7}, "authentication refused"),
        ({"dev": "d"}, "its token is for another client id (auth.jwt.client_id_claim)"),
        ({"acl": "all"}, "the rules in its token are not valid (auth.jwt.acl_claim)"),
    ],
)
async def test_a_genuine_token_is_refused_with_the_claim_that_does_not_fit(
    serve: Serve, secret_file: str, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], words: str
) -> None:
    wanted = {"audience": "us", "issuer": "we", "client_id_claim": "dev"}
    broker = await serve(auth={"jwt": {"secret_file": secret_file, **wanted}, **FAST})
    fitting: dict[str, Any] = {"aud": "us", "iss": "we", "dev": "c", **claims}
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        assert await refused(broker.address(), None, token(**fitting)) == words
        assert await refused(broker.address(), None, token(key="x" * 40, **fitting)) == "authentication refused"
    assert words in caplog.records[0].message


async def test_a_nats_user_that_nothing_can_check_is_logged_with_the_true_reason(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve(listeners=["nats://127.0.0.1:0"], auth={"allow_anonymous": False})
    host, _, port = broker.address("nats").removeprefix("nats://").partition(":")
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'CONNECT {"user":"ann","pass":"hunter2"}\r\n')
        said = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert b"Authorization Violation" in said
    assert f"user 'ann': Authorization Violation: {NO_METHOD}" in caplog.text and "hunter2" not in caplog.text


async def test_a_hook_explains_its_refusal_to_the_client_and_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def authenticate(request: AuthRequest) -> AuthResult:
        return AuthResult(Reason.NOT_AUTHORIZED, detail="the subscription has ended")

    broker = await serve(authenticate=authenticate)
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        assert await refused(broker.address(), "ann") == "the subscription has ended"
    assert "user 'ann': the subscription has ended" in caplog.text


def test_a_user_name_takes_a_bounded_part_of_a_line(caplog: pytest.LogCaptureFixture) -> None:
    notices = NoticeLog(0, lambda: 0.0, lambda seconds, flush: pytest.fail("nothing is left out"))
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        notices.add(Notice("not_authorized", "c", "peer:1", "no", username="x" * 65_535))
    assert len(caplog.records[0].message) < NAME_MAX + 100
