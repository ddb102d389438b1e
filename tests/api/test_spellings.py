"""Every route, in every spelling and with every method, without a log-in and with a wrong one: nothing is served, and
nothing is done. On raw sockets, since libraries correct what they send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import pytest

from starlingmq import Broker
from starlingmq.api.guard import OPEN, Guard
from starlingmq.api.pages import PAGES
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL
from tests.patience import within

from .conftest import TOKEN, Ask, Join, Serve

METHODS: Final = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"),
    *("get", "Post", "PROPFIND", "QUERY", "LINK", "X"),
)
REFUSED: Final = (401, 404, 405, 421)
LOGINS: Final = (
    "",
    "Authorization: Bearer a-wrong-token-of-the-test\r\n",
    "Authorization: Basic YWRtaW46d3Jvbmc=\r\n",
)
PARAMETERS: Final = {"client_id": "victim", "name": "victim", "topic": "victim", "kind": "client", "filter": "victim"}
BODIES: Final[dict[str, Any]] = {
    "/api/v1/settings": {"path": "mqtt.max_qos", "value": "2"},
    "/api/v1/connectors/test": {"name": "alarms.webhook"},
    "/api/v1/links/pause": {"name": "canary"},
    "/api/v1/links/resume": {"name": "canary"},
    "/api/v1/links/drain": {"name": "canary", "seconds": 0},
    "/api/v1/publish": {"topic": "canary", "payload": "x", "retain": True, "qos": 1},
    "/api/v1/bans": {"kind": "client", "name": "canary"},
    "/api/v1/streams": {"name": "canary", "topics": ["canary"]},
    "/api/v1/cluster/forget": {"name": "canary"},
    "/api/v1/cluster/give-up": {"name": "canary"},
    "/api/v1/users": {"name": "canary", "password": "canary"},
    "/api/v1/login/finish": {"code": "x", "state": "x", "attempt": "x"},
    "/api/v1/rules": {"name": "canary", "rule": {"deny": "publish", "topics": ["canary"]}},
}
OPEN_PATHS: Final = ("/health/live", "/health/ready", "/healthz", "/api/v1/login")
LOGIN_PATHS: Final = ("/api/v1/login/start", "/api/v1/login/finish")  # 404 without a provider


def spellings(path: str, query: str) -> Iterator[str]:
    """Request targets that a server, a router or a proxy might take for this path. The first is the path itself."""
    whole = f"{path}{query}"
    first, _, rest = path[1:].partition("/")
    yield whole
    for slashes in ("//", "///", "/" * 50, "/./", "/.//", "/x/../", "/%2e/", "/%2e%2e/", "/../", "\\", "/\\", "/%5c"):
        yield f"{slashes}{path[1:]}{query}"
        yield f"/{first}{slashes}{rest}{query}" if rest else f"{path}{slashes}{query}"
    for end in (
        "/",
        "//",
        ".",
        "/.",
        "/..",
        ";x",
        ";x=/health/live",
        "%00",
        "%20",
        "%09",
        "%0d%0a",
        "%2f",
        "%3f",
        "%23",
    ):
        yield f"{path}{end}{query}"
    for end in (".json", "~", "*", ":80", "@localhost", "%", "%zz", "%c0%af", "%e2%88%95"):
        yield f"{path}{end}{query}"
    for before in (
        "/health/live/..",
        "/health/live/../..",
        "/health/live;/../..",
        "/health/live%2f..%2f..",
        "/ui/..",
        "/ui",
    ):
        yield f"{before}{path}{query}"
    for before in ("/docs#", "/health/live?", "/health/live#", "/;x", "/%2f", "/%252f", "/%u002f", "/."):
        yield f"{before}{path}{query}"
    for host in ("localhost", "127.0.0.1", "health", "localhost/health/live/../.."):
        yield f"http://{host}{path}{query}"
        yield f"//{host}{path}{query}"
    yield f"{path}?/health/live&{query[1:]}"
    yield f"{path}#/health/live"
    yield f"{path}%3f/health/live"
    yield f"{path}{query}{'&' if query else '?'}_method=GET"
    yield f"{path.upper()}{query}"
    yield f"{path.title()}{query}"
    yield f"{path.replace('/', '%2f')}{query}"
    yield f"/{path[1:].replace('/', '%2F')}{query}"
    yield f"/{path[1:].replace('/', chr(92))}{query}"
    yield f"{path[:-1]}%{ord(path[-1]):02x}{query}"
    yield f"{path[:2]}%{ord(path[2]):02X}{path[3:]}{query}"
    yield f"{path[1:]}{query}"


async def answer_to(broker: Broker, request: bytes) -> tuple[int, bytes]:
    """Status and body; 0 where the connection is closed without a word."""
    host, _, port = broker.address("http").partition("://")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        async with within(20):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split(b" ", 2)[1]) if head else 0), body


def request(method: str, target: str, headers: str, body: bytes) -> bytes:
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}{kind}\r\n"
    return head.encode("latin-1") + body


class Target:
    """An operation of the document, as a client that may would send it."""

    def __init__(self, path: str, method: str, operation: dict[str, Any]) -> None:
        self.path = path
        self.method = method.upper()
        given = {
            one["name"]: PARAMETERS[one["name"]] for one in operation.get("parameters", []) if one["name"] in PARAMETERS
        }
        self.query = "".join(
            f"{'&' if place else '?'}{key}={quote(value)}" for place, (key, value) in enumerate(given.items())
        )
        self.body = json.dumps(BODIES[path]).encode() if "requestBody" in operation else b""


async def targets(ask: Ask, broker: Broker) -> list[Target]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    document = (await ask(broker, "GET", "/api/v1/openapi.json", headers=headers)).json()
    found = [
        Target(path, method, one) for path, methods in document["paths"].items() for method, one in methods.items()
    ]
    return [*found, Target("/api/v1/openapi.json", "get", {})]


def state_of(broker: Broker) -> Any:
    """The state that a served request could change."""
    state, ctx = broker.state, broker.state.ctx
    kept = None if broker._actions is None else broker._actions.streams
    assert kept is not None and broker._admin is not None
    return {
        "config": broker.config,
        "sessions": {name: session.client is not None for name, session in ctx.sessions.items()},
        "retained": (state.retained.get(b"victim"), state.retained.get(b"canary")),
        "bans": sorted((ban.kind, ban.name) for ban in broker._access.bans.all(0.0)),
        "messages": (ctx.counters.publish_received, ctx.counters.publish_sent),
        "connected": ctx.counters.clients_connected,
        "streams": sorted(log.stream.name for log in kept.logs.by_number.values()),
        "traced": ctx.audit,
        "listeners": broker.addresses,
        "users and rules": broker._table.known,
        "connectors": [one.counts.failed for one in broker._admin.connectors.present()],
    }


@pytest.fixture
async def broker(serve: Serve, join: Join, ask: Ask, token_file: str, tmp_path: Any) -> Broker:
    found = await serve(
        auth={"api": {"token_file": token_file}, "failures": {"delay": 0, "limit": 0}},
        node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1},
        streams={"define": [{"name": "victim", "topics": ["victim"]}]},
        # No service listens there, and no alarm is sent: only a test of the connector calls it.
        alarms={"webhook": "http://127.0.0.1:9/", "disk_free": 0.0, "memory": 0.0, "dropped_rate": 0.0},
    )
    await join(found, "victim", properties={SESSION_EXPIRY_INTERVAL: 100})
    await (await join(found, "publisher")).publish("victim", b"x", 1, retain=True)
    return found


async def refused(broker: Broker, requests: Iterator[tuple[str, bytes]], also: tuple[int, ...] = ()) -> int:
    """All of them, and nothing was done; how many they were."""
    before, count = state_of(broker), 0
    while some := list(islice(requests, 8)):
        answers = await asyncio.gather(*(answer_to(broker, one) for _, one in some))
        for (name, _), (status, body) in zip(some, answers, strict=True):
            assert status in (*REFUSED, *also), (name, status, body[:200])
            assert not body or list(json.loads(body)) == ["error"] or status == 400, (name, body[:200])
            count += 1
    assert state_of(broker) == before
    return count


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.long)])
async def test_every_spelling_of_every_operation_is_refused_without_a_log_in(
    broker: Broker, ask: Ask, share: int
) -> None:
    """``share``: how many operations in a row it takes for each spelling to be tried once with each log-in."""

    def every(number: int, login: str, one: Target) -> Iterator[tuple[str, bytes]]:
        for target in islice(spellings(one.path, one.query), number % share, None, share):
            if target.partition("?")[0] in OPEN_PATHS:
                continue  # served to everybody, and whatever follows the ? is no path
            name = f"{one.method} {target} {login[:20]}"
            yield name, request(one.method, target, login, one.body)

    count = 0
    for number, one in enumerate(await targets(ask, broker)):
        for login in LOGINS[:2]:
            count += await refused(broker, every(number, login, one), also=(400,))
    assert count > 5000 // share


@pytest.mark.parametrize("share", [len(LOGINS), pytest.param(1, marks=pytest.mark.long)])
async def test_every_method_of_every_operation_is_refused_without_a_log_in(
    broker: Broker, ask: Ask, share: int
) -> None:
    """``share``: how many operations in a row it takes for each method to be tried with each log-in."""

    def every(number: int, one: Target) -> Iterator[tuple[str, bytes]]:
        for place, method in enumerate(METHODS):
            for target in (f"{one.path}{one.query}", f"/{one.path}{one.query}"):
                for login in islice(LOGINS, (number + place) % share, None, share):
                    if method == "GET" and target.partition("?")[0] in OPEN_PATHS:
                        continue
                    yield f"{method} {target} {login[:20]}", request(method, target, login, one.body)

    for number, one in enumerate(await targets(ask, broker)):
        await refused(broker, every(number, one))
    await refused(broker, iter([("*", request("OPTIONS", "*", "", b"")), ("*", request("GET", "*", "", b""))]))


OVERRIDES: Final = (
    *("X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE"),
    *("X-Original-URL: /health/live", "X-Rewrite-URL: /health/live", "X-Forwarded-Prefix: /health/live"),
    *("X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1", "X-Forwarded-Host: localhost"),
    *("Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    *("Cookie: authorization=Bearer " + TOKEN, "Proxy-Authorization: Bearer " + TOKEN, "X-Api-Key: " + TOKEN),
    *("Origin: http://localhost\r\nSec-Fetch-Site: same-origin", "Expect: 100-continue", "Content-Encoding: gzip"),
)


async def test_no_other_header_takes_the_place_of_a_log_in(broker: Broker, ask: Ask) -> None:
    def every(one: Target) -> Iterator[tuple[str, bytes]]:
        for text in OVERRIDES:
            for method in {one.method, "GET"}:
                if one.path not in OPEN_PATHS:
                    yield f"{method} {one.path} {text}", request(method, one.path + one.query, f"{text}\r\n", one.body)

    for one in await targets(ask, broker):
        await refused(broker, every(one))


async def test_with_a_token_the_same_requests_do_what_they_say(broker: Broker, ask: Ask) -> None:
    """Or the tests above would prove nothing: they send what a client that may would send."""
    before = state_of(broker)
    login = f"Authorization: Bearer {TOKEN}\r\n"
    for one in await targets(ask, broker):
        if one.path.endswith(("/tail", "/trace", "/drain", "/leave")):
            continue  # the first two never end, the others end the broker
        status, body = await answer_to(broker, request(one.method, one.path + one.query, login, one.body))
        assert status not in REFUSED or (status == 404 and json.loads(body) != {"error": "not found"}), one.path
    after = state_of(broker)
    assert {key for key in before if before[key] != after[key]} >= {
        "sessions",
        "retained",
        "bans",
        "connectors",
        "users and rules",
    }


async def test_pages_health_and_logins_alone_are_open_to_all(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    admit = Guard._admit

    async def noted(guard: Guard, scope: Any) -> None:
        seen.update({route.path: route for route in scope["litestar_app"].routes})
        await admit(guard, scope)

    monkeypatch.setattr(Guard, "_admit", noted)
    broker = await serve()
    await answer_to(broker, request("GET", "/health/live", "", b""))
    open_ = {path for path, route in seen.items() if any(OPEN in one.opt for one in route.route_handlers)}
    assert open_ == {*PAGES, *OPEN_PATHS, *LOGIN_PATHS}
