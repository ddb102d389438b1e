"""The control socket alone: concurrency of actions, and cancelling work whose client has disconnected."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.patience import slowness

from starlingmq.net import control_socket as module
from starlingmq.net.control_socket import CONNECTIONS_MAX, REQUEST_BYTES_MAX, CalledOff, ControlServer, Report


class Work:
    """A long action, in a thread, that runs until ``finish`` or until it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.finish = threading.Event()
        self.called_off = False

    async def __call__(self, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
        self.begun.set()
        try:
            await asyncio.to_thread(self._work, report)
        except CalledOff:
            self.called_off = True
            raise
        finally:
            self.ended.set()
        return arguments

    def _work(self, report: Report) -> None:
        while not self.finish.wait(0.001):
            report("working", 1, 2, "steps")


async def fail(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    raise FileNotFoundError(2, "is not there", "file")


async def brief(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    return {"brief": True}


class Fixture:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = Work()
        self.server = ControlServer(path, {"work": self.work, "brief": brief, "fail": fail}, ["work"])

    async def begin(self, action: str, **arguments: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(json.dumps({"action": action, "arguments": arguments}).encode() + b"\n")
        return reader, writer

    async def ask(self, action: str) -> dict[str, Any]:
        reader, writer = await self.begin(action)
        answer: dict[str, Any] = json.loads((await reader.read()).splitlines()[-1])
        writer.close()
        return answer


@pytest_asyncio.fixture
async def control(tmp_path: Path) -> AsyncIterator[Fixture]:
    made = Fixture(tmp_path / "c.sock")
    await made.server.start()
    yield made
    made.work.finish.set()
    await made.server.stop()


@pytest.mark.asyncio
async def test_progress_comes_before_the_result(control: Fixture) -> None:
    reader, writer = await control.begin("work", name="value")
    first = json.loads(await reader.readline())
    assert first == {"progress": {"what": "working", "done": 1, "total": 2, "unit": "steps"}}
    control.work.finish.set()
    assert json.loads((await reader.read()).splitlines()[-1]) == {"result": {"name": "value"}}
    writer.close()


@pytest.mark.asyncio
async def test_one_long_action_at_a_time_and_brief_ones_beside_it(control: Fixture) -> None:
    _, writer = await control.begin("work")
    await control.work.begun.wait()
    assert await control.ask("work") == {"error": "work is running; try again when it has finished"}
    assert await control.ask("brief") == {"result": {"brief": True}}
    writer.close()


@pytest.mark.asyncio
async def test_closing_the_control_connection_cancels_the_action(control: Fixture) -> None:
    _, writer = await control.begin("work")
    await control.work.begun.wait()
    writer.close()
    await control.work.ended.wait()
    assert control.work.called_off


@pytest.mark.asyncio
async def test_stopping_ends_what_runs_and_who_has_said_nothing(control: Fixture) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    silent, writer = await asyncio.open_unix_connection(str(control.path))
    reader, other = await control.begin("work")
    await control.work.begun.wait()
    await asyncio.wait_for(control.server.stop(), 5 * slowness())
    assert control.work.called_off
    await asyncio.sleep(0)  # asyncio looks at the handlers that have ended
    assert errors == []
    assert json.loads((await reader.read()).splitlines()[-1]) == {"error": "work was cancelled"}
    assert await silent.read() == b""
    assert not control.path.exists()
    writer.close()
    other.close()


@pytest.mark.asyncio
async def test_only_so_many_are_served(control: Fixture) -> None:
    idle = [await asyncio.open_unix_connection(str(control.path)) for _ in range(CONNECTIONS_MAX)]
    assert await control.ask("brief") == {"error": "too many requests at once"}
    for _, writer in idle:
        writer.close()


@pytest.mark.asyncio
async def test_a_failed_action_is_reported_in_one_line(control: Fixture) -> None:
    assert await control.ask("fail") == {"error": "file: is not there"}
    assert "unknown action" in (await control.ask("other"))["error"]


STRANGER = """import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    try:
        connection.sendall(b'{"action": "brief"}\\n')
    except BrokenPipeError:
        pass
    print(connection.makefile().readline())
"""


@pytest.mark.asyncio
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_another_user_is_refused_even_where_the_mode_of_the_socket_lets_it_in() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "c.sock")
        server = ControlServer(path, {"brief": brief}, [])
        await server.start()
        try:
            assert path.stat().st_mode & 0o777 == 0o600
            os.chmod(directory, 0o711)
            path.chmod(0o666)
            command = ["/usr/bin/python3", "-c", STRANGER, str(path)]
            done = await asyncio.to_thread(
                lambda: subprocess.run(command, capture_output=True, user=65534, timeout=20 * slowness(), text=True)
            )
            assert "for the user that the broker runs as" in done.stdout, done.stderr
        finally:
            await server.stop()


@pytest.mark.asyncio
async def test_requests_that_are_half_sent_or_too_long_make_room_for_others(
    control: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.2)
    halves = [await asyncio.open_unix_connection(str(control.path)) for _ in range(CONNECTIONS_MAX)]
    for _, writer in halves:
        writer.write(b'{"action": ')
    for reader, writer in halves:
        assert await reader.read() == b""
        writer.close()
    reader, writer = await asyncio.open_unix_connection(str(control.path))
    writer.write(b" " * (REQUEST_BYTES_MAX + 2))
    assert b"the request is malformed" in await reader.readline()
    writer.close()
    assert await control.ask("brief") == {"result": {"brief": True}}
