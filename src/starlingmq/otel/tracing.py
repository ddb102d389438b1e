"""Exports the traced messages of a broker: takes the events of the core a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.trace.export import SpanExporter

from starlingmq.config.tracing_section import TracingConfig, tracing_headers
from starlingmq.core.broker import BrokerState
from starlingmq.core.observe.sampling import Sampler
from starlingmq.otel.export import Export
from starlingmq.otel.steps import Steps

LOOK_SECONDS: Final = 0.25
PIECE: Final = 40  # spans per turn of the event loop: below two milliseconds


class Tracing:
    """Call ``begin``, ``change``, ``close``; ``request_turn`` makes the broker begin a turn.

    The constructor raises ConfigError for an unreadable file.
    """

    def __init__(
        self,
        settings: TracingConfig,
        node: str,
        state: BrokerState,
        request_turn: Callable[[], None],
        exporter: SpanExporter | None = None,
    ) -> None:
        self._place = settings.endpoint, tracing_headers(settings)
        self.export = Export(node, *self._place, exporter)
        self._sampler = Sampler(settings.ratio, settings.parents, settings.rate)
        self._steps = Steps(node)
        self._lost = 0
        self._state = state
        self._request_turn = request_turn
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._state.audit.sample(self._sampler)
        self._request_turn()
        self._looking = asyncio.ensure_future(self._look())

    def goes_on_with(self, settings: TracingConfig) -> bool:
        """Whether the destination of spans is unchanged. Raises ConfigError."""
        return (settings.endpoint, tracing_headers(settings)) == self._place

    def change(self, settings: TracingConfig) -> None:
        """Use these settings from now on."""
        sampler = self._sampler
        sampler.ratio, sampler.parents, sampler.rate = settings.ratio, settings.parents, settings.rate

    def figures(self) -> dict[str, int]:
        """Sampled messages; spans that were accepted and refused; messages and steps beyond the limits."""
        counts = self.export.counting.counts
        return {
            "messages": self._sampler.chosen,
            "spans": counts.accepted,
            "spans_lost": counts.failed,
            "left_out": self._lost,
        }

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._take()

    async def _take(self) -> None:
        events, lost = self._sampler.seen()
        self._lost += lost
        number = self._state.ctx.node
        for index, event in enumerate(events, 1):
            step = self._steps.of(str(event["kind"]), event, number)
            if step is not None:
                self.export.put(step)
            if index % PIECE == 0:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Export what has been seen so far."""
        if self._looking is not None:
            self._looking.cancel()
        if self._state.audit.sampler is self._sampler:
            self._state.audit.sample(None)
            self._request_turn()
        await self._take()
        await self.export.close()
