"""The fate of a will in every combination of its delay, the session's expiry, the end of the connection and the
way back, on one broker and in a cluster. The right values come from MQTT 5 alone (``is_published``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import Mistake, each_mistake
from tests.cluster.test_wills import kill
from tests.few import few
from tests.harness import FakeClient, World

from starlingmq.cluster.wills import cluster_wills
from starlingmq.cluster.wills.will_records import RegisteredWill, registered
from starlingmq.cluster.wills.will_settlement import Settlement
from starlingmq.core.connect import ending
from starlingmq.core.session.session import Will as CoreWill
from starlingmq.wire.mqtt import Connack, Connect, Publish, Subscribe, SubscribeRequest, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties
from starlingmq.wire.reasons import Reason

LONG = 1000
LEAVES, LEAVES_WITH_WILL, ENDS_WITH_WILL, CUT, TAKEN_OVER = "leaves", "leaves, 0x04", "ends, 0x04", "cut", "taken over"
ENDS = (LEAVES, LEAVES_WITH_WILL, ENDS_WITH_WILL, CUT, TAKEN_OVER)
SOON, LATE = 0.5, 5.0  # seconds until a client is back


class Cell(NamedTuple):
    version: int
    delay: int
    expiry: int  # of the session
    clean: bool  # the second CONNECT has a clean start
    end: str  # of the first connection
    back: float  # seconds from the end of the first connection to the second CONNECT; 0.0: it is taken over


def cells() -> list[Cell]:
    found: list[Cell] = []
    for delay, expiry, clean, end in product((0, 1, LONG), (0, 2, LONG), (False, True), ENDS):
        if end == ENDS_WITH_WILL and expiry == 0:
            continue  # the same as LEAVES_WITH_WILL
        for back in (0.0,) if end == TAKEN_OVER else (SOON, LATE):
            found.append(Cell(5, delay, expiry, clean, end, back))
    for expiry, clean, end in product((0, LONG), (False, True), (LEAVES, CUT, TAKEN_OVER)):
        for back in (0.0,) if end == TAKEN_OVER else (SOON, LATE):
            found.append(Cell(4, 0, expiry, clean, end, back))
    return found


def is_published(cell: Cell) -> bool:
    """Whether the will is published, by the specification; if so, before the second CONNACK."""
    if cell.end == LEAVES:
        return False  # [MQTT-3.14.4-3], 3.1.1: [MQTT-3.14.4-3]
    # 3.1.2.11.2: with an expiry of 0 the session ends when the connection is closed; 3.14.2.2.2: DISCONNECT changes it
    session_end = 0.0 if cell.end == ENDS_WITH_WILL else float(cell.expiry)
    if session_end > cell.back and cell.clean:
        session_end = cell.back  # [MQTT-3.1.2-4]: the session is discarded
    due = min(cell.delay, session_end)  # [MQTT-3.1.2-8], 3.1.3.2.2: the delay has elapsed, or the session ends
    return due <= cell.back  # [MQTT-3.1.3-9]: not if the client is back on this session before


class Place:
    """Where the first and the second connections are, and what happens between them."""

    def __init__(self, first: World, second: World, watcher: World, advance: Callable[[float], None]) -> None:
        self.first = first
        self.second = second
        self.advance = advance
        self.after_ends: Callable[[], object] = lambda: None
        self.watcher = watcher.connect("watcher", properties={SESSION_EXPIRY_INTERVAL: 3600})
        self.watcher.send(Subscribe(1, [SubscribeRequest(b"will/#", 0)]))
        advance(0.2)
        self.watcher.receive()
        self._count: Counter[int] = Counter()

    def published(self) -> Counter[int]:
        """How often the will of each cell was published until now."""
        for packet in self.watcher.receive():
            assert isinstance(packet, Publish)
            self._count[int(packet.topic.removeprefix(b"will/"))] += 1
        return self._count


def one_broker() -> Place:
    world = World()
    return Place(world, world, world, world.advance)


def cluster(fleet: Fleet, other: int, killed: bool) -> Place:
    place = Place(fleet[0], fleet[other], fleet[2], fleet.advance)
    if killed:
        place.after_ends = partial(kill, fleet, 0)
    return place


PLACES: dict[str, Callable[[], Place]] = {
    "one broker": one_broker,
    "same node": lambda: cluster(Fleet(3), 0, False),
    "other node": lambda: cluster(Fleet(3), 1, False),
    "other node, the first is killed": lambda: cluster(Fleet(3), 1, True),
}


def first_connect(place: Place, number: int, cell: Cell) -> FakeClient:
    will = Will(b"will/%d" % number, b"gone", 1, False, {WILL_DELAY_INTERVAL: cell.delay} if cell.delay else {})
    clean = cell.version == 4 and cell.expiry == 0  # 3.1.1: Clean Session says both
    client = place.first.open(cell.version, f"c{number}")
    client.send(connect(client, cell, clean, will))
    return client


def connect(client: FakeClient, cell: Cell, clean: bool, will: Will | None = None) -> Connect:
    properties: Properties = {SESSION_EXPIRY_INTERVAL: cell.expiry} if cell.version == 5 and cell.expiry else {}
    return Connect(cell.version, client.client_id, clean, will=will, properties=properties)


def end(client: FakeClient, how: str) -> None:
    if how == LEAVES:
        client.disconnect()
    elif how == LEAVES_WITH_WILL:
        client.disconnect(Reason.DISCONNECT_WITH_WILL)
    elif how == ENDS_WITH_WILL:
        client.disconnect(Reason.DISCONNECT_WITH_WILL, {SESSION_EXPIRY_INTERVAL: 0})
    elif how == CUT:
        client.drop()


def come_back(place: Place, back: dict[int, Cell]) -> dict[int, FakeClient]:
    clients: dict[int, FakeClient] = {}
    for number, cell in back.items():
        client = clients[number] = place.second.open(cell.version, f"c{number}")
        client.send(connect(client, cell, cell.clean))
    return clients


def check(name: str) -> None:
    """All cells at one place. Those whose connections are taken over end with the node, if it is killed."""
    place, all_cells = PLACES[name](), dict(enumerate(cells()))
    clients = {number: first_connect(place, number, cell) for number, cell in all_cells.items()}
    place.advance(0.5)
    assert not place.published()
    for number, client in clients.items():
        client.expect(Connack)
        end(client, all_cells[number].end)
    place.advance(0.3)
    place.after_ends()
    place.advance(SOON - 0.3)
    late = {number: cell for number, cell in all_cells.items() if cell.back == LATE}
    again = come_back(place, {number: cell for number, cell in all_cells.items() if number not in late})
    place.advance(LATE - SOON)
    again |= come_back(place, late)
    place.advance(60.0)
    assert [all_cells[number] for number, client in again.items() if not client.output] == []
    expected = {number: int(is_published(cell)) for number, cell in all_cells.items()}
    found = place.published()
    wrong = {cell: found[number] for number, cell in all_cells.items() if found[number] != expected[number]}
    assert not wrong


@pytest.mark.parametrize("name", few(PLACES, "one broker", "other node, the first is killed"))
def test_a_will_is_published_as_the_specification_says(name: str) -> None:
    check(name)


def by_the_delay_as_sent(settlement: Settlement, value: RegisteredWill) -> bool:
    return value.delay != 0 and not settlement.clean and not 0.0 < value.due_at <= settlement.since


def record_with_the_delay_as_sent(will: CoreWill, expiry: int, due_at: float) -> RegisteredWill:
    value = registered(will, expiry, due_at)
    value.seconds = will.delay
    return value


def due_after_the_delay_unless_the_session_ends_at_once(delay: int, session_expiry: int) -> int:
    return 0 if session_expiry == 0 else delay


KILLED = partial(check, "other node, the first is killed")
MISTAKES = {
    "a node where the client is back knows the delay only": Mistake(
        Settlement, "cancels", by_the_delay_as_sent, KILLED
    ),
    "the record of a will has the delay only": Mistake(
        cluster_wills, "registered", record_with_the_delay_as_sent, KILLED
    ),
    "the record of a will is due after the end of the session": Mistake(
        ending, "due_after", due_after_the_delay_unless_the_session_ends_at_once, KILLED
    ),
}


@each_mistake(MISTAKES, "a node where the client is back knows the delay only")
def test_the_combinations_find(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.must_show(monkeypatch)
