"""Totals over sessions do not depend on the pieces in which they are summed."""

from __future__ import annotations

from tests.cluster.test_takeover import subscribe
from tests.harness import World

from starlingmq.core.reports.session_totals import SLOW_MAX, SessionTotals
from starlingmq.core.session.session import MOVED_PREFIX, Session
from starlingmq.wire.mqtt import PUBACK, Ack, Disconnect, Publish


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


def test_a_client_that_acknowledges_nothing_is_late_since_the_first_sending() -> None:
    world = World()
    reader, busy, author = world.connect("reader", version=4), world.connect("busy"), world.connect("author")
    for each in (reader, busy):
        subscribe(each, b"a", 1)
    author.send(Publish(b"a", b"1", 1, packet_id=1))
    sent_at = world.now
    sessions = list(world.state.ctx.sessions.values())
    first = SessionTotals(world.now + 1.0)
    first.count(sessions)
    assert first.late == {}
    busy.send(Ack(PUBACK, 1))
    before = first
    for seconds in (10.0, 35.0, 70.0):  # mqtt.retry_interval sends it again meanwhile, with a new time
        world.advance(sent_at + seconds - world.now)
        found = SessionTotals(world.now, before)
        found.count(sessions)
        assert [(name, since) for name, (_, _, since) in found.late.items()] == [("reader", sent_at)]
        before = found
    assert world.state.ctx.sessions["reader"].window.oldest() > sent_at  # type: ignore[union-attr]
    reader.send(Ack(PUBACK, 1))
    author.send(Publish(b"a", b"2", 1, packet_id=2))
    found = SessionTotals(world.now + 1.0, before)
    found.count(sessions)
    assert found.late == {}
