"""Cells in which each message crosses from one worker to another: two nodes on one event loop, joined by Unix sockets.

etcd is a model, and time passes only from message to message, so no heartbeat is counted.
"""

from __future__ import annotations

import asyncio
import tempfile
from random import Random
from typing import Any, Final, cast

import msgspec
from tests.instructions.cell import START, OverSockets
from tests.instructions.peers import Peer, SocketTransport, Subscriber
from tests.sim.etcd_model import EtcdModel

from starlingmq.cluster.etcd.etcd_requests import Request
from starlingmq.config.settings import Config, LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.driver import Driver
from starlingmq.net.etcd.etcd_access import EtcdAccess
from starlingmq.net.peers.cluster_shell import Cluster
from starlingmq.storage.store import NoStore

MESSAGE_SECONDS: Final = 0.0001  # between two messages: 10,000 a second
STEP_SECONDS: Final = 0.01
STEPS_MAX: Final = 5000
HOPS: Final = 2  # rounds of the event loop, one at each worker


class Time:
    now = START

    def __call__(self) -> float:
        return self.now


class Etcd:
    """One worker's client of the model."""

    def __init__(self, model: EtcdModel, name: str, time: Time) -> None:
        self.session = model.session(name)
        self.time = time

    def submit(self, request: Request) -> None:
        self.session.request(request, self.time())

    async def close(self) -> None:
        pass


class Worker:
    def __init__(self, name: str, sockets: str, model: EtcdModel, time: Time) -> None:
        cluster = {
            "enabled": True,
            "listen": "127.0.0.1:0",
            "secret": "s" * 32,
            "one_machine": True,
        }
        settings = {"node": {"name": name}, "cluster": cluster | {"socket_dir": sockets}}
        self.time = time
        self.etcd = Etcd(model, name, time)
        self.state = BrokerState(MqttConfig(sys_interval=0.0), LimitsConfig(), START, b"s" * 32, name)
        config = msgspec.convert(settings, Config)
        self.cluster = Cluster(config, time, EtcdAccess(config))

    async def start(self) -> None:
        state = await self.cluster.open(self.state, {})
        self.cluster.client = cast(Any, self.etcd)
        self.driver = Driver(self.state, NoStore(), clock=self.time, cluster=state, carry=self.cluster.carry)
        self.cluster.request_turn = self.driver.request_turn
        state.start(self.time())

    def is_joined(self, nodes: int) -> bool:
        state = self.cluster.state
        if state is None or not state.serving or len(state.status()) != nodes - 1:
            return False
        return all(peer.connected for peer in state.status())


class Crossing(OverSockets):
    """Publishers are connected to the first worker, subscribers to the second one."""

    def __init__(self, peers: list[Peer], rounds: int, messages: int, nodes: tuple[str, ...] = ("one", "two")) -> None:
        self.time = Time()
        self.directory = tempfile.TemporaryDirectory(prefix="cell-")
        self.model = EtcdModel(Random(1))
        self.workers = [Worker(name, self.directory.name, self.model, self.time) for name in nodes]
        super().__init__(peers, rounds, messages)

    def _begin(self) -> None:
        self.loop.run_until_complete(self._join())

    async def _join(self) -> None:
        for worker in self.workers:
            await worker.start()
        for _ in range(STEPS_MAX):
            if all(worker.is_joined(len(self.workers)) for worker in self.workers):
                return
            self._pass(STEP_SECONDS)
            await asyncio.sleep(0.001)
        raise AssertionError("the workers did not find each other")

    def _pass(self, seconds: float) -> None:
        self.time.now += seconds
        for worker in self.workers:
            worker.etcd.session.keep_alive(self.time.now)
        for name, answer in self.model.advance(self.time.now):
            next(worker for worker in self.workers if worker.etcd.session.node == name).cluster._on_answer(answer)
        for worker in self.workers:
            worker.driver.request_turn()

    def _driver_of(self, peer: Peer) -> Driver:
        return self.workers[isinstance(peer, Subscriber)].driver

    def _greet(self, peer: Peer, data: bytes) -> None:
        """Until it is answered: the other worker has its routes then."""
        transport = cast(SocketTransport, peer.transport)
        transport.send(data)
        for _ in range(STEPS_MAX):
            self._pass(STEP_SECONDS)
            super()._serve()
            if transport.take():
                return
        raise AssertionError("a client is not answered")

    def _serve(self) -> None:
        self.time.now += MESSAGE_SECONDS
        sockets = cast(BrokerLoop, self.loop).sockets
        for _ in range(HOPS):
            sockets.select(0.0)

    async def _end(self) -> None:
        await super()._end()
        for worker in self.workers:
            await worker.cluster.close()
            worker.driver.end()
        self.directory.cleanup()
