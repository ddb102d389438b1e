"""``ctl storage``, ``backup`` and ``restore`` as a user runs them, beside a broker that serves and without one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starlingmq import Broker
from starlingmq.client import Client
from starlingmq.config.settings import from_tree
from starlingmq.net.control_path import NAME, reachable
from starlingmq.net.control_socket import REQUEST_BYTES_MAX
from tests.patience import within

from .commands import run

HOUR = 3600
PAYLOAD = b"x" * 500


class Serving:
    """A broker in a process of its own, on a data directory."""

    def __init__(self, data: Path, *settings: str, listen: str = "mqtt://127.0.0.1:0") -> None:
        command = [sys.executable, "-m", "starlingmq", "serve", "--listen", listen]
        command += ["--data-dir", str(data), *settings]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        word, *addresses = self.process.stdout.readline().split() or [""]
        if word != "ready":
            pytest.fail(f"the broker did not start: {self.process.communicate()[1]}")
        self.url = addresses[0]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


@contextlib.contextmanager
def serving_in_a_process(data: Path, *settings: str) -> Iterator[Serving]:
    broker = Serving(data, *settings)
    try:
        yield broker
    finally:
        broker.stop()


@contextlib.contextmanager
def serving(data: Path, **sections: Any) -> Iterator[str]:
    """The address of a broker in a thread of this process, which takes less than the start of another one."""
    node = {"data_dir": str(data), "shutdown_timeout": 0.1}
    settings = from_tree({"listeners": ["mqtt://127.0.0.1:0"], "node": node, **sections})
    ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = concurrent.futures.Future()

    async def serve() -> None:
        end = asyncio.Event()
        async with Broker(settings) as broker:
            ready.set_result((asyncio.get_running_loop(), end, broker.address()))
            await end.wait()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
        both: list[concurrent.futures.Future[Any]] = [ready, served]
        concurrent.futures.wait(both, return_when=concurrent.futures.FIRST_COMPLETED)
        if not ready.done():
            served.result()
        loop, end, url = ready.result()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(end.set)
            served.result()


def session(url: str, client_id: str, clean: bool = False) -> Client:
    return Client(url, client_id=client_id, clean_start=clean, session_expiry=HOUR)


async def away(url: str, client_id: str = "away") -> None:
    """Leave a session behind that subscribes to everything below load/."""
    async with session(url, client_id, clean=True) as client:
        await client.subscribe("load/#", qos=1)


async def publish(url: str, count: int) -> None:
    async with Client(url) as client:
        for number in range(count):
            await client.publish("load/x", b"%08d" % number + PAYLOAD, qos=1)
        await client.publish("kept", b"retained", qos=1, retain=True)


def fill(url: str, count: int = 100) -> None:
    asyncio.run(away(url))
    asyncio.run(publish(url, count))


async def drain(url: str, until: int, client_id: str = "away") -> list[int]:
    """The numbers that wait for the session, up to ``until``."""
    numbers: list[int] = []
    async with session(url, client_id) as client:
        assert client.session_present
        async with within(20):
            async for message in client.messages():
                numbers.append(int(message.payload[:8]))
                if numbers[-1] >= until:
                    break
    return numbers


def asked(*words: str) -> dict[str, Any]:
    """The object that a command prints with --json."""
    code, output, errors = run(*words, "--json")
    assert code == 0, errors
    found: dict[str, Any] = json.loads(output)
    return found


def journal_files(data: Path) -> list[Path]:
    return sorted((data / "journal").glob("*.log"))


ENGINES = pytest.mark.parametrize("engine", ["segment", "rocksdb"])


@pytest.fixture(params=["segment", pytest.param("rocksdb", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@ENGINES
def test_stats_are_the_same_with_a_broker_and_without(data: Path, engine: str) -> None:
    with serving(data, storage={"journal": engine}) as url:
        fill(url)
        online = asked("ctl", "storage", "stats", "--data-dir", str(data))
    offline = asked("ctl", "storage", "stats", "--data-dir", str(data))
    for found in (online, offline):
        assert (found["sessions"], found["subscriptions"], found["queued"], found["retained"]) == (1, 1, 100, 1)
        assert found["journal"]["engine"] == engine
        assert found["journal"]["next"] > 100
        assert 0 < found["kv_bytes"] <= found["used"]
        assert found["state"] == "ok"
    assert online["serving"]
    assert not offline["serving"]
    assert offline["checkpoint"]["behind"] == 0


def test_the_directory_may_be_named_by_the_settings(data: Path, tmp_path: Path) -> None:
    settings = tmp_path / "starlingmq.yaml"
    settings.write_text(f"node: {{data_dir: {json.dumps(str(data))}}}\n")
    with serving(data):
        code, output, errors = run("ctl", "storage", "stats", "-c", str(settings))
    assert code == 0, errors
    assert b"a broker is running" in output


@ENGINES
def test_a_whole_directory_is_found_whole(data: Path, engine: str) -> None:
    broker = Serving(data, "--set", f"storage.journal={engine}")
    fill(broker.url)
    online = asked("ctl", "storage", "check", "--data-dir", str(data))
    broker.kill()
    killed = asked("ctl", "storage", "check", "--data-dir", str(data))
    for found in (online, killed):
        assert found["damage"] == []
        assert found["records"] > 100
        assert found["references"] >= 100
        assert found["sessions"] == 1


def test_a_damaged_byte_is_named(data: Path) -> None:
    with serving(data) as url:
        fill(url)
        file = journal_files(data)[0]
        at = file.read_bytes().index(b"00000050" + PAYLOAD) + 20
        with open(file, "r+b") as writer:
            writer.seek(at)
            writer.write(b"!")
        found = [run("ctl", "storage", "check", "--data-dir", str(data))]
    found.append(run("ctl", "storage", "check", "--data-dir", str(data)))
    for code, output, _ in found:
        assert code == 1
        assert file.name in output.decode()
        assert b"Record 53 is lost" in output
    # The checkpoint, which the stop wrote, knows who waits for it.
    assert b"Session 'away' refers to 1 messages that are missing in the journal" in found[1][1]


def test_compacting_gives_back_what_nobody_needs(data: Path) -> None:
    with serving(data, storage={"segment_size": "16KiB"}) as url:
        fill(url, 200)
        before = asked("ctl", "storage", "stats", "--data-dir", str(data))
        assert before["journal"]["segments"] > 5
        numbers = asyncio.run(drain(url, 199))
        assert numbers == list(range(200))
        asked("ctl", "storage", "compact", "--data-dir", str(data))
        after = asked("ctl", "storage", "stats", "--data-dir", str(data))
        assert after["journal"]["segments"] <= 2
        assert after["checkpoint"]["behind"] < 10
        assert after["checkpoint"]["age_seconds"] is not None


def test_compacting_offline_loses_nothing(data: Path, engine: str) -> None:
    broker = Serving(data, "--set", f"storage.journal={engine}")
    fill(broker.url)
    broker.kill()
    asked("ctl", "storage", "compact", "--data-dir", str(data))
    with serving(data, storage={"journal": engine}) as url:
        assert asyncio.run(drain(url, 99)) == list(range(100))


async def _publish_while(url: str, command: list[str]) -> tuple[int, int, str]:
    """Publish until a command is done. How many had been acknowledged when it began; its exit code and stderr."""
    async with Client(url) as client:
        number = 0

        async def some(count: int) -> None:
            nonlocal number
            for _ in range(count):
                await client.publish("load/x", b"%08d" % number + PAYLOAD, qos=1)
                number += 1

        await some(200)
        began = number
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        waiting = asyncio.ensure_future(process.communicate())
        while not waiting.done():
            await some(20)
        assert number > began
        return began, process.returncode or 0, (await waiting)[1].decode()


def test_a_backup_under_load_has_what_was_acknowledged_before(data: Path, tmp_path: Path, engine: str) -> None:
    target, new = tmp_path / "backup", tmp_path / "new"
    command = [sys.executable, "-m", "starlingmq", "backup", str(target), "--data-dir", str(data)]
    storage = {"segment_size": "16KiB", "journal": engine}
    with serving(data, storage=storage, mqtt={"max_mqueue_len": 0}) as url:
        asyncio.run(away(url))
        began, code, errors = asyncio.run(_publish_while(url, command))
        assert code == 0, errors
    restored = asked("restore", str(target), "--data-dir", str(new))
    assert restored["bytes"] > 0
    assert asked("ctl", "storage", "check", "--data-dir", str(new))["damage"] == []
    with serving(new, storage=storage) as url:
        numbers = asyncio.run(drain(url, began - 1))
    assert numbers == list(range(began))


def test_a_backup_without_a_broker(data: Path, tmp_path: Path) -> None:
    with serving(data) as url:
        fill(url)
    made = asked("backup", str(tmp_path / "backup"), "--data-dir", str(data))
    assert made["bytes"] > 0
    run("restore", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "new"))
    assert asked("ctl", "storage", "stats", "--data-dir", str(tmp_path / "new"))["queued"] == 100


def test_impossible_actions_are_reported_in_one_line(data: Path, tmp_path: Path) -> None:
    with serving(data):
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        failures = [
            run("backup", str(tmp_path / "full"), "--data-dir", str(data)),
            run("ctl", "storage", "stats", "--data-dir", str(tmp_path / "nothing")),
            run("restore", str(tmp_path / "nothing"), "--data-dir", str(tmp_path / "new")),
            run("restore", str(tmp_path / "nothing"), "--data-dir", str(data)),
        ]
    for code, output, errors in failures:
        assert code == 2
        assert output == b""
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1
    assert not (tmp_path / "nothing").exists()
    assert not (tmp_path / "new").exists()


def talk(data: Path, request: bytes) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with reachable(data / NAME) as path:
            connection.connect(path)
        connection.sendall(request)
        with connection.makefile("rb") as answers:
            return [json.loads(line) for line in answers]


def test_the_socket_is_for_its_owner_and_goes_with_the_broker(data: Path) -> None:
    broker = Serving(data)
    assert stat.S_IMODE(os.lstat(data / NAME).st_mode) == 0o600
    broker.kill()
    assert (data / NAME).exists()  # a stale one is no obstacle
    with serving(data):
        assert talk(data, b'{"action":"storage.stats"}\n')[-1]["result"]["serving"]
    assert not (data / NAME).exists()


def test_a_broker_stops_while_somebody_is_connected(data: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection, serving(data), reachable(data / NAME) as path:
        connection.connect(path)


def test_a_data_directory_may_have_a_long_name(tmp_path: Path) -> None:
    data = tmp_path / ("d" * 120)
    with serving(data):
        assert asked("ctl", "storage", "stats", "--data-dir", str(data))["serving"]
    assert not (data / NAME).exists()


def test_requests_that_make_no_sense_are_answered(data: Path) -> None:
    with serving(data):
        for request in (b"hello\n", b"{}\n", b'{"action":"x"}\n', b"x" * (2 * REQUEST_BYTES_MAX) + b"\n"):
            with contextlib.suppress(ConnectionError):  # the unread rest of a long request resets the connection
                assert list(talk(data, request)[-1]) == ["error"]
        relative = talk(data, b'{"action":"backup","arguments":{"target":"here"}}\n')
        assert "absolute path" in relative[-1]["error"]
        assert talk(data, b'{"action":"storage.stats"}\n')[-1]["result"]["state"] == "ok"
