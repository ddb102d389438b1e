"""Prometheus reads the broker, the alerts and the queries of the Grafana dashboard; promtool checks the alerts."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from starlingmq.cli.local_cluster import free_ports
from tests.patience import within

from .conftest import TOKEN, Join, Serve

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yaml"
ABSENT = ("cluster", "peer", "copies", "copy", "group", "stream", "refused", "closed", "dropped")
"""Words of metrics that a single broker without groups and streams, in which nothing went wrong, does not have."""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_each_alert_fires_when_it_must_and_not_before() -> None:
    tests = DEPLOY / "prometheus/alerts-test.yaml"
    tool = subprocess.run(
        ["promtool", "test", "rules", tests.name], cwd=tests.parent, capture_output=True, text=True, timeout=60
    )
    assert tool.returncode == 0, tool.stdout + tool.stderr
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    fired = set(re.findall(r'alertname(?:="|: )(\w+)', tests.read_text(encoding="utf-8")))
    assert fired == {rule["alert"] for rule in group["rules"]}


@asynccontextmanager
async def prometheus(directory: Path, target: str) -> AsyncIterator[httpx.AsyncClient]:
    """Prometheus with the scrape job and the alerts of ``deploy``, every second, and a client of its API."""
    settings = yaml.safe_load((DEPLOY / "prometheus/scrape.yaml").read_text(encoding="utf-8"))
    (job,) = settings["scrape_configs"]
    (directory / "token").write_text(TOKEN)
    job["authorization"]["credentials_file"] = str(directory / "token")
    job["static_configs"] = [{"targets": [target]}]
    settings["global"] = {"evaluation_interval": "1s"}
    job["scrape_interval"] = job["scrape_timeout"] = "1s"
    settings["rule_files"] = [str(ALERTS)]
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    words = [f"--config.file={directory / 'prometheus.yaml'}", f"--storage.tsdb.path={directory / 'tsdb'}"]
    with (directory / "prometheus.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus", *words, f"--web.listen-address={address}", stdout=log, stderr=log
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}/api/v1", trust_env=False, timeout=30) as client:
            yield client
    finally:
        process.kill()
        await process.wait()


async def result(client: httpx.AsyncClient, query: str) -> list[dict[str, Any]]:
    told = (await client.get("/query", params={"query": query})).json()
    assert told["status"] == "success", (query, told)
    found: list[dict[str, Any]] = told["data"]["result"]
    return found


async def until(client: httpx.AsyncClient, query: str) -> None:
    """Wait until a query has a result."""
    async with within(60):
        while True:
            try:
                if await result(client, query):
                    return
            except httpx.TransportError:
                pass  # it starts
            await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
async def test_prometheus_reads_what_the_broker_grafana_and_the_alerts_say(
    serve: Serve, join: Join, token_file: str, tmp_path: Path
) -> None:
    broker = await serve(auth={"api": {"token_file": token_file}}, node={"data_dir": str(tmp_path / "data")})
    peer = await join(broker, "dev")
    await peer.subscribe("a", qos=1)
    await peer.publish("a", b"x", 0)
    target = broker.address("http").removeprefix("http://")
    async with prometheus(tmp_path, target) as client:
        await until(client, 'up{job="starlingmq"} == 1')
        await until(client, "count_over_time(starlingmq_clients_connected[1m]) > 2")
        (clients,) = await result(client, "starlingmq_clients_connected")
        assert clients["value"][1] == "1"
        rules = (await client.get("/rules")).json()["data"]["groups"][0]["rules"]
        assert len(rules) > 5 and {rule["health"] for rule in rules} == {"ok"}
        dashboard = json.loads((DEPLOY / "grafana/starlingmq.json").read_text(encoding="utf-8"))
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        assert len(queries) > 15
        empty = [one for one in queries if not await result(client, one.replace("$__rate_interval", "1m"))]
        assert [one for one in empty if not any(word in one for word in ABSENT)] == []
        await broker.stop()
        await until(client, 'ALERTS{alertname="StarlingMQDown", alertstate="pending"}')
