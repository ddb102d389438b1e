"""``ctl`` asks a broker that runs for what the HTTP API has, and prints nothing that a terminal would obey."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from starlingmq.cli.app import build_app
from starlingmq.cli.ctl import app
from starlingmq.client import Client
from tests.cli.test_storage_commands import serving


class Ctl:
    """``starlingmq ctl`` in this process."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def __call__(self, *words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--data-dir", str(self._data)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *words: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self(*words, "--json"))
        return found


@pytest.mark.slow
async def test_what_there_is_and_what_is_done_to_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ctl = Ctl(data)
    odd = "[red]\x1b[2Jodd"
    with serving(data) as broker:
        one = Client(broker.url, client_id=odd, clean_start=False, session_expiry=600)
        await one.connect()
        await one.subscribe("a/#", qos=1)
        for listed, key in (("clients", "clients"), ("sessions", "sessions"), ("subscriptions", "subscriptions")):
            shown = ctl(listed)
            assert r"[red]\x1b[2Jodd" in shown and "\x1b[2J" not in shown
            entries = ctl.json(listed)[key]
            assert isinstance(entries, list) and [entry["client_id"] for entry in entries] == [odd]
        assert "a/#" in ctl("session", odd)
        assert "published to 1 receivers" in ctl("publish", "a/b", "kept", "-q", "1", "--retain")
        assert "a/b" in ctl("retained")
        assert ctl("retained", "a/b", "--payload") == "kept"
        ctl("unretain", "a/b")
        assert "nothing is retained" in ctl("retained")
        assert "is disconnected" in ctl("kick", odd)
        assert ctl.json("sessions", "--away")["more"] is False
        assert "ended" in ctl("end", odd)
        assert "is banned" in ctl("ban", "client", "evil", "-t", "10m")
        assert "evil" in ctl("bans")
        ctl("unban", "client", "evil")
        assert "nobody is banned" in ctl("bans")
        assert "mqtt://127.0.0.1" in ctl("listeners")
        assert "data_dir" in ctl("config")
        assert " ok " in ctl("overview")
        assert "settings are read" in ctl("reload")
        assert "banned for 600 s" in ctl("log", "-n", "1000")
        assert "no member of a cluster" in ctl("links")
        assert "no queue groups" in ctl("groups", "--everywhere")
        assert ctl("trace", "--topic", "#", "-W", "0.1") == ""
        assert "done at" in ctl("stream", "create", "kept", "-t", "k/#", "--everywhere")
        assert "done at" in ctl("stream", "delete", "kept", "--everywhere")
        await one.disconnect()
        async with Client(broker.url, client_id="busy") as busy, Client(broker.url, client_id="idle"):
            publishing = asyncio.create_task(publish(busy))
            for view, first in (("clients", "busy"), ("topics", "a/b")):
                words = ["top", "--view", view, "--once", "--json", "--data-dir", str(data)]
                told = await asyncio.to_thread(top, words)
                found = json.loads(told.stdout)
                assert found["missing"] == [] and first in found["rows"][0].values(), told.output
            publishing.cancel()
            await asyncio.wait([publishing])


def top(words: list[str]) -> Result:
    return CliRunner().invoke(build_app(["top"]), words, catch_exceptions=False)


async def publish(client: Client) -> None:
    while True:
        await client.publish("a/b", b"x", qos=1)
        await asyncio.sleep(0.01)
