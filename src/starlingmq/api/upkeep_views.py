"""Bans, storage statistics, streams, and the settings without secrets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, Parameter
from msgspec import Meta, Struct, convert

from starlingmq.admin.node_rpc import Missing
from starlingmq.admin.operator_bans import SECONDS_MAX, ListedBans
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.rule_actions import RulesReply, RuleTestResult
from starlingmq.admin.user_actions import UsersReply
from starlingmq.api.paged_views import AtNode, Node
from starlingmq.api.served import served
from starlingmq.auth.automatic_bans import Kind

BanKind = Annotated[Kind, Parameter(description="Kind of the banned name.")]
BanName = Annotated[
    str, Parameter(min_length=1, max_length=65535, description="Address or network, user name or client id.")
]
StreamName = Annotated[str, Parameter(min_length=1, max_length=1000, description="Stream name.")]
Before = Annotated[
    int | None, Parameter(ge=0, le=2**62, description="First offset to keep. Default: delete all messages.")
]
ReloadNode = Annotated[
    str,
    Parameter(
        max_length=1000,
        description="The node to use, * for all. Default: the node that receives the request, with workers all.",
    ),
]


TestedName = Annotated[str, Parameter(max_length=65535)]
UserPart = Annotated[str, Parameter(max_length=65535, description="Only users whose names contain this text.")]
TestedAddress = Annotated[
    str, Parameter(max_length=100, description="Address without a port. Default: that of the connected client.")
]
TestedAction = Annotated[Literal["connect", "publish", "subscribe", "group"], Parameter()]
TestedQos = Annotated[int, Parameter(ge=0, le=2)]
TestedRetain = Annotated[bool, Parameter()]


class RuleTestAt(RuleTestResult, frozen=True, kw_only=True):
    node: str


class RulesAt(RulesReply, frozen=True, kw_only=True):
    node: str


class UsersAt(UsersReply, frozen=True, kw_only=True):
    node: str


class NewBan(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Kind
    name: Annotated[
        str,
        Meta(min_length=1, max_length=65535, description="Address or network (10.0.0.0/8), user name or client id."),
    ]
    seconds: Annotated[float, Meta(gt=0, le=SECONDS_MAX)] = 3600.0
    reason: Annotated[str, Meta(max_length=200)] = "by an operator"
    disconnect: Annotated[bool, Meta(description="Whether to disconnect matching clients.")] = True


class Banned(Struct, frozen=True):
    """Missing nodes receive the ban when they are connected again."""

    kind: Kind
    name: str
    seconds: float
    reason: str
    nodes: list[str]
    missing: list[Missing]


class Lifted(Struct, frozen=True):
    done: Literal["lifted"]
    nodes: list[str]
    missing: list[Missing]


class NewStreamBody(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=1000)]
    topics: Annotated[list[Annotated[str, Meta(min_length=1, max_length=65535)]], Meta(min_length=1, max_length=1000)]
    retention_time: Annotated[str, Meta(max_length=30, description="Minimum retention time; 0: unlimited.")] = "7d"
    retention_size: Annotated[str, Meta(max_length=30, description="Maximum size on each node; 0: unlimited.")] = "0"
    when_full: Literal["drop_oldest", "refuse"] = "drop_oldest"


class ByNode(Struct, frozen=True):
    """The result of each node, by the name of the node."""

    nodes: dict[str, dict[str, Any]]
    missing: list[Missing]


def routes() -> list[HTTPRouteHandler]:
    return [*_rule_routes(), *_ban_routes(), *_stream_routes(), *_settings_routes()]


def _rule_routes() -> list[HTTPRouteHandler]:
    @get("/rules", summary="List the rules of the ACL file, and how many clients each applied to")
    async def rules(node: AtNode = "") -> RulesAt:
        return convert(await served().ask("rules", node=node), RulesAt)

    @get("/users", summary="List the users of the password file and of connected clients, at most 500")
    async def users(q: UserPart = "", node: AtNode = "") -> UsersAt:
        return convert(await served().ask("users", q=q, node=node), UsersAt)

    @get("/rules/test", summary="Test whether a client may do something, and which rule decides")
    async def test(
        client_id: TestedName = "",
        username: TestedName = "",
        address: TestedAddress = "",
        action: TestedAction = "publish",
        topic: TestedName = "",
        qos: TestedQos = 0,
        retain: TestedRetain = False,
        group: TestedName = "",
        node: AtNode = "",
    ) -> RuleTestAt:
        found = await served().ask(
            "rules.test",
            client_id=client_id,
            username=username,
            address=address,
            does=action,
            topic=topic,
            qos=str(qos),
            retain="yes" if retain else "no",
            group=group,
            node=node,
        )
        return convert(found, RuleTestAt)

    return [rules, users, test]


def _ban_routes() -> list[HTTPRouteHandler]:
    @get("/bans", summary="List active bans per node")
    async def bans(node: Node = "") -> ListedBans:
        return convert(await served().ask("bans", node=node), ListedBans)

    @post("/bans", status_code=201, summary="Ban an address, user or client id on all nodes")
    async def ban(request: Request[Any, Any, Any], data: JSONBody[NewBan]) -> Banned:
        told = await served().ask(
            "ban",
            kind=data.kind,
            name=data.name,
            seconds=repr(data.seconds),
            reason=data.reason,
            disconnect="yes" if data.disconnect else "no",
            by=served().who(request),
        )
        missing = convert(told["missing"], list[Missing])
        return Banned(data.kind, told["name"], data.seconds, data.reason, told["nodes"], missing)

    @delete("/bans", status_code=200, summary="Lift a ban on all nodes")
    async def lift(request: Request[Any, Any, Any], kind: BanKind, name: BanName) -> Lifted:
        told = await served().ask("ban.lift", kind=kind, name=name, by=served().who(request))
        return Lifted("lifted", told["nodes"], convert(told["missing"], list[Missing]))

    return [bans, ban, lift]


def _stream_routes() -> list[HTTPRouteHandler]:
    @get("/storage", summary="Get storage statistics")
    async def storage(node: AtNode = "") -> dict[str, Any]:
        return await served().ask("storage.stats", node=node)

    @post("/storage/check", status_code=200, summary="Read all that this node stores, and report damage; takes long")
    async def check(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return await served().ask("storage.check", by=served().who(request))

    @post("/storage/compact", status_code=200, summary="Write a checkpoint, and free the space of what is not needed")
    async def compact(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return await served().ask("storage.compact", by=served().who(request))

    @get("/streams", summary="List streams per node, with their consumers")
    async def streams(node: Node = "") -> dict[str, Any]:
        return await served().ask("streams", node=node)

    @post("/streams", status_code=201, summary="Create a stream that keeps messages of the given topics")
    async def create(data: JSONBody[NewStreamBody], node: Node = "") -> ByNode:
        if any("\n" in topic for topic in data.topics):
            raise AdminError(400, "topics: must not contain line breaks")
        made = await served().ask(
            "streams.create",
            name=data.name,
            topics="\n".join(data.topics),
            retention_time=data.retention_time,
            retention_size=data.retention_size,
            when_full=data.when_full,
            node=node,
        )
        return convert(made, ByNode)

    @post(
        "/streams/trim",
        status_code=200,
        summary="Delete the messages of a stream before an offset, in whole segment files",
    )
    async def trim(name: StreamName, before: Before = None, node: Node = "") -> ByNode:
        text = "" if before is None else str(before)
        return convert(await served().ask("streams.trim", name=name, before=text, node=node), ByNode)

    @delete("/streams", status_code=200, summary="Delete a stream and all its messages")
    async def end(name: StreamName, node: Node = "") -> ByNode:
        return convert(await served().ask("streams.delete", name=name, node=node), ByNode)

    return [storage, check, compact, streams, create, trim, end]


def _settings_routes() -> list[HTTPRouteHandler]:
    @get("/config", summary="Get the settings in force, without secrets")
    async def config(node: AtNode = "") -> dict[str, Any]:
        return await served().ask("config", node=node)

    @post("/reload", status_code=200, summary="Reload the settings; the response lists those that need a restart")
    async def reload(request: Request[Any, Any, Any], node: ReloadNode = "") -> ByNode:
        return convert(await served().ask("reload", node=node, by=served().who(request)), ByNode)

    @get("/listeners", summary="List listeners and their connections")
    async def listeners(node: AtNode = "") -> dict[str, Any]:
        return await served().ask("listeners", node=node)

    return [config, reload, listeners]
