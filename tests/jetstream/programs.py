"""Programs as users of nats.py write them. Each begins with a server that has no streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    ObjectMeta,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import KeyNotFoundError
from tests.jetstream.api_program import SECOND, THEMES, consumer
from tests.jetstream.twin import PATIENCE, QUIET, Program, Recorder, delivered, message
from tests.patience import within

SUBJECT: Final = "s.a"
MANY: Final = 250_000  # bytes of an object: two chunks


def theme(name: str) -> Program:
    async def program(at: Recorder) -> None:
        for subject, payload in THEMES[name]:
            await at.ask(subject, payload)

    return program


async def filled(at: Recorder, count: int = 5, **config: Any) -> None:
    """A stream S with messages s.0 to s.2."""
    await at.js.add_stream(StreamConfig(name="S", subjects=["s.>"], **config))
    for number in range(count):
        await at.js.publish(f"s.{number % 3}", b"%d" % number)


async def state(at: Recorder, name: str = "S") -> None:
    await at.ask(f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True})


async def next_of(subscription: Any, at: Recorder, what: str) -> Msg | None:
    """The next message, which is noted, or that none comes."""
    try:
        found: Msg = await subscription.next_msg(timeout=PATIENCE)
    except nats.errors.TimeoutError:
        at.note(what, "nothing")
        return None
    at.note(what, delivered(found) if found.reply.startswith("$JS") else message(found))
    return found


async def quiet(subscription: Any, at: Recorder, what: str) -> None:
    try:
        at.note(what, message(await subscription.next_msg(timeout=QUIET)))
    except nats.errors.TimeoutError:
        at.note(what, "nothing")


async def publishing(at: Recorder) -> None:
    publish = at.js.publish
    await at.tried("no stream", publish("nobody", b""))
    await at.js.add_stream(StreamConfig(name="S", subjects=["s.>"], max_msg_size=100))
    await at.tried("first", publish(SUBJECT, b"1"))
    await at.tried("headers", publish(SUBJECT, b"2", headers={"X": "y"}))
    await at.tried("id", publish(SUBJECT, b"3", headers={"Nats-Msg-Id": "one"}))
    await at.tried("the same id", publish(SUBJECT, b"4", headers={"Nats-Msg-Id": "one"}))
    await at.tried("another id", publish("s.b", b"5", headers={"Nats-Msg-Id": "two"}))
    for header, value in (
        ("Nats-Expected-Stream", "S"),
        ("Nats-Expected-Stream", "T"),
        ("Nats-Expected-Last-Sequence", "5"),
        ("Nats-Expected-Last-Sequence", "5"),
        ("Nats-Expected-Last-Sequence", "nonsense"),
        ("Nats-Expected-Last-Msg-Id", "two"),
        ("Nats-Expected-Last-Subject-Sequence", "6"),
        ("Nats-Expected-Last-Subject-Sequence", "1"),
        ("Nats-Expected-Last-Subject-Sequence", "0"),
        ("Nats-Rollup", "sub"),
        ("Nats-TTL", "5s"),
        ("Nats-TTL", "nonsense"),
    ):
        await at.tried(f"{header}: {value}", publish(SUBJECT, b"6", headers={header: value}))
    both = {"Nats-Expected-Last-Subject-Sequence": "4", "Nats-Expected-Last-Subject-Sequence-Subject": "s.b"}
    await at.tried("of another subject", publish(SUBJECT, b"7", headers=both))
    await at.tried("of a filter", publish("s.c", b"7", headers={**both, next(reversed(both)): "s.*"}))
    await at.tried("too large", publish(SUBJECT, b"x" * 101))
    await state(at)
    await at.js.add_stream(StreamConfig(name="R", subjects=["r.>"], allow_rollup_hdrs=True, allow_msg_ttl=True))
    for number in range(3):
        await publish(f"r.{number % 2}", b"%d" % number)
    await at.tried("roll up a subject", publish("r.0", b"all", headers={"Nats-Rollup": "sub"}))
    await state(at, "R")
    await at.tried("roll up all", publish("r.1", b"all", headers={"Nats-Rollup": "all"}))
    await at.tried("roll up nonsense", publish("r.1", b"all", headers={"Nats-Rollup": "nonsense"}))
    for value in ("never", "1h", "2", "0", "1ms", "nonsense"):
        await at.tried(f"TTL {value}", publish("r.ttl", b"all", headers={"Nats-TTL": value}))
    await state(at, "R")
    await at.js.add_stream(StreamConfig(name="SILENT", subjects=["silent"], no_ack=True))
    answers = await at.client.subscribe("answers")
    await at.client.publish("silent", b"1", reply="answers")
    await at.client.flush()
    await quiet(answers, at, "no acknowledgement")
    await state(at, "SILENT")


async def limits(at: Recorder) -> None:
    for name, config in {
        "OLD": StreamConfig(max_msgs=3),
        "NEW": StreamConfig(max_msgs=3, discard=DiscardPolicy.NEW),
        "PER": StreamConfig(max_msgs_per_subject=1),
        "EACH": StreamConfig(max_msgs_per_subject=1, discard=DiscardPolicy.NEW, discard_new_per_subject=True),
        "BYTES": StreamConfig(max_bytes=300),
        "FULL": StreamConfig(max_bytes=300, discard=DiscardPolicy.NEW),
        "MEMORY": StreamConfig(max_msgs=2, storage=StorageType.MEMORY),
        "LATER": StreamConfig(max_msgs=2, first_seq=100),
    }.items():
        config.name, config.subjects = name, [f"{name}.>"]
        await at.js.add_stream(config)
        for number in range(5):
            work = at.js.publish(f"{name}.{number % 2}", b"x" * 40)
            await at.tried(f"{name} {number}", work)
        await state(at, name)
    await at.ask("STREAM.UPDATE.OLD", {"name": "OLD", "subjects": ["OLD.>"], "max_msgs": 1})
    await state(at, "OLD")
    await at.ask("INFO")


async def pull(at: Recorder) -> None:
    await filled(at, 10)
    config = ConsumerConfig(ack_wait=0.5, max_deliver=3)
    subscription = await at.js.pull_subscribe("s.>", "D", config=config)
    first, second, third, fourth, fifth, sixth = await subscription.fetch(6, timeout=PATIENCE)
    at.note("fetched", [delivered(each) for each in (first, second, third, fourth, fifth, sixth)])
    at.note("metadata", {"sequence": first.metadata.sequence, "pending": first.metadata.num_pending})
    await first.ack_sync(timeout=PATIENCE)
    await second.nak()
    await third.term()
    await fifth.in_progress()
    await sixth.ack_sync(timeout=PATIENCE)
    await at.client.flush()
    (again,) = await subscription.fetch(1, timeout=PATIENCE)
    at.note("refused, and back", delivered(again))
    await again.ack_sync(timeout=PATIENCE)
    await fourth.ack_sync(timeout=PATIENCE)
    await fifth.ack_sync(timeout=PATIENCE)
    await at.ask("CONSUMER.INFO.S.D")
    (late,) = await subscription.fetch(1, timeout=PATIENCE)
    await late.nak(delay=0.3)
    rest = await subscription.fetch(3, timeout=PATIENCE)
    at.note("the rest", [delivered(each) for each in rest])
    for each in rest:
        await each.ack_sync(timeout=PATIENCE)
    (late,) = await subscription.fetch(1, timeout=PATIENCE)
    at.note("after its delay", delivered(late))
    (late,) = await subscription.fetch(1, timeout=PATIENCE)
    at.note("after its time to acknowledge", delivered(late))
    await late.ack_sync(timeout=PATIENCE)
    await at.tried("none is left", subscription.fetch(1, timeout=QUIET))
    await at.ask("CONSUMER.INFO.S.D")
    await subscription.unsubscribe()


async def pull_requests(at: Recorder) -> None:
    """The answers to requests for messages, as they are on the wire."""
    await filled(at, 3)
    config = {
        "durable_name": "D",
        "ack_policy": "explicit",
        "max_batch": 5,
        "max_expires": 60 * SECOND,
        "max_waiting": 1,
    }
    await at.ask("CONSUMER.DURABLE.CREATE.S.D", {"stream_name": "S", "config": config})
    await at.js.add_consumer("S", ConsumerConfig(durable_name="P", deliver_subject="push"))

    async def asks(payload: Any, consumer: str = "D", answers: int = 1) -> None:
        inbox = at.client.new_inbox()
        subscription = await at.client.subscribe(inbox)
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        await at.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}", data, reply=inbox)
        for number in range(answers):
            found = await subscription.next_msg(timeout=PATIENCE)
            told = delivered(found) if found.reply.startswith("$JS") else message(found)
            at.note(f"{payload} {number}", {**told, "subject": told["subject"].replace(inbox, "inbox")})
        await subscription.unsubscribe()
        await at.client.flush()

    await asks(b"")
    await asks(b"2", answers=2)
    await asks({"batch": 1, "no_wait": True})
    await asks({"batch": 1, "expires": 50_000_000})
    await asks({"batch": 6})
    await asks({"batch": 1, "expires": 61_000_000_000})
    await asks({"batch": 1, "expires": 1_000_000_000, "idle_heartbeat": 900_000_000})
    await asks({"batch": 2, "expires": 1_000_000_000, "idle_heartbeat": 200_000_000}, answers=2)
    await asks({"batch": 1}, consumer="P")
    await asks({"batch": 1}, consumer="NONE")
    await at.js.publish("s.0", b"x" * 100)
    await asks({"batch": 1, "max_bytes": 50, "expires": 500_000_000})
    await asks({"batch": 1, "max_bytes": 500, "expires": 500_000_000})
    inbox = await at.client.subscribe("deleted")
    await at.client.publish("$JS.API.CONSUMER.MSG.NEXT.S.D", b'{"batch": 1}', reply="deleted")
    await at.client.flush()
    await at.js.delete_consumer("S", "D")
    await next_of(inbox, at, "deleted meanwhile")


async def push(at: Recorder) -> None:
    await filled(at, 6)
    subscription = await at.js.subscribe("s.>", durable="P", manual_ack=True)
    for _ in range(6):
        pushed = await next_of(subscription, at, "pushed")
        assert pushed is not None
        await pushed.ack_sync(timeout=PATIENCE)
    await at.ask("CONSUMER.INFO.S.P")
    await subscription.unsubscribe()
    together: asyncio.Queue[Msg] = asyncio.Queue()

    async def take(msg: Msg) -> None:
        await together.put(msg)

    members = [await at.js.subscribe("s.>", queue="workers", cb=take, manual_ack=True) for _ in range(3)]
    found: list[dict[str, Any]] = []
    async with within(PATIENCE):
        while len(found) < 6:
            each = await together.get()
            await each.ack_sync(timeout=PATIENCE)
            found.append(delivered(each))
    at.note("to a group", sorted(found, key=lambda each: int(each["data"])))
    await at.ask("CONSUMER.INFO.S.workers")
    for member in members:
        await member.unsubscribe()
    plain = await at.js.subscribe(
        "s.1",
        config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.LAST),
        headers_only=True,
    )
    found_last = await plain.next_msg(timeout=PATIENCE)
    at.note("the last one, without payload", message(found_last))
    await plain.unsubscribe()


async def ordered(at: Recorder) -> None:
    await filled(at, 20)
    subscription = await at.js.subscribe("s.>", ordered_consumer=True)
    for number in range(20):
        found = await subscription.next_msg(timeout=PATIENCE)
        at.note(f"message {number}", (message(found), found.metadata.sequence, found.metadata.num_pending))
    await at.js.publish("s.1", b"later")
    found = await subscription.next_msg(timeout=PATIENCE)
    at.note("a later one", message(found))
    await subscription.unsubscribe()


async def starts(at: Recorder) -> None:
    """Where a consumer starts."""
    await filled(at, 7)

    async def asked(subject: str, request: Any = None) -> Any:
        data = json.dumps(request).encode() if request else b""
        return json.loads((await at.client.request(f"$JS.API.{subject}", data, timeout=PATIENCE)).data)

    fifth = (await asked("STREAM.MSG.GET.S", {"seq": 5}))["message"]["time"]
    configs: tuple[dict[str, Any], ...] = (
        {"deliver_policy": "all"},
        {"deliver_policy": "last"},
        {"deliver_policy": "new"},
        {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 4},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 99},
        {"deliver_policy": "by_start_time", "opt_start_time": fifth},
        {"deliver_policy": "by_start_time", "opt_start_time": "2200-01-01T00:00:00Z"},
        {"deliver_policy": "all", "filter_subjects": ["s.1", "s.2"]},
        {"deliver_policy": "last", "filter_subject": "s.1"},
        {"deliver_policy": "all", "filter_subject": "none"},
    )
    for number, config in enumerate(configs):
        name = f"C{number}"
        await asked(*consumer(name, ack_policy="explicit", **config))
        found = await asked(f"CONSUMER.INFO.S.{name}")
        found["config"].pop("opt_start_time", None)
        at.note(f"{name} before", found)
        if found["num_pending"]:
            subscription = await at.js.pull_subscribe_bind(name, "S")
            messages = await subscription.fetch(found["num_pending"], timeout=PATIENCE)
            at.note(name, [delivered(each) for each in messages])
            await subscription.unsubscribe()
        found = await asked(f"CONSUMER.INFO.S.{name}")
        found["config"].pop("opt_start_time", None)
        at.note(f"{name} after", {**found, "num_waiting": 0})


async def retention(at: Recorder) -> None:
    await at.js.add_stream(StreamConfig(name="W", subjects=["w.>"], retention=RetentionPolicy.WORK_QUEUE))
    for number in range(4):
        await at.js.publish(f"w.{number % 2}", b"%d" % number)
    subscription = await at.js.pull_subscribe("w.0", "A", stream="W")
    for each in await subscription.fetch(2, timeout=PATIENCE):
        await each.ack_sync(timeout=PATIENCE)
    await state(at, "W")
    await at.tried("a second one", at.js.pull_subscribe("w.>", "B", stream="W"))
    other = await at.js.pull_subscribe("w.1", "C", stream="W")
    first, second = await other.fetch(2, timeout=PATIENCE)
    await first.term()
    await second.ack_sync(timeout=PATIENCE)
    await state(at, "W")
    await at.js.add_stream(StreamConfig(name="I", subjects=["i.>"], retention=RetentionPolicy.INTEREST))
    await at.tried("without interest", at.js.publish("i.a", b"1"))
    await state(at, "I")
    one = await at.js.pull_subscribe("i.>", "A", stream="I")
    two = await at.js.pull_subscribe("i.a", "B", stream="I")
    await at.js.publish("i.a", b"2")
    await at.js.publish("i.b", b"3")
    await at.js.publish("i.a", b"4")
    for each in await one.fetch(3, timeout=PATIENCE):
        await each.ack_sync(timeout=PATIENCE)
    await state(at, "I")
    (found,) = await two.fetch(1, timeout=PATIENCE)
    await found.ack_sync(timeout=PATIENCE)
    await state(at, "I")
    await at.js.delete_consumer("I", "B")
    await state(at, "I")


async def acknowledgements(at: Recorder) -> None:
    """Of all up to one, of none, and more than may be pending."""
    await filled(at, 8)
    await at.js.add_consumer("S", ConsumerConfig(durable_name="ALL", ack_policy=AckPolicy.ALL))
    subscription = await at.js.pull_subscribe_bind("ALL", "S")
    found = await subscription.fetch(5, timeout=PATIENCE)
    await found[3].ack_sync(timeout=PATIENCE)
    await at.ask("CONSUMER.INFO.S.ALL")
    await at.js.add_consumer("S", ConsumerConfig(durable_name="NONE", ack_policy=AckPolicy.NONE))
    subscription = await at.js.pull_subscribe_bind("NONE", "S")
    found = await subscription.fetch(5, timeout=PATIENCE)
    await at.ask("CONSUMER.INFO.S.NONE")
    await at.js.add_consumer("S", ConsumerConfig(durable_name="FEW", max_ack_pending=2))
    subscription = await at.js.pull_subscribe_bind("FEW", "S")
    found = await subscription.fetch(2, timeout=PATIENCE)
    at.note("two at a time", [delivered(each) for each in found])
    await at.tried("no more", subscription.fetch(1, timeout=QUIET))
    for each in found:
        await each.ack_sync(timeout=PATIENCE)
    at.note("the next two", [delivered(each) for each in await subscription.fetch(2, timeout=PATIENCE)])
    await at.js.add_consumer(
        "S", ConsumerConfig(durable_name="TWICE", max_deliver=2, ack_wait=0.2, filter_subject="s.only")
    )
    await at.js.publish("s.only", b"1")
    advisories = await at.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.TWICE")
    await at.client.flush()
    subscription = await at.js.pull_subscribe_bind("TWICE", "S")
    for _ in range(2):
        (found_once,) = await subscription.fetch(1, timeout=PATIENCE)
        at.note("delivered", delivered(found_once))
    await at.tried("not a third time", subscription.fetch(1, timeout=3 * QUIET))
    at.note("advisory", json.loads((await advisories.next_msg(timeout=PATIENCE)).data))


async def advisories(at: Recorder) -> None:
    events = await at.client.subscribe("$JS.EVENT.ADVISORY.STREAM.>")
    others = await at.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.>")
    await at.client.flush()
    await filled(at, 2)
    await at.js.update_stream(StreamConfig(name="S", subjects=["s.>"], description="x"))
    await at.js.add_consumer("S", ConsumerConfig(durable_name="D"))
    await at.ask("CONSUMER.PAUSE.S.D", {"pause_until": "2200-01-01T00:00:00Z"})
    await at.ask("CONSUMER.PAUSE.S.D")
    subscription = await at.js.pull_subscribe_bind("D", "S")
    first, second = await subscription.fetch(2, timeout=PATIENCE)
    await first.nak()
    await second.term()
    await at.client.flush()
    await at.js.delete_consumer("S", "D")
    await at.js.delete_stream("S")
    for subscription_of, count in ((events, 3), (others, 6)):
        found = [await subscription_of.next_msg(timeout=PATIENCE) for _ in range(count)]
        told = [(each.subject, json.loads(each.data)) for each in found]
        at.note("advisories", sorted(told, key=lambda each: (each[0], str(each[1].get("paused")))))


async def removing(at: Recorder) -> None:
    await filled(at, 30)
    for request in (
        {"seq": 5},
        {"keep": 20},
        {"filter": "s.1", "keep": 2},
        {"filter": "s.2", "seq": 20},
        {"filter": "none"},
        {"filter": "s.0"},
    ):
        await at.ask("STREAM.PURGE.S", request)
        await state(at)
    for seq, erase in ((26, True), (26, True), (29, False), (1, True), (99, True)):
        await at.ask("STREAM.MSG.DELETE.S", {"seq": seq, "no_erase": not erase})
    await state(at)
    await at.ask("STREAM.PURGE.S")
    await state(at)
    await at.tried("the next one", at.js.publish("s.1", b"next"))


async def getting(at: Recorder) -> None:
    await filled(at, 9, allow_direct=True)
    await at.js.publish("s.1", b"with headers", headers={"A": "b"})
    await at.js.delete_msg("S", 4)
    forms: list[dict[str, Any]] = [
        {"seq": 2},
        {"seq": 4},
        {"seq": 99},
        {"seq": 10},
        {"last_by_subj": "s.1"},
        {"last_by_subj": "s.*"},
        {"last_by_subj": "none"},
        {"next_by_subj": "s.1"},
        {"seq": 3, "next_by_subj": "s.0"},
        {"seq": 3, "next_by_subj": "s.>"},
        {"start_time": "2001-01-01T00:00:00Z"},
        {"start_time": "2200-01-01T00:00:00Z"},
        {"seq": 10, "no_hdr": True},
    ]
    for form in forms:
        await at.ask("STREAM.MSG.GET.S", form)
    await at.js.add_stream(StreamConfig(name="T"))
    await at.ask("DIRECT.GET.T", {"seq": 1})
    await at.ask("DIRECT.GET.NONE", {"seq": 1})
    for subject, payload in (
        *[("DIRECT.GET.S", form) for form in forms],
        ("DIRECT.GET.S", b""),
        ("DIRECT.GET.S", b"{}"),
        ("DIRECT.GET.S", b"{"),
        ("DIRECT.GET.S", {"seq": 1, "last_by_subj": "x"}),
        ("DIRECT.GET.S.s.1", b""),
        ("DIRECT.GET.S.s.>", b""),
        ("DIRECT.GET.S.*.0", b""),
        ("DIRECT.GET.S.none", b""),
        ("DIRECT.GET.S.s.1", {"seq": 1}),
    ):
        await at.ask(subject, payload)
    await at.ask("DIRECT.GET.S", {"seq": 1}, headers={"Nats-Required-Api-Level": "99"})
    await at.ask("STREAM.INFO.S", headers={"Nats-Required-Api-Level": "99"})
    await at.ask("STREAM.NAMES", headers={"Nats-Required-Api-Level": "1"})
    for request in (
        {"seq": 1, "batch": 3},
        {"seq": 4, "batch": 100},
        {"seq": 1, "batch": 2, "next_by_subj": "s.1"},
        {"seq": 99, "batch": 2},
        {"seq": 1, "batch": 9, "max_bytes": 1},
        {"next_by_subj": "none", "batch": 2},
        {"multi_last": ["s.0", "s.1"]},
        {"multi_last": ["s.>"]},
        {"multi_last": ["s.>"], "up_to_seq": 6},
        {"multi_last": ["s.>"], "batch": 2},
        {"multi_last": ["none"]},
        {"multi_last": ["s.>"], "up_to_time": "2001-01-01T00:00:00Z"},
    ):
        await batch(at, request)


async def batch(at: Recorder, request: dict[str, Any]) -> None:
    inbox = at.client.new_inbox()
    subscription = await at.client.subscribe(inbox)
    await at.client.publish("$JS.API.DIRECT.GET.S", json.dumps(request).encode(), reply=inbox)
    while True:
        found = await subscription.next_msg(timeout=PATIENCE)
        at.note(f"{request}", {**message(found), "subject": ""})
        if "Status" in (found.headers or {}):
            break
    await subscription.unsubscribe()


async def keys(at: Recorder) -> None:
    await at.tried("no bucket", at.js.key_value("B"))
    store: Any = await at.js.create_key_value(bucket="B", history=3, ttl=3600, description="of the test")
    await at.ask("STREAM.INFO.KV_B")
    for key in ("a", "b", "a", "a", "a", "c.d"):
        await at.tried(f"put {key}", store.put(key, b"of " + key.encode()))
    await at.tried("get", store.get("a"))
    await at.tried("an old revision", store.get("a", revision=4))
    await at.tried("of another key", store.get("a", revision=2))
    await at.tried("none", store.get("none"))
    await at.tried("create", store.create("new", b"1"))
    await at.tried("create again", store.create("new", b"1"))
    await at.tried("update", store.update("new", b"2", last=7))
    await at.tried("update late", store.update("new", b"3", last=7))
    await at.tried("delete late", store.delete("new", last=7))
    await at.tried("delete", store.delete("new"))
    await at.tried("deleted", store.get("new"))
    await at.tried("create what was deleted", store.create("new", b"4"))
    await at.tried("history", history(store, "a"))
    await at.tried("keys", store.keys())
    watcher: Any = await store.watch("a")
    for _ in range(2):
        at.note("watched", await watcher.updates(timeout=PATIENCE))
    await store.put("b", b"unseen")
    await store.put("a", b"seen")
    at.note("watched later", await watcher.updates(timeout=PATIENCE))
    await store.purge("a")
    at.note("watched last", await watcher.updates(timeout=PATIENCE))
    await watcher.stop()
    watcher = await store.watchall(include_history=True, ignore_deletes=False)
    while (found := await watcher.updates(timeout=PATIENCE)) is not None:
        at.note("all", found)
    await watcher.stop()
    await at.tried("history of a purged one", history(store, "a"))
    await store.purge_deletes(olderthan=-1)
    await at.tried("status", store.status())
    await at.ask("STREAM.INFO.KV_B", {"subjects_filter": ">"})
    await at.tried("delete the bucket", at.js.delete_key_value("B"))
    await at.tried("gone", at.js.key_value("B"))
    short = await at.js.create_key_value(bucket="SHORT", ttl=0.2, storage=StorageType.MEMORY)
    await short.put("a", b"1")
    async with within(PATIENCE):
        while True:
            try:
                await short.get("a")
            except KeyNotFoundError:
                break
    at.note("it ended", await short.status())


async def history(store: Any, key: str) -> list[Any]:
    return list(await store.history(key))


async def objects(at: Recorder) -> None:
    await at.tried("no store", at.js.object_store("O"))
    store: Any = await at.js.create_object_store(bucket="O", description="of the test")
    await at.ask("STREAM.INFO.OBJ_O")
    data = bytes(range(256)) * (MANY // 256)
    info = await store.put("big", data)
    at.note("put", {"size": info.size, "chunks": info.chunks, "digest": info.digest})
    await store.put("small", b"x", meta=ObjectMeta(description="small", headers={"A": "b"}))
    found = await store.get("big")
    at.note("got", (found.data == data, found.info.size, found.info.digest))
    await at.tried("none", store.get("none"))
    await store.put("big", b"replaced")
    found = await store.get("big")
    at.note("replaced", (found.data, found.info.chunks))
    info = await store.get_info("small")
    at.note("info", {"name": info.name, "description": info.description, "digest": info.digest})
    await store.update_meta("small", ObjectMeta(name="small", description="described again"))
    at.note("names", sorted(each.name for each in await store.list()))
    watcher: Any = await store.watch()
    names = []
    while (update := await watcher.updates(timeout=PATIENCE)) is not None:
        names.append((update.name, update.deleted))
    at.note("watched", names)
    await store.delete("big")
    update = await watcher.updates(timeout=PATIENCE)
    at.note("watched later", (update.name, update.deleted))
    await watcher.stop()
    await at.tried("deleted", store.get("big"))
    status = await store.status()
    at.note("status", (status.bucket, status.description, status.sealed))
    await store.seal()
    await at.tried("sealed", store.put("late", b"x"))
    await at.ask("STREAM.INFO.OBJ_O", {"subjects_filter": "$O.O.M.>"})
    await at.tried("delete the store", at.js.delete_object_store("O"))


async def original_speed(at: Recorder) -> None:
    await filled(at, 3)
    await at.js.add_consumer("S", ConsumerConfig(durable_name="SLOW", replay_policy=ReplayPolicy.ORIGINAL))
    subscription = await at.js.pull_subscribe_bind("SLOW", "S")
    at.note("in their own time", [delivered(each) for each in await subscription.fetch(3, timeout=PATIENCE)])


PROGRAMS: Final[dict[str, Program]] = {
    **{name: theme(name) for name in THEMES},
    **{
        each.__name__: each
        for each in (
            publishing,
            limits,
            pull,
            pull_requests,
            push,
            ordered,
            starts,
            retention,
            acknowledgements,
            advisories,
            removing,
            getting,
            keys,
            objects,
            original_speed,
        )
    },
}
