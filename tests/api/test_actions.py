"""The log of actions: each change by an operator leaves a line and an entry at every door, and nothing else does."""

from __future__ import annotations

import asyncio
import getpass
import json
import logging
import os
import pkgutil
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any, Final

import pytest
from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from starlingmq import Broker, admin
from starlingmq.admin import action_log
from starlingmq.admin.action_log import FILE, ActionLog, ActionSearch, NodeActions, append, merged
from starlingmq.admin.declared_actions import DECLARATIONS, NODE, OPERATE, action, bound
from starlingmq.admin.node_rpc import Answers, NodeRpc
from starlingmq.admin.noted_actions import ActionEntry
from starlingmq.admin.typed_actions import NoArguments
from starlingmq.config.settings import load_config
from starlingmq.net.control_socket import Report
from starlingmq.net.operators import Operator, acting
from tests.cli.commands import run

from .conftest import BEARER, Ask, Passwd, Serve

ACTIONS: Final = "/api/v1/actions"
CHANGES_NOTHING: Final = {
    "bans.said": "makes an entry for all nodes, which bans.hear applies",
    "groups": "a list",
    "history": "a list",
    "nats.request": "an answer",
    "peers": "a list",
    "stream.access": "an answer",
    "stream.commit": "the progress of a consumer, with each batch: not by an operator",
    "stream.hear": "definitions of other nodes, which an operator made there",
    "stream.list": "a list",
    "stream.nodes": "a list",
    "stream.show": "a list",
    "stream.word": "makes an entry for all nodes, which stream.hear applies",
    "trace.begin": "a trace shows messages",
    "trace.end": "a trace shows messages",
    "trace.next": "a trace shows messages",
    "watch.close": "a part of a trace",
    "watch.look": "a part of a trace",
    "watch.open": "a part of a trace",
}
"""Actions that only the control socket and other nodes may ask for, and that no operator changes something with."""
UNDECLARED: Final = {"health", "metrics.text"}


def told(kind: type) -> tuple[FieldInfo, ...]:
    return fields(kind) if issubclass(kind, Struct) else ()


class Doing(Struct, frozen=True):
    done: bool = True


async def do(self: Any, report: Report, request: NoArguments) -> Doing:
    """Do it."""
    return Doing()


@pytest.fixture
async def broker(serve: Serve, passwd: Passwd, token_file: str, tmp_path: Path) -> Broker:
    auth = {
        "password": {"file": str(passwd(guest="secret-of-guest"))},
        "api": {"viewers": ["guest"], "token_file": token_file},
        "failures": {"delay": 0, "limit": 1000},
    }
    return await serve(auth=auth, node={"data_dir": str(tmp_path / "data"), "name": "n1"})


async def listed(ask: Ask, broker: Broker, **filters: Any) -> list[dict[str, Any]]:
    """The first ones first."""
    answer = await ask(broker, "GET", ACTIONS, params=filters, headers=BEARER)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["actions"]
    return found[::-1]


# Declarations


@pytest.mark.parametrize(
    ("http", "more"),
    [
        ("POST /bans", {}),
        ("GET /bans", {"audit": "did it"}),
        ("POST /bans", {"audit": "did it", "noted_by": "another"}),
        ("", {"audit": "did it", "noted_by": "another"}),
    ],
)
def test_a_change_without_words_for_the_log_cannot_be_declared(http: str, more: dict[str, str]) -> None:
    with pytest.raises(TypeError, match=r"^it: "):
        action("it", http, NODE, **more)(do)


def test_a_change_whose_entry_nothing_takes_cannot_be_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starlingmq.admin.declared_actions.DECLARATIONS", [])
    kind = type("Doer", (), {"it": action("it", audit="did it")(do)})
    with pytest.raises(AssertionError, match="it changes something"):
        bound(kind())


def test_each_declared_change_says_what_it_has_done() -> None:
    for module in pkgutil.iter_modules(admin.__path__, "starlingmq.admin."):
        import_module(module.name)
    noted = {one.name for one in DECLARATIONS if one.audit}
    for one in DECLARATIONS:
        if one.http:
            assert (one.right == OPERATE) == bool(one.audit or one.noted_by), one.name
        assert not one.noted_by or one.noted_by in noted, one.name
        known = {field.name for kind in (one.request, one.reply) if isinstance(kind, type) for field in told(kind)}
        assert {name for _, name, _, _ in Formatter().parse(one.audit) if name} <= known, one.name
    silent = {one.name for one in DECLARATIONS if not one.http and one.right != OPERATE}
    assert silent == set(CHANGES_NOTHING), "say of each whether it changes something"


async def test_the_control_socket_offers_no_other_change(broker: Broker) -> None:
    assert broker._control is not None
    declared = {one.name for one in DECLARATIONS}
    assert set(broker._control._actions) - declared - {"cluster.status"} == UNDECLARED


# Entries


async def test_each_change_on_the_control_socket_has_an_entry(
    broker: Broker, ask: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "starlingmq.admin")
    door = ("--data-dir", str(tmp_path / "data"))
    for words in (
        ("ctl", "storage", "check"),
        ("ctl", "storage", "compact"),
        ("backup", str(tmp_path / "copy")),
        ("ctl", "publish", "a/b", "hello"),
        ("ctl", "stream", "create", "s", "--topic", "a/#"),
        ("ctl", "set", "mqtt.max_qos", "1"),
        ("ctl", "drain"),
        ("ctl", "cluster", "forget", "n9"),
    ):
        code, _, errors = await asyncio.to_thread(run, *words, *door)
        assert code == (2 if words[1] in ("drain", "cluster") else 0), (words, errors)
    found = await listed(ask, broker)
    assert [(one["action"], one["outcome"]) for one in found] == [
        ("storage.check", "begun"),
        ("storage.check", "done"),
        ("storage.compact", "begun"),
        ("storage.compact", "done"),
        ("backup", "begun"),
        ("backup", "done"),
        ("publish", "done"),
        ("stream.create", "done"),
        ("settings.change", "done"),
    ]
    assert {one["by"] for one in found} == {f"system user {getpass.getuser()} on n1"}
    assert {one["address"] for one in found} == {"control socket"}
    assert (found[-1]["before"], found[-1]["after"]) == ("2", "1")
    lines = [record.getMessage() for record in caplog.records if record.name == "starlingmq.admin"]
    assert f"system user {getpass.getuser()} on n1 published to 'a/b'" in lines
    assert not any("hello" in line for line in lines)


async def test_an_action_over_http_names_operator_and_address_and_outlives_the_broker(
    serve: Serve, ask: Ask, token_file: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "auth": {"api": {"token_file": token_file}},
        "node": {"data_dir": str(tmp_path / "data"), "name": "n1"},
    }
    broker = await serve(**settings)
    body = {"kind": "client", "name": "evil", "seconds": 600, "reason": "too loud"}
    for seconds in (600, 1200):
        await ask(broker, "POST", "/api/v1/bans", json=body | {"seconds": seconds}, headers=BEARER)
    await broker.stop()
    broker = await serve(**settings)
    first, second = await listed(ask, broker)
    assert (first["by"], first["address"], first["nodes"]) == ("token on n1", "127.0.0.1", ["n1"])
    assert first["what"] == "banned the client 'evil' for 600 s" and first["client_id"] == "evil"
    assert first["before"] == "" and first["after"].endswith(": too loud")
    assert second["before"] == first["after"] != second["after"]
    assert await listed(ask, broker, client="evil") == [first, second]
    assert await listed(ask, broker, client="evi") == []
    assert await listed(ask, broker, text="FOR 1200 S", operator="token") == [second]
    assert await listed(ask, broker, operator="system user") == []
    assert await listed(ask, broker, until=second["time"]) == [first]
    assert await listed(ask, broker, since=second["time"], limit=5) == [second]
    assert await listed(ask, broker, since="1h") == [first, second] and await listed(ask, broker, until="1h") == []
    refused = await ask(broker, "GET", ACTIONS, params={"since": "yesterday"}, headers=BEARER)
    assert refused.status_code == 400 and refused.json()["error"].startswith("since: must be a time")


async def test_requests_that_are_refused_leave_no_entry(broker: Broker, ask: Ask, tmp_path: Path) -> None:
    change = {"json": {"path": "mqtt.max_qos", "value": "1"}}
    for given, status in (
        ({"headers": {"authorization": "Bearer of-someone-else"}}, 401),
        ({"auth": ("guest", "wrong")}, 401),
        ({}, 401),
    ):
        assert (await ask(broker, "PUT", "/api/v1/settings", **change, **given)).status_code == status
    checked = {"json": {**change["json"], "only_check": True}}
    assert (await ask(broker, "PUT", "/api/v1/settings", **checked, headers=BEARER)).status_code == 200
    malformed = {"json": {"path": "mqtt.max_qos"}}
    assert (await ask(broker, "PUT", "/api/v1/settings", **malformed, headers=BEARER)).status_code == 400
    assert await listed(ask, broker) == []
    assert not (tmp_path / "data" / FILE).exists()
    broken = {"json": {"path": "mqtt.max_qos", "value": "9"}}
    assert (await ask(broker, "PUT", "/api/v1/settings", **broken, headers=BEARER)).status_code == 400
    (failed,) = await listed(ask, broker)
    assert failed["what"] == "asked for settings.change 'mqtt.max_qos'" and failed["outcome"].startswith("failed: ")


async def test_a_reload_tells_settings_rules_and_users_without_secrets(
    serve: Serve, ask: Ask, passwd: Passwd, token_file: str, tmp_path: Path
) -> None:
    (tmp_path / "rules").write_text("rules:\n- {allow: publish, topics: [a]}\n- {deny: publish}\n")
    settings = [
        f"auth.password.file={passwd(ann='old-of-ann', eve='old-of-eve')}",
        f"auth.acl.file={tmp_path / 'rules'}",
        f"auth.api.token_file={token_file}",
        "node.shutdown_timeout=100ms",
        "cluster.secret=an-old-secret-of-24-bytes",
        "listeners=[mqtt://127.0.0.1:0, http://127.0.0.1:0]",
    ]
    tree = load_config(None, settings, {})
    async with Broker(tree) as broker:
        changed = [*settings, "mqtt.max_qos=1", "cluster.secret=another-secret-of-24-bytes"]
        broker.load = lambda: load_config(None, changed, {})
        passwd(ann="new-of-ann", bob="new-of-bob")
        (tmp_path / "rules").write_text("rules:\n- {allow: publish, topics: [b]}\n- {deny: publish}\n")
        answer = await ask(broker, "POST", "/api/v1/reload", headers=BEARER)
        assert answer.status_code == 200, answer.text
        (found,) = await listed(ask, broker)
        (told,) = answer.json()["nodes"].values()
    assert told["before"] == {
        "mqtt.max_qos": "2",
        "cluster.secret": '"***"',
        "rules": '{"allow":"publish","topics":["a"]}',
        "users": "ann, eve",
    }
    assert told["after"]["users"] == "ann, bob" and told["after"]["mqtt.max_qos"] == "1"
    assert found["what"] == "reloaded the settings" and "users: ann, eve" in found["before"]
    assert "secret-of" not in json.dumps(found) and "$argon2" not in json.dumps(found)


async def test_the_operator_is_known_at_the_node_that_acts() -> None:
    seen = []

    async def act(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
        seen.append(acting.get())
        return {}

    one, two = NodeRpc("one", {}, None), NodeRpc("two", {"it": act}, None)
    who = Operator("boss on one", "192.0.2.1", "request")

    class Cluster:
        def names(self) -> dict[int, str]:
            return {1: "one", 2: "two"}

        state = object()

        async def ask(self, number: int, question: bytes, seconds: float) -> tuple[bytes, str]:
            return await two._answer(question), ""

    one._cluster = Cluster()  # type: ignore[assignment]
    token = acting.set(who)
    await one.at("two", "it", {})
    acting.reset(token)
    await two._answer(b'{"action": "it"}')
    assert seen == [who, Operator()], "a node of an earlier version names nobody"


# The file


def entry(number: int, what: str = "did it", **more: Any) -> ActionEntry:
    return ActionEntry(float(number), "boss on n1", "192.0.2.1", more.pop("request", ""), "it", what, "done", **more)


async def search(log: ActionLog, **wanted: Any) -> NodeActions:
    return await log.search(ActionSearch(until="2100-01-01", **wanted))


async def test_the_files_stay_bounded_and_have_the_last_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_log, "FILE_BYTES_MAX", 2000)
    log = ActionLog(tmp_path)
    for number in range(100):
        log.note(entry(number), False)
        await log.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, f"{FILE}.1"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    found = [one.at for one in (await search(ActionLog(tmp_path), limit=1000)).actions]
    assert found == [float(number) for number in range(99, 99 - len(found), -1)] and len(found) > 20
    few = await search(log, limit=3)
    assert [one.at for one in few.actions] == [99.0, 98.0, 97.0] and few.more
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


async def test_half_an_entry_of_a_crash_costs_no_other(tmp_path: Path) -> None:
    log = ActionLog(tmp_path)
    log.note(entry(1), False)
    await log.stop()
    whole = (tmp_path / FILE).read_bytes()
    for end in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole + whole[:end])
        append(tmp_path / FILE, [whole.rstrip(b"\n")])
        found = (await search(ActionLog(tmp_path))).actions
        assert [one.at for one in found] == [1.0] * (3 if end == len(whole) - 1 else 2)


async def test_many_entries_that_wait_for_a_full_disk_do_not_cost_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ActionLog(tmp_path)
    log.note(entry(1), False)
    await log.stop()
    waiting = [(tmp_path / FILE).read_bytes().rstrip(b"\n")] * 10
    monkeypatch.setattr(action_log, "FILE_BYTES_MAX", 5 * len(waiting[0]))
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _fail)
        for _ in range(3):
            with pytest.raises(OSError, match="full"):
                append(tmp_path / FILE, waiting)
    assert [one.at for one in (await search(ActionLog(tmp_path))).actions] == [1.0]


def _fail(handle: int) -> None:
    raise OSError("full")


@pytest.mark.parametrize("damage", [b"\xff", b"\xc3", b"\x00", b'"', b"[" * 100_000])
async def test_a_damaged_entry_costs_no_other(tmp_path: Path, damage: bytes) -> None:
    log = ActionLog(tmp_path)
    for number in (1, 2, 3):
        log.note(entry(number), False)
    await log.stop()
    lines = (tmp_path / FILE).read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"by":"', b'"by":"' + damage, 1)
    (tmp_path / FILE).write_bytes(b"\n".join(lines))
    assert [one.at for one in (await search(ActionLog(tmp_path))).actions][-1] == 1.0


async def test_a_failing_disk_stops_no_action_and_loses_no_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    log = ActionLog(tmp_path)
    log.note(entry(1), False)
    await log.stop()
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.getMessage().endswith(f"{tmp_path / FILE}: Is a directory")
    (tmp_path / FILE).rmdir()
    assert [one.at for one in (await search(log)).actions] == [1.0], "it waits in memory"
    log.note(entry(2), False)
    await log.stop()
    assert [one.at for one in (await search(ActionLog(tmp_path))).actions] == [2.0, 1.0]


async def test_memory_is_bounded_while_nothing_can_be_stored() -> None:
    log = ActionLog(None)
    for number in range(2500):
        log.note(entry(number), False)
    found = (await search(log, limit=1000)).actions
    assert len(found) == len(log._waiting) == action_log.WAITING_MAX and found[0].at == 2499.0


async def test_what_comes_often_is_one_entry_a_minute() -> None:
    log = ActionLog(None)
    for number in range(200):
        log.note(entry(number, f"published to '{number}'"), True)
    log.note(entry(199, "did something else"), False)
    found = (await search(log)).actions[::-1]
    assert [(one.what, one.count) for one in found] == [
        ("published to '0'", 1),
        ("published to '59'", 59),
        ("published to '60'", 1),
        ("published to '119'", 59),
        ("published to '120'", 1),
        ("published to '179'", 59),
        ("published to '180'", 1),
        ("did something else", 1),
        ("published to '199'", 19),
    ]


def test_nodes_that_did_the_same_for_a_request_are_in_one_entry() -> None:
    answers = Answers(
        {
            "n1": NodeActions([entry(30, request="c"), entry(10, request="a")], False),
            "n2": NodeActions([entry(20, request="b"), entry(11, request="a"), entry(9, "other", request="a")], False),
        },
        [],
    )
    found = merged(NodeRpc("n1", {}, None), answers, ActionSearch(limit=4))
    assert [(one.nodes, one.what) for one in found.actions] == [
        (["n1"], "did it"),
        (["n2"], "did it"),
        (["n1", "n2"], "did it"),
        (["n2"], "other"),
    ]
    assert not found.more
    few = merged(NodeRpc("n1", {}, None), answers, ActionSearch(limit=2))
    assert len(few.actions) == 2 and few.more


async def test_a_download_has_the_list_as_lines(broker: Broker, ask: Ask) -> None:
    for topic in ("a", "b"):
        answer = await ask(broker, "POST", "/api/v1/publish", json={"topic": topic}, headers=BEARER)
        assert answer.status_code == 201 or answer.status_code == 200
    answer = await ask(broker, "GET", f"{ACTIONS}/download", params={"text": "'a'"}, headers=BEARER)
    assert answer.headers["content-disposition"] == 'attachment; filename="actions.jsonl"'
    (line,) = answer.text.splitlines()
    assert json.loads(line) == (await listed(ask, broker, text="'a'"))[0]
    assert (await ask(broker, "GET", f"{ACTIONS}/download")).status_code == 401


async def test_ctl_lists_actions_the_last_ones_last(broker: Broker, ask: Ask, tmp_path: Path) -> None:
    for value in ("1", "2"):
        change = {"path": "mqtt.max_qos", "value": value}
        assert (await ask(broker, "PUT", "/api/v1/settings", json=change, headers=BEARER)).status_code == 200
    door = ("--data-dir", str(tmp_path / "data"))
    code, output, _ = await asyncio.to_thread(run, "ctl", "actions", "-n", "5", *door)
    lines = output.decode().splitlines()
    assert code == 0 and [line.rpartition("  done")[0].rpartition("  ")[2] for line in lines[1:]] == [
        "changed mqtt.max_qos from 2 to 1",
        "changed mqtt.max_qos from 1 to 2",
    ]
    code, output, _ = await asyncio.to_thread(run, "ctl", "actions", "--client", "eve", *door)
    assert (code, output) == (0, b"no action with --client 'eve'\n")
