"""The list of all counted cells. Only the last ones have sockets; there is a CONNECT in place of a message in some.

Cells of clusters are imported when they are made: under callgrind, importing a cluster takes longer than counting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.instructions.cell import Cell, OverSockets, Paced, WastefulClock
from tests.instructions.peers import NatsPublisher, NatsSubscriber, Peer, Publisher, Subscriber
from tests.instructions.stored import Audited, AuditedPaced, Stored, StoredPaced


def pairs(count: int, qos: int, burst: int) -> list[Peer]:
    return [peer for n in range(count) for peer in (Publisher(n, qos, burst), Subscriber(n, qos, n))]


def lasting_pairs(count: int, qos: int, burst: int) -> list[Peer]:
    """The sessions of the subscribers outlive their connections."""
    return [peer for n in range(count) for peer in (Publisher(n, qos, burst), Subscriber(n, qos, n, lasting=True))]


def fan_out(count: int, qos: int, burst: int) -> list[Peer]:
    return [Publisher(0, qos, burst), *(Subscriber(n, qos, 0) for n in range(count))]


def nats_pairs(count: int, burst: int) -> list[Peer]:
    return [peer for n in range(count) for peer in (NatsPublisher(n, burst), NatsSubscriber(n))]


def nats_group(publishers: int, members: int, burst: int) -> list[Peer]:
    receivers = [NatsSubscriber(n, 0, b"members") for n in range(members)]
    return [*(NatsPublisher(n, burst, 0) for n in range(publishers)), *receivers]


def connecting(step: int) -> Cell:
    from tests.instructions.connecting import Connecting

    return Connecting(30, 3, step)


def bridged(version: str) -> Cell:
    from tests.instructions.bridging import Bridged

    return Bridged(version, 100, 20)


def crossing(qos: int) -> Cell:
    from tests.instructions.crossing import Crossing

    return Crossing(pairs(20, qos, 1), 10, 20)


CELLS: Final[dict[str, Callable[[], Cell]]] = {
    "QoS 0, 1:1": lambda: Cell(pairs(1, 0, 100), 20, 100),
    "QoS 0, 50:50": lambda: Cell(pairs(50, 0, 20), 2, 1000),
    "QoS 0, 1:50": lambda: Cell(fan_out(50, 0, 20), 2, 1000),
    "QoS 1, 1:1": lambda: Cell(pairs(1, 1, 100), 20, 100),
    "QoS 1, 50:50": lambda: Cell(pairs(50, 1, 20), 2, 1000),
    "QoS 1, 1:50": lambda: Cell(fan_out(50, 1, 20), 2, 1000),
    "QoS 2, 1:1": lambda: Cell(pairs(1, 2, 100), 20, 100),
    "QoS 2, 50:50": lambda: Cell(pairs(50, 2, 20), 2, 1000),
    "QoS 2, 1:50": lambda: Cell(fan_out(50, 2, 20), 2, 1000),
    "NATS, 1:1": lambda: Cell(nats_pairs(1, 100), 20, 100),
    "NATS, 10:10": lambda: Cell(nats_pairs(10, 100), 2, 1000),
    "NATS, queue group 10:10": lambda: Cell(nats_group(10, 10, 100), 2, 1000),
    "QoS 1, 1:1, stored": lambda: Stored(lasting_pairs(1, 1, 100), 20, 100),
    "QoS 1, one message a turn, stored": lambda: StoredPaced(lasting_pairs(20, 1, 1), 10, 20),
    "QoS 0, 1:1, events kept": lambda: Audited(pairs(1, 0, 100), 20, 100),
    "QoS 0, one message a turn, events kept": lambda: AuditedPaced(pairs(20, 0, 1), 10, 20),
    "QoS 0, one message a turn": lambda: Paced(pairs(20, 0, 1), 10, 20),
    "QoS 1, one message a turn": lambda: Paced(pairs(20, 1, 1), 10, 20),
    "QoS 0, one message a turn, over sockets": lambda: OverSockets(pairs(20, 0, 1), 10, 20),
    "QoS 1, one message a turn, over sockets": lambda: OverSockets(pairs(20, 1, 1), 10, 20),
    "QoS 1, bridged to MQTT 3.1.1": lambda: bridged("3.1.1"),
    "QoS 1, bridged to MQTT 5.0": lambda: bridged("5.0"),
    "CONNECT in a cluster, back": lambda: connecting(0),
    "CONNECT in a cluster, moved": lambda: connecting(1),
}

WITHOUT_BOUNDS: Final[dict[str, Callable[[], Cell]]] = {
    "QoS 0, one message a turn, to another worker": lambda: crossing(0),
    "QoS 1, one message a turn, to another worker": lambda: crossing(1),
}
"""Only for ``--profile``."""

PLANTED: Final = "QoS 0, one message a turn"
"""The cell of which there is one with a flaw, so that the test is seen to fail."""


class Wasteful(Paced):
    """The planted flaw."""

    def _make_clock(self) -> Callable[[], float]:
        return WastefulClock()


def planted() -> Cell:
    return Wasteful(pairs(20, 0, 1), 10, 20)
