"""Contracts: a message that breaks one is refused or becomes a dead letter, by MQTT, NATS and HTTP, and is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

import nats
from starlingmq import Broker
from starlingmq.admin.messages import publish
from starlingmq.admin.operator_problem import AdminError
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from starlingmq.core.messages.message import Message
from starlingmq.wire.packets import Ack, Publish
from starlingmq.wire.properties import REASON_STRING
from tests.embedding.conftest import Join, Serve, join, serve
from tests.patience import within

__all__ = ["join", "serve"]

SECONDS: Final = 10.0
READINGS: Final[dict[str, Any]] = {"name": "readings", "topics": ["plant/+/temp"], "schema": "id string, v double"}
GOOD: Final = b'{"id": "a", "v": 1, "more": []}'
BAD: Final = b'{"id": "a", "v": "x"}'
WHY: Final = "contract readings: Expected `float | null`, got `str` - at `$.v`"


def dropped(broker: Broker) -> int:
    return broker.state.ctx.counters.dropped.get("contract", 0)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_message_that_breaks_it_is_refused_at_each_qos(serve: Serve, join: Join, version: int) -> None:
    broker = await serve(contracts=[READINGS])
    reader, writer = await join(broker, "reader"), await join(broker, "writer", version)
    await reader.subscribe("#", qos=2)
    reasons = [await writer.publish("plant/4/temp", payload, qos) for qos in (0, 1, 2) for payload in (BAD, GOOD)]
    writer.send(Publish(b"plant/4/temp", BAD, 1, packet_id=7))
    told = (await writer.expect(Ack)).properties.get(REASON_STRING)
    assert await writer.publish("plant/4/other", BAD) == 0
    async with within(SECONDS):
        found = [await reader.message() for _ in range(4)]
    assert [(each.topic, each.payload) for each in found] == [(b"plant/4/temp", GOOD)] * 3 + [(b"plant/4/other", BAD)]
    assert reasons[2:] == ([0x99, 0, 0x99, 0] if version == 5 else [0] * 4)
    assert told == (WHY if version == 5 else None)
    assert dropped(broker) == 4
    assert [await writer.publish("plant/4/temp", payload, retain=True) for payload in (GOOD, BAD, b"")][::2] == [0, 0]
    late = await join(broker, "late")
    await late.subscribe("#")
    await writer.publish("end", b"")
    assert (await late.message()).topic == b"end", "nothing is retained"


async def test_nats_and_http_are_refused_too(serve: Serve, join: Join) -> None:
    broker = await serve(contracts=[READINGS], listeners=["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"])
    reader = await join(broker, "reader")
    await reader.subscribe("#")
    errors: list[Exception] = []

    async def heard(error: Exception) -> None:
        errors.append(error)

    client = await nats.connect(broker.addresses[1], error_cb=heard)
    for payload in (BAD, GOOD):
        await client.publish("plant.4.temp", payload)
        await client.flush()
    await client.close()
    assert [str(each) for each in errors] == [
        'nats: permissions violation for publish to "plant.4.temp": payload breaks a contract'
    ]
    assert broker._driver is not None
    with pytest.raises(AdminError, match="contract readings"):
        await publish(broker._driver, Message(b"plant/4/temp", BAD, 1, False, b"", 0.0, "", 0.0))
    await publish(broker._driver, Message(b"plant/4/temp", GOOD, 1, False, b"", 0.0, "", 0.0))
    async with within(SECONDS):
        assert [(await reader.message()).payload for _ in range(2)] == [GOOD, GOOD]


async def test_a_dead_letter_has_the_payload_and_the_reason(serve: Serve, join: Join) -> None:
    broker = await serve(contracts=[{**READINGS, "topics": ["#"], "dead_letter": {"topic": "dead"}}])
    reader, writer = await join(broker, "reader"), await join(broker, "writer")
    await reader.subscribe("#", qos=1)
    assert await writer.publish("plant/4/temp", BAD) == 0
    async with within(SECONDS):
        letter = await reader.message()
    assert (letter.topic, letter.payload) == (b"dead", BAD)
    assert WHY.encode() in letter.properties and b"plant/4/temp" in letter.properties
    assert dropped(broker) == 1


async def test_contracts_change_while_the_broker_runs(serve: Serve, join: Join, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "object", "required": ["v"], "properties": {"v": {"maximum": 10}}}))
    broker = await serve()
    writer = await join(broker, "writer")
    assert await writer.publish("a", b"no JSON") == 0x10
    contract = {"name": "c", "topics": ["a"], "schema_file": str(file)}
    broker.reload(replace(broker.config, contracts=from_tree({"contracts": [contract]}).contracts))
    assert [
        await writer.publish("a", payload) for payload in (b"no JSON", b"{}", b'{"v": 11}', b'{"v": 1}', b"[" * 10**5)
    ] == [*(0x99, 0x99, 0x99, 0x10, 0x99)]
    file.write_text('{"type": 5}')
    with pytest.raises(ConfigError, match=r"contracts\[0\]\.schema_file: .* is no JSON Schema: "):
        broker.reload(broker.config)
    assert await writer.publish("a", b'{"v": 11}') == 0x99, "those of before stay"
    broker.reload(replace(broker.config, contracts=()))
    assert await writer.publish("a", b"no JSON") == 0x10


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": ""}, "contracts[0].schema: needs either schema or schema_file"),
        ({"schema_file": "f"}, "contracts[0].schema: needs either schema or schema_file"),
        ({"topics": ["a/#/b"]}, "contracts[0].topics[0]: 'a/#/b' is no filter of topics that clients publish to"),
        ({"topics": ["$SYS/#"]}, "contracts[0].topics[0]: '$SYS/#' is no filter of topics"),
        ({"dead_letter": {"topic": "a/#"}}, "contracts[0].dead_letter.topic: a/# is no topic"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tree({"contracts": [{**READINGS, **changes}]})
    assert told in str(caught.value)


async def test_a_schema_that_cannot_be_read_is_named(serve: Serve, tmp_path: Path) -> None:
    for changes, told in (
        ({"schema": "v decimal(3,1)"}, r"contracts\[0\]\.schema: the broker's engine has no type"),
        ({"schema": "", "schema_file": str(tmp_path / "none")}, r"schema_file: .*none cannot be read: No such file"),
    ):
        with pytest.raises(ConfigError, match=told):
            await serve(contracts=[{**READINGS, **changes}])
