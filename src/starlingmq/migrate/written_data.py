"""Writes sessions and messages into a new data directory.

A broker in this process takes them as it takes a session that arrives from another node (``core.peers``), and its store
writes them. Packet ids stay the same, so the client continues each handshake. Messages are accepted beyond the limits
of queues: the other broker has acknowledged them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Final

from starlingmq._version import __version__
from starlingmq.config.settings import Config
from starlingmq.core.broker import BrokerState
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import NEVER
from starlingmq.migrate.described import Description, StoredMessage, StoredSession, Waiting
from starlingmq.migrate.taken_sessions import as_message, encoded_identifiers, granted_of, put_held
from starlingmq.storage.opening import open_store
from starlingmq.storage.store import Store

BATCH: Final = 256  # writes of one turn


async def write_data(config: Config, found: Description) -> None:
    """Raises DataDirError, and OSError if the file system fails."""
    state = BrokerState(config.mqtt, config.limits, time.time(), secrets.token_bytes(32), __version__)
    store = open_store(config, state, time.time)
    store.attach(state, lambda: None)
    try:
        taking = _Taking(state)
        for number, _ in enumerate(taking.everything(found), 1):
            if number % BATCH == 0:
                await _commit(state, store)
        await _commit(state, store)
    finally:
        await store.close()


async def _commit(state: BrokerState, store: Store) -> None:
    ready = state.take_ready()
    waiting = store.commit(ready.writes)
    if waiting is not None:
        await waiting
    state.stored(ready)
    while store.maintain():
        pass
    state.turn(time.time())


class _Taking:
    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self._messages: dict[int, Message] = {}  # by identity: a message for many sessions is stored once

    def everything(self, found: Description) -> Iterator[None]:
        """Take the retained messages and the sessions, one step after the other."""
        for retained in found.retained:
            self.state.publishing.retained.keep(self._message(retained))
            yield
        for session in found.sessions:
            yield from self._session(session)

    def _session(self, found: StoredSession) -> Iterator[None]:
        state, now = self.state, self.state.ctx.now
        left = max(0.0, found.expires_at - now) if found.expires_at else float(found.expiry)
        granted = granted_of(found)
        expiry = min(found.expiry, NEVER)
        session = state.mover.arrive(found.client_id, 0, expiry, left, granted, 0, False, False, found.owner)
        yield
        for packet_id, message in found.held.items():
            put_held(state, session, packet_id, self._message(message))
            yield
        for waiting in found.in_flight:
            state.mover.put_window(session, waiting.packet_id, waiting.stage, self._outgoing(waiting))
            yield
        for waiting in found.queued:
            state.mover.put(session, self._outgoing(waiting))
            yield

    def _outgoing(self, waiting: Waiting) -> Outgoing:
        message = self._message(waiting.message)
        return Outgoing(message, waiting.qos, waiting.retain, encoded_identifiers(waiting.identifiers), None)

    def _message(self, found: StoredMessage) -> Message:
        known = self._messages.get(id(found))
        if known is None:
            known = self._messages[id(found)] = as_message(found, self.state.ctx.now)
        return known
