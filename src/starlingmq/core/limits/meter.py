"""Rates of messages and bytes, and the pause after a rate was exceeded."""

from __future__ import annotations

from typing import Final

from starlingmq.config.settings import LimitsConfig

NO_LIMIT: Final = 1 << 30
BURST: Final = 1.0  # seconds' worth of messages or bytes that may come at once


class Bucket:
    """A token bucket that refills at a steady rate. It may be overdrawn, and then stays empty accordingly longer."""

    rate: float  # tokens per second
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
        """Seconds until there is a token."""
        return max(0.0, (1.0 - self.tokens) / self.rate)


class Meter:
    """The publish rate of one client."""

    messages: Bucket | None
    bytes: Bucket | None

    def __init__(self, limits: LimitsConfig, now: float) -> None:
        self.messages = Bucket(limits.message_rate, now) if limits.message_rate else None
        self.bytes = Bucket(limits.byte_rate, now) if limits.byte_rate else None

    def allowance(self, now: float) -> int:
        """The number of messages that it may publish now; at least one, because the client is being read."""
        if self.messages is None:
            return NO_LIMIT
        return max(1, int(self.messages.refill(now)))

    def used(self, messages: int, size: int, now: float) -> float:
        """Count what was read. Returns for how many seconds the client is not read."""
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
