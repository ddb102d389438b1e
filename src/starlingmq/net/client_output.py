"""Writes the frames of connections: at the end of a turn, or before it if few clients are ready."""

from __future__ import annotations

import logging
from typing import Final

from mypy_extensions import i64

from starlingmq.core.broker import BrokerState
from starlingmq.core.session.session import Client
from starlingmq.net.client_socket import ClientSocket
from starlingmq.net.client_sockets import FEW

log = logging.getLogger("starlingmq")

TURNS_TOGETHER: Final = 64


class ClientOutput:
    """One per driver."""

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self._early: i64 = (
            0  # how many clients of ``ready.dirty``, from its begin, were written to before the turn's end
        )
        self._together: i64 = 0  # turns until something may be written early again

    def write_early(self, begin: int) -> None:
        """Few clients are ready, and one of them was read: write what it has caused now, before the next one is read.
        The clients of ``ready.dirty`` from ``begin`` on had nothing to be written before, so each client gets one more
        write per turn at most. If some do, because several clients send to one, it is cheaper to write everything of a
        turn together, and that is done for ``TURNS_TOGETHER``.
        """
        ctx = self.state.ctx
        dirty = ctx.ready.dirty
        end = len(dirty)
        if begin == end or self._together != 0 or end - begin > FEW or ctx.ready.writes or ctx.refusing:
            return
        for index in range(begin, end):
            client = dirty[index]
            if client.stored_from < 0 and not client.closing:
                self.write_frames(client)
                client.frames.clear()
        self._early = end

    def begin_turn(self) -> int:
        """How many clients of ``ready.dirty``, from its begin, were written to early."""
        early = self._early
        self._early = 0
        if self._together != 0:
            self._together -= 1
        return early

    def write_together(self) -> None:
        """Clients that were written to early have frames again at the end of the turn."""
        self._together = TURNS_TOGETHER

    def write_frames(self, client: Client) -> None:
        if client.gone or client.output_stopped:
            return
        frames = client.frames
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self.state.ctx.counters.bytes_sent += len(data)
        client.bytes_out += len(data)
        self.write(client, data)

    def write(self, client: Client, data: bytes) -> None:
        transport = client.transport
        try:
            if isinstance(transport, ClientSocket):
                transport.write(data)  # a direct call
            else:
                transport.write(data)
        except Exception:
            log.exception("internal error in a transport; its connection is closed")  # the other clients are served
            transport.abort()
