"""Worlds of ``stale_world``, and planted mistakes, each of which its invariants find."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
from tests.nats.stale_world import run

from starlingmq.cluster.links import peer_link
from starlingmq.core.delivery.group_engine import GroupEngine
from starlingmq.core.messages.message import Message
from starlingmq.core.nats import nats_client

SEEDS_MAX = 40


@pytest.mark.parametrize("seed", range(8))
def test_no_nats_client_gets_what_is_too_old_and_an_mqtt_session_gets_everything(seed: int) -> None:
    run(seed, False)


def _always(message: Message, now: float, wait: float) -> bool:
    return True


def _never(message: Message, now: float, wait: float) -> bool:
    return False


MISTAKES: dict[str, AbstractContextManager[Any]] = {
    "links do not tell how long frames waited": patch.object(peer_link, "WAITED_SECONDS", 1e9),
    "subscribers are given whatever comes": patch.object(nats_client, "stale", _never),
    "subscribers are given nothing from other nodes": patch.object(nats_client, "stale", _always),
    "lines keep whatever is in them": patch.object(GroupEngine, "too_old", lambda self, group, message: False),
}


@pytest.mark.interpreted_only("compiled code is not patched")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(mistake: str) -> None:
    with MISTAKES[mistake]:
        for seed in range(SEEDS_MAX):
            try:
                run(seed, False)
            except AssertionError:
                return
    pytest.fail(f"not seen in {SEEDS_MAX} worlds")
