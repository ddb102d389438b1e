"""NATS commands: the table, whole, split at every byte, and in sequences; and arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starlingmq.wire.nats import MORE, PING, PUB, NatsReader
from starlingmq.wire.nats_frames import message_head, message_tail

from .nats_cases import BAD, GOOD, LINE_MAX, PAYLOAD_MAX, Command, Outcome, read_all

relaxed = settings(deadline=None)


def reader() -> NatsReader:
    return NatsReader(LINE_MAX, PAYLOAD_MAX)


@pytest.mark.parametrize(("data", "command"), [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
def test_a_command(data: bytes, command: Command) -> None:
    assert read_all(reader(), data) == Outcome([command], "", len(data))
    assert read_all(reader(), data + b"PING\r\n").commands == [command, Command(PING)]
    for cut in range(len(data)):
        if not data[:cut].endswith(b"\n") or cut < 5 or b"PUB" in data[:5].upper():
            assert read_all(reader(), data[:cut]) == Outcome([], "", 0), data[:cut]


@pytest.mark.parametrize(("data", "text"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_invalid_commands_are_refused(data: bytes, text: str) -> None:
    assert read_all(reader(), data) == Outcome([], text, 0)
    assert read_all(reader(), b"PING\r\n" + data) == Outcome([Command(PING)], text, 6)
    # The reader does not wait for the rest of a command whose beginning is invalid.
    for cut in range(len(data)):
        outcome = read_all(reader(), data[:cut])
        assert outcome.error in ("", text)


def test_a_payload_says_how_much_it_lacks() -> None:
    commands = reader()
    assert commands.read(b"PUB foo 50\r\nhello", 0) == MORE
    assert commands.missing == 47
    assert commands.read(b"PUB foo", 0) == MORE
    assert commands.missing == 0


@relaxed
@given(st.lists(st.sampled_from([case[1:] for case in GOOD]), min_size=1, max_size=8), st.data())
def test_commands_are_read_however_the_bytes_are_split(cases: list[tuple[bytes, Command]], data: st.DataObject) -> None:
    stream = b"".join(case[0] for case in cases)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    commands = reader()
    found: list[Command] = []
    rest = b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        outcome = read_all(commands, rest + stream[start:end])
        assert not outcome.error
        found += outcome.commands
        rest = (rest + stream[start:end])[outcome.rest :]
    assert found == [case[1] for case in cases]
    assert rest == b""


@relaxed
@given(st.binary(max_size=400))
def test_noise(data: bytes) -> None:
    outcome = read_all(reader(), data)
    again = read_all(reader(), b"PONG\r\n" + data)
    assert again.error == outcome.error
    assert again.commands[1:] == outcome.commands


token = st.text("abcXYZ_$-0/+#\u00e9", min_size=1, max_size=8).map(str.encode)


@relaxed
@given(token, st.just(b"") | token, st.binary(max_size=PAYLOAD_MAX))
def test_commands_that_a_client_encodes_are_decoded(subject: bytes, reply: bytes, payload: bytes) -> None:
    words = [word for word in (b"PUB", subject, reply, b"%d" % len(payload)) if word]
    outcome = read_all(reader(), b"%b\r\n%b\r\n" % (b" ".join(words), payload))
    assert outcome.commands == [Command(PUB, subject, reply, payload=payload)]


def test_messages_as_a_server_writes_them() -> None:
    assert message_head(b"foo") + b"7" + message_tail(b"", b"", b"hi") == b"MSG foo 7 2\r\nhi\r\n"
    assert message_head(b"foo") + b"7" + message_tail(b"r", b"", b"") == b"MSG foo 7 r 0\r\n\r\n"
    for size in (0, 4095, 4096, 70_000):
        assert message_tail(b"", b"", b"x" * size) == b" %d\r\n%b\r\n" % (size, b"x" * size)
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert b"H" + message_head(b"foo") + b"7" + message_tail(b"", block, b"hi") == (
        b"HMSG foo 7 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n"
    )
    assert b"H" + message_head(b"foo") + b"7" + message_tail(b"r", block, b"") == (
        b"HMSG foo 7 r 18 18\r\nNATS/1.0\r\nA: b\r\n\r\n\r\n"
    )
