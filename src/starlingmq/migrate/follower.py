"""Follows an old broker (mosquitto) until its last client has moved here: ``bridges[].follow``.

A CONNECT waits, as in a cluster, until this broker has the session of its client (``core.context.owner_claims``):

| the client id | then |
|---|---|
| is one of the bridge itself, or its session there is another user's (``auth.session_owner: refuse``) | refused |
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
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.core.session.session_user import KEPT_FOR_ANOTHER, REFUSE, is_anothers
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
WATCH_SECONDS: Final = 300.0  # without a report, of which mosquitto sends one in ten seconds
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
            os.kill(mosquitto_of(Path(self._pid_file)), signal.SIGUSR1)
        except (OSError, ValueError) as error:
            self.fresh = False
            log.warning("%s: mosquitto does not write its file on request: %s", self._pid_file, error)
            return
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                while self._stamp() == before:
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:  # the file as it is may lack what clients have subscribed to
            raise MigrationError(f"mosquitto has not written {self._file} within {WRITE_SECONDS:g} s") from None

    def _stamp(self) -> tuple[int, int] | None:
        """mosquitto writes a new file and renames it."""
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def mosquitto_of(pid_file: Path) -> int:
    """The process id in the file. Raises OSError and ValueError, also if it is no mosquitto's: the file may be left of
    one that has ended, or of a container, and the signal would end another process."""
    pid = int(pid_file.read_text())
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    if pid <= 0 or "mosquitto" not in name:
        raise ValueError(f"process {pid} is {name}")
    return pid


class NotForThisUser(Exception):
    """The CONNECT is refused, and nothing was done at the old broker."""


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
        self._ended = False
        self._own_ids = (self._far_id, f"{self._far_id}-watch")
        self._tasks = [asyncio.ensure_future(self._admit()), asyncio.ensure_future(self._follow())]

    async def stop(self) -> None:
        """At the end of the broker. CONNECTs that wait are not answered."""
        tasks = [*self._tasks, *self._moving.values()]
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not asyncio.current_task()), return_exceptions=True)

    def end(self) -> None:
        """The settings have no such bridge any more."""
        if not self._ended:
            self._tasks.append(asyncio.ensure_future(self._retire()))

    async def _retire(self) -> None:
        """Clients are served without it from now on."""
        self._ended = True
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
                    task = self._moving[client_id] = asyncio.ensure_future(self._bring(client_id))
                    task.add_done_callback(lambda _, name=client_id: self._moving.pop(name, None))  # type: ignore[misc]
            await asyncio.sleep(POLL_SECONDS)

    def _is_here(self, client_id: str) -> bool:
        sessions = self._driver.state.ctx.sessions
        return client_id in sessions and GATHERING + client_id not in sessions and client_id not in self._moving

    def _go_on(self, client_id: str) -> None:
        self._driver.state.ctx.at(self._driver.clock())
        self._driver.state.connecting.claimed(client_id, 0)
        self._driver.request_turn()

    async def _bring(self, client_id: str) -> None:
        try:
            async with self._bound:
                claim = self._claims.still(client_id)  # its client may have gone while others moved
                if claim is None:
                    return
                if client_id in self._own_ids:
                    raise NotForThisUser("the bridge to the old broker has this client id there")
                await self._move(client_id, claim.clean_start, claim.client.username)
        except NotForThisUser as error:
            self._refuse(client_id, Reason.CLIENT_IDENTIFIER_NOT_VALID, str(error), "session_owner")
        except Exception as error:  # whatever it is, the client is answered
            known = isinstance(error, (OldBrokerError, MigrationError, TimeoutError))
            said = str(error) or "it took too long"
            name = self.config.name
            log.warning("bridge %s: the session of %s has not moved: %s", name, client_id, said, exc_info=not known)
            detail = "the session of this client cannot be moved from the old broker at the moment"
            self._refuse(client_id, Reason.SERVER_UNAVAILABLE, detail, "owner_unresolved")
        else:
            self._go_on(client_id)

    def _refuse(self, client_id: str, reason: int, detail: str, word: str) -> None:
        self._driver.state.ctx.at(self._driver.clock())
        self._driver.state.connecting.not_claimed(client_id, reason, detail, word)
        self._driver.request_turn()

    def _check_owner(self, found: StoredSession, user: str | None) -> None:
        if self._driver.state.ctx.session_owner == REFUSE and is_anothers(REFUSE, found.owner, user):
            raise NotForThisUser(KEPT_FOR_ANOTHER)

    # Sessions

    async def _move(self, client_id: str, clean: bool, user: str | None = None) -> None:
        """Bring a session here for ``user``, or end it there. Raises OldBrokerError, MigrationError, TimeoutError and
        NotForThisUser."""
        known = (await self._written.all(self._driver.clock())).get(client_id)
        if clean and known is None and GATHERING + client_id not in self._driver.state.ctx.sessions:
            return
        if known is None:  # it is new, and its owner is known from the file only until the move connects
            known = (await self._written.written_now(self._driver.clock())).get(client_id)
        if known is not None:
            if known.owner == (self.config.credentials.username or ""):
                known.owner = None  # that of a move which failed
            self._check_owner(known, user)
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
            except (OldBrokerError, MigrationError, TimeoutError, ValueError) as error:
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
                packet = await watch.next(WATCH_SECONDS)
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
            if client_id in self._own_ids or client_id in self._moving:
                continue
            task = self._moving[client_id] = asyncio.ensure_future(self._move(client_id, self._is_here(client_id)))
            task.add_done_callback(lambda _, name=client_id: self._moving.pop(name, None))  # type: ignore[misc]
            await task
