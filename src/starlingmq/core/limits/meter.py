"""How fast something comes, and how long to wait once it was faster than it may be."""

from __future__ import annotations

from typing import Final

from starlingmq.config.settings import LimitsConfig

NO_LIMIT: Final = 1 << 30
BURST: Final = 1.0  # seconds worth of messages or bytes that may come at once


class Bucket:
    """Tokens that come back at a steady rate. It may be overdrawn, and is then empty for as long."""

    rate: float  # tokens a second
    tokens: float
    at: float

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.tokens = rate * BURST
        self.at = now

    def refill(self, now: float) -> float:
        self.tokens = min(self.rate * BURST, self.tokens + (now - self.at) * self.rate)
        self.at = now
        return self.tokens

    def wait(self) -> float:
        """Seconds until there is one token again."""
        return max(0.0, (1.0 - self.tokens) / self.rate)


class Meter:
    """How fast one client publishes."""

    messages: Bucket | None
    bytes: Bucket | None

    def __init__(self, limits: LimitsConfig, now: float) -> None:
        self.messages = Bucket(limits.message_rate, now) if limits.message_rate else None
        self.bytes = Bucket(limits.byte_rate, now) if limits.byte_rate else None

    def allowance(self, now: float) -> int:
        """Messages it may publish now: one at least, for it is read."""
        if self.messages is None:
            return NO_LIMIT
        return max(1, int(self.messages.refill(now)))

    def used(self, messages: int, size: int, now: float) -> float:
        """Count what was read; how many seconds the client is not to be read for."""
        seconds = 0.0
        if self.messages is not None:
            self.messages.tokens -= messages
            if self.messages.tokens < 1.0:
                seconds = self.messages.wait()
        if self.bytes is not None and size != 0:
            self.bytes.refill(now)
            self.bytes.tokens -= size
            if self.bytes.tokens < 1.0:
                seconds = max(seconds, self.bytes.wait())
        return seconds
