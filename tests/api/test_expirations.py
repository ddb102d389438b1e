"""One list of everything with an end, which the check, doctor, the API, the alarms, the metrics and a reload read."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from msgspec.structs import replace

from starlingmq import Broker
from starlingmq.admin.expirations import DAY, Expiration, expirations
from starlingmq.cli.doctor import findings
from starlingmq.cli.doctor_checks import Level
from starlingmq.config.settings import load_config
from tests.cli.commands import run

from .conftest import Ask, Serve

NOW = 1_800_000_000.0


def revocation_list(authority: trustme.CA, days: float, lifetime: float = 365) -> bytes:
    """An empty list in PEM, of which the next one is due in ``days``."""
    now = datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer)
    builder = builder.last_update(now + timedelta(days=days - lifetime)).next_update(now + timedelta(days=days))
    key = load_pem_private_key(authority.private_key_pem.bytes(), None)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]  # an EC key


class Files:
    """An authority, a listener's certificate, and a revocation list that can be written again."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA(organization_name="Example")
        self.cert, self.ca, self.crl = (directory / name for name in ("node.pem", "ca.pem", "crl.pem"))
        self.authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(self.cert)
        self.authority.cert_pem.write_to_path(self.ca)
        self.cert.chmod(0o600)

    def lists(self, *days: float) -> None:
        self.crl.write_bytes(b"".join(revocation_list(self.authority, one) for one in days))

    def listener(self) -> dict[str, Any]:
        tls = {"cert": str(self.cert), "ca": str(self.ca), "crl": [str(self.crl)]}
        return {"url": "mqtts://127.0.0.1:0", "tls": tls}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def alarms(broker: Broker, ask: Ask) -> list[tuple[str, str, str]]:
    assert broker._admin is not None
    broker._admin.alarms.conditions._slow_again = 0.0
    await broker._admin.alarms.look()
    found = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    return [(one["severity"], one["text"], one["next"]) for one in found if one["kind"] == "certificate"]


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (-0.5, Level.problem, "every client with a certificate of this authority is refused"),
        (2.52, Level.warning, "in 60 hours"),
        (10.5, Level.warning, "in 10 days"),
        (90.5, Level.ok, "in 90 days"),
    ],
)
def test_the_check_and_doctor_name_a_revocation_list_that_ends(
    files: Files, days: float, level: Level, words: str
) -> None:
    files.lists(days)
    chosen = f"listeners=[{json.dumps(files.listener())}]"
    (found,) = [one for one in findings(None, [chosen]) if one.subject == "revocation list"]
    assert found.level is level and words in found.text and f"{files.crl} (listeners[0].tls.crl[0])" in found.text
    code, output, errors = run("config", "check", "--set", chosen)
    assert (code, output) == (0, b"ok: the default configuration\n")
    assert (words in errors) is (level is not Level.ok)


async def test_an_expired_revocation_list_is_an_alarm_a_row_and_a_metric_before_and_after_its_end(
    serve: Serve, ask: Ask, files: Files
) -> None:
    files.lists(20.5)
    broker = await serve(listeners=["http://127.0.0.1:0", files.listener()])
    ((severity, text, advice),) = await alarms(broker, ask)
    assert severity == "warning" and "in 20 days" in text and advice == "renew it, then run starlingmq ctl reload"
    listed = (await ask(broker, "GET", "/api/v1/certificates")).json()["certificates"]
    row = next(one for one in listed if one["kind"] == "revocation list")
    assert (row["file"], row["setting"], row["days"]) == (str(files.crl), "listeners[1].tls.crl[0]", 20)
    assert row["left"] == "20 days"
    assert row["state"] == "soon" and {one["kind"] for one in listed} == {"certificate", "authority", "revocation list"}
    metrics = (await ask(broker, "GET", "/metrics")).text
    (line,) = [one for one in metrics.splitlines() if "seconds{" in one and 'kind="revocation list"' in one]
    assert float(line.split()[-1]) == pytest.approx(time.time() + 20.5 * DAY, abs=60)

    files.lists(-1)
    ((severity, text, _),) = await alarms(broker, ask)
    assert severity == "critical" and "every client with a certificate of this authority is refused" in text


async def test_a_reload_to_an_expired_list_warns_and_a_renewed_file_helps_only_after_a_reload(
    serve: Serve, ask: Ask, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.lists(90)
    broker = await serve(listeners=["http://127.0.0.1:0", files.listener()])
    assert await alarms(broker, ask) == []
    files.lists(-1)
    with caplog.at_level(logging.WARNING):
        broker.reload(replace(broker.config))
    (line,) = [one.getMessage() for one in caplog.records if "revocation list" in one.getMessage()]
    assert line.startswith("the settings were reloaded, but revocation list") and str(files.crl) in line
    files.lists(90)
    ((severity, _, advice),) = await alarms(broker, ask)
    assert severity == "critical" and "this node uses the earlier content: run starlingmq ctl reload" in advice
    caplog.clear()
    broker.reload(replace(broker.config))
    assert "revocation list" not in caplog.text
    files.lists(5.5)
    broker.load = lambda: broker.config
    reloaded = (await ask(broker, "POST", "/api/v1/reload")).json()["nodes"][broker.config.node.name]
    (line,) = reloaded["warnings"]
    assert "in 5 days" in line and "revocation list" in line
    (line,) = reloaded["certificates"]
    assert re.fullmatch(rf"certificate .*in {files.cert} \(listeners\[1\].tls.cert\) ends on .*, in [0-9,]+ days", line)
    files.lists(90)
    broker.reload(broker.config)
    listed = (await ask(broker, "GET", "/api/v1/certificates")).json()["certificates"]
    assert {one["state"] for one in listed} == {"valid"}


def test_the_check_and_doctor_name_an_authority_without_a_revocation_list(files: Files) -> None:
    """TLS refuses all its clients, whatever the lists of the others say. One that only issues others needs none."""
    files.lists(90)
    chosen = f"listeners=[{json.dumps(files.listener())}]"
    assert not [one for one in findings(None, [chosen]) if one.level is Level.problem and "list" in one.subject]
    other = trustme.CA(organization_name="Other")
    between = other.create_child_ca()
    files.ca.write_bytes(b"".join(one.cert_pem.bytes() for one in (files.authority, other, between)))
    (found,) = [one for one in findings(None, [chosen]) if one.level is Level.problem and "list" in one.subject]
    assert "listeners[0].tls.crl" in found.text and "every client with a certificate of this authority" in found.text
    _, _, errors = run("config", "check", "--set", chosen)
    assert "listeners[0].tls.crl: has no list of" in errors
    files.crl.write_bytes(files.crl.read_bytes() + revocation_list(between, 90))
    assert "has no list" not in run("config", "check", "--set", chosen)[2]


async def test_a_list_that_was_renewed_early_is_no_alarm_before_the_earlier_one_ends_soon(
    serve: Serve, ask: Ask, files: Files
) -> None:
    """It is made for six days, and renewed each day; the node uses the earlier one until a reload."""
    files.crl.write_bytes(revocation_list(files.authority, 5, lifetime=6))
    broker = await serve(listeners=["http://127.0.0.1:0", files.listener()])
    assert await alarms(broker, ask) == []
    files.crl.write_bytes(revocation_list(files.authority, 6, lifetime=6))
    assert await alarms(broker, ask) == []


def test_the_check_refuses_a_revocation_list_with_which_the_broker_would_not_start(files: Files) -> None:
    files.crl.write_bytes(files.ca.read_bytes())
    code, _, errors = run("config", "check", "--set", f"listeners=[{json.dumps(files.listener())}]")
    assert code == 2 and "contains no -----BEGIN X509 CRL-----" in errors


def test_what_is_not_valid_yet_is_critical() -> None:
    early = Expiration("certificate", "n", "listeners[0].tls.cert", "n.pem", NOW + 5 * DAY, NOW + 300 * DAY)
    assert early.state(NOW, 30) == "critical"
    assert early.text(NOW).startswith("certificate 'n' in n.pem (listeners[0].tls.cert) is not valid before 2027-01-20")


def test_of_several_lists_of_one_authority_the_last_counts(files: Files) -> None:
    files.lists(-5, 90, 3)
    (row,) = found(files, "revocation list")
    assert row.state(time.time(), 30) == "valid"
    other = Files(files.ca.parent)
    other.crl.write_bytes(revocation_list(files.authority, 90) + revocation_list(other.authority, 3.5))
    (row,) = found(other, "revocation list")
    assert row.days(time.time()) == 3, "each authority needs a list"


def found(files: Files, kind: str, *overrides: str) -> list[Expiration]:
    config = load_config(None, [f"listeners=[{json.dumps(files.listener())}]", *overrides], {})
    return [one for one in expirations(config) if one.kind == kind]


def test_a_file_of_several_listeners_is_one_row_with_all_settings(files: Files) -> None:
    files.lists(5)
    two = json.dumps([files.listener(), files.listener() | {"url": "wss://127.0.0.1:0/mqtt"}])
    rows = [one for one in expirations(load_config(None, [f"listeners={two}"], {})) if one.kind == "certificate"]
    assert [one.setting for one in rows] == ["listeners[0].tls.cert, listeners[1].tls.cert"]


@pytest.mark.parametrize(
    ("lifetime", "left", "state"),
    [
        (365, 31, "valid"),
        (365, 29, "soon"),
        (365, 6, "critical"),
        (365, -0.1, "ended"),
        (6, 3, "valid"),  # a list that is made every day for a week is not an alarm for ever
        (6, 1.5, "soon"),
        (6, 0.5, "critical"),
        (0, 29, "soon"),
    ],
)
def test_short_lives_are_told_in_their_last_third(lifetime: float, left: float, state: str) -> None:
    ends = NOW + left * DAY
    one = Expiration("certificate", "", "s", "f", ends - lifetime * DAY if lifetime else 0.0, ends)
    assert one.state(NOW, 30) == state


def token(**claims: float) -> str:
    parts = ({"alg": "HS256"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts) + ".c2ln"


@pytest.mark.parametrize(
    ("setting", "content"),
    [
        ("auth.api.token_file", "0123456789abcdef\n{}\n"),
        ("nats.token_file", "{}\n"),
        ("streams.token_file", "{}\n"),
        ("tracing.headers_file", "x-scope: a\nAuthorization: Bearer {}\n"),
    ],
)
def test_tokens_with_an_end_are_listed_and_others_are_not(tmp_path: Path, setting: str, content: str) -> None:
    path = tmp_path / "token"
    chosen = [f"{setting}={path}", "tracing.endpoint=http://127.0.0.1:4318", f"node.data_dir={tmp_path}"]
    path.write_text(content.format(token(iat=NOW - 9 * DAY, exp=NOW)))
    (row,) = expirations(load_config(None, chosen, {}))
    assert (row.kind, row.setting, row.file, row.begins, row.ends) == (
        "token", setting, str(path), NOW - 9 * DAY, NOW
    )  # fmt: skip
    path.write_text(content.format(token(iat=NOW)) + "some.thing.else with three words of dots 1.2.3\n")
    assert expirations(load_config(None, chosen, {})) == []


@pytest.mark.parametrize("wrong", ["1764316800000", "9999999999999999", "Infinity", "1" + "0" * 400])
def test_a_token_with_a_time_that_is_none_in_seconds_has_no_end(tmp_path: Path, wrong: str) -> None:
    claims = base64.urlsafe_b64encode(b'{"iat": %b, "exp": %b}' % (wrong.encode(), wrong.encode())).rstrip(b"=")
    (tmp_path / "token").write_bytes(b"a." + claims + b".c\n")
    found = expirations(load_config(None, [f"streams.token_file={tmp_path / 'token'}"]))
    assert [one.text(NOW) for one in found] == []


def test_a_token_in_a_header_of_the_login_service_is_listed_without_the_token() -> None:
    secret = token(exp=NOW)
    headers = json.dumps([f"Authorization: Bearer {secret}"])
    (row,) = expirations(load_config(None, [f"auth.http.headers={headers}", "auth.http.url=https://a.example"], {}))
    assert row.place == "auth.http.headers" and row.ends == NOW
    assert secret not in row.text(NOW - 1) + row.advice() + repr(row)


def test_a_key_set_ends_with_its_last_key(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "jwks.json"
    leaf = trustme.CA().issue_cert("issuer.example", not_after=datetime.fromtimestamp(NOW + DAY, UTC))
    der = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).public_bytes(Encoding.DER)
    keys: list[dict[str, Any]] = [{"kid": "a", "exp": NOW}, {"kid": "b", "x5c": [base64.b64encode(der).decode()]}]

    def rows() -> list[tuple[str, float | None]]:
        path.write_text(json.dumps({"keys": keys}))
        found = expirations(load_config(None, [f"auth.jwt.jwks_file={path}"], {}))
        return [(one.name, one.ends) for one in found]

    assert rows() == [("b", NOW + DAY)]
    keys.append({"kid": "for ever"})
    assert rows() == []
    path.write_text("nonsense")
    (row,) = expirations(load_config(None, [f"auth.jwt.jwks_file={path}"], {}))
    assert row.ends is None and "is not a JSON Web Key Set" in row.problem


def test_the_authorities_and_certificates_of_a_cluster_are_listed(files: Files) -> None:
    chosen = ["cluster.enabled=true", "cluster.secret=0123456789abcdef", f"node.data_dir={files.ca.parent}"]
    chosen += [f"cluster.tls.{name}={path}" for name, path in (("cert", files.cert), ("key", files.cert))]
    chosen += [f"cluster.tls.ca={files.ca}", "cluster.etcd.endpoints=[127.0.0.1:2379]"]
    etcd = {"ca": str(files.ca), "cert": str(files.cert), "key": str(files.cert)}
    config = load_config(None, [*chosen, f"cluster.etcd.tls={json.dumps(etcd)}"], {})
    rows = {one.setting: one.kind for one in expirations(config)}
    assert rows == {
        "cluster.tls.cert, cluster.etcd.tls.cert": "certificate",
        "cluster.tls.ca, cluster.etcd.tls.ca": "authority",
    }
    assert all(one.advice() == "renew it, then restart the node" for one in expirations(config))
