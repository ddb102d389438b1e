"""Marks with which messages of any QoS pass a link once (``starlingmq.bridges``).

A link is a bridge between two StarlingMQs. Its sessions, one at each side, get every message at QoS 2: the handshake is
what makes it arrive once. The QoS that the message has beside that is a User Property, which the receiving broker takes
off again. Both sides know such a session by its client id::

    $bridge/link:NAME        of the broker that has the link in its settings
    $link/NAME-SITE          at the other one
    .../NUMBER/LANES         at the end of both: messages are divided over several sessions by a hash of the topic
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.wire.properties import USER_PROPERTY, decode_property_bytes, encode_property_bytes

FAR_LINK: Final = "$link/"
NEAR_LINK: Final = "$bridge/link:"
LINKS: Final = (FAR_LINK, NEAR_LINK)
LINK_ID_BYTES: Final = 96  # that an id has at most without links[].client_id, whatever limits.client_id_length is
_KEY: Final = "starlingmq-qos"
_MARKS: Final = [encode_property_bytes({USER_PROPERTY: [(_KEY, str(qos))]}) for qos in (0, 1)]
_KEY_BYTES: Final = _KEY.encode()
_NUMBERS: Final = frozenset(str(number) for number in range(1, 100))
_LANES_MAX: Final = 100  # sessions whose lanes are remembered
_lanes: Final[dict[str, tuple[int, int]]] = {}


def is_link(client_id: str) -> bool:
    """Whether it is of a session of a link, at either side."""
    return client_id.startswith(LINKS)


def lane_suffix(number: int, lanes: int) -> str:
    """The end of the client ids of this lane."""
    return "" if lanes == 1 else f"/{number}/{lanes}"


def name_of(client_id: str) -> str:
    """The client id of a link or bridge without prefix and lane: its name in state topics."""
    if is_link(client_id):
        return client_id.removeprefix(NEAR_LINK).removeprefix(FAR_LINK).partition("/")[0]
    return client_id.removeprefix("$bridge/")


def base_of(client_id: str) -> str:
    """The client id of a link's session without its lane."""
    number = client_id.find("/", len(FAR_LINK) if client_id.startswith(FAR_LINK) else len(NEAR_LINK))
    return client_id if number < 0 else client_id[:number]


def carries(client_id: str, topic: bytes) -> bool:
    """Whether messages with this topic are for the lane of this session."""
    lane = _lanes.get(client_id)
    if lane is None:
        if len(_lanes) >= _LANES_MAX:
            _lanes.clear()
        lane = _lanes[client_id] = _lane(client_id)
    return lane[1] == 1 or crc32(topic) % lane[1] == lane[0] - 1


def _lane(client_id: str) -> tuple[int, int]:
    """Any client may have an id like these: one that names no lane gets all messages."""
    levels = client_id.removeprefix(FAR_LINK).removeprefix(NEAR_LINK).split("/")
    if len(levels) != 3 or not all(level in _NUMBERS for level in levels[1:]):
        return 1, 1
    return int(levels[1]), int(levels[2])


def put_on(client_id: str, outgoing: Outgoing) -> bool:
    """Make a message for this session of a link one of QoS 2, with its own QoS as a property. False: it is for
    another lane."""
    if not carries(client_id, outgoing.message.topic):
        return False
    if outgoing.qos != 2:
        outgoing.ids = _MARKS[outgoing.qos]
        outgoing.qos = 2
    else:
        outgoing.ids = b""
    return True


def unmark(message: Message) -> None:
    """Give a message that came by a link the QoS that it has beside the link. Its publisher may have put the bytes of a
    mark anywhere: the last one that is a property counts, and all go."""
    if _KEY_BYTES not in message.properties:
        return
    decoded = decode_property_bytes(message.properties)
    pairs = decoded.get(USER_PROPERTY)
    kept: list[tuple[str, str]] = []
    text = ""
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, tuple) and pair[0] == _KEY:
            text = pair[1]
        elif isinstance(pair, tuple):
            kept.append(pair)
    if text in ("0", "1"):
        decoded[USER_PROPERTY] = kept
        message.properties = encode_property_bytes(decoded)
        message.qos = int(text)
        message.octets = len(message.topic) + len(message.payload) + len(message.properties)
