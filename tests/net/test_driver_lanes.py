"""The two lanes: acknowledgements are sent when their writes are stored, all other frames immediately, all in order.

The driver is the real one on a real event loop. The store finishes its commits when the test decides, in any order.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.net.lanes import EIO, Bench, Peer, SlowStore, turns

from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.context.ready import INBOUND_PUT, QUEUE_PUT, SESSION_PUT, WINDOW_PUT
from starlingmq.net.driver import Driver
from starlingmq.storage.store import NotYetStored
from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.reasons import Reason


@pytest.fixture(autouse=True)
async def nothing_goes_wrong_unseen() -> AsyncIterator[None]:
    """Fail the test after an exception in a callback of the event loop, which pytest would not notice."""
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: wrong.append(context))
    yield
    assert wrong == []


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_connack_of_a_lasting_session_waits(bench: Bench) -> None:
    peer = bench.open("c", lasting=True)
    await turns()
    assert bench.store.commits[-1].kinds() == [SESSION_PUT]
    assert peer.got() == []
    await bench.store.finish()
    assert [type(packet) for packet in peer.got()] == [Connack]


async def test_suback_waits(bench: Bench) -> None:
    peer = await bench.connect("c", lasting=True)
    peer.send(Subscribe(7, [SubscribeRequest(b"t", 1)]))
    await turns()
    assert peer.got() == []
    await bench.store.finish()
    assert peer.got() == [Suback(7, [1])]


async def test_puback_waits(bench: Bench) -> None:
    await bench.away(b"t")
    peer = await bench.connect("c")
    peer.send(Publish(b"t", b"m", 1, packet_id=7))
    await turns()
    (commit,) = bench.store.open()
    assert commit.kinds() == [QUEUE_PUT] and commit.payloads() == {b"m"}
    assert peer.got() == []
    await bench.store.finish()
    assert peer.got() == [Ack(PUBACK, 7)]


async def test_both_answers_of_qos_2_wait(bench: Bench) -> None:
    await bench.away(b"t")
    peer = await bench.connect("c", lasting=True)
    peer.send(Publish(b"t", b"m", 2, packet_id=7))
    await turns()
    assert bench.store.open()[0].kinds() == [INBOUND_PUT]
    assert peer.got() == []
    await bench.store.finish()
    assert peer.got() == [Ack(PUBREC, 7)]
    peer.send(Ack(PUBREL, 7))
    await turns()
    assert peer.got() == []
    await bench.store.finish()
    assert peer.got() == [Ack(PUBCOMP, 7)]


async def test_a_message_to_a_lasting_session_waits_for_its_place_in_the_window(bench: Bench) -> None:
    """Otherwise it could be sent, lost in a crash, and its id be used for another message."""
    sub = await bench.connect("sub", lasting=True, filter=b"t")
    pub = await bench.connect("pub")
    pub.send(Publish(b"t", b"m", 1, packet_id=7))
    await turns()
    assert bench.store.open()[0].kinds() == [WINDOW_PUT]
    assert sub.got() == [] and pub.got() == []
    await bench.store.finish()
    assert sub.got() == [Publish(b"t", b"m", 1, packet_id=1)]
    assert pub.got() == [Ack(PUBACK, 7)]


async def test_qos_0_of_others_does_not_wait(bench: Bench) -> None:
    await bench.away(b"t")
    slow, pub = await bench.connect("slow"), await bench.connect("pub")
    sub = await bench.connect("sub", filter=b"u")
    slow.send(Publish(b"t", b"m", 1, packet_id=7))
    await turns()
    pub.send(Publish(b"u", b"now"), Pingreq(), Publish(b"u", b"acknowledged", 1, packet_id=9))
    await turns()
    assert [packet.payload for packet in sub.got() if isinstance(packet, Publish)] == [b"now", b"acknowledged"]
    assert pub.got() == [Pingresp()], "its PUBACK waits for what was handed over before it"
    assert slow.got() == []
    await bench.store.finish()
    assert slow.got() == [Ack(PUBACK, 7)] and pub.got() == [Ack(PUBACK, 9, Reason.SUCCESS)]


async def test_nothing_overtakes_what_waits_on_the_same_connection(bench: Bench) -> None:
    sub = await bench.connect("sub", lasting=True, filter=b"t")
    pub = await bench.connect("pub")
    pub.send(Publish(b"t", b"1", 0), Publish(b"t", b"2", 1, packet_id=1), Publish(b"t", b"3", 0))
    await turns()
    pub.send(Publish(b"t", b"4", 0))
    sub.send(Pingreq())
    await turns()
    assert [packet.payload for packet in sub.got() if isinstance(packet, Publish)] == [b"1"]
    await bench.store.finish()
    found = sub.got()
    assert [packet.payload for packet in found if isinstance(packet, Publish)] == [b"2", b"3", b"4"]
    assert sum(isinstance(packet, Pingresp) for packet in found) == 1


async def test_commits_that_finish_out_of_order_release_in_order(bench: Bench) -> None:
    await bench.away(b"t")
    first, second = await bench.connect("first"), await bench.connect("second")
    first.send(Publish(b"t", b"1", 1, packet_id=1))
    await turns()
    second.send(Publish(b"t", b"2", 1, packet_id=2))
    await turns()
    first.send(Publish(b"t", b"3", 1, packet_id=3))
    await turns()
    one, two, three = bench.store.open()
    await bench.store.finish(three)
    await bench.store.finish(two)
    assert first.got() == [] and second.got() == []
    await bench.store.finish(one)
    assert first.got() == [Ack(PUBACK, 1), Ack(PUBACK, 3)] and second.got() == [Ack(PUBACK, 2)]


async def test_writes_stored_at_once_are_acknowledged_in_the_same_turn(bench: Bench) -> None:
    await bench.away(b"t")
    peer = await bench.connect("c")
    bench.store.at_once = True
    peer.send(Publish(b"t", b"m", 1, packet_id=7))
    await asyncio.sleep(0)
    assert peer.got() == [Ack(PUBACK, 7)]


async def test_writes_stored_at_once_wait_behind_pending_ones(bench: Bench) -> None:
    await bench.away(b"t")
    peer = await bench.connect("c")
    peer.send(Publish(b"t", b"1", 1, packet_id=1))
    await turns()
    bench.store.at_once = True
    peer.send(Publish(b"t", b"2", 1, packet_id=2))
    await turns()
    assert peer.got() == []
    await bench.store.finish()
    assert peer.got() == [Ack(PUBACK, 1), Ack(PUBACK, 2)]


async def test_one_turn_is_one_commit(bench: Bench) -> None:
    await bench.away(b"t")
    peers = [await bench.connect(f"c{number}") for number in range(5)]
    before = len(bench.store.commits)
    for peer in peers:
        peer.send(Publish(b"t", peer.client_id.encode(), 1, packet_id=1), Publish(b"t", b"more", 1, packet_id=2))
    await turns()
    assert len(bench.store.commits) == before + 1
    assert bench.store.commits[-1].payloads() == {b"more", *(peer.client_id.encode() for peer in peers)}


async def test_an_engine_that_keeps_nothing_is_asked_nothing() -> None:
    class Nothing(SlowStore):
        keeps = False

    bench = Bench()
    bench.store = Nothing()
    bench.driver = Driver(bench.state, bench.store, clock=lambda: 1000.0)
    await bench.away(b"t")
    peer = await bench.connect("c", lasting=True)
    peer.send(Publish(b"t", b"m", 1, packet_id=7))
    await turns()
    assert peer.got() == [Ack(PUBACK, 7)]
    assert bench.store.commits == []


# Failures


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
async def test_an_unstored_message_is_not_acknowledged(bench: Bench, qos: int, raised: bool) -> None:
    await bench.away(b"t")
    peer, other = await bench.connect("c", lasting=True), await bench.connect("other")
    if raised:
        bench.store.at_once = EIO
    peer.send(Publish(b"t", b"m", qos, packet_id=7))
    await turns()
    await bench.store.finish(error=EIO)
    assert peer.got() == []
    assert peer.wire.closed and not other.wire.closed
    assert bench.state.ctx.counters.errors == {"not_stored": 1}
    other.send(Pingreq())
    await turns()
    assert other.got() == [Pingresp()]


async def test_a_failed_commit_does_not_take_along_those_of_others(bench: Bench) -> None:
    await bench.away(b"t")
    peers = [await bench.connect(f"c{number}") for number in range(3)]
    for peer in peers:
        peer.send(Publish(b"t", b"m", 1, packet_id=7))
        await turns()
    one, two, three = bench.store.open()
    await bench.store.finish(two, error=EIO)
    await bench.store.finish(three)
    assert [peer.got() for peer in peers] == [[], [], []]
    await bench.store.finish(one)
    assert [peer.got() for peer in peers] == [[Ack(PUBACK, 7)], [], [Ack(PUBACK, 7)]]
    assert [peer.wire.closed for peer in peers] == [False, True, False]


async def test_nothing_is_said_after_what_could_not_be_stored(bench: Bench) -> None:
    """Such as a SUBACK without a CONNACK, or a PUBACK before an earlier one that was never sent."""
    peer = bench.open("c", lasting=True)
    await turns()
    peer.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    await turns()
    peer.send(Pingreq())
    await turns()
    connect, subscribe = bench.store.open()
    await bench.store.finish(connect, error=EIO)
    await bench.store.finish(subscribe)
    peer.send(Pingreq())
    await turns()
    assert peer.wire.output == b"" and peer.wire.closed


async def test_a_client_that_was_cut_off_begins_again(bench: Bench) -> None:
    await bench.away(b"t")
    peer = await bench.connect("c", lasting=True)
    peer.send(Publish(b"t", b"m", 1, packet_id=7))
    await turns()
    await bench.store.finish(error=EIO)
    peer.lost()
    await turns()
    await bench.store.finish()
    back = await bench.connect("c", lasting=True)
    back.send(Publish(b"t", b"m", 1, packet_id=7, dup=True))
    await turns()
    await bench.store.finish()
    assert back.got() == [Ack(PUBACK, 7)]


# Connections that end while frames wait


async def test_a_client_that_went_away_is_not_written_to(bench: Bench) -> None:
    await bench.away(b"t")
    peer = await bench.connect("c")
    peer.send(Publish(b"t", b"m", 1, packet_id=7))
    await turns()
    peer.lost()
    await turns()
    await bench.store.finish()
    assert peer.got() == []


async def test_last_words_come_last(bench: Bench) -> None:
    await bench.away(b"t")
    peer = await bench.connect("c", lasting=True)
    peer.send(Publish(b"t", b"m", 1, packet_id=7))
    await turns()
    taker = bench.open("c", lasting=True)
    await turns()
    assert not peer.wire.closed
    await bench.store.finish()
    found = peer.got()
    assert found[0] == Ack(PUBACK, 7)
    assert isinstance(found[1], Disconnect) and found[1].reason == Reason.SESSION_TAKEN_OVER
    assert peer.wire.closed
    assert [type(packet) for packet in taker.got()] == [Connack]


# Bounds


async def test_frames_that_wait_for_a_slow_store_are_bounded() -> None:
    bench = Bench(write_buffer=10_000)
    sub = await bench.connect("sub", lasting=True, filter=b"t")
    pub = await bench.connect("pub")
    pub.send(Publish(b"t", b"stored", 1, packet_id=1))
    await turns()
    payload = b"x" * 1000
    for _ in range(100):
        pub.send(Publish(b"t", payload))
        await turns(2)
    queue = bench.state.ctx.sessions["sub"].queue
    assert queue is not None and len(queue) >= 85
    await bench.store.finish()
    while bench.store.open():
        await bench.store.finish()
    assert len([packet for packet in sub.got() if isinstance(packet, Publish)]) == 101


# All combined


class Oracle:
    """Checks at every write that everything it acknowledges is stored."""

    def __init__(self, bench: Bench, peer: Peer) -> None:
        self.store = bench.store
        self.peer = peer
        self.published: dict[int, bytes] = {}
        self.answered: list[int] = []
        peer.wire.on_write = self.look

    def publish(self, packet_id: int, payload: bytes, qos: int) -> None:
        self.published[packet_id] = payload
        self.peer.send(Publish(b"t", payload, qos, packet_id=packet_id))

    def look(self) -> None:
        for packet in self.peer.got():
            if not isinstance(packet, Ack) or packet.type not in (PUBACK, PUBREC):
                continue
            payload = self.published[packet.packet_id]
            commits = self.store.commits
            places = [number for number, commit in enumerate(commits) if payload in commit.payloads()]
            assert places, "acknowledged, and nobody was asked to store it"
            assert all(commits[number].stored() for number in places)
            assert all(commit.future.done() for commit in commits[: max(places)]), "ahead of an earlier commit"
            self.answered.append(packet.packet_id)


@pytest.mark.parametrize("seed", range(10))
async def test_an_acknowledgement_is_true_whatever_the_store_does(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    await bench.away(b"#")
    await bench.connect("sub", lasting=True, filter=b"#")
    peers = [Oracle(bench, await bench.connect(f"c{number}", lasting=True)) for number in range(4)]
    for number in range(1, 200):
        oracle = chance.choice(peers)
        if not oracle.peer.wire.closed:
            oracle.publish(number, b"message %d" % number, chance.choice([1, 2]))
        await turns(chance.randrange(3))
        if chance.random() < 0.3 and bench.store.open():
            failing = chance.random() < 0.02
            await bench.store.finish(chance.choice(bench.store.open()), error=EIO if failing else None)
    await bench.store.finish()
    for oracle in peers:
        assert oracle.answered == sorted(oracle.answered)
        assert oracle.peer.wire.closed or oracle.answered == list(oracle.published)
    assert any(oracle.answered for oracle in peers)


@pytest.mark.parametrize("raises", [1, 2])
async def test_a_cluster_turn_that_raised_is_committed_with_the_next_turn(bench: Bench, raises: int) -> None:
    """If the next one raises as well, the clients are served all the same."""
    peer = await bench.connect("c", lasting=True)
    # of another broker, so that clients do not wait for nodes that are not there
    cluster: Any = ClusterState(Bench().driver.state, ClusterConfig(name="c"), "n1", "n1:1", {}, 0.0)
    bench.driver.cluster, bench.driver.carry = cluster, lambda ready: None
    before = len(bench.store.commits)
    whole, cluster._beginning = cluster._beginning, (None,)  # as a subsystem that raises an exception
    raised: list[logging.LogRecord] = []

    def mend(record: logging.LogRecord) -> bool:
        raised.append(record)
        if len(raised) == raises:
            cluster._beginning = whole
        return True

    committed_after: list[tuple[int, bool]] = []
    commit = bench.store.commit

    def noting(writes: Any) -> Any:
        committed_after.append((len(raised), cluster._has_events))
        return commit(writes)

    bench.store.commit = noting  # type: ignore[method-assign]
    log = logging.getLogger("starlingmq")
    log.addFilter(mend)
    try:
        peer.send(Subscribe(7, [SubscribeRequest(b"t", 1)]))
        await turns()
    finally:
        log.removeFilter(mend)
    turn_was_whole = raises == 1
    assert committed_after == [(raises, not turn_was_whole)] and len(bench.store.commits) == before + 1
    await bench.store.finish()
    assert [type(packet) for packet in peer.got()] == [Suback]


async def test_postponed_frames_wait_for_the_answers_of_all_refused_turns(bench: Bench) -> None:
    """Storing works again while a turn behind a refused one is still being stored: its frames come last."""
    peer = await bench.connect("c", lasting=True)
    for packet_id in (1, 2):
        peer.send(Publish(b"t", b"m", 2, packet_id=packet_id))
        await turns()
        await bench.store.finish()
    peer.got()
    for packet_id in (1, 2):
        peer.send(Ack(PUBREL, packet_id))
        await turns()
    first, second = bench.store.open()
    await bench.store.finish(first, error=NotYetStored("the disk is full"))
    bench.state.refusal.over()
    bench.driver.request_turn()  # as the store does
    await turns()
    assert peer.got() == []
    await bench.store.finish(second)
    await bench.store.finish()
    assert peer.got() == [Ack(PUBCOMP, 1), Ack(PUBCOMP, 2)]
