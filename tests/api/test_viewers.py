"""Messages that wait for a client can be read; users who may look see no messages and change nothing."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from .conftest import BEARER, Ask, Join, Passwd, Serve
from .test_spellings import LOGIN_PATHS


async def test_messages_that_wait_can_be_looked_into(serve: Serve, join: Join, ask: Ask, tmp_path: Path) -> None:
    """In memory, and on disk after a restart."""
    node = {"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1}
    broker = await serve(node=node)
    away = await join(broker, "away", properties={0x11: 1000})
    await away.subscribe("plant/#", qos=1)
    kicked = await ask(broker, "DELETE", "/api/v1/client", params={"client_id": "away"})
    assert kicked.json()["done"] == "disconnected"
    publisher = await join(broker, "p")
    for number in range(3):
        await publisher.publish("plant/x", b"payload %d" % number, 1)
    for restarts in range(2):
        if restarts:
            await broker.stop()
            broker = await serve(node=node)
        for number in range(3):
            parameters = {"client_id": "away", "place": "queue", "number": number}
            told = (await ask(broker, "GET", "/api/v1/session/message", params=parameters)).json()
            assert (told["topic"], told["payload"]) == ("plant/x", f"payload {number}")
            assert base64.b64decode(told["payload_base64"]) == b"payload %d" % number
            assert (told["publisher"], told["qos"], told["shown"], told["size"]) == ("p", 1, 9, 9)
        absent = await ask(broker, "GET", "/api/v1/session/message", params={"client_id": "away", "number": 3})
        assert absent.status_code == 404


async def test_a_long_payload_is_cut_and_an_unacknowledged_message_is_found(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    reader = await join(broker, "reader")
    await reader.subscribe("big", qos=1)
    publisher = await join(broker, "p")
    await publisher.publish("big", b"\xff" * 100_000, 1)
    session = (await ask(broker, "GET", "/api/v1/session", params={"client_id": "reader"})).json()
    (entry,) = session["window"]
    parameters = {"client_id": "reader", "place": "window", "number": entry["packet_id"]}
    told = (await ask(broker, "GET", "/api/v1/session/message", params=parameters)).json()
    assert (told["payload"], told["size"], told["shown"]) == (None, 100_000, 65_536)


@pytest.fixture
def accounts(passwd: Passwd) -> dict[str, object]:
    return {
        "password": {"file": str(passwd(boss="secret-of-boss", guest="secret-of-guest"))},
        "api": {"users": ["boss"], "viewers": ["guest"]},
        "failures": {"delay": 0},
    }


async def test_a_viewer_looks_but_sees_no_message_and_changes_nothing(
    serve: Serve, ask: Ask, accounts: dict[str, object]
) -> None:
    broker = await serve(auth=accounts)
    boss, guest = ("boss", "secret-of-boss"), ("guest", "secret-of-guest")
    body = {"topic": "a", "payload": "x", "retain": True}
    assert (await ask(broker, "POST", "/api/v1/publish", json=body, auth=boss)).status_code == 200
    for path in ("/api/v1/overview", "/api/v1/clients", "/api/v1/retained", "/api/v1/config", "/metrics"):
        assert (await ask(broker, "GET", path, auth=guest)).status_code == 200, path
    for path in ("/api/v1/retained/message?topic=a", "/api/v1/session/message?client_id=c", "/api/v1/tail?filter=a"):
        refused = await ask(broker, "GET", path, auth=guest)
        assert refused.status_code == 403 and "auth.api.viewers" in refused.json()["error"], path
    document = (await ask(broker, "GET", "/api/v1/openapi.json", auth=guest)).json()
    changes = [
        (method, path) for path, one in document["paths"].items() for method in one if method not in ("get", "head")
    ]
    assert len(changes) > 10
    for method, path in changes:
        refused = await ask(broker, method.upper(), path, auth=guest)
        assert refused.status_code == (404 if path in LOGIN_PATHS else 403), (method, path)
    assert (await ask(broker, "GET", "/api/v1/overview", auth=("guest", "wrong"))).status_code == 401
    told = (await ask(broker, "GET", "/api/v1/retained/message", params={"topic": "a"}, auth=boss)).json()
    assert told["payload"] == "x", "nothing has changed"


async def test_users_of_the_file_and_of_clients_are_listed_with_their_rights(
    serve: Serve, join: Join, ask: Ask, accounts: dict[str, object]
) -> None:
    broker = await serve(auth={**accounts, "methods": ["password"], "allow_anonymous": True})
    await join(broker, "c1", username="boss", password=b"secret-of-boss")
    await join(broker, "c2", username="boss", password=b"secret-of-boss")
    await join(broker, "c3")
    guest = ("guest", "secret-of-guest")
    told = (await ask(broker, "GET", "/api/v1/users", auth=guest)).json()
    assert (told["methods"], told["anonymous"], told["total"]) == (["password"], 1, 2)
    assert told["users"] == [
        {"name": "boss", "stored": ["password", "scram"], "origin": "file", "clients": 2, "api": "operator"},
        {"name": "guest", "stored": ["password", "scram"], "origin": "file", "clients": 0, "api": "viewer"},
    ]
    found = (await ask(broker, "GET", "/api/v1/users", params={"q": "ues"}, auth=guest)).json()
    assert [one["name"] for one in found["users"]] == ["guest"]
    assert "$" not in str(told["users"]), "no hash of a password"


async def test_names_that_nobody_checked_are_listed_and_a_broken_file_is_an_answer(
    serve: Serve, join: Join, ask: Ask, passwd: Passwd, token_file: str
) -> None:
    broker = await serve()
    await join(broker, "c1", username="pump")
    told = (await ask(broker, "GET", "/api/v1/users")).json()
    assert (told["methods"], told["file"]) == ([], "")
    assert told["users"] == [{"name": "pump", "stored": [], "origin": "", "clients": 1, "api": ""}]
    file = Path(passwd(anna="secret"))
    checked = await serve(auth={"password": {"file": str(file)}, "api": {"token_file": token_file}})
    file.write_text("nonsense\n", encoding="utf-8")
    refused = await ask(checked, "GET", "/api/v1/users", headers=BEARER)
    assert refused.status_code == 409 and str(file) in refused.json()["error"]
