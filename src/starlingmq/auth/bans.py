"""Who may not come in for a while: banned by somebody, for wrong logins, or for coming and going. ``now`` comes in.

Everything is bounded: of more than ``KNOWN_MAX`` addresses, users or clients the one that was quiet longest is
forgotten.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from starlingmq.config_auth import FailuresConfig, FlappingConfig

KNOWN_MAX: Final = 20_000
DELAY_MAX: Final = 5.0  # seconds

Kind = Literal["address", "user", "client"]
KINDS: Final[tuple[Kind, ...]] = ("address", "user", "client")
Whom = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Ban:
    kind: Kind
    name: str
    until: float
    reason: str


class Counted:
    """How often something happened lately, by whom."""

    def __init__(self, limit: int, window: float) -> None:
        self.limit = limit
        self.window = window
        self._times: OrderedDict[Whom, deque[float]] = OrderedDict()

    def add(self, whom: Whom, now: float) -> int:
        """Count once more; how often it was in the window."""
        times = self._times.setdefault(whom, deque(maxlen=max(self.limit, 64)))
        self._times.move_to_end(whom)
        times.append(now)
        while times[0] <= now - self.window:
            times.popleft()
        if len(self._times) > KNOWN_MAX:
            self._times.popitem(last=False)
        return len(times)

    def forget(self, whom: Whom) -> None:
        self._times.pop(whom, None)


class Bans:
    def __init__(self, failures: FailuresConfig, flapping: FlappingConfig) -> None:
        self._bans: OrderedDict[Whom, Ban] = OrderedDict()
        self.configure(failures, flapping)

    def configure(self, failures: FailuresConfig, flapping: FlappingConfig) -> None:
        """Bans stay, counts begin again."""
        self._failures = failures
        self._flapping = flapping
        self._failed = Counted(failures.limit, failures.window)
        self._came = Counted(flapping.limit, flapping.window)

    def ban(self, kind: Kind, name: str, until: float, reason: str) -> Ban:
        ban = self._bans[kind, name] = Ban(kind, name, until, reason)
        self._bans.move_to_end((kind, name))
        if len(self._bans) > KNOWN_MAX:
            self._bans.popitem(last=False)
        return ban

    def lift(self, kind: Kind, name: str) -> bool:
        """Whether there was such a ban."""
        self._failed.forget((kind, name))
        self._came.forget((kind, name))
        return self._bans.pop((kind, name), None) is not None

    def of(self, now: float, address: str, user: str, client: str) -> Ban | None:
        """The ban that keeps somebody out."""
        for whom in zip(KINDS, (address, user, client), strict=True):
            ban = self._bans.get(whom)
            if ban is not None:
                if ban.until > now:
                    return ban
                del self._bans[whom]
        return None

    def all(self, now: float) -> Iterator[Ban]:
        return (ban for ban in self._bans.values() if ban.until > now)

    def came(self, now: float, client: str) -> Ban | None:
        """A CONNECT with this client id: the ban that comes of it, if it was one too many."""
        limit = self._flapping.limit
        if not limit or not client or self._came.add(("client", client), now) <= limit:
            return None
        self._came.forget(("client", client))
        return self.ban("client", client, now + self._flapping.ban, "it came and went too often")

    def failed(self, now: float, address: str, user: str) -> tuple[float, Ban | None]:
        """A login was wrong: how many seconds the refusal is to wait, and the ban that comes of it.

        A user is not banned but by somebody: everyone can fail under the name of another.
        """
        from_there = self._failed.add(("address", address), now) if address else 1
        as_user = self._failed.add(("user", user), now) if user else 1
        delay = min(DELAY_MAX, self._failures.delay * 2 ** min(max(from_there, as_user) - 1, 16))
        if not self._failures.limit or from_there < self._failures.limit:
            return delay, None
        self._failed.forget(("address", address))
        return delay, self.ban("address", address, now + self._failures.ban, "too many wrong logins")
