"""Programs about mirrors and sources. Each begins with a server that has no streams."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any, Final

from tests.jetstream.programs import state
from tests.jetstream.twin import PATIENCE, Program, Recorder
from tests.patience import within

A: Final = {"name": "A"}
WRONG: Final[tuple[dict[str, Any], ...]] = (
    {"mirror": A, "subjects": ["x"]},
    {"mirror": A, "sources": [A]},
    {"mirror": A, "first_seq": 5},
    {"mirror": {"name": "a.b"}},
    {"mirror": {"name": ""}},
    {"mirror": {"name": "A", "filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}},
    {"mirror": {"name": "A", "subject_transforms": [{"src": "a..b", "dest": "b"}]}},
    {"mirror": {"name": "A", "subject_transforms": [{"src": "a.*", "dest": "b.$2"}]}},
    {"mirror": {"name": "A", "subject_transforms": [{"src": "a.*", "dest": "b.$1"}, {"src": "a.b", "dest": "c"}]}},
    {"mirror": A, "max_msg_size": 10},
    {"mirror": A, "subject_delete_marker_ttl": 2_000_000_000},
    {"mirror": {"nonsense": 1}},
    {"sources": [{"name": "a.b"}]},
    {"sources": [A, A]},
    {"sources": [A, {"name": "A", "filter_subject": ">"}]},
    {"sources": [{"name": "A", "filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}]},
    {"sources": [{"name": "A", "subject_transforms": [{"src": "a..b", "dest": "b"}]}]},
    {"sources": [{"name": "A", "subject_transforms": [{"src": "a.*", "dest": "b.$2"}]}]},
    {"sources": [{"name": "A", "subject_transforms": [{"src": "a", "dest": "b"}, {"src": "a", "dest": "c"}]}]},
    {"sources": [A], "max_msg_size": 10},
    {"sources": [{"name": "B"}], "subjects": ["b"]},
)


async def made(at: Recorder, config: dict[str, Any]) -> None:
    """Without a note: how far it has come is chance."""
    answer = await at.client.request(f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode(), PATIENCE)
    assert b'"error":{"code":4' not in answer.data or b"10059" in answer.data, answer.data


async def settled(at: Recorder, name: str, messages: int) -> None:
    async with within(PATIENCE):
        while (await at.js.stream_info(name)).state.messages != messages:
            await asyncio.sleep(0.02)
    await state(at, name)
    for seq in range(1, (await at.js.stream_info(name)).state.last_seq + 1):
        answer = await at.client.request(f"$JS.API.STREAM.MSG.GET.{name}", b'{"seq": %d}' % seq, PATIENCE)
        found = json.loads(answer.data)
        if "message" in found and found["message"].get("hdrs"):
            headers = b64decode(found["message"]["hdrs"]).decode().split("\r\n")
            found["message"]["hdrs"] = [  # without the identity of the stream
                line.rpartition(" ")[0] if line.startswith("Nats-Stream-Source") else line for line in headers
            ]
        at.note(f"message {seq} of {name}", found)


async def filled(at: Recorder, **more: Any) -> None:
    await at.ask("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"], **more})
    for number in range(6):
        await at.js.publish(f"a.{number % 3}.x", b"%d" % number, headers={"Nats-Msg-Id": f"{number}"})


async def sources(at: Recorder) -> None:
    await filled(at)
    await made(at, {"name": "S", "subjects": ["s"], "sources": [A, {"name": "LATER"}]})
    await settled(at, "S", 6)
    await at.ask("STREAM.CREATE.LATER", {"name": "LATER", "subjects": ["later"]})
    await at.js.publish("later", b"1", headers={"X": "y"})
    await settled(at, "S", 7)
    await at.js.publish("s", b"own")
    await at.js.publish("a.0", b"new")
    await settled(at, "S", 9)
    chain = {"name": "CHAIN", "sources": [{"name": "S", "filter_subject": "a.*.x", "opt_start_seq": 3}]}
    await made(at, chain)
    await settled(at, "CHAIN", 4)
    renamed = {"name": "A", "subject_transforms": [{"src": "a.0.*", "dest": "zero.$1"}, {"src": "a.1.>", "dest": ""}]}
    await made(at, {"name": "RENAMED", "sources": [renamed]})
    await settled(at, "RENAMED", 4)
    changed = json.dumps({"name": "S", "subjects": ["s"], "sources": [A]}).encode()
    assert b'"error"' not in (await at.client.request("$JS.API.STREAM.UPDATE.S", changed, PATIENCE)).data
    await at.js.publish("later", b"2")
    await at.js.publish("a.end", b"end")
    await settled(at, "S", 10)


async def mirrors(at: Recorder) -> None:
    await filled(at, allow_direct=True)
    await at.js.delete_msg("A", 2)
    await made(at, {"name": "M", "mirror": A})
    await settled(at, "M", 5)
    await at.js.publish("a.0", b"new")
    await settled(at, "M", 6)
    await at.ask("STREAM.UPDATE.M", {"name": "M", "mirror": {"name": "B"}})
    some = {"name": "A", "filter_subject": "a.1.>"}
    await made(at, {"name": "SOME", "mirror": some})
    await settled(at, "SOME", 1)
    await made(at, {"name": "LATE", "mirror": {"name": "A", "opt_start_seq": 4}})
    await settled(at, "LATE", 4)
    renamed = {"name": "A", "subject_transforms": [{"src": "a.*.x", "dest": "r.$1"}]}
    await made(at, {"name": "RENAMED", "mirror": renamed})
    await settled(at, "RENAMED", 5)


async def wrong_sources(at: Recorder) -> None:
    await filled(at, max_msg_size=100)
    for config in WRONG:
        await at.ask("STREAM.CREATE.B", {"name": "B", **config})
        await at.ask("STREAM.DELETE.B")
    await made(at, {"name": "B", "subjects": ["b"], "sources": [A]})
    await at.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["a.>"], "max_msg_size": 100, "sources": [{"name": "B"}]})


SOURCE_PROGRAMS: Final[dict[str, Program]] = {each.__name__: each for each in (sources, mirrors, wrong_sources)}
