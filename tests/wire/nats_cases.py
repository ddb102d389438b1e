"""The one table of NATS commands: bytes, and the expected result. Every test of the reader uses it."""

from __future__ import annotations

from typing import NamedTuple

from starlingmq.wire.nats import (
    CONNECT,
    HPUB,
    LINE_TOO_LONG,
    MORE,
    PARSER_ERROR,
    PAYLOAD_TOO_LARGE,
    PING,
    PONG,
    PUB,
    SUB,
    UNKNOWN_OPERATION,
    UNSUB,
    NatsError,
    NatsReader,
)

LINE_MAX = 256
PAYLOAD_MAX = 100


class Command(NamedTuple):
    """A command as a value; fields that a kind does not have are empty."""

    kind: int
    subject: bytes = b""
    reply: bytes = b""
    queue: bytes = b""
    sid: bytes = b""
    number: int = 0
    headers: bytes = b""
    payload: bytes = b""
    options: bytes = b""


def taken(reader: NatsReader, kind: int) -> Command:
    """Return the command that the reader has just read."""
    if kind in (PUB, HPUB):
        return Command(kind, reader.subject, reader.reply, headers=reader.headers, payload=reader.payload)
    if kind == SUB:
        return Command(kind, reader.subject, queue=reader.queue, sid=reader.sid)
    if kind == UNSUB:
        return Command(kind, sid=reader.sid, number=reader.number)
    return Command(kind, options=reader.options) if kind == CONNECT else Command(kind)


class Outcome(NamedTuple):
    """The result of some bytes: the commands, the error that ended them, and the start of the first incomplete
    command.
    """

    commands: list[Command]
    error: str
    rest: int


def read_all(reader: NatsReader, data: bytes) -> Outcome:
    commands: list[Command] = []
    pos = 0
    try:
        while pos < len(data):
            kind = reader.read(data, pos)
            if kind == MORE:
                break
            assert reader.end > pos
            pos = reader.end
            commands.append(taken(reader, kind))
    except NatsError as error:
        return Outcome(commands, error.text, pos)
    return Outcome(commands, "", pos)


HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"

GOOD: list[tuple[str, bytes, Command]] = [
    ("ping", b"PING\r\n", Command(PING)),
    ("pong", b"PONG\r\n", Command(PONG)),
    ("ping in lower case, with a bare line feed", b"ping\n", Command(PING)),
    ("ping with blanks", b"PING \t\r\n", Command(PING)),
    ("connect", b'CONNECT {"verbose":false}\r\n', Command(CONNECT, options=b'{"verbose":false}')),
    ("connect with blanks", b"connect\t {} \r\n", Command(CONNECT, options=b"{}")),
    ("sub", b"SUB foo 1\r\n", Command(SUB, b"foo", sid=b"1")),
    ("sub in a queue", b"SUB foo.* workers ab-2\r\n", Command(SUB, b"foo.*", queue=b"workers", sid=b"ab-2")),
    ("sub with tabs", b"sub\tfoo.>\t\t9\r\n", Command(SUB, b"foo.>", sid=b"9")),
    ("unsub", b"UNSUB 1\r\n", Command(UNSUB, sid=b"1")),
    ("unsub after some", b"UnSub 1 5\r\n", Command(UNSUB, sid=b"1", number=5)),
    ("unsub after a negative number is at once", b"UNSUB 1 -1\r\n", Command(UNSUB, sid=b"1")),
    ("unsub after what is no number is at once", b"UNSUB 1 x\r\n", Command(UNSUB, sid=b"1")),
    ("unsub of many digits is at once", b"UNSUB 1 99999999999\r\n", Command(UNSUB, sid=b"1")),
    ("pub", b"PUB foo 5\r\nhello\r\n", Command(PUB, b"foo", payload=b"hello")),
    ("pub with a reply", b"PUB foo _INBOX.1 2\r\nhi\r\n", Command(PUB, b"foo", b"_INBOX.1", payload=b"hi")),
    ("pub of nothing", b"PUB foo 0\r\n\r\n", Command(PUB, b"foo")),
    ("pub with blanks", b"pub  foo \t 2 \r\nhi\r\n", Command(PUB, b"foo", payload=b"hi")),
    ("pub with a bare line feed", b"PUB foo 2\nhi\r\n", Command(PUB, b"foo", payload=b"hi")),
    ("pub of line ends", b"PUB foo 4\r\n\r\n\r\n\r\n", Command(PUB, b"foo", payload=b"\r\n\r\n")),
    ("pub with a control character", b"PUB f\x0eo 2\r\nhi\r\n", Command(PUB, b"f\x0eo", payload=b"hi")),
    ("pub as large as may be", b"PUB f 100\r\n" + b"x" * 100 + b"\r\n", Command(PUB, b"f", payload=b"x" * 100)),
    ("hpub", b"HPUB foo 18 20\r\n" + HEADERS + b"hi\r\n", Command(HPUB, b"foo", headers=HEADERS, payload=b"hi")),
    ("hpub with a reply", b"hpub foo r 18 18\r\n" + HEADERS + b"\r\n", Command(HPUB, b"foo", b"r", headers=HEADERS)),
]

BAD: list[tuple[str, bytes, str]] = [
    ("no command", b"HELLO\r\n", UNKNOWN_OPERATION),
    ("a first byte that begins none", b"\x00", UNKNOWN_OPERATION),
    ("an MQTT packet", b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", UNKNOWN_OPERATION),
    ("HTTP", b"GET / HTTP/1.1\r\n\r\n", UNKNOWN_OPERATION),
    ("a command that goes on", b"PINGPONG\r\n", UNKNOWN_OPERATION),
    ("PUBX", b"PUBX foo 1\r\n", UNKNOWN_OPERATION),
    ("HPUBX", b"HPUBX foo 1\r\n", UNKNOWN_OPERATION),
    ("CONNECT without a blank", b"CONNECT{}\r\n", UNKNOWN_OPERATION),
    ("a server's command", b"MSG foo 1 2\r\nhi\r\n", UNKNOWN_OPERATION),
    ("pub without a size", b"PUB foo\r\n", PARSER_ERROR),
    ("pub of too many words", b"PUB a b c 5\r\n", PARSER_ERROR),
    ("hpub of too many words", b"HPUB a b c 5 5\r\n", PARSER_ERROR),
    ("hpub without sizes", b"HPUB foo 2\r\n", PARSER_ERROR),
    ("a size that is no number", b"PUB foo 1x\r\n", PARSER_ERROR),
    ("a negative size", b"PUB foo -1\r\n", PARSER_ERROR),
    ("a size of many digits", b"PUB foo 00000000001\r\n", PARSER_ERROR),
    ("a payload longer than it says", b"PUB foo 2\r\nhello\r\n", PARSER_ERROR),
    ("a payload without its end", b"PUB foo 2\r\nhi\rx", PARSER_ERROR),
    ("a carriage return in a line", b"PUB fo\ro 2\r\nhi\r\n", PARSER_ERROR),
    ("more headers than payload", b"HPUB foo 5 2\r\nhi\r\n", PARSER_ERROR),
    ("a header size that is no number", b"HPUB foo x 5\r\n", PARSER_ERROR),
    ("unsub of too many words", b"UNSUB 1 2 3\r\n", PARSER_ERROR),
    ("sub without a sid", b"SUB foo\r\n", PARSER_ERROR),
    ("sub of too many words", b"SUB foo q 1 2\r\n", PARSER_ERROR),
    ("unsub of nothing", b"UNSUB \r\n", PARSER_ERROR),
    ("a payload that is too large", b"PUB foo 101\r\n", PAYLOAD_TOO_LARGE),
    ("headers that are too large", b"HPUB foo 90 101\r\n", PAYLOAD_TOO_LARGE),
    ("a line that is too long", b"SUB " + b"a" * LINE_MAX + b" 1\r\n", LINE_TOO_LONG),
    ("a line that is too long and not at its end", b"PUB " + b"a" * LINE_MAX, LINE_TOO_LONG),
    ("a CONNECT without an end", b"CONNECT {" + b" " * LINE_MAX, LINE_TOO_LONG),
    ("blanks without an end", b"PUB " + b" " * LINE_MAX, LINE_TOO_LONG),
]
