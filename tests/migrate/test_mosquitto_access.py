"""Logins and rights are those of a real mosquitto: each question is asked there, and here after the migration."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from starlingmq.migrate.described import Description
from starlingmq.migrate.mosquitto_access import read_passwords, read_rules
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Suback, Subscribe, SubscribeRequest
from tests.peer import Peer

from .brokers import migrate, mosquitto, needs_mosquitto, settings_of, starlingmq

with_mosquitto = [
    pytest.mark.slow,
    needs_mosquitto,
    pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed"),
]
GLOBAL = """\
listener {0} 127.0.0.1
allow_anonymous true
password_file {directory}/passwd
acl_file {directory}/acl
"""
PER_LISTENER = """\
per_listener_settings true
listener {0} 127.0.0.1
password_file {directory}/passwd
acl_file {directory}/acl
listener {1} 127.0.0.1
password_file {directory}/passwd2
acl_file {directory}/acl2
"""
RULES = """\
# a comment
topic read public/#
topic deny public/secret
topic write anonymous/in

pattern read sentinel/%c
pattern write sensors/%c/data
pattern read sensors/%c/#
pattern readwrite users/%u/+
pattern deny users/%u/no
user ann
topic readwrite home/#
topic deny home/private/#
topic write log/ann
topic read with space
topic read  two  spaces
user bob
topic read home/+/temp
topic literal/bob
user kim
topic read +/#
user ann
topic read late/#
user admin
topic readwrite #
"""
RULES_2 = """\
user dan
topic readwrite second/#
user admin
topic readwrite #
pattern read sentinel/%c
pattern read only/here
"""
CLIENTS = [("ann", "c1"), ("bob", "c2"), ("kim", "c3"), ("eve", "c4"), (None, "c5")]
TOPICS = [
    "public/x", "public/secret", "anonymous/in", "sensors/c1/data", "sensors/c2/data", "sensors/c2/other",
    "users/ann/a", "users/ann/no", "users/bob/a", "home/x", "home/private/x", "home/a/temp", "log/ann", "with space",
    "two  spaces", "literal/bob", "late/x", "a", "a/b", "$odd/x",
    "only/here", "users/dan/a",
]  # fmt: skip
LOGINS = [(name, word) for name in ("ann", "admin", "nobody", None) for word in (b"pw-ann", b"pw-admin", b"", None)]


def users(path: Path, *names: str) -> None:
    path.touch()
    for name in names:
        subprocess.run(["mosquitto_passwd", "-b", path, name, f"pw-{name}"], check=True, capture_output=True)


async def connected(address: str, user: str | None, client_id: str) -> Peer:
    password = None if user is None else f"pw-{user}".encode()
    return await Peer.connect(address, client_id, username=user, password=password)


async def logins(address: str) -> dict[tuple[str | None, bytes | None], bool]:
    found = {}
    for user, password in LOGINS:
        if user is None and password is not None:
            continue  # MQTT 3.1.1 forbids it
        peer = await Peer.open(address)
        peer.send(Connect(5, "login", True, username=user, password=password))
        found[user, password] = (await peer.expect(Connack)).reason == 0
        await peer.close()
    return found


async def decisions(address: str, clients: list[tuple[str | None, str]]) -> dict[tuple[str | None, str, str], bool]:
    """Whether a client may publish to a topic, and whether it receives what is published there."""
    found = {}
    admin = await connected(address, "admin", "admin")
    for user, client_id in clients:
        peer = await connected(address, user, client_id)
        for number, topic in enumerate(TOPICS, 1):
            peer.send(Publish(topic.encode(), b"x", 1, packet_id=number))
            found[user, topic, "publish"] = (await peer.expect(Ack)).reason < 0x80
            if topic.startswith("$"):
                continue  # no client may publish there, so nothing comes
            sentinel = f"sentinel/{client_id}"
            peer.send(Subscribe(1, [SubscribeRequest(name.encode(), 0) for name in (topic, sentinel)]))
            assert (await peer.expect(Suback)).reasons[1] == 0
            for name in (topic, sentinel):
                await admin.publish(name, b"x", 1)
            first = await peer.message()
            found[user, topic, "receive"] = first.topic == topic.encode()
            if first.topic != sentinel.encode():
                assert (await peer.message()).topic == sentinel.encode()
        await peer.close()
    await admin.close()
    return found


@pytest.mark.parametrize("settings", [pytest.param(GLOBAL, marks=with_mosquitto)])
def test_logins_and_rights_are_the_same(settings: str, tmp_path: Path) -> None:
    users(tmp_path / "passwd", "ann", "bob", "kim", "eve", "admin")
    (tmp_path / "acl").write_text(RULES, encoding="utf-8")
    conf, ports = settings_of(tmp_path, settings)
    address = f"mqtt://127.0.0.1:{ports[0]}"

    async def ask() -> tuple[object, dict[tuple[str | None, str, str], bool]]:
        return await logins(address), await decisions(address, CLIENTS)

    with mosquitto(conf):
        there = asyncio.run(ask())
    report = migrate("mosquitto", conf, out=tmp_path / "out")
    assert (report["carried"]["users"], report["carried"]["rules"]) == (5, 18)
    with starlingmq(tmp_path / "out" / "starlingmq.yaml"):
        here = asyncio.run(ask())
    assert here == there
    assert 20 < sum(there[1].values()) < len(there[1]) - 20


@pytest.mark.parametrize("settings", [pytest.param(PER_LISTENER, marks=with_mosquitto)])
def test_users_of_two_listeners_keep_their_rights_and_the_report_says_what_differs(
    settings: str, tmp_path: Path
) -> None:
    users(tmp_path / "passwd", "ann", "bob", "kim", "eve", "admin")
    users(tmp_path / "passwd2", "dan", "admin")
    (tmp_path / "acl").write_text(RULES, encoding="utf-8")
    (tmp_path / "acl2").write_text(RULES_2, encoding="utf-8")
    conf, ports = settings_of(tmp_path, settings)

    async def ask() -> list[dict[tuple[str | None, str, str], bool]]:
        first, second = (f"mqtt://127.0.0.1:{port}" for port in ports)
        return [await decisions(first, CLIENTS[:4]), await decisions(second, [("dan", "c9")])]

    with mosquitto(conf):
        there = asyncio.run(ask())
    report = migrate("mosquitto", conf, out=tmp_path / "out", code=3)
    assert {line["option"] for line in report["attention"]} == {"per_listener_settings true", "password of admin"}
    with starlingmq(tmp_path / "out" / "starlingmq.yaml"):
        here = asyncio.run(ask())
    assert here == there


def test_lines_of_a_rules_file_that_cannot_be_carried_over_are_named() -> None:
    into = Description()
    text = "user a*\ntopic read x\nuser ann\ntopic sometimes x\ntopic a#b\nfoo bar\ntopic read %c/x\ntopic\n"
    found = read_rules(text, "acl", into)
    assert [line.where for line in into.attention] == ["acl:1", "acl:4", "acl:5", "acl:6", "acl:7", "acl:8"]
    assert found.rules(None) == []  # the topic after a* does not go to another user


def test_a_password_that_cannot_be_carried_over_is_named_and_not_shown() -> None:
    into = Description()
    assert read_passwords("# c\nann:$6$salt$hash\nbob:plain-secret\nno colon\n\n", "passwd", into) == {}
    assert [line.where for line in into.attention] == ["passwd:2", "passwd:3", "passwd:4"]
    assert "plain-secret" not in repr(into) and "$hash" not in repr(into)
