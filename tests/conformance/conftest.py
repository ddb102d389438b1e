"""Marks and fixtures of the conformance tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance.audit import complaints
from tests.harness import World

MakeWorld = Callable[..., World]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clause(ids): the normative statements of MQTT this test holds")


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Brokers with settings; whatever they wrote in the test is audited when it is over."""
    worlds: list[World] = []

    def make(**settings: Any) -> World:
        worlds.append(World(**settings))
        return worlds[-1]

    yield make
    found = [f"{c.client_id}: {line}" for w in worlds for c in w.clients for line in complaints(c)]
    assert found == []


@pytest.fixture
def w(make_world: MakeWorld) -> World:
    """A broker with default settings."""
    return make_world()
