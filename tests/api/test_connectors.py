"""Connectors: what services outside the broker accepted and refused, and a test of each by an operator."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from starlingmq.admin.alarm_webhook import AlarmWebhook
from starlingmq.admin.alarms import Alarm
from tests.auth.logins import knock
from tests.auth.test_methods import response, service
from tests.otel.collector import Collector

from .browser import BROWSER, Chromium
from .conftest import BEARER, Ask, Join, Serve
from .test_alarms import hook

CONNECTORS = "/api/v1/connectors"


async def by_name(ask: Ask, broker: Any) -> dict[str, Any]:
    listed = (await ask(broker, "GET", CONNECTORS)).json()
    assert listed["missing"] == []
    return {one["name"]: one for one in listed["connectors"]}


async def checked(ask: Ask, broker: Any, name: str) -> dict[str, Any]:
    answer = await ask(broker, "POST", CONNECTORS + "/test", json={"name": name})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_logins_that_a_service_decides_are_counted_and_their_counts_outlive_a_reload(
    serve: Serve, ask: Ask, token_file: str
) -> None:
    ask = partial(ask, headers=BEARER)
    statuses = [200, 500, 200, 503]

    def answer(question: dict[str, Any]) -> bytes:
        return response({"result": "deny" if question["username"] == "bob" else "allow"}, statuses.pop(0))

    async with service(answer) as (url, asked):
        broker = await serve(
            auth={
                "http": {"url": url + "?key=secret", "cache": "0s"},
                "failures": {"delay": "0s"},
                "api": {"token_file": token_file},
            }
        )
        await knock(broker.address(), "bob", b"p")
        await knock(broker.address(), "ann", b"p")
        one = (await by_name(ask, broker))["auth.http"]
        assert (one["accepted"], one["failed"], one["failing"]) == (1, 1, 1), "a refused client is an accepted request"
        assert one["problem"] == "it answers with status 500" and one["accepted_at"] < one["failed_at"]
        assert one["address"] == url + "?***" and one["node"] == broker.config.node.name
        broker.reload(broker.config)
        assert (await checked(ask, broker, "auth.http"))["accepted"]
        assert asked[-1]["client_id"] == asked[-1]["username"] == "starlingmq-connector-test"
        refused = await checked(ask, broker, "auth.http")
        assert (refused["accepted"], refused["problem"]) == (False, "it answers with status 503")
        one = (await by_name(ask, broker))["auth.http"]
        assert (one["accepted"], one["failed"], one["failing"]) == (2, 2, 1)
        metrics = (await ask(broker, "GET", "/metrics")).text
        assert 'starlingmq_connector_requests_total{connector="auth.http",outcome="failed"} 2.0' in metrics


async def test_the_webhook_gets_an_alarm_of_the_kind_test(serve: Serve, ask: Ask) -> None:
    async with hook([200, 404]) as (url, got):
        broker = await serve(alarms={"webhook": url})
        assert (await checked(ask, broker, "alarms.webhook"))["accepted"]
        body = await got.get()
        assert body["event"] == body["alarm"]["kind"] == "test"
        assert not (await checked(ask, broker, "alarms.webhook"))["accepted"]
        one = (await by_name(ask, broker))["alarms.webhook"]
        assert (one["address"], one["accepted"], one["failed"]) == ("***", 1, 1) and "404" in one["problem"]
        listed = (await ask(broker, "GET", CONNECTORS)).text
        assert "secret" not in listed and "127.0.0.1" not in listed


async def test_an_alarm_is_counted_each_time_that_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starlingmq.admin.alarm_webhook.PAUSE", 0.0)
    async with hook([503, 503]) as (url, got):
        webhook = AlarmWebhook("n1", lambda: url)
        webhook.tell(Alarm("disk", "", "warning", "full", "free it"))
        assert webhook._task is not None
        await webhook._task
        assert (webhook.counts.accepted, webhook.counts.failed, webhook.counts.row) == (1, 2, 0)
        assert got.qsize() == 3


async def test_the_collector_of_traces_gets_a_span(serve: Serve, ask: Ask) -> None:
    with Collector() as collector:
        broker = await serve(tracing={"endpoint": collector.url})
        assert (await checked(ask, broker, "tracing"))["accepted"]
        collector.status = 400
        refused = await checked(ask, broker, "tracing")
        assert not refused["accepted"] and "not accepted" in refused["problem"]
        one = (await by_name(ask, broker))["tracing"]
        assert (one["address"], one["accepted"], one["failed"]) == (collector.url, 1, 1)
        collector.status = 200


async def test_a_service_that_does_not_answer_ends_the_test_and_not_the_request(
    serve: Serve, ask: Ask, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = partial(ask, headers=BEARER)
    monkeypatch.setattr("starlingmq.admin.connectors.TEST_SECONDS", 0.3)
    async with service(lambda question: None) as (url, _):
        broker = await serve(auth={"http": {"url": url, "timeout": "60s"}, "api": {"token_file": token_file}})
        refused = await checked(ask, broker, "auth.http")
        assert not refused["accepted"] and refused["problem"] == "no answer within 0.3 s"
        assert (await by_name(ask, broker))["auth.http"]["failing"] == 1
        assert refused["node"] == broker.config.node.name


async def test_a_connector_that_is_not_set_is_not_tested(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    assert await by_name(ask, broker) == {}
    answer = await ask(broker, "POST", CONNECTORS + "/test", json={"name": "auth.http"})
    assert answer.status_code == 404
    assert answer.json()["error"] == "this node has no connector 'auth.http'; connectors: none is set"


async def test_rules_are_listed_with_the_clients_that_each_applied_to(
    serve: Serve, join: Join, ask: Ask, tmp_path: Path
) -> None:
    file = tmp_path / "acl.yaml"
    rules = [
        {"deny": "publish", "clients": ["a*"], "topics": ["x/#", "y"], "retain": True},
        {"allow": ["publish", "subscribe"], "max_replies": 1},
    ]
    file.write_bytes(msgspec.yaml.encode({"default": "allow", "rules": rules}))
    broker = await serve(auth={"acl": {"file": str(file)}})
    for client_id in ("a1", "a2", "b"):
        await join(broker, client_id)
    await ask(broker, "GET", "/api/v1/rules/test", params={"client_id": "a3", "topic": "x/1"})
    told = (await ask(broker, "GET", "/api/v1/rules")).json()
    assert (told["file"], told["default"], told["total"]) == (str(file), "allow", 2)
    assert told["rules"] == [
        {
            "number": 1,
            "decision": "deny",
            "actions": ["publish"],
            "names": {"clients": "a*", "topics": "x/#, y", "retain": "yes"},
            "name": "",
            "applied": 2,
        },
        {
            "number": 2,
            "decision": "allow",
            "actions": ["publish", "subscribe"],
            "names": {},
            "name": "",
            "applied": 3,
        },
    ]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
async def test_an_operator_tests_a_connector_in_the_page(
    serve: Serve, ask: Ask, chromium: Chromium, pictures: Path
) -> None:
    async with hook([200, 500]) as (url, _):
        broker = await serve(alarms={"webhook": url})
        async with chromium.page() as page:
            await page.look_like(1280, 800, dark=True)
            await page.go(broker.address("http") + "/#connectors")
            button = "document.querySelector('#view td button')"
            answer = "document.getElementById('connectors-answer')?.textContent"
            await page.until(f"{button}")
            await page.run(f"{button}.click()")
            await page.until(f"{answer}.includes(' accepts; ')")
            await page.until("document.getElementById('view').textContent.includes('alarms.webhook')")
            await page.run(f"{button}.click()")
            await page.until(f"{answer}.includes('500')")
            await page.until("document.querySelector('#view td .bad')?.textContent === '1'")
            await page.screenshot(pictures / "connectors.png")
            await page.look_like(390, 844, dark=False)
            await page.screenshot(pictures / "connectors-phone.png")
            assert not page.problems
