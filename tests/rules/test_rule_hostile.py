"""No message and no row ends the work of a rule: the next message has its result."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from starlingmq.rules.rule_bridge import RuleBridge
from starlingmq.rules.sql_values import BYTES_MAX
from tests.embedding.conftest import Join, Serve, join, serve
from tests.patience import within
from tests.rules.test_rules import PATIENCE, running, until, view

__all__ = ["join", "serve"]

SCHEMA: Final = "s string, t string, q int, r boolean, ps array<struct<name:string,value:string>>, xs array<int>"
ROW: Final = "select t as topic, s as payload, q as qos, r as retain, ps as properties from rows"
LONG: Final = "x" * 70_000
LAST: Final = {"s": "last", "t": "out/last", "q": 1}


def rule_of(sql: str) -> dict[str, Any]:
    return {
        "name": "r",
        "source": {"topics": ["in/#"]},
        "decode": {"format": "json", "schema": SCHEMA},
        "steps": [{"sql": sql}],
        "dead_letter": {"topic": "dead"},
    }


def properties(name: str | None, value: str | None) -> dict[str, Any]:
    return {"t": "out", "ps": [{"name": name, "value": value}]}


POISON: Final[dict[str, dict[str, Any]]] = {
    "a topic that is too long": {"t": LONG},
    "a topic of too many levels": {"t": "a/" * 300},
    "a topic with U+0000": {"t": "a\0b"},
    "QoS 7": {"t": "out", "q": 7},
    "a property that is null": {"t": "out", "ps": [None]},
    "a value that is null": properties(LONG, None),
    "a value that is too long": properties("a", LONG),
    "U+0000 in a property": properties("a\0", "\0"),
    "a response topic with a wildcard": properties("mqtt.response_topic", "a/#"),
    "a content type that is too long": properties("mqtt.content_type", LONG),
    "correlation data that is too long": properties("mqtt.correlation_data", "00" * 70_000),
    "correlation data that is not hexadecimal": properties("mqtt.correlation_data", "z" * 70_000),
}


async def survives(serve: Serve, join: Join, sql: str, payload: bytes, letters: int, **sections: Any) -> None:
    """The rule makes a row of LAST after this message, which has so many dead letters."""
    broker = await serve(rules=[rule_of(sql)], **sections)
    await running(broker)
    reader, writer = await join(broker, "reader"), await join(broker, "writer")
    await reader.subscribe("out/last", "dead", qos=1)
    await writer.publish("in/a", payload)
    await writer.publish("in/a", json.dumps(LAST).encode())
    found = []
    async with within(PATIENCE):
        while b"out/last" not in found:
            found.append((await reader.message()).topic)
    assert found == [b"dead"] * letters + [b"out/last"]
    await until(lambda: view(broker).in_flight == 0)
    assert (view(broker).problem, view(broker).refused) == ("", 1)
    assert all(len(each) < 2000 and each.isprintable() for each in view(broker).complaints)


@pytest.mark.parametrize("name", POISON)
async def test_a_row_that_makes_no_message_becomes_a_dead_letter(serve: Serve, join: Join, name: str) -> None:
    await survives(serve, join, ROW, json.dumps(POISON[name]).encode(), 1)


@pytest.mark.parametrize("limits", [{"max_qos": 1}, {"retain_available": False}])
async def test_so_does_one_that_this_broker_does_not_allow(serve: Serve, join: Join, limits: dict[str, Any]) -> None:
    payload = {"s": "a", "t": "out/x", "q": 2 if "max_qos" in limits else 1, "r": True}
    await survives(serve, join, ROW, json.dumps(payload).encode(), 1, mqtt=limits)


async def test_a_dead_letter_that_would_be_too_large_is_only_counted(serve: Serve, join: Join) -> None:
    await survives(serve, join, ROW, b"{" + b"x" * 1930, 0, limits={"max_packet_size": 2000})


async def test_json_inside_of_a_text_may_be_deep(serve: Serve, join: Join) -> None:
    sql = "select t as topic, coalesce(get_json_object(s, '$.a'), s) as payload, q as qos from rows"
    deep = {"t": "out/x", "s": '{"a":' + "[" * 900 + "]" * 900 + "}", "q": 1}
    await survives(serve, join, sql, json.dumps(deep).encode(), 1)


async def test_the_rows_of_a_message_have_a_bounded_size(serve: Serve, join: Join) -> None:
    sql = (
        "select t as topic, concat(s, coalesce(string(x), '')) as payload, q as qos "
        "from rows lateral view outer explode(xs) a as x"
    )
    huge = {"t": "out/x", "s": "x" * 100_000, "xs": [0] * 9000}
    assert BYTES_MAX < 100_000 * 9000
    await survives(serve, join, sql, json.dumps(huge).encode(), 1)


async def test_rows_of_a_backlog_do_not_pile_up(serve: Serve, join: Join) -> None:
    sql = "select 'out' as topic, string(x) as payload from rows lateral view explode(xs) a as x"
    broker = await serve(rules=[rule_of(sql)])
    await running(broker)
    assert broker._bridges is not None
    broker._bridges.pause("rule:r", True)
    await until(lambda: view(broker).state == "paused")
    writer = await join(broker, "writer")
    body = json.dumps({"xs": list(range(500))}).encode()
    for _ in range(60):
        await writer.publish("in/a", body)
    broker._bridges.pause("rule:r", False)
    most = 0
    bridge = broker._bridges._bridges["rule:r"]
    assert isinstance(bridge, RuleBridge)

    def done() -> bool:
        nonlocal most
        flow = bridge._flow
        most = max(most, len(flow._waiting) if flow is not None else 0)
        return view(broker).messages_out == 60 * 500

    await until(done)
    assert 0 < most < 5 * 500


async def test_rows_of_many_bytes_do_not_make_rule_and_broker_wait_for_each_other(serve: Serve, join: Join) -> None:
    """While a rule is asked to wait, the broker reads a bounded number of bytes from it."""
    sql = "select 'out' as topic, concat(s, x) as payload from rows lateral view explode(xs) a as x"
    broker = await serve(rules=[rule_of(sql)])
    await running(broker)
    writer = await join(broker, "writer")
    for _ in range(3):
        await writer.publish("in/a", json.dumps({"s": "x" * 1000, "xs": list(range(5000))}).encode())
    await until(lambda: view(broker).messages_out == 15_000 and view(broker).in_flight == 0)
