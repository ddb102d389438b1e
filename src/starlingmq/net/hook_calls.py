"""Passes the core's questions to hooks. A hook that waits runs in a separate task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import HookAnswer, HookQuestion

CANCEL_SECONDS: Final = 1.0  # for cancelled tasks to end


class HookPort(Protocol):
    """Answers the core's questions (see ``starlingmq.hooks``)."""

    def ask(self, question: HookQuestion) -> HookAnswer | Awaitable[HookAnswer]: ...


class HookCalls:
    """``hooks`` may be None if there are none; ``schedule`` makes the driver take a turn."""

    def __init__(
        self,
        hooks: HookPort | None,
        state: BrokerState,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        schedule: Callable[[], None],
    ) -> None:
        self.hooks = hooks
        self.state = state
        self.loop = loop
        self.clock = clock
        self.schedule = schedule
        self._answers: set[asyncio.Task[None]] = set()

    def ask(self) -> None:
        """Call the hooks for the core's questions. Answers that are available at once are used in this turn."""
        assert self.hooks is not None
        ctx = self.state.ctx
        while ctx.ready.questions:  # ends: the core asks only its share of the turn
            question = ctx.ready.questions.pop()
            answer = self.hooks.ask(question)
            if isinstance(answer, HookAnswer):
                self.state.answer(question, answer, self.clock())
            else:
                task = self.loop.create_task(self._answer_later(question, answer))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)

    async def _answer_later(self, question: HookQuestion, answer: Awaitable[HookAnswer]) -> None:
        value = await answer
        self.schedule()
        self.state.answer(question, value, self.clock())
        if self.state.ctx.ready.questions:
            self.ask()

    def cancel(self) -> None:
        for task in self._answers:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all cancelled hooks have ended, at most ``CANCEL_SECONDS``."""
        if self._answers:
            await asyncio.wait(self._answers, timeout=CANCEL_SECONDS)
