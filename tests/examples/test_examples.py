"""Each program in ``examples`` works as its README says."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx
import pytest
from nats.errors import NoRespondersError

import nats
import starlingmq
from starlingmq.client import Client, ConnectRefused, Message, PublishFailed, SubscribeFailed
from starlingmq.wire.properties import RESPONSE_TOPIC, USER_PROPERTY
from tests.patience import within

EXAMPLES: Final = Path(__file__).resolve().parent.parent.parent / "examples"
ANYWHERE: Final = "mqtt://127.0.0.1:0"


def load(path: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of an example, on a free port."""
    monkeypatch.setenv("MQTT_LISTEN", ANYWHERE)
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # FastAPI looks annotations up there
    spec.loader.exec_module(module)
    assert isinstance(module, ModuleType)
    return module


async def next_of(client: Client) -> Message:
    return await asyncio.wait_for(anext(client.messages()), 10)


def test_every_example_is_listed_and_says_how_it_is_run() -> None:
    listed = set(re.findall(r"^\| \[[^]]*\]\((.*?)/?\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    there = {path.name for path in EXAMPLES.iterdir() if path.name not in ("README.md", "__pycache__")}
    assert listed == there
    for directory in (EXAMPLES / name for name in there if (EXAMPLES / name).is_dir()):
        assert "```console" in (directory / "README.md").read_text()


async def test_a_web_application_has_what_devices_say_and_tells_them_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = load("fastapi_app/app.py", monkeypatch).app
    way = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=way, base_url="http://web") as web,
        Client(app.state.mqtt, client_id="lamp") as lamp,
    ):
        await lamp.subscribe("devices/lamp/command", qos=1)
        await lamp.publish("devices/lamp/state", '{"on": false}', qos=1)
        await lamp.publish("devices/lamp/state", "no JSON", qos=1)
        assert (await web.get("/devices")).json() == {"lamp": {"on": False}}
        assert (await web.post("/devices/lamp/command", json={"on": True})).status_code == 202
        assert json.loads((await next_of(lamp)).payload) == {"on": True}
        for name, status in (("other", 404), ("a%2Fb", 404), ("A", 422)):
            assert (await web.post(f"/devices/{name}/command", json={})).status_code == status


async def test_home_assistant_is_told_all_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("home_assistant/heater.py", monkeypatch)
    async with starlingmq.Broker(listeners=[ANYWHERE]) as broker, Client(broker.address()) as home:
        running = asyncio.create_task(example.main(broker.address()))
        await home.subscribe("heater/bath/state")
        assert json.loads((await next_of(home)).payload) == {"temperature": 19.0, "heating": "OFF"}
        await home.unsubscribe("heater/bath/state")
        await home.subscribe("homeassistant/#")  # as one that is started later
        told = await next_of(home)
        assert told.topic == "homeassistant/device/bath-heater/config" and told.retain
        device = json.loads(told.payload)
        assert set(device) >= {"device", "origin", "components"}  # required by its documentation
        for component in device["components"].values():
            assert {"platform", "unique_id"} <= set(component)
        await home.publish("homeassistant/status", "online", qos=1)
        again = await next_of(home)
        while again.topic == "homeassistant/status":
            again = await next_of(home)
        assert json.loads(again.payload) == device
        await home.unsubscribe("homeassistant/#")
        await home.subscribe([device["availability_topic"], device["state_topic"]], qos=1)
        assert {(await next_of(home)).payload for _ in range(2)} >= {b"online"}
        await home.publish(device["components"]["heating"]["command_topic"], "ON", qos=1)
        assert json.loads((await next_of(home)).payload)["heating"] == "ON"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await example.main(broker.address(), remove=True)
        await home.subscribe("homeassistant/#")
        await home.publish("homeassistant/end", "")
        assert (await next_of(home)).topic == "homeassistant/end"  # nothing is retained there any more


async def test_a_hook_of_ones_own_decides_who_comes_in_and_does_what(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("auth_hook/broker.py", monkeypatch)
    registry = example.Registry({"pump-1": b"key"})
    async with example.broker(registry, ANYWHERE) as broker:
        url = broker.address()
        async with Client(url, client_id="pump-1", username="pump-1", password=b"key") as pump:
            await pump.subscribe("commands/pump-1/#", qos=1)
            await pump.publish("readings/pump-1/pressure", "3.1", qos=1)
            with pytest.raises(SubscribeFailed, match="not authorized"):
                await pump.subscribe("commands/pump-2/#")
            for topic, retain in (("readings/pump-2/pressure", False), ("readings/pump-1/pressure", True)):
                with pytest.raises(PublishFailed, match="not authorized"):
                    await pump.publish(topic, "9", qos=1, retain=retain)
        for client_id, name, key in (("pump-1", "pump-1", b"wrong"), ("other", "pump-1", b"key"), ("x", "x", b"")):
            with pytest.raises(ConnectRefused, match="not authorized"):
                async with Client(url, client_id=client_id, username=name, password=key):
                    pass
        registry.blocked.add("pump-1")
        with pytest.raises(ConnectRefused, match="not authorized"):
            async with Client(url, client_id="pump-1", username="pump-1", password=b"key"):
                pass


@asynccontextmanager
async def service(url: str) -> AsyncIterator[None]:
    """As its README starts it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / "nats_service/service.py"), url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"ready\n"
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_nats_service_answers_nats_clients_and_devices() -> None:
    async with starlingmq.Broker(listeners=[ANYWHERE, "nats://127.0.0.1:0"]) as broker:
        client = await nats.connect(broker.address("nats"))
        with pytest.raises(NoRespondersError):
            await client.request("convert.celsius", b"20", timeout=10)
        async with service(broker.address("nats")), Client(broker.address("mqtt"), client_id="oven") as oven:
            assert (await client.request("convert.celsius", b"20", timeout=10)).data == b"68"
            await oven.subscribe("oven/answer")
            await oven.publish("convert/celsius", "100", properties={RESPONSE_TOPIC: "oven/answer"})
            assert (await next_of(oven)).payload == b"212"
            await oven.publish("convert/celsius", "hot", properties={RESPONSE_TOPIC: "oven/answer"})
            failed = dict((await next_of(oven)).properties[USER_PROPERTY])  # type: ignore[arg-type]
            assert failed["Nats-Service-Error-Code"] == "400"
        await client.close()


async def test_the_broker_of_the_hooks_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTT_LISTEN", ANYWHERE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / "auth_hook/broker.py"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        ready = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().split()
        async with Client(ready[1], client_id="pump-1", username="pump-1", password=b"a long key"):
            pass
    finally:
        process.terminate()
        await process.wait()


async def test_a_bridge_carries_each_message_once_over_a_line_that_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = load("bridge/edge.py", monkeypatch)
    connections = []
    carry = example.Line.carry

    async def counted(line: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(line.ends))
        await carry(line, reader, writer)

    monkeypatch.setattr(example.Line, "carry", counted)
    async with within(60):
        found = await example.main()
    assert found == {str(number): 1 for number in range(example.MESSAGES)}
    assert len(connections) == example.CUTS + 1, "it was connected again after each cut"
