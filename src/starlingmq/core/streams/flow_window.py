"""How much a push consumer may send: the window of flow control, the rate, and the pace of an original replay."""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.wire.nats_headers import VERSION, carried, properties_of

WINDOW_MAX: Final = 32 << 20  # bytes
WINDOW_START: Final = WINDOW_MAX // 16
REPLAY_MIN: Final = 0.001  # seconds; shorter gaps are not replayed
BITS: Final = 8
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS_COUNT: Final = 4


class FlowWindow:
    """Bytes that were sent and not confirmed. From half of the window on the client is asked to confirm, and each time
    it does the window doubles, up to WINDOW_MAX. Above the window nothing is sent."""

    _limit: int
    _sent: int
    _covered: int  # of ``_sent``, by the request that was not answered
    _asked: bytes  # the subject of its reply; b"": there is none
    _subject: str
    _count: int

    def __init__(self, stream: str, consumer: str) -> None:
        self._limit = WINDOW_START
        self._sent = 0
        self._covered = 0
        self._asked = b""
        self._subject = f"$JS.FC.{stream}.{consumer}."
        self._count = 0

    def open(self) -> bool:
        return self._sent <= self._limit

    def sent(self, size: int) -> bool:
        """Whether the client is to be asked now."""
        self._sent += size
        if self._asked:
            if self._sent - self._covered >= self._limit:
                self._covered += size
            return False
        return self._sent > self._limit // 2

    def ask(self) -> bytes:
        """The subject of the reply."""
        self._count += 1
        self._covered = self._sent
        self._asked = self.asked_subject()
        return self._asked

    def asked_subject(self) -> bytes:
        left = self._count
        token = ""
        for _ in range(_DIGITS_COUNT):
            left, digit = divmod(left, len(_DIGITS))
            token += _DIGITS[digit]
        return f"{self._subject}{token}".encode()

    def asked(self) -> bytes:
        """The subject that a reply is waited for on; b"": none is."""
        return self._asked

    def answered(self, subject: bytes) -> None:
        if not self._asked or subject != self._asked:
            return
        self._limit = min(2 * self._limit, WINDOW_MAX)
        self._sent = max(0, self._sent - self._covered)
        self._covered = 0
        self._asked = b""


class Pace:
    """When the next message may be sent."""

    rate: float  # bytes per second; 0.0: no limit
    until: float  # nothing is sent before; 0.0: unset
    _burst: float
    _tokens: float
    _at: float  # when ``_tokens`` was right
    _replay_to: int  # the last sequence whose gap to the one before is replayed; 0: none is
    _published_at: float  # of the last message
    _sent_at: float

    def __init__(self, policy: ConsumerPolicy, last: int) -> None:
        self.rate = policy.rate_limit / BITS if policy.rate_limit > 0 else 0.0
        self.until = 0.0
        self._burst = float(policy.burst)
        self._tokens = self._burst
        self._at = 0.0
        self._replay_to = last if policy.replay_original else 0
        self._published_at = 0.0
        self._sent_at = 0.0

    def holds(self, message: Message, sequence: int, now: float) -> bool:
        """Whether a message is not due yet that is delivered for the first time."""
        if sequence > self._replay_to:
            self._replay_to = 0
            return False
        gap = message.published_at - self._published_at
        if self._published_at != 0.0 and gap > REPLAY_MIN and now < self._sent_at + gap:
            self.until = self._sent_at + gap
            return True
        self._published_at = message.published_at
        self._sent_at = now
        return False

    def slows(self, size: int, now: float) -> bool:
        """Whether a message of this size has to wait; if not, it counts as sent."""
        tokens = self._burst if self._at == 0.0 else min(self._burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        self._tokens = tokens
        needed = min(float(size), self._burst)
        if tokens + 1e-6 < needed:
            self.until = now + (needed - tokens) / self.rate
            return True
        self._tokens = tokens - needed
        return False


def block_size(message: Message) -> int:
    """Bytes of its headers, as NATS subscribers receive them."""
    return len(carried(message.properties).headers) if message.properties else 0


def headers_of(message: Message) -> Message:
    """The message without its payload, whose size is a header."""
    block = carried(message.properties).headers or VERSION + b"\r\n\r\n"
    block = b"%bNats-Msg-Size: %d\r\n\r\n" % (block[:-2], len(message.payload))
    bare = Message(
        message.topic,
        b"",
        message.qos,
        message.retain,
        properties_of(block, b""),
        message.expires_at,
        message.publisher,
        message.published_at,
    )
    bare.id = message.id
    return bare
