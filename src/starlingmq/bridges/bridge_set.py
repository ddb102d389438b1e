"""The bridges of a node, as the settings name them.

In a cluster each node knows all bridges, and one carries each: of the nodes that serve clients, the one whose number
gives the largest digest with the name of the bridge; the lanes of a link, the nodes in this order. While nodes disagree
for a moment, the later one takes the session over, as the takeover of any session; so at no time two of them carry a
message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from starlingmq.bridges.bridge import LOOK_SECONDS, Bridge, MqttBridge
from starlingmq.bridges.bridge_relay import BridgeCounts
from starlingmq.bridges.link_view import LinkView
from starlingmq.config.bridges_section import BridgeConfig, speaks_kafka, speaks_nats
from starlingmq.config.links_section import LinkLane
from starlingmq.config.rules_section import RuleLane
from starlingmq.config.settings import Config, carried
from starlingmq.core.messages.link_marks import is_link, name_of
from starlingmq.core.publish.bridges import bounds_of, holding_of, session_of, site_of
from starlingmq.core.session.session import BRIDGE_PREFIX
from starlingmq.net.driver import Driver
from starlingmq.wire.digests import blake2b

log = logging.getLogger("starlingmq")


def carrier(bridge: str, nodes: Iterable[int], lane: int = 1) -> int:
    """The number of the node that carries this bridge, or this lane of a link; 0 if there is none."""

    def weight(node: int) -> bytes:
        return blake2b(f"{node} {bridge}".encode(), digest_size=8).digest()

    ranked = sorted(nodes, key=weight, reverse=True)
    return ranked[(lane - 1) % len(ranked)] if ranked else 0


def _kind(config: BridgeConfig) -> type[Bridge]:
    """Kinds that are not configured are not loaded."""
    if isinstance(config, RuleLane):
        from starlingmq.rules.rule_bridge import RuleBridge

        return RuleBridge
    if speaks_nats(config):
        from starlingmq.bridges.nats_bridge import NatsBridge

        return NatsBridge
    if speaks_kafka(config):
        from starlingmq.bridges.kafka_bridge import KafkaBridge

        return KafkaBridge
    return MqttBridge


class BridgeSet:
    """``nodes``: the own number and those of all nodes that serve clients; (0, [0]) without a cluster. ``paused``: the
    names of bridges that are paused from the start."""

    def __init__(self, driver: Driver, nodes: Callable[[], tuple[int, list[int]]], paused: Iterable[str] = ()) -> None:
        self.paused = set(paused)
        self._driver = driver
        self._nodes = nodes
        self._bridges: dict[str, Bridge] = {}
        self._counts: dict[str, BridgeCounts] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._looking: asyncio.TimerHandle | None = None

    def use(self, config: Config) -> None:
        """Start the bridges of these settings, and end others; one whose settings have not changed goes on."""
        site = site_of(config)
        self._driver.state.ctx.bridge(site, bounds_of(config), holding_of(config))
        wanted = {each.name: each for each in carried(config)}
        for name, bridge in list(self._bridges.items()):
            if wanted.get(name) != bridge.config:
                del self._bridges[name]
                task = asyncio.ensure_future(bridge.stop())
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)
        for name, settings in wanted.items():
            if name not in self._bridges:
                counts = self._counts.setdefault(name, BridgeCounts())
                bridge = self._bridges[name] = _kind(settings)(
                    settings, self._driver, site, self._elects(settings), counts
                )
                if name in self.paused:
                    bridge.pause(True)
                bridge.begin()
        self._forget(wanted.values())
        self._look()

    def _elects(self, bridge: BridgeConfig) -> Callable[[], bool]:
        name, lane = bridge.name, 1
        if isinstance(bridge, LinkLane) and bridge.lanes > 1:
            name, lane = name.removesuffix(f".{bridge.number}"), bridge.number

        def elected() -> bool:
            own, serving = self._nodes()
            return carrier(name, serving, lane) == own

        return elected

    def _forget(self, wanted: Iterable[BridgeConfig]) -> None:
        """End the sessions of bridges that the settings do not name any more."""
        state = self._driver.state
        state.ctx.at(self._driver.clock())
        state.publishing.producers.forget_logs([each.name for each in wanted])
        kept = {session_of(each) for each in wanted}
        for client_id, session in list(state.ctx.sessions.items()):
            if client_id.startswith(BRIDGE_PREFIX) and client_id not in kept:
                lost = 0 if session.queue is None else len(session.queue)
                name = f"{'link' if is_link(client_id) else 'bridge'} {name_of(client_id)}"
                log.warning("%s is not in the settings any more; %d messages that waited for it end", name, lost)
                state.ending.end(session)
        self._driver.request_turn()

    def _look(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        for bridge in self._bridges.values():
            bridge.look()
        if self._bridges:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def views(self) -> list[LinkView]:
        return [self._bridges[name].view() for name in sorted(self._bridges)]

    def pause(self, name: str, paused: bool) -> None:
        """Raises KeyError if there is no such bridge."""
        self._bridges[name].pause(paused)
        if paused:
            self.paused.add(name)
        else:
            self.paused.discard(name)

    def named(self, name: str) -> Bridge | None:
        return self._bridges.get(name)

    async def finish(self, name: str) -> None:
        """End a bridge for good once nothing waits for the other broker."""
        bridge = self._bridges.get(name)
        if bridge is not None:
            await bridge.finish()

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        bridges = list(self._bridges.values())
        self._bridges.clear()
        await asyncio.gather(*[bridge.stop() for bridge in bridges], *self._stopping)
