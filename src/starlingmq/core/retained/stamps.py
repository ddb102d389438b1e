"""Stamps of retained messages, by which linked sites agree on the last writer of a topic.

A stamp is ``(milliseconds of wall clock, number, site)``, and the larger one wins. The site where a message enters
gives it, and bridges carry it in a User Property, ``starlingmq-stamp: MS.NUMBER.SITE``. After it `` again`` marks a
message that is sent only because the receiver may lack it: a receiver that does not lack it drops it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.wire.properties import USER_PROPERTY, decode_property_bytes, encode_property_bytes

STAMP: Final = "starlingmq-stamp"
AGAIN: Final = " again"
MS_DIGITS: Final = 15  # until the year 33658
NUMBER_DIGITS: Final = 9
NUMBER_MAX: Final = 10**NUMBER_DIGITS - 1
SITE_CHARS_MAX: Final = 64
_KEY: Final = STAMP.encode()

Stamp = tuple[int, int, str]


def text_of(stamp: Stamp) -> str:
    return f"{stamp[0]}.{stamp[1]}.{stamp[2]}"


def stamp_of(text: str) -> Stamp | None:
    """None: it is malformed."""
    milliseconds, _, rest = text.removesuffix(AGAIN).partition(".")
    number, _, site = rest.partition(".")
    if not milliseconds.isdecimal() or not number.isdecimal() or not milliseconds.isascii() or not number.isascii():
        return None
    if len(milliseconds) > MS_DIGITS or len(number) > NUMBER_DIGITS or not 0 < len(site) <= SITE_CHARS_MAX:
        return None
    return int(milliseconds), int(number), site


def stamp_text(properties: bytes) -> str:
    """The property of a message with these encoded properties; "": it has none."""
    if _KEY not in properties:
        return ""
    pairs = decode_property_bytes(properties).get(USER_PROPERTY)
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, tuple) and pair[0] == STAMP:
            return pair[1]
    return ""


def stamped(properties: bytes, stamp: Stamp, again: bool = False) -> bytes:
    """The encoded properties with this stamp instead of theirs."""
    text = text_of(stamp)
    return without(properties, STAMP) + encode_property_bytes(
        {USER_PROPERTY: [(STAMP, text + AGAIN if again else text)]}
    )


def without(properties: bytes, name: str) -> bytes:
    """The encoded properties without User Properties of this name."""
    if name.encode() not in properties:
        return properties
    decoded = decode_property_bytes(properties)
    pairs = decoded.get(USER_PROPERTY)
    kept: list[tuple[str, str]] = []
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, tuple) and pair[0] != name:
            kept.append(pair)
    decoded[USER_PROPERTY] = kept
    return encode_property_bytes(decoded)


def changed(message: Message, properties: bytes) -> Message:
    """The message with other properties: a copy if the store has it."""
    if message.offset >= 0:
        message = message.copy()
    message.octets += len(properties) - len(message.properties)
    message.properties = properties
    return message


def message_stamp(message: Message, site: str) -> Stamp:
    """The stamp of a retained message. One from before this site gave stamps has the time at which it came."""
    return stamp_of(stamp_text(message.properties)) or (int(message.published_at * 1000), 0, site)


def next_stamp(now: float, known: Stamp | None, site: str) -> Stamp:
    """The stamp of a message that replaces one with the stamp ``known``: later, whatever the clocks say."""
    stamp = (int(now * 1000), 0, site)
    if known is None or stamp > known:
        return stamp
    if known[1] >= NUMBER_MAX:
        return known[0] + 1, 0, site
    return known[0], known[1] + 1, site
