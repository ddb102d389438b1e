"""Some worlds of ``tests.cluster.will_world``, and mistakes made on purpose that they find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster.will_world import run

import starlingmq
from starlingmq.cluster.foreign_wills import ForeignWills
from starlingmq.cluster.wills import DUE, ClusterWills, Entry

pytestmark = pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")


@pytest.mark.parametrize("seed", [0, 8, 22])
def test_each_will_once_and_none_of_who_is_back(seed: int) -> None:
    world = run(seed)
    assert world.published


def a_node_publishes_without_a_word() -> Any:
    return patch.object(ClusterWills, "_may_publish", lambda self, name, entry: not entry.published)


def a_will_at_a_node_that_is_away_is_not_cancelled() -> Any:
    return patch.object(ForeignWills, "cancelled", lambda self, client_id, node, now: True)


def a_restarted_node_does_not_read_what_etcd_has() -> Any:
    settled = ClusterWills._settled

    def deaf(self: ClusterWills, name: str, entry: Entry, identity: int) -> None:
        if not self._seen:
            settled(self, name, entry, identity)

    return patch.object(ClusterWills, "_settled", deaf)


def _without_facts(prefix: bytes) -> Any:
    fact = ClusterWills._fact

    def forgetful(self: ClusterWills, key: bytes, value: Any) -> None:
        if not key.startswith(prefix):
            fact(self, key, value)

    return patch.object(ClusterWills, "_fact", forgetful)


def what_is_due_is_not_remembered() -> Any:
    return _without_facts(DUE)


FOUND: dict[Callable[[], Any], int] = {
    a_node_publishes_without_a_word: 8,
    a_will_at_a_node_that_is_away_is_not_cancelled: 8,
    a_restarted_node_does_not_read_what_etcd_has: 20,
    what_is_due_is_not_remembered: 55,
}


@pytest.mark.parametrize("mistake", FOUND, ids=lambda mistake: mistake.__name__)
def test_each_mistake_is_found(mistake: Callable[[], Any]) -> None:
    """At the seed that found it, or, where the code has changed since, at another one."""
    for seed in (FOUND[mistake], *range(20)):
        with mistake():
            try:
                run(seed)
            except (AssertionError, LookupError, ValueError):
                return
    raise AssertionError("no seed finds it")
