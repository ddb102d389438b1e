"""One Spark session for all tests of a run, and brokers that it reads from."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import StreamBroker, ThreadBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]  # make test installs it


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tests.spark.session import begin

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = begin("local[2]", tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ThreadBroker]:
    running = ThreadBroker(tmp_path / "n1", "n1")
    yield running
    running.stop()


@pytest.fixture
def mortal_broker(tmp_path: Path) -> Iterator[StreamBroker]:
    """In a process of its own: for tests that kill it."""
    running = StreamBroker(tmp_path / "n1", "n1")
    yield running
    running.stop()
