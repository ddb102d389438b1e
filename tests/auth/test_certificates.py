"""The method ``certificate``: right, missing, expired, not valid yet, for another name, and with a harmful name."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from starlingmq import Broker
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Passwd, Serve
from tests.peer import Peer

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


class Authority:
    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.stranger = trustme.CA()
        self.directory = directory
        self.ca.cert_pem.write_to_path(os.fspath(directory / "ca.pem"))
        server = self.ca.issue_cert("localhost").private_key_and_cert_chain_pem
        server.write_to_path(os.fspath(directory / "server.pem"))

    def listener(self, required: bool = False) -> dict[str, Any]:
        files = {"cert": str(self.directory / "server.pem"), "ca": str(self.directory / "ca.pem")}
        return {"url": "mqtts://127.0.0.1:0", "tls": {**files, "require_client_cert": required}}

    def context(self, name: str | None, by: trustme.CA | None = None, **more: Any) -> ssl.SSLContext:
        """Of a client with a certificate of this name; None: without one."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if name is not None:
            (by or self.ca).issue_cert("client.example", common_name=name or None, **more).configure_cert(context)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def knock(broker: Broker, context: ssl.SSLContext, **fields: Any) -> int | None:
    """The reason code of CONNACK; None: TLS came to nothing."""
    url = broker.address("mqtts").replace("127.0.0.1", "localhost")
    try:
        peer = await Peer.open(url, tls=context)
        peer.send(Connect(5, "c", True, **fields))
        said = await peer.receive()
    except (OSError, ssl.SSLError):
        return None
    await peer.close()
    return said.reason if isinstance(said, Connack) else None


async def test_a_certificate_says_who_it_is_and_a_password_is_asked_of_who_has_none(
    serve: Serve, authority: Authority, passwd: Passwd, tmp_path: Path
) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text("default: deny\nrules:\n- allow: connect\n- allow: publish\n  topics: ['own/%u/#']\n")
    broker = await serve(
        listeners=[authority.listener()],
        auth={
            "methods": ["certificate", "password"],
            "password": {"file": passwd(ann="right")},
            "acl": {"file": str(rules)},
            "failures": {"delay": 0},
        },
    )
    assert await knock(broker, authority.context("sensor-7")) == 0
    url = broker.address("mqtts").replace("127.0.0.1", "localhost")
    peer = await Peer.open(url, tls=authority.context("sensor-7"))
    peer.send(Connect(5, "c", True, username="ann", password=b"wrong"))  # the certificate was asked first
    assert (await peer.expect(Connack)).reason == 0
    assert await peer.publish("own/sensor-7/x") == Reason.NO_MATCHING_SUBSCRIBERS
    assert await peer.publish("own/ann/x") == Reason.NOT_AUTHORIZED
    await peer.close()
    for password, reason in ((b"right", 0), (b"wrong", Reason.BAD_USER_NAME_OR_PASSWORD)):
        assert await knock(broker, authority.context(None), username="ann", password=password) == reason
    assert await knock(broker, authority.context(None)) == Reason.NOT_AUTHORIZED
    assert await knock(broker, authority.context("")) == Reason.NOT_AUTHORIZED, "a certificate without a name"


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a+b"])
async def test_a_name_in_a_certificate_is_no_wildcard(
    serve: Serve, authority: Authority, tmp_path: Path, name: str
) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text("default: deny\nrules:\n- allow: connect\n- allow: all\n  topics: ['own/%u/#']\n")
    broker = await serve(
        listeners=[authority.listener(required=True)],
        auth={"methods": ["certificate"], "acl": {"file": str(rules)}},
    )
    url = broker.address("mqtts").replace("127.0.0.1", "localhost")
    peer = await Peer.open(url, tls=authority.context(name))
    peer.send(Connect(5, "c", True))
    assert (await peer.expect(Connack)).reason == 0
    assert await peer.publish("own/other/x") == Reason.NOT_AUTHORIZED
    assert await peer.subscribe("own/other/#", "own/+/#", "#") == [Reason.NOT_AUTHORIZED] * 3
    await peer.close()


@pytest.mark.parametrize("required", [True, False])
async def test_certificates_that_are_not_good_let_nobody_in(serve: Serve, authority: Authority, required: bool) -> None:
    broker = await serve(listeners=[authority.listener(required)], auth={"methods": ["certificate"]})
    assert await knock(broker, authority.context("sensor-7")) == 0
    for bad in (
        authority.context("sensor-7", not_before=NOW - 3 * DAY, not_after=NOW - DAY),
        authority.context("sensor-7", not_before=NOW + DAY, not_after=NOW + 3 * DAY),
        authority.context("sensor-7", by=authority.stranger),
    ):
        assert await knock(broker, bad) is None
    assert await knock(broker, authority.context(None)) == (None if required else Reason.NOT_AUTHORIZED)


@pytest.mark.parametrize("methods", [["certificate", "password"], ["password", "certificate"]])
async def test_a_certificate_passes_a_ban_for_wrong_logins_and_none_by_an_operator(
    serve: Serve, authority: Authority, passwd: Passwd, methods: list[str]
) -> None:
    broker = await serve(
        listeners=[authority.listener()],
        auth={
            "methods": methods,
            "password": {"file": passwd(bob="right")},
            "failures": {"delay": 0, "limit": 2},
        },
    )
    nobody, ann = authority.context(None), authority.context("ann")
    for _ in range(2):
        assert await knock(broker, nobody, username="bob", password=b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert await knock(broker, nobody, username="bob", password=b"right") == Reason.BANNED
    assert await knock(broker, ann) == 0, "it proves who it is, and guesses nothing"
    guessing = await knock(broker, ann, username="bob", password=b"right")
    assert guessing == (0 if methods[0] == "certificate" else Reason.BANNED), "a password is still something to guess"
    broker.ban("address", "127.0.0.1", 60.0, "by hand")
    assert await knock(broker, ann) == Reason.BANNED
