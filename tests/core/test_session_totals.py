"""Totals over sessions do not depend on the pieces in which they are summed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.test_takeover import subscribe
from tests.harness import World

from starlingmq.core.reports.session_totals import SILENT_MESSAGES, SLOW_MAX, SessionTotals
from starlingmq.core.session.session import MOVED_PREFIX, Session
from starlingmq.wire.mqtt import PUBACK, PUBREC, PUBREL, Ack, Disconnect, Publish


def surveyed(sessions: list[Session], piece: int) -> SessionTotals:
    survey = SessionTotals()
    for start in range(0, len(sessions), piece):
        survey.count(sessions[start : start + piece])
    return survey


def test_all_sessions_of_clients_are_summed_up() -> None:
    world = World()
    readers = [world.connect(f"reader-{number}") for number in range(SLOW_MAX + 5)]
    for reader in readers:
        subscribe(reader, b"a", 1)
    away = world.connect("away", clean_start=False, properties={0x11: 100})
    subscribe(away, b"a", 1)
    away.send(Disconnect(0))
    author = world.connect("author")
    for reader in readers:  # each has one more in its queue than the next
        reader.client.blocked = True
        author.send(Publish(b"a", b"12345", 1, packet_id=1))
    sessions = list(world.state.ctx.sessions.values())
    sessions.append(Session(MOVED_PREFIX + "x"))
    node, line = Session("$node/2"), Session("$group/g/a")
    node.node, line.is_group_queue = 2, True
    sessions += [node, line]
    for piece in (1, 4, 1000):
        found = surveyed(sessions, piece)
        clients = [one for one in sessions[:-3] if one.client is not None]
        assert (found.connected, found.away) == (len(clients), 1)
        assert found.queued == sum(len(one.queue) for one in sessions if one.queue is not None)
        assert found.queued_bytes == sum(one.queue.bytes for one in sessions if one.queue is not None)
        assert found.inflight == sum(len(one.window.entries) for one in sessions if one.window is not None)
        waiting = [(len(one.queue), one.client_id) for one in clients if one.queue is not None and len(one.queue)]
        assert len(waiting) > SLOW_MAX and found.slow == sorted(waiting, reverse=True)[:SLOW_MAX]
        (listener,) = found.by_listener.values()
        assert listener.published == sum(one.client.published for one in clients if one.client is not None)
        assert listener.bytes_in == sum(one.client.bytes_in for one in clients if one.client is not None)


class Silent:
    """A reader with twelve messages in flight, and what each survey finds about it: since when it is silent."""

    def __init__(self, version: int = 5, qos: int = 1) -> None:
        self.world = World()
        self.qos = qos
        self.options: dict[str, Any] = {"version": version, "clean_start": False}
        if version == 5:
            self.options["properties"] = {0x11: 100}
        self.reader = self.world.connect("reader", **self.options)
        self.author = self.world.connect("author")
        subscribe(self.reader, b"a", qos)
        self.publish(12)
        self.last: SessionTotals | None = None

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.author.send(Publish(b"a", b"1", self.qos, packet_id=1))
            if self.qos == 2:
                self.author.send(Ack(PUBREL, 1))

    def since(self, seconds: float) -> float | None:
        """After so many seconds; None: it has acknowledged something, or little is in flight."""
        self.world.advance(seconds)
        self.last = SessionTotals(self.world.now, self.last)
        self.last.count(list(self.world.state.ctx.sessions.values()))
        self.last.finished()
        found = self.last.silent.get("reader")
        return None if found is None else found.since


def test_a_client_is_silent_since_the_first_survey_that_found_it_so() -> None:
    """Also while ``mqtt.retry_interval`` sends the messages again, and more come."""
    silent = Silent(version=4)
    start = silent.since(1.0)
    assert start == silent.world.now
    for seconds in (10.0, 35.0, 70.0):
        silent.publish(3)
        assert silent.since(seconds) == start


@pytest.mark.parametrize("packet_id", [1, 5])
def test_a_client_that_acknowledges_any_of_its_messages_is_not_silent(packet_id: int) -> None:
    silent = Silent()
    start = silent.since(1.0)
    silent.publish(1)
    silent.reader.send(Ack(PUBACK, packet_id))
    assert silent.since(10.0) == silent.world.now != start


def test_pubrec_is_an_acknowledgement_too() -> None:
    silent = Silent(qos=2)
    start = silent.since(1.0)
    assert start is not None and silent.since(1.0) == start
    silent.reader.send(Ack(PUBREC, 1))
    assert silent.since(1.0) == silent.world.now


def test_a_client_that_has_left_or_come_back_or_has_little_in_flight_is_not_silent() -> None:
    silent = Silent()
    start = silent.since(1.0)
    known = silent.last
    assert known is not None
    silent.reader.send(Disconnect(0))
    assert not known.silent["reader"].holds(silent.world.state.ctx.sessions["reader"])
    assert silent.since(1.0) is None
    silent.last = known
    back = silent.world.connect("reader", **silent.options)
    assert silent.since(1.0) == silent.world.now != start
    for packet_id in range(1, 4):
        back.send(Ack(PUBACK, packet_id))
    assert silent.since(1.0) is None, f"{SILENT_MESSAGES - 1} are in flight"
