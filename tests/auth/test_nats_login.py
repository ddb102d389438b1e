"""Log-ins of NATS clients by token, without credentials, and with the hashes of nats-server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import bcrypt
import pytest

from starlingmq import Broker
from starlingmq.auth import hashing
from starlingmq.auth.password_file import read_passwords
from starlingmq.auth.passwords import made_up
from starlingmq.config.settings import ConfigError, from_tree, refuse_open_listeners
from starlingmq.wire.reasons import Reason
from tests.embedding.conftest import Serve
from tests.patience import within

from .logins import knock

TOKEN = "a-token-of-nats-0123456789"
LISTENERS = ["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"]
RULES = """
default: deny
rules:
  - {allow: [publish, subscribe], users: [guest], topics: ["open/#"]}
  - {allow: [publish, subscribe], users: [ann]}
"""


async def say(broker: Broker, options: str, *commands: str) -> list[str]:
    """The server's answer after INFO, up to the PONG or the end."""
    url = urlsplit(broker.address("nats"))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    await reader.readline()
    writer.write("".join(f"{line}\r\n" for line in (f"CONNECT {options}", *commands, "PING")).encode())
    heard = []
    async with within(20):
        while (line := (await reader.readline()).decode().strip()) not in ("", "PONG"):
            heard.append(line)
    writer.close()
    return [*heard, line or "closed"]


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text(f"# of NATS\n{TOKEN}\n", encoding="utf-8")
    return str(path)


async def test_a_token_lets_nats_clients_in_and_nothing_else_does(serve: Serve, token_file: str) -> None:
    broker = await serve(listeners=LISTENERS, nats={"token_file": token_file}, auth={"failures": {"delay": 0}})
    assert await say(broker, f'{{"verbose":false,"auth_token":"{TOKEN}"}}') == ["PONG"]
    for options in ("{}", '{"auth_token":"wrong"}', f'{{"user":"x","pass":"{TOKEN}"}}'):
        assert await say(broker, options) == ["-ERR 'Authorization Violation'", "closed"]
    assert await knock(broker.address(), "", b"") == Reason.SUCCESS, "MQTT clients are asked for nothing by it"


async def test_clients_without_credentials_have_the_rights_of_no_auth_user(
    serve: Serve, tmp_path: Path, token_file: str
) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text(RULES, encoding="utf-8")
    broker = await serve(
        listeners=LISTENERS,
        nats={"no_auth_user": "guest", "token_file": token_file},
        auth={"acl": {"file": str(rules)}, "failures": {"delay": 0}},
    )
    assert await say(broker, '{"verbose":false}', "SUB open.1 1") == ["PONG"]
    refused = await say(broker, '{"verbose":false}', "SUB closed.1 1")
    assert refused == ["-ERR 'Permissions Violation for Subscription to \"closed.1\"'", "PONG"]
    assert await say(broker, '{"auth_token":"wrong"}') == ["-ERR 'Authorization Violation'", "closed"]


async def test_the_bcrypt_hashes_of_nats_server_are_read(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    path.write_text(f"ann:{hashed}\nbob:{hashed.replace('$2b$', '$2a$')}\n", encoding="utf-8")
    broker = await serve(auth={"password": {"file": str(path)}, "failures": {"delay": 0}})
    assert await knock(broker.address(), "ann", b"right") == Reason.SUCCESS
    assert await knock(broker.address(), "bob", b"right") == Reason.SUCCESS
    for name, password in (("ann", b"wrong"), ("ann", b"x" * 100), ("nobody", b"right")):
        assert await knock(broker.address(), name, password) == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_name_that_nobody_has_costs_a_hash_of_bcrypt_too() -> None:
    made = made_up("$2b$05$" + "a" * 53)
    assert made.startswith("$2b$05$") and len(made) == 60
    assert not hashing.fits(made, b"anything")
    bcrypt.checkpw(b"anything", made.encode())  # ValueError for what is no hash: nothing would be computed


@pytest.mark.parametrize("secret", ["$2b$05$short", "$2b$31$" + "a" * 53, "$2b$03$" + "a" * 53, "$2x$05$" + "a" * 53])
def test_a_bcrypt_hash_that_is_damaged_or_takes_minutes_is_refused(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"ann:{secret}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=":1: "):
        read_passwords(path)


def test_a_token_guards_a_nats_listener_of_the_network(token_file: str) -> None:
    listening = {"listeners": ["nats://0.0.0.0:4222"]}
    with pytest.raises(ConfigError, match="would accept anyone"):
        refuse_open_listeners(from_tree(listening), False)
    refuse_open_listeners(from_tree(listening | {"nats": {"token_file": token_file}}), False)
