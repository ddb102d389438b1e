"""``starlingmq doctor`` tries the servers and files of bridges."""

from __future__ import annotations

import json
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
import trustme

from starlingmq.cli.doctor import findings
from starlingmq.cli.doctor_checks import CheckResult, Level
from starlingmq.cli.local_cluster import free_port


def checked(*servers: str, **more: Any) -> list[CheckResult]:
    bridge = {"name": "hub", "servers": servers, "topics": [{"filter": "out/#"}], **more}
    found = findings(None, ["listeners=[]", f"bridges=[{json.dumps(bridge)}]"])
    return [each for each in found if each.subject == "bridge hub"]


def test_a_server_that_answers_is_good_and_one_that_does_not_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there, gone = f"mqtt://127.0.0.1:{server.getsockname()[1]}", f"mqtt://127.0.0.1:{free_port()}"
        (found,) = checked(there)
        assert found.level is Level.ok and found.text == f"{there} answers"
        assert [each.level for each in checked(gone, there)] == [Level.warning, Level.ok]
        (found,) = checked(gone)
        assert found.level is Level.problem and found.text == f"no broker listens at {gone}"
    (found,) = checked("mqtts://no.such.host.invalid")
    assert found.level is Level.problem and "not found" in found.text


@pytest.mark.parametrize("scheme", ["kafka", "nats"])
def test_servers_of_other_kinds_are_tried(scheme: str) -> None:
    out = [{"filter": "out/#", "rename": "out"}]
    with socket.create_server(("127.0.0.1", 0)) as server:
        there, gone = f"{scheme}://127.0.0.1:{server.getsockname()[1]}", f"{scheme}://127.0.0.1:{free_port()}"
        (found,) = checked(there, topics=out)
        assert found.level is Level.ok and found.text == f"{there} answers"
        (found,) = checked(gone, topics=out)
        assert found.level is Level.problem and found.text == f"no broker listens at {gone}"


def test_the_client_of_kafka_is_missed() -> None:
    out = [{"filter": "out/#", "rename": "out"}]
    with patch.dict(sys.modules, {"confluent_kafka": None}):
        found = checked(f"kafka://127.0.0.1:{free_port()}", topics=out)
    assert found[0].level is Level.problem and "starlingmq[kafka]" in found[0].advice


@contextmanager
def shaking_hands(context: ssl.SSLContext) -> Iterator[int]:
    """A server that does TLS handshakes, one after the other."""

    def serve(server: socket.socket) -> None:
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            try:
                context.wrap_socket(one, server_side=True).close()
            except OSError:
                one.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=serve, args=(server,))
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_server_whose_certificate_is_of_another_authority_is_a_problem(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    for name, one in (("right.pem", authority), ("wrong.pem", other)):
        one.cert_pem.write_to_path(tmp_path / name)
    with shaking_hands(context) as port:
        server = f"mqtts://localhost:{port}"
        (found,) = checked(server, tls={"ca": str(tmp_path / "right.pem")})
        assert found.level is Level.ok, found.text
        (found,) = checked(server, tls={"ca": str(tmp_path / "wrong.pem")})
        assert found.level is Level.problem and "is not trusted" in found.text


@pytest.mark.parametrize("setting", ["tls.ca", "tls.cert", "credentials.password_file"])
def test_a_file_that_is_not_there_is_named_with_its_setting(tmp_path: Path, setting: str) -> None:
    section, _, name = setting.partition(".")
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        found = checked(at, **{section: {name: str(tmp_path / "none")}})
    (problem,) = [each for each in found if each.level is Level.problem]
    assert problem.text == f"{setting}: {tmp_path / 'none'}: No such file or directory"


@pytest.mark.parametrize(
    ("version", "direction", "warned"), [("3.1.1", "both", 1), ("5.0", "both", 0), ("3.1.1", "out", 0)]
)
def test_messages_that_may_go_round_are_warned_of(version: str, direction: str, warned: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        found = checked(at, version=version, topics=[{"filter": "a/#", "direction": direction}])
    assert len([each for each in found if each.level is Level.warning and "go round" in each.text]) == warned


def test_the_password_file_and_the_key_of_a_bridge_are_private_and_its_certificate_has_an_end(tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = tmp_path / "client.pem"
    authority.issue_cert("edge").private_key_and_cert_chain_pem.write_to_path(pair)
    secret = tmp_path / "password"
    secret.write_text("p\n")
    for path in (pair, secret):
        path.chmod(0o644)
    bridge = {
        "name": "hub",
        "servers": [f"mqtts://127.0.0.1:{free_port()}"],
        "topics": [{"filter": "out/#"}],
        "tls": {"cert": str(pair)},
        "credentials": {"username": "edge", "password_file": str(secret)},
    }
    found = findings(None, ["listeners=[]", f"bridges=[{json.dumps(bridge)}]"])
    advice = {each.advice for each in found if each.subject in ("private key", "secret")}
    assert advice == {f"chmod o= {pair}", f"chmod o= {secret}"}
    assert any(each.subject == "certificate" and "bridges[0].tls.cert" in each.text for each in found)
