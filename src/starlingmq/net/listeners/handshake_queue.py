"""TLS handshakes take turns, so that a storm of them does not delay the clients that are connected.

A handshake is most of the CPU time of a new connection, and the event loop spends it. The rules:

- In one turn of the event loop, the handshakes of all listeners take ``seconds_per_turn``; the last one may exceed it.
  Further ones wait, and go in the order in which their bytes came.
- A handshake that waits for its client does not wait here, so silent clients delay no others.
- From ``WAITING_MAX`` waiting handshakes on, listeners with TLS accept no connections: these wait in the queue of the
  kernel, and their time for a handshake has not begun. Half of it later, all listeners accept again.
- A handshake that has ended while it waited, by its time limit or the close of its listener, costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

log = logging.getLogger("starlingmq")

SECONDS_PER_TURN: Final = 0.005
WAITING_MAX: Final = 256

T = TypeVar("T")


class SecureListener(Protocol):
    """``accept_again`` has no effect while it is paused for another reason."""

    def pause(self) -> None: ...
    def accept_again(self) -> None: ...


class HandshakeQueue:
    """One per process. ``soon`` calls a function in the next turn of the event loop."""

    def __init__(
        self,
        seconds_per_turn: float = SECONDS_PER_TURN,
        clock: Callable[[], float] = time.monotonic,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.seconds_per_turn = seconds_per_turn
        self.pauses = 0  # how often listeners had to stop accepting
        self._clock = clock
        self._soon = soon or _call_soon
        self._spent = 0.0  # seconds in this turn
        self._renewing = False
        self._turn = 0  # of ``call``
        self._waiting: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any], float]] = deque()
        self._held: dict[SecureListener, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, step: Callable[[], T], more: float = 0.0) -> T:
        """Call ``step`` when it is its turn. ``more``: seconds that it will cost after it has returned."""
        if not self._waiting and self._spent < self.seconds_per_turn:
            began = self._clock()
            try:
                return step()
            finally:
                self._spend(self._clock() - began + more)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, step, more))
        return await future

    def call(self, step: Callable[[], None], wait: Callable[[], None], turn: int) -> None:
        """The same without a future: ``step`` is called now, or ``wait`` now and ``step`` later. It raises nothing.

        ``turn`` is the number of a round in which the event loop serves clients (``ClientSockets.rounds``). It is a
        turn of its own while nothing waits, so that asyncio need not be called for each step.
        """
        if turn != self._turn and not self._waiting and not self._renewing:
            self._turn = turn
            self._spent = 0.0
        if self._waiting or self._spent >= self.seconds_per_turn:
            self._waiting.append((None, step, 0.0))
            self._renew()
            wait()
            return
        began = self._clock()
        step()
        self._spent += self._clock() - began

    def hold(self, listener: SecureListener) -> bool:
        """Pause a listener if too many handshakes wait; it is resumed later. Returns whether it is paused."""
        if len(self._waiting) < WAITING_MAX:
            return False
        listener.pause()
        self._held[listener] = None
        self.pauses += 1
        return True

    def remove(self, listener: SecureListener) -> None:
        self._held.pop(listener, None)

    def _spend(self, seconds: float) -> None:
        self._spent += seconds
        self._renew()

    def _renew(self) -> None:
        if not self._renewing:
            self._renewing = True
            self._soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._renewing = False
        self._spent = 0.0
        while self._waiting and self._spent < self.seconds_per_turn:
            future, step, more = self._waiting.popleft()
            if future is not None and future.done():
                continue
            began = self._clock()
            try:
                result = step()
                if future is not None:
                    future.set_result(result)
            except Exception as error:
                if future is None:
                    log.exception("internal error in a TLS handshake; please report it")
                else:
                    future.set_exception(error)
            self._spend(self._clock() - began + more)
        if self._held and len(self._waiting) <= WAITING_MAX // 2:
            held, self._held = self._held, {}
            for listener in held:
                listener.accept_again()


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
