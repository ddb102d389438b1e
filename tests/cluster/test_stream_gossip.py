"""Stream definitions for all nodes: nodes that join, or were away, learn of what was created and deleted meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from starlingmq.admin.node_rpc import NodeRpc
from starlingmq.admin.stream_gossip import StreamGossip
from starlingmq.admin.stream_requests import GossipNews, GossipRequest
from starlingmq.storage.streams.stream_admin import StreamAdmin


class Streams:
    """Those of one node: when each was created."""

    def __init__(self) -> None:
        self.created: dict[str, float] = {}
        self.now = 0.0
        self.logs = self

    def find(self, name: str) -> Any:
        created = self.created.get(name)
        return None if created is None else SimpleNamespace(definition=SimpleNamespace(created=created))

    def create(self, settings: Any) -> None:
        self.created[settings["name"]] = self.now

    async def delete(self, name: str) -> None:
        del self.created[name]


class Node:
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.streams = Streams()
        self.start()

    def start(self) -> None:
        self.gossip = StreamGossip(cast(StreamAdmin, self.streams), self.directory)

    async def ask(self, node: Node, action: str, news: GossipNews, kind: type[GossipNews], seconds: float) -> Any:
        assert action == "stream.hear"
        return await node.gossip.receive(news)

    async def meet(self, other: Node) -> None:
        await self.gossip.exchange(cast(NodeRpc, self), cast(str, other), 1.0)

    async def tell(self, now: float, request: GossipRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("starlingmq.admin.stream_gossip.time.time", lambda: now)
        self.streams.now = now
        said = await self.gossip.word(request)
        await self.gossip.receive(said)


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_newest_word_holds_wherever_it_was_said(
    tmp_path: Path, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (Node(tmp_path / name) for name in ("one", "two", "three"))
    for name in ("kept", "ended"):
        await one.tell(10.0, GossipRequest(name=name, topics=f"{name}/#"), monkeypatch)
    await one.meet(two)
    await three.meet(two)
    assert set(one.streams.created) == set(two.streams.created) == set(three.streams.created) == {"kept", "ended"}
    await one.tell(20.0, GossipRequest(name="ended", deleted=True), monkeypatch)
    await one.meet(two)
    if restarted:
        for node in (two, three):
            node.start()
    await three.meet(two)  # the third one was away, and brings nothing back
    await one.meet(three)
    assert set(one.streams.created) == set(two.streams.created) == set(three.streams.created) == {"kept"}


async def test_a_stream_that_a_node_has_made_since_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Node(tmp_path / "one"), Node(tmp_path / "two")
    await one.tell(10.0, GossipRequest(name="a", topics="a/#"), monkeypatch)
    await one.tell(20.0, GossipRequest(name="a", deleted=True), monkeypatch)
    two.streams.created["a"] = 30.0
    await two.meet(one)
    assert two.streams.created == {"a": 30.0} and not one.streams.created
