"""The tracing of a node with OpenTelemetry, as the settings say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlingmq.config.settings import Config, ConfigError
from starlingmq.net.driver import Driver

if TYPE_CHECKING:
    from starlingmq.otel.tracing import Tracing


class NodeTracing:
    """``current`` is None if nothing is traced."""

    def __init__(self) -> None:
        self.current: Tracing | None = None
        self._closing: asyncio.Future[None] | None = None

    def make(self, config: Config, driver: Driver) -> Tracing | None:
        """The present tracing if its destination is unchanged, or a new one. Raises ConfigError."""
        if not config.tracing.endpoint:
            return None
        try:
            from starlingmq.otel.tracing import Tracing
        except ImportError as error:
            raise ConfigError(
                f"tracing.endpoint: needs {error.name}; run pip install '.[otel]' in the sources"
            ) from None
        if self.current is not None and self.current.goes_on_with(config.tracing):
            return self.current
        return Tracing(config.tracing, config.node.name, driver.state, driver.request_turn)

    def use(self, tracing: Tracing | None, config: Config) -> None:
        """From now on, in place of the present one."""
        earlier, self.current = self.current, tracing
        if earlier is not None and earlier is not tracing:
            self._closing = asyncio.ensure_future(earlier.close())
        if tracing is not None and earlier is not tracing:
            tracing.begin()
        if tracing is not None:
            tracing.change(config.tracing)

    async def close(self) -> None:
        if self.current is not None:
            await self.current.close()
