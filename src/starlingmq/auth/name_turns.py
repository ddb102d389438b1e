"""Turns of logins by name, where the address says nothing: behind a network of ``auth.failures.exempt``.

Without failures ``FREE`` logins by a name are checked at a time. For ``window`` seconds after a failure it is one at a
time, and not before the delay of that failure is over, however many connections guess: so all of them together get as
many guesses as one would. A login for which there is no turn within ``PATIENCE`` gets the answer "busy", unchecked.

::

    idle --login--> checking --right--> idle
                       | wrong: the delay begins
                       v
    failing: one at a time, in the order in which they came --window without a failure--> idle

A right password in the same line as a flood of guesses would hardly ever have its turn: a client that waits cannot be
told from a guesser, and a right guess must not be faster than a wrong one. A guesser lacks a client id that has logged
in by this name before. Such a client does not wait for others. It may be wrong ``OWN_FAILURES`` times; then it is
forgotten, until it is right. So for each right login, at most that many guesses do not wait either.

| login, while guesses of its name flood | is checked |
|---|---|
| by another name | at once |
| a client id that was right by this name since the broker started, among the latest ``KNOWN_MAX`` | at once |
| any other | one of those that wait, every 5 s at most: it has to try again, as often as there are guessers |

Everything is bounded: ``OF_ONE_MAX`` logins wait by a name and ``WAITING_MAX`` in all; the newest one beyond that is
not checked. ``KNOWN_MAX`` names are remembered for their failures.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final

FREE: Final = 4
OWN_FAILURES: Final = 3
OF_ONE_MAX: Final = 1000
WAITING_MAX: Final = 2000
KNOWN_MAX: Final = 20_000
PATIENCE: Final = 6.0  # seconds: longer than the longest delay, and short enough for a check after it

Waiting = asyncio.Future[None]


class _Name:
    def __init__(self) -> None:
        self.under_way = 0
        self.next_at = 0.0
        self.failing_until = 0.0
        self.waiting: dict[Waiting, Callable[[], bool]] = {}
        self.timer: asyncio.TimerHandle | None = None

    def failing(self, now: float) -> bool:
        return now < self.failing_until

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

    def end(self, right: bool = False, delay: float = 0.0, window: float = 0.0) -> None:
        """``delay``: of the refusal, in seconds, if the login was wrong. Neither: it was not decided."""
        self._turns.ended(self._name, self._client, self._own, right, delay, window)


class NameTurns:
    """``clock`` in seconds, as that of the event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._names: OrderedDict[str, _Name] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()  # failures since it was right
        self._own: set[tuple[str, str]] = set()  # known clients that are checked
        self._waiting = 0

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

    def ended(self, name: str, client: str, own: bool, right: bool, delay: float, window: float) -> None:
        now = self._clock()
        state = self._state(name)
        if delay > 0:
            state.next_at = max(state.next_at, now + delay)
            state.failing_until = max(state.failing_until, now + max(window, delay))
        if own:
            self._own.discard((name, client))
        else:
            state.under_way -= 1
        if client:
            self._remember((name, client), right, delay > 0)
        self._go(name, state)
        if state.idle() and not state.failing(now):
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
            state = self._names[name] = _Name()
            if len(self._names) > KNOWN_MAX:
                oldest = next((name for name, each in self._names.items() if each.idle() and each is not state), None)
                if oldest is not None:
                    del self._names[oldest]
        self._names.move_to_end(name)
        return state

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
