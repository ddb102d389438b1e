from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from starlingmq import Broker
from starlingmq.config.settings import load_config
from tests.spark.brokers import ThreadBroker

collect_ignore = (
    []
    if importlib.util.find_spec("pyspark")
    else ["test_nodes.py", "test_planning.py", "test_service.py", "test_sink_nodes.py"]
)  # make test installs it

NUMBER = count()
TOKEN = "a token that nobody guesses"


def settings(data: Path, name: str = "n1") -> list[str]:
    return [
        f"node.data_dir={data}",
        f"node.name={name}",
        "streams.define=[{name: all, topics: ['#']}]",
        "streams.listen=127.0.0.1:0",
        f"streams.token={TOKEN}",
    ]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(load_config(None, settings(tmp_path)), listeners=["mqtt://127.0.0.1:0"]) as running:
        yield running


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadBroker]:
    """For tests that leave it as it is."""
    node = ThreadBroker(tmp_path_factory.mktemp("shared") / "n1", "n1", "storage.segment_size=1KiB")
    yield node
    node.stop()


@pytest.fixture
def shared_broker(shared_node: ThreadBroker) -> Broker:
    return shared_node.broker


@pytest.fixture
def stream(shared_node: ThreadBroker) -> str:
    """A new one, of all topics, at the shared node."""
    shared_node.begin_stream(f"stream{next(NUMBER)}")
    return shared_node.stream
