"""Alarms: conditions that begin and end them, the history, the webhook, and how operators see them."""

from __future__ import annotations

import asyncio
import errno
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from starlingmq import Broker
from starlingmq.admin import alarm_conditions, alarm_webhook
from starlingmq.admin.alarm_conditions import CLOSED_SECONDS, DROPPED_SECONDS, closed_max
from starlingmq.admin.alarm_webhook import AlarmWebhook
from starlingmq.admin.alarms import ACTIVE_MAX, HISTORY_MAX, HOLD, Alarm, Alarms, active_facts, ended_facts
from starlingmq.admin.recent_counts import Recent, RecentCounts
from starlingmq.admin.remedies import Condition, Severity
from starlingmq.config.settings import ConfigError, load_config
from starlingmq.net import memory_watch
from starlingmq.storage.opening import directory_of
from starlingmq.wire.mqtt import Disconnect, Publish
from starlingmq.wire.reasons import Reason
from tests.peer import Peer

from .conftest import Ask, Join, Serve


def a_condition(kind: str, subject: str = "", severity: Severity = "warning", text: str = "") -> Condition:
    return Condition(kind, subject, severity, text or f"{kind} is bad", "mend it")


def told(alarms: list[Alarm]) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.severity, one.ended is not None) for one in alarms]


def test_an_alarm_begins_once_and_ends_when_its_condition_is_gone_for_a_while() -> None:
    heard: list[Alarm] = []
    alarms = Alarms(heard.append)
    for now in (0.0, 5.0, 10.0):
        alarms.look([a_condition("disk", text=f"at {now}")], now)
    assert told(heard) == [("disk", "warning", False)]
    assert alarms.active()[0].text == "at 10.0", "the text is that of now"
    alarms.look([], 15.0)
    assert alarms.active() == [], "what is shown ends at once"
    assert [one.ended for one in alarms.reply().history] == ["1970-01-01T00:00:15.000+00:00"]
    alarms.look([a_condition("disk")], 20.0)
    assert alarms.active()[0].ended is None and alarms.reply().history == []
    alarms.look([], 25.0)
    alarms.look([], 25.0 + HOLD - 1)
    assert told(heard) == [("disk", "warning", False)], "around its threshold it is one alarm"
    alarms.look([], 25.0 + HOLD)
    assert told(heard) == [("disk", "warning", False), ("disk", "warning", True)]
    reply = alarms.reply()
    assert reply.alarms == [] and told(reply.history) == [("disk", "warning", True)]


def seen(node: str, kind: str, since: str, ended: str | None = None, **more: Any) -> Alarm:
    told = {"subject": "n3", "severity": "warning", "text": f"as {node} sees it", "next": "", **more}
    return Alarm(kind, **told, since=since, ended=ended, node=node)


def test_what_several_nodes_see_is_one_entry_with_their_names() -> None:
    found = active_facts([
        seen("n2", "node", "12:00:05"),
        seen("n1", "node", "12:00:07", severity="critical"),
        seen("n1", "disk", "12:00:01"),
        seen("n2", "disk", "12:00:00"),
        seen("n1", "clock", "12:00:02", text="not synchronized"),
        seen("n2", "clock", "12:00:02", text="not synchronized"),
    ])  # fmt: skip
    assert [(one.kind, one.nodes, one.since, one.text) for one in found] == [
        ("node", ["n1", "n2"], "12:00:05", "as n1 sees it"),
        ("clock", ["n1", "n2"], "12:00:02", "not synchronized"),
        ("disk", ["n1"], "12:00:01", "as n1 sees it"),
        ("disk", ["n2"], "12:00:00", "as n2 sees it"),
    ], "each node has a disk of its own"


def test_a_fact_that_returns_is_another_entry_of_the_history() -> None:
    early = [seen(node, "node", "12:00:00", ended) for node, ended in (("n1", "12:01:00"), ("n2", "12:01:05"))]
    late = [seen(node, "node", "12:01:10", "12:02:00") for node in ("n1", "n2")]
    found = [(one.since, one.ended, one.nodes) for one in ended_facts([*early, *late])]
    assert found == [("12:01:10", "12:02:00", ["n1", "n2"]), ("12:00:00", "12:01:05", ["n1", "n2"])]


async def test_the_alarm_of_a_full_disk_ends_at_the_next_look_once_there_is_room(
    serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    broker = await serve(node={"data_dir": str(tmp_path), "shutdown_timeout": 0.1}, alarms={"disk_free": 1.0})
    assert broker._admin is not None
    await look(broker)
    assert [one.kind for one in broker._admin.alarms.known.active()] == ["disk"]
    answer = await ask(broker, "PUT", "/api/v1/settings", json={"path": "alarms.disk_free", "value": "0"})
    assert answer.status_code == 200
    await look(broker)
    assert broker._admin.alarms.known.active() == []


def test_an_alarm_has_the_address_of_its_page_where_a_copy_of_the_site_is_named() -> None:
    heard: list[Alarm] = []
    for site in ("", "https://docs.example.org/mq", "https://docs.example.org/mq/"):
        alarms = Alarms(heard.append, lambda site=site: site)  # type: ignore[misc]
        alarms.look([a_condition("disk"), a_condition("unknown")], 0.0)
        alarms.look([], 5.0)
        alarms.look([], 5.0 + HOLD)
        assert {one.kind: one.page for one in alarms.reply().history} == {
            "disk": f"{site.rstrip('/')}/PLAYBOOK.html#the-disk".lstrip("/"),
            "unknown": "",
        }
    assert [one.page for one in heard[-4:] if one.kind == "disk"] == [
        "https://docs.example.org/mq/PLAYBOOK.html#the-disk"
    ] * 2


@pytest.mark.parametrize("site", ["docs.example.org", "ftp://docs.example.org", "https://", "https://a b/"])
def test_the_site_is_a_web_address(site: str) -> None:
    with pytest.raises(ConfigError, match=r"alarms\.site"):
        load_config(None, [f"alarms.site={site}"])


def test_an_alarm_that_becomes_critical_is_told_again() -> None:
    heard: list[Alarm] = []
    alarms = Alarms(heard.append)
    for now, severity in enumerate(("warning", "critical", "critical", "warning")):
        alarms.look([a_condition("disk", severity=severity)], float(now))  # type: ignore[arg-type]
    assert told(heard) == [("disk", "warning", False), ("disk", "critical", False)]


def test_alarms_and_their_history_are_bounded_and_critical_ones_come_first() -> None:
    alarms = Alarms(lambda _: None)
    many = [a_condition("dropped", str(number)) for number in range(ACTIVE_MAX * 2)]
    alarms.look([*many, a_condition("quorum", severity="critical")], 0.0)
    assert len(alarms.active()) == ACTIVE_MAX and alarms.active()[0].kind == "quorum"
    for turn in range(5):
        alarms.look([], 100.0 * turn + HOLD)
        alarms.look([], 100.0 * turn + 2 * HOLD)
        alarms.look(many, 100.0 * turn + HOLD)
    assert len(alarms.reply().history) == HISTORY_MAX


@pytest.mark.parametrize("url", ["ftp://a/", "http://", "nonsense", "http://a b/", "http://h:0/"])
def test_a_webhook_that_is_no_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, [f"alarms.webhook={url}"], {})
    assert str(refused.value) == "alarms.webhook: is not a URL starting with http:// or https://"


@asynccontextmanager
async def hook(
    statuses: list[int], heads: list[bytes] | None = None
) -> AsyncIterator[tuple[str, asyncio.Queue[dict[str, Any]]]]:
    """An HTTP service that answers with these statuses in turn, then with 200; and the bodies that it got. With 0 it
    sends what is not HTTP."""
    got: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    heads = [] if heads is None else heads

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        head = heads[-1].lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        got.put_nowait(msgspec.json.decode(await reader.readexactly(length)))
        status = statuses.pop(0) if statuses else 200
        answer = b"HTTP/1.1 %d x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status
        writer.write(answer if status else b"not HTTP\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?token=secret", got


async def test_the_webhook_is_told_in_order_and_again_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_webhook, "PAUSE", 0.0)
    async with hook([503, 0]) as (url, got):
        webhook = AlarmWebhook("n1", lambda: url)
        alarms = Alarms(webhook.tell)
        alarms.look([a_condition("disk")], 0.0)
        alarms.look([], 1.0)
        alarms.look([], 1.0 + HOLD)
        bodies = [await got.get() for _ in range(4)]
        assert [body["event"] for body in bodies] == ["begun", "begun", "begun", "ended"]
        assert bodies[3]["node"] == "n1" and bodies[3]["alarm"]["kind"] == "disk" and bodies[3]["alarm"]["ended"]
        await webhook.stop()


async def test_a_login_in_the_url_is_sent_as_basic_authentication() -> None:
    heads: list[bytes] = []
    async with hook([], heads) as (url, _):
        with_login = url.replace("http://", "http://ann:r%C3%A9d%40:x@")
        assert await AlarmWebhook("n1", lambda: with_login).test() == ""
        assert await AlarmWebhook("n1", lambda: url).test() == ""
    expected = b"authorization: basic " + b64encode("ann:réd@:x".encode())
    assert expected.lower() in heads[0].lower() and b64encode("ann:réd@:x".encode()) in heads[0]
    assert b"authorization" not in heads[1].lower()


async def test_a_webhook_that_refuses_does_not_show_its_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alarm_webhook, "PAUSE", 0.0)
    async with hook([500] * alarm_webhook.ATTEMPTS) as (url, got):
        webhook = AlarmWebhook("n1", lambda: url)
        webhook.tell(Alarm("disk", "", "warning", "full", "free it"))
        for _ in range(alarm_webhook.ATTEMPTS):
            await got.get()
        assert webhook._task is not None
        await webhook._task
    assert "given up" in caplog.text and "secret" not in caplog.text and "127.0.0.1" not in caplog.text


def a_certificate(directory: Path, days: int) -> str:
    """A file with a certificate that ends in so many days."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=400))
        .not_valid_after(now + timedelta(days=days, hours=12))
        .sign(key, hashes.SHA256())
    )
    path = directory / f"{days}.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(path)


async def look(broker: Broker) -> None:
    assert broker._admin is not None
    await broker._admin.alarms.look()


async def test_operators_see_drops_and_certificates_that_end(
    serve: Serve, ask: Ask, join: Join, tmp_path: Path
) -> None:
    file = a_certificate(tmp_path, 5)
    tls = {"url": "mqtts://127.0.0.1:0", "tls": {"cert": file, "key": file}}
    broker = await serve(listeners=["mqtt://127.0.0.1:0", "http://127.0.0.1:0", tls])
    broker.state.ctx.counters.drop("queue_full", 600)  # before the first look: a node that starts drops the most
    await look(broker)
    found = (await ask(broker, "GET", "/api/v1/alarms")).json()
    assert [(one["kind"], one["subject"], one["severity"]) for one in found["alarms"]] == [
        ("certificate", file, "critical"),
        ("dropped", "queue_full", "warning"),
    ]
    told = r"queue_full: 600 messages dropped since \d\d:\d\d:\d\d, and it goes on"
    assert re.fullmatch(told, found["alarms"][1]["text"])
    assert found["alarms"][1]["next"].startswith("start the client that starlingmq ctl droppers names")
    assert found["alarms"][1]["page"] == "PLAYBOOK.html#dropped-messages"
    assert {one["node"] for one in found["alarms"]} == {broker.config.node.name}
    (one,) = (await ask(broker, "GET", "/api/v1/certificates")).json()["certificates"]
    assert (one["file"], one["days"], one["problem"]) == (file, 5, "")
    metrics = (await ask(broker, "GET", "/metrics")).text
    assert 'starlingmq_alarms{kind="certificate",severity="critical"} 1.0' in metrics


async def test_a_client_that_is_closed_again_and_again_for_its_packet_size_is_an_alarm(serve: Serve, ask: Ask) -> None:
    broker = await serve(limits={"max_packet_size": "10KiB"})
    await look(broker)
    for number in range(1, 6):
        camera = await Peer.connect(broker.address(), "camera")
        camera.send(Publish(b"image", bytes(20_000)))
        assert (await camera.expect(Disconnect)).reason == Reason.PACKET_TOO_LARGE
        await camera.close()
        await look(broker)
        found = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
        assert [one["kind"] for one in found] == ["closed"] * (number == 5)
    (one,) = found
    assert one["subject"] == "packet_too_large" and "5 connections were closed" in one["text"]
    assert "client 'camera'" in one["text"] and "limits.max_packet_size" in one["text"]


async def test_mistakes_of_single_clients_are_no_alarm_however_many(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    await look(broker)
    broker.state.ctx.counters.errors |= {"protocol_error": 1000}
    await look(broker)
    assert (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"] == []


async def test_a_message_that_the_rules_refuse_is_an_alarm_that_names_client_user_topic_rule_and_test(
    serve: Serve, ask: Ask, join: Join, tmp_path: Path
) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text("default: allow\nrules:\n- {deny: [publish, subscribe], topics: ['door/#']}\n")
    broker = await serve(auth={"acl": {"file": str(rules)}})
    stranger = await join(broker, "stranger")
    assert await stranger.publish("door/1") == Reason.NOT_AUTHORIZED
    await look(broker)
    assert (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"] == [], "it has no user"
    meter = await join(broker, "meter 1", username="ann")
    assert await meter.subscribe("door/+") == [Reason.NOT_AUTHORIZED]
    await look(broker)
    (one,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert one["text"].startswith("the rules refused a message or subscription of users since ")
    for _ in range(2):
        assert await meter.publish("door/1", retain=True) == Reason.NOT_AUTHORIZED
        broker._access._paid_until = 0.0  # a busy machine takes the time that searches of rules may take
        await look(broker)
    (one,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert (one["kind"], one["severity"], one["page"]) == ("refused", "warning", "SECURITY.html#rules")
    told = (
        r"the rules refused 3 messages and subscriptions of users since \d\d:\d\d:\d\d, and it goes on; the last "
        r"one of client 'meter 1', user 'ann': PUBLISH to 'door/1' at QoS 1, retained, refused: rule 1 in .* decides"
    )
    assert re.fullmatch(told, one["text"]), one["text"]
    assert one["next"] == (
        "correct the client or the rules; starlingmq ctl may 'meter 1' publish door/1 --user ann --qos 1 --retain"
    )


def test_the_alarm_about_closed_connections_ends_when_they_cease() -> None:
    closed = RecentCounts(1000.0, CLOSED_SECONDS)
    counted = {"packet_too_large": 0}
    seen = []
    for second in range(0, 900, 5):
        if second < 300 and second % 10 == 0:
            counted["packet_too_large"] += 1
        seen.append([one.reason for one in closed.look(1000.0 + second, counted, closed_max)])
    assert seen[7] == [] and seen[8] == ["packet_too_large"], "the fifth one is"
    assert seen[-1] == []


@pytest.mark.parametrize(
    ("reason", "count", "alarm"),
    [
        ("client_identifier_not_valid", 5, True),
        ("bad_user_name_or_password", 59, False),
        ("bad_user_name_or_password", 60, True),
    ],
)
def test_failed_logins_are_an_alarm_once_they_are_many(reason: str, count: int, alarm: bool) -> None:
    closed = RecentCounts(1000.0, CLOSED_SECONDS)
    assert list(closed.look(1000.0, {reason: 0}, closed_max)) == []
    assert [one.reason for one in closed.look(1010.0, {reason: count}, closed_max)] == [reason] * alarm
    assert [one.recent for one in closed.look(1302.0, {reason: count}, closed_max)] == [count] * alarm, (
        "within a window"
    )


def test_an_alarm_of_drops_counts_since_their_first_and_says_whether_they_go_on() -> None:
    """Looks come every five seconds; 60 messages a second are dropped from second 100 to 120, 1 a second after 300."""
    drops, counted, seen = RecentCounts(0.0, 60.0), {"queue_full": 0, "expired": 7}, []
    for second in range(5, 500, 5):
        counted["queue_full"] += 300 if 100 < second <= 120 else 5 * (second > 300)
        looked = drops.look(float(second), counted, lambda reason: 90.0)
        seen += [(second, one) for one in looked if one.reason == "queue_full"]
    assert seen[0] == (105, Recent("queue_full", 300, 300, 100.0, 0.0))
    assert seen[3] == (120, Recent("queue_full", 1200, 1200, 100.0, 0.0))
    assert seen[-1] == (175, Recent("queue_full", 1200, 300, 100.0, 55.0)), "then a rate that is allowed is no alarm"
    assert len(seen) == 15


async def test_drops_count_for_a_minute_however_rarely_somebody_looks(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = monotonic()
    monkeypatch.setattr(alarm_conditions, "monotonic", lambda: start)
    broker = await serve()
    for rarely in range(1, 4):
        at = start + rarely * (DROPPED_SECONDS + 20.0)
        monkeypatch.setattr(alarm_conditions, "monotonic", lambda at=at: at)
        broker.state.ctx.counters.drop("queue_full", 600)
        await look(broker)
        assert broker._admin is not None
        (alarm,) = broker._admin.alarms.known.active()
        assert alarm.text.startswith(f"queue_full: {600 * rarely:,} messages dropped since ")


async def test_a_full_queue_and_a_banned_client_are_alarms(serve: Serve, ask: Ask, join: Join) -> None:
    broker = await serve(auth={"flapping": {"limit": 2}})
    broker.ban("client", "by-hand", 60, "no")
    await look(broker)
    assert (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"] == [], "a ban of an operator is no alarm"
    await join(broker, "slow")
    broker.state.ctx.sessions["slow"].stalled = True
    bans = broker._access.bans
    for _ in range(3):
        bans.came(monotonic(), "twins")
    assert broker._admin is not None
    broker._admin.session_totals_job._good_until = 0.0
    await look(broker)
    kinds = {one["kind"]: one["text"] for one in (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]}
    assert kinds["queue"] == (
        "1 client was too slow for longer than limits.publisher_hold, so publishers are not held; a queue that reaches "
        "mqtt.max_mqueue_len (1,000 messages) or limits.queue_bytes (64MiB) drops its oldest messages"
    )
    assert "'twins'" in kinds["flapping"]


@pytest.mark.parametrize(
    ("most", "size", "told"),
    [
        (0, 0, "nothing bounds the queues"),
        (7, 0, "a queue that reaches mqtt.max_mqueue_len (7 messages) drops its oldest messages"),
    ],
)
async def test_the_alarm_of_slow_clients_says_what_the_settings_do_to_their_queues(
    serve: Serve, ask: Ask, join: Join, most: int, size: int, told: str
) -> None:
    broker = await serve(mqtt={"max_mqueue_len": most}, limits={"queue_bytes": size})
    await join(broker, "slow")
    broker.state.ctx.sessions["slow"].stalled = True
    assert broker._admin is not None
    broker._admin.session_totals_job._good_until = 0.0
    await look(broker)
    (alarm,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert alarm["kind"] == "queue" and alarm["text"].endswith(told)


async def test_clients_that_acknowledge_nothing_are_an_alarm(serve: Serve, ask: Ask, join: Join) -> None:
    broker = await serve(alarms={"unacknowledged": "45s"})
    names = ("stuck", "stuck too", "gone")
    clients = [await join(broker, name) for name in (*names, "author")]
    for each in clients[:3]:
        await each.subscribe("a", qos=1)
    for _ in range(11):
        await clients[-1].publish("a")
    assert broker._admin is not None
    job = broker._admin.session_totals_job

    async def alarms(seconds: float) -> list[dict[str, str]]:
        job._good_until = 0.0
        survey = await job.count()
        for age, name in enumerate(name for name in names if name in survey.silent):
            survey.silent[name].since -= seconds - age
        await look(broker)
        found = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
        return [one for one in found if one["kind"] == "unacknowledged" and not one["ended"]]

    assert await alarms(30.0) == []
    clients[2].send(Disconnect(0))
    while await clients[2].receive() is not None:
        pass
    (alarm,) = await alarms(20.0)
    told = (
        r"'stuck' has acknowledged nothing for 5\d s: 11 messages are in flight to it, 0 wait; nor has 1 other client"
    )
    assert re.fullmatch(told, alarm["text"]), alarm["text"]
    assert "ctl kick disconnects it" in alarm["next"] and "no session expiry" in alarm["next"]
    told = (await ask(broker, "DELETE", "/api/v1/client", params={"client_id": "stuck"})).json()
    assert told["done"] == "disconnected; 11 messages ended with its session, which had no expiry"


async def test_a_disk_with_little_room_is_an_alarm(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    broker = await serve(node={"data_dir": data, "shutdown_timeout": 0.1}, alarms={"disk_free": 1.0})
    await look(broker)
    (one,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert one["kind"] == "disk" and data in one["text"]


async def test_a_process_with_little_memory_left_is_an_alarm_and_one_that_refuses_clients_a_critical_one(
    serve: Serve, ask: Ask
) -> None:
    broker = await serve(limits={"memory": "10GiB"}, alarms={"memory": 0.001})
    await look(broker)
    (one,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert (one["kind"], one["severity"]) == ("memory", "warning") and "of 10,240 MiB (limits.memory)" in one["text"]
    broker = await serve(limits={"memory": "1MiB"})
    while not broker.state.ctx.quotas.short_of_memory:
        await asyncio.sleep(0)
    await look(broker)
    (one,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert (one["kind"], one["severity"]) == ("memory", "critical") and "refused" in one["text"]


async def test_a_node_that_refuses_clients_for_want_of_memory_is_not_ready_and_one_that_is_near_the_limit_is(
    serve: Serve, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 99 << 20
    monkeypatch.setattr(memory_watch, "memory", lambda: used)
    monkeypatch.setattr(memory_watch, "MEMORY_INTERVAL", 0.01)
    monkeypatch.setattr(memory_watch, "free_memory", lambda: None)
    broker = await serve(limits={"memory": "100MiB"})
    quotas = broker.state.ctx.quotas

    async def ready() -> tuple[int, str]:
        overview = (await ask(broker, "GET", "/api/v1/overview")).json()["ready"]
        answer = await ask(broker, "GET", "/health/ready")
        metrics = (await ask(broker, "GET", "/metrics")).text
        assert overview == answer.json()
        assert f"\nstarlingmq_ready {float(answer.status_code == 200)}\n" in metrics
        return answer.status_code, "; ".join(answer.json()["reasons"])

    assert await ready() == (200, "")
    for used, short in ((101 << 20, True), (96 << 20, True), (90 << 20, False)):
        deadline = monotonic() + 5
        while quotas.short_of_memory != short:
            assert monotonic() < deadline, f"{used >> 20} MiB are used"
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # looks at less than the limit, which do not end the refusals
        reason = "memory is short: new clients and messages are refused until the process uses less (limits.memory)"
        assert await ready() == ((503, reason) if short else (200, ""))


@pytest.mark.parametrize(("refusing", "severity"), [(True, "critical"), (False, "warning")])
async def test_a_full_disk_is_an_alarm_until_storing_works(
    serve: Serve, ask: Ask, tmp_path: Path, refusing: bool, severity: str
) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1}, alarms={"disk_free": 0})
    assert broker._driver is not None
    store = directory_of(broker._driver.store)
    assert store is not None
    store.health.fails(OSError(errno.ENOSPC, "No space left on device"), refusing)
    await look(broker)
    (one,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert (one["kind"], one["severity"]) == ("storage", severity) and "the disk is full" in one["text"]
    assert "free some space" in one["next"]
    store.health.works()


async def test_an_address_that_is_banned_for_wrong_passwords_is_an_alarm(serve: Serve, ask: Ask) -> None:
    broker = await serve(auth={"failures": {"limit": 3}})
    for _ in range(4):
        broker._access.bans.failed(monotonic(), "192.0.2.7", "bob")
    await look(broker)
    (one,) = (await ask(broker, "GET", "/api/v1/alarms")).json()["alarms"]
    assert one["kind"] == "logins" and "192.0.2.7" in one["text"]


def test_every_kind_of_alarm_is_in_the_reference() -> None:
    root = Path(__file__).parent.parent.parent
    admin = root / "src/starlingmq/admin"
    source = "".join((admin / f"{name}.py").read_text() for name in ("alarm_conditions", "link_conditions"))
    kinds = {*re.findall(r'Condition\("(\w+)"', source), *re.findall(r'kind = "(\w+)".* else "(\w+)"', source)[0]}
    section = (root / "docs/HTTP.md").read_text().partition("## Alarms")[2].partition("\n## ")[0]
    listed = {word for row in re.findall(r"^\| (`.*?) \|", section, re.M) for word in re.findall(r"`(\w+)`", row)}
    assert kinds == listed and len(kinds) >= 14
