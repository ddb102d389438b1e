"""nats-py where something goes wrong or changes: keys, other servers, a client that does not read, too much at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest
import yaml
from nats.aio.client import Client
from tests.patience import within

import nats
from starlingmq import Broker
from starlingmq.config.settings import Config, from_tree
from starlingmq.hooks import AuthRequest

pytestmark = pytest.mark.slow

PATIENCE = 20.0


def config(**sections: Any) -> Config:
    return from_tree({"listeners": ["nats://127.0.0.1:0"], **sections})


def seed(number: int) -> str:
    text: str = nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER).decode()
    return text


def public(text: str) -> str:
    key: str = nkeys.from_seed(bytearray(text.encode())).public_key.decode()
    return key


class Watched:
    """A client and what its callbacks told, in order."""

    def __init__(self) -> None:
        self.client = Client()
        self.told: asyncio.Queue[str] = asyncio.Queue()

    async def connect(self, *servers: str, **options: Any) -> None:
        def teller(what: str) -> Any:
            async def tell(error: Exception | None = None) -> None:
                self.told.put_nowait(what if error is None else f"{what}: {error}")

            return tell

        await self.client.connect(
            list(servers),
            connect_timeout=PATIENCE,  # type: ignore[arg-type]
            reconnect_time_wait=0.05,  # type: ignore[arg-type]
            max_reconnect_attempts=100,
            **{
                f"{name}_cb": teller(name)
                for name in ("error", "disconnected", "reconnected", "closed", "discovered_server", "lame_duck_mode")
            },
            **options,
        )

    async def until(self, what: str) -> str:
        """The next report that equals ``what``; earlier ones are skipped."""
        async with within(PATIENCE):
            while what not in (told := await self.told.get()):
                pass
        return told

    def read(self, on: bool) -> None:
        """Take what comes from the network, or leave it there."""
        assert self.client._transport is not None
        transport = self.client._transport._io_reader._transport  # type: ignore[attr-defined]
        (transport.resume_reading if on else transport.pause_reading)()

    async def gets_through(self) -> None:
        """Its own messages come back to it."""
        subscription = await self.client.subscribe("through")
        await self.client.publish("through", b"x")
        assert (await subscription.next_msg(timeout=PATIENCE)).data == b"x"
        await subscription.unsubscribe()


@asynccontextmanager
async def watched(*servers: str, **options: Any) -> AsyncIterator[Watched]:
    found = Watched()
    await found.connect(*servers, **options)
    try:
        yield found
    finally:
        if not found.client.is_closed:
            await found.client.close()


async def refused(address: str, **options: Any) -> str:
    found = Watched()
    with pytest.raises(nats.errors.Error) as caught:
        await found.connect(address, allow_reconnect=False, **options)
    assert found.client._transport is not None  # which it leaves open
    found.client._transport.close()  # type: ignore[no-untyped-call]
    await found.client._transport.wait_closed()  # type: ignore[no-untyped-call]
    return str(caught.value)


async def test_keys() -> None:
    asked: list[AuthRequest] = []

    def authenticate(request: AuthRequest) -> bool:
        asked.append(request)
        return request.nkey_listed or request.nkey == public(seed(2))

    settings = config(nats={"nkeys": [public(seed(1))]})
    async with Broker(settings) as broker:
        async with watched(broker.address("nats"), nkeys_seed_str=seed(1)) as ann:
            await ann.gets_through()
        assert "uthorization" in await refused(broker.address("nats"), nkeys_seed_str=seed(2))
        assert "uthorization" in await refused(broker.address("nats"))
    async with Broker(settings, authenticate=authenticate) as broker:
        for number in (1, 2):
            async with watched(broker.address("nats"), nkeys_seed_str=seed(number)) as client:
                await client.gets_through()
        assert "uthorization" in await refused(broker.address("nats"), nkeys_seed_str=seed(3))
        assert [request.username for request in asked] == [public(seed(number)) for number in (1, 2, 3)]


async def test_keys_beside_rules_and_passwords(tmp_path: Path) -> None:
    """Rules apply to clients that sign as to all others, and no NATS client gets in without a key because MQTT clients
    may.
    """
    (tmp_path / "acl.yaml").write_text(
        yaml.safe_dump({"rules": [{"allow": "all", "users": [public(seed(1))], "topics": ["ann/#"]}]})
    )
    auth = {"acl": {"file": str(tmp_path / "acl.yaml")}}
    async with Broker(config(nats={"nkeys": [public(seed(1))]}, auth=auth)) as broker:
        address = broker.address("nats")
        assert "uthorization" in await refused(address)
        assert "uthorization" in await refused(address, user="ann", password="x")
        assert "uthorization" in await refused(address, nkeys_seed_str=seed(2))
        async with watched(address, nkeys_seed_str=seed(1)) as ann:
            subscription = await ann.client.subscribe("ann.x")
            await ann.client.publish("ann.x", b"mine")
            assert (await subscription.next_msg(timeout=PATIENCE)).data == b"mine"
            await ann.client.publish("ben.x", b"his")
            assert 'publish to "ben.x"' in await ann.until("error")


async def test_to_another_server_when_one_leaves() -> None:
    """The client is told of the other one only by the first: in INFO at the beginning, and when it has changed."""
    async with Broker(config()) as second, Broker(config()) as first:
        names = [broker.address("nats").removeprefix("nats://") for broker in (first, second)]
        async with watched(f"nats://{names[0]}") as client:
            first.reload(config(nats={"connect_urls": names}))
            await client.until("discovered_server")
            assert [server.netloc for server in client.client.discovered_servers] == [names[1]]
            subscription = await client.client.subscribe("a")
            await client.client.flush()
            await first.stop()
            await client.until("lame_duck_mode")
            await client.until("disconnected")
            await client.until("reconnected")
            assert client.client.connected_url is not None
            assert client.client.connected_url.netloc == names[1]
            async with watched(f"nats://{names[1]}") as other:
                await other.client.publish("a", b"found again")
            assert (await subscription.next_msg(timeout=PATIENCE)).data == b"found again"


async def test_a_slow_consumer_is_closed_and_others_get_everything() -> None:
    limits = {"queue_bytes": 200_000, "write_buffer": 10_000, "publisher_hold": "50ms"}
    async with Broker(config(limits=limits)) as broker:
        address = broker.address("nats")
        async with watched(address) as slow, watched(address) as quick, watched(address) as sender:
            for client in (slow, quick):
                await client.client.subscribe("flood", cb=nothing)
                await client.client.flush()
            everything = await quick.client.subscribe("flood", pending_bytes_limit=0, pending_msgs_limit=0)
            await quick.client.flush()
            slow.read(False)
            count = 0
            while not broker.state.ctx.counters.dropped.get("slow_consumer"):
                assert count < 10_000
                await sender.client.publish("flood", b"x" * 10_000)
                await sender.client.flush(timeout=int(PATIENCE))
                count += 1
            slow.read(True)
            await slow.until("disconnected")
            await slow.until("reconnected")
            await slow.gets_through()
            for _ in range(count):
                await everything.next_msg(timeout=PATIENCE)
            assert not quick.client.is_reconnecting and quick.told.empty()


async def nothing(message: object) -> None:
    pass


async def test_a_client_without_pongs_is_closed_and_others_stay() -> None:
    async with Broker(config(nats={"ping_interval": "200ms", "max_pings_out": 1})) as broker:
        address = broker.address("nats")
        async with watched(address) as deaf, watched(address) as idle:
            deaf.read(False)
            async with within(PATIENCE):
                while broker.state.ctx.counters.errors.get("keep_alive_timeout", 0) == 0:
                    await asyncio.sleep(0.05)
            deaf.read(True)
            await deaf.until("disconnected")
            await deaf.until("reconnected")
            await deaf.gets_through()
            assert idle.told.empty()
            await idle.gets_through()


async def test_more_than_the_largest_payload() -> None:
    async with Broker(config(nats={"max_payload": 1000})) as broker:
        address = broker.address("nats")
        async with watched(address) as client, watched(address) as other:
            assert client.client.max_payload == 1000
            with pytest.raises(nats.errors.MaxPayloadError):
                await client.client.publish("a", b"x" * 1001)
            client.client._max_payload = 10_000  # as a client that does not look
            await client.client.publish("a", b"x" * 1001)
            await client.until("closed")
            assert "maximum payload violation" in str(client.client.last_error)
            await other.gets_through()


async def test_a_refused_message_is_reported_and_the_connection_continues() -> None:
    async with Broker(config()) as broker, watched(broker.address("nats")) as client:
        await client.client.publish("$SYS.mine", b"x")
        assert 'permissions violation for publish to "$sys.mine"' in (await client.until("error")).lower()
        await client.client.publish("a.>", b"x")
        assert 'publish to "a.>": invalid publish subject' in (await client.until("error")).lower()
        await client.gets_through()
