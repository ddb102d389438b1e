"""Bans that operators made: at all nodes, and still there after a restart.

Each node has all of them, in a file of its data directory, and each is what was said last about somebody: a ban, or
that it was lifted. Nodes tell each other what is new, and all they have when they meet again (``admin.peer_poller``);
of two that were said at different nodes the later one holds, whichever comes first. So nodes do not need etcd to keep
somebody out, which may be what is under attack; one that is cut off learns of a ban when it is back.

What a node bans by itself (wrong log-ins, flapping) is its own and goes with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import PIECE
from starlingmq.admin.sessions import by
from starlingmq.admin.state_files import replace
from starlingmq.auth.automatic_bans import KINDS, AutomaticBans, Ban, Kind
from starlingmq.core.limits.address_key import network_key, peer_key
from starlingmq.net.control_socket import Action, Report
from starlingmq.net.driver import Driver
from starlingmq.wire.reasons import Reason

log = logging.getLogger("starlingmq.admin")

FILE: Final = "bans.json"
SAID_MAX: Final = 10_000  # about as many there is something to remember; more bans are refused
LIFTED_SECONDS: Final = 30 * 86400.0  # that a lifted ban is remembered: for nodes that were away
SECONDS_MAX: Final = 10 * 365 * 86400

Arguments = dict[str, str]
Result = dict[str, Any]
MakeBan = Callable[[Kind, str, float, str], Ban]


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What was said last about somebody. Times are Unix seconds; ``until`` in the past: it was lifted."""

    kind: Kind
    name: str
    until: float
    reason: str
    disconnect: bool
    at: float

    def newer(self, other: Said | None) -> bool:
        """An order that all nodes agree on."""
        return other is None or (self.at, self.until, self.reason) > (other.at, other.until, other.reason)

    def remembered_until(self) -> float:
        return max(self.until, self.at + LIFTED_SECONDS)


class BanActions:
    """``bans`` are those that hold at this node; ``make`` adds to them. Without ``directory`` nothing outlives it."""

    def __init__(self, driver: Driver, bans: AutomaticBans, make: MakeBan, directory: Path | None) -> None:
        self._driver = driver
        self._bans = bans
        self._make = make
        self._path = None if directory is None else directory / FILE
        self._said: dict[tuple[Kind, str], Said] = {}
        self._writing = asyncio.Lock()
        self._read()

    def actions(self) -> dict[str, Action]:
        return {"bans": self.list_bans, "bans.said": self.said, "bans.hear": self.hear_of}

    # What this node is asked

    async def list_bans(self, report: Report, arguments: Arguments) -> Result:
        """Those that hold here."""
        now = monotonic()
        said = self._said
        return {
            "bans": [
                {
                    "kind": ban.kind,
                    "name": ban.name,
                    "seconds": round(ban.until - now, 1),
                    "reason": ban.reason,
                    "everywhere": (ban.kind, ban.name) in said,
                }
                for ban in self._bans.all(now)
            ]
        }

    async def said(self, report: Report, arguments: Arguments) -> Result:
        """Something new, said here: what all nodes have to hear. Raises AdminError."""
        kind, name, seconds = arguments.get("kind", ""), arguments.get("name", ""), _seconds(arguments)
        if kind not in KINDS or not name:
            raise AdminError(400, f"kind: must be one of {', '.join(KINDS)}")
        now = self._driver.clock()
        whom = (kind, name)
        self._forget(now)
        before = self._said.get(whom)
        if before is None and len(self._said) >= SAID_MAX:
            raise AdminError(507, f"the limit of {SAID_MAX:,} bans is reached; lift some first")
        at = now if before is None or now > before.at else before.at + 1e-3
        until = at + seconds if seconds else 0.0
        news = Said(kind, name, until, arguments.get("reason", ""), arguments.get("disconnect") != "no", at)
        return {"said": msgspec.to_builtins([news])}

    async def hear_of(self, report: Report, arguments: Arguments) -> Result:
        """What was said anywhere; what of it is new is kept. ``all``: and the answer is all that was said here."""
        try:
            told = msgspec.json.decode(arguments.get("said", "[]"), type=list[Said])
        except msgspec.MsgspecError as error:
            raise AdminError(400, f"bans are malformed: {error}") from None
        lifted = await self.hear(told)
        if told and arguments.get("by"):
            log.info("%s: %s", by(arguments), "; ".join(_words(one, self._driver.clock()) for one in told[:10]))
        return {"lifted": lifted, "said": msgspec.to_builtins(self.all()) if arguments.get("all") == "yes" else []}

    def all(self) -> list[Said]:
        self._forget(self._driver.clock())
        return list(self._said.values())

    async def hear(self, told: Iterable[Said]) -> bool:
        """Whether a ban ended here because of it."""
        now = self._driver.clock()
        new = [
            one
            for one in told
            if one.newer(self._said.get((one.kind, one.name)))
            and one.remembered_until() > now
            and ((one.kind, one.name) in self._said or len(self._said) < SAID_MAX)
        ]
        lifted = False
        for one in new:
            self._said[one.kind, one.name] = one
            lifted = self._apply(one, now) or lifted
        if new:
            await self._write()
            await self._disconnect([one for one in new if one.disconnect and one.until > now])
        return lifted

    def _apply(self, one: Said, now: float) -> bool:
        if one.until > now:
            self._make(one.kind, one.name, one.until - now, one.reason)
            return False
        return self._bans.lift(one.kind, one.name)

    def _forget(self, now: float) -> None:
        for whom in [whom for whom, one in self._said.items() if one.remembered_until() <= now]:
            del self._said[whom]

    async def _disconnect(self, banned: list[Said]) -> None:
        """Close the connections of who is banned now, some a turn."""
        names = {(one.kind, network_key(one.name) if one.kind == "address" else one.name) for one in banned}
        for place, client in enumerate(list(self._driver.clients) if names else ()):
            if place % PIECE == PIECE - 1:
                await asyncio.sleep(0)
            session = client.session
            if session is None or client.link or client.gone:
                continue
            if {("client", session.client_id), ("user", client.username), ("address", peer_key(client.peer))} & names:
                self._driver.state.ctx.at(self._driver.clock())
                self._driver.state.ending.fail(client, Reason.ADMINISTRATIVE_ACTION, "banned")
        self._driver.poke()

    # The file

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            said = msgspec.json.decode(self._path.read_bytes(), type=list[Said])
        except (OSError, msgspec.MsgspecError) as error:
            log.error("stored bans cannot be read and are ignored: %s: %s", self._path, error)
            return
        now = self._driver.clock()
        for one in said:
            if one.remembered_until() > now:
                self._said[one.kind, one.name] = one
                self._apply(one, now)

    async def _write(self) -> None:
        if self._path is None:
            return
        async with self._writing:
            data = msgspec.json.encode(self.all())
            try:
                await asyncio.to_thread(replace, self._path, data)
            except OSError as error:
                log.error(
                    "bans cannot be stored and will be forgotten at the next restart: %s: %s",
                    self._path,
                    error.strerror,
                )


def _seconds(arguments: Arguments) -> float:
    """Raises AdminError."""
    try:
        seconds = float(arguments.get("seconds", "3600"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= SECONDS_MAX:  # nan is not, either
        raise AdminError(400, f"seconds: must be 0 to {SECONDS_MAX:,}")
    return seconds


def _words(one: Said, now: float) -> str:
    if one.until <= now:
        return f"the ban of {one.kind} {one.name!r} was lifted"
    return f"{one.kind} {one.name!r} is banned for {one.until - now:.0f} s"
