"""This node's requests about records of wills, to the leaders of their shares.

Laws:

- Answers and news of leaders are told in the order in which they came, at the beginning of a turn.
- A change of this node's record that the leader does not answer at once is told to the deputy, which makes it if it is
  the next leader.
- News of records that others have written is lost with a leader. So each new table begins the reading again.
- A record that is written during the reading is told, and not in later parts of the reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Final

from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.share_lines import ShareLines
from starlingmq.cluster.shares.share_messages import (
    Disarm,
    Message,
    WillAnswer,
    WillChange,
    WillHint,
    WillKey,
    WillNews,
    WillRead,
    WillsFound,
    WillsOf,
    WillWrite,
)
from starlingmq.cluster.shares.share_table import NO_TABLE, ShareTable
from starlingmq.cluster.shares.will_book import node_of
from starlingmq.cluster.wills.will_records import (
    ARMED,
    RegisteredWill,
    WillValueError,
    client_of_key,
    decode_will,
    encode_will,
)
from starlingmq.cluster.wills.will_store import PAGE, LedWills, WillChanged, WillFollower, WillRecord, WillUpdate

HINTS_PER_LOOK: Final = 256


class WillRequests:
    """A ``WillStore``; its records of shares that this node leads are those of ``books``."""

    lines: ShareLines[WillChange | WillRead, WillAnswer]

    def __init__(self, books: ShareBooks) -> None:
        self.lines = ShareLines()
        self._books = books
        self._messages: list[tuple[int, WillsOf | WillHint | Disarm]] = []  # to leaders, and deputies
        self._table = NO_TABLE
        self._taking_part = False
        self._me = 0
        self._follower: WillFollower | None = None
        self._answers: deque[Callable[[], None]] = deque()
        self._reading = 0  # number of the last one
        self._missing: dict[int, None] = {}  # the shares of which the reading lacks the records
        self._found: dict[bytes, WillKey] = {}  # by the reading, and not told yet
        self._is_reading = False
        self._looked_until = 0  # the last ticket at the last look
        self._unhinted: deque[int] = deque()  # tickets of changes of which the deputy may have to be told
        self._notices: list[str] = []

    # The store

    def change(self, update: WillUpdate, answered: Callable[[WillChanged], None]) -> None:
        if self.lines.idle():
            self._unhinted.clear()
        writes: list[WillWrite] = [(update.key, None if update.value is None else encode_will(update.value))]
        if update.copy is not None:
            writes.append((update.copy[0], encode_will(update.copy[1])))
        change = WillChange(self.lines.ticket(), client_of_key(update.key), update.key, update.revision, tuple(writes))
        if self._is_told_to_deputy(change):
            self._unhinted.append(change.ticket)

        def came(answer: WillAnswer, sent_at: float) -> None:
            self._answers.append(lambda: answered(self._changed(update, answer, sent_at)))
            self._leave_out([key for key, _ in writes] if answer.done else [update.key])

        self.lines.ask(change, came)

    def _changed(self, update: WillUpdate, answer: WillAnswer, sent_at: float) -> WillChanged:
        if answer.done:
            revision = 0 if update.value is None else answer.revision
            return WillChanged(update, True, WillRecord(update.key, revision, update.value), sent_at, [])
        records = self.decoded(answer.wills)
        found = [each for each in records if each.key == update.key]
        return WillChanged(update, False, found[0] if found else WillRecord(update.key, 0, None), sent_at, records)

    def disarm(self, client_id: str, will: int) -> None:
        if self._taking_part:
            self._messages.append((self._table.of(client_id).leader, Disarm(client_id, will)))

    def read(self, client_id: str, answered: Callable[[list[WillRecord]], None]) -> None:
        def came(answer: WillAnswer, sent_at: float) -> None:
            self._answers.append(lambda: answered([self._record(will) for will in answer.wills]))

        self.lines.ask_at_once(WillRead(self.lines.ticket(), client_id), came)

    def decoded(self, wills: tuple[WillKey, ...]) -> list[WillRecord]:
        return [self._record(each) for each in wills]

    def follow(self, node: int, follower: WillFollower) -> None:
        self._me, self._follower = node, follower
        self._begin_reading()

    def _record(self, will: WillKey) -> WillRecord:
        key, revision, data = will
        try:
            value: RegisteredWill | None = decode_will(data)
        except WillValueError as error:
            self._notices.append(f"{key!r}: {error}")
            value = None
        return WillRecord(key, revision, value)

    # All records of this node, share by share

    def _begin_reading(self) -> None:
        self._found, self._missing = {}, {}
        self._is_reading = self._taking_part and self._follower is not None
        if self._is_reading:
            self._reading += 1
            shares: dict[int, list[int]] = {}
            for share, pair in enumerate(self._table.pairs):
                self._missing[share] = None
                shares.setdefault(pair.leader, []).append(share)
            self._messages += [(leader, WillsOf(self._reading, tuple(asked))) for leader, asked in shares.items()]

    def _leave_out(self, keys: list[bytes]) -> None:
        """Their records are newer than those that were read."""
        for key in keys:
            self._found.pop(key, None)

    def _has_part(self) -> bool:
        return self._is_reading and (bool(self._found) or not self._missing)

    def _tell_part(self, follower: WillFollower) -> None:
        keys = list(islice(self._found, PAGE))
        records = [self._record(self._found.pop(key)) for key in keys]
        self._is_reading = bool(self._found or self._missing)
        follower.took(records, not self._is_reading)

    # The records of the shares that this node leads

    @property
    def led_changes(self) -> int:
        return self._books.changes

    def led_shares(self) -> list[int]:
        return self._books.led()

    def led_wills(self, share: int, nodes: Container[int]) -> LedWills:
        others: dict[int, None] = {}
        records: list[WillRecord] = []
        count = 0
        for will in self._books.books[share].wills.all():
            count += 1
            node = node_of(will[0])
            if node in nodes:
                records.append(self._record(will))
            else:
                others[node] = None
        return LedWills(records, others, count)

    # For the shares

    def idle(self) -> bool:
        return self.lines.idle() and not self._missing

    def has_answers(self) -> bool:
        return bool(self._answers) or self._has_part()

    def give_answers(self) -> None:
        """Tells those who have asked."""
        for _ in range(len(self._answers)):
            self._answers.popleft()()
        if self._follower is not None and self._has_part():
            self._tell_part(self._follower)

    def set_table(self, table: ShareTable, taking_part: bool) -> None:
        self._table, self._taking_part, self._messages = table, taking_part, []
        self.lines.set_table(table, taking_part)
        self._unhinted = deque(
            [ticket for ticket, asked in self.lines.asked.items() if self._is_told_to_deputy(asked.message)]
        )
        if taking_part and self._follower is not None:
            self._answers.append(self._follower.reading_begins)
        self._begin_reading()

    def take_messages(self) -> Sequence[tuple[int, Message]]:
        """(node, message): to be sent."""
        if not self._messages:
            return self.lines.take_messages()
        messages, self._messages = self._messages, []
        return [*messages, *self.lines.take_messages()]

    def look(self) -> None:
        """Now and then: tells deputies of changes of this node's wills that their leaders have not answered since the
        last look. A leader that is gone is replaced by its deputy, perhaps once this node has died as well: a will that
        its client has cancelled must not be published then."""
        looked_until, self._looked_until = self._looked_until, self.lines.last_ticket
        for _ in range(HINTS_PER_LOOK):
            if not (self._taking_part and self._unhinted and self._unhinted[0] <= looked_until):
                break
            asked = self.lines.asked.get(self._unhinted.popleft())
            if asked is not None and isinstance(asked.message, WillChange):
                deputy = self._table.of(asked.message.client_id).deputy
                if deputy:
                    self._messages.append((deputy, WillHint(asked.message)))

    def _is_told_to_deputy(self, message: object) -> bool:
        """Whether it is a change that deletes a record of this node, or replaces it by that of another will. It counts
        only as long as the record has that revision, however late the deputy makes the change. Not FIRING: that is for
        a node that lives."""
        if not isinstance(message, WillChange) or message.revision == 0 or node_of(message.key) != self._me:
            return False
        values = [value for _, value in message.writes if value is not None]
        return all(decode_will(value).state == ARMED for value in values)

    def found(self, part: WillsFound) -> None:
        """A part of a reading has come."""
        if part.reading != self._reading:
            return
        for share in part.shares:
            self._missing.pop(share, None)
        self._found.update({will[0]: will for will in part.wills})

    def news(self, news: WillNews) -> None:
        """Another node has written records of this node."""
        self._leave_out([key for key, _ in news.writes])
        self._answers.append(lambda: self._tell_news(news))

    def _tell_news(self, news: WillNews) -> None:
        for key, data in news.writes:
            record = WillRecord(key, 0, None) if data is None else self._record((key, news.revision, data))
            if self._follower is not None:
                self._follower.news(record, news.revision)

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices
