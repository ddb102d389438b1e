"""TLS handshakes take turns (``net/listeners/handshake_queue.py``): the rules in virtual time, and real storms."""

from __future__ import annotations

import asyncio
import random
import select
import socket
from collections import Counter
from collections.abc import Callable

import pytest
from tests.patience import within

from starlingmq.config.settings import LimitsConfig
from starlingmq.net.broker_loop import client_sockets
from starlingmq.net.listeners import accepting, handshake_queue
from starlingmq.net.listeners.connection_counts import ConnectionCounts
from starlingmq.net.listeners.descriptors import Descriptors
from starlingmq.net.listeners.handshake_queue import WAITING_MAX, HandshakeQueue

from .conftest import PATIENCE, Certificates, FakeDriver, Open
from .test_listeners import port_of
from .test_tls_client_sockets import VERSIONS, connect, send_back
from .test_tls_hostile import CutPeer

ONE_LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])


class World:
    """Virtual time, and turns that the test begins."""

    def __init__(self, seconds_per_turn: float) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.queue = HandshakeQueue(seconds_per_turn, lambda: self.now, self.soon.append)
        self.log: list[tuple[int, int]] = []  # turn and number of each step
        self.turns = 0

    def step(self, number: int, seconds: float) -> int:
        self.now += seconds
        self.log.append((self.turns, number))
        return number

    def begin(self, number: int, seconds: float) -> asyncio.Task[int]:
        return asyncio.ensure_future(self.queue.run(lambda: self.step(number, seconds)))

    async def turn(self) -> bool:
        """Return whether there was anything to do."""
        self.turns += 1
        soon, self.soon[:] = list(self.soon), []
        for callback in soon:
            callback()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return bool(soon)


class Gate:
    def __init__(self) -> None:
        self.accepting = True

    def pause(self) -> None:
        self.accepting = False

    def accept_again(self) -> None:
        self.accepting = True


@ONE_LOOP
@pytest.mark.parametrize("seed", range(20))
async def test_no_turn_exceeds_its_time_by_more_than_one_step_and_the_order_is_kept(seed: int) -> None:
    rng = random.Random(seed)
    world = World(0.005)
    costs: list[float] = []
    tasks: list[asyncio.Task[int]] = []
    for _ in range(30):
        for _ in range(rng.randrange(0, 12)):
            costs.append(rng.choice((0.0, 0.0004, 0.001, 0.009)))
            tasks.append(world.begin(len(tasks), costs[-1]))
        await asyncio.sleep(0)
        await world.turn()
    while await world.turn():
        pass
    assert [await task for task in tasks] == list(range(len(tasks)))
    assert [number for _, number in world.log] == list(range(len(tasks)))
    for turn in range(world.turns):
        taken = [costs[number] for when, number in world.log if when == turn]
        assert sum(taken[:-1]) < 0.005 + 1e-9
    assert world.queue.waiting == 0


@ONE_LOOP
async def test_a_handshake_that_ended_while_it_waited_costs_nothing() -> None:
    world = World(0.001)
    tasks = [world.begin(number, 0.002) for number in range(5)]
    await asyncio.sleep(0)
    assert world.queue.waiting == 4
    for task in tasks[1:4]:
        task.cancel()
    await world.turn()
    assert world.log == [(0, 0), (1, 4)] and world.queue.waiting == 0


@ONE_LOOP
async def test_a_step_that_fails_is_the_failure_of_its_handshake_only() -> None:
    world = World(0.001)

    def fail() -> int:
        raise LookupError

    first = world.begin(0, 0.002)
    failing = asyncio.ensure_future(world.queue.run(fail))
    last = world.begin(2, 0.0)
    await asyncio.sleep(0)
    await world.turn()
    assert await first == 0 and await last == 2
    with pytest.raises(LookupError):
        await failing


@ONE_LOOP
async def test_accepting_pauses_while_many_wait_and_goes_on_at_half_of_them() -> None:
    world, gate, closed = World(0.001), Gate(), Gate()
    tasks = [world.begin(number, 0.002) for number in range(WAITING_MAX)]
    await asyncio.sleep(0)
    assert world.queue.waiting == WAITING_MAX - 1
    assert not world.queue.hold(gate) and gate.accepting
    tasks.append(world.begin(WAITING_MAX, 0.002))
    await asyncio.sleep(0)
    assert world.queue.hold(gate) and world.queue.hold(closed) and not gate.accepting
    world.queue.remove(closed)
    while not gate.accepting:
        assert world.queue.waiting > WAITING_MAX // 2
        assert await world.turn()
    assert world.queue.waiting == WAITING_MAX // 2
    assert not closed.accepting and world.queue.pauses == 2
    while await world.turn():
        pass
    assert [await task for task in tasks] == list(range(WAITING_MAX + 1))


async def finish(peers: list[CutPeer]) -> None:
    async with within(PATIENCE):
        while not all(peer.complete and not peer.left for peer in peers):
            for peer in peers:
                peer.step(100_000)
            await asyncio.sleep(0)


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
@pytest.mark.asyncio(loop_factories=["epoll"])
async def test_a_storm_of_handshakes_does_not_delay_a_client_that_is_connected(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    """In time that only handshakes take: each takes all of its turn."""
    admission = ConnectionCounts()
    sockets = client_sockets(asyncio.get_running_loop())
    assert sockets is not None
    now = 0.0
    steps: Counter[int] = Counter()  # by round of reads

    def clock() -> float:
        nonlocal now
        now += 1.0
        steps[sockets.rounds] += 1
        return now

    admission.handshakes = HandshakeQueue(0.5, clock)
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server(), options={"admission": admission})
    driver.on_received = send_back
    ping = CutPeer(certificates, port_of(listener.address), VERSIONS[1])
    await ping.shake_hands()
    peers = [CutPeer(certificates, port_of(listener.address), VERSIONS[1]) for _ in range(100)]
    for peer in peers:
        peer.step(100_000)
    async with within(PATIENCE):
        while admission.handshakes.waiting < 50:
            await asyncio.sleep(0)
    for _ in range(20):
        before = sum(steps.values())
        ping.sock.send(ping.seal(b"ping"))
        assert await ping.receive(4) == b"ping"
        assert sum(steps.values()) - before <= 2 * 4, "handshakes went first"
    assert max(steps.values()) <= 2 * 2, "a step asks for the time twice"
    await finish(peers)
    for peer in (*peers, ping):
        peer.sock.close()


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_connections_wait_in_the_queue_of_the_kernel_while_too_many_handshakes_wait(
    driver: FakeDriver, listen: Open, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(handshake_queue, "WAITING_MAX", 4)
    monkeypatch.setattr(accepting, "ACCEPTS_PER_TURN", 2)
    admission = ConnectionCounts(LimitsConfig(handshake_time=0.0001))
    listener = await listen(f"{scheme}://127.0.0.1:0", tls=certificates.server(), options={"admission": admission})
    peers = [CutPeer(certificates, port_of(listener.address), VERSIONS[1]) for _ in range(40)]
    for peer in peers:
        peer.step(100_000)
    await finish(peers)  # in TLS 1.3 a client is finished before its last flight is read
    async with within(PATIENCE):
        while admission.handshakes.waiting:
            await asyncio.sleep(0)
    assert admission.handshakes.pauses > 0
    last = await connect(listener, certificates)
    last.sock.close()
    for peer in peers:
        peer.sock.close()


async def test_accepting_does_not_go_on_without_descriptors(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    admission = ConnectionCounts(descriptors=Descriptors())
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server(), options={"admission": admission})
    admission.descriptors.for_clients = 0
    admission.descriptors.ran_out()
    listener._acceptor.accept_again()  # type: ignore[union-attr]
    waiting = socket.create_connection(("127.0.0.1", port_of(listener.address)))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert listener.gate.refused == {}
    waiting.close()
    admission.descriptors.close()


async def test_the_time_for_handshakes_can_be_changed() -> None:
    counts = ConnectionCounts(LimitsConfig(handshake_time=0.002))
    assert counts.handshakes.seconds_per_turn == 0.002
    counts.use(LimitsConfig(handshake_time=0.003))
    assert counts.handshakes.seconds_per_turn == 0.003
