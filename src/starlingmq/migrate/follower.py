"""Follows an old broker (mosquitto) until its last client has moved here: ``bridges[].follow``.

A CONNECT waits, as in a cluster, until this broker has the session of its client (``core.context.owner_claims``):

| the client id | then |
|---|---|
| has a session here, and no move of it is incomplete | the CONNECT continues |
| asks for a clean start | its session at the old broker ends; the CONNECT continues |
| has no session at the old broker | the CONNECT continues |
| has one | the session is moved (``session_move``); the CONNECT continues |
| the old broker does not answer, or the move fails | SERVER_UNAVAILABLE; the client tries again |

The last client has moved when the old broker's ``$SYS/broker/clients/connected`` counts three times in a row only the
connections from here. Then the sessions whose clients are away are moved, the bridge passes what waits, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from math import inf
from pathlib import Path
from typing import Final

from starlingmq.bridges.bridge_set import BridgeSet
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.core.context.owner_claims import OwnerClaim
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.migrate.described import MigrationError, StoredSession, read_bytes
from starlingmq.migrate.mosquitto_db import NEVER, read_database
from starlingmq.migrate.old_session import OldBrokerError, OldConnection
from starlingmq.migrate.session_move import GATHERING, SessionMove
from starlingmq.net.driver import Driver
from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest
from starlingmq.wire.reasons import Reason

log = logging.getLogger("starlingmq")

POLL_SECONDS: Final = 0.01  # between two looks for CONNECTs that wait, which the core does not report
RETRY_SECONDS: Final = 1.0
WRITE_SECONDS: Final = 10.0  # for mosquitto to write its file
AT_ONCE: Final = 8  # moves
CONNECTED: Final = b"$SYS/broker/clients/connected"
UPTIME: Final = b"$SYS/broker/uptime"  # sent at each sys_interval
REPORTS: Final = 3  # in a row at which no client is left; the first may be old


class WrittenSessions:
    """The sessions in the old broker's persistence file. ``fresh``: it is written on request, which needs the file with
    its process id and the right to send it a signal."""

    def __init__(self, config: BridgeConfig) -> None:
        self._file = Path(config.follow.database)
        self._pid_file = config.follow.pid_file
        self.fresh = bool(self._pid_file)
        self._found: dict[str, StoredSession] = {}
        self._read: tuple[int, int] | None = None
        self._lock = asyncio.Lock()
        self._begun = 0

    async def all(self, now: float) -> dict[str, StoredSession]:
        """As the file is. Raises MigrationError."""
        stamp = self._stamp()
        if stamp != self._read:
            data = await asyncio.to_thread(read_bytes, self._file)
            found = await asyncio.to_thread(read_database, data, str(self._file), now)
            self._found = {session.client_id: session for session in found.sessions}
            self._read = stamp
        return self._found

    async def written_now(self, now: float) -> dict[str, StoredSession]:
        """As the sessions are at some time after the call, if they can be written. Raises MigrationError."""
        wanted = self._begun + 1
        async with self._lock:
            if self.fresh and self._begun < wanted:  # requests that wait share the next writing
                self._begun += 1
                await self._write()
            return await self.all(now)

    async def _write(self) -> None:
        before = self._stamp()
        try:
            os.kill(int(Path(self._pid_file).read_text()), signal.SIGUSR1)
            async with asyncio.timeout(WRITE_SECONDS):
                while self._stamp() == before:
                    await asyncio.sleep(POLL_SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            self.fresh = False
            log.warning("%s: mosquitto does not write its file on request: %s", self._pid_file, error or "too slow")

    def _stamp(self) -> tuple[int, int] | None:
        """mosquitto writes a new file and renames it."""
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


class OldBrokerFollower:
    """``config`` is a bridge of ``bridges`` with ``follow.database``."""

    def __init__(self, driver: Driver, bridges: BridgeSet, config: BridgeConfig) -> None:
        self.config = config
        self._driver = driver
        self._bridges = bridges
        self._written = WrittenSessions(config)
        self._far_id = config.client_id or f"{config.name}-{driver.state.ctx.site}"
        self._claims = driver.state.ctx.cluster.claim_ids(inf, inf)
        self._moving: dict[str, asyncio.Task[None]] = {}
        self._bound = asyncio.Semaphore(AT_ONCE)
        self._moved = 0
        self._connections = 0
        self._tasks = [asyncio.ensure_future(self._admit()), asyncio.ensure_future(self._follow())]

    async def stop(self) -> None:
        """At the end of the broker. CONNECTs that wait are not answered."""
        tasks = [*self._tasks, *self._moving.values()]
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not asyncio.current_task()), return_exceptions=True)

    async def _retire(self) -> None:
        """Clients are served without it from now on."""
        await self.stop()
        for client_id in list(self._claims.waiting):
            self._go_on(client_id)
        self._driver.state.ctx.cluster.end_claims()

    # CONNECTs

    async def _admit(self) -> None:
        while True:
            for client_id in self._claims.take():
                claim = self._claims.waiting[client_id]
                if claim.client.listener == BRIDGE_LISTENER or self._is_here(client_id):
                    self._go_on(client_id)
                elif client_id not in self._moving:
                    task = self._moving[client_id] = asyncio.ensure_future(self._bring(client_id, claim))
                    task.add_done_callback(lambda _, name=client_id: self._moving.pop(name, None))  # type: ignore[misc]
            await asyncio.sleep(POLL_SECONDS)

    def _is_here(self, client_id: str) -> bool:
        sessions = self._driver.state.ctx.sessions
        return client_id in sessions and GATHERING + client_id not in sessions and client_id not in self._moving

    def _go_on(self, client_id: str) -> None:
        self._driver.state.ctx.at(self._driver.clock())
        self._driver.state.connecting.claimed(client_id, 0)
        self._driver.request_turn()

    async def _bring(self, client_id: str, claim: OwnerClaim) -> None:
        try:
            async with self._bound:
                await self._move(client_id, claim.clean_start)
        except (OldBrokerError, MigrationError, TimeoutError) as error:
            said = str(error) or "it took too long"
            log.warning("bridge %s: the session of %s has not moved: %s", self.config.name, client_id, said)
            self._driver.state.ctx.at(self._driver.clock())
            detail = "the session of this client cannot be moved from the old broker at the moment"
            self._driver.state.connecting.not_claimed(client_id, Reason.SERVER_UNAVAILABLE, detail, "owner_unresolved")
            self._driver.request_turn()
        else:
            self._go_on(client_id)

    # Sessions

    async def _move(self, client_id: str, clean: bool) -> None:
        """Bring a session here, or end it there. Raises OldBrokerError, MigrationError and TimeoutError."""
        known = (await self._written.all(self._driver.clock())).get(client_id)
        if clean and known is None and GATHERING + client_id not in self._driver.state.ctx.sessions:
            return
        expiry = NEVER if known is None else known.expiry
        connection = await OldConnection.open(self.config, client_id, clean, 0 if clean else expiry)
        self._connections += 1
        try:
            if clean or not connection.present:
                await connection.end_session()
                return
            found = (await self._written.written_now(self._driver.clock())).get(client_id)
            if found is None:
                raise OldBrokerError(
                    f"{self.config.follow.database} does not have it yet: kill -USR1 mosquitto's process"
                )
            if known is not None:  # the connection of this move has changed them there
                found.owner, found.expiry, found.expires_at = known.owner, known.expiry, known.expires_at
            if not self._written.fresh:
                found.held = {}  # an old file may name handshakes that are complete
            move = SessionMove(self._driver, self.config, found, connection)
            await move.run()
            self._moved += 1
            self._show()
            log.info("bridge %s: moved the session of %s, %d messages", self.config.name, client_id, move.messages)
        finally:
            connection.close()
            self._connections -= 1

    def _show(self, left: int | None = None) -> None:
        bridge = self._bridges.named(self.config.name)
        if bridge is not None:
            bridge.moved = self._moved
            bridge.left = bridge.left if left is None else left

    # The end

    async def _follow(self) -> None:
        while True:
            try:
                await self._until_alone()
                await self._move_rest()
            except (OldBrokerError, MigrationError, TimeoutError) as error:
                log.warning("bridge %s: %s", self.config.name, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._bridges.finish(self.config.name)
            log.warning(
                "bridge %s: the last client has moved (%d sessions were moved), and the bridge has ended; stop the old "
                "broker, and remove this bridge from the settings",
                self.config.name,
                self._moved,
            )
            await self._retire()
            return

    async def _until_alone(self) -> None:
        watch = await OldConnection.open(self.config, f"{self._far_id}-watch", True, 0)
        try:
            watch.send(Subscribe(1, [SubscribeRequest(topic, 0) for topic in (CONNECTED, UPTIME)]))
            alone, left = 0, 1
            while alone < REPORTS:
                packet = await watch.next(None)
                if not isinstance(packet, Publish):
                    continue
                if packet.topic == CONNECTED:  # sent when it has changed
                    left = max(0, int(packet.payload) - 2 - self._connections)
                    self._show(left)
                else:
                    alone = alone + 1 if not left and not self._moving else 0
        finally:
            watch.close()

    async def _move_rest(self) -> None:
        """The sessions of clients that are away."""
        for client_id in list(await self._written.written_now(self._driver.clock())):
            if client_id in (self._far_id, f"{self._far_id}-watch") or client_id in self._moving:
                continue
            task = self._moving[client_id] = asyncio.ensure_future(self._move(client_id, self._is_here(client_id)))
            task.add_done_callback(lambda _, name=client_id: self._moving.pop(name, None))  # type: ignore[misc]
            await task
