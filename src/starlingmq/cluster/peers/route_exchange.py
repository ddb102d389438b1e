"""Applies route changes in each turn: routes of other nodes to the router, this node's routes to the other nodes.

When many sessions move, their filters go together: those that have moved here at most every GATHER_SECONDS, and until
the other nodes know one, its messages go to the former owner, which passes them on. Those that have moved away wait for
FADE_SECONDS, as nothing relies on their removal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from starlingmq.cluster.links.peer_frames import Body, RouteApplied
from starlingmq.cluster.routes.filter_summaries import FilterSummaries
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Write

FADE_SECONDS: Final = 0.25  # filters that have moved away wait for so long for other records to go with
GATHER_SECONDS: Final = 0.05  # filters that have moved here go at most so often: when many move, many go together


class RouteExchange(Subsystem):
    def __init__(self, broker: BrokerState, config: ClusterConfig, view: ClusterView) -> None:
        self._broker = broker
        self._ctx = broker.ctx
        self._config = config
        self._view = view
        interest = self._ctx.cluster.interest
        assert interest is not None
        self._interest = interest
        self._summaries = FilterSummaries(config.route_summary_min)
        self._fade_at = inf
        self._gather_at = inf  # when the filters that have moved here go to other nodes
        self._gathered_at = -inf  # when they went last

    def look(self, now: float) -> None:
        routes = self._view.routes
        if routes is not None:
            for node, key, value in routes.take_changes():
                self._broker.peers.route(node, key, value)

    def restart(self, routes: RouteTable) -> None:
        """Replaces the routes of an earlier incarnation by the present subscriptions of this node's sessions."""
        routes.restart(self._summaries.restart(self._interest.all(), routes.table(self._view.number)))
        self._interest.take()

    def turn(self, now: float) -> None:
        """To be called before everything that depends on the version of the routes."""
        routes, interest = self._view.routes, self._interest
        if routes is None:
            return
        summaries, table = self._summaries, routes.table(self._view.number)
        if interest.fading and self._fade_at == inf:
            self._fade_at = now + FADE_SECONDS
        if interest.arriving and self._gather_at == inf:
            self._gather_at = max(now, self._gathered_at + GATHER_SECONDS)
        if interest.changed or now >= min(self._fade_at, self._gather_at):
            if interest.arriving:
                self._gathered_at = now
            self._fade_at = self._gather_at = inf
            changes = [(key, interest.value(key)) for key in interest.take()]
            routes.originate(summaries.translate(changes, table))
        records = summaries.step(table, interest.take_unwanted(), self._ctx.counters.forwards_received)
        if records:
            routes.originate(records)
        interest.summarises = bool(summaries.shapes)
        subscribing = self._broker.subscribing
        if subscribing.held:
            subscribing.stamp(routes.version, now + self._config.subscribe_ack_timeout)

    def take_frames(self) -> Sequence[tuple[int | None, Body]]:
        routes = self._view.routes
        if routes is None:
            return ()
        held = self._broker.subscribing.held
        if held:
            routes.confirm(held[-1].version)
        retaining = self._ctx.cluster.retained
        retained = 0 if retaining is None else retaining.last
        frames: list[tuple[int | None, Body]] = []
        for target, body in routes.take_out():
            frames.append(
                (target, RouteApplied(body.epoch, body.version, retained) if isinstance(body, RouteApplied) else body)
            )
        self._store(routes)
        return frames

    def _store(self, routes: RouteTable) -> None:
        for key, fact in routes.take_facts():
            if self._ctx.recording:
                self._ctx.write(Write(FACT_DELETE if fact is None else FACT_PUT, topic=key, value=fact or b""))

    def has_input(self) -> bool:
        interest = self._interest
        if interest.changed or (interest.fading and self._fade_at == inf):
            return True
        return bool(interest.arriving) and self._gather_at == inf

    def is_pending(self) -> bool:
        routes = self._view.routes
        return routes is not None and (routes.pending() or self._summaries.pending())

    def wake_at(self, now: float) -> float:
        return min(self._fade_at, self._gather_at)
