"""The configuration of a consumer, as the core needs it. The API checks it, and sets the defaults of nats-server."""

from __future__ import annotations

from typing import Final

# Delivery policies: with which message a new consumer begins.
ALL: Final = 0
LAST: Final = 1
NEW: Final = 2
BY_START_SEQUENCE: Final = 3
BY_START_TIME: Final = 4
LAST_PER_SUBJECT: Final = 5

# Acknowledgement policies.
ACK_NONE: Final = 0
ACK_ALL: Final = 1
ACK_EXPLICIT: Final = 2

BURST: Final = 1 << 20  # bytes that a rate limit lets pass at once: the default of the largest payload
WAIT_MIN: Final = 0.01  # seconds: redeliveries without a pause would be all that a node does


class ConsumerPolicy:
    """Names as in nats-server's ConsumerConfig. Times are seconds, subjects are topics, 0 is no limit."""

    deliver: int
    start_seq: int
    start_time: float
    ack: int
    ack_wait: float
    max_deliver: int  # 0 or less: no limit
    backoff: list[float]  # how long a message is waited for: [0] after its first delivery, and so on
    filters: list[bytes]
    replay_original: bool
    rate_limit: int  # bits per second
    sample: int
    max_ack_pending: int  # 0 or less: no limit
    max_waiting: int
    max_batch: int
    max_expires: float
    max_bytes: int
    headers_only: bool
    heartbeat: float
    flow_control: bool
    deliver_to: bytes  # b"": a pull consumer
    deliver_group: bytes
    inactive: float
    paused_until: float
    memory: bool
    burst: int

    def __init__(self) -> None:
        self.deliver = ALL
        self.start_seq = 0
        self.start_time = 0.0
        self.ack = ACK_EXPLICIT
        self.ack_wait = 30.0
        self.max_deliver = 0
        self.backoff = []
        self.filters = []
        self.replay_original = False
        self.rate_limit = 0
        self.sample = 0
        self.max_ack_pending = 1000
        self.max_waiting = 512
        self.max_batch = 0
        self.max_expires = 0.0
        self.max_bytes = 0
        self.headers_only = False
        self.heartbeat = 0.0
        self.flow_control = False
        self.deliver_to = b""
        self.deliver_group = b""
        self.inactive = 0.0
        self.paused_until = 0.0
        self.memory = False
        self.burst = BURST

    def wait(self, redeliveries: int) -> float:
        """How long the acknowledgement of a message is waited for that was delivered 1 + ``redeliveries`` times."""
        backoff = self.backoff
        wait = backoff[min(redeliveries, len(backoff) - 1)] if backoff else self.ack_wait
        return max(wait, WAIT_MIN)
