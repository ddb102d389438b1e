"""Streams over a cluster of real processes: each message in the part of the node where it entered, all parts found by
way of one node, and a node that joins found too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.real import Cluster, Node

from starlingmq.cli.local_cluster import HOST
from starlingmq.client import Client

pytest.importorskip("pyspark")
from starlingmq.bulk.positions import StreamPosition
from starlingmq.spark.nodes import NodeBook
from starlingmq.spark.planning import begin_at
from starlingmq.spark.read_options import Options
from starlingmq.spark.row_reading import parts, read_part

TOKEN = "a token that nobody guesses"
pytestmark = [pytest.mark.slow, pytest.mark.long(kept="tests/cluster/test_stream_gossip.py"), pytest.mark.timeout(180)]


class StreamCluster(Cluster):
    def _connect(self, node: Node) -> None:
        def change(settings: dict[str, Any]) -> None:
            define = [{"name": "all", "topics": ["t/#"]}]
            settings["streams"] = {"listen": f"{HOST}:0", "token": TOKEN, "define": define}

        node.configure(change)
        super()._connect(node)


async def publish(node: Node, *payloads: bytes) -> None:
    async with Client(node.url) as client:
        for payload in payloads:
            await client.publish("t/a", payload, qos=1)


def read_all(book: NodeBook) -> dict[str, list[bytes]]:
    """The payloads of each node's part."""
    bounds = book.bounds()
    found: dict[str, list[bytes]] = {node: [] for node in bounds}
    first = StreamPosition(offsets={node: each.first for node, each in bounds.items()})
    for part in parts(book, first, StreamPosition(offsets={node: each.next for node, each in bounds.items()})):
        for batch in read_part(part, book.options):
            found[part.node] += batch.column("payload").to_pylist()
    return found


async def test_a_reader_finds_all_nodes_through_one_and_also_a_node_that_joins(tmp_path: Path) -> None:
    with StreamCluster(tmp_path, 2) as cluster:
        await cluster.whole()
        one, two = cluster.nodes
        async with Client(two.url) as reader:  # its messages pass from node to node, and are kept once
            assert await reader.subscribe("t/#", 1) == [1]
            await publish(one, b"1", b"2")
            await publish(two, b"3")
        server = next(place["address"] for place in one.ask("stream.nodes")["nodes"] if place["name"] == one.name)
        book = NodeBook(Options(servers=(server,), stream="all", token=TOKEN, node_timeout=10.0))
        await cluster.until(lambda: len(book.look()) == 2, "both nodes tell where they are read")
        assert await asyncio.to_thread(read_all, book) == {one.name: [b"1", b"2"], two.name: [b"3"]}
        three = cluster.add("node3")
        await cluster.whole()
        await publish(three, b"4")
        await cluster.until(lambda: len(book.look()) == 3, "the third node tells where it is read")
        found = await asyncio.to_thread(read_all, book)
        assert found == {one.name: [b"1", b"2"], two.name: [b"3"], three.name: [b"4"]}
        three.kill()

        def away() -> set[str]:
            return {place["name"] for place in one.ask("stream.nodes")["nodes"] if place["away"]}

        await cluster.until(lambda: away() == {three.name}, "a member that is not connected is told of, as away")
        fresh = NodeBook(msgspec.structs.replace(book.options, starting="latest"))
        begun = await asyncio.to_thread(lambda: begin_at(fresh, fresh.bounds()))
        assert set(begun.offsets) == {one.name, two.name} and set(begun.waiting) == {three.name}
        fresh.close()
        book.close()


def streams_of(node: Node) -> set[str]:
    return {one["name"] for one in node.ask("stream.list")["streams"]}


async def test_nodes_that_join_or_were_away_learn_of_created_and_deleted_streams(tmp_path: Path) -> None:
    with StreamCluster(tmp_path, 2) as cluster:
        await cluster.whole()
        one, two = cluster.nodes
        for name in ("kept", "ended"):
            one.ask("streams.create", name=name, topics=json.dumps([f"{name}/#"]))
        one.ask("stream.create", name="own", topics="own/#")
        assert streams_of(one) == {"all", "kept", "ended", "own"} and streams_of(two) == {"all", "kept", "ended"}
        three = cluster.add("node3")
        await cluster.whole()
        await cluster.until(lambda: streams_of(three) == {"all", "kept", "ended"}, "the node that joins makes them")
        three.kill()
        found = one.ask("streams.delete", name="ended")
        assert set(found["nodes"]) == {one.name, two.name}
        two.kill()  # it has heard, and so it tells when it is back
        for node in (two, three):
            node.start()
        await cluster.whole()
        await cluster.until(lambda: streams_of(three) == {"all", "kept"}, "it is deleted where it was not heard of")
        assert streams_of(two) == {"all", "kept"} and streams_of(one) == {"all", "kept", "own"}
        two.ask("stream.delete", name="kept")
        three.kill()
        three.start()
        await cluster.whole()
        await cluster.until(lambda: "kept" in streams_of(three), "they have met again")
        assert "kept" not in streams_of(two), "what one node was told to give up does not come back"
