"""Operators create, change and delete users and rules of a serving broker, over HTTP; clients of MQTT feel it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from starlingmq import Broker
from starlingmq.admin.access_table import FILE
from starlingmq.config.settings import ConfigError
from starlingmq.wire.mqtt import Connack, Connect, Disconnect
from starlingmq.wire.reasons import Reason
from tests.patience import slowness
from tests.peer import Peer

from .conftest import BEARER, Ask, Join, Passwd, Serve

SECONDS = 60.0 * slowness()  # hashing takes long on a busy machine
OPEN: dict[str, Any] = {"failures": {"delay": 0, "limit": 0}}


@pytest.fixture
async def broker(serve: Serve, token_file: str, tmp_path: Path) -> Broker:
    """One without a password file, whose ``auth.methods`` asks for a login from the start."""
    auth = {"methods": ["scram", "password"], "api": {"token_file": token_file}, **OPEN}
    return await serve(auth=auth, node={"data_dir": str(tmp_path / "data")})


async def change(ask: Ask, broker: Broker, method: str, path: str, status: int = 200, **given: Any) -> Any:
    how = {"params": given} if method == "DELETE" else {"json": given}
    answer = await ask(broker, method, f"/api/v1{path}", headers=BEARER, timeout=SECONDS, **how)
    assert answer.status_code == status, answer.text
    return answer.json()


async def refused(broker: Broker, username: str, password: bytes) -> bool:
    peer = await Peer.open(broker.address())
    peer.send(Connect(5, "c", username=username, password=password))
    reason = (await peer.expect(Connack)).reason
    await peer.close()
    return reason == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_a_user_lives_from_its_creation_to_its_end(
    broker: Broker, ask: Ask, join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert await refused(broker, "ann", b"right")
    assert await change(ask, broker, "POST", "/users", name="ann", password="right") == {"revision": 1}
    await change(ask, broker, "POST", "/users", 409, name="ann", password="again")
    ann = await join(broker, "a", username="ann", password=b"right")
    listed = await change(ask, broker, "PUT", "/users", name="ann", api="viewer")
    assert listed == {"revision": 2}
    assert await ann.publish("t", qos=1) is not None, "only its rights at the API have changed"
    await change(ask, broker, "PUT", "/users", name="ann", password="other")
    assert (await ann.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    assert await refused(broker, "ann", b"right")
    ann = await join(broker, "a", username="ann", password=b"other")
    await change(ask, broker, "DELETE", "/users", name="ann")
    assert (await ann.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    assert await refused(broker, "ann", b"other")
    await change(ask, broker, "DELETE", "/users", 404, name="ann")
    told = [line.partition(" ")[2] for line in caplog.messages if "the user 'ann'" in line]
    lines = [line.removeprefix(f"on {broker.config.node.name} ") for line in told if "failed" not in line]
    assert lines == [
        "created the user 'ann' (API: none)",
        "changed the user 'ann' (API: viewer)",
        "changed the user 'ann' (API: keep)",
        "deleted the user 'ann'",
    ]
    assert "argon2" not in caplog.text and "scram-sha" not in caplog.text
    stored = (tmp_path / "data" / FILE).read_text()
    assert '"users":[]' in stored and (tmp_path / "data" / FILE).stat().st_mode & 0o777 == 0o600


async def test_a_user_of_the_api_has_its_rights_until_they_are_changed(broker: Broker, ask: Ask) -> None:
    await change(ask, broker, "POST", "/users", name="ann", password="right", api="operator")
    login: dict[str, Any] = {"auth": ("ann", "right"), "timeout": SECONDS}
    body = {"name": "ann", "api": "viewer"}
    assert (await ask(broker, "PUT", "/api/v1/users", json=body, **login)).status_code == 200
    assert (await ask(broker, "PUT", "/api/v1/users", json=body, **login)).status_code == 403
    users = (await ask(broker, "GET", "/api/v1/users", **login)).json()
    assert users["revision"] == 2
    assert users["users"] == [
        {"name": "ann", "stored": ["password", "scram"], "origin": "operator", "clients": 0, "api": "viewer"}
    ]
    for path in ("/users", "/config", "/rules", "/actions"):
        assert "$" not in (await ask(broker, "GET", f"/api/v1{path}", headers=BEARER)).text.replace("$SYS", "")
    await change(ask, broker, "PUT", "/users", name="ann", api="none")
    assert (await ask(broker, "GET", "/api/v1/users", **login)).status_code == 401


async def test_rules_apply_at_once_and_in_their_order(broker: Broker, ask: Ask, join: Join) -> None:
    await change(ask, broker, "POST", "/users", name="ann", password="right")
    ann = await join(broker, "a", username="ann", password=b"right")
    assert await ann.publish("t", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS
    await change(ask, broker, "PUT", "/rules", name="all", rule={"deny": "all"})
    assert (await ann.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED, "it denies to connect, too"
    rule = {"allow": ["connect", "publish"], "users": ["ann"], "topics": ["t"]}
    await change(ask, broker, "PUT", "/rules", name="ann", rule=rule, before="all")
    ann = await join(broker, "a", username="ann", password=b"right")
    assert await ann.publish("t", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS
    assert await ann.publish("u", qos=1) == Reason.NOT_AUTHORIZED
    listed = (await ask(broker, "GET", "/api/v1/rules", headers=BEARER)).json()
    assert [(one["number"], one["name"], one["decision"]) for one in listed["rules"]] == [
        (1, "ann", "allow"),
        (2, "all", "deny"),
    ]
    asked = {"client_id": "a", "topic": "u"}
    answer = (await ask(broker, "GET", "/api/v1/rules/test", headers=BEARER, params=asked)).json()
    assert answer["reason"] == "rule 'all', which an operator has created, decides"
    await change(ask, broker, "DELETE", "/rules", name="all")
    await change(ask, broker, "DELETE", "/rules", name="ann")
    assert await ann.publish("u", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS


async def test_two_operators_do_not_overwrite_each_other(broker: Broker, ask: Ask) -> None:
    await change(ask, broker, "PUT", "/rules", name="a", rule={"allow": "publish"}, revision=0)
    refusal = await change(ask, broker, "PUT", "/rules", 409, name="a", rule={"deny": "publish"}, revision=0)
    assert refusal == {"error": "users and rules have changed: revision 1, not 0"}
    made = [change(ask, broker, "PUT", "/rules", name=f"r{number}", rule={"allow": "publish"}) for number in range(5)]
    assert sorted(one["revision"] for one in await asyncio.gather(*made)) == [2, 3, 4, 5, 6]


async def test_a_user_of_the_file_precedes_and_is_not_changed(
    serve: Serve, ask: Ask, passwd: Passwd, token_file: str, tmp_path: Path
) -> None:
    auth = {"password": {"file": str(passwd(ann="right"))}, "api": {"token_file": token_file}, **OPEN}
    broker = await serve(auth=auth, node={"data_dir": str(tmp_path / "data")})
    for method in ("POST", "PUT", "DELETE"):
        more = {} if method == "DELETE" else {"password": "mine"}
        refusal = await change(ask, broker, method, "/users", 409, name="ann", **more)
        assert "starlingmq passwd" in refusal["error"]


async def test_the_first_user_of_an_open_broker_is_an_operator_and_nobody_is_cut_by_surprise(
    serve: Serve, ask: Ask, join: Join, tmp_path: Path
) -> None:
    broker = await serve(auth=OPEN, node={"data_dir": str(tmp_path / "data")})
    client = await join(broker, "a")
    new: dict[str, Any] = {"name": "ann", "password": "right"}
    assert "operator" in (await change(ask, broker, "POST", "/users", 409, **new))["error"]
    refusal = await change(ask, broker, "POST", "/users", 409, **new, api="operator")
    assert "clients are connected" in refusal["error"]
    await change(ask, broker, "POST", "/users", **new, api="operator", force=True)
    assert (await client.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    login: dict[str, Any] = {"auth": ("ann", "right"), "timeout": SECONDS}
    assert (await ask(broker, "GET", "/api/v1/users")).status_code == 401
    assert (await ask(broker, "DELETE", "/api/v1/users", params={"name": "ann"}, **login)).status_code == 409


async def test_a_broker_that_stores_nothing_refuses(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    assert (
        "node.data_dir" in (await change(ask, broker, "PUT", "/rules", 409, name="a", rule={"allow": "all"}))["error"]
    )


async def test_a_damaged_file_stops_the_start(serve: Serve, tmp_path: Path) -> None:
    data = {"data_dir": str(tmp_path / "data")}
    await (await serve(node=data)).stop()
    (tmp_path / "data" / FILE).write_bytes(b'{"users":')
    with pytest.raises(ConfigError, match="malformed"):
        await serve(node=data)
