"""Actions on links to other brokers: the list over all nodes, and pause, resume and drain.

Every node knows every link, and one carries each. So a link is paused at all nodes, and its counts are those of all
nodes together.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.state_files import EntriesFile
from starlingmq.admin.typed_actions import NoArguments
from starlingmq.bridges.link_view import LinkView
from starlingmq.net.control_socket import Report

FILE: Final = "links.json"
LOOK_SECONDS: Final = 0.2  # between two looks at a link that is drained
DRAIN_SECONDS_MAX: Final = 86_400
LINK_COLUMNS: Final = (
    "name, kind*, node, state, seconds: for/seconds, server*, waiting, waiting_bytes: bytes/bytes*, in_flight*, "
    "messages_out: out, messages_in: in, refused*, kept_out*, again*, dropped, problem, complaints*"
)
COUNTS: Final = (
    *("waiting", "waiting_bytes", "in_flight", "messages_out", "messages_in", "bytes_out", "bytes_in"),
    *("refused", "kept_out", "again", "dropped"),
)
STATES: Final = ("connected", "connecting", "waiting", "idle", "paused", "done", "elsewhere")
"""Where two nodes disagree for a moment, the first one of these is shown."""

LinkName = Annotated[str, Meta(min_length=1, max_length=1000, description="Name of the link, as in the settings.")]


class LinksHere(Struct, frozen=True):
    links: list[LinkView]


class LinkList(Struct, frozen=True):
    """``node``: the node that was asked."""

    node: str
    links: list[LinkView]
    missing: list[Missing]


class OneLink(Struct, frozen=True):
    name: LinkName


class LinkDrain(Struct, frozen=True):
    name: LinkName
    seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=DRAIN_SECONDS_MAX,
            description="Give up after so long, and let it go on; 0: only if nothing waits now.",
        ),
    ] = 60


class LinkHere(Struct, frozen=True):
    paused: bool


class LinkChanged(Struct, frozen=True):
    """``nodes`` have done it; one of ``missing`` goes on as it was when it returns."""

    name: str
    paused: bool
    nodes: list[str]
    missing: list[Missing]


def joined(rpc: NodeRpc, answers: Answers[LinksHere], request: NoArguments) -> LinkList:
    """One entry for each link: that of the node which carries it, with the counts of all nodes."""
    found: dict[str, list[LinkView]] = {}
    for node, reply in answers.results.items():
        for one in reply.links:
            found.setdefault(one.name, []).append(replace(one, node="" if one.state == "elsewhere" else node))
    links = []
    for _, views in sorted(found.items()):
        first = min(views, key=lambda one: STATES.index(one.state))
        links.append(replace(first, **{name: sum(getattr(one, name) for one in views) for name in COUNTS}))
    return LinkList(rpc.name, links, answers.missing)


def _left(one: LinkView) -> int:
    """Messages that the other broker has not acknowledged."""
    return one.waiting + one.in_flight


class LinkActions:
    """Those of one node. ``directory`` keeps which links are paused; None: a restart resumes all."""

    def __init__(self, local_node: LocalNode, directory: Path | None) -> None:
        self._local_node = local_node
        self._file = EntriesFile("paused links", None if directory is None else directory / FILE, str)

    def paused(self) -> list[str]:
        """The names of links that were paused at the last end of this node."""
        return self._file.read()

    @action(
        "links",
        "GET /links",
        ALL,
        merge=joined,
        ctl="links",
        hint="ctl peers shows the links between the nodes of a cluster.",
        columns=LINK_COLUMNS,
        none="no link is set; bridges in the settings names those to other brokers",
    )
    async def links(self) -> LinksHere:
        """List links to other brokers: which node carries each, its state, and how many messages wait and have passed.
        Counts are those of all nodes since they started."""
        bridges = self._local_node.bridges()
        return LinksHere([] if bridges is None else bridges.views())

    @action("link.pause", audit="paused the link {name!r}")
    async def pause(self, request: OneLink) -> LinkHere:
        return await self._set(request.name, True)

    @action("link.resume", audit="resumed the link {name!r}")
    async def resume(self, request: OneLink) -> LinkHere:
        return await self._set(request.name, False)

    async def _set(self, name: str, paused: bool) -> LinkHere:
        bridges = self._local_node.bridges()
        try:
            if bridges is None:
                raise KeyError(name)
            bridges.pause(name, paused)
        except KeyError:
            known = "none" if bridges is None else ", ".join(one.name for one in bridges.views()) or "none"
            raise AdminError(404, f"there is no link {name!r}; links: {known}") from None
        await self._file.write(sorted(bridges.paused))
        return LinkHere(paused)


class LinksEverywhere:
    """Those that the node which is asked composes of requests to all nodes."""

    def __init__(self, rpc: NodeRpc) -> None:
        self._rpc = rpc

    @action(
        "links.pause",
        "POST /links/pause",
        body="PausedLink",
        ctl="link/pause name",
        hint="It holds on all nodes, and after a restart of a node with a data directory.",
        said="{name} is paused",
        noted_by="link.pause",
    )
    async def pause(self, request: OneLink) -> LinkChanged:
        """Close the connections of a link until it is resumed; messages wait meanwhile."""
        return await self._set(request.name, True)

    @action(
        "links.resume",
        "POST /links/resume",
        body="ResumedLink",
        ctl="link/resume name",
        said="{name} is resumed",
        noted_by="link.resume",
    )
    async def resume(self, request: OneLink) -> LinkChanged:
        """Let a paused link connect again."""
        return await self._set(request.name, False)

    @action(
        "links.drain",
        "POST /links/drain",
        body="DrainedLink",
        ctl="link/drain name",
        said="nothing waited for {name}, and it is paused",
        noted_by="link.pause",
        waits=True,
    )
    async def drain(self, report: Report, request: LinkDrain) -> LinkChanged:
        """Wait until no message waits for the other broker, then pause the link. Messages that are published later
        wait until it is resumed. Raises AdminError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + request.seconds
        most = 0
        while left := _left(one := await self._one(request.name)):
            if one.state == "paused":
                raise AdminError(409, f"{request.name} is paused, and {left:,} message(s) wait; resume it first")
            if loop.time() >= until:
                problem = f" ({one.problem})" if one.problem else ""
                raise AdminError(
                    409,
                    f"{request.name} is not drained after {request.seconds:,} s: {left:,} message(s) wait; it is "
                    f"{one.state}{problem} and goes on",
                )
            most = max(most, left)
            report(f"draining {request.name}", most - left, most, "messages")
            await asyncio.sleep(LOOK_SECONDS)
        return await self._set(request.name, True)

    async def _one(self, name: str) -> LinkView:
        """Raises AdminError if there is no such link, or if the node that carries it does not answer."""
        answers = await self._rpc.everywhere("links", NoArguments(), LinksHere)
        for one in joined(self._rpc, answers, NoArguments()).links:
            if one.name == name:
                if not one.node:
                    away = ", ".join(each.node for each in answers.missing) or "none"
                    raise AdminError(503, f"no node that answers carries {name}; these do not answer: {away}")
                return one
        raise AdminError(404, f"there is no link {name!r}")

    async def _set(self, name: str, paused: bool) -> LinkChanged:
        done = await self._rpc.everywhere("link.pause" if paused else "link.resume", OneLink(name), LinkHere)
        return LinkChanged(name, paused, list(done.results), done.missing)
