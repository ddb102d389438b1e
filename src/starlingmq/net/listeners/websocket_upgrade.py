"""The HTTP request for a WebSocket, and the response: bytes in, bytes out."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

from starlingmq.net.listeners.forwarded import ForwardedError, client_address
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.net.own_origin import is_own, is_plain

REQUEST_MAX: Final = 16 * 1024
"""Bytes of a request with all its headers; room for the cookies of a site with the same host name."""

REQUEST_START: Final = b"GET "
MQTT: Final = "mqtt"
MQTT_3_1: Final = "mqttv3.1"
SHOWN_MAX: Final = 100  # characters of a stranger's text in a log line
_END: Final = b"\r\n\r\n"


class UpgradeResponse(NamedTuple):
    """The response; ``refused`` is the reason to count, "" if the WebSocket is open; ``address`` is the client's;
    ``detail`` is for the log."""

    response: bytes
    refused: str = ""
    address: str = ""
    detail: str = ""


def request_size(data: bytes) -> int:
    """Bytes of the request that ``data`` begins with; one more than there are if it is incomplete."""
    end = data.find(_END)
    return len(data) + 1 if end < 0 else end + len(_END)


def answer(request: bytes, gate: ListenerGate, peer: str) -> UpgradeResponse:
    """Answer a complete request (up to and including its empty line) for the WebSocket of a listener.

    ``peer`` is the address of the connection. If it is a trusted proxy, its headers name the client's address.

    A page is accepted if its origin is among those of the gate (RFC 6455, 10.2). Without such a list any page is, but
    at a loopback listener without login only a page of this machine (``net.own_origin``). A subprotocol of "" requires
    none. For MQTT it is ``mqtt`` [MQTT-6.0.0-3]; ``mqttv3.1``, which older pages offer instead, is accepted too.
    """
    handshake = H11Handshake(ConnectionType.SERVER)
    try:
        handshake.receive_data(request)
        asked = next(handshake.events(), None)
    except RemoteProtocolError as error:
        return _no_websocket(error)
    except (UnicodeError, ValueError):
        # Host names and header values that are not ASCII get this far.
        return refuse(HTTPStatus.BAD_REQUEST, "bad_request", "the request is malformed")
    if not isinstance(asked, Request):
        return refuse(HTTPStatus.BAD_REQUEST, "bad_request", "the request is malformed")
    text = _no_upgrade(request, asked)
    if text:
        return refuse(HTTPStatus.BAD_REQUEST, "bad_request", text)
    path = requested_path(asked.target)
    if not gate.serves(path):
        text = f"the WebSocket path is {' or '.join(gate.paths)}"
        return refuse(HTTPStatus.NOT_FOUND, "bad_path", text, asked=f"path {shown(path)}: {text} (listeners[].paths)")
    origins = [value.decode("latin-1") for name, value in asked.extra_headers if name.lower() == b"origin"]
    if not all(_may_open(origin, asked.host, gate) for origin in origins):
        text = "this origin is not allowed (listeners[].origins)"
        return refuse(HTTPStatus.FORBIDDEN, "bad_origin", text, asked=f"origin {shown(', '.join(origins))}: {text}")
    subprotocol = chosen_subprotocol(gate.subprotocol, asked.subprotocols)
    if subprotocol is None and gate.subprotocol and not gate.subprotocol_optional:  # [MQTT-6.0.0-3]
        text = f"the WebSocket subprotocol must be {gate.subprotocol}"
        offered = shown(", ".join(asked.subprotocols)) if asked.subprotocols else "none"
        return refuse(
            HTTPStatus.BAD_REQUEST,
            "bad_subprotocol",
            text,
            asked=f"subprotocol {offered}: {text} (listeners[].subprotocol)",
        )
    try:
        address = client_address(
            peer, ((name.lower(), value) for name, value in asked.extra_headers), gate.trusted_proxies
        )
    except ForwardedError as error:
        return refuse(HTTPStatus.BAD_REQUEST, "bad_forwarded", str(error))
    response = bytes(handshake.send(AcceptConnection(subprotocol=subprotocol)))  # [MQTT-6.0.0-4]
    return UpgradeResponse(response, address=address)


def _no_upgrade(request: bytes, asked: Request) -> str:
    """Why a request that is well-formed cannot open a WebSocket, which begins right behind it; "" if it can."""
    if request.partition(b"\n")[0].rstrip().rpartition(b"HTTP/")[2] < b"1.1":
        return "a WebSocket request is HTTP/1.1"  # RFC 6455, 4.2.1
    for name, value in asked.extra_headers:
        if name == b"transfer-encoding" or (name == b"content-length" and int(value) != 0):
            return "a WebSocket request has no body"  # RFC 9110, 7.8
    return ""


def requested_path(target: str) -> str:
    """The path of a request target, without its query. A proxy may send the absolute form (RFC 9112, 3.2.2)."""
    scheme, separator, rest = target.partition("://")
    if separator and scheme.lower() in ("http", "https", "ws", "wss"):
        _, slash, path = rest.partition("/")
        target = slash + path or "/"
    return target.partition("?")[0]


def chosen_subprotocol(wanted: str, offered: list[str]) -> str | None:
    """The subprotocol of the response, None if none of those offered is spoken here."""
    if wanted in offered:
        return wanted
    return MQTT_3_1 if wanted == MQTT and MQTT_3_1 in offered else None


def _may_open(origin: str, host: str, gate: ListenerGate) -> bool:
    """Whether a page of this origin may open a WebSocket."""
    if gate.origins:
        return origin.lower() in gate.origins
    if not gate.local or not gate.admission.anonymous:
        return True
    hosts = gate.admission.hosts
    return is_own(host, hosts) and is_own(urlsplit(origin).netloc if is_plain(origin) else "", hosts)


def shown(text: str) -> str:
    """Text of a stranger for a log line."""
    return repr(text[:SHOWN_MAX])


def too_large() -> UpgradeResponse:
    return refuse(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "request_too_large",
        f"a request may have at most {REQUEST_MAX} bytes",
    )


def too_many() -> UpgradeResponse:
    """The gate counts the reason."""
    return refuse(HTTPStatus.TOO_MANY_REQUESTS, "", "too many connections from this address")


def not_http() -> UpgradeResponse:
    return refuse(HTTPStatus.BAD_REQUEST, "bad_request", "this port speaks WebSocket; the request must be a GET")


def refuse(status: HTTPStatus, reason: str, text: str, headers: str = "", asked: str = "") -> UpgradeResponse:
    """An HTTP response that ends the connection, with one line for the person who reads it. ``asked``: the line for the
    log, which says what the request had, too."""
    body = f"{text}\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n"
    )
    return UpgradeResponse((head + body).encode("ascii", "replace"), reason, detail=asked or text)


def _no_websocket(error: RemoteProtocolError) -> UpgradeResponse:
    hint = error.event_hint
    if getattr(hint, "status_code", 0) == HTTPStatus.UPGRADE_REQUIRED:
        return refuse(
            HTTPStatus.UPGRADE_REQUIRED,
            "bad_request",
            "only WebSocket version 13 is supported",
            "Sec-WebSocket-Version: 13\r\n",
        )
    return refuse(HTTPStatus.BAD_REQUEST, "bad_request", f"not a WebSocket request: {error}")
