"""``make test-lake`` gives these tests a Spark with packages; without it they are not collected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import StreamBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.lake.services import Kafka, ObjectStore, Postgresql

collect_ignore_glob = [] if "STARLINGMQ_LAKE" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from starlingmq.pipeline.config import PipelineConfig, SinkConfig, SourceConfig
    from starlingmq.pipeline.run import begin_session
    from tests.lake.session import settings

    directory = tmp_path_factory.mktemp("spark")
    source = SourceConfig(servers=("127.0.0.1:1",), stream="all")
    sink = SinkConfig(format="delta", path="none")
    config = PipelineConfig(name="lake", source=source, sink=sink, checkpoint="none", spark=settings(directory))
    session = begin_session(config, "")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    from tests.lake.services import Kafka
    from tests.lake.session import LAKE

    running = Kafka(tmp_path_factory.mktemp("services") / "kafka", LAKE)
    yield running
    running.kill()


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgresql]:
    from tests.lake.services import Postgresql

    running = Postgresql(tmp_path_factory.mktemp("services") / "postgresql")
    yield running
    running.kill()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    from tests.lake.services import ObjectStore
    from tests.lake.session import LAKE

    running = ObjectStore(tmp_path_factory.mktemp("services") / "store", LAKE)
    yield running
    running.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StreamBroker]:
    running = StreamBroker(tmp_path / "n1", "n1")
    yield running
    running.stop()
