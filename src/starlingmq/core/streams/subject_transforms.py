"""Subject transforms as nats-server has them: a source with wildcards, a destination that says where their tokens go.

::

    orders.*.*  ->  by.{{wildcard(2)}}.{{partition(3,1)}}      orders.new.eu  ->  by.eu.1
    orders.>    ->  all.>                                      orders.new.eu  ->  all.new.eu

A destination that makes no valid topic of a subject, or a topic of the broker, leaves that as it is. ``random`` counts
messages.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.topics.topics import of_the_broker
from starlingmq.wire.nats_headers import carried, properties_of
from starlingmq.wire.nats_subjects import filter_of, subject_of, topic_of

FNV_OFFSET: Final = 2166136261
FNV_PRIME: Final = 16777619
SEVERAL: Final = (b"split", b"splitfromleft", b"splitfromright", b"slicefromleft", b"slicefromright")
LITERAL: Final = b""
RESERVED: Final = (b"$JS/", b"$SYS/", b"$events/")
LONGEST: Final = 65_535  # bytes of a topic: a longer one has no form in MQTT, nor in a log


class MappedToken:
    """A token of a destination. ``kind`` LITERAL: ``text`` as it is; otherwise the name of a function."""

    kind: bytes
    text: bytes  # or the delimiter of ``split``
    places: list[int]  # of wildcards, by number; of source tokens in a SubjectTransform
    number: int

    def __init__(self, kind: bytes, text: bytes, places: list[int], number: int) -> None:
        self.kind = kind
        self.text = text
        self.places = places
        self.number = number


class SubjectTransform:
    source: list[bytes]
    parts: list[MappedToken]
    rest: bool  # both end with ``>``
    count: int  # messages, for ``random``

    def __init__(self, source: list[bytes], parts: list[MappedToken]) -> None:
        self.source = source
        self.parts = parts
        self.rest = source[len(source) - 1] == b">"
        self.count = 0

    def matches(self, tokens: list[bytes]) -> bool:
        fixed = len(self.source) - 1 if self.rest else len(self.source)
        if len(tokens) < len(self.source) or (not self.rest and len(tokens) != fixed):
            return False
        return all(self.source[at] in (b"*", tokens[at]) for at in range(fixed))

    def of(self, topic: bytes) -> bytes:
        """The topic that this one becomes; b"": it is not one of the source, or becomes none."""
        tokens = subject_of(topic).split(b".")
        if not self.matches(tokens):
            return b""
        self.count += 1
        made: list[bytes] = []
        left = LONGEST
        for part in self.parts[:-1] if self.rest else self.parts:
            made.append(self._made(part, tokens))
            left -= len(made[-1]) + 1
            if left < 0:
                return b""
        if self.rest:
            made += tokens[len(self.source) - 1 :]
        found = topic_of(b".".join(made))
        return b"" if len(found) > LONGEST or found.startswith(RESERVED) or of_the_broker(found) else found

    def _made(self, part: MappedToken, tokens: list[bytes]) -> bytes:
        kind = part.kind
        if kind == LITERAL:
            return part.text
        if kind == b"random":
            return b"%d" % (self.count % part.number if part.number > 0 else 0)
        if kind == b"partition":
            key = b"".join([tokens[place] for place in part.places]) if part.places else b".".join(tokens)
            return b"%d" % (_fnv(key) % (part.number & 0xFFFFFFFF) if part.number else 0)
        token = tokens[part.places[0]]
        if kind == b"wildcard":
            return token
        if kind == b"split":
            return b".".join([each for each in (token.split(part.text) if part.text else _letters(token)) if each])
        size, whole = part.number, len(token)
        if not 0 < size < whole:
            return token
        if kind == b"left":
            return token[:size]
        if kind == b"right":
            return token[whole - size :]
        first = whole - size if kind == b"splitfromright" else whole % size if kind == b"slicefromright" else size
        if kind.startswith(b"split"):
            return token[:first] + b"." + token[first:]
        pieces = [token[: first or size]]
        pieces += [token[at : at + size] for at in range(first or size, whole, size)]
        return b".".join(pieces)

    def made(self) -> bytes:
        """The topic filter of all topics that it makes; b"#" if there is no narrower one."""
        tokens: list[bytes] = []
        for part in self.parts:
            if part.kind in SEVERAL:
                tokens.append(b">")
                break
            tokens.append(part.text if part.kind == LITERAL else b"*")
        return filter_of(b".".join(tokens)) or b"#"


class Republishing:
    """How a stream renames messages and sends them again. ``name``: of the stream."""

    name: bytes
    transform: SubjectTransform | None  # of the topic under which they are kept
    republish: SubjectTransform | None  # of that to the one under which they are sent again
    headers_only: bool

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.transform = None
        self.republish = None
        self.headers_only = False

    def kept(self, message: Message) -> Message:
        """The message as the stream keeps it."""
        topic = self.transform.of(message.topic) if self.transform is not None else b""
        if not topic or topic == message.topic:
            return message
        kept = message.copy()
        kept.octets += len(topic) - len(kept.topic)
        kept.topic = topic
        return kept

    def again(self, message: Message, seq: int, before: int, time: bytes) -> Message | None:
        """The message as it is sent again. ``before``: the sequence before it of its topic. None: it is not sent, also
        because this stream has sent it before, and others have brought it back."""
        topic = self.republish.of(message.topic) if self.republish is not None else b""
        block = carried(message.properties).headers if message.properties else b""
        if not topic or b"\r\nNats-Stream: %b\r\n" % self.name in block:
            return None
        lines = [
            block[:-2] if block else b"NATS/1.0\r\n",
            b"Nats-Stream: %b\r\n" % self.name,
            b"Nats-Subject: %b\r\n" % subject_of(message.topic),
            b"Nats-Sequence: %d\r\n" % seq,
            b"Nats-Time-Stamp: %b\r\n" % time,
            b"Nats-Last-Sequence: %d\r\n" % before,
        ]
        if self.headers_only:
            lines.append(b"Nats-Msg-Size: %d\r\n" % len(message.payload))
        lines.append(b"\r\n")
        try:
            properties = properties_of(b"".join(lines), b"")
        except ValueError:
            return None
        payload = b"" if self.headers_only else message.payload
        return Message(topic, payload, 0, False, properties, message.expires_at, "", message.published_at)


def _letters(token: bytes) -> list[bytes]:
    return [each.encode() for each in token.decode(errors="replace")]


def _fnv(key: bytes) -> int:
    found = FNV_OFFSET
    for octet in key:
        found = (found ^ octet) * FNV_PRIME & 0xFFFFFFFF
    return found
