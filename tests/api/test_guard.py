"""Authorization over HTTP, and requests that are refused before they are handled."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from starlingmq import Broker
from starlingmq.api import http_connection, server
from starlingmq.api.body import BODY_BYTES_MAX
from starlingmq.auth.token_file import read_tokens
from starlingmq.config.auth_section import AuthConfig
from starlingmq.config.settings import ConfigError, load_config, refuse_open_listeners
from tests.patience import within

from .conftest import BEARER, TOKEN, Ask, Certificates, Passwd, Serve

PUBLISH = {"topic": "a", "payload": "x"}


async def raw(address: str, request: bytes) -> bytes:
    """All that is answered to these bytes, which a library would not send."""
    host, _, port = address.partition("://")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        async with within(10):
            return await reader.read()
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_an_open_listener_on_loopback_serves_its_own_machine(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    assert (await ask(broker, "GET", "/api/v1/overview")).status_code == 200


FOREIGN: Final[list[str]] = ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a@localhost", "[::1"]


async def test_a_foreign_host_name_is_refused_where_nobody_is_asked(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    for host in FOREIGN:
        answer = await ask(broker, "GET", "/api/v1/overview", headers={"host": host})
        assert answer.status_code == 421
        assert "node" not in answer.text


async def test_names_of_this_machine_and_those_that_are_set_are_its_own(serve: Serve, ask: Ask) -> None:
    broker = await serve(auth={"api": {"hosts": ["broker.test"]}})
    for host in ("localhost", "localhost:8080", "127.0.0.1", "[::1]:80", "BROKER.test:81"):
        assert (await ask(broker, "GET", "/api/v1/overview", headers={"host": host})).status_code == 200, host


OTHER_ORIGINS: Final[list[dict[str, str]]] = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:1"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"content-type": "text/plain"},
    {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "multipart/form-data; boundary=x"},
]


async def test_a_page_of_another_origin_changes_nothing(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    for headers in OTHER_ORIGINS:
        headers = {"content-type": "application/json", **headers}
        body = json.dumps({**PUBLISH, "retain": True}).encode()
        answer = await ask(broker, "POST", "/api/v1/publish", content=body, headers=headers)
        assert answer.status_code in (403, 415)
        assert "access-control-allow-origin" not in answer.headers
        assert broker.state.retained.get(b"a") is None


async def test_a_page_of_another_site_reads_nothing_and_fills_no_live_stream(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    for site in ("cross-site", "same-site"):
        for path in ("/api/v1/overview", "/api/v1/tail?filter=%23", "/metrics"):
            for dest in ("empty", "iframe", "image", ""):
                headers = {"sec-fetch-site": site, "sec-fetch-dest": dest}
                assert (await ask(broker, "GET", path, headers=headers)).status_code == 403, (path, dest)
        link = {"sec-fetch-site": site, "sec-fetch-dest": "document"}
        assert (await ask(broker, "GET", "/metrics", headers=link)).status_code == 200
        assert (await ask(broker, "GET", "/", headers=link)).status_code == 200


async def test_no_preflight_is_answered(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = await ask(broker, "OPTIONS", "/api/v1/publish", headers=asked)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_its_own_page_may_change_things(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    headers = {"origin": broker.address("http"), "sec-fetch-site": "same-origin"}
    assert (await ask(broker, "POST", "/api/v1/publish", json=PUBLISH, headers=headers)).status_code == 200


async def test_a_page_at_another_port_of_a_configured_host_changes_nothing(serve: Serve, ask: Ask) -> None:
    """A proxy serves the dashboard under its own name and port. Other ports of that host are other sites."""
    broker = await serve(auth={"api": {"hosts": ["broker.test"]}})
    for origin, host, status in (
        ("https://broker.test", "localhost:8080", 200),
        ("http://broker.test:8080", "localhost:8080", 200),
        ("http://broker.test:8080", "broker.test:8080", 200),
        ("http://broker.test:9999", "localhost:8080", 403),
        ("http://broker.test:9999", "broker.test:8080", 403),
    ):
        headers = {"origin": origin, "host": host}
        answer = await ask(broker, "POST", "/api/v1/publish", json=PUBLISH, headers=headers)
        assert answer.status_code == status, (origin, host)


LOGINS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "passwords": lambda file: {"auth": {"password": {"file": file}}},
    "a service": lambda file: {"auth": {"http": {"url": "http://127.0.0.1:1/"}}},
    "signed tokens": lambda file: {"auth": {"jwt": {"secret_file": file}}},
    "tokens of NATS": lambda file: {"nats": {"token_file": file}},
}


@pytest.mark.parametrize("kind", LOGINS)
async def test_once_clients_log_in_nobody_administers_without_a_login(
    serve: Serve, ask: Ask, passwd: Passwd, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = passwd(ann="right") if kind == "passwords" else str(tmp_path / "secret")
    if kind != "passwords":
        Path(file).write_text("a-secret-of-the-test-0123456789ab\n", encoding="utf-8")
    broker = await serve(**LOGINS[kind](file))
    assert "auth.api.users" in caplog.text, "the log says so at the start"
    for method, path in (("GET", "/api/v1/overview"), ("GET", "/metrics"), ("POST", "/api/v1/publish")):
        answer = await ask(broker, method, path, headers=BEARER)
        assert answer.status_code == 401 and "auth.api.users" in answer.json()["error"]
    assert (await ask(broker, "GET", "/health/ready")).status_code == 200
    assert (await ask(broker, "GET", "/")).status_code == 200


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
async def test_what_comes_through_a_proxy_needs_a_login(
    serve: Serve, ask: Ask, token_file: str, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The proxy is on this machine, and its clients are not."""
    broker = await serve()
    through = {header: "192.0.2.7"}
    answer = await ask(broker, "GET", "/api/v1/overview", headers=through)
    assert answer.status_code == 403 and header.lower() in answer.json()["error"]
    assert "auth.api.users" in answer.json()["error"] and "through a proxy" in caplog.text
    metrics = (await ask(broker, "GET", "/metrics")).text
    assert 'starlingmq_http_logins_refused_total{reason="proxied"} 1.0' in metrics
    assert (await ask(broker, "GET", "/health/ready", headers=through)).status_code == 200
    guarded = await serve(auth={"api": {"token_file": token_file}})
    assert (await ask(guarded, "GET", "/api/v1/overview", headers={**through, **BEARER})).status_code == 200


NO_TOKENS: Final[list[dict[str, str]]] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer x"},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": f"Bearer {TOKEN[:-1]}"},
    {"authorization": "Bearer # ours"},
    {"authorization": TOKEN},
    {"authorization": f"Basic {TOKEN}"},
]


async def test_brokers_of_one_process_answer_each_for_itself(serve: Serve, ask: Ask, token_file: str) -> None:
    """They share an application: whose state is shown, and who is let in, must come from the listener."""
    login = {"api": {"token_file": token_file}}
    brokers = {name: await serve(node={"name": name, "shutdown_timeout": 0.1}) for name in ("n1", "n2")}
    brokers["n3"] = await serve(node={"name": "n3", "shutdown_timeout": 0.1}, auth=login)

    async def named(broker: Broker) -> tuple[int, str]:
        answer = await ask(broker, "GET", "/api/v1/nodes", headers=BEARER if broker is brokers["n3"] else {})
        return answer.status_code, answer.json()["node"]

    asked = [*brokers] * 5
    assert await asyncio.gather(*(named(brokers[name]) for name in asked)) == [(200, name) for name in asked]
    refused = await asyncio.gather(*(ask(broker, "GET", "/api/v1/nodes") for broker in brokers.values()))
    assert [each.status_code for each in refused] == [200, 200, 401]


async def test_only_the_token_opens(serve: Serve, ask: Ask, token_file: str) -> None:
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": {"delay": 0, "limit": 0}})
    for headers in NO_TOKENS:
        for method, path in (("GET", "/api/v1/clients"), ("GET", "/metrics"), ("POST", "/api/v1/publish")):
            answer = await ask(broker, method, path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert (await ask(broker, "GET", "/health/ready")).status_code == 200
        assert (await ask(broker, "GET", "/api/v1/clients", headers=BEARER)).status_code == 200


async def test_a_failed_login_is_logged_without_its_secret_and_counted(
    serve: Serve, ask: Ask, token_file: str, passwd: Passwd, caplog: pytest.LogCaptureFixture
) -> None:
    api = {"token_file": token_file, "users": ["admin"]}
    failures = {"delay": 0, "limit": 3, "ban": "1m"}
    broker = await serve(auth={"password": {"file": passwd(admin="right")}, "api": api, "failures": failures})
    await ask(broker, "GET", "/api/v1/clients")
    assert "login" not in caplog.text, "a browser asks first without a login"
    await ask(broker, "GET", "/api/v1/clients", auth=httpx.BasicAuth("admin", "secret-1"))
    await ask(broker, "GET", "/api/v1/clients", auth=httpx.BasicAuth("x\ny" * 1000, "secret-2"))
    for _ in range(2):
        await ask(broker, "GET", "/api/v1/clients", headers={"authorization": "Bearer secret-3-secret-3"})
    lines = [line.getMessage() for line in caplog.records if "login from" in line.getMessage()]
    assert lines[0] == "login from 127.0.0.1 as 'admin' to the HTTP API refused: wrong user name or password"
    assert lines[1].startswith("login from 127.0.0.1 as 'x\\nyx\\ny") and len(lines[1]) < 400
    assert lines[2] == "login from 127.0.0.1 to the HTTP API refused: wrong token"
    assert lines[3] == "login from 127.0.0.1 to the HTTP API refused: the address or the user is banned"
    assert "secret" not in caplog.text
    metrics = (await ask(broker, "GET", "/metrics", headers=BEARER)).text
    for reason, count in (("password", 2), ("token", 1), ("banned", 1), ("busy", 0)):
        assert f'starlingmq_http_logins_refused_total{{reason="{reason}"}} {float(count)}' in metrics


async def test_the_lines_about_failed_logins_are_limited(
    serve: Serve, ask: Ask, token_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    auth = {"api": {"token_file": token_file}, "failures": {"delay": 0, "limit": 0}}
    broker = await serve(auth=auth, limits={"log_rate": 1})
    began = time.monotonic()
    for _ in range(20):
        await ask(broker, "GET", "/api/v1/clients", headers={"authorization": "Bearer wrong"})
    seconds = time.monotonic() - began
    lines = sum("login from" in line.getMessage() for line in caplog.records)
    assert 1 <= lines <= 2 + seconds and (lines < 20 or seconds > 18)


async def test_users_come_in_with_their_password(serve: Serve, ask: Ask, passwd: Passwd) -> None:
    users = passwd(admin="right", device="known")
    auth = {"password": {"file": users}, "api": {"users": ["admin"]}, "failures": {"delay": 0, "limit": 0}}
    broker = await serve(auth=auth)
    for login, expected in (
        (("admin", "right"), 200),
        (("admin", "wrong"), 401),
        (("device", "known"), 401),  # it may connect, and not administer
        (("nobody", "right"), 401),
        (("admin", ""), 401),
        (("", "right"), 401),
    ):
        assert (await ask(broker, "GET", "/api/v1/clients", auth=httpx.BasicAuth(*login))).status_code == expected


async def test_an_address_that_guesses_passwords_is_banned(
    serve: Serve, ask: Ask, token_file: str, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    failures = {"delay": 0, "limit": 3, "ban": "1m"}
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": failures})
    wrong = {"authorization": "Bearer guessed-guessed-guessed"}
    codes = [(await ask(broker, "GET", "/api/v1/clients", headers=wrong)).status_code for _ in range(4)]
    assert codes == [401, 401, 401, 403]
    assert (await ask(broker, "GET", "/api/v1/clients")).status_code == 401
    assert (await ask(broker, "GET", "/api/v1/clients", headers=BEARER)).status_code == 200
    assert "127.0.0.1 is banned" in caplog.text
    assert "guessed" not in caplog.text and TOKEN not in caplog.text


async def test_failures_count_for_the_client_behind_a_trusted_proxy(serve: Serve, ask: Ask, token_file: str) -> None:
    failures = {"delay": 0, "limit": 2, "ban": "1m"}
    auth = {"api": {"token_file": token_file}, "failures": failures}
    trusting = {"url": "http://127.0.0.1:0", "trusted_proxies": ["127.0.0.0/8"]}
    broker = await serve(listeners=[trusting], auth=auth)
    wrong = {"authorization": "Bearer guessed-guessed-guessed"}

    async def status_of(**headers: str) -> int:
        return (await ask(broker, "GET", "/api/v1/clients", headers={**wrong, **headers})).status_code

    forged = {"x-forwarded-for": "198.51.100.1, 192.0.2.7"}
    assert [await status_of(**forged) for _ in range(3)] == [401, 401, 403]
    assert await status_of(forwarded="for=192.0.2.7") == 403
    assert await status_of(**{"x-forwarded-for": "198.51.100.1"}) == 401
    assert await status_of(**{"x-forwarded-for": "198.51.100.2", "forwarded": "for=198.51.100.3"}) == 400
    (ban,) = (await ask(broker, "GET", "/api/v1/bans", headers=BEARER)).json()["bans"]
    assert (ban["kind"], ban["name"]) == ("address", "192.0.2.7")


async def test_the_headers_of_an_untrusted_proxy_change_nothing(serve: Serve, ask: Ask, token_file: str) -> None:
    failures = {"delay": 0, "limit": 2, "ban": "1m"}
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": failures})
    wrong = {"authorization": "Bearer guessed-guessed-guessed", "x-forwarded-for": "192.0.2.7"}
    codes = [(await ask(broker, "GET", "/api/v1/clients", headers=wrong)).status_code for _ in range(3)]
    assert codes == [401, 401, 403]
    wrong["forwarded"] = "for=198.51.100.1"
    assert (await ask(broker, "GET", "/api/v1/clients", headers=wrong)).status_code == 403


async def test_a_reload_takes_the_tokens_that_are_there_now(serve: Serve, ask: Ask, token_file: str) -> None:
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": {"delay": 0}})
    Path(token_file).write_text("another-token-0123456789\n", encoding="utf-8")
    broker.reload(broker.config)
    assert (await ask(broker, "GET", "/api/v1/clients", headers=BEARER)).status_code == 401
    other = {"authorization": "Bearer another-token-0123456789"}
    assert (await ask(broker, "GET", "/api/v1/clients", headers=other)).status_code == 200
    Path(token_file).write_text("short\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="token_file"):
        broker.reload(broker.config)
    assert (await ask(broker, "GET", "/api/v1/clients", headers=other)).status_code == 200


async def test_bodies_are_bounded(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    big = b'{"topic": "a", "payload": "' + b"x" * BODY_BYTES_MAX + b'"}'
    headers = {"content-type": "application/json"}
    assert (await ask(broker, "POST", "/api/v1/publish", content=big, headers=headers)).status_code == 413

    async def parts() -> Any:  # without a length
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    try:
        answer = await ask(broker, "POST", "/api/v1/publish", content=parts(), headers=headers)
    except httpx.TransportError:
        pass  # it was cut off while it sent
    else:
        assert answer.status_code == 413


NO_HTTP: Final[list[bytes]] = [
    b"GET / HTTP/1.1\r\n\r\n",  # no Host
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\nx",
    b"nonsense\r\n\r\n",
    b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\r\n\r\n",
]


async def test_input_that_is_not_http_is_refused_and_not_logged(serve: Serve, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    broker = await serve()
    for request in NO_HTTP:
        assert status(await raw(broker.address("http"), request)) in (400, 421, 431)
        assert not caplog.records


PATHS: Final[list[str]] = ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/assets/..%2fapp.py"]


async def test_no_path_leads_out(serve: Serve) -> None:
    broker = await serve()
    for path in PATHS:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        answer = await raw(broker.address("http"), request)
        assert status(answer) == 404
        assert b"root:" not in answer and b"import" not in answer


async def test_a_head_that_does_not_come_ends_the_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_SECONDS", 0.1)
    broker = await serve()
    for begun in (b"", b"GET / HT", b"POST /api/v1/publish HTTP/1.1\r\nHost: local"):
        try:
            assert await raw(broker.address("http"), begun) == b""
        except ConnectionResetError:
            continue


async def test_over_tls(serve: Serve, ask: Ask, certificates: Certificates, tmp_path: Path) -> None:
    cert, key = certificates.issue("localhost")
    broker = await serve(listeners=[{"url": "https://127.0.0.1:0", "tls": {"cert": cert, "key": key}}])
    trusting = ssl.create_default_context(cafile=certificates.ca)
    url = broker.address("https").replace("127.0.0.1", "localhost")
    async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
        assert (await client.get(url + "/health/live")).json() == {"status": "ok"}
    old = ssl.create_default_context(cafile=certificates.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    async with httpx.AsyncClient(verify=old, trust_env=False) as client:
        assert (await client.get(url + "/health/live")).status_code == 200


async def test_connections_end_with_the_broker(serve: Serve) -> None:
    broker = await serve()
    host, _, port = broker.address("http").partition("://")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await broker.stop()
    async with within(5):
        assert await reader.read() == b""
    writer.close()


async def test_a_log_in_that_is_delayed_ends_with_the_broker_and_without_a_traceback(
    serve: Serve, token_file: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0.05)
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": {"delay": "5s"}})
    wrong = b"GET /api/v1/clients HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong-wrong-wrong-wrong\r\n\r\n"
    asking = asyncio.ensure_future(raw(broker.address("http"), wrong))
    assert broker._http is not None
    async with within(10):
        while not broker._http._guard._log_ins._taken:
            await asyncio.sleep(0)
    async with within(4):
        await broker.stop()
    with suppress(ConnectionError):
        assert await asking == b""
    assert not broker._http._guard._log_ins._taken
    assert not [record for record in caplog.records if record.exc_info]


def test_nothing_opens_the_api_to_a_network_by_accident(token_file: str) -> None:
    listen = "listeners=['http://0.0.0.0:0']"
    for also in ([], ["auth.allow_anonymous=true"]):
        with pytest.raises(ConfigError, match=r"listeners\[0\]: http://0.0.0.0:0 would let anyone .*token_file"):
            refuse_open_listeners(load_config(None, [listen, *also]), authenticated=True)
    refuse_open_listeners(load_config(None, [listen, f"auth.api.token_file={token_file}"]), authenticated=False)
    refuse_open_listeners(load_config(None, ["listeners=['http://127.0.0.1:0']"]), authenticated=False)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["auth.api.users=[admin]"], "auth.api.users: needs auth.password.file"),
        (["auth.api.hosts=['http://a']"], r"auth.api.hosts\[0\]: 'http://a' is not a host name"),
        (["listeners=['https://127.0.0.1:0']"], "needs a tls section"),
    ],
)
def test_wrong_settings_are_one_line(settings: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as raised:
        load_config(None, settings)
    assert "\n" not in str(raised.value)


async def test_files_that_can_not_be_used_are_one_line(serve: Serve, passwd: Passwd, tmp_path: Path) -> None:
    api: dict[str, Any]
    for api, line in (
        ({"token_file": str(tmp_path / "none")}, "No such file"),
        ({"users": ["nobody"]}, "'nobody' is not in"),
    ):
        with pytest.raises(ConfigError, match=line):
            await serve(auth={"password": {"file": passwd(admin="x")}, "api": api})
    for text, line in (
        ("", "contains no token"),
        ("short", "at least 16 char"),
        ("two words in one line!", "no blanks"),
    ):
        path = tmp_path / "tokens"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=line) as raised:
            read_tokens(str(path), "auth.api.token_file")
        assert text == "" or text not in str(raised.value)
    assert AuthConfig().api.token_file == ""
