"""Asks a broker over HTTP what the control socket would be asked, for ``--url``.

The token is the content of the file in ``STARLINGMQ_TOKEN_FILE``, never an argument: arguments are visible to others.
Redirects are not followed, so that the token stays with the broker.
"""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from starlingmq.cli.declare import CommandError

TOKEN_FILE: Final = "STARLINGMQ_TOKEN_FILE"  # noqa: S105 the name of a variable
SECONDS: Final = 60.0
SCHEMES: Final = ("http://", "https://")


class HttpRoute(NamedTuple):
    """``body``: the arguments are sent as JSON, otherwise in the query."""

    method: str
    path: str
    body: bool = False


ROUTES: Final = {
    "clients": HttpRoute("GET", "/clients"),
    "sessions": HttpRoute("GET", "/sessions"),
    "subscriptions": HttpRoute("GET", "/subscriptions"),
    "session": HttpRoute("GET", "/session"),
    "client.kick": HttpRoute("DELETE", "/client"),
    "session.end": HttpRoute("DELETE", "/session"),
    "bans": HttpRoute("GET", "/bans"),
    "ban": HttpRoute("POST", "/bans", body=True),
    "ban.lift": HttpRoute("DELETE", "/bans"),
    "publish": HttpRoute("POST", "/publish", body=True),
    "retained": HttpRoute("GET", "/retained"),
    "retained.show": HttpRoute("GET", "/retained/message"),
    "retained.delete": HttpRoute("DELETE", "/retained/message"),
    "overviews": HttpRoute("GET", "/cluster/overview"),
    "activity": HttpRoute("GET", "/activity"),
    "links": HttpRoute("GET", "/links"),
    "alarms.all": HttpRoute("GET", "/alarms"),
    "certificates.all": HttpRoute("GET", "/certificates"),
    "connectors.all": HttpRoute("GET", "/connectors"),
    "connectors.test": HttpRoute("POST", "/connectors/test", body=True),
    "rules": HttpRoute("GET", "/rules"),
    "rules.test": HttpRoute("GET", "/rules/test"),
    "session.message.at": HttpRoute("GET", "/session/message"),
    "listeners": HttpRoute("GET", "/listeners"),
    "config": HttpRoute("GET", "/config"),
    "settings": HttpRoute("GET", "/settings"),
    "settings.change.at": HttpRoute("PUT", "/settings", body=True),
    "log": HttpRoute("GET", "/log"),
    "reload": HttpRoute("POST", "/reload"),
    "groups.all": HttpRoute("GET", "/groups"),
    "cluster.status": HttpRoute("GET", "/nodes"),
    "cluster.routes": HttpRoute("GET", "/routes"),
    "cluster.shares": HttpRoute("GET", "/shares"),
    "drain.state": HttpRoute("GET", "/drain"),
    "drain.begin": HttpRoute("POST", "/drain"),
    "drain.cancel": HttpRoute("DELETE", "/drain"),
    "storage.stats": HttpRoute("GET", "/storage"),
    "health": HttpRoute("GET", "/health/ready"),
}
"""Actions of the control socket that the HTTP API has with the same arguments and the same result."""

NAMES: Final = {("cluster.routes", "name"): "node", ("rules.test", "does"): "action"}
NUMBERS: Final = ("qos", "expiry", "seconds")  # in a body
YES: Final = ("retain", "disconnect", "only_check")  # in a body


def is_url(target: str | None) -> bool:
    return target is not None and target.startswith(SCHEMES)


def ask_url(url: str, action: str, arguments: dict[str, str]) -> dict[str, Any]:
    """The result. Raises CommandError, OSError."""
    route = ROUTES.get(action)
    if route is None:
        raise CommandError(f"{action} is not available over HTTP; run this on the machine of the broker")
    given = {NAMES.get((action, name), name): value for name, value in arguments.items() if value and name != "by"}
    if action == "sessions" and "connected" in given:
        given["connected"] = "true" if given["connected"] == "yes" else "false"
    if action == "rules.test" and "retain" in given:
        given["retain"] = "true"
    query = "" if route.body or not given else f"?{urlencode(given)}"
    body = json.dumps(_body(given)).encode() if route.body else None
    status, answer = _exchange(url, route, query, body)
    if status >= 400 and not (action == "health" and status == 503):
        raise CommandError(f"{url}: {_why(status, answer)}")
    if not isinstance(answer, dict):
        raise CommandError(f"{url}: this is not the HTTP API of a broker")
    return answer


def _exchange(url: str, route: HttpRoute, query: str, body: bytes | None) -> tuple[int, Any]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = "" if route.path.startswith("/health") else "/api/v1"
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=SECONDS)
        connection.request(route.method, parts.path.rstrip("/") + path + route.path + query, body, _headers(body))
        response = connection.getresponse()
        content = response.read()
    except http.client.HTTPException as error:
        raise CommandError(f"{url}: the answer is not HTTP ({type(error).__name__})") from None
    except OSError as error:
        raise CommandError(f"{url}: {error.strerror or error}") from None
    connection.close()
    try:
        return response.status, json.loads(content)
    except ValueError:
        return response.status, None


def _headers(body: bytes | None) -> dict[str, str]:
    headers = {} if body is None else {"Content-Type": "application/json"}
    file = os.environ.get(TOKEN_FILE)
    if file:
        headers["Authorization"] = f"Bearer {Path(file).read_text(encoding='utf-8').strip()}"
    return headers


def _body(given: dict[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = dict(given)
    for name in NUMBERS:
        if name in body:
            body[name] = float(body[name]) if name == "seconds" else int(body[name])
    for name in YES:
        if name in body:
            body[name] = body[name] == "yes"
    return body


def _why(status: int, answer: Any) -> str:
    told = answer.get("error") if isinstance(answer, dict) else None
    if status in (401, 403) and not os.environ.get(TOKEN_FILE):
        return f"{told or 'a login is required'}; set {TOKEN_FILE} to a file with a token of auth.api.token_file"
    return str(told or f"HTTP status {status}")
