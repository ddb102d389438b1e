"""Requests that a NATS bridge has passed on, until their replies have come: each has an inbox of its own.

The service at the receiving side sees ``_INBOX.token.number`` in place of the reply subject of the client. So a reply
comes back whatever the client's inbox is called, and no client at that side can make the bridge subscribe to a subject
of the other side by naming it as a reply subject. A number ends with a digest: a service that sees one request cannot
answer those of others.

A request is forgotten ``OPEN_SECONDS`` after its last message, or ``ANSWERED_SECONDS`` after a reply; and the oldest
one as soon as there are more than ``OPEN_MAX`` or ``ANSWERED_MAX``. A reply that shows that more will follow (it asks
for a reply itself, as each message of a pull consumer does) leaves its request open.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.digests import blake2b

OPEN_MAX: Final = 4096
OPEN_SECONDS: Final = 120.0
ANSWERED_MAX: Final = 512
DIGEST_BYTES: Final = 8
ANSWERED_SECONDS: Final = 10.0  # a request may have several replies


class PassedRequest:
    """``subject`` is where replies go, at the side of the request; ``alone``: no other service can have got it."""

    subject: bytes
    alone: bool
    until: float

    def __init__(self, subject: bytes, alone: bool, until: float) -> None:
        self.subject = subject
        self.alone = alone
        self.until = until


class PassedRequests:
    """By the number of each request. Both dicts have the one first that ends first."""

    prefix: bytes  # of the inboxes, with the dot before the number
    ended: list[bytes]  # numbers that were forgotten since the caller last took them
    _open: dict[bytes, PassedRequest]
    _answered: dict[bytes, PassedRequest]
    _number: int
    _salt: bytes

    def __init__(self, prefix: bytes, salt: bytes) -> None:
        self.prefix = prefix
        self.ended = []
        self._open = {}
        self._answered = {}
        self._number = 0
        self._salt = salt

    def ask(self, subject: bytes, alone: bool, now: float) -> bytes:
        """A number for a request whose replies go to ``subject``."""
        self._number += 1
        number = b"%d" % self._number
        if self._salt:  # tests need none
            digest = blake2b(number, digest_size=DIGEST_BYTES, key=self._salt)
            number = b"%b-%b" % (number, digest.hexdigest().encode())
        self._put(self._open, number, PassedRequest(subject, alone, now + OPEN_SECONDS), OPEN_MAX)
        return number

    def find(self, number: bytes) -> PassedRequest | None:
        return self._open.get(number) or self._answered.get(number)

    def replied(self, number: bytes, more: bool, now: float) -> None:
        """A reply has come; ``more``: others will follow."""
        waiting = self._open.pop(number, None) or self._answered.pop(number, None)
        if waiting is None:
            return
        if more:
            waiting.until = now + OPEN_SECONDS
            self._put(self._open, number, waiting, OPEN_MAX)
        else:
            waiting.until = now + ANSWERED_SECONDS
            self._put(self._answered, number, waiting, ANSWERED_MAX)

    def _put(self, waits: dict[bytes, PassedRequest], number: bytes, waiting: PassedRequest, most: int) -> None:
        waits[number] = waiting
        if len(waits) > most:
            self._forget(waits, next(iter(waits)))

    def _forget(self, waits: dict[bytes, PassedRequest], number: bytes) -> None:
        del waits[number]
        self.ended.append(number)

    def tick(self, now: float) -> None:
        for waits in (self._open, self._answered):
            while waits:
                number = next(iter(waits))
                if waits[number].until > now:
                    break
                self._forget(waits, number)

    def due_at(self) -> float:
        """When ``tick`` has something to do."""
        return min((next(iter(each.values())).until for each in (self._open, self._answered) if each), default=NEVER)


NEVER: Final = float("inf")
