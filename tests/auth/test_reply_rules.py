"""``allow: reply`` in a file of rules, with the client library of NATS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats.errors
import pytest
from nats.aio.msg import Msg

import nats
from tests.auth.conftest import Passwd, Serve
from tests.auth.test_rights import rules
from tests.patience import slowness, within

RULES = """
rules:
  - {allow: [subscribe, group], users: [svc], topics: ["sum/#"]}
  - {allow: reply, users: [svc], topics: ["_INBOX/#"]}
  - {allow: all, users: [ann]}
"""


async def test_a_service_may_reply_until_a_reload_takes_that_away(serve: Serve, passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "acl"
    broker = await serve(
        listeners=["nats://127.0.0.1:0"],
        auth={**rules(path, RULES), "password": {"file": passwd(svc="s", ann="a")}},
    )
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def note(error: Exception) -> None:
        refused.put_nowait(str(error))

    async def answer(message: Msg) -> None:
        await message.respond(str(sum(map(int, message.data.split()))).encode())

    service = await nats.connect(broker.address("nats"), user="svc", password="s", error_cb=note)
    await service.subscribe("sum.>", "crew", answer)
    await service.flush()
    ann = await nats.connect(broker.address("nats"), user="ann", password="a")
    for number in range(20):
        assert (await ann.request("sum.of", b"%d 1" % number, timeout=10 * slowness())).data == b"%d" % (number + 1)
    assert refused.empty()
    await service.publish("_INBOX.anything", b"")
    async with within(10):
        assert "_inbox.anything" in await refused.get()
    path.write_text(RULES.replace("- {allow: reply,", "- {deny: reply,"))
    broker.reload(broker.config)
    with pytest.raises(nats.errors.TimeoutError):
        await ann.request("sum.of", b"1 1", timeout=0.5)
    async with within(10):
        assert "_inbox." in await refused.get()
    path.write_text(RULES)
    broker.reload(broker.config)
    assert (await ann.request("sum.of", b"1 1", timeout=10 * slowness())).data == b"2"
    await service.close()
    await ann.close()
