from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..client.brokers import BROKERS, Broker
from .commands import leaving_none_behind


@pytest.fixture(autouse=True)
def no_command_is_left_behind() -> Iterator[None]:
    with leaving_none_behind():
        yield


@pytest.fixture(scope="module", params=["starlingmq", pytest.param("mosquitto", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Every test runs against StarlingMQ and, as a cross-check by make test-all, against mosquitto."""
    with BROKERS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running
