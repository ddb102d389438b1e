"""A broker that authenticates devices against a registry, and allows each device its own topics only."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os

import starlingmq

LISTEN = os.environ.get("MQTT_LISTEN", "mqtt://127.0.0.1:1883")


class Registry:
    """In place of a database: names of devices and the digests of their keys."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._digests = {name: hashlib.sha256(key).digest() for name, key in keys.items()}
        self.blocked: set[str] = set()

    async def knows(self, name: str, key: bytes) -> bool:
        await asyncio.sleep(0.01)  # the round trip to the database
        wanted = self._digests.get(name, b"")
        return hmac.compare_digest(wanted, hashlib.sha256(key).digest()) and name not in self.blocked


def broker(registry: Registry, listen: str = LISTEN) -> starlingmq.Broker:
    async def authenticate(request: starlingmq.AuthRequest) -> bool:
        if request.username is None or request.password is None or request.client_id != request.username:
            return False  # one session per device, under its own name only
        return await registry.knows(request.username, request.password)

    def authorize(access: starlingmq.Access) -> bool:
        if access.action == "subscribe":
            return access.topic.startswith(f"commands/{access.username}/")
        return access.topic.startswith(f"readings/{access.username}/") and not access.retain

    return starlingmq.Broker(listeners=[listen], authenticate=authenticate, authorize=authorize)


async def main() -> None:
    registry = Registry({"pump-1": b"a long key", "pump-2": b"another long key"})
    async with broker(registry) as running:
        print("ready", *running.addresses, flush=True)
        await running.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
