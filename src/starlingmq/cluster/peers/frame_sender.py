"""Sends frames to other nodes: adds the envelope and chooses the next hop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlingmq.cluster.links.peer_frames import Body, Data, Envelope
from starlingmq.cluster.view.cluster_ready import ClusterReady
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.config.settings import ClusterConfig

FRAME_BYTES: Final = 4 << 20  # data passed to the shell for one peer in one turn


class FrameSender:
    def __init__(self, view: ClusterView, ready: ClusterReady, config: ClusterConfig) -> None:
        self._view = view
        self._ready = ready
        self._config = config

    def _envelope(self, number: int, body: Body) -> Envelope:
        view = self._view
        target = view.transports[number].link.target_incarnation
        return Envelope(view.number, view.incarnation, number, target, body)

    def send(self, number: int, body: Body) -> None:
        """Sends to one node, if it can be reached."""
        relay = self._view.relay
        hop = None if relay is None else relay.next_hop(number)
        if hop is not None:
            self._ready.now.append((hop, self._envelope(number, body)))

    def send_if_known(self, target: int | None, body: Body) -> None:
        """Sends to one node if it is known; None: to all nodes."""
        transports = self._view.transports
        for number in transports if target is None else (target,):
            if number in transports:
                self.send(number, body)

    def send_all_ways(self, body_for: Callable[[int], Body]) -> None:
        """Sends to each node what is meant for it, by all paths that may work."""
        relay = self._view.relay
        if relay is None:
            return
        for target in self._view.transports:
            envelope = self._envelope(target, body_for(target))
            for hop in relay.heartbeat_ways(target):
                self._ready.now.append((hop, envelope))

    def pass_on(self, hop: int, envelope: Envelope) -> None:
        """Relays a frame between two other nodes."""
        self._ready.now.append((hop, envelope))

    # Messages

    def send_data(self, now: float) -> None:
        """To be called after the core's output was written: sends messages, and acknowledgements of received ones."""
        relay = self._view.relay
        if relay is None:
            return
        for number, transport in self._view.transports.items():
            frames: list[Data] = []
            if transport.link.wake_at() <= now and relay.next_hop(number) is not None:
                frames = transport.link.take(now, FRAME_BYTES)
            ack = transport.take_ack(now, bool(frames))
            if ack is not None:
                self.send(number, ack)
            for data in frames:
                transport.data_frames += 1
                self.send(number, data)

    def data_due_at(self, soonest: float) -> float:
        """When ``send_data`` or a turn has work for a transport, if that is before ``soonest``."""
        relay = self._view.relay
        if relay is not None:
            for number, transport in self._view.transports.items():
                due = transport.link.wake_at()
                if due < soonest and relay.next_hop(number) is not None:
                    soonest = due
                soonest = min(soonest, transport.wake_at(self._config))
        return soonest
