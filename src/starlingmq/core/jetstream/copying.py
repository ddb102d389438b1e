"""Mirrors and sources of this node's streams (core.streams.sourcing): each has its turn, also if there are many."""

from __future__ import annotations

from itertools import islice
from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.jetstream.far_sources import FarSources
from starlingmq.core.jetstream.far_streams import FarStreams
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.core.streams.sourcing import Sourcing

AGAIN_SECONDS: Final = 1.0  # until one that could do nothing tries again
FILL_BUDGET: Final = 256  # messages that one looks at before others have their turn
TURN_BUDGET: Final = 4096


class Copying:
    """``streams`` by name and ``aside`` are those of the hub. A stream that is set aside is no origin: its name may be
    that of a stream of another node."""

    ctx: Context
    streams: dict[str, SequencedStream]
    aside: dict[SequencedStream, bool]
    far_sources: FarSources
    active: dict[Sourcing, None]  # those that may have something to do
    blocked: dict[Sourcing, None]  # their streams have no room, or their origins cannot be read, or are elsewhere ...
    blocked_until: float  # ... and are tried again at this time; 0.0: there are none
    _of_target: dict[SequencedStream, list[Sourcing]]
    _of_origin: dict[str, dict[Sourcing, None]]

    def __init__(self, ctx: Context, streams: dict[str, SequencedStream], aside: dict[SequencedStream, bool]) -> None:
        self.ctx = ctx
        self.streams = streams
        self.aside = aside
        self.far_sources = FarSources(ctx)
        self.active = {}
        self.blocked = {}
        self.blocked_until = 0.0
        self._of_target = {}
        self._of_origin = {}

    def begin(self, stream: SequencedStream, far: FarStreams | None) -> None:
        """The stream is there: what it copies, and what is copied from it, begins or goes on."""
        if stream.policy.sources:
            found = [Sourcing(each, stream, self.active) for each in stream.policy.sources]
            self._of_target[stream] = found
            stream.sourcings = list(found)
            for each in found:
                name = each.settings.name
                self._of_origin.setdefault(name, {})[each] = None
                self._go_on(each, self.streams.get(name), far)
        for each in self._of_origin.get(stream.name, {}):
            if each.origin is None:
                self._go_on(each, stream, far)

    def _go_on(self, sourcing: Sourcing, origin: SequencedStream | None, far: FarStreams | None) -> None:
        if origin is None or self.aside.get(origin, False):
            sourcing.wake()  # it may be at another node
            return
        if far is not None:
            self.far_sources.end(sourcing, far)
        sourcing.attach(origin)

    def end(self, stream: SequencedStream, far: FarStreams | None) -> None:
        """The stream copies nothing any more."""
        stream.sourcings = []
        for each in self._of_target.pop(stream, []):
            each.detach()
            self.blocked.pop(each, None)
            if far is not None:
                self.far_sources.end(each, far)
            others = self._of_origin[each.settings.name]
            del others[each]
            if not others:
                del self._of_origin[each.settings.name]

    def gone(self, stream: SequencedStream, far: FarStreams | None) -> None:
        """The stream is deleted or set aside: it copies nothing, and nothing is copied from it."""
        self.end(stream, far)
        for each in self._of_origin.get(stream.name, {}):
            if each.origin is stream:
                each.detach()
                each.wake()

    def turn(self, now: float, far: FarStreams | None) -> None:
        """Let streams copy others, each some messages."""
        if self.blocked and now >= self.blocked_until:
            self.active.update(self.blocked)
            self.blocked = {}
        left = TURN_BUDGET
        looked = list(islice(self.active, left))
        for each in looked:
            del self.active[each]
        for each in looked:
            if left <= 0:
                self.active[each] = None
            elif each.origin is not None:
                if not self._fill(each, min(left, FILL_BUDGET), now):
                    self.blocked[each] = None
                left -= 1 + each.looked
            elif far is not None:
                self.far_sources.ask(each, far)
                self.blocked[each] = None
                left -= 1
        self.ctx.work -= TURN_BUDGET - left
        if not self.blocked:
            self.blocked_until = 0.0
        elif self.blocked_until <= now:
            self.blocked_until = now + AGAIN_SECONDS

    def _fill(self, sourcing: Sourcing, budget: int, now: float) -> bool:
        """Returns False if it can do nothing now."""
        try:
            return sourcing.fill(budget, now)
        except OSError:  # the log has said so
            return False
