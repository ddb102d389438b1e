"""Formats of ``sub``: plain, verbose, JSON, or a format with the escapes of mosquitto_sub (``-F``).

A format is parsed once, into one function per piece; a printer is any function from (message, time of arrival in
nanoseconds since the epoch) to bytes. An invalid format raises CommandError.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from starlingmq.cli.declare import CommandError
from starlingmq.cli.property_args import option_name
from starlingmq.client import Message
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    RULES,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
)

Printer = Callable[[Message, int], bytes]

ESCAPES: Final = {
    "\\": b"\\",
    "0": b"\0",
    "a": b"\a",
    "e": b"\x1b",
    "n": b"\n",
    "r": b"\r",
    "t": b"\t",
    "v": b"\v",
}
PIECE: Final = re.compile(r"%(-?)(0?)(-?)(\d*)(?:\.(\d+))?(.)|@(.)|\\(.)|([^%@\\]+)", re.DOTALL)
SECOND: Final = 1_000_000_000


def plain(message: Message, _at: int) -> bytes:
    return message.payload


def verbose(message: Message, _at: int) -> bytes:
    return b"%b %b" % (message.topic.encode(), message.payload or b"(null)")


def as_json(message: Message, at: int) -> bytes:
    """Return one JSON object: the payload as text, or in base64 if it is not UTF-8 (``base64`` tells which)."""
    try:
        payload, encoded = message.payload.decode(), False
    except UnicodeDecodeError:
        payload, encoded = base64.b64encode(message.payload).decode(), True
    line = _head(message, at)
    line |= {"dup": message.dup, "properties": _properties(message), "payload": payload, "base64": encoded}
    line["retain"] = message.retain
    return json.dumps(line, ensure_ascii=False).encode()


def formatted(format: str) -> Printer:
    """Return the printer for ``format``: % for the message, @ for strftime, backslash for control characters."""
    pieces: list[Printer] = []
    position = 0
    while position < len(format):
        match = PIECE.match(format, position)
        if match is None:
            raise CommandError(f"-F: the format ends in the middle of {format[position:]!r}")
        pieces.append(_piece(match))
        position = match.end()
    return lambda message, at: b"".join([piece(message, at) for piece in pieces])


def _piece(match: re.Match[str]) -> Printer:
    left, zero, left_again, width, precision, letter, time_letter, escape, text = match.groups()
    if text is not None:
        return _constant(text.encode())
    if escape is not None:
        if escape not in ESCAPES:
            raise CommandError(f"-F: \\{escape} is not one of the escapes \\\\ \\0 \\a \\e \\n \\r \\t \\v")
        return _constant(ESCAPES[escape])
    if time_letter is not None:
        return _time(time_letter)
    if letter not in FIELDS:
        raise CommandError(f"-F: %{letter} is not one of {' '.join('%' + each for each in FIELDS)}")
    return _padded(FIELDS[letter], letter, bool(left or left_again), bool(zero), int(width or 0), precision)


def _constant(text: bytes) -> Printer:
    return lambda message, at: text


def _time(letter: str) -> Printer:
    if letter == "@":
        return _constant(b"@")
    if letter == "N":
        return lambda message, at: b"%09d" % (at % SECOND)
    if letter == "%":
        raise CommandError("-F: @% is not a time format")
    return lambda message, at: _moment(at).strftime(f"%{letter}").encode()


def _padded(field: Printer, letter: str, left: bool, zero: bool, width: int, precision: str | None) -> Printer:
    if not width and precision is None:
        return field
    most = None if precision is None else int(precision)
    fill = b"0" if zero and not left and letter in "AEFlmSXx" else b" "

    def padded(message: Message, at: int) -> bytes:
        value = field(message, at)[:most]
        return value.ljust(width, fill) if left else value.rjust(width, fill)

    return padded


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(at // SECOND).astimezone().replace(microsecond=at % SECOND // 1000)


def _property(identifier: int) -> Printer:
    def printer(message: Message, _at: int) -> bytes:
        value = message.properties.get(identifier)
        if value is None:
            return b""
        if isinstance(value, bytes):
            return value
        if isinstance(value, list):  # subscription identifiers, or user properties
            return " ".join(f"{each[0]}:{each[1]}" if isinstance(each, tuple) else str(each) for each in value).encode()
        return str(value).encode()

    return printer


def _head(message: Message, at: int) -> dict[str, Any]:
    head: dict[str, Any] = {
        "tst": _moment(at).strftime("%Y-%m-%dT%H:%M:%S.%f%z"),
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.packet_id:
        head["mid"] = message.packet_id
    return head


def _properties(message: Message) -> dict[str, Any]:
    """Return properties by name, for JSON. User properties remain a list of pairs, because names may repeat and have an
    order.
    """
    named: dict[str, Any] = {}
    for identifier, value in message.properties.items():
        if isinstance(value, bytes):
            named[option_name(RULES[identifier])] = value.decode(errors="replace")
        elif identifier == USER_PROPERTY:
            named["user-properties"] = value
        else:
            named[option_name(RULES[identifier])] = value
    return named


def _mosquitto_json(message: Message, at: int) -> dict[str, Any]:
    line = _head(message, at)
    named = _properties(message)
    if "user-properties" in named:
        named["user-properties"] = dict(named["user-properties"])
    identifiers = named.get("subscription-identifier")
    if identifiers and len(identifiers) == 1:
        named["subscription-identifier"] = identifiers[0]
    if named:
        line["properties"] = named
    return line


def _json_quoted(message: Message, at: int) -> bytes:
    payload = message.payload.decode(errors="replace") if message.payload else None
    return _compact(_mosquitto_json(message, at) | {"payload": payload})


def _json_embedded(message: Message, at: int) -> bytes:
    try:
        payload = json.loads(message.payload) if message.payload else None
    except ValueError:
        raise NotJson(f"the payload on topic {message.topic} is not valid JSON") from None
    return _compact(_mosquitto_json(message, at) | {"payload": payload})


def _compact(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()


class NotJson(ValueError):
    """This message cannot be printed with %J; later ones may."""


FIELDS: Final[dict[str, Printer]] = {
    "%": lambda message, at: b"%",
    "A": _property(TOPIC_ALIAS),
    "C": _property(CONTENT_TYPE),
    "D": _property(CORRELATION_DATA),
    "E": _property(MESSAGE_EXPIRY_INTERVAL),
    "F": _property(PAYLOAD_FORMAT_INDICATOR),
    "I": lambda message, at: _moment(at).strftime("%Y-%m-%dT%H:%M:%S%z").encode(),
    "J": _json_embedded,
    "P": _property(USER_PROPERTY),
    "R": _property(RESPONSE_TOPIC),
    "S": _property(SUBSCRIPTION_IDENTIFIER),
    "U": lambda message, at: b"%d.%09d" % (at // SECOND, at % SECOND),
    "X": lambda message, at: message.payload.hex().upper().encode(),
    "j": _json_quoted,
    "l": lambda message, at: b"%d" % len(message.payload),
    "m": lambda message, at: b"%d" % message.packet_id,
    "p": lambda message, at: message.payload,
    "q": lambda message, at: b"%d" % message.qos,
    "r": lambda message, at: b"%d" % message.retain,
    "t": lambda message, at: message.topic.encode(),
    "x": lambda message, at: message.payload.hex().encode(),
}
