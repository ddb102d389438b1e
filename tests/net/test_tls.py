from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from tests.patience import within

from starlingmq.config.cluster_section import ClusterTlsConfig
from starlingmq.config.tls_section import TlsConfig
from starlingmq.net.listeners.client_certificate import certificate_name
from starlingmq.net.listeners.listeners import Listener, ListenerError
from starlingmq.net.listeners.tls import TlsError, server_context
from starlingmq.net.peers.peer_tls import peer_tls

from .conftest import PATIENCE, Certificates, FakeDriver, Open
from .test_listeners import port_of, read_to_end


def client_context(certificates: Certificates, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


async def connect(address: str, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with within(PATIENCE):
        return await asyncio.open_connection("127.0.0.1", port_of(address), ssl=context, server_hostname="localhost")


async def alert_of(address: str, context: ssl.SSLContext) -> str:
    """Return the alert that a refused client receives while it continues to send."""
    try:
        # In TLS 1.3 a client's handshake completes before the server has seen its certificate.
        reader, writer = await connect(address, context)
        writer.write(bytes(100_000))
        async with within(PATIENCE):
            assert await reader.read(1) == b""
    except ssl.SSLError as error:
        return str(error.reason)
    except ConnectionError as error:
        return f"{type(error).__name__}: no alert"
    return "closed without an alert"


async def until_empty(listener: Listener) -> None:
    async with within(PATIENCE):
        while listener.gate.connections:
            await asyncio.sleep(0.01)


async def test_mqtts_speaks_tls(driver: FakeDriver, listen: Open, certificates: Certificates) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    assert listener.address.startswith("mqtts://127.0.0.1:")
    driver.on_received = lambda client, data: client.transport.write(data)
    context = client_context(certificates)
    context.set_alpn_protocols(["mqtt"])
    reader, writer = await connect(listener.address, context)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "mqtt"
    assert certificate_name((await driver.client()).transport) == ""
    writer.close()


async def test_tls_1_2_is_spoken_unless_1_3_is_asked_for(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    both = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    newest = await listen("mqtts://127.0.0.1:0", tls=certificates.server(min_version="1.3"))
    context = client_context(certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    _, writer = await connect(both.address, context)
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
    writer.close()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(newest.address, context)


async def test_tls_1_1_is_not_spoken(listen: Open, certificates: Certificates) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    context = client_context(certificates)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.deprecated_call():
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(listener.address, context)


@pytest.mark.parametrize("cipher", ["AES128-SHA", "AES256-SHA256", "DES-CBC3-SHA", "NULL-SHA256", "ADH-AES128-SHA"])
async def test_weak_ciphers_are_not_spoken(listen: Open, certificates: Certificates, cipher: str) -> None:
    """Without forward secrecy, with 64-bit blocks, without encryption, without a certificate."""
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    context = client_context(certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.set_ciphers(f"{cipher}:@SECLEVEL=0")
    except ssl.SSLError:
        pytest.skip("the library of this machine does not have it at all")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(listener.address, context)


async def test_the_name_in_a_client_certificate_is_told(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    tls = certificates.server(ca=certificates.ca, require_client_cert=True)
    listener = await listen("mqtts://127.0.0.1:0", tls=tls)
    mine = certificates.issue("client.example", common_name="sensor-7")
    _, writer = await connect(listener.address, client_context(certificates, mine))
    assert certificate_name((await driver.client()).transport) == "sensor-7"
    writer.close()


async def test_an_expired_client_certificate_gets_an_alert_and_one_line_in_the_log(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    tls = certificates.server(ca=certificates.ca, require_client_cert=True)
    listener = await listen("mqtts://127.0.0.1:0", tls=tls)
    told: list[str] = []
    listener.gate.admission.report = lambda notice: told.append(notice.detail)
    expired = certificates.issue("expired.example", ended=datetime.now(UTC) - timedelta(hours=1))
    assert (await alert_of(listener.address, client_context(certificates, expired))).endswith(
        "ALERT_CERTIFICATE_EXPIRED"
    )
    assert driver.clients == []
    await until_empty(listener)
    assert told == ["its certificate was rejected: certificate has expired"]


@pytest.mark.parametrize("certificate", ["none", "of another authority"])
async def test_a_required_client_certificate_is_required(
    driver: FakeDriver, listen: Open, certificates: Certificates, certificate: str
) -> None:
    tls = certificates.server(ca=certificates.ca, require_client_cert=True)
    listener = await listen("mqtts://127.0.0.1:0", tls=tls)
    stranger = None if certificate == "none" else certificates.issue("stranger.example", "sensor-7", trustme.CA())
    alert = "CERTIFICATE_REQUIRED" if certificate == "none" else "UNKNOWN_CA"
    assert (await alert_of(listener.address, client_context(certificates, stranger))).endswith(f"ALERT_{alert}")
    assert driver.clients == []
    await until_empty(listener)
    assert listener.gate.refused == {"client_certificate": 1}


async def test_an_optional_client_certificate_may_be_missing(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server(ca=certificates.ca))
    _, without = await connect(listener.address, client_context(certificates))
    assert certificate_name((await driver.client()).transport) == ""
    mine = certificates.issue("client.example", common_name="sensor-7")
    _, writer = await connect(listener.address, client_context(certificates, mine))
    assert certificate_name((await driver.client(1)).transport) == "sensor-7"
    without.close()
    writer.close()


async def test_a_handshake_that_never_comes_is_cut(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server(), options={"handshake_timeout": 0.05})
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    assert await read_to_end(reader) == b""
    assert driver.clients == []
    writer.close()


async def test_a_new_certificate_is_shown_after_a_reload(
    driver: FakeDriver, listen: Open, certificates: Certificates, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(name: str) -> None:
        issued = certificates.authority.issue_cert("localhost", common_name=name)
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))

    async def shown() -> Any:
        _, writer = await connect(listener.address, client_context(certificates))
        subject = dict(pair for part in writer.get_extra_info("peercert")["subject"] for pair in part)
        writer.close()
        return subject["commonName"]

    install("first")
    listener = await listen("mqtts://127.0.0.1:0", tls=TlsConfig(cert=str(cert), key=str(key)))
    assert await shown() == "first"
    install("second")
    listener.use_tls(listener.load_tls())
    assert await shown() == "second"
    key.write_text("broken")
    with pytest.raises(ListenerError, match="not usable PEM files"):
        listener.use_tls(listener.load_tls())
    assert await shown() == "second"


@pytest.mark.parametrize(
    ("password", "complaint"),
    [
        (None, "has a passphrase; set tls.key_password of the listener, or decrypt it: openssl pkey -in KEY -out NEW"),
        ("wrong", "has another passphrase than tls.key_password; set tls.key_password of the listener, or decrypt it"),
        ("right", ""),
    ],
)
def test_a_key_with_a_passphrase_is_named_as_such(
    tmp_path: Path, certificates: Certificates, password: str | None, complaint: str
) -> None:
    cert, key = certificates.issue("localhost")
    encrypted = str(tmp_path / "encrypted.key")
    plain = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    Path(encrypted).write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"right"),
        )
    )
    tls = TlsConfig(cert=cert, key=encrypted, key_password=password)
    if not complaint:
        server_context(tls, [])
        return
    with pytest.raises(TlsError) as caught:
        server_context(tls, [])
    assert str(caught.value).startswith(f"the private key in {encrypted} {complaint}")
    with pytest.raises(TlsError, match=f"cluster.tls: the private key in {encrypted} has a passphrase; decrypt it"):
        peer_tls(ClusterTlsConfig(cert=cert, key=encrypted, ca=cert))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"cert": "missing.pem"}, "certificate missing.pem: No such file or directory"),
        ({"cert": __file__}, "not usable PEM files"),
        ({"require_client_cert": True}, "require_client_cert needs ca"),
        ({"ca": "missing.pem"}, "CA certificates missing.pem: No such file or directory"),
        ({"ca": __file__}, "not usable PEM files"),
    ],
)
async def test_certificates_that_cannot_be_used_are_said_in_one_line(
    listen: Open, certificates: Certificates, settings: dict[str, Any], complaint: str
) -> None:
    cert, key = certificates.issue("localhost")
    tls = TlsConfig(**{"cert": cert, "key": None if "cert" in settings else key, **settings})
    with pytest.raises(ListenerError) as caught:
        await listen("mqtts://127.0.0.1:0", tls=tls)
    assert str(caught.value).startswith("mqtts://127.0.0.1:0: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
