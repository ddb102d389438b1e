"""Reads stored messages back from the store when the core needs them again, and retries failed reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Ready
from starlingmq.core.observe.audit import Audit
from starlingmq.core.session.session import Session
from starlingmq.storage.store import Store

log = logging.getLogger("starlingmq")

READ_AGAIN: Final = 1.0  # seconds until a failed read is retried


class MessageLoader:
    """``schedule`` makes the driver take a turn."""

    def __init__(
        self,
        state: BrokerState,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        schedule: Callable[[], None],
    ) -> None:
        self.state = state
        self.store = store
        self.loop = loop
        self.clock = clock
        self.schedule = schedule

    def read_back(self, ready: Ready) -> None:
        """Release messages that are stored now, and read those that are needed again."""
        if self.store.readable():
            self.state.stored(ready)
        else:
            self.state.keep(ready)
        for session in ready.reads:
            try:
                messages = self.store.load(self.state.wanted(session))
            except OSError as error:
                log.error(
                    "queued messages of %s cannot be read from storage: %s; the read is retried",
                    session.client_id,
                    error,
                )
                self.loop.call_later(READ_AGAIN, self._read_again, session)
            else:
                self.state.loaded(session, messages, self.clock())

    def name(self, audit: Audit) -> None:
        """Read dropped messages of which only the offset is known; their events follow in the next turn."""
        offsets = audit.unnamed()
        if offsets and self.store.readable():
            try:
                audit.named(self.store.load(offsets))
            except OSError as error:
                log.error("dropped messages cannot be read from storage: %s; their events are published later", error)
                self.loop.call_later(READ_AGAIN, self.schedule)
            else:
                self.schedule()

    def _read_again(self, session: Session) -> None:
        self.state.read_again(session, self.clock())
        self.schedule()
