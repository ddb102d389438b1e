"""Cells of a bridge: its near session at the counted broker, its relay, and a far broker that acknowledges at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from tests.instructions.cell import Cell
from tests.instructions.peers import Peer, Publisher

from starlingmq.bridges.bridge_relay import RUNNING, BridgeCounts, BridgeRelay, Leg, NearSession
from starlingmq.bridges.bridge_sessions import far_options, near_options, near_session
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.options import ConnectOptions
from starlingmq.client.state import ClientState
from starlingmq.config.bridges_section import BridgeConfig, BridgeTopic
from starlingmq.core.session.session import BRIDGE_LISTENER, BRIDGE_PREFIX, Client
from starlingmq.wire.mqtt import ack_frame
from starlingmq.wire.properties import RECEIVE_MAXIMUM, encode_properties

PUBACK: Final = 0x40
PUBLISH: Final = 0x30
INFLIGHT: Final = 1000


class NearTransport:
    """Gives the near broker's bytes to the relay, as ``bridges.bridge`` does."""

    def __init__(self, relay: BridgeRelay, now: Callable[[], float]) -> None:
        self.relay = relay
        self.now = now

    def write(self, data: bytes) -> None:
        self.relay.received(self.relay.near, data, self.now())

    def get_extra_info(self, name: str) -> Any:
        return None

    def pause_reading(self) -> None:
        raise AssertionError("the bridge of a cell is held back: the cell measures something else")


class FarBroker(Peer):
    """Acknowledges in the next part of the round all that it has got."""

    def __init__(self, version: str) -> None:
        super().__init__(0)
        self.version = version
        self.frame = 0

    def connack(self) -> bytes:
        if self.version == "3.1.1":
            return b"\x20\x02\x00\x00"
        body = b"\0\0" + encode_properties({RECEIVE_MAXIMUM: INFLIGHT})
        return b"\x20" + bytes([len(body)]) + body

    def answers(self, data: bytes) -> bytes:
        found = []
        at = 0
        while at < len(data):
            size, start = data[at + 1], at + 2
            if size > 127:
                size, start = (size & 127) + data[at + 2] * 128, at + 3
            topic = data[start] << 8 | data[start + 1]
            id = start + 2 + topic
            found.append(ack_frame(PUBACK, data[id] << 8 | data[id + 1]))
            self.delivered += 1
            at = start + size
        return b"".join(found)


class Bridged(Cell):
    """QoS 1: each round has one read of the publisher, one turn, its acknowledgements, and another turn."""

    def __init__(self, version: str, burst: int, rounds: int) -> None:
        self.version = version
        self.publisher = Publisher(0, 1, burst)
        self.far = FarBroker(version)
        super().__init__([self.publisher], rounds, burst)
        self.peers.append(self.far)
        self._bridge()

    def _bridge(self) -> None:
        config = BridgeConfig(
            name="b",
            servers=("mqtt://far",),
            topics=(BridgeTopic(filter="t/#"),),
            version=cast(Any, self.version),
            max_inflight=INFLIGHT,
        )
        options = far_options(config, "here", None, False, False, 0, 30.0)
        far = Leg(ClientState(options), options.version, TopicMap(config.topics, outwards=False), "far")
        near = Leg(ClientState(ConnectOptions()), 5, TopicMap(config.topics, outwards=True), "here")
        relay = self.relay = BridgeRelay(far, near, self._look, False, True, BridgeCounts())
        now = self.driver.clock
        far.state.connection_made(now())
        relay.take(far, now())
        relay.received(far, self.far.connack(), now())
        near.state = ClientState(near_options(config, far.state.server))
        self.near: Client = self.driver.opened(cast(Any, NearTransport(relay, now)), BRIDGE_LISTENER, "bridge b")
        near.state.connection_made(now())
        while data := relay.take(near, now()):
            self.driver.received(self.near, data)
            self._serve()
        assert relay.phase == RUNNING, relay.problem

    def _look(self) -> NearSession:
        return near_session(self.state.ctx.sessions.get(BRIDGE_PREFIX + "b"))

    def _round(self, toggle: Callable[[], None]) -> None:
        data, relay, now = self.publisher.read(), self.relay, self.driver.clock
        self.counted += 1
        toggle()
        self.driver.received(self.publisher.client, data)
        self.loop.turn()
        out = relay.take(relay.far, now())
        toggle()
        answers = self.far.answers(out)
        self.publisher.heard(self.publisher.transport.take())
        self.counted += 1
        toggle()
        relay.received(relay.far, answers, now())
        self.driver.received(self.near, relay.take(relay.near, now()))
        self.loop.turn()
        toggle()
