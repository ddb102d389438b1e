"""The reader of mosquitto's persistence file: both formats, each state of a message, and files that are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.migrate.described import PUBLISHED, RELEASED, MigrationError
from starlingmq.migrate.mosquitto_db import NEVER, Persisted, read_database
from tests.cli.commands import run

from .database import chunk, client, for_client, header, message, retained, subscription

NOW = 1_800_000_000.0
PROPERTIES = b"\x0c\x03\x00\x01t\x26\x00\x01a\x00\x02bc"
WITH_EXPIRY = b"\x11" + PROPERTIES[1:] + b"\x02\x00\x00\x00\x09"


def file(version: int = 6) -> bytes:
    return b"".join(
        [
            header(version),
            message(1, b"a/b", b"one", 1, 1, WITH_EXPIRY, int(NOW) + 60),
            message(2, b"a/c", b"two", 2),
            message(3, b"a/d", b"gone", 1, 1, expires=int(NOW) - 1),
            client(version, b"s", NEVER, 0, 12, b"ann"),
            for_client(1, b"s", 5, 1, 3),
            for_client(2, b"s", 6, 2, 5),
            for_client(2, b"s", 7, 2, 9),
            for_client(1, b"s", 8, 1, 11, properties=b"\x03\x0b\xac\x02"),
            for_client(1, b"s", 0, 0, 1),
            for_client(3, b"s", 9, 1, 11),
            for_client(2, b"s", 44, 2, 7, 0),
            client(version, b"ended", 0),
            client(version, b"past", 10, int(NOW) - 1),
            client(version, b"later", 1000, int(NOW) + 500),
            subscription(b"s", b"a/#", 2, 4 | 8, 300),
            subscription(b"s", b"$share/g/a/+", 1),
            subscription(b"later", b"x", 0),
            chunk(77, b"of a later version"),
            retained(1),
            retained(3),
        ]
    )


@pytest.mark.parametrize("version", [5, 6])
def test_every_chunk_is_read(version: int) -> None:
    found = read_database(file(version), "db", NOW)
    assert [(each.topic, each.payload, each.qos) for each in found.retained] == [(b"a/b", b"one", 1)]
    assert (found.retained[0].properties, found.retained[0].expires_at) == (PROPERTIES[1:], NOW + 60)
    assert (found.ended, found.expired, found.missing) == (2, 1, 0)
    session, later = found.sessions
    assert (session.client_id, session.expiry, session.expires_at) == ("s", NEVER, 0.0)
    assert session.owner == ("ann" if version == 6 else None)
    assert [(each.packet_id, each.qos, each.stage) for each in session.in_flight] == [
        (5, 1, PUBLISHED),
        (6, 2, PUBLISHED),
        (7, 2, RELEASED),
    ]
    assert [(each.qos, each.packet_id, each.identifiers) for each in session.queued] == [(1, 0, (300,)), (0, 0, ())]
    assert list(session.held) == [44] and session.held[44].payload == b"two"
    first, shared = session.subscriptions
    assert (first.filter, first.qos, first.no_local, first.retain_as_published) == (b"a/#", 2, True, True)
    assert (first.identifier, shared.filter, shared.identifier) == (300, b"$share/g/a/+", 0)
    assert (later.client_id, later.expiry, later.expires_at) == ("later", 1000, NOW + 500)


def outcome(data: bytes) -> Persisted | str:
    """The sessions and messages, or the one line of the error."""
    try:
        return read_database(data, "mosquitto.db", NOW)
    except MigrationError as error:
        line = str(error)
        assert line.startswith("mosquitto.db: offset ") and "\n" not in line
        return line


def test_a_file_that_is_cut_off_anywhere_is_read_up_to_a_chunk_or_refused() -> None:
    whole = file()
    refused = [isinstance(outcome(whole[:size]), str) for size in range(len(whole))]
    assert refused.count(False) == 21  # the ends of its chunks


@given(st.data())
def test_a_damaged_file_gives_what_it_has_or_one_line_with_the_offset(data: st.DataObject) -> None:
    damaged = bytearray(file(data.draw(st.sampled_from([5, 6]))))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    outcome(bytes(damaged))


@given(st.binary(max_size=200))
def test_any_bytes_after_the_header_give_a_list_or_one_line(rest: bytes) -> None:
    outcome(header(6) + rest)


def test_the_offset_is_that_of_the_damaged_chunk() -> None:
    start = header(6) + message(1, b"a/b", b"one")
    for wrong in (
        message(2, b"a/#", b""),
        message(2, b"a", b"", properties=b"\x02\x01"),
        subscription(b"", b"a", 0),
        subscription(b"s", b"$share/g", 0),
        client(6, b"\xff", 1),
        client(6, b"s", 1, user=b"\xff"),
        retained(1)[:-1],
        chunk(4, b"short"),
    ):
        assert str(outcome(start + wrong)).startswith(f"mosquitto.db: offset {len(start)}: ")
    assert "format 4 is not supported" in str(outcome(header(4)))


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    database, out = tmp_path / "mosquitto.db", tmp_path / "out"
    database.write_bytes(file()[:-3])
    code, output, errors = run("migrate", "mosquitto", str(database), "--out", str(out))
    assert (code, output) == (2, b"")
    assert errors.startswith(f"error: {database}: offset ") and errors.count("\n") == 1
    assert not out.exists()
