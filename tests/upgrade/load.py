"""Clients that publish while a cluster is stopped, upgraded and started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from starlingmq.client import Client, ClientError, PublishFailed
from tests.patience import within

AT_ONCE: Final = 8  # messages of one client that wait for their acknowledgement


class Load:
    """``with Load(ports) as load``: a client at each port publishes to ``topic`` with QoS 1, in a thread of its own. It
    connects again for as long as it takes. ``acknowledged`` has the payloads of all PUBACKs, in their order."""

    def __init__(self, ports: Sequence[int], topic: str, at_once: int = AT_ONCE) -> None:
        self.acknowledged: list[str] = []
        self.problems: list[str] = []
        self._ports = ports
        self._topic = topic
        self._at_once = at_once
        self._ending = threading.Event()
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Wait until the clients have ended."""
        self._ending.set()
        self._thread.join()

    def until_more(self, count: int, seconds: float) -> None:
        """Wait until so many more messages are acknowledged."""
        with self._grown:
            wanted = len(self.acknowledged) + count
            assert self._grown.wait_for(lambda: len(self.acknowledged) >= wanted, seconds), self.problems[-5:]

    async def _all(self) -> None:
        await asyncio.gather(*(self._publish(port) for port in self._ports))

    async def _publish(self, port: int) -> None:
        others = [f"mqtt://127.0.0.1:{one}" for one in self._ports if one != port]
        client = Client(f"mqtt://127.0.0.1:{port}", client_id=f"load-{port}", reconnect=True, others=others)
        await client.connect()
        try:
            await asyncio.gather(*(self._in_turn(client, f"{port}-{lane}") for lane in range(self._at_once)))
        finally:
            await client.disconnect()

    async def _in_turn(self, client: Client, name: str) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            payload = f"{name}-{number}"
            try:
                async with within(5):
                    await client.publish(self._topic, payload, 1)
            except PublishFailed as error:
                self.problems.append(str(error))
                continue
            except TimeoutError:  # the nodes are down: look whether to end
                continue
            except ClientError as error:
                self.problems.append(str(error))
                return
            with self._grown:
                self.acknowledged.append(payload)
                self._grown.notify_all()


async def missing(port: int, client_id: str, wanted: set[str], seconds: float) -> set[str]:
    """Return those of ``wanted`` that a persistent session has not received when nothing has come for so long."""
    left = set(wanted)
    async with Client(f"mqtt://127.0.0.1:{port}", client_id=client_id, clean_start=False, session_expiry=600) as client:
        assert client.session_present
        try:
            messages = client.messages()
            while left:
                async with asyncio.timeout(seconds):
                    left.discard((await anext(messages)).payload.decode())
        except TimeoutError:
            pass
    return left
