"""``starlingmq migrate mosquitto --follow``: clients move one at a time from a real mosquitto that is under load, with
everything that waits for them; no message is lost, and at QoS 2 none comes twice.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client, Message
from starlingmq.client.options import QOS, Qos
from starlingmq.config.settings import load_config
from starlingmq.migrate.follower import mosquitto_of
from starlingmq.migrate.session_move import GATHERING
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish
from starlingmq.wire.packets import PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.reasons import Reason
from tests.bridges.real import HAS_MOSQUITTO, PATIENCE, Near, Running, Serve, mosquitto, serving
from tests.cli.commands import run
from tests.few import few
from tests.migrate.brokers import starlingmq
from tests.patience import within
from tests.peer import Peer

pytestmark = HAS_MOSQUITTO

LASTING: Final[dict[str, Any]] = {"session_expiry": 0xFFFFFFFF, "clean_start": False}
READERS: Final = 4


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with serving() as begin:
        yield begin


@asynccontextmanager
async def old_broker(directory: Path) -> AsyncIterator[Running]:
    settings = f"persistence true\npersistence_location {directory}/\npid_file {directory}/pid\nsys_interval 1\n"
    async with mosquitto(directory, settings) as running:
        yield running


def following(old: str, directory: Path) -> dict[str, Any]:
    return {
        "name": "old",
        "servers": [old],
        "topics": [{"filter": "#", "direction": "both"}, {"filter": "$follow/#", "direction": "both"}],
        "follow": {"database": f"{directory}/mosquitto.db", "pid_file": f"{directory}/pid"},
    }


class Traffic:
    """Publishers and readers. ``sent``: payloads that were acknowledged; ``came``: by reader, how often each came."""

    def __init__(self, old: str, new: str) -> None:
        self.old = old
        self.new = new
        self.at: dict[str, str] = {}
        self.sent: set[str] = set()
        self.came: dict[str, Counter[str]] = {}
        self.present: dict[str, bool] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[str] = set()
        self._publishing = True

    def client(self, name: str) -> Client:
        return Client(self.at[name], client_id=name, reconnect=False, **LASTING)

    async def read(self, name: str, qos: Qos) -> None:
        """Subscribes at the old broker, and never again."""
        self.at[name] = self.old
        self.came[name] = Counter()
        async with self.client(name) as client:
            await client.subscribe("load/#", qos=qos)
        self._tasks[name] = asyncio.ensure_future(self._reading(name))

    async def _reading(self, name: str) -> None:
        async with self.client(name) as client:
            self.present[name] = client.session_present
            async for message in client.messages():
                self._note(name, message)
                if name in self._leaving:
                    return  # and acknowledge what was read: this client forgets its handshakes

    def _note(self, name: str, message: Message) -> None:
        self.came[name][message.payload.decode()] += 1

    def publish(self, name: str, url: str) -> None:
        self.at[name] = url
        self._tasks[name] = asyncio.ensure_future(self._published(name))

    async def _published(self, name: str) -> None:
        async with self.client(name) as client:
            number = 0
            while self._publishing:
                qos = QOS[1 + number % 2]
                payload = f"{name} {self.at[name][-5:]} {qos} {number}"
                await client.publish(f"load/{name}", payload, qos=qos)
                self.sent.add(payload)
                number += 1

    async def move(self, name: str) -> None:
        if name in self.came:
            if name in self._tasks:
                await self.leave(name)
            self.at[name] = self.new
            self._tasks[name] = asyncio.ensure_future(self._reading(name))
        else:
            self._publishing = False
            await self._tasks[name]
            self._publishing = True
            self.publish(name, self.new)

    async def leave(self, name: str) -> None:
        """A reader goes at the next message."""
        self._leaving.add(name)
        async with within(PATIENCE):
            await self._tasks.pop(name)
        self._leaving.discard(name)

    async def end(self) -> None:
        self._publishing = False
        publishers = [task for name, task in self._tasks.items() if name not in self.came]
        await asyncio.gather(*publishers)

    async def complete(self) -> None:
        """Wait until each reader has everything."""
        try:
            await self._complete()
        except TimeoutError:
            missing = {name: sorted(self.sent - set(came)) for name, came in self.came.items()}
            pytest.fail(f"lost: { ({name: each for name, each in missing.items() if each}) }")

    async def _complete(self) -> None:
        async with within(PATIENCE):
            while any(self.sent - set(came) for came in self.came.values()):
                for name, task in self._tasks.items():
                    if task.done() and name in self.came:
                        raise AssertionError(name) from task.exception()
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        readers = [task for name, task in self._tasks.items() if name in self.came]
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    def twice(self) -> dict[str, list[str]]:
        found = {name: [each for each, times in came.items() if times > 1] for name, came in self.came.items()}
        return {name: payloads for name, payloads in found.items() if payloads}


async def moved(near: Near, count: int) -> None:
    await near.until(lambda view: view.moved == count, "old")


@pytest.mark.parametrize("qos", few([1, 2], 2))
async def test_readers_move_one_by_one_under_load(serve: Serve, tmp_path: Path, qos: Qos) -> None:
    async with old_broker(tmp_path) as old:
        near = await serve(following(old.url, tmp_path), node={"name": "new", "data_dir": str(tmp_path / "data")})
        await near.connected("old")
        traffic = Traffic(old.url, near.url)
        for number in range(READERS):
            await traffic.read(f"reader-{number}", qos)
        traffic.publish("at-old", old.url)
        traffic.publish("at-new", near.url)
        await traffic.leave("reader-0")  # messages that are published meanwhile wait for it at the old broker
        for number in range(READERS):
            name = f"reader-{number}"
            before = len(traffic.sent)
            async with within(PATIENCE):
                while len(traffic.sent) < before + 50:
                    await asyncio.sleep(0.01)
            await traffic.move(name)
            await moved(near, number + 1)
        await traffic.end()
        await traffic.complete()
        await traffic.stop()
        assert traffic.present == dict.fromkeys(traffic.came, True)
        twice = [each for payloads in traffic.twice().values() for each in payloads]
        print(f"{len(traffic.sent)} messages, {READERS} readers, {len(twice)} twice")  # of those published at QoS 1
        assert qos == 1 or not [each for each in twice if each.split()[2] == "2"]
        assert not [each for each in near.broker.state.ctx.sessions if each.startswith((GATHERING, "$seen/"))]


@asynccontextmanager
async def with_users(directory: Path) -> AsyncIterator[Running]:
    """mosquitto with users ann, bob and bridge, who need no password; its file is written on request only."""
    settings = f"persistence true\npersistence_location {directory}/\npid_file {directory}/pid\n"
    async with mosquitto(directory, settings) as running:
        yield running


def for_bridge(old: str, directory: Path) -> dict[str, Any]:
    return following(old, directory) | {"credentials": {"username": "bridge"}}


async def begun(url: str, client_id: str, user: str) -> None:
    """A session with a subscription."""
    async with Client(url, client_id=client_id, username=user, **LASTING) as client:
        await client.subscribe("a/#", qos=1)


async def refusal(url: str, client_id: str, user: str = "", clean: bool = False) -> int:
    """The reason in CONNACK."""
    peer = await Peer.open(url, 5)
    peer.send(Connect(5, client_id, clean, username=user or None))
    reason = (await peer.expect(Connack)).reason
    await peer.close()
    return reason


ANYONE: Final = {"auth": {"allow_anonymous": True}}


async def test_a_new_session_goes_to_its_user(serve: Serve, tmp_path: Path) -> None:
    """The old broker's file does not have it yet, and names the bridge's user as soon as it is fetched."""
    async with with_users(tmp_path) as old:
        near = await serve(for_bridge(old.url, tmp_path), node={"data_dir": str(tmp_path / "data")}, **ANYONE)
        await near.connected("old")
        await begun(old.url, "c", "ann")
        async with Client(near.url, client_id="c", username="ann", **LASTING) as client:
            assert client.session_present


async def test_the_session_of_another_user_stays_at_the_old_broker(serve: Serve, tmp_path: Path) -> None:
    auth = {"auth": {"allow_anonymous": True, "session_owner": "refuse"}}
    async with with_users(tmp_path) as old:
        near = await serve(for_bridge(old.url, tmp_path), node={"data_dir": str(tmp_path / "data")}, **auth)
        await near.connected("old")
        await begun(old.url, "c", "ann")
        for clean in (False, True):
            assert await refusal(near.url, "c", "bob", clean) == Reason.CLIENT_IDENTIFIER_NOT_VALID
        assert near.view("old").moved == 0
        async with Client(near.url, client_id="c", username="ann", **LASTING) as client:
            assert client.session_present


async def test_clients_do_not_take_the_place_of_the_bridge(serve: Serve, tmp_path: Path) -> None:
    async with old_broker(tmp_path) as old:
        near = await serve(following(old.url, tmp_path), node={"data_dir": str(tmp_path / "data")})
        since = (await near.connected("old")).seconds
        far_id = f"old-{near.broker.state.ctx.site}"
        for client_id in (far_id, f"{far_id}-watch", f"{GATHERING}x", "$seen/x"):
            for clean in (False, True):
                assert await refusal(near.url, client_id, clean=clean) == Reason.CLIENT_IDENTIFIER_NOT_VALID
        view = near.view("old")
        assert view.state == "connected" and view.seconds >= since
        log = (tmp_path / "mosquitto.log").read_text()
        assert not re.search(f"Client {far_id}.* already connected", log)


async def test_clients_are_served_once_the_settings_follow_no_more(serve: Serve, tmp_path: Path) -> None:
    """Such as when the old broker is gone for good."""
    async with old_broker(tmp_path) as old:
        near = await serve(following(old.url, tmp_path), node={"data_dir": str(tmp_path / "data")})
        await near.connected("old")
        await old.kill()
        assert await refusal(near.url, "c") == Reason.SERVER_UNAVAILABLE
        near.use([], node={"data_dir": str(tmp_path / "data")})
        async with within(PATIENCE):
            assert await refusal(near.url, "c") == 0


async def test_a_client_is_answered_whatever_goes_wrong(serve: Serve, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\xff")
    async with old_broker(tmp_path) as old:
        bridge = following(old.url, tmp_path) | {"credentials": {"username": "u", "password_file": str(secret)}}
        near = await serve(bridge, node={"data_dir": str(tmp_path / "data")})
        async with within(PATIENCE):
            assert await refusal(near.url, "c") == Reason.SERVER_UNAVAILABLE


def test_only_a_mosquitto_is_told_to_write(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for pid in (other.pid, 0, -1):
            (tmp_path / "pid").write_text(f"{pid}\n")
            with pytest.raises((OSError, ValueError)):
                mosquitto_of(tmp_path / "pid")
        assert other.stdin is not None
        other.stdin.close()


@pytest.mark.long(kept="tests/migrate/test_follow.py::test_readers_move_one_by_one_under_load")
async def test_the_command_waits_until_the_last_client_has_moved(tmp_path: Path) -> None:
    """The session of a client that is away moves at the end, and a half-finished handshake with its session."""
    async with old_broker(tmp_path) as old:
        away, publisher = Client(old.url, client_id="away", **LASTING), "publisher"
        async with away:
            await away.subscribe("a/#", qos=2)
        peer = await Peer.open(old.url, 4)
        peer.send(Connect(4, publisher, False))
        assert (await peer.expect(Connack)).reason == 0
        peer.send(Publish(b"a/held", b"held", 2, packet_id=7))
        assert (await peer.expect(Ack)).type == PUBREC
        new = f"mqtt://127.0.0.1:{free_ports(1)[0]}"
        command = [sys.executable, "-m", "starlingmq", "migrate", "mosquitto", str(tmp_path / "mosquitto.conf")]
        more = ["--follow", "--listen", new, "--out", str(tmp_path / "out")]
        waits = await asyncio.create_subprocess_exec(*command, *more, stdout=subprocess.PIPE)
        try:
            said = await lines_until(waits, "waiting for the new broker")
            assert any(line.startswith("start: starlingmq serve") for line in said)
            with starlingmq(tmp_path / "out" / "starlingmq.yaml") as addresses:
                assert addresses == [new]
                await lines_until(waits, "clients left at the old broker: 1;")
                await peer.close()
                peer = await Peer.open(new, 4)
                peer.send(Connect(4, publisher, False))
                assert (await peer.expect(Connack)).session_present
                peer.send(Ack(PUBREL, 7))
                assert (await peer.expect(Ack)).type == PUBCOMP
                await peer.publish("a/new", b"new", 2)
                (last,) = (await lines_until(waits, "the last client has moved"))[-1:]
                assert "2 sessions have moved" in last
                assert await waits.wait() in (0, 3)
                await old.stop()
                async with Client(new, client_id="away", **LASTING) as client:
                    assert client.session_present
                    found = [each.payload async for each in first(client, 2)]
                    assert found == [b"held", b"new"]
                await peer.close()
        finally:
            if waits.returncode is None:
                waits.kill()
            await waits.wait()


async def lines_until(process: asyncio.subprocess.Process, start: str) -> list[str]:
    assert process.stdout is not None
    found: list[str] = []
    async with within(PATIENCE):
        while not found or not found[-1].startswith(start):
            line = await process.stdout.readline()
            assert line, found
            found.append(line.decode().rstrip())
    return found


async def first(client: Client, count: int) -> AsyncIterator[Message]:
    async with within(PATIENCE):
        async for message in client.messages():
            yield message
            count -= 1
            if not count:
                return


@pytest.mark.parametrize("source", ["nats", "emqx"])
def test_other_brokers_get_a_bridge_and_the_command_says_that_sessions_stay(tmp_path: Path, source: str) -> None:
    conf = tmp_path / ("nats.conf" if source == "nats" else "cluster.hocon")
    conf.write_text("listen: 127.0.0.1:4222\n" if source == "nats" else "mqtt {max_inflight = 5}\n")
    url = "nats://127.0.0.1:4222" if source == "nats" else "mqtt://127.0.0.1:1883"
    out = tmp_path / "out"
    code, said, errors = run(
        "migrate", source, str(conf), "--follow", "--old", url, "--username", "me", "--out", str(out)
    )
    assert code == 3 and b"starlingmq ctl link drain old" in said, errors
    (bridge,) = load_config(out / "starlingmq.yaml").bridges
    assert bridge.servers == (url,) and bridge.topics[0].direction == "both" and not bridge.follow.database
