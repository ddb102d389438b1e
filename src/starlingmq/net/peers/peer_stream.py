"""The stream to one peer: redialled until it is closed, and written in batches.

Frames are queued only while the stream is open. After a reconnection, the cluster repeats what is still needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlingmq.cluster.links.peer_frames import Data, Envelope, MemberInfo
from starlingmq.net.grpc_extra import grpc
from starlingmq.net.peers import peer_codec
from starlingmq.net.peers.peer_handshake import ACCEPTED, CHALLENGE, Dialling, Identity, RefusedError, parts

log = logging.getLogger("starlingmq")

STARTING: Final = "is still starting"  # the end of a refusal that only means "retry soon"
SERVICE: Final = "starlingmq.peers.Link"
CHALLENGE_METHOD: Final = f"/{SERVICE}/Challenge"
JOIN_METHOD: Final = f"/{SERVICE}/Join"
COPY_METHOD: Final = f"/{SERVICE}/Copy"
OLDER: Final = "it supports only an older protocol between nodes; upgrade it"
HANDSHAKE_SECONDS: Final = 5.0
BACK_OFF_FIRST: Final = 0.1
BACK_OFF_MAX: Final = 2.0  # seconds; a restarted node should not wait longer for the nodes that know it
REASONS: Final = {
    "connection refused": "it refuses connections; check that it runs, and its cluster.listen and cluster.advertise",
    "unreachable": "the network or the host is unreachable",
    "no route": "the network or the host is unreachable",
    "dns": "its host name cannot be resolved",
    "name resolution": "its host name cannot be resolved",
    "ssl": "the TLS handshake failed; check cluster.tls on both nodes",
    "tls": "the TLS handshake failed; check cluster.tls on both nodes",
    "certificate": "the TLS handshake failed; check cluster.tls on both nodes",
    "handshak": "the connection was closed during the handshake; check cluster.tls on both nodes",
    "timed out": "no answer in time",
    "timeout": "no answer in time",
    "deadline": "no answer in time",
}
"""By a part of gRPC's details, in lower case."""
NO_DATA: Final = 0  # no node has this number
BATCH_BYTES: Final = 1024 * 1024  # of one message, unless a single envelope is larger; each write costs 0.1 ms


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
    """``bound``: bytes of Data that wait here for each node that they are from, and bytes of all other frames; any
    excess is dropped. Data of any size is accepted if no other Data of its node waits here: their sender sends no
    more until it has arrived, so it must not depend on other frames, which are queued all the time.
    """

    def __init__(
        self,
        me: Identity,
        member: MemberInfo,
        open_channel: Callable[[str], Any],
        chance: Callable[[], float],
        nonce: Callable[[], bytes],
        bound: int,
        traffic: PeerTraffic,
        told: Callable[[int, bool], None],
    ) -> None:
        self.member = member
        self.connected = False
        self.quiet = False  # this node is stopping: the end of the stream is not worth a warning
        self._me = me
        self._open_channel = open_channel
        self._chance = chance
        self._nonce = nonce
        self._bound = bound
        self._traffic = traffic
        self._told = told
        self._queue: deque[tuple[int, bytes]] = deque()  # with the node that Data is from; 0: another frame
        self._queued: dict[int, int] = {}  # bytes, by that node
        self._wake = asyncio.Event()  # there is data to write, or writing has become impossible
        self._hurry = asyncio.Event()  # the peer seems to be available: dial now
        self._closing = False
        self._complaint = ""  # the last logged reason for a missing connection
        self._stood = False  # there was a connection: from then on, the cluster reports when the node is gone
        self._task = asyncio.ensure_future(self._run())

    def send(self, envelope: Envelope) -> bool:
        """Returns whether the envelope was queued. Never waits."""
        if not self.connected:
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
        self._wake.set()
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
        # Cancelling is not enough: gRPC may turn it into an error, and wait_for may return a simultaneous result.
        while not self._closing:
            self._hurry.clear()
            try:
                stood = await self._converse()
            except Exception:
                log.exception("internal error in the stream to node %s; the stream is reopened", self.member.name)
                stood = False
            if self._closing:
                return
            failures = 1 if stood else min(failures + 1, 10)
            pause = min(BACK_OFF_MAX, BACK_OFF_FIRST * 2 ** (failures - 1)) * (0.5 + 0.5 * self._chance())
            try:
                await asyncio.wait_for(self._hurry.wait(), pause)
            except TimeoutError:
                continue
            # A node that has returned is dialled by all others: spread their attempts.
            await asyncio.sleep(BACK_OFF_FIRST / 2 * self._chance())

    async def _converse(self) -> bool:
        """One stream from dialling to its end. Returns whether it was open."""
        channel = self._open_channel(self.member.address)
        try:
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    call, _ = await shake_hands(channel, self._me, self.member.number, self._nonce(), JOIN_METHOD)
            except TimeoutError:
                self._note_failure(f"no answer within {HANDSHAKE_SECONDS:g} seconds", "")
                return False
            except RefusedError as error:
                self._complain(str(error))
                return False
            except (grpc.RpcError, asyncio.InvalidStateError) as error:
                self._note_failure(plainly(explain(error)), explain(error))
                return False
            await self._write_all(call)
            return True
        finally:
            await channel.close()

    async def _write_all(self, call: Any) -> None:
        self._complaint = ""
        self._queue.clear()
        self._queued.clear()
        self.connected = True
        level = logging.DEBUG if self._stood else logging.INFO
        self._stood = True
        log.log(level, "connected to node %s at %s", self.member.name, self.member.address)
        ended = asyncio.ensure_future(_end(call))
        ended.add_done_callback(lambda _: self._wake.set())
        reason = ""
        self._told(self.member.number, True)
        try:
            while not ended.done():
                await self._wake.wait()
                self._wake.clear()
                while self._queue and not ended.done():
                    await call.write(self._batch())
            reason = ended.result()
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            reason = explain(error)
        finally:
            self.connected = False
            ended.cancel()
            await asyncio.wait([ended])
            self._told(self.member.number, False)
        self._note_failure(plainly(reason), reason)

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

    def _note_failure(self, reason: str, details: str) -> None:
        """A connection has failed. If there was one before, the cluster reports a node that is gone or only heard
        through others (cluster/membership/lost_node_reports.py)."""
        if not self._stood:
            self._complain(reason)
        log.debug("connection to node %s at %s: %s (%s)", self.member.name, self.member.address, reason, details)

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            level = logging.INFO if self.quiet or reason.endswith(STARTING) else logging.WARNING
            log.log(level, "no connection to node %s at %s: %s", self.member.name, self.member.address, reason)


async def shake_hands(channel: Any, me: Identity, target: int, nonce: bytes, method: str) -> tuple[Any, int]:
    """Completes the handshake. Returns the call of that method, and the incarnation of the listener. Raises
    RefusedError, and errors of gRPC."""
    dialling = Dialling(me, target, nonce)
    first = channel.stream_stream(CHALLENGE_METHOD)(metadata=tuple(dialling.hello().items()))
    proof = dialling.proof(await _answer(first, CHALLENGE))
    first.cancel()
    call = channel.stream_stream(method)(metadata=tuple(proof.items()))
    dialling.finish(await _answer(call, ACCEPTED))
    return call, dialling.incarnation


async def _answer(call: Any, key: str) -> dict[str, bytes]:
    """The metadata of the listener's answer. If it refuses, its status has the reason."""
    answer = parts(await call.initial_metadata())
    if key not in answer:
        code = await call.code()
        raise RefusedError(OLDER if code is grpc.StatusCode.UNIMPLEMENTED else one_line(await call.details()))
    return answer


async def _end(call: Any) -> str:
    """Waits for the end of the stream, the only thing that a listener sends. Returns the reason."""
    try:
        while isinstance(await call.read(), bytes):
            pass
    except (grpc.RpcError, asyncio.InvalidStateError) as error:
        return explain(error)
    return "it closed the connection"


def explain(error: Exception) -> str:
    """The details of a gRPC error in one line."""
    return one_line(error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error))


def plainly(details: str) -> str:
    """The reason for a failed connection in plain English, from gRPC's details."""
    return next((words for part, words in REASONS.items() if part in details.lower()), "the connection was closed")


def one_line(text: str | None) -> str:
    words = " ".join((text or "the connection was closed")[:1000].split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:300]
