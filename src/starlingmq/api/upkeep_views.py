"""Who is banned, how storing is, streams, and the settings without what is secret in them."""

from __future__ import annotations

import asyncio
import logging
import re
from time import monotonic
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, Parameter
from msgspec import Meta, Struct, to_builtins

from starlingmq.api.cluster_views import nothing_to_report
from starlingmq.api.listing import PIECE
from starlingmq.api.problem import ApiError
from starlingmq.api.served import Served
from starlingmq.api.sessions import Done
from starlingmq.auth.bans import Kind
from starlingmq.wire.reasons import Reason

log = logging.getLogger("starlingmq.http")

BAN_SECONDS_MAX: Final = 10 * 365 * 86400
SECRET: Final = re.compile(r"(password|secret|token|headers|key_password|username)$")
HIDDEN: Final = "***"

BanKind = Annotated[Kind, Parameter(description="What it is that is banned.")]
BanName = Annotated[str, Parameter(min_length=1, max_length=65535, description="The address, user name or client id.")]


class BanInfo(Struct, frozen=True):
    kind: Kind
    name: str
    seconds: Annotated[float, Meta(description="How long it still lasts.")]
    reason: str


class BanList(Struct, frozen=True):
    node: str
    bans: list[BanInfo]


class NewBan(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Kind
    name: Annotated[str, Meta(min_length=1, max_length=65535)]
    seconds: Annotated[float, Meta(gt=0, le=BAN_SECONDS_MAX)] = 3600.0
    reason: Annotated[str, Meta(max_length=200)] = "by an operator"
    disconnect: Annotated[bool, Meta(description="Whether those who are connected have to go.")] = True


def without_secrets(value: Any, name: str = "") -> Any:
    """Settings as they may be shown: neither secrets, nor what a URL may have of them."""
    if isinstance(value, dict):
        return {key: without_secrets(below, key) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one, name) for one in value]
    if isinstance(value, str) and value:
        if SECRET.search(name):
            return HIDDEN
        if "://" in value and (urlsplit(value).password or urlsplit(value).username):
            return HIDDEN
    return value


def routes(served: Served) -> list[HTTPRouteHandler]:
    state = served.state

    async def act(action: str) -> dict[str, Any]:
        if action not in served.actions:
            raise ApiError(409, "this broker keeps nothing (node.data_dir)")
        return await served.actions[action](nothing_to_report, {})

    @get("/bans", summary="Who may not come in for a while, at this node")
    async def bans() -> BanList:
        now = monotonic()
        found = [BanInfo(ban.kind, ban.name, round(ban.until - now, 1), ban.reason) for ban in served.bans.all(now)]
        return BanList(served.name, found)

    @post("/bans", status_code=201, summary="Keep an address, a user or a client out of this node for a while")
    async def ban(request: Request[Any, Any, Any], data: JSONBody[NewBan]) -> BanInfo:
        made = served.ban(data.kind, data.name, data.seconds, data.reason)
        if data.disconnect:
            await _disconnect(served, data.kind, data.name)
        who = request.scope["state"]["user"] or "somebody"
        log.info("%s banned %s %r for %.0f s", who, data.kind, data.name, data.seconds)
        return BanInfo(made.kind, made.name, data.seconds, made.reason)

    @delete("/bans", status_code=200, summary="Let somebody in again")
    async def lift(request: Request[Any, Any, Any], kind: BanKind, name: BanName) -> Done:
        if not served.bans.lift(kind, name):
            raise ApiError(404, "there is no such ban on this node")
        log.info("%s lifted the ban of %s %r", request.scope["state"]["user"] or "somebody", kind, name)
        return Done("lifted")

    @get("/storage", summary="What is kept, and how")
    async def storage() -> dict[str, Any]:
        return await act("storage.stats")

    @get("/streams", summary="Streams of this node, and who reads them")
    async def streams() -> dict[str, Any]:
        if "stream.list" not in served.actions:
            return {"node": served.name, "streams": []}
        return await act("stream.list")

    @get("/config", summary="The settings in force, without secrets")
    async def config() -> dict[str, Any]:
        shown: dict[str, Any] = without_secrets(to_builtins(served.config()))
        return shown

    @get("/listeners", summary="Where clients come in, and how many are there")
    async def listeners() -> dict[str, Any]:
        found = [
            {"address": one.address, "connections": one.gate.connections, "refused": dict(one.gate.refused)}
            for one in served.listeners()
        ]
        return {"node": served.name, "listeners": found, "total": state.ctx.counters.connections_open}

    return [bans, ban, lift, storage, streams, config, listeners]


async def _disconnect(served: Served, kind: Kind, name: str) -> None:
    """Close the connections of who is banned now, some a turn."""
    for place, client in enumerate(list(served.driver.clients)):
        if place % PIECE == PIECE - 1:
            await asyncio.sleep(0)
        served.state.ctx.now = served.driver.clock()
        session = client.session
        if session is None or client.link:
            continue
        is_meant = {
            "client": session.client_id == name,
            "user": client.username == name,
            "address": client.peer.rpartition(":")[0].strip("[]") == name.strip("[]"),
        }[kind]
        if is_meant:
            served.state.ending.fail(client, Reason.ADMINISTRATIVE_ACTION, "banned")
    served.driver.poke()
