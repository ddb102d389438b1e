"""Programs about subject transforms and republishing. Each begins with a server that has no streams."""

from __future__ import annotations

from typing import Final

from tests.jetstream.programs import next_of, quiet, state
from tests.jetstream.twin import Program, Recorder

TRANSFORMS: Final = (
    ("t.*.*", "by.$2.$1"),
    ("t.*.*", "by.{{wildcard(2)}}.{{ Wildcard( 1 ) }}"),
    ("t.*.*", "part.{{partition(7,1,2)}}.{{partition(7,2)}}.{{partition(5)}}"),
    ("t.*.*", "s.{{split(1,-)}}"),
    ("t.*.*", "s.{{splitFromLeft(1,2)}}.{{SplitFromRight(2,2)}}"),
    ("t.*.*", "s.{{sliceFromLeft(1,3)}}.{{SliceFromRight(2,3)}}"),
    ("t.*.*", "s.{{left(1,3)}}.{{right(2,3)}}"),
    ("t.*.*", "s.{{left(1,30)}}.{{right(2,0)}}.{{splitfromleft(1,-1)}}.$0"),
    ("t.*.>", "all.$1.>"),
    ("", "all.>"),
    ("t.one.two", "fixed.{{partition(3)}}"),
    ("t.one.two", "fixed.$x"),
    ("other.*", "never.$1"),
    ("t.>", ""),
)
WRONG_TRANSFORMS: Final = (
    ("t..x", "a"),
    ("t.>.x", "a"),
    ("t.*", "a.$2"),
    ("t.*", "a.{{wildcard(2)}}"),
    ("t.*", "a.{{wildcard()}}"),
    ("t.*", "a.{{wildcard(x)}}"),
    ("t.*", "a.{{wildcard(1,2)}}"),
    ("t.*", "a.{{nonsense(1)}}"),
    ("t.*", "a.{{split(1)}}"),
    ("t.*", "a.{{split(1,a,b)}}"),
    ("t.*", "a.{{split(1,a b)}}"),
    ("t.*", "a.{{left(1)}}"),
    ("t.*", "a.{{left(1,x)}}"),
    ("t.*", "a.{{left(1,2,3)}}"),
    ("t.*", "a.{{partition()}}"),
    ("t.*", "a.{{partition(99999999999)}}"),
    ("t.*", "a.{{random(1,2)}}"),
    ("t.*", "a..b"),
    ("t.*", "a.b c"),
    ("t.*", "a.*"),
    ("t.*", "a.>"),
    ("t.>", "a.>.b"),
    ("t.>", "a"),
    ("t.a", "a.$1"),
)
TOPICS: Final = ("t.one.two", "t.a-b--c.12345678", "t.x.y.z", "t.12345.-1-")


async def transforms(at: Recorder) -> None:
    for number, (source, destination) in enumerate(TRANSFORMS):
        name = f"T{number}"  # nats-server may find the files of a deleted stream in a new one of its name
        transform = {"src": source, "dest": destination}
        await at.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["t.>"], "subject_transform": transform})
        for topic in TOPICS:
            await at.js.publish(topic, b"1")
        await state(at, name)
        await at.ask(f"STREAM.DELETE.{name}")
    for source, destination in WRONG_TRANSFORMS:
        transform = {"src": source, "dest": destination}
        await at.ask("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"], "subject_transform": transform})
        await at.ask("STREAM.CREATE.T", {"name": "T", "subjects": ["u"], "republish": transform})
        await at.ask("STREAM.DELETE.T")
    await at.ask("STREAM.CREATE.T", {"name": "T", "subject_transform": {"nonsense": 1}})
    await at.ask("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"], "max_msgs_per_subject": 1})
    changed = {"name": "T", "subjects": ["t.>"], "max_msgs_per_subject": 1}
    await at.ask("STREAM.UPDATE.T", {**changed, "subject_transform": {"src": "t.*", "dest": "u.$1"}})
    for number in range(3):
        await at.js.publish("t.1", b"%d" % number)
    await at.tried("expected", at.js.publish("t.1", b"3", headers={"Nats-Expected-Last-Subject-Sequence": "3"}))
    subscription = await at.js.subscribe("u.*", stream="T", durable="reader")
    await next_of(subscription, at, "transformed")
    await at.ask("STREAM.UPDATE.T", changed)
    await at.js.publish("t.1", b"4")
    await state(at, "T")


async def republishing(at: Recorder) -> None:
    heard = await at.client.subscribe("out.>")
    base = {"name": "R", "subjects": ["in.>"], "republish": {"src": "in.>", "dest": "out.>"}}
    await at.ask("STREAM.CREATE.R", base)
    for subject, headers in (("in.a", None), ("in.a", {"X": "y", "Nats-Msg-Id": "1"}), ("in.b", None)):
        await at.js.publish(subject, b"body", headers=headers)
        await next_of(heard, at, "republished")
    await at.js.publish("in.a", b"again", headers={"Nats-Msg-Id": "1"})
    await quiet(heard, at, "a duplicate is not")
    await at.ask("STREAM.UPDATE.R", {**base, "republish": {"src": "in.*", "dest": "out.$1.x", "headers_only": True}})
    for subject in ("in.a", "in.b.c"):
        await at.js.publish(subject, b"body", headers={"X": "y"} if subject == "in.a" else None)
    await next_of(heard, at, "headers only")
    await quiet(heard, at, "not of the source")
    transform = {"src": "in.>", "dest": "out.>"}
    implicit = {**base, "subject_transform": transform, "republish": {"src": ">", "dest": ">"}}
    await at.ask("STREAM.UPDATE.R", implicit)
    await at.js.publish("in.implicit", b"body")
    await next_of(heard, at, "with the transform")
    await at.ask("STREAM.UPDATE.R", {**implicit, "pedantic": True})
    await at.ask("STREAM.UPDATE.R", {**base, "republish": {"dest": "in.a"}})
    await at.ask("STREAM.UPDATE.R", {**base, "republish": {"dest": "x.>"}, "pedantic": True})
    await at.ask("STREAM.UPDATE.R", {**base, "republish": {"dest": "out.>"}})
    await at.ask("STREAM.CREATE.SECOND", {"name": "SECOND", "subjects": ["out.>"]})
    await at.js.publish("in.a", b"kept twice")
    await next_of(heard, at, "also kept by another stream")
    at.note("kept", (await at.js.stream_info("SECOND")).state.messages)  # its bytes have the length of a time
    await at.ask("STREAM.DELETE.R")
    interest = {"name": "I", "subjects": ["in.>"], "retention": "interest", "republish": base["republish"]}
    await at.ask("STREAM.CREATE.I", interest)
    await at.js.publish("in.a", b"body")
    await quiet(heard, at, "nobody is interested")
    await at.ask("CONSUMER.CREATE.I.c", {"stream_name": "I", "config": {"name": "c", "filter_subject": "in.b"}})
    for subject in ("in.a", "in.b"):
        await at.js.publish(subject, b"body")
    await next_of(heard, at, "somebody is")
    await quiet(heard, at, "in that one only")
    await at.ask("STREAM.UPDATE.I", {"name": "I", "subjects": ["in.>"], "retention": "interest"})
    await at.js.publish("in.b", b"body")
    await quiet(heard, at, "no more")


REPUBLISH_PROGRAMS: Final[dict[str, Program]] = {each.__name__: each for each in (transforms, republishing)}
