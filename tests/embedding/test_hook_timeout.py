"""A hook that never answers does not keep a connection for ever."""

from __future__ import annotations

import asyncio

import pytest

import starlingmq
from starlingmq.client import Client, ConnectRefused
from starlingmq.config.settings import from_tree
from starlingmq.wire.reasons import Reason


async def test_a_hook_timeout_refuses() -> None:
    async def never(_request: starlingmq.AuthRequest) -> bool:
        await asyncio.get_running_loop().create_future()
        return True

    config = from_tree({"listeners": ["mqtt://127.0.0.1:0"], "limits": {"hook_timeout": "50ms"}})
    async with starlingmq.Broker(config, authenticate=never) as broker:
        with pytest.raises(ConnectRefused) as refused:
            async with Client(broker.address()):
                pass
    assert refused.value.reason == Reason.SERVER_BUSY
