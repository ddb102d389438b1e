"""``ctl`` asks a broker that runs for what the HTTP API has, and prints nothing that a terminal would obey."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from starlingmq import Broker
from starlingmq.admin.declared_actions import DECLARED
from starlingmq.cli import ctl_inspect
from starlingmq.cli.app import build_app
from starlingmq.cli.ctl import whole_app
from starlingmq.cli.ctl_ask import AskedBroker
from starlingmq.cli.declare import CommandError
from starlingmq.client import Client
from tests.cli.commands import run
from tests.cli.test_storage_commands import serving, serving_in_a_process
from tests.peer import Peer

OF_THE_API = {
    "GET /health/live": "health",
    "GET /health/ready": "health",
    "GET /metrics": "metrics",
    "GET /overview": "overview",
    "GET /log": "log",
    "GET /alarms": "alarms",
    "GET /connectors": "connectors",
    "POST /connectors/test": "connectors",
    "GET /session/message": "message",
    "GET /clients/search": "clients",
    "GET /activity": "top",
    "GET /sessions/search": "sessions",
    "GET /subscriptions/search": "subscriptions",
    "POST /publish": "publish",
    "GET /retained": "retained",
    "GET /retained/search": "retained",
    "GET /retained/message": "retained",
    "GET /nodes": "cluster members",
    "GET /groups": "groups",
    "GET /groups/search": "groups",
    "GET /drain": "drain",
    "POST /drain": "drain",
    "DELETE /drain": "drain",
    "POST /cluster/leave": "cluster leave",
    "POST /restart": "cluster restart",
    "GET /tail": "tail",
    "GET /trace": "trace",
    "POST /bans": "ban",
    "GET /log/search": "log",
    "GET /streams": "stream list",
    "POST /streams": "stream create",
    "DELETE /streams": "stream delete",
    "POST /streams/trim": "stream trim",
    "POST /users": "user add",
    "PUT /users": "user change",
    "PUT /rules": "rule set",
}
"""Further routes of the HTTP API, and the terminal command of each; ``top`` is a command of its own."""

OF_NATS_TOOLS = {"GET /varz", "GET /connz", "GET /subsz", "GET /jsz", "GET /healthz"}
"""For monitoring tools that know nats-server, not for a person on a terminal."""

OF_THE_DASHBOARD = {"GET /history", "GET /lists", "GET /login", "POST /login/start", "POST /login/finish"}
"""The points of its charts, and its logins by OpenID Connect, which need a browser."""


def commands(group: Any, before: str = "") -> dict[str, Any]:
    """All commands by their words."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        found |= commands(command, f"{before}{name} ") if hasattr(command, "commands") else {before + name: command}
    return found


def test_there_is_a_command_for_everything_the_api_has() -> None:
    async def document() -> Any:
        async with Broker(listeners=["http://127.0.0.1:0"]) as broker:
            url = broker.address("http")
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                return (await client.get("/api/v1/openapi.json")).json()

    paths = asyncio.run(document())["paths"]
    asked = {f"{method.upper()} {path.removeprefix('/api/v1')}" for path, told in paths.items() for method in told}
    declared = {one.http: one.ctl.split()[0].replace("/", " ") for one in DECLARED.values() if one.ctl}
    commands_of = declared | OF_THE_API
    declared |= {f"{one.http}/download": commands_of[one.http] for one in DECLARED.values() if one.download}
    assert asked == {*OF_THE_API, *declared} | OF_NATS_TOOLS | OF_THE_DASHBOARD
    there = commands(get_command(whole_app())) | {"top": get_command(build_app(["top"]))}
    assert {*OF_THE_API.values(), *declared.values()} <= set(there)


def test_every_command_of_ctl_has_json() -> None:
    for name, command in commands(get_command(whole_app())).items():
        assert any("--json" in parameter.opts for parameter in command.params), name


EMPTY = """\
clients -s stuck -> no client with --search 'stuck'
clients -> no client is connected
bans -> there are no bans
sessions --away -s stuck -> no session with --search 'stuck' and --away
subscriptions -s stuck --topic a/b -> no subscription with --search 'stuck' and --topic 'a/b'
retained x/# -> no retained message with FILTER 'x/#'
groups stuck --everywhere -> no queue group with prefix 'stuck'
users stuck -> no user with PART 'stuck'
settings stuck -> no setting with PART 'stuck'
links -> no link is set; bridges in the settings names those to other brokers"""
"""Commands, and the lines that they print for an empty list."""


class Ctl:
    """``starlingmq ctl`` in this process."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def __call__(self, *words: str) -> str:
        done = CliRunner().invoke(whole_app(), [*words, "--data-dir", str(self._data)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *words: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self(*words, "--json"))
        return found


def check_refusals(ctl: Ctl) -> None:
    """A request that opens no WebSocket is counted at its listener, by reason."""
    mqtt, web = ctl("listeners").splitlines()[-2:]
    assert mqtt.startswith("mqtt://127.0.0.1") and "bad_request" not in web
    port = urlsplit(web.split()[0]).port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=20) as stranger:
        stranger.sendall(b"GET /mqtt HTTP/1.0\r\n\r\n")
        assert b" 400 " in stranger.recv(4096)
    assert ctl("listeners").splitlines()[-1].endswith("bad_request 1")


def check_empty_lists(ctl: Ctl) -> None:
    for line in EMPTY.splitlines():
        asked, _, said = line.partition(" -> ")
        assert ctl(*asked.split()).splitlines()[0] == said


def check_sorted_lists(ctl: Ctl) -> None:
    """There are one retained message, one subscription and no group."""
    for listed, column in (("retained", "size"), ("subscriptions", "client_id")):
        found = ctl.json(listed, "--sort", column, "--descending")
        assert (found["total"], found["complete"], found["more"]) == (1, True, False)
    assert ctl.json("groups", "--everywhere", "--sort", "lag")["total"] == 0


@pytest.mark.slow
async def test_ctl_lists_and_changes_the_state_of_a_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ctl = Ctl(data)
    odd = "[red]\x1b[2Jodd"
    with serving_in_a_process(data, "--listen", "ws://127.0.0.1:0/mqtt") as broker:
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
        check_sorted_lists(ctl)
        ctl("unretain", "a/b")
        assert "no retained message" in ctl("retained")
        assert "was disconnected" in ctl("kick", odd)
        assert ctl.json("sessions", "--away")["more"] is False
        assert "ended" in ctl("end", odd)
        assert "is banned" in ctl("ban", "client", "evil", "-t", "10m")
        assert "evil" in ctl("bans")
        ctl("unban", "client", "evil")
        check_empty_lists(ctl)
        check_refusals(ctl)
        assert "data_dir" in ctl("config")
        assert " ok " in ctl("overview")
        first, *table = ctl("status").splitlines()
        assert first.startswith("HEALTHY: ") and " accepts clients; running for " in first
        assert table[0].split()[:2] == ["NODE", "READY"]
        command, node = ctl("version").splitlines()
        assert command.startswith("starlingmq ") and node.startswith("node ") and command.split()[1] in node
        assert "settings reloaded" in ctl("reload")
        assert " for 600 s" in ctl("log", "-n", "1000")
        assert "not a member of a cluster" in ctl("peers")
        assert "no queue groups" in ctl("groups", "--everywhere")
        assert ctl("trace", "--topic", "#", "-W", "0.1") == ""
        assert ctl("health") == "ok\n" and ctl.json("health")["reasons"] == []
        assert "starlingmq_clients_connected 0" in ctl("metrics", "starlingmq_clients")
        assert ctl.json("metrics", "starlingmq_build_info")["samples"]
        assert "done at" in ctl("stream", "create", "kept", "-t", "k/#", "--everywhere")
        assert "done at" in ctl("stream", "delete", "kept", "--everywhere")
        await one.disconnect()
        async with Client(broker.url, client_id="busy") as busy, Client(broker.url, client_id="idle"):
            following = asyncio.create_task(asyncio.to_thread(ctl, "tail", "live/#", "-C", "1"))
            while not following.done():  # it says nothing of having begun
                await busy.publish("live/1", "[red]\x1b[2J", qos=1)
                await asyncio.sleep(0.05)
            assert r"live/1 (QoS 1): [red]\x1b[2J" in await following
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


def test_on_a_terminal_each_alarm_has_its_remedy_and_page_uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    text, remedy = (
        "queue_full: 13,152 messages dropped since 04:40:33, none for 20 s",
        "find out whether the client is slow " * 3,
    )
    alarm = {
        "kind": "dropped",
        "subject": "queue_full",
        "severity": "warning",
        "nodes": ["n1"],
        "since": "",
        "text": text,
    }
    found = {"alarms": [alarm | {"next": remedy, "page": "PLAYBOOK.html#dropped-messages"}]}
    monkeypatch.setattr(AskedBroker, "ask", lambda *_, **__: found)
    piped = CliRunner().invoke(whole_app(), ["alarms"]).stdout
    assert len(piped.splitlines()) == 2 and "#dropped-messages" in piped and remedy.strip() in piped
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    with redirect_stdout(terminal):
        ctl_inspect.alarms()
    *table, title, what, page = terminal.getvalue().splitlines()
    assert all(len(line) <= 80 for line in table) and title == f"dropped queue_full: {text}"
    assert (what, page) == (f"  what to do: {remedy}", "  page: PLAYBOOK.html#dropped-messages")


@pytest.mark.slow
async def test_ctl_finds_what_is_wrong(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ctl = Ctl(data)
    with serving(data) as url:
        one = Client(url, client_id="away", clean_start=False, session_expiry=600)
        await one.connect()
        await one.subscribe("a/#", qos=1)
        await one.disconnect()
        for payload in ("first", "second"):
            ctl("publish", "a/b", payload, "-q", "1")
        assert ctl("message", "away") == "first" and ctl("message", "away", "1") == "second"
        assert ctl.json("message", "away")["topic"] == "a/b"
        assert ctl.json("alarms", "--history")["missing"] == []
        assert "nothing that ends is used" in ctl("certificates")
        assert "mqtt.max_qos" in ctl("settings", "max_qos") and "keep_alive" not in ctl("settings", "max_qos")
        assert ctl("set", "mqtt.max_qos", "1", "--check").rstrip().endswith("mqtt.max_qos 2 -> 1 (only checked)")
        done, kept = ctl("set", "mqtt.max_qos", "1", "--everywhere").rstrip().split("\n")
        assert done.endswith("mqtt.max_qos 2 -> 1 applied")
        assert kept.startswith("until the next reload or restart; to keep it, write mqtt: {max_qos: 1} to the settings")
        assert ctl("set", "mqtt.max_qos", "1").rstrip().endswith("mqtt.max_qos 1 (no difference)")
        assert ctl("may", "away", "publish", "a/b").startswith("allowed: there are no rules")
        assert ctl("rules") == "there are no rules (auth.acl.file, ctl rule set), so everything is allowed\n"
        assert ctl("connectors") == "no connector is set\n"


@pytest.mark.slow
async def test_a_client_that_acknowledges_nothing_is_seen_at_a_glance(tmp_path: Path) -> None:
    ctl = Ctl(tmp_path / "data")
    with serving(tmp_path / "data") as url:
        held = await Peer.connect(url, "held")
        await held.subscribe("a/#", qos=1)
        async with Client(url, client_id="busy") as publisher:
            for _ in range(3):
                await publisher.publish("a/1", b"x", qos=1)
            heading, *rows = ctl("clients").splitlines()
            assert all(title in heading for title in ("IN FLIGHT", "OLDEST UNACKED", "SLOW"))
            shown = {row.split()[0]: row.split()[-4:] for row in rows}
            assert shown["held"][0] == "3" and re.fullmatch(r"\d+s", shown["held"][1])
            assert shown["busy"] == ["0", "-", "0", "-"]
            words = ["top", "--sort", "inflight", "--once", "--json", "--data-dir", str(tmp_path / "data")]
            first, *_ = json.loads((await asyncio.to_thread(top, words)).stdout)["rows"]
            assert (first["client_id"], first["inflight"]) == ("held", 3)
        await held.close()


@pytest.mark.slow
async def test_a_session_shows_ten_of_each_list_unless_all_are_wanted(tmp_path: Path) -> None:
    ctl = Ctl(tmp_path / "data")
    with serving(tmp_path / "data", mqtt={"max_mqueue_len": 2000}) as url:
        away = Client(url, client_id="away", clean_start=False, session_expiry=600)
        await away.connect()
        for number in range(12):
            await away.subscribe(f"a/{number}", qos=1)
        await away.disconnect()
        async with Client(url) as publisher:
            for _ in range(1010):
                await publisher.publish("a/1", b"x", qos=1)

        def lines(title: str, *words: str) -> list[str]:
            told = [line[17:] for line in ctl("session", "away", *words).splitlines() if line.startswith(f"{title}  ")]
            return [line for line in told if "QoS" in line or "…" in line]

        assert len(lines("subscribes")) == len(lines("queued")) == 11
        assert (lines("subscribes")[-1], lines("queued")[-1]) == ("… and 2 more: --all", "… and 1,000 more: --all")
        assert lines("subscribes", "--all") == [f"a/{number} (QoS 1)" for number in range(12)]
        cut = "… and 10 more: not listed: a broker shows the first 1,000"
        assert len(lines("queued", "--all")) == 1001 and lines("queued", "--all")[-1] == cut
        facts = ctl("session", "away").splitlines()
        assert {"queued           1,010 messages", "expiry           600 s", "connected        no"} <= set(facts)
        for more in ((), ("--all",)):
            found: Any = ctl.json("session", "away", *more)
            assert (len(found["subscriptions"]), len(found["queue"])) == (12, 1000)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file or directory; name a file with a token"), ("", "does not contain one token")],
)
def test_a_token_file_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, words: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("STARLINGMQ_TOKEN_FILE", str(path))
    code, _, errors = run("ctl", "status", "--url", "http://127.0.0.1:9")
    assert code == 2 and errors.startswith(f"error: STARLINGMQ_TOKEN_FILE: {path} {words}")


def test_a_url_of_another_kind_is_not_taken_as_a_directory() -> None:
    code, _, errors = run("ctl", "status", "--url", "ftp://broker.example.org")
    assert (code, errors) == (
        2,
        "error: --url: ftp:// is not http:// or https://; give the URL of the broker's HTTP API\n",
    )


@pytest.mark.slow
def test_a_single_broker_says_that_it_is_no_member_of_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    alone = (
        "drain|drain --cancel|rebalance|cluster status|cluster members|cluster routes|cluster copies|cluster shares|"
        "cluster leave|cluster forget n2|cluster give-up n2|health --cluster"
    )
    with serving(data):
        for words in alone.split("|"):
            with pytest.raises(CommandError, match=r"^this broker is not a member of a cluster; "):
                CliRunner().invoke(whole_app(), [*words.split(), "--data-dir", str(data)], catch_exceptions=False)
