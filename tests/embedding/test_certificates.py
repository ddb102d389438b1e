"""Clients that show a certificate, and what the hooks hear of it."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

import nats
from starlingmq.hooks import Access, AuthRequest
from starlingmq.wire.mqtt import Connack, Connect
from tests.peer import Peer

from .conftest import Serve


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(os.fspath(tmp_path / "ca.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(os.fspath(tmp_path / "server.pem"))
    return authority


@pytest.fixture
def context(authority: trustme.CA) -> Callable[[str], ssl.SSLContext]:
    def make(common_name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        if common_name:
            authority.issue_cert("client.example", common_name=common_name).configure_cert(context)
        return context

    return make


@pytest.mark.parametrize(
    ("identity", "certificate", "said", "called"),
    [
        (False, "sensor-7", "ann", "ann"),
        (False, "sensor-7", None, ""),
        (True, "sensor-7", None, "sensor-7"),
        (True, "sensor-7", "sensor-8", "sensor-7"),
        (True, "", "sensor-8", ""),  # no client gets another name by leaving the certificate out
    ],
)
@pytest.mark.usefixtures("authority")
async def test_the_name_of_a_client_with_a_certificate(
    serve: Serve,
    context: Callable[[str], ssl.SSLContext],
    tmp_path: Path,
    identity: bool,
    certificate: str,
    said: str | None,
    called: str,
) -> None:
    heard: list[AuthRequest] = []
    names: list[str] = []

    def authenticate(request: AuthRequest) -> bool:
        heard.append(request)
        return True

    def authorize(access: Access) -> bool:
        names.append(access.username)
        return True

    files = {"cert": f"{tmp_path}/server.pem", "ca": f"{tmp_path}/ca.pem"}
    broker = await serve(
        listeners=[{"url": "mqtts://127.0.0.1:0", "tls": {**files, "use_identity_as_username": identity}}],
        authenticate=authenticate,
        authorize=authorize,
    )
    peer = await Peer.open(broker.address("mqtts").replace("127.0.0.1", "localhost"), tls=context(certificate))
    peer.send(Connect(client_id="c", username=said))
    assert (await peer.expect(Connack)).reason == 0
    await peer.publish("t")
    assert heard[0].certificate_name == certificate
    assert (heard[0].username or "") == called
    assert names == [called]
    await peer.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("name", ["sensor-7", ' a,b+"c"\\<d>;#e= ', "#1", "\u00fc \u20ac", "x/y", "two  words", " "])
@pytest.mark.parametrize("scheme", ["mqtts", "tls"])
async def test_the_whole_subject_is_the_user_name_as_openssl_writes_it(
    serve: Serve, authority: trustme.CA, tmp_path: Path, scheme: str, name: str
) -> None:
    heard: list[AuthRequest] = []

    def authenticate(request: AuthRequest) -> bool:
        heard.append(request)
        return True

    files = {"cert": f"{tmp_path}/server.pem", "ca": f"{tmp_path}/ca.pem", "require_client_cert": True}
    url = f"{scheme}://127.0.0.1:0"
    broker = await serve(
        listeners=[{"url": url, "tls": {**files, "use_subject_as_username": True}}], authenticate=authenticate
    )
    issued = authority.issue_cert("c.example", common_name=name, organization_name="A, B", organization_unit_name="U")
    issued.private_key_and_cert_chain_pem.write_to_path(os.fspath(tmp_path / "client.pem"))
    command = ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253", "-in", f"{tmp_path}/client.pem"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    context = ssl.create_default_context()
    authority.configure_trust(context)
    issued.configure_cert(context)
    address = broker.address(scheme).replace("127.0.0.1", "localhost")
    if scheme == "tls":
        client = await nats.connect(address, tls=context, user="somebody", password="x")
        await client.close()
    else:
        peer = await Peer.open(address, tls=context)
        peer.send(Connect(client_id="c", username="somebody"))
        assert (await peer.expect(Connack)).reason == 0
        await peer.close()
    assert f"subject={heard[0].username}" == said.rstrip("\n")
    assert heard[0].username == heard[0].certificate_name and heard[0].username.endswith(",OU=U,O=A\\, B")
