"""nats-server.conf: its text, its options, and rights that are those of a real nats-server where one is installed."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nats
from starlingmq.auth.password_file import read_passwords
from starlingmq.cli.local_cluster import free_ports
from starlingmq.config.settings import Config, from_tree
from starlingmq.config.tree_builder import read_yaml, settings
from starlingmq.migrate.described import Description, MigrationError
from starlingmq.migrate.nats_conf import NO_EQUIVALENT, NOT_NEEDED, READ, SETTINGS, read_nats
from starlingmq.migrate.nats_text import Placed, parse_nats
from starlingmq.migrate.written_settings import rules_tree, settings_tree
from tests.cli.commands import run
from tests.client.brokers import ended

from .brokers import migrate, starlingmq

SERVER = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
NKEY = "UAZ4TVB4KUO56IIR7WIQJXHGEPIEBPI4PIYMP5CVAQUDUR2AL3OKJB7H"
BCRYPT = "$2a$04$hnCycWW9B8wzNw.YypGktezUuoCRcWivz6SpWbtybMnfFqe7FsbUW"


def parsed(text: str, environment: dict[str, str] | None = None, **files: str) -> dict[str, Any]:
    def read(path: Path) -> str:
        return files[path.stem]

    return {key: plain(found) for key, found in parse_nats(text, Path("n.conf"), environment or {}, read).items()}


def plain(found: Placed) -> Any:
    if isinstance(found.value, dict):
        return {key: plain(each) for key, each in found.value.items()}
    return [plain(each) for each in found.value] if isinstance(found.value, list) else found.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a = 1", 1),
        ("a: 1", 1),
        ("a 1", 1),
        ("a:1,b:2", 1),
        ("a=1; b=2", 1),
        ("{a: 1}", 1),
        ('{"a": 1, "b": [1, {"c": true}]}', 1),
        ("a: 8k", 8000),
        ("a: 8kb", 8192),
        ("a: 2MB # comment", 2 * 1024**2),
        ("a: 1GiB", 1024**3),
        ("a: -1", -1),
        ("a: 1.5", 1.5),
        ("a: yes", True),
        ("a: Off", False),
        ("a: 10s // comment", "10s"),
        ("a: nats://host:4222", "nats://host:4222"),
        ('a: "x # \\"y\\"\\n\\x41"', 'x # "y"\nA'),
        ("a: 'x \\n'", "x \\n"),
        ("a: [1, 2 3\n4]", [1, 2, 3, 4]),
        ("a {b: {c: [x, y]}}", {"b": {"c": ["x", "y"]}}),
        ("a\n{\nb: 1\n}\n", {"b": 1}),
        ("a: (\nline 1\n line 2\n)\n", "line 1\n line 2"),
        (f"a: {BCRYPT}", BCRYPT),
        ("x: 7\na: {b: $x}", {"b": 7}),
        ("x: [1, 2]\na: $x", [1, 2]),
        ("a: $OUTSIDE", 5),
        ("include 'other.conf'", "from other"),
        ("b: 1\ninclude other.conf\n", "from other"),
    ],
)
def test_every_form_of_the_text_is_read(text: str, value: object) -> None:
    assert parsed(text, {"OUTSIDE": "5"}, other="a: 'from other'")["a"] == value


def test_a_variable_is_no_option_and_one_that_is_missing_is_named_with_its_line() -> None:
    assert parsed("SECRET: s3\na: $SECRET") == {"a": "s3"}
    with pytest.raises(MigrationError, match=r"^n\.conf:2: the variable NONE is not set"):
        parsed("b: 1\na: $NONE")


@given(st.text(alphabet="ab1{}[]()=:,;\"'#/$ \n\\", max_size=60))
def test_any_text_gives_a_map_or_one_line_with_its_place(text: str) -> None:
    try:
        parsed(text)
    except MigrationError as error:
        assert str(error).startswith("n.conf:") and "\n" not in str(error)


def read(tmp_path: Path, text: str) -> Description:
    path = tmp_path / "nats.conf"
    path.write_text(text, encoding="utf-8")
    return read_nats(path, {})


def tree_of(found: Description, tmp_path: Path) -> dict[str, Any]:
    tree = settings_tree(found, tmp_path, ipv6=False)
    from_tree(tree)
    return tree


def test_every_option_has_one_outcome_and_every_setting_exists() -> None:
    assert set(SETTINGS.values()) <= {setting.path for setting in settings(Config)}
    assert not set(NOT_NEEDED) & {*SETTINGS, *READ, *NO_EQUIVALENT}
    assert set(READ) & set(NO_EQUIVALENT) == {"accounts", "operator"}  # they also close the broker


@pytest.mark.parametrize("option", sorted(NO_EQUIVALENT))
def test_an_option_without_equivalent_is_named_with_its_place_and_the_remedy(option: str, tmp_path: Path) -> None:
    (line,) = read(tmp_path, f"\n{option} {{x: 1}}\n").attention
    assert (line.option, line.where, line.remedy) == (option, f"{tmp_path}/nats.conf:2", NO_EQUIVALENT[option])


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("max_payload: 2MB", "nats.max_payload", 2 * 1024**2),
        ("max_connections: 100", "limits.max_connections", 100),
        ("max_subscriptions: -1", "limits.subscriptions_per_client", 0),
        ("max_pending: 1MB", "limits.queue_bytes", 1024**2),
        ("ping_interval: '2m30s'", "nats.ping_interval", 150.0),
        ("ping_interval: 20", "nats.ping_interval", 20.0),
        ("lame_duck_duration: 500ms", "nats.lame_duck_duration", 0.5),
        ("server_name: n1", "node.name", "n1"),
        ("", "auth.allow_anonymous", True),
        ("accounts {A {users: [{user: a, password: b}]}}", "auth.allow_anonymous", False),
        ("authorization {token: 0123456789abcdef}", "auth.allow_anonymous", False),
        ("mqtt {port: 1883, max_ack_pending: 50}", "mqtt.max_inflight", 50),
        (f"authorization {{users: [{{nkey: {NKEY}}}]}}", "nats.nkeys", [NKEY]),
        ("client_advertise: 'a.example:4222'", "nats.connect_urls", ["a.example:4222"]),
    ],
)
def test_an_option_becomes_a_setting(text: str, path: str, value: object, tmp_path: Path) -> None:
    tree: Any = tree_of(read(tmp_path, text), tmp_path)
    for key in path.split("."):
        tree = tree[key]
    assert tree == value


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("", ["nats://0.0.0.0:4222"]),
        ("listen: 127.0.0.1:4223", ["nats://127.0.0.1:4223"]),
        ("listen: 4224", ["nats://0.0.0.0:4224"]),
        ("host: localhost\nport: 4225", ["nats://localhost:4225"]),
        (
            "websocket {port: 8443, no_tls: true, allowed_origins: [https://a]}",
            ["nats://0.0.0.0:4222", {"url": "nats+ws://0.0.0.0:8443/", "origins": ["https://a"]}],
        ),
        ("mqtt {listen: '127.0.0.1:1883'}", ["nats://0.0.0.0:4222", "mqtt://127.0.0.1:1883"]),
        ("http: localhost:8222", ["nats://0.0.0.0:4222", "http://localhost:8222"]),
        (
            "listen: 127.0.0.1:4222\ntls {cert_file: /c, key_file: /k, ca_file: /a, verify: true}",
            [
                {
                    "url": "tls://127.0.0.1:4222",
                    "tls": {"cert": "/c", "key": "/k", "ca": "/a", "require_client_cert": True},
                }
            ],
        ),
    ],
)
def test_listeners_have_the_same_addresses(text: str, listeners: list[object], tmp_path: Path) -> None:
    found = read(tmp_path, text)
    assert tree_of(found, tmp_path)["listeners"] == listeners and found.attention == []


def test_monitoring_without_login_is_moved_to_loopback_and_said(tmp_path: Path) -> None:
    found = read(tmp_path, "http_port: 8222")
    assert tree_of(found, tmp_path)["listeners"][1] == "http://127.0.0.1:8222"
    assert [line.option for line in found.attention] == ["http_port 8222"]


USERS = """\
listen: 127.0.0.1:{port}
PASSWORD: secret-of-bob
authorization {{
  default_permissions: {{publish: "sandbox.>", subscribe: ["_INBOX.>", "sandbox.>"]}}
  users = [
    {{user: ann, password: "{bcrypt}", permissions: {{
       publish: {{allow: ["a.>", "b.*"], deny: "a.secret.>"}}
       subscribe: {{allow: ["a.>", "_INBOX.>"], deny: ["a.x"]}}}}}}
    {{user: bob, password: $PASSWORD}}
    {{user: service, password: pw, permissions: {{subscribe: ["jobs.* workers", "_INBOX.>"], allow_responses: true}}}}
    {{user: free, password: pw, permissions: {{publish: {{deny: "a.secret.x"}}}}}}
  ]
}}
"""
PASSWORDS = {"ann": "secret-of-ann", "bob": "secret-of-bob", "service": "pw", "free": "pw"}
SUBJECTS = ["a.1", "a.x", "a.secret.x", "a", "b.1", "b.1.2", "sandbox.z", "jobs.1", "other"]


def test_users_get_hashes_and_rules_and_no_password_is_shown(tmp_path: Path) -> None:
    path, out = tmp_path / "nats.conf", tmp_path / "out"
    path.write_text(USERS.format(port=4222, bcrypt=BCRYPT), encoding="utf-8")
    code, output, errors = run("migrate", "nats", str(path), "--out", str(out))
    assert (code, b"secret-of" in output, "secret-of" in errors) == (0, False, False)
    hashes = read_passwords(out / "passwords").hashes
    assert hashes["ann"] == BCRYPT and hashes["bob"].startswith("$argon2id$")
    rules = read_yaml(out / "acl.yaml")["rules"]
    assert {"deny": ["publish"], "users": ["ann"], "topics": ["a/secret/+/#"]} in rules
    assert {"allow": ["publish"], "users": ["ann"], "topics": ["a/+/#", "b/+"]} in rules
    assert {"allow": "group", "users": ["service"], "topics": ["jobs/+"], "groups": ["workers"]} in rules
    assert {"allow": "reply", "users": ["service"], "max_replies": 1, "reply_expires": 120.0} in rules
    assert not (out / "data").exists()


def test_names_and_tokens_that_cannot_be_carried_over_are_named(tmp_path: Path) -> None:
    users = "users: [{user: 'a*', password: x}, {user: none}, {nkey: UBAD}, "
    users += "{user: q, password: x, permissions: {pub: 'a*'}}]"
    found = read(tmp_path, f"authorization {{token: short\n{users}}}")
    options = [line.option for line in found.attention]
    assert options == ["user 'a*'", "password of none", "nkey", "permission 'a*' of q", "token"]
    rules_tree(found)
    found = read(tmp_path, "authorization {token: 0123456789abcdef}")
    assert found.secrets == {"tokens": "0123456789abcdef\n"}
    assert tree_of(found, tmp_path)["nats"]["token_file"] == f"{tmp_path}/tokens"


async def decisions(port: int) -> dict[tuple[str, str, str], bool]:
    """Whether each user may publish to each subject, and receives what ``free`` publishes there."""
    found = {}
    free = await nats.connect(f"nats://127.0.0.1:{port}", user="free", password=PASSWORDS["free"])
    everything = await free.subscribe(">")
    await free.flush()
    for user, password in PASSWORDS.items():
        client = await nats.connect(f"nats://127.0.0.1:{port}", user=user, password=password, error_cb=ignore)
        for subject in SUBJECTS:
            await client.publish(subject, user.encode())
            await client.flush()
            await free.publish("sandbox.end", b"end")
            first = await everything.next_msg(10)
            found[user, subject, "publish"] = first.subject == subject
            if first.subject == subject:
                assert (await everything.next_msg(10)).data == b"end"
            heard = await client.subscribe(subject)
            await client.flush()
            if subject != "a.secret.x":  # which free may not publish to
                await free.publish(subject, b"x")
                await everything.next_msg(10)
            await free.flush()
            await client.flush()
            found[user, subject, "receive"] = heard.pending_msgs > 0
        await client.close()
    await free.close()
    return found


async def ignore(error: Exception) -> None:
    """Violations of permissions come here, too."""


@pytest.mark.slow
@pytest.mark.skipif(SERVER is None, reason="nats-server is not installed")
def test_rights_are_the_same(tmp_path: Path) -> None:
    assert SERVER is not None
    (port,) = free_ports(1)
    path = tmp_path / "nats.conf"
    path.write_text(USERS.format(port=port, bcrypt=BCRYPT), encoding="utf-8")
    process = subprocess.Popen([SERVER, "-c", path], stderr=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stderr is not None
        assert any("Server is ready" in line for line in process.stderr)
        there = asyncio.run(decisions(port))
    migrate("nats", path, out=tmp_path / "out")
    with starlingmq(tmp_path / "out" / "starlingmq.yaml"):
        here = asyncio.run(decisions(port))
    assert here == there
    assert 15 < sum(there.values()) < len(there) - 15
