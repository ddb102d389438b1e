"""Rules in a broker: rows become messages or requests, and a message without a result a dead letter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from starlingmq import Broker
from starlingmq.bridges.bridge import Bridge, MqttBridge
from starlingmq.bridges.bridge_relay import BridgeCounts
from starlingmq.bridges.kafka_bridge import KafkaBridge
from starlingmq.bridges.link_view import LinkView
from starlingmq.config.rules_section import lane_of
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from starlingmq.rules.rule_bridge import RuleBridge
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL
from tests.embedding.conftest import Join, Serve, join, serve
from tests.patience import within
from tests.rules.test_rule_rounds import Target, target

__all__ = ["join", "serve", "target"]

PATIENCE: Final = 20.0
HOT: Final[dict[str, Any]] = {
    "name": "hot",
    "source": {"topics": ["plant/+/temp"]},
    "decode": {"format": "json", "schema": "id string, v double"},
    "steps": [
        {
            "sql": "select concat('alarms/', id) as topic, to_json(struct(split_part(topic, '/', 2) as line, v)) as "
            "payload, 1 as qos from rows where v > 50"
        }
    ],
    "dead_letter": {"topic": "dead/hot"},
}
BOTH: Final[dict[str, Any]] = {
    "name": "each",
    "source": {"topics": ["in/#"]},
    "decode": {"format": "json", "schema": "xs array<int>"},
    "steps": [
        {
            "sql": "select concat('out/', x) as topic, string(10 / x) as payload "
            "from rows lateral view explode(xs) t as x"
        }
    ],
}


async def until(met: Callable[[], bool]) -> None:
    async with within(PATIENCE):
        while not met():
            await asyncio.sleep(0.005)


def view(broker: Broker) -> LinkView:
    assert broker._bridges is not None
    (found,) = broker._bridges.views()
    return found


async def running(broker: Broker) -> None:
    await until(lambda: view(broker).state == "connected")


async def test_rows_become_messages_and_what_does_not_fit_a_dead_letter(serve: Serve, join: Join) -> None:
    broker = await serve(rules=[HOT])
    await running(broker)
    reader, writer = await join(broker, "reader"), await join(broker, "writer")
    await reader.subscribe("alarms/#", "dead/#", qos=1)
    for payload in (b'{"id": "a", "v": 70}', b'{"id": "b", "v": 20.5}', b"{broken", b'{"id": "c", "v": 51.25}'):
        await writer.publish("plant/4/temp", payload)
    async with within(PATIENCE):
        found = [await reader.message() for _ in range(3)]
    assert [(each.topic, each.payload) for each in found] == [
        (b"alarms/a", b'{"line":"4","v":70.0}'),
        (b"dead/hot", b"{broken"),
        (b"alarms/c", b'{"line":"4","v":51.25}'),
    ]
    assert b"starlingmq-reason" in found[1].properties and b"plant/4/temp" in found[1].properties
    await until(lambda: view(broker).in_flight == 0)
    shown = view(broker)
    assert (shown.name, shown.kind, shown.messages_out, shown.refused) == ("rule:hot", "rule", 3, 1)
    assert shown.complaints[0].startswith("plant/4/temp: the payload does not fit decode.schema: ")


async def test_a_message_may_have_many_rows_and_none_of_them_is_published_if_one_fails(
    serve: Serve, join: Join
) -> None:
    broker = await serve(rules=[BOTH])
    await running(broker)
    reader, writer = await join(broker, "reader"), await join(broker, "writer")
    await reader.subscribe("out/#", qos=1)
    many = list(range(1, 3000))  # more than may be in flight
    for xs in ([1, 2], [], [4, 0, 5], many):
        await writer.publish("in/a", json.dumps({"xs": xs}).encode())
    async with within(PATIENCE):
        topics = [(await reader.message()).topic for _ in range(2 + len(many))]
    assert topics == [b"out/%d" % x for x in [1, 2, *many]]
    await until(lambda: view(broker).in_flight == 0)
    assert view(broker).refused == 1 and "division by zero" in view(broker).complaints[0]


async def test_rules_change_while_the_broker_runs_and_messages_wait_for_a_paused_one(serve: Serve, join: Join) -> None:
    broker = await serve(rules=[HOT])
    await running(broker)
    reader, writer = await join(broker, "reader"), await join(broker, "writer")
    await reader.subscribe("alarms/#", qos=1)
    assert broker._bridges is not None
    broker._bridges.pause("rule:hot", True)
    await until(lambda: view(broker).state == "paused")
    await writer.publish("plant/4/temp", b'{"id": "a", "v": 70}')
    assert view(broker).waiting == 1
    changed = HOT | {"steps": [{"sql": "select 'alarms/all' as topic, id as payload from rows"}]}
    broker.reload(replace(broker.config, rules=from_tree({"rules": [changed]}).rules))
    broker._bridges.pause("rule:hot", False)
    async with within(PATIENCE):
        found = await reader.message()
    assert (found.topic, found.payload) == (b"alarms/all", b"a")


@pytest.mark.slow
async def test_events_of_messages_are_a_source_for_targets(serve: Serve, join: Join, target: Target) -> None:
    """Such as a webhook that hears of each message that is dropped."""
    rule = {
        "name": "drops",
        "source": {"topics": ["$events/dropped"]},
        "decode": {"format": "json", "schema": "node string, events array<struct<client: string, reason: string>>"},
        "steps": [{"sql": "select 1 as n, e.client, e.reason from rows lateral view explode(events) t as e"}],
        "sink": {"format": "http", "url": target.url},
    }
    broker = await serve(rules=[rule], mqtt={"max_mqueue_len": 1})
    await running(broker)
    away = await join(broker, "away", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})
    await away.subscribe("a", qos=1)
    await away.close()
    writer = await join(broker, "writer")
    for _ in range(3):
        await writer.publish("a")
    await until(lambda: len(target.rows) == 2)
    assert target.rows == [{"n": 1, "client": "away", "reason": "queue_full"}] * 2
    with pytest.raises(ConfigError, match="would cause more events"):
        from_tree({"rules": [{**rule, "sink": {}}]})


async def test_a_rule_that_the_engine_does_not_run_says_where_and_messages_wait(serve: Serve, join: Join) -> None:
    broker = await serve(
        rules=[HOT | {"steps": [{"sql": "select topic, count(*) as payload\nfrom rows group by topic"}]}]
    )
    await until(lambda: view(broker).problem != "")
    assert view(broker).problem == (
        "steps[0].sql, line 2, column 20: the broker's engine has no GROUP BY; Spark has it: starlingmq pipeline"
    )
    writer = await join(broker, "writer")
    await writer.publish("plant/4/temp", b"{}")
    assert view(broker).waiting == 1


class Unused:
    """A driver that no session may be opened at."""

    def clock(self) -> float:
        return 0.0


@pytest.mark.parametrize("kind", [RuleBridge, KafkaBridge, MqttBridge])
async def test_a_bridge_opens_its_session_when_it_is_whole(kind: type[Bridge]) -> None:
    """A node that drains closes it at once, which calls the bridge."""
    config = lane_of(from_tree({"rules": [HOT]}).rules[0])
    bridge = kind(config, Unused(), "site", lambda: True, BridgeCounts())  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="'Unused' object has no attribute 'state'"):
        bridge.begin()
    await bridge.stop()
