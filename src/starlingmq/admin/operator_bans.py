"""Bans by operators: they hold on all nodes, and survive a restart.

Each node keeps all of them in a file of its data directory, as the newest entry for each name: a ban, or that the ban
was lifted. Nodes send each other new entries, and all entries when they connect (``admin.peer_poller``). Of two entries
that were made on different nodes the later one holds, in whatever order they arrive. So bans do not need etcd, which
may be what is under attack; a node that is cut off receives a ban when it is connected again.

Bans that a node makes by itself (failed logins, flapping) hold on that node only, until it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import PIECE
from starlingmq.admin.sessions import when
from starlingmq.admin.state_files import EntriesFile
from starlingmq.auth.automatic_bans import AutomaticBans, Ban, Kind
from starlingmq.auth.banned_networks import NetworkSet, banned_address, banned_network
from starlingmq.config.networks import parse_address
from starlingmq.core.limits.address_key import network_key, peer_host, peer_key
from starlingmq.net.driver import Driver
from starlingmq.net.operators import NOBODY, acting
from starlingmq.wire.reasons import Reason

FILE: Final = "bans.json"
ENTRIES_MAX: Final = 10_000  # entries; further bans are refused
LIFTED_SECONDS: Final = 30 * 86400.0  # a lifted ban is kept so long, for nodes that were away
SECONDS_MAX: Final = 10 * 365 * 86400

MakeBan = Callable[[Kind, str, float, str], Ban]


class BanEntry(msgspec.Struct, frozen=True, array_like=True):
    """The newest entry for a name. Times are Unix seconds; with ``until`` in the past the ban was lifted."""

    kind: Kind
    name: str
    until: float
    reason: str
    disconnect: bool
    at: float

    def newer(self, other: BanEntry | None) -> bool:
        """Whether this entry replaces the other one. All nodes decide alike."""
        return other is None or (self.at, self.until, self.reason) > (other.at, other.until, other.reason)

    def remembered_until(self) -> float:
        return max(self.until, self.at + LIFTED_SECONDS)


class BanInfo(Struct, frozen=True):
    """``node`` is set in lists of several nodes."""

    kind: Kind
    name: str
    seconds: Annotated[float, Meta(description="Seconds until the ban ends.")]
    reason: str
    everywhere: Annotated[
        bool,
        Meta(description="True for a ban by an operator; bans that a node created itself apply to that node only."),
    ]
    node: str = ""


BannedKind = Annotated[Kind, Meta(description="Kind of the banned name.")]
BannedName = Annotated[
    str, Meta(min_length=1, max_length=65535, description="Address or network (10.0.0.0/8), user name or client id.")
]


class OneBan(Struct, frozen=True):
    kind: BannedKind
    name: BannedName


class NewBan(Struct, frozen=True):
    kind: BannedKind
    name: BannedName
    seconds: Annotated[float, Meta(gt=0, le=SECONDS_MAX)] = 3600.0
    reason: Annotated[str, Meta(max_length=200)] = "by an operator"
    disconnect: Annotated[bool, Meta(description="Whether to disconnect matching clients.")] = True


class BanChange(NewBan, frozen=True):
    """0 seconds lift the ban."""

    seconds: Annotated[float, Meta(ge=0, le=SECONDS_MAX)] = 3600.0


class BanNews(Struct, frozen=True):
    """Entries that all nodes must receive."""

    said: list[BanEntry]


class BanUpdate(Struct, frozen=True):
    """Entries of another node. ``all``: the reply shall have all entries of this node."""

    said: list[BanEntry] = []
    all: bool = False


class BansReceived(Struct, frozen=True):
    """``lifted``: a ban has ended on this node. ``said``: all entries of this node, if they were requested. What an
    operator has ``applied`` is ``told`` for the log, with the ban ``before`` and ``after``, "" for none."""

    lifted: bool
    said: list[BanEntry] = []
    applied: bool = False
    told: str = ""
    before: str = ""
    after: str = ""
    client_id: str = ""


class BanActions:
    """``bans`` are those in force on this node, and ``make`` adds one. Without ``directory`` they do not survive a
    restart."""

    def __init__(self, driver: Driver, bans: AutomaticBans, make: MakeBan, directory: Path | None) -> None:
        self._driver = driver
        self._in_force = bans
        self._make = make
        self._file = EntriesFile("bans", None if directory is None else directory / FILE, BanEntry)
        self._entries: dict[tuple[Kind, str], BanEntry] = {}
        now = driver.clock()
        for one in self._file.read():
            if one.remembered_until() > now:
                self._entries[one.kind, one.name] = one
                self._apply(one, now)

    # Requests to this node

    @action(
        "bans",
        "GET /bans",
        ALL,
        ctl="bans",
        columns="name, kind, node, seconds: ends in/seconds, reason",
        none="there are no bans",
    )
    async def bans(self) -> list[BanInfo]:
        """List active bans per node."""
        now = monotonic()
        return [
            BanInfo(ban.kind, ban.name, round(ban.until - now, 1), ban.reason, (ban.kind, ban.name) in self._entries)
            for ban in self._in_force.all(now)
        ]

    @action("bans.said")
    async def make_entry(self, request: BanChange) -> BanNews:
        """Make the entry for a request of an operator at this node. Raises AdminError."""
        kind, now = request.kind, self._driver.clock()
        self._forget(now)
        name = self._name(kind, request)
        before = self._entries.get((kind, name))
        if before is None and len(self._entries) >= ENTRIES_MAX:
            raise AdminError(507, f"the limit of {ENTRIES_MAX:,} bans is reached; lift some first")
        at = now if before is None or now > before.at else before.at + 1e-3
        until = at + request.seconds if request.seconds else 0.0
        return BanNews([BanEntry(kind, name, until, request.reason, request.disconnect, at)])

    def _name(self, kind: Kind, request: BanChange) -> str:
        """The name of the entry. Raises AdminError."""
        if kind != "address" or (not request.seconds and (kind, request.name) in self._entries):
            return request.name
        try:
            return banned_address(request.name)
        except ValueError as error:
            raise AdminError(400, f"name: {error}") from None

    @action("bans.hear", audit="{told}")
    async def receive(self, request: BanUpdate) -> BansReceived:
        """Take over the entries that are newer than those of this node."""
        now = self._driver.clock()
        earlier = [self._entries.get((one.kind, one.name)) for one in request.said]
        lifted = await self.merge(request.said)
        told = [one for one in request.said if lifted or one.until > now] if acting.get() != NOBODY else []
        return BansReceived(
            lifted,
            self.all() if request.all else [],
            applied=bool(told),
            told="; ".join(_words(one, now) for one in told[:10]),
            before="; ".join(_ban(one, now) for one in earlier if one is not None) if told else "",
            after="; ".join(_ban(one, now) for one in told),
            client_id=next((one.name for one in told if one.kind == "client"), ""),
        )

    def all(self) -> list[BanEntry]:
        self._forget(self._driver.clock())
        return list(self._entries.values())

    async def merge(self, entries: Iterable[BanEntry]) -> bool:
        """Take over newer entries. Returns whether a ban on this node has ended by one of them."""
        now = self._driver.clock()
        new = [
            one
            for one in entries
            if one.newer(self._entries.get((one.kind, one.name)))
            and one.remembered_until() > now
            and ((one.kind, one.name) in self._entries or len(self._entries) < ENTRIES_MAX)
        ]
        lifted = False
        for one in new:
            self._entries[one.kind, one.name] = one
            lifted = self._apply(one, now) or lifted
        if new:
            await self._file.write(self.all())
            await self._disconnect([one for one in new if one.disconnect and one.until > now])
        return lifted

    def _apply(self, one: BanEntry, now: float) -> bool:
        if one.until > now:
            self._make(one.kind, one.name, one.until - now, one.reason)
            return False
        return self._in_force.lift(one.kind, one.name)

    def _forget(self, now: float) -> None:
        for whom in [whom for whom, one in self._entries.items() if one.remembered_until() <= now]:
            del self._entries[whom]

    async def _disconnect(self, banned: list[BanEntry]) -> None:
        """Close the connections of banned clients. Looks at ``PIECE`` clients per turn."""
        names = {(one.kind, network_key(one.name) if one.kind == "address" else one.name) for one in banned}
        networks = NetworkSet()
        for network in (banned_network(one.name) for one in banned if one.kind == "address"):
            if network is not None:
                networks.add(network)
        for index, client in enumerate(list(self._driver.clients) if names else ()):
            if index % PIECE == PIECE - 1:
                await asyncio.sleep(0)
            session = client.session
            if session is None or client.link or client.gone:
                continue
            own = {("client", session.client_id), ("user", client.username), ("address", peer_key(client.peer))}
            address = parse_address(peer_host(client.peer)) if networks else None
            if own & names or (address is not None and any(networks.covering(address))):
                self._driver.state.ctx.at(self._driver.clock())
                self._driver.state.ending.fail(client, Reason.ADMINISTRATIVE_ACTION, "banned")
        self._driver.request_turn()


def _words(one: BanEntry, now: float) -> str:
    if one.until <= now:
        return f"lifted the ban of the {one.kind} {one.name!r}"
    return f"banned the {one.kind} {one.name!r} for {one.until - now:.0f} s"


def _ban(one: BanEntry, now: float) -> str:
    """A ban as it is before or after a change; "" if it is over."""
    return "" if one.until <= now else f"until {when(one.until)}: {one.reason}"
