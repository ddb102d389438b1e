"""Asks a broker over HTTP what the control socket would be asked, for ``--url``.

The token is the content of the file in ``STARLINGMQ_TOKEN_FILE``, never an argument: arguments are visible to others.
Redirects are not followed, so that the token stays with the broker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlingmq.cli.declare import CommandError

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from starlingmq.admin.declared_actions import Declared

TOKEN_FILE: Final = "STARLINGMQ_TOKEN_FILE"  # noqa: S105 the name of a variable
ANSWER_SECONDS: Final = 30.0  # for a broker to answer a request, or to report progress
SILENT_SECONDS: Final = 60.0  # for the next event of a stream of events, or a sign of life
SCHEMES: Final = ("http://", "https://")


class HttpRoute(NamedTuple):
    """``text``: outside of the API, answered with text."""

    method: str
    path: str
    text: bool = False


ROUTES: Final = {
    "metrics.text": HttpRoute("GET", "/metrics", text=True),
    "health": HttpRoute("GET", "/health/ready"),
}
"""Actions without a declaration, with the same arguments and the same result over HTTP."""


class Unreachable(CommandError):
    """No connection to the broker."""


class AnswerLost(Unreachable):
    """The connection ended before the answer: the broker may have done what it was asked."""


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
    declared = _declared(action)
    if declared is not None:
        return _ask_declared(url, declared, arguments, seconds)
    route = ROUTES.get(action)
    if route is None:
        raise CommandError(f"{action} is not available over HTTP; run this on the machine of the broker")
    status, answer = _exchange(url, route, "", None, seconds)
    return _accepted(url, status if action != "health" or status != 503 else 200, answer)


def _accepted(url: str, status: int, answer: Any) -> dict[str, Any]:
    """Raises CommandError."""
    if status >= 400:
        raise CommandError(f"{url}: {_why(status, answer)}")
    if not isinstance(answer, dict):
        raise CommandError(f"{url}: this is not the HTTP API of a broker")
    return answer


def _declared(action: str) -> Declared | None:
    import starlingmq.admin.all_actions  # noqa: F401  late: it loads what declares actions
    from starlingmq.admin.declared_actions import DECLARED

    return DECLARED.get(action)


def _ask_declared(url: str, declared: Declared, arguments: dict[str, str], seconds: float) -> dict[str, Any]:
    """Raises CommandError."""
    from urllib.parse import urlencode  # these are late for commands that never ask over HTTP

    from msgspec.structs import fields

    from starlingmq.admin.operator_problem import AdminError
    from starlingmq.admin.typed_actions import reader_of

    method, path = declared.http.split()
    try:
        request = reader_of(declared.request)(arguments | {"cursor": ""})
    except AdminError as error:
        raise CommandError(str(error)) from None
    own = {field.name: field.encode_name for field in fields(declared.request)}
    given = {name: getattr(request, name) for name, text in arguments.items() if text and name in own}
    words = {own[name]: value for name, value in given.items()}
    for name in ("node", "cursor"):
        if arguments.get(name) and (name in own or declared.has_node):
            words[name] = arguments[name]
    asked = {} if declared.body else words
    if declared.body and "node" in own and "node" in words:
        asked = {"node": words.pop("node")}
    query = "?" + urlencode({name: _word(one) for name, one in asked.items()}) if asked else ""
    body = json.dumps(words).encode() if declared.body else None
    status, answer = _exchange(url, HttpRoute(method, path), query, body, None if declared.waits else seconds)
    return _accepted(url, status, answer)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def follow_url(url: str, path: str, arguments: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """The server-sent events of a path, with their names; ("", None) while nothing comes. Raises CommandError."""
    from http.client import IncompleteRead
    from urllib.parse import urlencode

    route = HttpRoute("GET", path)
    given = {name: value for name, value in arguments.items() if value}
    with _answer(url, route, f"?{urlencode(given)}", None, SILENT_SECONDS) as response:
        if response.status >= 400:
            raise CommandError(f"{url}: {_why(response.status, _decoded(response.read()))}")
        with suppress(IncompleteRead):  # it ends without the last chunk
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
) -> Iterator[HTTPResponse]:
    """Raises CommandError, also while the answer is read."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = "" if route.text or route.path.startswith("/health") else "/api/v1"
    headers = _headers(body)  # a token that cannot be read is told first
    lost: type[Unreachable] = Unreachable
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        with closing(connection):
            connection.connect()
            lost = AnswerLost
            connection.request(route.method, parts.path.rstrip("/") + path + route.path + query, body, headers)
            yield connection.getresponse()
    except RemoteDisconnected:
        raise lost(f"{url}: the broker stopped before it answered") from None
    except HTTPException as error:
        raise CommandError(f"{url}: the answer is not HTTP ({type(error).__name__})") from None
    except TimeoutError as error:
        if seconds is None or error.errno is not None:  # of the system, while it connected
            raise lost(f"{url}: {error.strerror or error}") from None
        raise NoAnswer(url, seconds) from None
    except OSError as error:
        raise lost(f"{url}: {error.strerror or error}") from None


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


def _why(status: int, answer: Any) -> str:
    told = answer.get("error") if isinstance(answer, dict) else None
    if status in (401, 403) and not os.environ.get(TOKEN_FILE):
        return f"{told or 'a login is required'}; set {TOKEN_FILE} to a file with a token of auth.api.token_file"
    return str(told or f"HTTP status {status}")
