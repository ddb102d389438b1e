"""A FastAPI application with an embedded broker: ``uvicorn app:app``."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Path

import starlingmq
from starlingmq.client import Client

LISTEN = os.environ.get("MQTT_LISTEN", "mqtt://127.0.0.1:1883")

states: dict[str, Any] = {}


def keep_state(publication: starlingmq.Publication) -> bool:
    """Called for each message before it is delivered; False drops it."""
    root, *rest = publication.topic.split("/")
    if root != "devices" or len(rest) != 2 or rest[1] != "state":
        return True
    try:
        states[rest[0]] = json.loads(publication.payload)
    except ValueError:
        return False
    return True


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The broker lives as long as the application, in the same event loop."""
    async with starlingmq.Broker(listeners=[LISTEN], on_publish=keep_state) as broker:
        app.state.mqtt = broker.address("mqtt")
        async with Client(app.state.mqtt, client_id="web") as client:
            app.state.client = client
            yield


app = FastAPI(title="Devices", lifespan=lifespan)


@app.get("/devices")
async def devices() -> dict[str, Any]:
    return states


@app.post("/devices/{name}/command", status_code=202)
async def command(name: Annotated[str, Path(pattern="^[a-z0-9-]+$")], order: Annotated[dict[str, Any], Body()]) -> None:
    """QoS 1: returns once the broker has the message, which is queued for the device if that has a session."""
    if name not in states:
        raise HTTPException(404, f"no device {name} has said anything yet")
    await app.state.client.publish(f"devices/{name}/command", json.dumps(order), qos=1)
