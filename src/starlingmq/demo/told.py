"""What the processes of the demo tell each other: the order that the fleet is given, and lines of JSON on stdout."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    """``urls`` of the nodes, ``pace`` in seconds between two readings of a device, ``alerts``: whether any will come,
    ``answers``: whether somebody gives them."""

    urls: list[str]
    devices: int
    pace: float
    alerts: bool
    answers: bool


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Counts since the beginning; ``delays``, ``absences`` and ``answers`` in milliseconds, since the tick before."""

    devices: int
    connected: int
    alerts: int
    counts: dict[str, int]
    missing: int  # acknowledged, and not arrived yet
    delays: list[int]
    absences: list[int]
    answers: list[int]
    alert: str = ""  # the last one since the tick before


class DemoOutcome(msgspec.Struct, frozen=True, tag="outcome"):
    """What became of all. ``lost`` and ``alerts_lost`` name readings as ``device/number``, the first ones."""

    counts: dict[str, int]
    lost: int
    lost_names: list[str]
    open: int
    alerts_due: int
    alerts_lost: int
    alerts_doubled: int
    alerts_early: int  # of readings that no acknowledgement came for
    unanswered: int
    states_online: int
    states_wrong: int
    settled_after: float


class WorkersTick(msgspec.Struct, frozen=True, tag="workers"):
    """Counts since the beginning; ``answered`` by worker."""

    answered: list[int]
    reconnected: int


Told = Tick | DemoOutcome | WorkersTick
