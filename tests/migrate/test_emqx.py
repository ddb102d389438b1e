"""The export of EMQX: an archive with settings, tables of Mnesia and rules. EMQX cannot be installed where these tests
run: the files are written by the form that its documentation and sources describe."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.auth import hashing
from starlingmq.auth.password_file import read_passwords
from starlingmq.config.settings import Config, from_tree
from starlingmq.config.tree_builder import read_yaml, settings
from starlingmq.migrate.described import Description, MigrationError
from starlingmq.migrate.emqx_export import NO_EQUIVALENT, NOT_NEEDED, READ, SETTINGS, TABLES, read_emqx
from starlingmq.migrate.emqx_rules import rules_of
from starlingmq.migrate.erlang_terms import HEADER, parse_terms, read_table
from starlingmq.migrate.written_settings import rules_tree, settings_tree
from starlingmq.wire.mqtt import Publish, Suback, Subscribe, SubscribeRequest
from tests.peer import Peer

from .brokers import migrate, starlingmq


class Atom(str):
    """Written as an atom, not as a binary."""


def term(value: Any) -> bytes:
    """The external format of Erlang."""
    if isinstance(value, Atom):
        return b"w" + bytes([len(value)]) + value.encode()
    if isinstance(value, bytes):
        return b"m" + struct.pack(">I", len(value)) + value
    if isinstance(value, int):
        if 0 <= value < 256:
            return b"a" + bytes([value])
        return b"n\x08\x00" + value.to_bytes(8, "little")
    if isinstance(value, tuple):
        return b"h" + bytes([len(value)]) + b"".join(map(term, value))
    if isinstance(value, dict):
        return b"t" + struct.pack(">I", len(value)) + b"".join(term(key) + term(value[key]) for key in value)
    assert isinstance(value, list)
    return b"l" + struct.pack(">I", len(value)) + b"".join(map(term, value)) + b"j" if value else b"j"


def table(name: str, *rows: tuple[Any, ...]) -> bytes:
    items = [
        (Atom("log_header"), Atom("backup_log")),
        (Atom("schema"), Atom(name), []),
        *((Atom(name), *row) for row in rows),
    ]
    written = (b"\x83" + term(item) for item in items)
    return HEADER + b"".join(struct.pack(">I", len(each)) + b"bWLA" + each for each in written)


ALL = Atom("all")
ALLOW, DENY, TRUE, FALSE = Atom("allow"), Atom("deny"), Atom("true"), Atom("false")
EVERY = ["publish", "subscribe", "group"]
GLOBAL = Atom("mqtt:global")
DIGEST = hashlib.pbkdf2_hmac("sha512", b"secret-of-bob", b"0123456789abcdef", 1000).hex().encode()
BCRYPT = b"$2b$04$hnCycWW9B8wzNw.YypGktezUuoCRcWivz6SpWbtybMnfFqe7FsbUW"
TABLES_WRITTEN = {
    "emqx_authn_mnesia": [
        ((GLOBAL, b"ann"), BCRYPT, b"", TRUE),
        ((GLOBAL, b"bob"), DIGEST, b"0123456789abcdef", FALSE),
        ((GLOBAL, b"eve"), b"5d75", b"salt", FALSE),
    ],
    "emqx_acl": [
        (0, [(DENY, Atom("publish"), b"never/#")]),
        ((1, b"bob"), [(ALLOW, (ALL, [(Atom("qos"), b"\0\1\2"), (Atom("retain"), ALL)]), b"bob/#")]),
        (
            (2, b"c-1"),
            [(ALLOW, ALL, (Atom("publish"), [(Atom("qos"), [1]), (Atom("retain"), FALSE)]), b"c/${clientid}")],
        ),
    ],
    "emqx_retainer_message": [
        (
            [b"r", b"1"],
            (
                Atom("message"), b"id", 1, b"publisher", {}, {Atom("properties"): {Atom("Content-Type"): b"text/plain",
                Atom("User-Property"): [(b"a", b"b")], Atom("Message-Expiry-Interval"): 60}}, b"r/1", b"kept", 0, {},
            ),
            0,
        ),
    ],
    "emqx_banned": [((Atom("clientid"), b"x"), b"", b"", 0, 0)],
    "emqx_admin": [],
}  # fmt: skip
CONF = """
authentication = [
  {mechanism = password_based, backend = built_in_database, user_id_type = username
   password_hash_algorithm {name = pbkdf2, mac_fun = sha512, iterations = 1000, dk_length = 64}},
  {mechanism = password_based, backend = mysql, password = "database-secret"}
]
authorization {
  no_match = deny
  sources = [{type = file, enable = true, rules = \"\"\"~
    %% a comment
    {allow, {username, {re, "^dash$"}}, subscribe, ["$SYS/#"]}.
    {deny, all, subscribe, ["$SYS/#", {eq, "#"}]}.~\"\"\"}, {type = built_in_database}, {type = redis}]
}
listeners.tcp.default {bind = "127.0.0.1:%d", max_connections = infinity}
listeners {tcp {other {bind = 1884, enable = false}}
  ssl {default {bind = "0.0.0.0:8883", ssl_options {certfile = "-----BEGIN CERTIFICATE-----\\nx\\n", keyfile = "/k",
    verify = verify_peer, fail_if_no_peer_cert = true}}}
  ws {default {bind = "127.0.0.1:8083", websocket {mqtt_path = "/ws"}}}}
mqtt {max_inflight = 50, max_packet_size = "2MB", retry_interval = 5m, max_mqueue_len = infinity
  shared_subscription_strategy = hash_clientid, upgrade_qos = true, server_keepalive = disabled}
rule_engine {rules {x {sql = "SELECT 1"}}}
log {console {level = debug}}
"""


def export(path: Path, conf: str, tables: dict[str, Any]) -> Path:
    files = {"META.hocon": b'edition = ce\nversion = "5.8.1"\n', "cluster.hocon": conf.encode()}
    files |= {f"mnesia/{name}": table(name, *rows) for name, rows in tables.items()}
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"emqx-export-x/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def tree_of(found: Description, tmp_path: Path) -> dict[str, Any]:
    tree = settings_tree(found, tmp_path, ipv6=False)
    from_tree(tree)
    return tree


def test_settings_listeners_users_and_rules_of_an_export_are_carried_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = migrate("emqx", export(tmp_path / "e.tar.gz", CONF % 1883, TABLES_WRITTEN), out=out, code=3)
    tree = read_yaml(out / "starlingmq.yaml")
    assert tree["mqtt"] == {"max_inflight": 50, "retry_interval": "5m", "max_mqueue_len": 0, "server_keep_alive": 0}
    assert tree["limits"] == {"max_packet_size": 2 * 1024**2} and tree["queue_groups"] == {"strategy": "hash_client"}
    assert tree["listeners"][0] == "mqtt://127.0.0.1:1883" and tree["listeners"][-1] == "ws://127.0.0.1:8083/ws"
    tls = tree["listeners"][1]
    assert tls["url"] == "mqtts://0.0.0.0:8883"
    assert tls["tls"] == {"cert": str(out / "listeners-ssl-default-cert.pem"), "key": "/k", "require_client_cert": True}
    hashes = read_passwords(out / "passwords").hashes
    assert hashes.keys() == {"ann", "bob"} and hashes["ann"] == BCRYPT.decode()
    assert hashing.fits(hashes["bob"], b"secret-of-bob") and not hashing.fits(hashes["bob"], b"secret")
    rules = read_yaml(out / "acl.yaml")
    assert rules["default"] == "deny"
    assert rules["rules"] == [
        {"allow": ["publish", "subscribe", "group"], "topics": ["#", "$SYS/#"], "users": ["ann"]},
        {"allow": ["subscribe", "group"], "topics": ["$SYS/#"], "users": ["dash"]},
        {"deny": ["subscribe"], "topics": ["$SYS/#"]},
        {"allow": ["publish"], "qos": [1], "retain": False, "topics": ["c/%c"], "clients": ["c-1"]},
        {"allow": ["publish", "subscribe", "group"], "topics": ["bob/#"], "users": ["bob"]},
        {"deny": ["publish"], "topics": ["never/#"]},
    ]
    named = {line["option"]: line["remedy"] for line in report["attention"]}
    assert named.keys() == {
        "1 rows",
        "authentication password_based mysql",
        "authorization redis",
        "mqtt.upgrade_qos",
        "passwords of 1 users, such as eve",
        "rule",
        "rule_engine",
        "sessions",
        "settings",
    }
    assert named["rule"].endswith("Until then nothing denies it")
    assert "database-secret" not in json.dumps(report)


@pytest.mark.slow
def test_retained_messages_of_an_export_are_served(tmp_path: Path) -> None:
    only = {"emqx_retainer_message": TABLES_WRITTEN["emqx_retainer_message"]}
    conf = 'listeners {tcp {default {bind = "127.0.0.1:0"}}}'
    migrate("emqx", export(tmp_path / "e.tar.gz", conf, only), out=tmp_path / "out", code=3)

    async def ask(address: str) -> Publish:
        peer = await Peer.connect(address)
        peer.send(Subscribe(1, [SubscribeRequest(b"r/#", 1)]))
        assert (await peer.expect(Suback)).reasons == [1]
        message = await peer.message()
        await peer.close()
        return message

    with starlingmq(tmp_path / "out" / "starlingmq.yaml") as addresses:
        message = asyncio.run(ask(addresses[0]))
    assert (message.topic, message.payload, message.qos, message.retain) == (b"r/1", b"kept", 1, True)
    assert message.properties == b"\x03\x00\x0atext/plain\x26\x00\x01a\x00\x01b"


def read(tmp_path: Path, name: str, text: str) -> Description:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_emqx([path])


def test_every_section_has_one_outcome_and_every_setting_exists(tmp_path: Path) -> None:
    assert set(SETTINGS.values()) <= {setting.path for setting in settings(Config)}
    assert not set(NO_EQUIVALENT) & {*NOT_NEEDED, *READ} and not set(NOT_NEEDED) & set(READ)
    for section, remedy in NO_EQUIVALENT.items():
        found = read(tmp_path, "cluster.hocon", f"\n{section} {{x = 1}}\n")
        assert (section, f"{tmp_path}/cluster.hocon:2", remedy) in [
            (a.option, a.where, a.remedy) for a in found.attention
        ]
    assert "no_such" in [line.option for line in read(tmp_path, "cluster.hocon", "no_such {x = 1}").attention]
    assert "emqx_psk" in TABLES


@pytest.mark.parametrize("name", ["users.json", "users.csv"])
def test_users_as_the_dashboard_exports_them_are_read(name: str, tmp_path: Path) -> None:
    users = [
        {"user_id": "ann", "password_hash": BCRYPT.decode(), "salt": "s", "is_superuser": True},
        {"user_id": "eve", "password_hash": "ab", "salt": "s", "is_superuser": False},
    ]
    lines = ["user_id,password_hash,salt,is_superuser"]
    lines += [",".join(map(str, user.values())) for user in users]
    found = read(tmp_path, name, json.dumps(users) if name.endswith("json") else "\n".join(lines))
    assert found.users == {"ann": BCRYPT.decode()} and found.settings["auth.allow_anonymous"] is False
    assert found.rules is not None and found.rules[0]["users"] == ["ann"]
    assert "passwords of 1 users, such as eve" in [line.option for line in found.attention]
    with pytest.raises(MigrationError, match="expected a list of users"):
        read(tmp_path, "users.json", "{]")


def test_without_listeners_in_the_export_the_defaults_are_written(tmp_path: Path) -> None:
    found = read(tmp_path, "cluster.hocon", "")
    assert tree_of(found, tmp_path)["listeners"] == ["mqtt://0.0.0.0:1883", "ws://0.0.0.0:8083/mqtt"]
    assert found.settings["auth.allow_anonymous"] is True and found.rules is None


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("{allow, all}.", [{"allow": EVERY}]),
        ("{deny, all}.", [{"deny": ["publish", "subscribe"]}]),
        ('{allow, {user, "a"}, publish, ["t"]}.', [{"allow": ["publish"], "topics": ["t"], "users": ["a"]}]),
        ('{allow, {ipaddr, "10.0.0.0/8"}, all, all}.', [{"allow": EVERY, "addresses": ["10.0.0.0/8"]}]),
        (
            '{allow, {\'and\', [{user, "a"}, {clientid, "c"}]}, publish, [{eq, "t"}]}.',
            [{"allow": ["publish"], "topics": ["t"], "users": ["a"], "clients": ["c"]}],
        ),
        (
            '{deny, {\'or\', [{user, "a"}, {ipaddrs, ["::1", "1.2.3.4"]}]}, publish, ["${username}/+"]}.',
            [
                {"deny": ["publish"], "topics": ["%u/+"], "users": ["a"]},
                {"deny": ["publish"], "topics": ["%u/+"], "addresses": ["::1", "1.2.3.4"]},
            ],
        ),
        ("{allow, {security_profile, legacy}}.", [{"allow": EVERY}]),
        ("{allow, {security_profile, hardened}}.", []),
    ],
)
def test_a_rule_of_acl_conf_becomes_rules(text: str, rules: list[Any], tmp_path: Path) -> None:
    ((found, where),) = parse_terms(f"%% comment {{x}}.\n{text}\n", "acl.conf")
    assert (rules_of(found, legacy=True), where) == ((rules, []), "acl.conf:2")
    into = read(tmp_path, "acl.conf", text)
    assert into.rules == (rules or None)
    if rules:
        rules_tree(into)


@pytest.mark.parametrize(
    "text",
    [
        '{allow, {username, {re, "^a.*"}}, all, ["x"]}.',
        '{allow, {username, "a*"}, all, ["x"]}.',
        '{allow, {zone, "z"}, all, ["x"]}.',
        '{allow, all, subscribe, ["${client_attrs.x}/#"]}.',
        "{allow, all, {subscribe, [{qos, [1]}]}, [\"x\"]}.",
        '{allow, all, unknown, ["x"]}.',
        "{something}.",
    ],
)  # fmt: skip
def test_a_rule_without_equivalent_is_named_with_its_line(text: str, tmp_path: Path) -> None:
    into = read(tmp_path, "acl.conf", f"\n{text}\n")
    assert into.rules is None
    assert ("rule", f"{tmp_path}/acl.conf:2") in [(line.option, line.where) for line in into.attention]


@given(st.data())
def test_a_damaged_table_gives_rows_or_one_line_with_the_offset(data: st.DataObject) -> None:
    rows: Any = TABLES_WRITTEN["emqx_acl"]
    damaged = bytearray(table("emqx_acl", *rows))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(len(HEADER), len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_table(bytes(damaged[: data.draw(st.integers(len(HEADER), len(damaged)))]), "t")
    except MigrationError as error:
        assert str(error).startswith("t: offset ") and "\n" not in str(error)


@given(st.text(alphabet="{}[]().,\"'%ab \n\\<>1", max_size=50))
def test_any_text_gives_terms_or_one_line_with_its_place(text: str) -> None:
    try:
        for found, _ in parse_terms(text, "acl.conf"):
            rules_of(found, legacy=True)
    except MigrationError as error:
        assert str(error).startswith("acl.conf:") and "\n" not in str(error)


def test_an_archive_that_is_damaged_is_one_line(tmp_path: Path) -> None:
    path = export(tmp_path / "e.tar.gz", CONF % 1883, TABLES_WRITTEN)
    for size in (2, 40, path.stat().st_size // 2):
        cut = tmp_path / "cut.tar.gz"
        cut.write_bytes(path.read_bytes()[:size])
        with pytest.raises(MigrationError, match=r"cut\.tar\.gz: this archive is damaged"):
            read_emqx([cut])
