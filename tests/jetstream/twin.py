"""The same program against nats-server and against a broker, and what each of them said, to be compared.

A program gets a ``Recorder`` and notes what it is told. Times, ids, versions and names of servers differ, and are
left out; so is what only nats-server's own cluster has.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext
from tests.bridges.nats_real import Ends
from tests.patience import within

import nats

PATIENCE: Final = 30.0
QUIET: Final = 0.3  # seconds in which nothing comes, where nothing is to come
LEFT_OUT: Final = frozenset(
    (
        *("created", "ts", "time", "timestamp", "id", "last_active", "pause_remaining", "first_ts", "last_ts", "mtime"),
        *("_nats.ver", "_nats.level", "level", "cluster", "nuid", "active"),
    )
)
INVALID_JSON: Final = 10025  # its description is that of the decoder

Program = Callable[["Recorder"], Awaitable[None]]


class Recorder:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.js: JetStreamContext = client.jetstream(timeout=PATIENCE)
        self.notes: list[Any] = []

    def note(self, what: str, told: Any) -> None:
        self.notes.append((what, scrubbed(plain(told))))

    async def ask(self, subject: str, payload: Any = b"", headers: dict[str, str] | None = None) -> Any:
        """A request to the API, whose answer is noted."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        try:
            answer = await self.client.request(f"$JS.API.{subject}", data, timeout=PATIENCE, headers=headers)
        except nats.errors.Error as error:
            self.note(subject, f"{type(error).__name__}")
            return None
        found = json.loads(answer.data) if answer.data[:1] == b"{" else message(answer)
        self.note(f"{subject} {data[:200]!r}", found)
        return found

    async def tried(self, what: str, work: Awaitable[Any]) -> Any:
        """Its result, or its error, is noted."""
        try:
            async with within(PATIENCE):
                found = await work
        except (nats.errors.Error, TimeoutError, ValueError) as error:
            told = {name: getattr(error, name, None) for name in ("code", "err_code", "description")}
            self.note(what, {"error": type(error).__name__, **told})
            return None
        self.note(what, found)
        return found


def message(msg: Msg) -> dict[str, Any]:
    return {"subject": msg.subject, "data": msg.data.decode(), "headers": headers_of(msg)}


def headers_of(msg: Msg) -> dict[str, str]:
    if (msg.headers or {}).get("Status") == "503":  # nats-server says for which subject
        return {"Status": "503"}
    return {name: value for name, value in (msg.headers or {}).items() if name != "Nats-Time-Stamp"}


def delivered(msg: Msg) -> dict[str, Any]:
    """A message from a consumer, and its reply subject without the time."""
    place = msg.reply.split(".")
    return {**message(msg), "reply": [*place[:7], *place[8:]]}


def plain(value: Any) -> Any:
    """Objects of the client library as dicts."""
    if isinstance(value, Msg):
        return message(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__ if not name.startswith("_")}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def scrubbed(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("err_code") == INVALID_JSON:
            value = {**value, "description": ""}
        if isinstance(value.get("sources"), list):  # nats-server lists them in any order
            value = {**value, "sources": sorted(map(_settled, value["sources"]), key=json.dumps)}
        return {name: scrubbed(each) for name, each in value.items() if name not in LEFT_OUT}
    if isinstance(value, str) and value.startswith("_INBOX."):
        return "_INBOX"
    return [scrubbed(each) for each in value] if isinstance(value, list | tuple) else value


def _settled(source: Any) -> Any:
    """Without the error of nats-server that stays, or not, after the stream has come."""
    return {name: each for name, each in source.items() if name != "error"}


async def transcript(url: str, program: Program) -> list[Any]:
    client = await nats.connect(url, allow_reconnect=False, connect_timeout=PATIENCE)
    try:
        recorder = Recorder(client)
        await program(recorder)
        return recorder.notes
    finally:
        await client.close()


async def both(ends: Ends, directory: Path, program: Program) -> tuple[list[Any], list[Any]]:
    """The transcript of nats-server, and that of the broker."""
    server = await ends.server(f'jetstream {{ store_dir: "{directory / "jetstream"}" }}')
    theirs = await transcript(server.url, program)
    broker = await ends.broker(node={"name": "near", "data_dir": str(directory / "data")})
    return theirs, await transcript(broker.address("nats"), program)


def differences(theirs: list[Any], ours: list[Any]) -> list[str]:
    found = [
        f"{what}: {each}"
        for (what, their), (_, own) in zip(theirs, ours, strict=False)
        for each in unlike(their, own, "")
    ]
    if [what for what, _ in theirs] != [what for what, _ in ours]:
        found.append(f"{len(theirs)} notes from nats-server, {len(ours)} here, or others")
    return found


def unlike(their: Any, own: Any, place: str) -> list[str]:
    if isinstance(their, dict) and isinstance(own, dict):
        names = dict.fromkeys((*their, *own))
        return [each for name in names for each in unlike(their.get(name), own.get(name), f"{place}.{name}")]
    if isinstance(their, list) and isinstance(own, list) and len(their) == len(own):
        pairs = zip(their, own, strict=True)
        return [each for at, pair in enumerate(pairs) for each in unlike(*pair, f"{place}[{at}]")]
    return [] if their == own else [f"{place}\n    nats-server: {their}\n    here:        {own}"]
