"""The stream to one peer: redialled until it is closed, and written in batches.

Frames are queued only while the stream is open. After a reconnection, the cluster repeats what is still needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import Data, Envelope
from starlingmq.net.peers import peer_codec
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_dialling import DialError
from starlingmq.net.peers.peer_handshake import RefusedError

log = logging.getLogger("starlingmq")

STARTING: Final = "is still starting"  # the end of a refusal that only means "retry soon"
BACK_OFF_FIRST: Final = 0.1
BACK_OFF_MAX: Final = 2.0  # seconds; a restarted node should not wait longer for the nodes that know it
NO_DATA: Final = 0  # no node has this number
BATCH_BYTES: Final = 1024 * 1024  # of one message, unless a single envelope is larger


@dataclass(slots=True)
class PeerTraffic:
    """Traffic of all streams. ``dropped``: by reason ``overflow``, ``unconnected``, ``foreign``."""

    envelopes_out: int = 0
    bytes_out: int = 0
    writes: int = 0
    envelopes_in: int = 0
    bytes_in: int = 0
    reads: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class PeerStream:
    """``dial`` opens a connection to ``member``. ``bound``: bytes of Data that wait here for each node that they are
    from, and bytes of all other frames; any excess is dropped. Data of any size is accepted if no other Data of its
    node waits here: their sender sends no more until it has arrived, so it must not depend on other frames, which are
    queued all the time.
    """

    def __init__(
        self,
        member: MemberInfo,
        dial: Callable[[MemberInfo], Awaitable[PeerConnection]],
        chance: Callable[[], float],
        bound: int,
        traffic: PeerTraffic,
        told: Callable[[int, bool], None],
    ) -> None:
        self.member = member
        self.quiet = False  # this node is stopping: the end of the stream is not worth a warning
        self._dial = dial
        self._chance = chance
        self._bound = bound
        self._traffic = traffic
        self._told = told
        self._connection: PeerConnection | None = None
        self._queue: deque[tuple[int, bytes]] = deque()  # with the node that Data is from; 0: another frame
        self._queued: dict[int, int] = {}  # bytes, by that node
        self._hurry = asyncio.Event()  # the peer seems to be available: dial now
        self._closing = False
        self._complaint = ""  # the last logged reason for a missing connection
        self._stood = False  # there was a connection: from then on, the cluster reports when the node is gone
        self._task = asyncio.ensure_future(self._run())

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def send(self, envelope: Envelope) -> bool:
        """Returns whether the envelope was queued, to be sent by ``flush``."""
        if self._connection is None:
            self._traffic.drop("unconnected")
            return False
        encoded = peer_codec.encode(envelope)
        source = envelope.source if type(envelope.body) is Data else NO_DATA
        queued = self._queued.get(source, 0)
        if queued and queued + len(encoded) > self._bound:
            self._traffic.drop("overflow")
            return False
        self._queue.append((source, encoded))
        self._queued[source] = queued + len(encoded)
        return True

    def hurry(self) -> None:
        """Dials without waiting for the end of the back-off."""
        self._hurry.set()

    async def close(self) -> None:
        self._closing = True
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        failures = 0
        while not self._closing:
            self._hurry.clear()
            try:
                stood = await self._converse()
            except Exception:
                log.exception("internal error in the stream to node %s; the stream is reopened", self.member.name)
                stood = False
            failures = 1 if stood else min(failures + 1, 10)
            pause = min(BACK_OFF_MAX, BACK_OFF_FIRST * 2 ** (failures - 1)) * (0.5 + 0.5 * self._chance())
            try:
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            except TimeoutError:
                continue
            # A node that has returned is dialled by all others: spread their attempts.
            await asyncio.sleep(BACK_OFF_FIRST / 2 * self._chance())

    async def _converse(self) -> bool:
        """One stream from dialling to its end. Returns whether it was open."""
        try:
            connection = await self._dial(self.member)
        except RefusedError as error:
            self._complain(str(error))
            return False
        except DialError as error:
            self._note_failure(str(error))
            return False
        try:
            await self._serve(connection)
        finally:
            connection.end("")
        return True

    async def _serve(self, connection: PeerConnection) -> None:
        self._complaint = ""
        self._queue.clear()
        self._queued.clear()
        self._connection = connection
        connection.on_room = self.flush
        connection.serve_in_rounds()
        level = logging.DEBUG if self._stood else logging.INFO
        self._stood = True
        log.log(level, "connected to node %s at %s", self.member.name, self.member.address)
        self._told(self.member.number, True)
        try:
            await connection.until_ended()
        finally:
            self._connection = None
            self._told(self.member.number, False)
        self._note_failure(connection.reason)

    def flush(self) -> None:
        """Sends the queued envelopes, as many as there is room for."""
        while self._queue and (connection := self._connection) is not None and connection.has_room:
            connection.send(self._batch())

    def _batch(self) -> bytes:
        batch: list[bytes] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0][1]) <= BATCH_BYTES):
            source, encoded = self._queue.popleft()
            self._queued[source] -= len(encoded)
            batch.append(encoded)
            size += len(encoded)
        message = peer_codec.join(batch)
        self._traffic.envelopes_out += len(batch)
        self._traffic.bytes_out += len(message)
        self._traffic.writes += 1
        return message

    def _note_failure(self, reason: str) -> None:
        """A connection has failed. If there was one before, the cluster reports a node that is gone or only heard
        through others (cluster/peers/lost_node_reports.py)."""
        if not self._stood:
            self._complain(reason)
        log.debug("connection to node %s at %s: %s", self.member.name, self.member.address, reason)

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            level = logging.INFO if self.quiet or reason.endswith(STARTING) else logging.WARNING
            log.log(level, "no connection to node %s at %s: %s", self.member.name, self.member.address, reason)
