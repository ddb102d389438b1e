"""Revocation lists, signed by a real authority: their content, refused clients, disconnected clients."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import slowness
from tests.peer import Peer

from starlingmq import Broker
from starlingmq.config.settings import Config, ListenerConfig, NodeConfig
from starlingmq.config.tls_section import TlsConfig
from starlingmq.net.listeners.der import DerError
from starlingmq.net.listeners.listeners import ListenerError
from starlingmq.net.listeners.revocation_list import identity, revoked_by
from starlingmq.wire.mqtt import Connack, Connect, Disconnect
from starlingmq.wire.reasons import Reason

from .conftest import Certificates, FakeDriver, Open
from .test_tls import alert_of, client_context, connect, until_empty

DAY = timedelta(days=1)


def certificate(path: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Path(path).read_bytes())


def revocations(authority: trustme.CA, revoked: Iterable[str] = (), expires: timedelta = DAY) -> bytes:
    """Return a list in PEM; ``revoked`` are the files of certificates."""
    now = datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    builder = builder.last_update(now - 2 * DAY).next_update(now + expires)
    for path in revoked:
        serial = certificate(path).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - DAY).build()
        builder = builder.add_revoked_certificate(entry)
    key = load_pem_private_key(authority.private_key_pem.bytes(), None)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]  # an EC key


def test_a_revocation_list_names_its_certificates(certificates: Certificates) -> None:
    mine, _ = certificates.issue("mine.example")
    other, _ = certificates.issue("other.example")
    whose = {path: identity(certificate(path).public_bytes(Encoding.DER)) for path in (mine, other)}
    assert whose[mine] == (certificate(mine).issuer.public_bytes(), certificate(mine).serial_number)
    assert revoked_by(revocations(certificates.authority)) == frozenset()
    assert revoked_by(revocations(certificates.authority, [mine])) == {whose[mine]}
    both = revocations(certificates.authority, [mine]) + revocations(certificates.authority, [other])
    assert revoked_by(b"some text before\n" + both) == set(whose.values())


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN X509 CRL-----\n!\n-----END X509 CRL-----\n"])
def test_an_invalid_revocation_list_is_reported(pem: bytes) -> None:
    with pytest.raises(DerError):
        revoked_by(pem)


@given(st.data())
def test_a_damaged_list_or_certificate_is_an_error_and_nothing_else(data: st.DataObject) -> None:
    for read, der in ((identity, DAMAGED[0]), (_read_list, DAMAGED[1])):
        at = data.draw(st.integers(0, len(der) - 1))
        damaged = der[:at] + data.draw(st.binary(max_size=3)) + der[at + data.draw(st.integers(0, 3)) :]
        with suppress(DerError):
            read(damaged)


def _read_list(der: bytes) -> object:
    return revoked_by(b"-----BEGIN X509 CRL-----\n" + base64.b64encode(der) + b"\n-----END X509 CRL-----\n")


def _examples() -> tuple[bytes, bytes]:
    authority = trustme.CA()
    issued = x509.load_pem_x509_certificate(authority.issue_cert("a.example").cert_chain_pems[0].bytes())
    found = x509.load_pem_x509_crl(revocations(authority))
    return issued.public_bytes(Encoding.DER), found.public_bytes(Encoding.DER)


DAMAGED = _examples()


@pytest.mark.parametrize("scheme", ["mqtts", "wss", "nats+wss"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_revoked_certificate_gets_an_alert_and_others_come_in(
    driver: FakeDriver,
    listen: Open,
    certificates: Certificates,
    tmp_path: Path,
    scheme: str,
    version: ssl.TLSVersion,
) -> None:
    bad, good = certificates.issue("bad.example"), certificates.issue("good.example")
    crl = tmp_path / "crl.pem"
    crl.write_bytes(revocations(certificates.authority, [bad[0]]))
    tls = certificates.server(ca=certificates.ca, require_client_cert=True, crl=(str(crl),))
    listener = await listen(f"{scheme}://127.0.0.1:0", tls=tls)
    told: list[str] = []
    listener.gate.admission.report = lambda notice: told.append(notice.detail)
    context = client_context(certificates, bad)
    context.maximum_version = version
    assert (await alert_of(listener.address, context)).endswith("ALERT_CERTIFICATE_REVOKED")
    await until_empty(listener)
    assert listener.gate.refused == {"client_certificate": 1}
    assert told == ["its certificate was rejected: certificate revoked"]
    _, writer = await connect(listener.address, client_context(certificates, good))
    await driver.client()
    writer.close()


async def test_a_list_that_has_expired_lets_nobody_in(listen: Open, certificates: Certificates, tmp_path: Path) -> None:
    crl = tmp_path / "crl.pem"
    crl.write_bytes(revocations(certificates.authority, expires=-DAY))
    tls = certificates.server(ca=certificates.ca, crl=(str(crl),))
    listener = await listen("mqtts://127.0.0.1:0", tls=tls)
    told: list[str] = []
    listener.gate.admission.report = lambda notice: told.append(notice.detail)
    context = client_context(certificates, certificates.issue("good.example"))
    assert "ALERT" in await alert_of(listener.address, context)
    await until_empty(listener)
    assert told == ["its certificate was rejected: CRL has expired"]


@pytest.mark.parametrize("content", [None, b"nothing", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"])
async def test_lists_that_cannot_be_used_are_said_in_one_line(
    listen: Open, certificates: Certificates, tmp_path: Path, content: bytes | None
) -> None:
    crl = tmp_path / "crl.pem"
    if content is not None:
        crl.write_bytes(content)
    with pytest.raises(ListenerError, match=r"revocation list .*crl.pem: [^\n]+$"):
        await listen("mqtts://127.0.0.1:0", tls=certificates.server(ca=certificates.ca, crl=(str(crl),)))
    with pytest.raises(ListenerError, match="crl needs ca"):
        await listen("mqtts://127.0.0.1:0", tls=certificates.server(crl=(str(crl),)))


@pytest.fixture
async def broker(certificates: Certificates, tmp_path: Path) -> AsyncIterator[Broker]:
    crl = tmp_path / "crl.pem"
    crl.write_bytes(revocations(certificates.authority))
    cert, key = certificates.issue("localhost")
    tls = TlsConfig(cert=cert, key=key, ca=certificates.ca, crl=(str(crl),))
    config = Config(node=NodeConfig(name="one"), listeners=(ListenerConfig(url="mqtts://127.0.0.1:0", tls=tls),))
    async with Broker(config) as one:
        yield one


async def test_a_reload_disconnects_clients_whose_certificate_was_revoked(
    broker: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    bad, good = certificates.issue("bad.example"), certificates.issue("good.example")
    peers = {}
    for name, mine in (("bad", bad), ("good", good), ("nobody", None)):
        reader, writer = await connect(broker.address("mqtts"), client_context(certificates, mine))
        peers[name] = Peer(reader, writer, 5)
        peers[name].send(Connect(5, name, True))
        assert (await peers[name].expect(Connack)).reason == 0
    crl = tmp_path / "crl.pem"
    crl.write_bytes(b"no list")
    with pytest.raises(ListenerError, match="revocation list"):
        broker.reload(broker.config)
    assert await peers["bad"].publish("t") in (0, 0x10), "a list that cannot be read changes nothing"
    crl.write_bytes(revocations(certificates.authority, [bad[0]]))
    broker.reload(broker.config)
    assert (await peers["bad"].expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    for name in ("good", "nobody"):
        assert await peers[name].publish("t") in (0, 0x10)
    assert (await alert_of(broker.address("mqtts"), client_context(certificates, bad))).endswith("_REVOKED")
    for peer in peers.values():
        await peer.close()


async def test_no_session_of_tls_is_resumed_with_a_certificate_that_was_revoked_since(
    broker: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    bad = certificates.issue("bad.example")
    context = client_context(certificates, bad)
    port = int(broker.address("mqtts").rpartition(":")[2])

    def once(session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
        sock = socket.create_connection(("127.0.0.1", port), timeout=10 * slowness())
        with context.wrap_socket(sock, server_hostname="localhost", session=session) as tls:
            tls.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01b")
            assert tls.recv(4) == b"\x20\x02\x00\x00"
            return bool(tls.session_reused), tls.session

    reused, session = await asyncio.to_thread(once, None)
    assert not reused and (await asyncio.to_thread(once, session))[0], "as long as nothing has changed it is resumed"
    (tmp_path / "crl.pem").write_bytes(revocations(certificates.authority, [bad[0]]))
    broker.reload(broker.config)
    with pytest.raises(ssl.SSLError, match=r"REVOKED|revoked"):
        await asyncio.to_thread(once, session)
