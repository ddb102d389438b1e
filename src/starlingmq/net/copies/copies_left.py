"""Which copies of a node's data are left, and which of them is the fullest: for an operator who gives up what the nodes
in step had.

Every node that is there is asked for its copy. It changes nothing to answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from starlingmq.cluster.copies.copy_registry import StoringNode
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.net.copies.copy_part import number_of
from starlingmq.net.peers.copy_link import CopyRefused, ask_follower
from starlingmq.net.peers.peer_handshake import RefusedError
from starlingmq.storage.copies.copy_frames import ASKS, CopyPosition, Hello
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.directory_store import journal_engine

if TYPE_CHECKING:
    from starlingmq.net.copies.copy_process import CopyProcess

ANSWER_SECONDS: Final = 10.0


class CopyLeft(NamedTuple):
    """``position`` is None if the node has no whole copy; ``problem``: why it did not say so."""

    node: str
    position: CopyPosition | None
    problem: str = ""

    def __str__(self) -> str:
        if self.position is None:
            return f"{self.node} has not answered: {self.problem}" if self.problem else f"{self.node} has none"
        return f"{self.node} has one up to record {self.position.journal:,} of generation {self.position.generation}"


async def copies_left(process: CopyProcess, origin: str) -> list[CopyLeft]:
    nodes = process.roles.registry.nodes.values()
    return list(await asyncio.gather(*(_copy_at(process, origin, node) for node in nodes)))


def fullest(copies: list[CopyLeft], origin: str) -> str:
    """The node whose copy is to be served; the origin itself, if it is there, begins with nothing if there is no copy;
    "": neither is there."""
    whole = [
        (each.position.generation, each.position.journal, each.node == origin, each.node)
        for each in copies
        if each.position is not None
    ]
    if whole:
        return max(whole)[-1]
    return origin if any(each.node == origin for each in copies) else ""


async def _copy_at(process: CopyProcess, origin: str, node: StoringNode) -> CopyLeft:
    config = process.config
    hello = Hello(origin, ASKS, journal_engine(config), config.storage.segment_size, ())
    try:
        if node.name == config.node.name:
            return CopyLeft(node.name, await process.places.place(origin).look(hello))
        member = MemberInfo(node.name, number_of(node.name), node.incarnation, node.address)
        async with asyncio.timeout(ANSWER_SECONDS), process.peers.open_copy(member) as pipe:
            position = await ask_follower(pipe, hello)
            return CopyLeft(node.name, position if position.generation else None)
    except (CopyRefused, RefusedError, CopyFrameError, TimeoutError, OSError) as error:
        return CopyLeft(node.name, None, str(error) or "timed out")
