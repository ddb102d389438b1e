"""The books that this node keeps: of shares that it leads, or whose deputy it is, and older ones that a new leader may
still ask for.

Laws:

- A book is ``whole`` in a pair (``since``) if this node led the share and answered, or has the leader's copy and each
  change since. The leader answers a claim only after the deputy has taken the change. So a whole book of the last pair
  that had one knows every answered claim.
- A pair that this node was part of, and in which its book never became whole, has answered nothing: it is ``void``, and
  the pair before it counts.
- A book of an earlier pair is kept until the present pair has settled.
"""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.shares.held_keys import HeldShare
from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_messages import Copy, KeyChanged, Statement, WillChange, WillsKept
from starlingmq.cluster.shares.share_table import NO_TABLE, Pair, ShareTable, share_of
from starlingmq.cluster.shares.will_book import node_of
from starlingmq.cluster.wills.will_records import will_key

HINTS_MAX: Final = 256  # changes of one share that its leader has not answered; of more, the oldest are forgotten
VOID_MAX: Final = 8  # pairs of one share; with more, all nodes are asked


class ShareBooks:
    books: dict[int, OwnerBook]  # by share
    changes: int  # tables, and whole books of shares that this node leads

    def __init__(self) -> None:
        self.books = {}
        self.changes = 0
        self._void: dict[int, list[tuple[int, int]]] = {}
        self._hints: dict[int, dict[bytes, WillChange]] = {}  # share -> key of a will -> the change that is asked for
        self._table = NO_TABLE
        self._me = 0

    def set_table(self, table: ShareTable, me: int) -> None:
        """``me``: this node; 0: it does not take part."""
        self.changes += 1
        for share, (before, now) in enumerate(zip(self._table.pairs, table.pairs, strict=True)):
            if self._me and self._me in before[:2] and now.since != before.since:
                book = self.books.get(share)
                if book is None or not book.whole or book.since != before.since:
                    self._void[share] = [*self._void.get(share, ()), (before.since, before.before)][-VOID_MAX:]
        self._table, self._me = table, me

    def led_before(self, share: int, pair: Pair) -> OwnerBook | None:
        """The book of a share that this node leads now, if it need not be collected."""
        book = self.books.get(share)
        if book is None or not book.whole or book.since not in (pair.since, pair.before):
            return None
        book.since, book.before = pair.since, pair.before
        return book

    def has(self, share: int, pair: Pair) -> bool:
        """Whether the book here is whole in this pair."""
        book = self.books.get(share)
        return book is not None and book.whole and book.since == pair.since

    def led(self) -> list[int]:
        """The shares that this node leads, and has whole books of."""
        pairs = enumerate(self._table.pairs) if self._me else ()
        return [share for share, pair in pairs if pair.leader == self._me and self.has(share, pair)]

    def put(self, share: int, book: OwnerBook) -> None:
        if self._me and self._table.pairs[share].leader == self._me:
            self.changes += 1
        self.books[share] = book
        self._void.pop(share, None)

    def copied(self, source: int, copy: Copy) -> None:
        if self._is_deputy(source, copy.share, copy.since):
            self.put(copy.share, book_of(copy))

    def keep(self, source: int, change: KeyChanged) -> bool:
        """Returns whether this node is the deputy, and has the key now."""
        book = self.books.get(change.share)
        if book is None or not self._is_deputy(source, change.share, book.since):
            return False
        if change.key.epoch:
            book.put(change.client_id, change.key)
            if change.will:
                book.put_wills(change.key.epoch, ((will_key(change.key.node, change.client_id), change.will),))
        else:
            book.drop(change.client_id, change.key.node)
        return True

    def keep_wills(self, source: int, change: WillsKept) -> None:
        book = self.books.get(change.share)
        if book is not None and self._is_deputy(source, change.share, book.since):
            book.put_wills(change.revision, change.writes)
            for key, _ in change.writes:
                self._hints.get(change.share, {}).pop(key, None)

    def hinted(self, source: int, change: WillChange) -> None:
        """A node has asked the leader of a share whose deputy this node is for this change, and has no answer yet."""
        share = share_of(change.client_id)
        if self._table.pairs[share].deputy == self._me and node_of(change.key) == source:
            hints = self._hints.setdefault(share, {})
            hints[change.key] = change
            if len(hints) > HINTS_MAX:
                del hints[next(iter(hints))]

    def take_hints(self, share: int) -> list[WillChange]:
        return list(self._hints.pop(share, {}).values())

    def forget_hints(self) -> None:
        """The table is another one: nodes that live ask again."""
        self._hints = {}

    def _is_deputy(self, source: int, share: int, since: int) -> bool:
        pair = self._table.pairs[share] if share < len(self._table.pairs) else None
        return pair is not None and (pair.leader, pair.deputy, pair.since) == (source, self._me, since)

    def settled(self, source: int, shares: tuple[int, ...]) -> None:
        pairs = self._table.pairs
        for share in shares:
            if share < len(pairs) and pairs[share].leader == source:
                self._void.pop(share, None)
                if self._me not in pairs[share][:2]:
                    self.books.pop(share, None)

    def statement(self, share: int, held: HeldShare) -> Statement:
        book = self.books.get(share)
        copy = None if book is None or not book.whole else copy_of(share, book)
        void = tuple(self._void.get(share, ()))
        return Statement(share, tuple(held.keys), copy, void, tuple(held.wills), tuple(held.served))


def copy_of(share: int, book: OwnerBook) -> Copy:
    entries = tuple(book.entries())
    wills = tuple(book.wills.all())
    unknown, served = tuple(book.unknown), tuple(book.served.all())
    return Copy(share, book.since, book.before, book.counter, book.collected, unknown, entries, wills, served)


def book_of(copy: Copy) -> OwnerBook:
    book = OwnerBook(copy.since, copy.before, True)
    for client_id, key in copy.entries:
        book.put(client_id, key)
    book.wills.add(copy.wills)
    book.served.add(copy.served)
    book.counter = max(book.counter, copy.counter)
    book.collected = copy.collected
    book.unknown = dict.fromkeys(copy.unknown)
    return book
