"""The messages between the processes of the demo: the fleet's order, and lines of JSON on stdout."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    """``urls`` of the nodes, ``pace`` in seconds between two readings of a device, ``alerts``: whether a pipeline
    creates them, ``answers``: whether NATS workers answer requests.
    """

    urls: list[str]
    devices: int
    pace: float
    alerts: bool
    answers: bool


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Counts since the start; ``delays``, ``absences`` and ``answers`` in milliseconds, since the previous tick."""

    devices: int
    connected: int
    alerts: int
    counts: dict[str, int]
    missing: int  # acknowledged but not received yet
    delays: list[int]
    absences: list[int]
    answers: list[int]
    alert: str = ""  # the last one since the previous tick


class DemoOutcome(msgspec.Struct, frozen=True, tag="outcome"):
    """The result. ``lost`` and ``alerts_lost`` name the first readings concerned, as ``device/number``."""

    counts: dict[str, int]
    lost: int
    lost_names: list[str]
    open: int
    alerts_due: int
    alerts_lost: int
    alerts_doubled: int
    alerts_early: int  # of readings without an acknowledgement
    unanswered: int
    states_online: int
    states_wrong: int
    settled_after: float


class WorkersTick(msgspec.Struct, frozen=True, tag="workers"):
    """Counts since the start; ``answered`` by worker."""

    answered: list[int]
    reconnected: int


Told = Tick | DemoOutcome | WorkersTick
