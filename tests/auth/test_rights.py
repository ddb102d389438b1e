"""Rights of clients, checked at each use: publish, subscribe, leave a will; and again when the rules change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import nats
from starlingmq.auth import access_control
from starlingmq.auth.access_control import DENIED, AccessControl
from starlingmq.config.settings import load_config
from starlingmq.core.context.ready import Refusal
from starlingmq.core.session.session import Client
from starlingmq.wire.mqtt import Connack, Connect, Publish, Will
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Join, Serve
from tests.peer import Peer

RULES = """rules:
- {allow: [publish, subscribe], topics: ['mine/%c/#']}
- {allow: publish, topics: [status], qos: [0], retain: false}
- {allow: group, topics: ['jobs/#'], groups: [workers]}
- {deny: connect, clients: [bad]}
"""


def rules(path: Path, text: str = RULES) -> dict[str, object]:
    path.write_text(text)
    return {"acl": {"file": str(path)}}


async def test_publish_and_subscribe(serve: Serve, join: Join, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl"))
    peer = await join(broker, "c")
    assert await peer.publish("mine/c/1") == Reason.NO_MATCHING_SUBSCRIBERS
    assert await peer.publish("mine/d/1") == Reason.NOT_AUTHORIZED
    assert await peer.publish("mine/d/1", qos=2) == Reason.NOT_AUTHORIZED
    assert await peer.publish("status") == Reason.NOT_AUTHORIZED
    granted = await peer.subscribe(
        "mine/c/#", "mine/+/#", "status", "$share/workers/jobs/#", "$share/others/jobs/#", qos=1
    )
    denied = Reason.NOT_AUTHORIZED
    assert granted == [1, denied, denied, 1, denied]
    assert broker.state.ctx.counters.dropped["not_authorized"] == 3
    assert await peer.publish("mine/c/2") == 0
    assert (await peer.message()).topic == b"mine/c/2"


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of refused packets, without the address."""
    found = [record for record in caplog.records if record.getMessage().endswith("_refused)")]
    assert {record.levelname for record in found} <= {"INFO"}
    assert all(record.getMessage().startswith("127.0.0.1:") for record in found)
    return [record.getMessage().partition(" of ")[2] for record in found]


async def test_a_refused_packet_leaves_a_line_with_the_rule(
    serve: Serve, join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    listeners = ["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"]
    file = tmp_path / "acl"
    broker = await serve(auth=rules(file, RULES + "- {deny: publish, topics: [door]}\n"), listeners=listeners)
    peer = await join(broker, "c", username="ann")
    assert await peer.publish("mine/c/1") == Reason.NO_MATCHING_SUBSCRIBERS and refusals(caplog) == []
    assert await peer.publish("mine/d\n") == Reason.NOT_AUTHORIZED
    assert await peer.publish("door", retain=True) == Reason.NOT_AUTHORIZED
    assert await peer.subscribe("mine/c/#", "secret", "other", "$share/others/jobs/#") == [0, 0x87, 0x87, 0x87]
    by_default, by_rule = "no rule matches; the default is to deny", f"rule 5 in {file} decides"
    assert refusals(caplog) == [
        f"client 'c', user 'ann': PUBLISH to 'mine/d\\n' at QoS 1 refused: {by_default} (publish_refused)",
        f"client 'c', user 'ann': PUBLISH to 'door' at QoS 1, retained, refused: {by_rule} (publish_refused)",
        f"client 'c', user 'ann': SUBSCRIBE to 'secret' refused: {by_default} (subscribe_refused)",
    ]
    caplog.clear()
    client = await nats.connect(broker.address("nats"), name="n")
    await client.publish("door", b"x")
    await client.subscribe("jobs.*", "others")
    await client.flush()
    await client.close()
    told = [line.partition(": ")[2] for line in refusals(caplog)]
    assert told == [
        f"PUBLISH to 'door' at QoS 0 refused: {by_rule} (publish_refused)",
        f"SUBSCRIBE to 'jobs/+' of the group 'others' refused: {by_default} (subscribe_refused)",
    ]


async def test_a_line_that_is_not_written_searches_no_rule(
    serve: Serve, join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("WARNING", "starlingmq.clients")
    searched: list[object] = []

    def search(*words: object) -> str:
        searched.append(words)
        return "rule 1"

    monkeypatch.setattr(AccessControl, "_search", search)
    broker = await serve(auth=rules(tmp_path / "acl"))
    peer = await join(broker, "c")
    assert await peer.publish("door") == Reason.NOT_AUTHORIZED
    assert not searched and not refusals(caplog)
    caplog.set_level("INFO", "starlingmq.clients")
    assert await peer.publish("door") == Reason.NOT_AUTHORIZED
    assert len(searched) == len(refusals(caplog)) == 1


async def test_a_line_about_a_refused_packet_is_short(
    serve: Serve, join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    broker = await serve(auth=rules(tmp_path / "acl"))
    peer = await join(broker, "c")
    assert await peer.subscribe(f"$share/{'g' * 30_000}/{'t' * 30_000}") == [Reason.NOT_AUTHORIZED]
    (line,) = refusals(caplog)
    assert len(line) < 1000 and f"'{'t' * 256}'… of the group '{'g' * 256}'…" in line


async def test_client_ids_of_the_file_are_no_reason_for_a_nats_client(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    file = tmp_path / "acl"
    broker = await serve(auth=rules(file, "clients: ['mqtt-*']\n" + RULES), listeners=["nats://127.0.0.1:0"])
    client = await nats.connect(broker.address("nats"), name="n")
    await client.publish("door", b"x")
    await client.flush()
    await client.close()
    (line,) = refusals(caplog)
    assert line.endswith("refused: no rule matches; the default is to deny (publish_refused)")


@pytest.mark.parametrize("line", ["- {deny: publish, topics: [door]}", "- {deny: publish, users: [eve]}"])
async def test_a_line_about_a_refused_packet_does_not_look_through_many_rules(
    serve: Serve, join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    """A search takes about half a second with a thousand rules for the client, in the event loop."""
    caplog.set_level("INFO", "starlingmq.clients")
    many = f"{line}\n" * (1001 if "users" in line else 21)
    broker = await serve(auth=rules(tmp_path / "acl", RULES + many))
    peer = await join(broker, "c", username="ann")
    assert await peer.publish("door") == Reason.NOT_AUTHORIZED
    assert [line.partition(" refused: ")[2] for line in refusals(caplog)] == [f"{DENIED} (publish_refused)"]


async def test_searches_for_lines_about_refused_packets_take_a_hundredth_of_the_time(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve(auth=rules(tmp_path / "acl"))
    refusal = Refusal("publish_refused", Client("mqtt://node", "127.0.0.1:1", 0.0), b"door", 0, False, b"", "")
    now, access = 1000.0, broker._access

    def searched(*words: object) -> str:
        nonlocal now
        now += 0.03
        return "rule 1"

    monkeypatch.setattr(access_control, "monotonic", lambda: now)
    monkeypatch.setattr(AccessControl, "_search", searched)
    assert [access.why_refused(refusal) for _ in range(4)] == ["rule 1", "rule 1", DENIED, DENIED]
    now += 3.0
    assert [access.why_refused(refusal) for _ in range(2)] == ["rule 1", DENIED]


async def test_a_refused_packet_leaves_a_line_if_a_hook_or_the_broker_refuses_it(
    serve: Serve, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    broker = await serve(authorize=lambda access: access.topic != "door", mqtt={"shared_subscription": False})
    peer = await join(broker, "c")
    assert await peer.publish("door") == await peer.publish("$SYS/broker/x") == Reason.NOT_AUTHORIZED
    assert await peer.subscribe("door", "window") == [Reason.NOT_AUTHORIZED, 0]
    assert await peer.subscribe("$share/g/window") == [Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED]
    assert [line.partition(" refused: ")[2] for line in refusals(caplog)] == [
        "a hook or auth.http refused it (publish_refused)",
        "only the broker publishes to this topic (publish_refused)",
        "a hook or auth.http refused it (subscribe_refused)",
        "mqtt.shared_subscription is false (subscribe_refused)",
    ]


async def test_lines_about_refused_packets_are_limited_and_the_rest_is_counted(
    serve: Serve, join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    broker = await serve(auth=rules(tmp_path / "acl"), limits={"log_rate": 1})
    peer = await join(broker, "c")
    for _ in range(50):
        assert await peer.publish("door") == Reason.NOT_AUTHORIZED
    assert broker._notices is not None
    broker._notices.flush()
    lines, counted = refusals(caplog), [record for record in caplog.records if "more were refused" in record.message]
    assert 1 <= len(lines) <= 10
    assert len(lines) + sum(record.count for record in counted) == 50  # type: ignore[attr-defined]
    assert broker.state.ctx.counters.noted["publish_refused"] == 50


async def test_a_client_without_a_reason_code_is_disconnected(serve: Serve, join: Join, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl"))
    old = await join(broker, "c", version=4)
    assert await old.subscribe("mine/d") == [0x80]
    assert await old.publish("mine/d", qos=1) == 0  # acknowledged, and dropped [MQTT-3.3.5-2]
    assert broker.state.ctx.counters.dropped["not_authorized"] == 1


async def test_qos_0_is_dropped_and_counted(serve: Serve, join: Join, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl"))
    peer = await join(broker, "c")
    await peer.publish("status", qos=0)
    await peer.publish("status", qos=0, retain=True)
    assert await peer.publish("mine/c") == Reason.NO_MATCHING_SUBSCRIBERS
    assert broker.state.ctx.counters.dropped["not_authorized"] == 1


@pytest.mark.parametrize(
    ("client", "topic", "reason"), [("bad", "mine/bad", 0x87), ("c", "mine/d", 0x87), ("c", "mine/c", 0)]
)
async def test_connect_and_wills(serve: Serve, tmp_path: Path, client: str, topic: str, reason: int) -> None:
    broker = await serve(auth=rules(tmp_path / "acl") | {"failures": {"delay": 0}})
    peer = await Peer.open(broker.address())
    peer.send(Connect(5, client, True, will=Will(topic.encode(), b"gone", 1)))
    assert (await peer.expect(Connack)).reason == reason
    await peer.close()


async def test_new_rules_end_what_they_do_not_allow(serve: Serve, join: Join, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl", "rules: [{allow: all}]"))
    reader, writer = await join(broker, "r"), await join(broker, "w")
    assert await reader.subscribe("a/#", "b", qos=1) == [1, 1]
    assert await writer.publish("a/1") == 0 and (await reader.message()).topic == b"a/1"
    rules(tmp_path / "acl", "rules: [{allow: publish}, {allow: subscribe, topics: [b]}]")
    broker.reload(broker.config)
    assert await writer.publish("a/2") == Reason.NO_MATCHING_SUBSCRIBERS
    assert await writer.publish("b") == 0 and (await reader.message()).topic == b"b"
    assert broker.state.ctx.counters.noted["subscription_revoked"] == 1
    rules(tmp_path / "acl", "rules: [{deny: publish, topics: [b]}, {allow: all}]")
    broker.reload(broker.config)
    assert await writer.publish("b") == Reason.NOT_AUTHORIZED


async def test_a_client_that_returns_is_checked_by_the_present_rules(serve: Serve, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl", "rules: [{allow: all}]"))
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    assert await peer.subscribe("a", "b", qos=1) == [1, 1]
    await peer.close()
    rules(tmp_path / "acl", "rules: [{deny: subscribe, topics: [a]}, {allow: all}]")
    broker.reload(broker.config)
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    writer = await Peer.connect(broker.address(), "w", 5)
    assert await writer.publish("a") == Reason.NO_MATCHING_SUBSCRIBERS
    assert await writer.publish("b") == 0 and (await peer.message()).topic == b"b"
    await peer.close()
    await writer.close()


async def test_new_rules_apply_to_queued_messages(serve: Serve, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl", "rules: [{allow: all}]"))
    counters = broker.state.ctx.counters
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    assert await peer.subscribe("plant/#", qos=1) == [1]
    await peer.close()
    writer = await Peer.connect(broker.address(), "w", 5)
    for number in range(3):
        assert await writer.publish("plant/open", b"%d" % number) == 0
        assert await writer.publish("plant/secret", b"%d" % number) == 0
    rules(tmp_path / "acl", "rules: [{deny: subscribe, topics: [plant/secret]}, {allow: all}]")
    broker.reload(broker.config)
    assert await writer.publish("plant/secret", b"later") == 0, "who is away has it until it comes back"
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    for number in range(3):
        message = await peer.message()
        assert (message.topic, message.payload) == (b"plant/open", b"%d" % number)
    assert counters.dropped["revoked"] == 4
    assert await peer.subscribe("plant/open", qos=1) == [1]
    assert await writer.publish("plant/open", b"new") == 0 and (await peer.message()).payload == b"new"
    session = broker.state.ctx.sessions["r"]
    assert (session.dropped, session.rules) == (4, broker.state.ctx.rules), "nothing is looked at any more"
    await peer.close()
    await writer.close()


async def test_a_user_who_shares_a_client_id_gets_nothing_that_it_may_not_have(serve: Serve, tmp_path: Path) -> None:
    text = "rules: [{allow: publish}, {allow: subscribe, users: [ann]}, {allow: subscribe, topics: [open]}]"
    broker = await serve(auth={"session_owner": "client_id", **rules(tmp_path / "acl", text)})
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False, username="ann")
    assert await peer.subscribe("open", "secret", qos=1) == [1, 1]
    await peer.close()
    writer = await Peer.connect(broker.address(), "w", 5)
    for topic in ("secret", "open", "secret"):
        assert await writer.publish(topic) == 0
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False, username="bob")
    assert (await peer.message()).topic == b"open"
    assert broker.state.ctx.counters.dropped["revoked"] == 2
    await peer.close()
    await writer.close()


async def test_new_rules_apply_to_retransmissions_too(serve: Serve, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl", "rules: [{allow: all}]"))
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    assert await peer.subscribe("once", "twice", qos=2) == [2, 2]
    writer = await Peer.connect(broker.address(), "w", 5)
    assert await writer.publish("once", b"1", 1) == 0 and await writer.publish("twice", b"2", 2) == 0
    for _ in range(2):
        await peer.expect(Publish)  # which is not acknowledged
    await peer.close()
    rules(tmp_path / "acl", "rules: [{allow: publish}]")
    broker.reload(broker.config)
    peer = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    again = await peer.expect(Publish)
    assert (again.topic, again.qos, again.dup) == (b"twice", 2, True), "a handshake goes on"
    assert broker.state.ctx.counters.dropped["revoked"] == 1
    await peer.close()
    await writer.close()


async def test_a_member_that_loses_its_right_gets_no_more_messages_of_the_group(serve: Serve, tmp_path: Path) -> None:
    broker = await serve(auth=rules(tmp_path / "acl", "rules: [{allow: all}]"))
    one, other, writer = [await Peer.connect(broker.address(), name, 5) for name in ("one", "other", "w")]
    assert await one.subscribe("$share/g/jobs", qos=1) == [1] and await other.subscribe("$share/g/jobs", qos=1) == [1]
    rules(tmp_path / "acl", "rules: [{deny: group, clients: [one]}, {allow: all}]")
    broker.reload(broker.config)
    for number in range(20):
        assert await writer.publish("jobs", b"%d" % number) == 0
        assert (await other.message()).payload == b"%d" % number
    for each in (one, other, writer):
        await each.close()


async def test_nats_clients(serve: Serve, tmp_path: Path) -> None:
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"],
        auth=rules(
            tmp_path / "acl",
            "rules: [{allow: publish, topics: [a/b]}, {allow: subscribe, topics: ['a/#', '_INBOX/#']}]",
        ),
    )
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error))

    client = await nats.connect(broker.address("nats"), error_cb=note)
    allowed = await client.subscribe("a.>")
    await client.subscribe("c")
    await client.publish("a.b", b"1")
    await client.publish("c", b"2")
    await client.flush()
    assert (await allowed.next_msg(5)).data == b"1"
    assert [error for error in errors if "ermissions" in error and '"c"' in error][1:], errors
    await client.close()


async def test_client_ids_belong_to_users(serve: Serve, tmp_path: Path) -> None:
    text = "clients: ['%u', '%u-*']\ndefault: allow\nrules: [{allow: connect}]"
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"],
        auth={**rules(tmp_path / "acl", text), "allow_anonymous": True, "failures": {"delay": 0}},
    )
    for client, user, version, reason in (
        ("ann-1", "ann", 5, 0),
        ("", "ann", 5, 0),  # the broker chooses one
        ("bob", "ann", 5, Reason.CLIENT_IDENTIFIER_NOT_VALID),
        ("bob", "ann", 4, 2),
        ("bob", None, 5, Reason.CLIENT_IDENTIFIER_NOT_VALID),
    ):
        peer = await Peer.open(broker.address(), version)
        peer.send(Connect(version, client, True, username=user))
        assert (await peer.expect(Connack)).reason == reason, (client, user)
        await peer.close()
    other = await nats.connect(broker.address("nats"), user="ann", password="x")  # has no client id
    await other.close()


async def test_a_rule_about_all_denies_what_begins_with_a_dollar_sign(serve: Serve, tmp_path: Path) -> None:
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"],
        auth=rules(
            tmp_path / "acl",
            "{default: allow, rules: [{deny: [publish, subscribe, group], users: [bob]}, {allow: all}]}",
        )
        | {"allow_anonymous": True, "failures": {"delay": 0}},
    )
    denied = Reason.NOT_AUTHORIZED
    bob = await Peer.connect(broker.address(), "b", 5, username="bob")
    filters = ("$x/#", "$share/g/$x/#", "$share/$g/$JS/#", "$JS/#", "$SYS/#", "$events/#", "#")
    assert await bob.subscribe(*filters, qos=1) == [denied] * len(filters)
    assert await bob.publish("$x/1") == denied and await bob.publish("$x/1", qos=2, retain=True) == denied
    ann = await Peer.connect(broker.address(), "a", 5, username="ann")
    assert await ann.subscribe("$x/#", "$share/g/$x/#", "$events/#", qos=1) == [1, 1, denied]
    assert await ann.publish("$x/1", retain=True) == 0
    willing = await Peer.open(broker.address())
    willing.send(Connect(5, "w", True, username="bob", will=Will(b"$x/gone", b"", 0)))
    assert (await willing.expect(Connack)).reason == denied
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error))

    client = await nats.connect(broker.address("nats"), user="bob", password="x", error_cb=note)
    await client.subscribe("$x.>")
    await client.subscribe("$x.>", queue="g")
    await client.publish("$x.1", b"")
    await client.flush()
    assert len([error for error in errors if "ermissions" in error]) == 3, errors
    await client.close()
    for peer in (bob, ann, willing):
        await peer.close()


FILTERED = """rules:
- {deny: subscribe, topics: ['home/safe/#']}
- {allow: subscribe, topics: ['home/#', 'mine/%c/#']}
- {allow: group, topics: ['home/#'], groups: [g]}
- {allow: publish, topics: ['#']}
"""


def filtered(path: Path, text: str = FILTERED) -> dict[str, object]:
    path.write_text(text)
    return {"acl": {"file": str(path), "filter": "deliver"}}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_subscription_denied_in_part_delivers_the_rest(
    serve: Serve, join: Join, tmp_path: Path, version: int
) -> None:
    broker = await serve(auth=filtered(tmp_path / "acl"))
    writer = await join(broker, "w")
    for topic in ("home/safe/pin", "home/hall", "mine/d/kept"):
        await writer.publish(topic, retain=True)
    reader = await join(broker, "r", version=version)
    denied = Reason.NOT_AUTHORIZED if version == 5 else 0x80
    granted = await reader.subscribe("#", "+/+/+", "home/safe/#", "other/#", "$SYS/#", "$share/g/home/+/#", qos=1)
    assert granted == [1, 1, denied, denied, denied, denied]
    assert (await reader.message()).topic == b"home/hall"  # the only retained message that it may read
    for topic in ("home/safe/pin", "mine/d/x", "mine/r/x", "home/door", "other/x", "home/end"):
        await writer.publish(topic)
    assert [(await reader.message()).topic for _ in range(3)] == [b"mine/r/x", b"home/door", b"home/end"]


async def test_messages_that_wait_are_left_out_too_also_after_the_rules_have_changed(
    serve: Serve, join: Join, tmp_path: Path
) -> None:
    broker = await serve(auth=filtered(tmp_path / "acl"))
    writer = await join(broker, "w")
    reader = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    assert await reader.subscribe("#", qos=1) == [1]
    await reader.close()
    for topic in ("home/safe/1", "home/1", "mine/d/1", "home/2/cellar"):
        await writer.publish(topic)
    filtered(tmp_path / "acl", FILTERED.replace("home/safe/#", "home/+/cellar"))
    broker.reload(broker.config)
    await writer.publish("home/safe/2")  # left out: the rules with which the client left decide until it is back
    reader = await Peer.connect(broker.address(), "r", 4, clean_start=False)
    assert (await reader.message()).topic == b"home/1"
    for topic in ("home/3/cellar", "home/safe/3", "home/end"):
        await writer.publish(topic)
    assert [(await reader.message()).topic for _ in range(2)] == [b"home/safe/3", b"home/end"]
    await reader.close()


async def test_without_the_setting_a_subscription_denied_in_part_is_refused(
    serve: Serve, join: Join, tmp_path: Path
) -> None:
    broker = await serve(auth=rules(tmp_path / "acl", FILTERED))
    reader = await join(broker, "r")
    assert await reader.subscribe("#", "home/#", "mine/r/#") == [0x87, 0x87, 0]


async def test_without_rules_nothing_is_left_out_any_more(serve: Serve, join: Join, tmp_path: Path) -> None:
    broker = await serve(auth=filtered(tmp_path / "acl"))
    reader, writer = await join(broker, "r"), await join(broker, "w")
    assert await reader.subscribe("#", qos=1) == [1]
    broker.reload(msgspec.structs.replace(broker.config, auth=load_config(None, []).auth))
    await writer.publish("home/safe/1")
    assert (await reader.message()).topic == b"home/safe/1"


async def test_rules_of_a_listener_are_for_those_who_come_by_it_also_after_a_reload(
    serve: Serve, tmp_path: Path
) -> None:
    text = "rules: [{deny: publish, topics: [inside], listeners: ['%s']}, {allow: all}]"
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "mqtt://127.0.0.1:0"], auth=rules(tmp_path / "acl", "rules: []")
    )
    inner, outer = broker.addresses
    peers = []
    for number, url in enumerate((inner, outer)):
        peer = await Peer.open(url)
        peer.send(Connect(5, f"c{number}", True))
        assert (await peer.expect(Connack)).reason == 0
        peers.append(peer)
    for closed in (outer, inner):
        rules(tmp_path / "acl", text % closed)
        broker.reload(broker.config)
        for url, peer in zip((inner, outer), peers, strict=True):
            allowed = await peer.publish("inside") != Reason.NOT_AUTHORIZED
            assert allowed == (url != closed)
    for peer in peers:
        await peer.close()
