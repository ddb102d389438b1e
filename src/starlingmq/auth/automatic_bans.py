"""Bans: by an operator, for wrong logins, or for connecting too often. ``now`` is an argument.

Addresses are identified by their key (``core.limits.address_key``): IPv4 as it is, IPv6 by its /64. A manual ban of an
address may name a network (``auth.banned_networks``).

| ban | made by | does not apply to |
|---|---|---|
| manual | an operator | (applies to everyone it names) |
| automatic, address | ``auth.failures.limit`` | clients with a key (1), networks of ``auth.failures.exempt`` |
| automatic, client id | ``auth.flapping`` | (applies to everyone) |

(1) They authenticate with a verified certificate or a listed NKey.

A user name is never banned automatically, because anyone can fail under the name of another.

Everything is bounded. Of more than ``KNOWN_MAX`` addresses, users or clients the least recent one is removed, per kind:
many user names remove no address, and no number of strangers removes a manual ban. Names longer than ``NAME_MAX`` are
stored as digests.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal

from starlingmq.auth.banned_networks import NetworkSet, banned_network
from starlingmq.auth.name_turns import NameTurn, NameTurns
from starlingmq.config.networks import is_among, parse_address, parse_networks
from starlingmq.core.limits.address_key import network_key, peer_host
from starlingmq.wire.digests import blake2b

if TYPE_CHECKING:
    from starlingmq.config.auth_section import FailuresConfig, FlappingConfig

KNOWN_MAX: Final = 20_000
NAME_MAX: Final = 128  # characters
DELAY_MAX: Final = 5.0  # seconds

Kind = Literal["address", "user", "client"]
KINDS: Final[tuple[Kind, ...]] = ("address", "user", "client")
BanKey = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Ban:
    kind: Kind
    name: str
    until: float
    reason: str
    automatic: bool = False


class Counted:
    """Counts of recent events per name."""

    def __init__(self, limit: int, window: float) -> None:
        self.limit = limit
        self.window = window
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, whom: str, now: float) -> int:
        """Count an event. Returns the count within the window."""
        times = self._times.setdefault(whom, deque(maxlen=max(self.limit, 64)))
        self._times.move_to_end(whom)
        times.append(now)
        while times[0] <= now - self.window:
            times.popleft()
        if len(self._times) > KNOWN_MAX:
            self._times.popitem(last=False)
        return len(times)

    def forget(self, whom: str) -> None:
        self._times.pop(whom, None)


class AutomaticBans:
    """``turns`` has a clock of its own."""

    def __init__(self, failures: FailuresConfig, flapping: FlappingConfig, turns: NameTurns | None = None) -> None:
        self._by_hand: OrderedDict[BanKey, Ban] = OrderedDict()
        self._automatic: OrderedDict[BanKey, Ban] = OrderedDict()
        self._networks = NetworkSet()  # those of ``_by_hand``
        self._turns = turns or NameTurns()
        self.configure(failures, flapping)

    def configure(self, failures: FailuresConfig, flapping: FlappingConfig) -> None:
        """Bans are kept; counts start again."""
        self._failures = failures
        self._flapping = flapping
        self._exempt = parse_networks(failures.exempt, "auth.failures.exempt")
        self._failed_from = Counted(failures.limit, failures.window)
        self._failed_as = Counted(failures.limit, failures.window)
        self._came = Counted(flapping.limit, flapping.window)

    def ban(self, kind: Kind, name: str, until: float, reason: str) -> Ban:
        """A manual ban."""
        network = banned_network(name) if kind == "address" else None
        if network is not None:
            self._networks.add(network)
            name = str(network)
        return self._remember(self._by_hand, Ban(kind, name, until, reason))

    def lift(self, kind: Kind, name: str) -> bool:
        """Returns whether there was such a ban."""
        whom = _ban_key(kind, name)
        for counted in (self._failed_from,) if kind == "address" else (self._failed_as, self._came):
            counted.forget(whom[1])
        by_hand, automatic = self._by_hand.pop(whom, None), self._automatic.pop(whom, None)
        network = banned_network(name) if kind == "address" else None
        if network is not None:
            self._networks.discard(network)
        return by_hand is not None or automatic is not None

    def of(self, now: float, address: str, user: str, client: str, proved: bool = False) -> Ban | None:
        """The ban that applies to a client. ``proved``: the client authenticated with a key, not with something that
        can be guessed."""
        for kind, name in zip(KINDS, (address, user, client), strict=True):
            if not name:
                continue
            whom = _ban_key(kind, name)
            for bans in (self._by_hand, self._automatic):
                ban = bans.get(whom)
                if ban is None:
                    continue
                if ban.until <= now:
                    del bans[whom]
                elif not (ban.automatic and kind == "address" and (proved or self.exempt(address))):
                    return ban
        return self._of_network(now, address) if self._networks and address else None

    def _of_network(self, now: float, text: str) -> Ban | None:
        address = parse_address(text)
        if address is None:
            return None
        for network in self._networks.covering(address):
            whom = _ban_key("address", str(network))
            ban = self._by_hand.get(whom)
            if ban is not None and ban.until > now:
                return ban
            self._by_hand.pop(whom, None)
            self._networks.discard(network)
        return None

    def all(self, now: float) -> Iterator[Ban]:
        return (ban for ban in chain(self._by_hand.values(), self._automatic.values()) if ban.until > now)

    def exempt(self, address: str) -> bool:
        """Whether many clients share this address, such as all those behind a load balancer."""
        return bool(self._exempt) and is_among(parse_address(address), self._exempt)

    def queue_key(self, peer: str, user: str) -> str:
        """The key for fair queueing of a login check: the address, or the user name if the address is exempt."""
        address = peer_host(peer)
        if not address or self.exempt(address):
            return "user " + _short(user)
        return network_key(address)

    async def turn(self, user: str, client: str, gone: Callable[[], bool]) -> NameTurn | None:
        """The turn of a login from an exempt address, by this name; None: it has none in time."""
        return await self._turns.enter(_short(user), _short(client), gone)

    @property
    def window(self) -> float:
        """Seconds for which a failed login counts."""
        return self._failures.window

    def came(self, now: float, client: str) -> Ban | None:
        """A CONNECT with this client id. Returns the ban that results if it was one too many."""
        limit = self._flapping.limit
        if not limit or not client or self._came.add(_short(client), now) <= limit:
            return None
        self._came.forget(_short(client))
        ban = Ban("client", client, now + self._flapping.ban, "too many connections in a short time", True)
        return self._remember(self._automatic, ban)

    def failed(self, now: float, address: str, user: str) -> tuple[float, Ban | None]:
        """A login failed. Returns the seconds by which to delay the refusal, and the ban that results. Nameless logins
        from exempt addresses count as those of one user, ""."""
        key = "" if self.exempt(address) else network_key(address)
        from_there = self._failed_from.add(key, now) if key else 1
        as_user = self._failed_as.add(_short(user), now) if user or not key else 1
        delay = min(DELAY_MAX, self._failures.delay * 2 ** min(max(from_there, as_user) - 1, 16))
        if not self._failures.limit or from_there < self._failures.limit:
            return delay, None
        self._failed_from.forget(key)
        ban = Ban("address", key, now + self._failures.ban, "too many failed logins", True)
        return delay, self._remember(self._automatic, ban)

    def _remember(self, bans: OrderedDict[BanKey, Ban], ban: Ban) -> Ban:
        whom = _ban_key(ban.kind, ban.name)
        bans[whom] = ban
        bans.move_to_end(whom)
        if len(bans) > KNOWN_MAX:
            bans.popitem(last=False)  # of a network: ``_of_network`` then forgets it
        return ban


def _ban_key(kind: Kind, name: str) -> BanKey:
    return kind, network_key(name) if kind == "address" else _short(name)


def _short(name: str) -> str:
    """The name, or the digest of a long one: a stranger may send 64 KiB."""
    if len(name) <= NAME_MAX:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=32).hexdigest()
