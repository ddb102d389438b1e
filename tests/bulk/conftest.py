from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from starlingmq import Broker
from starlingmq.config.settings import load_config

collect_ignore = (
    []
    if importlib.util.find_spec("pyspark")
    else ["test_nodes.py", "test_planning.py", "test_service.py", "test_sink_nodes.py"]
)  # make test installs it

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
