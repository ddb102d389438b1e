"""Streams between nodes: frames arrive in order, or are dropped and counted; a broken connection is made again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.cluster.conftest import WAIT_SECONDS, Node, Nodes
from tests.patience import slowness

from starlingmq.cluster.links.control_frames import SyncRequest
from starlingmq.cluster.links.peer_frames import Data, DataAck, Envelope
from starlingmq.config.cluster_section import ClusterTlsConfig
from starlingmq.demo.proxy import BACK, OUT, Proxy
from starlingmq.net.listeners.tls import TlsError
from starlingmq.net.peers.peer_server import ListenError

BRIEF = {"heartbeat_interval": 0.1, "member_timeout": 0.3}
SECRET = {"secret": "0123456789abcdef"}


async def nothing_is_left(before: set[asyncio.Task[Any]]) -> None:
    """Of tasks; those that gRPC has for a stream end by themselves, some a little after its server."""
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        assert (await asyncio.wait(left, timeout=WAIT_SECONDS * slowness()))[1] == set()


async def exchange(nodes: Nodes) -> None:
    one, two = await nodes.pair(**SECRET)
    for sequence in range(1, 2001):
        assert one.send(sequence, two)
        assert two.send(-sequence % 5000, one)
    await two.until(lambda: len(two.received) == 2000)
    await one.until(lambda: len(one.received) == 2000)
    assert two.sequences() == list(range(1, 2001))
    assert one.sequences() == list(range(4999, 2999, -1))
    assert one.peers.traffic.envelopes_out == two.peers.traffic.envelopes_in == 2000
    assert one.peers.traffic.writes == two.peers.traffic.reads < 100, "many envelopes in one message"
    assert one.peers.traffic.bytes_out == two.peers.traffic.bytes_in
    assert one.peers.traffic.dropped == {}


async def test_envelopes_arrive_in_order_and_in_batches(nodes: Nodes) -> None:
    await exchange(nodes)


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not there")
def test_the_same_on_uvloop() -> None:
    import uvloop

    async def run() -> None:
        nodes = Nodes()
        await exchange(nodes)
        await nodes.close()
        await nothing_is_left(set())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_closed_connections_leave_no_tasks(nodes: Nodes) -> None:
    before = asyncio.all_tasks()
    one, two = await nodes.pair()
    one.send(1, two, bytes(1_000_000))
    for node in (one, two):
        await nodes.stop(node)
        await node.peers.close()
    await nothing_is_left(before)
    assert not one.connected and not two.connected


async def test_a_large_envelope_goes_through(nodes: Nodes) -> None:
    one, two = await nodes.pair(link_window=1024)
    blob = bytes(20_000_000)
    assert one.send(1, two, blob)
    await two.until(lambda: bool(two.received))
    assert two.received == [one.data(1, two, blob)]


async def test_frames_without_a_stream_are_dropped_and_counted(nodes: Nodes) -> None:
    one, two = await nodes.start("one", 1), await nodes.start("two", 2)
    assert not one.send(1, two)
    one.peers.set_peers([two.info()])
    assert not one.send(2, two), "there is no stream yet"
    await one.until(lambda: 2 in one.connected)
    assert one.send(3, two)
    await two.until(lambda: two.sequences() == [3])
    assert one.peers.traffic.dropped == {"unconnected": 2}


async def test_a_full_buffer_drops_data_first_and_keeps_the_order(nodes: Nodes) -> None:
    one, two = await nodes.start("one", 1, link_window=100_000), await nodes.start("two", 2)
    with Proxy("127.0.0.1", two.port) as proxy:
        one.peers.set_peers([two.info(proxy.address)])
        await one.until(lambda: 2 in one.connected)
        proxy.cut(OUT)
        blob = bytes(90_000)
        taken = [sequence for sequence in range(1, 41) if one.send(sequence, two, blob)]
        assert taken == [1, 2], "twice the window"
        small = Envelope(1, 1, 2, 0, SyncRequest(0, 0))
        assert one.give(2, small) and not one.send(41, two, blob)
        assert one.peers.traffic.dropped == {"overflow": 39}
        proxy.heal()
        await two.until(lambda: len(two.received) == 3)
        assert two.sequences() == taken and two.received[2] == small


async def test_data_above_the_bound_is_sent_although_other_frames_wait(nodes: Nodes) -> None:
    """An acknowledgement is sent before each repetition of the data, and data of other nodes may be relayed."""
    one, two = await nodes.pair(link_window=1000)
    acknowledgement = Envelope(1, 1, 2, 0, DataAck(1, 1))
    relayed = Envelope(3, 1, 2, 0, Data(1, 1, bytes(100)), relayed=True)
    large = Envelope(1, 1, 2, 0, Data(1, 1, bytes(100_000)))
    for envelope in (acknowledgement, relayed, large, acknowledgement):
        assert one.give(2, envelope)
    assert not one.give(2, large), "it is queued already"
    await two.until(lambda: len(two.received) == 4)
    assert two.received == [acknowledgement, relayed, large, acknowledgement]


async def test_a_broken_connection_is_made_again(nodes: Nodes) -> None:
    one, two = await nodes.start("one", 1), await nodes.start("two", 2)
    with Proxy("127.0.0.1", two.port) as proxy:
        one.peers.set_peers([two.info(proxy.address)])
        for round_ in range(1, 4):
            await one.until(lambda: 2 in one.connected)
            assert one.send(round_, two)
            await two.until(lambda round_=round_: round_ in two.sequences())  # type: ignore[misc]
            proxy.disconnect()
            await one.until(lambda: not one.connected)
        await one.until(lambda: 2 in one.connected)
        assert proxy.connections == 4


async def test_a_node_that_comes_again_is_found_again(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    address = two.peers.address
    await nodes.stop(two)
    await one.until(lambda: not one.connected)
    again = await nodes.start("two", 2, listen=address, incarnation=2)
    again.peers.set_peers([one.info()])
    await one.until(lambda: 2 in one.connected)
    assert one.send(1, again)
    await again.until(lambda: again.sequences() == [1])


async def test_a_node_that_moved_is_dialled_where_it_is(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    await nodes.stop(two)
    moved = await nodes.start("two", 2, incarnation=2)
    one.peers.set_peers([one.info(), moved.info()])
    await one.until(lambda: one.connections == 2)
    assert one.connected == {2} and one.send(1, moved)
    await moved.until(lambda: moved.sequences() == [1])
    one.peers.set_peers([one.info()])
    await one.until(lambda: not one.connected)


@pytest.mark.parametrize("directions", [(OUT, BACK), (OUT,), (BACK,)], ids="+".join)
async def test_a_dead_connection_is_noticed_and_replaced(nodes: Nodes, directions: tuple[str, ...]) -> None:
    one, two = await nodes.start("one", 1, **BRIEF), await nodes.start("two", 2, **BRIEF)
    with Proxy("127.0.0.1", two.port) as proxy:
        one.peers.set_peers([two.info(proxy.address)])
        await one.until(lambda: 2 in one.connected)
        proxy.swallow(*directions)
        await one.until(lambda: not one.connected)
        proxy.heal()
        await one.until(lambda: 2 in one.connected)
        assert one.send(7, two)
        await two.until(lambda: two.sequences() == [7])


async def test_a_slow_way_is_a_way(nodes: Nodes) -> None:
    one, two = await nodes.start("one", 1), await nodes.start("two", 2)
    with Proxy("127.0.0.1", two.port) as proxy:
        one.peers.set_peers([two.info(proxy.address)])
        await one.until(lambda: 2 in one.connected)
        proxy.delay(0.2)
        begun = asyncio.get_running_loop().time()
        assert one.send(1, two)
        await two.until(lambda: two.sequences() == [1])
        assert asyncio.get_running_loop().time() - begun >= 0.2


async def test_frames_in_the_name_of_other_nodes_are_dropped_unless_relayed(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    body = Data(1, 1, b"")
    for foreign in (Envelope(3, 1, 2, 0, body), Envelope(1, 2, 2, 0, body)):
        assert one.give(2, foreign)
    relayed = Envelope(3, 1, 2, 0, body, relayed=True)
    assert one.give(2, relayed)
    await two.until(lambda: bool(two.received))
    assert two.received == [relayed]
    assert two.peers.traffic.dropped == {"foreign": 2}


async def test_an_envelope_that_is_not_digested_spoils_no_others(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await nodes.pair()
    take = two.peers._on_envelope

    def fail_once(envelope: Envelope) -> None:
        two.peers._on_envelope = take
        raise ZeroDivisionError

    two.peers._on_envelope = fail_once
    assert one.send(1, two) and one.send(2, two)
    await two.until(lambda: two.sequences() == [2])
    assert "internal error in a message of node one" in caplog.text


async def test_why_there_is_no_connection_is_said_once(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    one, two = await nodes.start("one", 1), await nodes.start("two", 2, **SECRET)
    one.peers.set_peers([two.info()])
    await one.until(lambda: one.attempts >= 4)
    reason = "node one does not know the cluster secret; set the same cluster.secret on all nodes"
    assert [record.message for record in caplog.records if record.name == "starlingmq"] == [
        f"refused the connection of a node from 127.0.0.1: {reason}",
        f"no connection to node two at {two.peers.address}: {reason}",
    ]


async def test_dialling_is_repeated_until_the_other_node_has_its_number(nodes: Nodes) -> None:
    one, two = await nodes.start("one", 1), Node("two", 2)
    nodes.all.append(two)
    await two.peers.start()
    one.peers.set_peers([two.info()])
    await one.until(lambda: one.attempts >= 2)
    two.introduce()
    await one.until(lambda: 2 in one.connected)


async def test_the_newest_stream_of_a_node_is_the_one_that_counts(nodes: Nodes) -> None:
    old, two = await nodes.start("one", 1), await nodes.start("two", 2)
    old.peers.set_peers([two.info()])
    await old.until(lambda: 2 in old.connected)
    new = await nodes.start("one", 1, incarnation=2)
    new.peers.set_peers([two.info()])
    await new.until(lambda: 2 in new.connected)
    await old.until(lambda: not old.connected and old.attempts >= 3)
    assert new.send(1, two)
    await two.until(lambda: two.sequences() == [1])
    assert new.connections == 1


def certified(directory: Path, authority: trustme.CA) -> ClusterTlsConfig:
    directory.mkdir()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    return ClusterTlsConfig(cert=f"{directory}/cert.pem", key=f"{directory}/key.pem", ca=f"{directory}/ca.pem")


async def test_tls_admits_only_nodes_with_a_certificate(nodes: Nodes, tmp_path: Path) -> None:
    authority = trustme.CA()
    one, two = await nodes.pair(tls=certified(tmp_path / "ours", authority), **SECRET)
    assert one.send(1, two)
    await two.until(lambda: two.sequences() == [1])
    plain = await nodes.start("three", 3, **SECRET)
    foreign = await nodes.start("four", 4, tls=certified(tmp_path / "theirs", trustme.CA()), **SECRET)
    refused = two.attempts
    for stranger in (plain, foreign):
        stranger.peers.set_peers([two.info()])
        await stranger.until(lambda stranger=stranger: stranger.attempts >= 3)  # type: ignore[misc]
        assert not stranger.connections
    assert two.attempts == refused, "no handshake is begun with who shows no certificate of ours"


async def test_a_certificate_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    missing = ClusterTlsConfig(cert=f"{tmp_path}/cert.pem", key=f"{tmp_path}/key.pem", ca=f"{tmp_path}/ca.pem")
    with pytest.raises(TlsError, match=rf"^cluster\.tls: {tmp_path}/key\.pem: No such file or directory$"):
        Node("one", 1, tls=missing)


async def test_a_port_that_is_taken_is_one_line(nodes: Nodes) -> None:
    one = await nodes.start("one", 1)
    with pytest.raises(ListenError, match=rf"^cluster\.listen: {one.peers.address}: [^\n]+$"):
        await nodes.start("two", 2, listen=one.peers.address)
