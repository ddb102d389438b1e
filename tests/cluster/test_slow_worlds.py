"""Slowness costs time and nothing else: worlds of slow nodes, and the mistakes made on purpose that they show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster.slow_world import RaceWorld, SlowWorld, run
from tests.few import few
from tests.planting import first_to_find

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.core.connect.connecting import Connecting
from starlingmq.wire.reasons import Reason

look_at, overtaken = TakeoverTarget.look_at, Connecting.overtaken
PATIENCE = 0.5  # seconds


def gives_up_a_slow_owner(self: TakeoverTarget, inbound: InboundSession, now: float) -> None:
    vars(self)["reconsider"] = lambda _: None  # nor waits for it again
    since = vars(self).setdefault("since", {}).setdefault(inbound, now)
    if now >= since + PATIENCE:
        for node in list(inbound.sources):
            self.late(inbound, node)
    look_at(self, inbound, now)


def says_too_early_that_all_is_there(self: OutboundSession, inbound_sessions: Any) -> list[int]:
    nodes = [node for node in self.marks() if node not in self._passed]
    self._passed.update(dict.fromkeys(nodes))
    return nodes


def waiting_clients_are_refused(self: Connecting, client_id: str, epoch: int) -> None:
    self.not_claimed(client_id, Reason.SERVER_BUSY, "", "")


MISTAKES: dict[str, tuple[Any, str, Callable[..., object], type[SlowWorld]]] = {
    "a slow owner is given up": (TakeoverTarget, "look_at", gives_up_a_slow_owner, SlowWorld),
    "what is held is forgotten by the next owner": (
        OutboundSession,
        "newly_passed",
        says_too_early_that_all_is_there,
        SlowWorld,
    ),
    "a CONNECT gives way that came later": (Connecting, "overtaken", waiting_clients_are_refused, RaceWorld),
}


@pytest.mark.parametrize("seed", few(range(13), 2, 3))
def test_slowness_costs_time_and_nothing_else(seed: int) -> None:
    assert run(seed).schedule.now > 0


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize("name", few(MISTAKES, "a slow owner is given up"))
def test_mistakes_show(name: str) -> None:
    kind, method, wrong, world = MISTAKES[name]
    assert first_to_find(range(20), lambda: patch.object(kind, method, wrong), lambda seed: world(seed).live()) >= 0, (
        "no seed below 20 finds it"
    )
