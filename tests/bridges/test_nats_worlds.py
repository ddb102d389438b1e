"""Worlds of NATS bridges by seed, and mistakes that they find."""

from __future__ import annotations

from unittest.mock import ANY, patch

import pytest
from tests.bridges.nats_world import BridgedWorld
from tests.few import drawn
from tests.planting import FAILURES, Plant, around

from starlingmq.bridges import nats_relay, passed_requests, subject_maps
from starlingmq.bridges.nats_relay import NatsRelay
from starlingmq.bridges.passed_requests import PassedRequests
from starlingmq.bridges.subject_maps import SubjectMap
from starlingmq.wire.nats_subjects import subject_of
from starlingmq.wire.partial_frame import PartialFrame

SEEDS_MAX = 200

PLANTED: dict[str, Plant] = {
    "a message comes once for each entry": patch.object(SubjectMap, "entry_of", lambda self, sid: ANY),
    "the sites of a message are not looked at": patch.object(nats_relay, "sites_in", lambda headers: []),
    "no responders passes beside a service": around(
        PassedRequests, "ask", lambda sound, self, subject, alone, now: sound(self, subject, True, now)
    ),
    "requests are never forgotten": patch.object(PassedRequests, "tick", lambda self, now: None),
    "subscriptions of requests do not end": patch.object(NatsRelay, "_forget", lambda self: None),
    "a second reply is too late": patch.object(passed_requests, "ANSWERED_MAX", 0),
    "a filter leaves its parent out": patch.object(subject_maps, "subjects_of", lambda filter: [subject_of(filter)]),
    "a byte is lost between two reads": around(
        PartialFrame, "keep", lambda sound, self, data, pos, missing: sound(self, data, pos, missing + 1)
    ),
}


@drawn(30, 1000)
def test_messages_come_once_and_replies_come_back(examples: int) -> None:
    for seed in range(examples):
        world = BridgedWorld(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {world.layout}: {error}") from error


@pytest.mark.interpreted_only("patches the relay")
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_is_found(mistake: str) -> None:
    with PLANTED[mistake]:
        for seed in range(SEEDS_MAX):
            try:
                BridgedWorld(seed).run()
            except FAILURES:
                return
    raise AssertionError(f"{SEEDS_MAX} worlds do not find it: {mistake}")
