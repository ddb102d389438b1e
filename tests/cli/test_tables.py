"""Tables of ``ctl``: one line for each entry at 100 columns, and plain text in a pipe."""

from __future__ import annotations

import os
import pty
import struct
import termios
from datetime import UTC, datetime, timedelta
from fcntl import ioctl
from typing import Any

import pytest
from rich.cells import cell_len

from starlingmq.admin.sessions import CLIENT_COLUMNS, SESSION_COLUMNS, ClientInfo, SessionInfo
from starlingmq.admin.table_columns import Column, columns_of
from starlingmq.cli.ctl_status import NODES
from starlingmq.cli.tables import aligned, cell, duration, fitting, table

CLIENTS = columns_of(CLIENT_COLUMNS, ClientInfo)
SESSIONS = columns_of(SESSION_COLUMNS, SessionInfo)
IDS = ["dev-00000000-1d4f-plant-north-line-3", "dev-00000000-1d4f-plant-north-line-4", "a"]


def entries() -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    return [
        {
            "client_id": client_id,
            "node": "n1",
            "username": "sensors-of-the-north-plant",
            "peer": "127.0.0.1:53412",
            "protocol": "MQTT 5.0",
            "connected_at": (now - timedelta(minutes=3, seconds=30)).isoformat(),
            "subscriptions": 1234567,
            "queued": 0,
            "inflight": 2,
            "unacknowledged_since": (now - timedelta(seconds=70)).isoformat(),
            "dropped": 0,
            "slow": False,
        }
        for client_id in IDS
    ]


class Terminal:
    """A file that is a terminal of so many columns, as ``sys.stdout``."""

    def __init__(self, columns: int) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.file = os.fdopen(slave, "w")

    def close(self) -> None:
        self.file.close()
        os.close(self._master)


def test_each_client_has_one_line_at_130_columns_with_its_whole_id(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(130)
    monkeypatch.setattr("sys.stdout", terminal.file)
    monkeypatch.setenv("COLUMNS", "130")
    lines = table(CLIENTS, entries(), wide=False).splitlines()
    monkeypatch.undo()
    terminal.close()
    assert len(lines) == 1 + len(IDS)
    assert [line.split()[0] for line in lines[1:]] == IDS
    assert all(cell_len(line) <= 130 for line in lines)
    assert (
        "1,234,567" in lines[1]
        and " 3m " in lines[1]
        and " 1m " in lines[1]
        and "sensors-…" in lines[1]
        and "…" in lines[1]
    )


def test_in_a_pipe_nothing_is_shortened_coloured_or_left_empty() -> None:
    text = table(CLIENTS, entries())
    assert text.isascii() and "\x1b" not in text
    heading, first, *_ = text.splitlines()
    assert heading.split("  ")[0] == "CLIENT"
    assert "sensors-of-the-north-plant" in first and " 1234567 " in first and first.endswith("-")


def test_columns_are_fewer_unless_all_are_asked_for() -> None:
    for columns in (CLIENTS, SESSIONS, NODES):
        few, all_ = (table(columns, [], wide).splitlines()[0] for wide in (False, True))
        assert len(all_) > len(few) and len(few) <= 90


def test_the_first_column_keeps_its_width_when_nothing_else_is_left_to_shorten() -> None:
    long = "x" * 60
    lines = aligned([Column("id"), Column("text"), Column("n", "number")], [[long, "y" * 50, "12345"]], 40)
    assert lines[1] == f"{long}  yyyyyyy…  12345"


def test_durations_are_in_the_largest_unit_that_fits() -> None:
    shown = [duration(seconds) for seconds in (-3.0, 0.4, 59.9, 60, 3599, 3600, 86_399, 86_400 * 12 + 5)]
    assert shown == ["0s", "0s", "59s", "1m", "59m", "1h", "23h", "12d"]


def test_text_of_clients_is_not_obeyed_by_a_terminal() -> None:
    assert cell("[red]\x1b[2Jodd") == r"[red]\x1b[2Jodd"


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (80, "user, from, subs, queued, in flight, oldest unacked, slow"),
        (100, "user, from, in flight, oldest unacked, slow"),
    ],
)
def test_with_long_client_ids_columns_are_left_out_and_named_rather_than_lines_broken(
    width: int, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "press-line-01/sensor-temperature-0001-building-north"
    given = [{**one, "client_id": f"{long}{number}"} for number, one in enumerate(entries())]
    given[1]["dropped"] = 7
    terminal = Terminal(width)
    monkeypatch.setattr("sys.stdout", terminal.file)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = table(CLIENTS, given, wide=False).splitlines()
    whole = table(CLIENTS, given, wide=True).splitlines()
    monkeypatch.undo()
    terminal.close()
    assert all(cell_len(line) <= width for line in lines) and [line.split()[0] for line in lines[1:]] == [
        f"{long}{number}" for number in range(3)
    ]
    assert "DROPPED" in lines[0] and " 7" in lines[2], "what differs stays"
    assert "USER" not in lines[0] and "USER" in whole[0] and "sensors-of-the-north-plant" in whole[1]
    assert capsys.readouterr().err == f"left out for lack of room: {missing}; --wide shows them\n"


def test_no_column_is_left_out_where_the_first_one_fills_the_line() -> None:
    columns, rows, left_out = fitting([Column("id"), Column("a"), Column("b")], [["x" * 90, "1", "2"]], 80)
    assert (len(columns), rows, left_out) == (3, [["x" * 90, "1", "2"]], [])


def test_columns_are_read_from_the_words_of_a_declaration() -> None:
    found = columns_of("client_id: client, node, connected_at: age/age, queued, dropped/bytes*", ClientInfo)
    assert dict(found) == {
        "client_id": Column("client"),
        "node": Column("node"),
        "connected_at": Column("age", "age"),
        "queued": Column("queued", "number"),
        "dropped": Column("dropped", "bytes", wide=True),
    }
