"""Asks a broker over HTTP what the control socket would be asked, for ``--url``.

The token is the content of the file in ``STARLINGMQ_TOKEN_FILE``, never an argument: arguments are visible to others.
Redirects are not followed, so that the token stays with the broker.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from msgspec import to_builtins

from starlingmq.admin.typed_actions import reader_of
from starlingmq.cli.declare import CommandError

if TYPE_CHECKING:
    from starlingmq.admin.declared_actions import Declared

TOKEN_FILE: Final = "STARLINGMQ_TOKEN_FILE"  # noqa: S105 the name of a variable
ANSWER_SECONDS: Final = 30.0  # for a broker to answer a request, or to report progress
SILENT_SECONDS: Final = 60.0  # for the next event of a stream of events, or a sign of life
SCHEMES: Final = ("http://", "https://")


class HttpRoute(NamedTuple):
    """``body``: the arguments are sent as JSON, but for the name of the node if it is ``at_node``; otherwise all are in
    the query. ``waits``: the answer may take any time. ``text``: outside of the API, answered with text."""

    method: str
    path: str
    body: bool = False
    at_node: bool = False
    waits: bool = False
    text: bool = False


ROUTES: Final = {
    "clients": HttpRoute("GET", "/clients"),
    "sessions": HttpRoute("GET", "/sessions"),
    "subscriptions": HttpRoute("GET", "/subscriptions"),
    "subscriptions.search": HttpRoute("GET", "/subscriptions/search"),
    "session": HttpRoute("GET", "/session"),
    "client.kick": HttpRoute("DELETE", "/client"),
    "session.end": HttpRoute("DELETE", "/session"),
    "bans": HttpRoute("GET", "/bans"),
    "ban": HttpRoute("POST", "/bans", body=True),
    "ban.lift": HttpRoute("DELETE", "/bans"),
    "publish": HttpRoute("POST", "/publish", body=True),
    "retained": HttpRoute("GET", "/retained"),
    "retained.search": HttpRoute("GET", "/retained/search"),
    "retained.show": HttpRoute("GET", "/retained/message"),
    "retained.delete": HttpRoute("DELETE", "/retained/message"),
    "overviews": HttpRoute("GET", "/cluster/overview"),
    "activity": HttpRoute("GET", "/activity"),
    "links": HttpRoute("GET", "/links"),
    "rules": HttpRoute("GET", "/rules"),
    "rules.test": HttpRoute("GET", "/rules/test"),
    "users": HttpRoute("GET", "/users"),
    "session.message.at": HttpRoute("GET", "/session/message"),
    "listeners": HttpRoute("GET", "/listeners"),
    "config": HttpRoute("GET", "/config"),
    "settings": HttpRoute("GET", "/settings"),
    "settings.change.at": HttpRoute("PUT", "/settings", body=True),
    "log": HttpRoute("GET", "/log"),
    "reload": HttpRoute("POST", "/reload"),
    "groups.all": HttpRoute("GET", "/groups"),
    "groups.search": HttpRoute("GET", "/groups/search"),
    "cluster.status": HttpRoute("GET", "/nodes"),
    "cluster.routes": HttpRoute("GET", "/routes"),
    "cluster.shares": HttpRoute("GET", "/shares"),
    "cluster.copies": HttpRoute("GET", "/copies"),
    "cluster.forget": HttpRoute("POST", "/cluster/forget", body=True, waits=True),
    "cluster.give_up": HttpRoute("POST", "/cluster/give-up", body=True, waits=True),
    "leave.begin": HttpRoute("POST", "/cluster/leave"),
    "drain.state": HttpRoute("GET", "/drain"),
    "drain.begin": HttpRoute("POST", "/drain"),
    "drain.cancel": HttpRoute("DELETE", "/drain"),
    "cluster.rebalance": HttpRoute("POST", "/rebalance", waits=True),
    "storage.stats": HttpRoute("GET", "/storage"),
    "storage.check": HttpRoute("POST", "/storage/check", waits=True),
    "storage.compact": HttpRoute("POST", "/storage/compact", waits=True),
    "streams": HttpRoute("GET", "/streams"),
    "streams.create": HttpRoute("POST", "/streams", body=True, at_node=True),
    "streams.trim": HttpRoute("POST", "/streams/trim"),
    "streams.delete": HttpRoute("DELETE", "/streams"),
    "metrics": HttpRoute("GET", "/metrics"),
    "metrics.text": HttpRoute("GET", "/metrics", text=True),
    "health": HttpRoute("GET", "/health/ready"),
}
"""Actions of the control socket that the HTTP API has with the same arguments and the same result."""

NAMES: Final = {("cluster.routes", "name"): "node", ("rules.test", "does"): "action"}
NUMBERS: Final = ("qos", "expiry", "seconds")  # in a body
YES: Final = ("retain", "disconnect", "only_check", "force")  # in a body
LINES: Final = ("topics",)  # in a body: a list, where the control socket has a line for each
OF_ONE_NODE: Final = ("stream.list", "stream.show", "stream.create", "stream.trim", "stream.delete")
"""Actions on the part of a stream at the node that is asked. The HTTP API has them for named nodes."""


class Unreachable(CommandError):
    """No connection to the broker."""


class NoAnswer(CommandError):
    """The broker is connected, and has not answered in time."""

    def __init__(self, broker: str, seconds: float) -> None:
        super().__init__(f"the broker at {broker} has not answered for {seconds:g} s; see whether its process runs")


def is_url(target: str | None) -> bool:
    """Raises CommandError for a URL that is not one of the HTTP API."""
    scheme, separator, _ = (target or "").partition("://")
    if separator and "/" not in scheme and not f"{scheme}://".startswith(SCHEMES):
        raise CommandError(f"--url: {scheme}:// is not http:// or https://; give the URL of the broker's HTTP API")
    return bool(separator) and "/" not in scheme


def ask_url(url: str, action: str, arguments: dict[str, str], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """The result. ``seconds``: how long the answer may take, unless the action waits for something. Raises
    CommandError, OSError."""
    if action in OF_ONE_NODE:
        return _ask_stream(url, action, arguments)
    declared = _declared(action)
    if declared is not None:
        return _ask_declared(url, declared, arguments, seconds)
    route = ROUTES.get(action)
    if route is None:
        raise CommandError(f"{action} is not available over HTTP; run this on the machine of the broker")
    given = {NAMES.get((action, name), name): value for name, value in arguments.items() if value and name != "by"}
    if action == "sessions" and "connected" in given:
        given["connected"] = "true" if given["connected"] == "yes" else "false"
    if "descending" in given:
        given["descending"] = "true" if given["descending"] == "yes" else "false"
    if action == "rules.test" and "retain" in given:
        given["retain"] = "true"
    if action == "leave.begin" and "force" in given:
        given["force"] = "true"
    asked = given if not route.body else {"node": given.pop("node")} if route.at_node and "node" in given else {}
    query = f"?{urlencode(asked)}" if asked else ""
    body = json.dumps(_body(given)).encode() if route.body else None
    status, answer = _exchange(url, route, query, body, None if route.waits else seconds)
    return _accepted(url, status if action != "health" or status != 503 else 200, answer)


def _accepted(url: str, status: int, answer: Any) -> dict[str, Any]:
    """Raises CommandError."""
    if status >= 400:
        raise CommandError(f"{url}: {_why(status, answer)}")
    if not isinstance(answer, dict):
        raise CommandError(f"{url}: this is not the HTTP API of a broker")
    return answer


def _declared(action: str) -> Declared | None:
    import starlingmq.admin.service  # noqa: F401  late: it loads the modules that declare actions
    from starlingmq.admin.declared_actions import DECLARED

    return DECLARED.get(action)


def _ask_declared(url: str, declared: Declared, arguments: dict[str, str], seconds: float) -> dict[str, Any]:
    """Raises CommandError."""
    method, path = declared.http.split()
    request = reader_of(declared.request)(arguments)
    given = {name: value for name, value in to_builtins(request).items() if name in arguments and name != "by"}
    if declared.has_node and arguments.get("node"):
        given["node"] = arguments["node"]
    body = json.dumps(given).encode() if declared.body else None
    query = "" if declared.body or not given else "?" + urlencode({name: _word(one) for name, one in given.items()})
    status, answer = _exchange(url, HttpRoute(method, path), query, body, seconds)
    return _accepted(url, status, answer)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ask_stream(url: str, action: str, arguments: dict[str, str]) -> dict[str, Any]:
    """An action of ``OF_ONE_NODE``, at the node that is asked. Raises CommandError."""
    told = ask_url(url, "streams", {})
    node = told["node"]
    own = [one for one in told["streams"] if one["node"] == node]
    if action == "stream.list":
        return {"streams": own, "node": node}
    if action == "stream.show":
        for one in own:
            if one["name"] == arguments["name"]:
                return dict(one)
        raise CommandError(
            f"{url}: {node} has no stream named {arguments['name']}; `ctl stream list` lists those that it has"
        )
    done = ask_url(url, action.replace("stream.", "streams."), {**arguments, "node": node})
    return dict(done["nodes"][node])


def follow_url(url: str, path: str, arguments: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """The server-sent events of a path, with their names; ("", None) while nothing comes. Raises CommandError."""
    route = HttpRoute("GET", path)
    given = {name: value for name, value in arguments.items() if value}
    with _answer(url, route, f"?{urlencode(given)}", None, SILENT_SECONDS) as response:
        if response.status >= 400:
            raise CommandError(f"{url}: {_why(response.status, _decoded(response.read()))}")
        with suppress(http.client.IncompleteRead):  # it ends without the last chunk
            yield from _events(response)
    raise CommandError(f"{url}: the broker ended the connection")


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    name, data = "message", []
    for line in lines:
        field, _, value = line.decode().rstrip("\r\n").partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
        elif any(data):  # an empty line ends an event
            yield name, json.loads("\n".join(data))
            name, data = "message", []
        else:
            name, data = "message", []
            yield "", None


@contextmanager
def _answer(
    url: str, route: HttpRoute, query: str, body: bytes | None, seconds: float | None
) -> Iterator[http.client.HTTPResponse]:
    """Raises CommandError, also while the answer is read."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = "" if route.text or route.path.startswith("/health") else "/api/v1"
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        with closing(connection):
            connection.request(route.method, parts.path.rstrip("/") + path + route.path + query, body, _headers(body))
            yield connection.getresponse()
    except http.client.HTTPException as error:
        raise CommandError(f"{url}: the answer is not HTTP ({type(error).__name__})") from None
    except TimeoutError as error:
        if seconds is None or error.errno is not None:  # of the system, while it connected
            raise Unreachable(f"{url}: {error.strerror or error}") from None
        raise NoAnswer(url, seconds) from None
    except OSError as error:
        raise Unreachable(f"{url}: {error.strerror or error}") from None


def _exchange(url: str, route: HttpRoute, query: str, body: bytes | None, seconds: float | None) -> tuple[int, Any]:
    with _answer(url, route, query, body, seconds) as response:
        content = response.read()
        told = route.text and response.status < 400
        return response.status, {"text": content.decode(errors="replace")} if told else _decoded(content)


def _decoded(content: bytes) -> Any:
    """None if it is not JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def _headers(body: bytes | None) -> dict[str, str]:
    headers = {} if body is None else {"Content-Type": "application/json"}
    file = os.environ.get(TOKEN_FILE)
    if file:
        headers["Authorization"] = f"Bearer {_token(file)}"
    return headers


def _token(file: str) -> str:
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise CommandError(f"{TOKEN_FILE}: {file} cannot be read: {error.strerror}; name a file with a token") from None
    except UnicodeDecodeError:
        raise CommandError(f"{TOKEN_FILE}: {file} cannot be read: it is not UTF-8 text") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CommandError(f"{TOKEN_FILE}: {file} does not contain one token; write a single line to it")
    return token


def _body(given: dict[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = dict(given)
    for name in NUMBERS:
        if name in body:
            body[name] = float(body[name]) if name == "seconds" else int(body[name])
    for name in YES:
        if name in body:
            body[name] = body[name] == "yes"
    for name in LINES:
        if name in body:
            body[name] = body[name].split("\n")
    return body


def _why(status: int, answer: Any) -> str:
    told = answer.get("error") if isinstance(answer, dict) else None
    if status in (401, 403) and not os.environ.get(TOKEN_FILE):
        return f"{told or 'a login is required'}; set {TOKEN_FILE} to a file with a token of auth.api.token_file"
    return str(told or f"HTTP status {status}")
