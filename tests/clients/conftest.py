"""A broker in a process of its own, as its users run it, for clients that others wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

STOP_SECONDS = 20

SETTINGS = """\
listeners:
  - mqtt://127.0.0.1:0
  - ws://127.0.0.1:0/mqtt
  - url: mqtts://127.0.0.1:0
    tls: &tls {{cert: {directory}/server.pem, key: {directory}/server.key}}
  - url: wss://127.0.0.1:0/mqtt
    tls: *tls
  - nats://127.0.0.1:0
  - url: tls://127.0.0.1:0
    tls: *tls
  - unix://{directory}/broker.sock
  - url: mqtts://127.0.0.1:0
    tls:
      cert: {directory}/server.pem
      key: {directory}/server.key
      ca: {directory}/ca.pem
      require_client_cert: true
"""


class ServedBroker:
    """A running broker: ``addresses`` are the URLs its ``ready`` line named, ``ca`` the file that vouches for it."""

    def __init__(self, process: subprocess.Popen[str], addresses: list[str], ca: Path) -> None:
        self.process = process
        self.addresses = addresses
        self.ca = ca

    @property
    def directory(self) -> Path:
        """Where the certificates are: ca, and client.pem with client.key for the listener that asks for one."""
        return self.ca.parent

    @property
    def port_for_certificates(self) -> int:
        """Of the listener that lets in who shows a certificate."""
        return urlsplit(self.addresses[-1]).port or 0

    def address(self, scheme: str) -> str:
        return next(address for address in self.addresses if address.startswith(f"{scheme}://"))

    def port(self, scheme: str) -> int:
        port = urlsplit(self.address(scheme)).port
        assert port
        return port


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker with a listener of every kind; stopped, and looked at how it stopped, after the module's tests."""
    directory = tmp_path_factory.mktemp("broker")
    ca = _write_certificates(directory)
    (directory / "broker.yaml").write_text(SETTINGS.format(directory=directory))
    command = [sys.executable, "-m", "starlingmq", "serve", "-c", str(directory / "broker.yaml")]
    errors = directory / "stderr"
    with errors.open("w") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as run:
        try:
            assert run.stdout is not None
            word, *addresses = run.stdout.readline().split() or [""]
            assert word == "ready", f"the broker did not start:\n{errors.read_text()}"
            yield ServedBroker(run, addresses, ca)
            run.send_signal(signal.SIGTERM)
            assert run.wait(STOP_SECONDS) == 0, errors.read_text()
        finally:
            run.kill()
    said = errors.read_text()
    assert "Traceback" not in said, said
    assert not (directory / "broker.sock").exists()


def _write_certificates(directory: Path) -> Path:
    authority = trustme.CA()
    for name, hosts in (("server", ["localhost", "127.0.0.1"]), ("client", ["ann.example"])):
        issued = authority.issue_cert(*hosts, common_name=hosts[0])
        issued.cert_chain_pems[0].write_to_path(os.fspath(directory / f"{name}.pem"))
        issued.private_key_pem.write_to_path(os.fspath(directory / f"{name}.key"))
    authority.cert_pem.write_to_path(os.fspath(directory / "ca.pem"))
    return directory / "ca.pem"
