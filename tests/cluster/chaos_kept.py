"""Retained messages and wills beside the load of ``tests.cluster.chaos_copies``: before a node is lost, a client with a
will connects to it, and a message is retained there. In the end each will of a killed node has come once, and all nodes
have all retained messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from tests.cluster.real import Node
from tests.patience import within

from starlingmq.client import Client, ClientError, Will

SECONDS = 60.0


class Kept:
    def __init__(self) -> None:
        self.retained: dict[str, bytes] = {}  # by topic
        self.wills: set[bytes] = set()
        self._came: Counter[bytes] = Counter()
        self._mourners: list[Client] = []

    async def prepare(self, heir: Node) -> None:
        async with self._heir(heir) as client, within(SECONDS):
            await client.subscribe("wills/#", 2)

    @staticmethod
    def _heir(node: Node) -> Client:
        return Client(node.url, client_id="heir", clean_start=False, session_expiry=3600)

    async def before(self, number: int, node: Node, killed: bool) -> None:
        """The node is about to be lost."""
        payload = b"%d" % number
        mourner = Client(node.url, client_id=f"mourner{number}", will=Will(b"wills/a", payload, 2))
        async with within(SECONDS):
            await mourner.connect()
            await mourner.publish(f"kept/{number}", payload, qos=1, retain=True)
        self._mourners.append(mourner)
        self.retained[f"kept/{number}"] = payload
        if killed:
            self.wills.add(payload)

    async def after(self) -> None:
        """The node is lost: its client does not return."""
        while self._mourners:
            with suppress(ClientError, OSError):
                await self._mourners.pop().disconnect()

    async def check(self, nodes: list[Node], heir: Node) -> None:
        async with within(SECONDS):
            while self.wills - set(self._came):
                with suppress(ClientError, OSError, TimeoutError):
                    async with self._heir(heir) as client, asyncio.timeout(3.0):
                        async for message in client.messages():
                            self._came[message.payload] += 1
        assert all(self._came[payload] == 1 for payload in self.wills), f"wills came {self._came}"
        for node in nodes:
            found: dict[str, bytes] = {}
            async with Client(node.url) as client, within(SECONDS):
                await client.subscribe("kept/#", 1)
                async for message in client.messages():
                    found[message.topic] = message.payload
                    if len(found) == len(self.retained):
                        break
            assert found == self.retained, f"{node.name} has {sorted(found)} of {sorted(self.retained)}"
