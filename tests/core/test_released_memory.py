"""Objects that are no longer needed are freed at once, or in small steps."""

from __future__ import annotations

import gc

from tests.conformance.kit import subscribe
from tests.harness import World

from starlingmq.core.messages.message import Message
from starlingmq.core.session.session import Client, Session
from starlingmq.wire.mqtt import (
    Pingreq,
    Publish,
    encode,
)
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL


class Made:
    """The objects of a class that are created from now on. Objects from before, which other tests of this
    process have left, are kept, so that no new object gets the id of one of them."""

    def __init__(self, kind: type[object]) -> None:
        self._kind = kind
        self._before = self._all()

    def alive(self) -> int:
        before = {id(thing) for thing in self._before}
        return sum(id(thing) not in before for thing in self._all())

    def _all(self) -> list[object]:
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) is self._kind]


def forget(w: World) -> None:
    """Releases the harness's references to connections, as a network does."""
    w.clients.clear()
    w._by_client.clear()


def test_a_replaced_retained_message_is_freed_before_its_expiry() -> None:
    w = World()
    pub = w.connect("pub")
    messages = Made(Message)
    for number in range(100):
        pub.send(Publish(b"t", b"%d" % number, retain=True, expiry=1_000_000 + number))
    assert messages.alive() <= 1
    pub.send(Publish(b"t", b"", retain=True))
    assert messages.alive() == 0
    assert w.state.publishing.retained.wheel.wake_at() == 0.0


def test_a_discarded_session_is_freed_before_its_expiry() -> None:
    w = World()
    w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 1_000_000}).drop()
    forget(w)
    sessions = Made(Session)
    for number in range(50):
        w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 1_000_000 + number}).drop()
        forget(w)
    w.advance(60)
    assert sessions.alive() == 1, "only the last session remains"


def test_a_connection_is_in_the_timer_wheel_once_and_leaves_it_when_it_is_closed() -> None:
    clients = Made(Client)
    w = World()
    c = w.connect("c", keep_alive=20)
    for _ in range(20):
        c.send(Pingreq())
        w.advance(10)
    assert sum(map(len, w.state.ctx.client_wheel._slots.values())) == 1
    c.drop()
    w.open().drop()
    assert w.state.ctx.client_wheel.wake_at() == 0.0
    del c
    forget(w)
    assert clients.alive() == 0


def test_a_long_queue_is_freed_over_several_turns() -> None:
    w = World(max_mqueue_len=0, publisher_hold=0)
    sub = w.connect("sub", properties={SESSION_EXPIRY_INTERVAL: 10})
    subscribe(sub, "t", qos=1)
    sub.drop()
    pub = w.connect("pub", version=4)
    pub.send(encode(Publish(b"t", b"", qos=1, packet_id=1), 4) * 30_000)
    queue = w.state.ctx.sessions["sub"].queue
    assert queue is not None
    items = queue.items
    del queue
    w.now += 11
    w.state.turn(w.now)
    w.state.turn(w.now)
    assert 0 < len(items) < 30_000
    w.run()
    assert not items and w.dropped == {"session_ended": 30_000}
    assert not w.state.pending()
