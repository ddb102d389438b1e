"""Logins by OpenID Connect: with a real provider, and with one that lies, is slow, or is not there."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from starlingmq import Broker
from starlingmq.api import guard, oidc_login
from starlingmq.auth import oidc_provider
from starlingmq.auth.oidc_outcome import ProviderUnavailable
from starlingmq.config.settings import ConfigError, from_tree
from tests.patience import within

from .conftest import Ask, Certificates, Passwd, Serve
from .providers import (
    HostileProvider,
    Key,
    Person,
    bearer,
    free_port,
    hostile_provider,
    needs_provider,
    real_provider,
    settings,
)

OURS: Final = Key("ours")
FOREIGN: Final = Key("ours")  # the same id, another key
PUBLISH: Final = {"topic": "a", "payload": "x"}


async def begin(ask: Ask, broker: Broker) -> dict[str, str]:
    answer = await started(ask, broker)
    assert answer.status_code == 200, answer.text
    told: dict[str, str] = answer.json()
    return told


async def started(ask: Ask, broker: Broker) -> httpx.Response:
    return await ask(broker, "POST", "/api/v1/login/start", json={})


async def finish(ask: Ask, broker: Broker, sent: dict[str, str], attempt: str) -> httpx.Response:
    body = {"code": sent.get("code", ""), "state": sent["state"], "attempt": attempt, "issuer": sent.get("iss", "")}
    return await ask(broker, "POST", "/api/v1/login/finish", json=body)


@asynccontextmanager
async def person(name: str) -> AsyncIterator[Person]:
    found = Person(name)
    try:
        yield found
    finally:
        await found.close()


async def log_in(ask: Ask, broker: Broker, name: str) -> httpx.Response:
    begun = await begin(ask, broker)
    async with person(name) as browser:
        return await finish(ask, broker, await browser.log_in(begun["address"]), begun["attempt"])


# With a real provider


@needs_provider
@pytest.mark.parametrize("in_token", [True, False])
async def test_an_operator_logs_in_and_the_log_names_the_person(
    serve: Serve, ask: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture, in_token: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with real_provider(in_token=in_token) as issuer:
        broker = await serve(auth=settings(issuer, tmp_path))
        assert (await ask(broker, "GET", "/api/v1/login")).json() == {"provider": urlsplit(issuer).netloc}
        assert (await ask(broker, "GET", "/api/v1/overview")).status_code == 401
        told = (await log_in(ask, broker, "olga")).json()
    assert (told["user"], told["role"], told["expires_in"]) == ("oidc:olga", "operator", 3600)
    assert "oidc:olga logged in to the HTTP API from 127.0.0.1 as operator" in caplog.text
    ban = {"kind": "client", "name": "intruder", "seconds": 60}
    answer = await ask(broker, "POST", "/api/v1/bans", json=ban, headers=bearer(told))
    assert answer.status_code in (200, 201), answer.text
    actions = (await ask(broker, "GET", "/api/v1/actions", headers=bearer(told))).json()
    assert "oidc:olga on " in json.dumps(actions)


@needs_provider
async def test_groups_decide_what_a_person_may_do(
    serve: Serve, ask: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with real_provider() as issuer:
        broker = await serve(auth=settings(issuer, tmp_path))
        told = (await log_in(ask, broker, "vera")).json()
        nobody = await log_in(ask, broker, "nils")
    assert told["role"] == "viewer"
    assert (await ask(broker, "GET", "/api/v1/overview", headers=bearer(told))).status_code == 200
    assert (await ask(broker, "GET", "/api/v1/tail?filter=%23", headers=bearer(told))).status_code == 403
    assert (await ask(broker, "POST", "/api/v1/publish", json=PUBLISH, headers=bearer(told))).status_code == 403
    assert nobody.status_code == 403 and "token" not in nobody.json()
    assert "login from 127.0.0.1 to the HTTP API refused: by OpenID Connect: user 'nils' is in no group" in caplog.text


@needs_provider
async def test_a_public_client_logs_in_without_a_secret(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    async with real_provider() as issuer:
        auth = settings(issuer, tmp_path, client_id="public", client_secret_file="")
        assert (await log_in(ask, await serve(auth=auth), "olga")).status_code == 200


@needs_provider
async def test_a_login_is_finished_once_and_by_the_browser_that_began_it(
    serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    async with real_provider() as issuer:
        broker = await serve(auth=settings(issuer, tmp_path))
        mine, other = await begin(ask, broker), await begin(ask, broker)
        async with person("olga") as browser:
            sent = await browser.log_in(mine["address"])
        stolen = await finish(ask, broker, sent, other["attempt"])
        assert stolen.status_code == 403 and "another browser (state)" in stolen.text
        changed = await finish(ask, broker, {**sent, "state": "x"}, mine["attempt"])
        assert changed.status_code == 403 and "another browser (state)" in changed.text
        assert (await finish(ask, broker, sent, mine["attempt"])).status_code == 200
        again = await finish(ask, broker, sent, mine["attempt"])
        assert again.status_code == 403 and "used already" in again.text


@needs_provider
async def test_any_node_of_a_cluster_finishes_a_login_once_and_knows_its_session(
    serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    """Two brokers with the same ``cluster.secret``, by which alone nodes know attempts and sessions of each other."""
    async with real_provider() as issuer:
        auth = settings(issuer, tmp_path)
        secret = {"secret": "a-secret-of-the-cluster-0123456789"}
        first, second = await serve(auth=auth, cluster=secret), await serve(auth=auth, cluster=secret)
        stranger = await serve(auth=auth)
        begun = await begin(ask, first)
        async with person("olga") as browser:
            sent = await browser.log_in(begun["address"])
        assert "another broker" in (await finish(ask, stranger, sent, begun["attempt"])).text
        told = (await finish(ask, second, sent, begun["attempt"])).json()
        again = await finish(ask, first, sent, begun["attempt"])
    assert again.status_code == 403 and "refuses: invalid_grant" in again.text
    for broker, status in ((first, 200), (second, 200), (stranger, 401)):
        assert (await ask(broker, "GET", "/api/v1/overview", headers=bearer(told))).status_code == status


@needs_provider
async def test_new_keys_of_the_provider_are_fetched(
    serve: Serve, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_provider, "RETRY_SECONDS", 0.0)
    port = free_port()
    async with real_provider(port=port) as issuer:
        broker = await serve(auth=settings(issuer, tmp_path))
        assert (await log_in(ask, broker, "olga")).status_code == 200
    async with real_provider(port=port):
        assert (await log_in(ask, broker, "olga")).status_code == 200


@needs_provider
async def test_a_code_is_worth_nothing_with_the_verifier_of_another_login(
    serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    async with real_provider() as issuer:
        broker = await serve(auth=settings(issuer, tmp_path))
        victim, thief = await begin(ask, broker), await begin(ask, broker)
        async with person("olga") as browser:
            code = (await browser.log_in(victim["address"]))["code"]
        state = parse_qs(urlsplit(thief["address"]).query)["state"][0]
        answer = await finish(ask, broker, {"code": code, "state": state}, thief["attempt"])
        assert answer.status_code == 403 and "refuses: invalid_grant" in answer.text


# With a provider that lies


@pytest.fixture
async def hostile() -> AsyncIterator[HostileProvider]:
    async with hostile_provider(OURS) as provider:
        yield provider


async def lied(ask: Ask, broker: Broker, provider: HostileProvider) -> httpx.Response:
    """The answer to a login at this provider."""
    begun = await begin(ask, broker)
    asked = parse_qs(urlsplit(begun["address"]).query)
    provider.nonce = provider.nonce or asked["nonce"][0]
    sent = {"code": "x", "state": asked["state"][0], "iss": provider.issuer}
    answer = await finish(ask, broker, sent, begun["attempt"])
    provider.nonce = ""
    return answer


def part(told: object) -> str:
    """One of the parts of a token."""
    return jwt.utils.base64url_encode(json.dumps(told).encode()).decode()


def signed(claims: dict[str, Any], key: Key, algorithm: str = "RS256", kid: str = "ours") -> str:
    return jwt.encode(claims, key.private, algorithm, headers={"kid": kid})


def unsigned(claims: dict[str, Any], **header: str) -> str:
    return f"{part({'alg': 'none', **header})}.{part(claims)}."


def with_hmac(claims: dict[str, Any]) -> str:
    """Signed with the public key, as if it were a shared secret."""
    body = f"{part({'alg': 'HS256', 'kid': 'ours'})}.{part(claims)}"
    key = OURS.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return f"{body}.{jwt.utils.base64url_encode(hmac.digest(key, body.encode(), 'sha256')).decode()}"


def changed(claims: dict[str, Any]) -> str:
    header, _, signature = signed(claims, OURS).split(".")
    return f"{header}.{part({**claims, 'sub': '2'})}.{signature}"


LIES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "another nonce": ({"nonce": "x"}, "another login (nonce)"),
    "no nonce": ({"nonce": None}, "another login (nonce)"),
    "a nonce that is no text": ({"nonce": ["x"]}, "another login (nonce)"),
    "another audience": ({"aud": "other"}, "another client (aud)"),
    "no audience": ({"aud": None}, "lacks a required claim"),
    "several audiences, no azp": ({"aud": ["broker", "other"]}, "another client (azp)"),
    "azp of another client": ({"azp": "other"}, "another client (azp)"),
    "another issuer": ({"iss": "https://evil.example"}, "another issuer (iss)"),
    "a longer issuer": ({"iss": "ISSUER/"}, "another issuer (iss)"),
    "expired": ({"exp": 1000}, "has expired (exp)"),
    "no expiry": ({"exp": None}, "lacks a required claim"),
    "an expiry that is no number": ({"exp": "x"}, "is not valid"),
    "from the future": ({"iat": 9999999999}, "is not valid yet"),
    "not valid yet": ({"nbf": 9999999999}, "is not valid yet"),
    "no subject": ({"sub": None}, "lacks a required claim"),
    "no name": ({"preferred_username": ""}, "no usable user name"),
    "a name of two lines": ({"preferred_username": "olga\nroot"}, "no usable user name"),
    "a name that is a number": ({"preferred_username": 1}, "no usable user name"),
    "no group of ours": ({"groups": ["brokers2", ["brokers"], 1]}, "is in no group"),
    "groups in an object": ({"groups": {"brokers": True}}, "is in no group"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_id_token_that_is_not_right_lets_nobody_in(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, lie: str
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    assert (await lied(ask, broker, hostile)).status_code == 200
    claims, problem = LIES[lie]
    hostile.userinfo = {"sub": "1"}
    hostile.claims = {
        name: one.replace("ISSUER", hostile.issuer) if isinstance(one, str) else one for name, one in claims.items()
    }
    answer = await lied(ask, broker, hostile)
    assert answer.status_code == 403 and problem in answer.json()["error"], answer.text


FORGED: Final[dict[str, tuple[Callable[[dict[str, Any]], str], str]]] = {
    "none": (unsigned, "not signed by a key"),
    "none, with our id": (lambda claims: unsigned(claims, kid="ours"), "not signed by a key"),
    "HMAC with the public key": (with_hmac, "not signed by a key"),
    "a foreign key": (lambda claims: signed(claims, FOREIGN), "not signed by a key"),
    "an unknown key": (lambda claims: signed(claims, FOREIGN, kid="x"), "not signed by a key"),
    "another algorithm": (lambda claims: signed(claims, OURS, "RS512"), "not signed by a key"),
    "a changed claim": (changed, "not signed by a key"),
    "no token": (lambda claims: "x", "no signed JSON Web Token"),
    "an empty one": (lambda claims: "", "no signed JSON Web Token"),
    "brackets": (
        lambda claims: jwt.utils.base64url_encode(b"[" * 9000).decode() + ".e30.x",
        "no signed JSON Web Token",
    ),
}


@pytest.mark.parametrize("forgery", FORGED)
async def test_an_id_token_of_another_signer_lets_nobody_in(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, forgery: str
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.token, problem = FORGED[forgery]
    answer = await lied(ask, broker, hostile)
    assert answer.status_code == 403 and problem in answer.json()["error"], answer.text
    hostile.token = hostile.signed
    assert (await lied(ask, broker, hostile)).status_code == 200


async def test_userinfo_about_another_person_does_not_count(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.claims = {"groups": None}
    for told, status in (({"sub": "2", "groups": ["brokers"]}, 403), ({"sub": "1", "groups": ["brokers"]}, 200)):
        hostile.userinfo = told
        assert (await lied(ask, broker, hostile)).status_code == status
    hostile.claims = {"groups": ["staff"]}  # the ID token precedes
    assert (await lied(ask, broker, hostile)).status_code == 403


async def test_a_group_may_be_in_an_object_and_one_text(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path, roles_claim="realm.roles"))
    for claims in ({"realm": {"roles": "brokers"}}, {"realm.roles": ["x", "brokers"]}):
        hostile.claims = claims
        assert (await lied(ask, broker, hostile)).status_code == 200


async def test_an_answer_of_another_issuer_is_refused_before_its_code_is_sent_on(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    begun = await begin(ask, broker)
    state = parse_qs(urlsplit(begun["address"]).query)["state"][0]
    answer = await finish(ask, broker, {"code": "x", "state": state, "iss": "https://evil.example"}, begun["attempt"])
    assert answer.status_code == 403 and "/token" not in hostile.asked


BAD_METADATA: Final[dict[str, Any]] = {
    "issuer": "https://evil.example",
    "token_endpoint": "http://evil.example/token",
    "authorization_endpoint": "javascript:alert(1)",
    "jwks_uri": "https://user@evil.example/",
    "end_session_endpoint": "https://",
    "userinfo_endpoint": 7,
}


@pytest.mark.parametrize("name", BAD_METADATA)
async def test_metadata_that_is_not_safe_is_not_used(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, name: str
) -> None:
    hostile.metadata = {name: BAD_METADATA[name]}
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    answer = await started(ask, broker)
    assert answer.status_code == 503 and "provider" in answer.json()["error"], answer.text


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
async def test_metadata_that_lacks_an_address_is_not_used(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, name: str
) -> None:
    hostile.metadata = {name: "", "userinfo_endpoint": None}
    answer = await started(ask, await serve(auth=settings(hostile.issuer, tmp_path)))
    assert answer.status_code == 503 and f"no usable {name}" in answer.json()["error"], answer.text


async def test_a_key_that_cannot_be_used_does_not_spoil_the_others(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broken: list[Any] = [{"kty": "oct"}, {"kty": ["RSA"]}, 7, {"kty": "EC", "crv": "P-256", "x": 1, "y": []}]
    hostile.keys = [*broken, *hostile.keys]
    assert (await lied(ask, await serve(auth=settings(hostile.issuer, tmp_path)), hostile)).status_code == 200
    hostile.keys = broken
    answer = await lied(ask, await serve(auth=settings(hostile.issuer, tmp_path)), hostile)
    assert answer.status_code == 503 and "no usable keys" in answer.text


BAD_BODIES: Final = {"deep": b"[" * 100_000, "text": b"hello", "list": b"[]", "none": b" "}


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/jwks", "/token", "/me"])
async def test_answers_that_make_no_sense_are_refused_with_one_line(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_provider, "RETRY_SECONDS", 0.0)
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.claims = {"groups": None}
    long = json.dumps(hostile.answer(path, {})).encode() + b" " * (1 << 20)
    for name, body in {**BAD_BODIES, "long": long}.items():
        hostile.raw = {path: body}
        answer = await started(ask, broker)
        if path in ("/jwks", "/token", "/me"):
            answer = await lied(ask, broker, hostile)
        assert answer.status_code == 503 and "\n" not in answer.json()["error"], (name, answer.text)


async def test_wrong_settings_of_the_broker_at_the_provider_ban_no_person(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    """A secret that was renewed at the provider alone."""
    auth = settings(hostile.issuer, tmp_path)
    auth["failures"]["limit"] = 2
    broker = await serve(auth=auth)
    hostile.status = {"/token": 401}
    hostile.raw = {"/token": b'{"error": "invalid_client"}'}
    for _ in range(4):
        answer = await lied(ask, broker, hostile)
        assert answer.status_code == 503 and "refuses: invalid_client" in answer.text
    hostile.status, hostile.raw = {}, {}
    assert (await lied(ask, broker, hostile)).status_code == 200


async def test_a_cookie_of_the_provider_is_not_sent_with_the_login_of_another_person(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.more = "set-cookie: session=olga; path=/\r\n"
    for _ in range(2):
        assert (await lied(ask, broker, hostile)).status_code == 200
    assert len(hostile.heads) > 3 and not any("cookie" in head.lower() for head in hostile.heads)


async def test_a_provider_elsewhere_names_no_services_of_this_machine(
    serve: Serve, ask: Ask, tmp_path: Path, certificates: Certificates
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("localhost"))
    async with hostile_provider(OURS, context) as provider:
        provider.metadata = {"jwks_uri": "http://127.0.0.1:8080/jwks"}
        answer = await started(ask, await serve(auth=settings(provider.issuer, tmp_path, ca=certificates.ca)))
        assert answer.status_code == 503 and "no usable jwks_uri" in answer.text


# Time and work


async def test_strangers_do_not_make_the_broker_fetch_keys_or_metadata_often(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.token = lambda claims: signed(claims, FOREIGN, kid="unknown")
    for _ in range(5):
        assert (await lied(ask, broker, hostile)).status_code == 403
    assert hostile.asked.count("/jwks") == 1
    assert hostile.asked.count("/.well-known/openid-configuration") == 1


async def test_a_provider_with_an_error_is_not_asked_again_at_once(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.raw = {"/.well-known/openid-configuration": b"[]"}
    for _ in range(3):
        assert (await started(ask, broker)).status_code == 503
    assert len(hostile.asked) == 1


async def test_a_provider_that_is_down_is_asked_rarely_and_passwords_go_on(
    serve: Serve, ask: Ask, tmp_path: Path, passwd: Passwd, caplog: pytest.LogCaptureFixture
) -> None:
    auth = settings(f"http://127.0.0.1:{free_port()}", tmp_path)
    auth["password"] = {"file": passwd(ann="right")}
    auth["api"]["users"] = ["ann"]
    broker = await serve(auth=auth)
    for _ in range(3):
        answer = await started(ask, broker)
        assert answer.status_code == 503 and "not available" in answer.text
    assert (await ask(broker, "GET", "/api/v1/overview", auth=("ann", "right"))).status_code == 200
    assert "refused: the OpenID Connect provider is not available" in caplog.text


async def test_a_provider_that_does_not_answer_holds_up_few_and_nobody_else(
    serve: Serve, ask: Ask, tmp_path: Path, passwd: Passwd, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = settings(hostile.issuer, tmp_path)
    auth["password"] = {"file": passwd(ann="right")}
    auth["api"]["users"] = ["ann"]
    broker = await serve(auth=auth)
    hostile.silent = {"/.well-known/openid-configuration"}
    monkeypatch.setattr(oidc_provider, "ANSWER_SECONDS", 600.0)
    monkeypatch.setattr(oidc_login, "PATIENCE_SECONDS", 600.0)
    async with within(60), asyncio.TaskGroup() as group:
        waiting = [group.create_task(started(ask, broker)) for _ in range(guard.PROVIDER_LOG_INS_PER_ADDRESS + 1)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status_code for task in done] == [429]
        assert (await ask(broker, "GET", "/api/v1/overview", auth=("ann", "right"))).status_code == 200
        assert len([task for task in waiting if task.done()]) == 1
        await hostile.waits.wait()
        hostile.hang_up()
    assert sorted(task.result().status_code for task in waiting) == [429, 503, 503, 503, 503]
    assert len(hostile.asked) == 1


async def test_a_login_does_not_wait_longer_for_a_silent_provider_than_it_has_to(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.silent = {"/token"}
    for module, name in ((oidc_provider, "ANSWER_SECONDS"), (oidc_login, "PATIENCE_SECONDS")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 0.5)
            answer = await lied(ask, broker, hostile)
        assert answer.status_code == 503 and " within " in answer.text, answer.text


async def test_an_address_that_floods_the_provider_with_codes_is_banned(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    auth = settings(hostile.issuer, tmp_path)
    auth["failures"]["limit"] = 3
    broker = await serve(auth=auth)
    hostile.raw = {"/token": b'{"id_token": "x"}'}
    for _ in range(3):
        assert (await lied(ask, broker, hostile)).status_code == 403
    asked = len(hostile.asked)
    answer = await started(ask, broker)
    assert answer.status_code == 403 and "banned" in answer.text and len(hostile.asked) == asked


async def test_outstanding_logins_take_no_memory_and_used_ones_are_bounded(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_login, "USED_MAX", 3)
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    assert broker._http is not None
    oidc = broker._http._guard.access.oidc
    assert oidc is not None
    for _ in range(5):
        await begin(ask, broker)
    assert len(oidc._used) == 0
    for _ in range(5):
        assert (await lied(ask, broker, hostile)).status_code == 200
    assert len(oidc._used) == 3


async def test_the_certificate_of_the_provider_is_checked_against_the_authority_of_the_settings(
    serve: Serve, ask: Ask, tmp_path: Path, certificates: Certificates
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("localhost"))
    async with hostile_provider(OURS, context) as provider:
        broker = await serve(auth=settings(provider.issuer, tmp_path, ca=certificates.ca))
        assert (await lied(ask, broker, provider)).status_code == 200
        for issuer, ca in ((provider.issuer, ""), (provider.issuer.replace("localhost", "127.0.0.1"), certificates.ca)):
            provider.asked.clear()
            answer = await started(ask, await serve(auth=settings(issuer, tmp_path, ca=ca)))
            assert answer.status_code == 503 and "certificate verify failed" in answer.text.lower(), answer.text
            assert provider.asked == []


async def test_wrong_and_banned_logins_keep_no_slot_from_others(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused without delay, so a few addresses cannot fill the slots while the provider answers."""
    auth = settings(hostile.issuer, tmp_path)
    auth["failures"] = {"delay": 5, "limit": 3}
    broker = await serve(auth=auth)

    async def delayed(seconds: float) -> None:
        raise AssertionError(f"a delay of {seconds} s")

    monkeypatch.setattr("starlingmq.api.guard.asyncio", SimpleNamespace(sleep=delayed))
    hostile.raw = {"/token": b'{"id_token": "x"}'}
    for problem in ("no signed", "no signed", "no signed", "banned"):
        if problem == "banned":
            answer = await started(ask, broker)
        else:
            answer = await lied(ask, broker, hostile)
        assert answer.status_code == 403 and problem in answer.text, answer.text


# Sessions


async def test_an_attempt_ends_after_ten_minutes(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(oidc_login, "ATTEMPT_SECONDS", -1)
        answer = await lied(ask, broker, hostile)
    assert answer.status_code == 403 and "too long" in answer.text


async def test_a_session_ends_when_it_has_to_and_that_is_no_guess(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = settings(hostile.issuer, tmp_path, session="10s")
    auth["failures"]["limit"] = 2
    broker = await serve(auth=auth)
    told = (await lied(ask, broker, hostile)).json()
    assert told["expires_in"] == 10
    assert (await ask(broker, "GET", "/api/v1/overview", headers=bearer(told))).status_code == 200
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 11)
    for _ in range(5):
        answer = await ask(broker, "GET", "/api/v1/overview", headers=bearer(told))
        assert answer.status_code == 401 and "session has ended" in answer.text
    monkeypatch.undo()
    assert (await lied(ask, broker, hostile)).status_code == 200  # not banned


async def test_a_live_stream_ends_with_its_session(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    told = (await lied(ask, broker, hostile)).json()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=broker.address("http"), trust_env=False))
        answer = await stack.enter_async_context(
            http.stream("GET", "/api/v1/tail", params={"filter": "#"}, headers=bearer(told))
        )
        lines = answer.aiter_lines()
        assert "ready" in await anext(lines)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3601)
        async with within(30):
            assert [line async for line in lines if line.startswith("event: message")] == []


async def test_a_reload_keeps_sessions_whose_role_has_rights(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    told = (await lied(ask, broker, hostile)).json()
    sections = {"listeners": ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"], "node": {"shutdown_timeout": 0.1}}
    changes: list[tuple[dict[str, Any], int, int]] = [
        ({"session": "2h"}, 200, 200),
        ({"operators": [], "viewers": ["brokers"]}, 200, 403),
        ({"operators": ["x"]}, 401, 401),
        ({"client_id": "other"}, 401, 401),
    ]
    for more, view, change in changes:
        broker.reload(from_tree({**sections, "auth": settings(hostile.issuer, tmp_path, **more)}))
        assert (await ask(broker, "GET", "/api/v1/overview", headers=bearer(told))).status_code == view, more
        answer = await ask(broker, "POST", "/api/v1/publish", json=PUBLISH, headers=bearer(told))
        assert answer.status_code == change, more


async def test_a_login_that_waits_during_a_reload_ends_with_an_error(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    sections = {"listeners": ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"], "node": {"shutdown_timeout": 0.1}}
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    hostile.silent = {"/.well-known/openid-configuration"}
    async with within(30), asyncio.TaskGroup() as group:
        waiting = [group.create_task(started(ask, broker)) for _ in range(2)]
        await hostile.waits.wait()
        broker.reload(from_tree({**sections, "auth": settings(hostile.issuer, tmp_path)}))
    for task in waiting:
        assert task.result().status_code == 503, task.result().text
    hostile.silent = set()
    assert (await started(ask, broker)).status_code == 200


async def test_a_provider_that_is_closed_between_two_requests_is_not_available(tmp_path: Path) -> None:
    auth = from_tree({"auth": settings("http://127.0.0.1:9", tmp_path)}).auth
    provider = oidc_provider.Provider(auth.api.oidc)
    await provider.close()
    with pytest.raises(ProviderUnavailable):
        await provider.address("state", "nonce", "hash")


async def test_tokens_of_one_kind_are_not_taken_for_another(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    """An attempt is no session, a session no attempt, and an ID token of the provider neither."""
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    begun = await begin(ask, broker)
    told = (await lied(ask, broker, hostile)).json()
    state = parse_qs(urlsplit(begun["address"]).query)["state"][0]
    for token in (begun["attempt"], hostile.signed({"sub": "olga", "role": "brokers", "exp": 9999999999})):
        answer = await ask(broker, "GET", "/api/v1/overview", headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 401
    none = unsigned({"sub": "olga", "role": "brokers", "exp": 9999999999})
    assert (await ask(broker, "GET", "/api/v1/overview", headers=bearer({"token": none}))).status_code == 401
    assert (await finish(ask, broker, {"code": "x", "state": state}, told["token"])).status_code == 403


async def test_open_tabs_after_a_restart_ban_no_address(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, token_file: str
) -> None:
    """Nor after a reload without a provider. Another token, also one in the form of a JSON Web Token, is a guess."""
    auth = settings(hostile.issuer, tmp_path)
    auth["failures"]["limit"] = 2
    told = (await lied(ask, await serve(auth=auth), hostile)).json()
    without = {"failures": auth["failures"], "api": {"token_file": token_file}}
    for restarted in (await serve(auth=auth), await serve(auth=without)):
        for _ in range(5):
            answer = await ask(restarted, "GET", "/api/v1/overview", headers=bearer(told))
            assert answer.status_code == 401 and "session has ended" in answer.text
        for guess in ("x" * 40, unsigned({"sub": "olga"})):
            answer = await ask(restarted, "GET", "/api/v1/overview", headers=bearer({"token": guess}))
            assert answer.status_code == 401 and "wrong token" in answer.text
        answer = await ask(restarted, "GET", "/api/v1/overview", headers=bearer({"token": "x" * 40}))
        assert answer.status_code == 403 and "banned" in answer.text


@pytest.mark.parametrize("token", ["[" * 3000, "\u00e9.e30.x", "e30.e30.x", "..", "a.b"])
async def test_tokens_that_make_no_sense_are_no_session(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider, token: str
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    if token.startswith("["):
        token = jwt.utils.base64url_encode(token.encode()).decode() + ".e30.x"
    answer = await ask(broker, "GET", "/api/v1/overview", headers={"authorization": f"Bearer {token}".encode()})
    assert answer.status_code == 401
    answer = await finish(ask, broker, {"code": "x", "state": "x"}, token)
    assert answer.status_code == 403 and "another broker" in answer.text


async def test_a_ban_of_a_user_ends_the_sessions_of_that_user(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    olga = (await lied(ask, broker, hostile)).json()
    hostile.claims = {"preferred_username": "otto"}
    otto = (await lied(ask, broker, hostile)).json()
    http = httpx.AsyncClient(base_url=broker.address("http"), trust_env=False)
    async with http, http.stream("GET", "/api/v1/tail", params={"filter": "#"}, headers=bearer(olga)) as stream:
        lines = stream.aiter_lines()
        assert "ready" in await anext(lines)
        ban = {"kind": "user", "name": "oidc:olga", "seconds": 60}
        answer = await ask(broker, "POST", "/api/v1/bans", json=ban, headers=bearer(otto))
        assert answer.status_code in (200, 201), answer.text
        for told, status in ((olga, 403), (otto, 200)):
            assert (await ask(broker, "GET", "/api/v1/overview", headers=bearer(told))).status_code == status
        async with within(60):
            assert [line async for line in lines if line.startswith("event: message")] == []


async def test_a_session_ends_when_its_claims_are_read_in_another_way(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    """A claim that people can change themselves was a mistake: its sessions must not last."""
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    told = (await lied(ask, broker, hostile)).json()
    sections = {"listeners": ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"], "node": {"shutdown_timeout": 0.1}}
    for more, status in (({}, 200), ({"roles_claim": "roles"}, 401), ({"username_claim": "sub"}, 401)):
        broker.reload(from_tree({**sections, "auth": settings(hostile.issuer, tmp_path, **more)}))
        assert (await ask(broker, "GET", "/api/v1/overview", headers=bearer(told))).status_code == status, more


async def test_strangers_send_small_bodies(serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    body = {"code": "x" * (40 << 10), "state": "x", "attempt": "x"}
    assert (await ask(broker, "POST", "/api/v1/login/finish", json=body)).status_code == 413


# Without a provider, and from elsewhere


async def test_without_a_provider_nothing_is_offered(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    assert (await ask(broker, "GET", "/api/v1/login")).json() == {"provider": ""}
    assert (await started(ask, broker)).status_code == 404


async def test_pages_of_other_sites_begin_and_finish_nothing(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path))
    for path in ("/api/v1/login/start", "/api/v1/login/finish"):
        body = {"code": "x", "state": "x", "attempt": "x"}
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
            assert (await ask(broker, "POST", path, json=body, headers=headers)).status_code == 403
    assert hostile.asked == []


async def test_the_address_to_return_to_is_that_of_the_settings(
    serve: Serve, ask: Ask, tmp_path: Path, hostile: HostileProvider
) -> None:
    broker = await serve(auth=settings(hostile.issuer, tmp_path, url="https://broker.example.org"))
    answer = await ask(
        broker, "POST", "/api/v1/login/start?redirect_uri=https://evil.example/", json={},
        headers={"host": "evil.example", "x-forwarded-host": "evil.example"},
    )  # fmt: skip
    asked = parse_qs(urlsplit(answer.json()["address"]).query)
    assert asked["redirect_uri"] == ["https://broker.example.org/"]
    assert (asked["code_challenge_method"], len(asked["code_challenge"][0])) == (["S256"], 43)


# Settings

GOOD: Final = {"issuer": "https://id.example.org", "client_id": "a", "url": "https://b.example.org", "viewers": ["x"]}
BAD_SETTINGS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "no issuer": ({"issuer": ""}, "auth.api.oidc.issuer: is required"),
    "no client id": ({"client_id": ""}, "auth.api.oidc.client_id: is required"),
    "no address": ({"url": ""}, "auth.api.oidc.url: is required"),
    "plain http": ({"issuer": "http://id.example.org"}, "auth.api.oidc.issuer: expected https://"),
    "plain http of ours": ({"url": "http://b.example.org"}, "auth.api.oidc.url: expected https://"),
    "a script": ({"url": "javascript:alert(1)"}, "auth.api.oidc.url: expected https://"),
    "a user": ({"issuer": "https://a:b@id.example.org"}, "auth.api.oidc.issuer: expected https://"),
    "a port that is none": ({"url": "https://b.example.org:x"}, "auth.api.oidc.url: expected https://"),
    "a path": ({"url": "https://b.example.org/mqtt"}, "auth.api.oidc.url: must have no path"),
    "a query": ({"issuer": "https://id.example.org?x=1"}, "auth.api.oidc.issuer: must have no query"),
    "no openid": ({"scopes": ["profile"]}, "auth.api.oidc.scopes: must contain openid"),
    "a scope with a space": ({"scopes": ["openid", "a b"]}, "auth.api.oidc.scopes[1]:"),
    "no groups": ({"viewers": []}, "auth.api.oidc.operators: name the groups"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_settings_that_make_no_sense_are_refused(name: str) -> None:
    from_tree({"auth": {"api": {"oidc": GOOD}}})
    changed, problem = BAD_SETTINGS[name]
    with pytest.raises(ConfigError) as raised:
        from_tree({"auth": {"api": {"oidc": {**GOOD, **changed}}}})
    assert str(raised.value).startswith(problem) and "\n" not in str(raised.value)


async def test_files_that_cannot_be_used_are_refused(serve: Serve, tmp_path: Path) -> None:
    empty, missing = tmp_path / "empty", str(tmp_path / "missing")
    empty.write_text(" \n")
    for name in ("client_secret_file", "ca"):
        for path in (str(empty), missing):
            with pytest.raises(ConfigError) as raised:
                await serve(auth={"api": {"oidc": {**GOOD, name: path}}})
            assert str(raised.value).startswith(f"auth.api.oidc.{name}: {path}: ")
