"""Every declared action, through every door, with every right and with none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import httpx
import pytest
from msgspec.structs import fields
from typer.main import get_command

import starlingmq.admin.all_actions  # noqa: F401  for DECLARED
from starlingmq import Broker
from starlingmq.admin.declared_actions import CONTENT, DECLARED, OPERATE, SORTED, VIEW, Declared, table_of, told
from starlingmq.admin.node_rpc import nothing_to_report, ours
from starlingmq.admin.typed_actions import as_text, is_required
from starlingmq.cli.ctl import whole_app
from starlingmq.cli.ctl_declared import ROWS, SHOWS, command_of
from tests.cli.commands import run

from .conftest import BEARER, TOKEN, Ask, Passwd, Serve

VALUES: Final[dict[str, Any]] = {
    "client_id": "nobody",
    "does": "publish",
    "kind": "client",
    "name": "n9",
    "password": "a-password",
    "path": "mqtt.max_qos",
    "rule": {"allow": "publish"},
    "topic": "a",
    "topics": ["a"],
    "value": "1",
}
"""Of required fields."""
DONE: Final = (200, 201, 202)
NOT_HERE: Final = (404, 409)
"""There is no such client, message or ban; the broker is no member of a cluster."""
NAMES: Final = sorted(DECLARED)


def arguments(declared: Declared) -> dict[str, Any]:
    return {one.name: VALUES[one.name] for one in fields(declared.request) if is_required(one) or one.name == "topic"}


async def over_http(ask: Ask, broker: Broker, declared: Declared, **login: Any) -> httpx.Response:
    method, path = declared.http.split()
    given = {"json": arguments(declared)} if declared.body else {"params": arguments(declared)}
    return await ask(broker, method, f"/api/v1{path}", **given, **login)


@pytest.fixture
async def broker(serve: Serve, passwd: Passwd, token_file: str, tmp_path: Path) -> Broker:
    """One with data, a token, an operator and a viewer."""
    auth = {
        "password": {"file": str(passwd(boss="secret-of-boss", guest="secret-of-guest"))},
        "api": {"users": ["boss"], "viewers": ["guest"], "token_file": token_file},
        "failures": {"delay": 0, "limit": 1000},
    }
    return await serve(auth=auth, node={"data_dir": str(tmp_path / "data")})


@pytest.mark.parametrize("name", NAMES)
def test_a_declaration_is_whole(name: str) -> None:
    whole_app()  # commands say how they show answers when they are loaded
    declared = DECLARED[name]
    changes = declared.http.split()[0] != "GET"
    assert (declared.right == OPERATE) == changes, "what changes something is for operators"
    assert declared.help and declared.tag
    assert not declared.body or changes
    told(declared)
    if declared.ctl:
        command_of(declared)
        assert [bool(declared.columns), bool(declared.said), name in SHOWS].count(True) in (1, 2)


async def test_without_a_login_nothing_is_done(broker: Broker, ask: Ask) -> None:
    for declared in DECLARED.values():
        for login in ({}, {"headers": {"authorization": "Bearer of-someone-else"}}):
            refused = await over_http(ask, broker, declared, **login)
            assert refused.status_code == 401, declared.name
            assert list(refused.json()) == ["error"], declared.name


async def test_a_viewer_may_view_and_nothing_else(broker: Broker, ask: Ask) -> None:
    for declared in DECLARED.values():
        answer = await over_http(ask, broker, declared, auth=("guest", "secret-of-guest"))
        assert (answer.status_code == 403) == (declared.right in (CONTENT, OPERATE)), (declared.name, answer.text)
        if declared.right == VIEW:
            assert answer.status_code in (*DONE, *NOT_HERE), (declared.name, answer.text)


@pytest.mark.parametrize("login", [{"headers": BEARER}, {"auth": ("boss", "secret-of-boss")}], ids=["token", "user"])
async def test_an_operator_gets_the_same_at_each_door_of_a_node(
    broker: Broker, ask: Ask, login: dict[str, Any]
) -> None:
    """Over HTTP, on the control socket and as the request of another node."""
    assert broker._admin is not None
    for declared in DECLARED.values():
        answer = await over_http(ask, broker, declared, **login)
        found = answer.json()
        assert answer.status_code in (*DONE, *NOT_HERE), (declared.name, answer.text)
        texts = {name: as_text(value) for name, value in arguments(declared).items()}
        try:
            again = await broker._admin.action_named(declared.name)(nothing_to_report, texts)
        except Exception as error:
            assert ours(error), declared.name
            assert declared.right == OPERATE or answer.status_code in NOT_HERE, (declared.name, str(error))
        else:
            assert answer.status_code in DONE and set(again) == set(found), declared.name
        if answer.status_code in DONE and declared.right != OPERATE and declared.name in broker._admin.node_rpc.actions:
            here = await broker._admin.node_rpc.here(declared.name, texts)
            assert declared.scope == SORTED or declared.merge is not None or set(here) <= {*found, "node"}, (
                declared.name
            )


def commands(group: Any, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        found |= commands(command, f"{before}{name}/") if hasattr(command, "commands") else {before + name: command}
    return found


def test_ctl_has_the_declared_commands_with_their_options() -> None:
    there = commands(get_command(whole_app()))
    for declared in DECLARED.values():
        if declared.ctl:
            path, *words = declared.ctl.split()
            options = {one.name for one in there[path].params}
            assert {*(word.rstrip("?") for word in words), "data_dir", "config", "json_"} <= options, path
            own = {one.name for one in fields(declared.request)} - {"cursor", "limit"}
            assert own <= options, path


@pytest.mark.slow
async def test_ctl_asks_at_both_doors(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("STARLINGMQ_TOKEN_FILE", str(tmp_path / "token"))
    doors = ("--data-dir", str(tmp_path / "data")), ("--url", broker.address("http"))
    for declared in DECLARED.values():
        if not declared.ctl:
            continue
        path, *names = declared.ctl.split()
        given = [VALUES[name] for name in names if not name.endswith("?")]
        words = [*path.split("/"), *given, "--json"]
        told_at = [await asyncio.to_thread(run, "ctl", *words, *door) for door in doors]
        codes = {code for code, _, _ in told_at}
        assert len(codes) == 1 and codes <= {0, 2}, (declared.name, told_at)
        if codes == {0}:
            first, second = (set(json.loads(output)) for _, output, _ in told_at)
            assert first | {"node"} == second | {"node"}, declared.name  # a data directory is that of one node
        else:
            assert all(errors.startswith("error: ") for _, _, errors in told_at), told_at
        table = await asyncio.to_thread(run, "ctl", *words[:-1], *doors[0])
        assert table[0] in (0, 2) and "Traceback" not in table[2], table


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("set", "Write it to the settings file, too."),
        ("end", "A connected client is disconnected."),
        ("cluster/forget", "Messages that wait for it are dropped. Run this on another node."),
        ("reload", "All files that they name are read again, too."),
    ],
)
def test_the_help_of_a_command_says_what_to_heed(path: str, hint: str) -> None:
    told = commands(get_command(whole_app()))[path].help
    assert " ".join(told.split()).partition(". ")[2].startswith(hint)


def test_all_nodes_and_one_of_them_exclude_each_other(tmp_path: Path) -> None:
    words = ("ctl", "set", "mqtt.max_qos", "1", "--node", "n1", "--everywhere", "--data-dir", str(tmp_path))
    code, _, errors = run(*words)
    assert (
        code == 2 and errors == "error: --everywhere is all nodes, and --node one of them: leave out one of the two\n"
    )


def test_columns_are_fields_of_the_entries() -> None:
    for declared in DECLARED.values():
        if declared.columns:
            key, columns = table_of(declared)
            assert columns and key in told(declared).__struct_fields__, declared.name
            (entry,) = get_args(get_type_hints(told(declared))[key])
            assert declared.name in ROWS or set(columns) <= set(entry.__struct_fields__), declared.name


def test_the_arguments_of_these_tests_are_needed() -> None:
    needed = {one.name for declared in DECLARED.values() for one in fields(declared.request) if is_required(one)}
    assert needed | {"does"} == set(VALUES)
