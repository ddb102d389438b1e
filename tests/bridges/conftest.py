from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.bridges.real import Serve, serving
from tests.client.brokers import Broker, mosquitto


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with serving() as begin:
        yield begin


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A mosquitto with each kind of listener, which outlives the tests of a module."""
    with mosquitto(tmp_path_factory.mktemp("mosquitto")) as running:
        yield running
