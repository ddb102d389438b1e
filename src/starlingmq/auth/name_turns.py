"""Turns of logins by name, where the address says nothing: behind a network of ``auth.failures.exempt``.

A guesser tries different passwords; a misconfigured device repeats one. So a wrong login is a guess only if its
password has not been wrong for this name within ``window`` seconds. After ``GUESSES_FREE`` guesses of a name within
``window`` its logins are checked one at a time, and not before the delay of the last guess is over, however many
connections guess: so all of them together get as many guesses as one would. A login for which there is no turn within
``PATIENCE`` gets the answer "busy", unchecked.

::

    free: FREE at a time --more than GUESSES_FREE guesses within window--> line
    line: one at a time, in the order in which they came --window without a guess--> free

| wrong login | is a guess |
|---|---|
| a password that has not been wrong for this name within ``window`` | yes |
| the same password again | no: it neither begins nor prolongs the line; its own refusal is delayed all the same |
| enhanced authentication, such as SCRAM | yes: each exchange has another proof (1) |
| a token whose signature or claims were refused | no: a signature cannot be guessed (2) |

(1) The client id cannot stand for the password: the guesser chooses it, and each one would have a line of its own.
(2) Devices that share a name have a token each, and all of these may expire at the same time.

The same password tried for many names is not slowed down here, because each name has its own line.

A right password in the same line as a flood of guesses would hardly ever have its turn: a client that waits cannot be
told from a guesser, and a right guess must not be faster than a wrong one. A guesser lacks a client id that has logged
in by this name before. Such a client does not wait for others. It may guess ``OWN_FAILURES`` times; then it is
forgotten, until it is right. So for each right login, at most that many guesses do not wait either.

| login, while guesses of its name flood | is checked |
|---|---|
| by another name | at once |
| a client id that was right by this name since the broker started, among the latest ``KNOWN_MAX`` | at once |
| any other | one of those that wait, every 5 s at most: it has to try again, as often as there are guessers |

Everything is bounded: ``OF_ONE_MAX`` logins wait by a name and ``WAITING_MAX`` in all; the newest one beyond that is
not checked. ``KNOWN_MAX`` names are remembered for their failures, each with its latest ``WRONG_MAX`` wrong passwords:
as digests under a key of this process, never the passwords, in 50 MB at most. Names without a guess or a login for
``window`` are forgotten as new ones come.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from time import monotonic
from typing import Final

from starlingmq.wire.digests import blake2b

FREE: Final = 16  # a login service that takes 0.1 s serves 160 logins a second of one name
GUESSES_FREE: Final = 4
WRONG_MAX: Final = 16
DIGEST_SIZE: Final = 8  # bytes: enough, since without the key a client cannot search for collisions
OWN_FAILURES: Final = 3
OF_ONE_MAX: Final = 1000
WAITING_MAX: Final = 2000
KNOWN_MAX: Final = 20_000
PATIENCE: Final = 6.0  # seconds: longer than the longest delay, and short enough for a check after it

Waiting = asyncio.Future[None]


class _Name:
    __slots__ = ("failing_until", "guesses", "kept_until", "next_at", "timer", "under_way", "waiting", "wrong")

    def __init__(self) -> None:
        self.under_way = 0
        self.next_at = 0.0
        self.failing_until = 0.0
        self.kept_until = 0.0
        self.guesses: tuple[float, ...] = ()  # when the latest ones were, GUESSES_FREE + 1 of them at most
        self.wrong: dict[bytes, float] = {}  # until when a wrong password is remembered, by its digest; the latest last
        self.waiting: dict[Waiting, Callable[[], bool]] = {}
        self.timer: asyncio.TimerHandle | None = None

    def failing(self, now: float) -> bool:
        return now < self.failing_until

    def wrong_again(self, digest: bytes, now: float, until: float) -> bool:
        """Whether this password has been wrong already. It is remembered until then."""
        again = self.wrong.pop(digest, now) > now
        self.wrong[digest] = until
        if len(self.wrong) > WRONG_MAX:
            del self.wrong[next(iter(self.wrong))]
        return again

    def guessed(self, now: float, delay: float, window: float) -> None:
        self.guesses = (*self.guesses[-GUESSES_FREE:], now)
        if self.failing(now) or (len(self.guesses) > GUESSES_FREE and self.guesses[0] > now - window):
            self.next_at = max(self.next_at, now + delay)
            self.failing_until = max(self.failing_until, now + window)

    def has_room(self, now: float) -> bool:
        return self.under_way < FREE if not self.failing(now) else not self.under_way and now >= self.next_at

    def idle(self) -> bool:
        return not self.under_way and not self.waiting


class NameTurn:
    """The turn of one login. Call ``end`` once."""

    def __init__(self, turns: NameTurns, name: str, client: str, own: bool) -> None:
        self._turns = turns
        self._name = name
        self._client = client
        self._own = own

    def end(self, right: bool = False, delay: float = 0.0, window: float = 0.0, password: bytes | None = None) -> None:
        """``delay``: of the refusal, in seconds, if the login was wrong, with this password (None: it is not known, as
        with SCRAM). Neither: it was not decided, or is no guess."""
        window += delay  # the next attempt of a client that waits for its refusal comes after the delay
        guess = delay > 0 and self._turns.is_guess(self._name, password, window)
        self._turns.ended(self._name, self._client, self._own, right, delay if guess else 0.0, window)


class NameTurns:
    """``clock`` in seconds, as that of the event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._names: OrderedDict[str, _Name] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()  # failures since it was right
        self._own: set[tuple[str, str]] = set()  # known clients that are checked
        self._waiting = 0
        self._secret = os.urandom(32)

    async def enter(self, name: str, client: str, gone: Callable[[], bool]) -> NameTurn | None:
        """Wait for the turn of a login. ``gone``: whether its connection is closed. None: it has none in time."""
        if (name, client) in self._known and (name, client) not in self._own:
            self._own.add((name, client))
            return NameTurn(self, name, client, True)
        state = self._state(name)
        if not state.waiting and state.has_room(self._clock()):
            state.under_way += 1
            return NameTurn(self, name, client, False)
        if len(state.waiting) >= OF_ONE_MAX or self._waiting >= WAITING_MAX:
            return None
        turn = asyncio.get_running_loop().create_future()
        state.waiting[turn] = gone
        self._waiting += 1
        self._go(name, state)
        try:
            await asyncio.wait([turn], timeout=PATIENCE)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.ended(name, client, False, False, 0.0, 0.0)
            raise
        finally:
            self._waiting -= 1
            state.waiting.pop(turn, None)
        return NameTurn(self, name, client, False) if turn.done() and not turn.cancelled() else None

    def is_guess(self, name: str, password: bytes | None, window: float) -> bool:
        """Whether a wrong login is a guess, and not one of the same password again. Remembers it for ``window``."""
        now = self._clock()
        state = self._state(name)
        state.kept_until = max(state.kept_until, now + window)
        if password is None:
            return True
        digest = blake2b(password, key=self._secret, digest_size=DIGEST_SIZE).digest()
        return not state.wrong_again(digest, now, now + window)

    def ended(self, name: str, client: str, own: bool, right: bool, delay: float, window: float) -> None:
        now = self._clock()
        state = self._state(name)
        if delay > 0:
            state.guessed(now, delay, window)
        if own:
            self._own.discard((name, client))
        else:
            state.under_way -= 1
        if client:
            self._remember((name, client), right, delay > 0)
        self._go(name, state)
        if state.idle() and now >= state.kept_until:
            self._names.pop(name, None)

    def _remember(self, whom: tuple[str, str], right: bool, wrong: bool) -> None:
        if right:
            self._known[whom] = 0
            self._known.move_to_end(whom)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        elif wrong and whom in self._known:
            self._known[whom] += 1
            if self._known[whom] >= OWN_FAILURES:
                del self._known[whom]

    def _state(self, name: str) -> _Name:
        state = self._names.get(name)
        if state is None:
            self._forget_expired()
            state = self._names[name] = _Name()
            if len(self._names) > KNOWN_MAX:
                oldest = next((name for name, each in self._names.items() if each.idle() and each is not state), None)
                if oldest is not None:
                    del self._names[oldest]
        self._names.move_to_end(name)
        return state

    def _forget_expired(self) -> None:
        """Two of the longest unused ones for each new name, so that they do not stay after a flood."""
        for name in list(islice(self._names, 2)):
            if self._names[name].idle() and self._clock() >= self._names[name].kept_until:
                del self._names[name]

    def _go(self, name: str, state: _Name) -> None:
        """Begin as many logins as there is room for, and return when there is more."""
        while state.waiting and state.has_room(self._clock()):
            turn, gone = next(iter(state.waiting.items()))
            del state.waiting[turn]
            if gone():
                turn.cancel()
                continue
            state.under_way += 1
            turn.set_result(None)
        if state.waiting and not state.under_way and state.timer is None:
            wait = max(0.0, state.next_at - self._clock())
            state.timer = asyncio.get_running_loop().call_later(wait, self._due, name, state)

    def _due(self, name: str, state: _Name) -> None:
        state.timer = None
        self._go(name, state)
