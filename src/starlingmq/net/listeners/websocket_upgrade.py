"""The HTTP request for a WebSocket, and the response: bytes in, bytes out."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple

from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

from starlingmq.net.listeners.forwarded import ForwardedError, client_address
from starlingmq.net.listeners.listener_gate import ListenerGate

REQUEST_MAX: Final = 16 * 1024
"""Bytes of a request with all its headers; room for the cookies of a site with the same host name."""

REQUEST_START: Final = b"GET "
_END: Final = b"\r\n\r\n"


class UpgradeResponse(NamedTuple):
    """The response; ``refused`` is the reason to count, "" if the WebSocket is open; ``address`` is the client's."""

    response: bytes
    refused: str = ""
    address: str = ""


def request_size(data: bytes) -> int:
    """Bytes of the request that ``data`` begins with; one more than there are if it is incomplete."""
    end = data.find(_END)
    return len(data) + 1 if end < 0 else end + len(_END)


def answer(request: bytes, gate: ListenerGate, peer: str) -> UpgradeResponse:
    """Answer a complete request (up to and including its empty line) for the WebSocket of a listener.

    ``peer`` is the address of the connection. If it is a trusted proxy, its headers name the client's address.

    A page is accepted if its origin is among those of the gate (RFC 6455, 10.2). A subprotocol of "" requires none. For
    MQTT it is ``mqtt``: ``mqttv3.1``, which some clients offer instead when told to use MQTT 3.1, is in no MQTT
    specification and is refused [MQTT-6.0.0-4].
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
    if asked.target.partition("?")[0] != gate.path:
        return refuse(HTTPStatus.NOT_FOUND, "bad_path", f"the WebSocket path is {gate.path}")
    origins = [value for name, value in asked.extra_headers if name.lower() == b"origin"]
    if gate.origins and any(origin.decode("latin-1").lower() not in gate.origins for origin in origins):
        return refuse(HTTPStatus.FORBIDDEN, "bad_origin", "this origin is not allowed (listeners[].origins)")
    subprotocol = gate.subprotocol
    if subprotocol and subprotocol not in asked.subprotocols:  # [MQTT-6.0.0-3]
        return refuse(HTTPStatus.BAD_REQUEST, "bad_subprotocol", f"the WebSocket subprotocol must be {subprotocol}")
    try:
        address = client_address(
            peer, ((name.lower(), value) for name, value in asked.extra_headers), gate.trusted_proxies
        )
    except ForwardedError as error:
        return refuse(HTTPStatus.BAD_REQUEST, "bad_forwarded", str(error))
    response = bytes(handshake.send(AcceptConnection(subprotocol=subprotocol or None)))  # [MQTT-6.0.0-4]
    return UpgradeResponse(response, address=address)


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


def refuse(status: HTTPStatus, reason: str, text: str, headers: str = "") -> UpgradeResponse:
    """An HTTP response that ends the connection, with one line for the person who reads it."""
    body = f"{text}\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n"
    )
    return UpgradeResponse((head + body).encode("ascii", "replace"), reason)


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
