"""The shares that this node leads: who owns which client id, and who publishes its will, is decided here.

::

    a new table --the book here is whole--> WHOLE --no deputy, or its copy is on the way--> SERVING
         '-------otherwise--> ASKING --a whole book was told, or all have answered--> WHOLE

Laws:

- Only a SERVING share executes requests: claims, changes of wills, reads. The others wait in their order.
- ``Disarm`` is executed after the claims that its node has made before, so it finds what they have registered; the
  deputy is told. It has no answer: if it is lost with its table, its node finds the record when it reads its wills
  again in the next one, and deletes it. The claim, which it makes again there, brings the will no more.
- A request is answered once the deputy has taken everything that the answer depends on. The same holds for news of a
  will that another node has changed. The deputy's own requests are answered at once: it takes the answer after all that
  was sent to it before. For the same reason the deputy answers claims: the answer is sent to it with the key, and it
  passes it on when it has the key, which saves a message on the way of a CONNECT.
- With the next table all requests that were not answered are forgotten: their nodes make them again, and read again
  what is known of their wills.
- ASKING ends with the whole book of the last pair that had one, or with the answers of all nodes in the table. Members
  that are not in the table are unknown then (``owner_book``), and asked once a table lists them.

Pure: messages in, messages out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from enum import Enum
from typing import Final, Protocol

from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import ShareBooks, book_of, copy_of
from starlingmq.cluster.shares.share_messages import (
    Answer,
    Ask,
    Claim,
    Copy,
    Disarm,
    Earlier,
    Hasten,
    KeyChanged,
    Message,
    OwnerAnswer,
    Release,
    Request,
    Served,
    Settled,
    Statement,
    WillAnswer,
    WillChange,
    WillKey,
    WillNews,
    WillRead,
    WillsFound,
    WillsKept,
    WillsOf,
    WillWrite,
    share_asked,
)
from starlingmq.cluster.shares.share_table import SHARES, VERSION_SHIFT, Pair, ShareTable
from starlingmq.cluster.shares.will_book import node_of
from starlingmq.cluster.takeover.owner_store import OwnerKey

COPIES_PER_TURN: Final = 64
WILLS_PER_ANSWER: Final = 256  # or all of one share
ANSWER_BYTES: Final = 128 * 1024  # of wills; after that share, the rest is another answer
SWEEPS_PER_TURN: Final = 16  # shares whose keys are searched for those of earlier incarnations


class Links(Protocol):
    """Sends messages to the nodes of the table; this node included."""

    def send(self, node: int, message: Message) -> int:
        """Returns the number of the message."""

    def taken(self, node: int) -> int:
        """The number of the last message that the node has taken."""

    def is_full(self, node: int) -> bool: ...


class LeadState(Enum):
    ASKING = "asks the nodes what they have"
    WHOLE = "has the whole book, its deputy may not"
    SERVING = "executes requests"


class LedShare:
    share: int
    pair: Pair
    state: LeadState
    book: OwnerBook
    asked: dict[int, None]  # nodes whose statement is missing
    statements: dict[int, Statement]
    readers: dict[int, int]  # nodes that wait for their wills, and the number of their reading
    waiting: list[tuple[int, Request]]  # (node, its message)
    position: int  # number of the last message to the deputy about this share; 0: none in this version

    def __init__(self, share: int, pair: Pair, book: OwnerBook | None, serving: bool) -> None:
        self.share = share
        self.pair = pair
        self.book = OwnerBook(pair.since, pair.before) if book is None else book
        self.state = LeadState.ASKING if book is None else LeadState.SERVING if serving else LeadState.WHOLE
        self.asked = {}
        self.statements = {}
        self.readers = {}
        self.waiting = []
        self.position = 0


class ShareLeader:
    granted: int  # claims answered, or to be answered

    def __init__(self, books: ShareBooks, links: Links) -> None:
        self.granted = 0
        self._books = books
        self._links = links
        self._table: ShareTable | None = None
        self._members: dict[int, None] = {}
        self._incarnations: dict[int, int] = {}  # of each node, when a table last listed it
        self._led: dict[int, LedShare] = {}
        self._to_copy: dict[int, None] = {}
        self._held: dict[int, deque[tuple[int, int, Answer]]] = {}  # deputy -> (number, node, answer)
        self._hastened: dict[int, int] = {}  # deputy -> number of the last ``Hasten`` to it
        self._to_sweep: deque[int] = deque()
        # node -> (number, shares) of each message ``Earlier`` that it has not taken
        self._told: dict[int, deque[tuple[int, list[int]]]] = {}
        self._to_settle = False
        self._uncopied: LedShare | None = None  # the share that ``_settle`` last found uncopied

    def copied(self) -> dict[int, int]:
        """Serving shares whose deputy has everything, and the ``since`` of their pair. To be called before the
        channels of another table begin."""
        return {led.share: led.pair.since for led in self._led.values() if self._is_copied(led)}

    def _is_copied(self, led: LedShare) -> bool:
        return led.state is LeadState.SERVING and self._links.taken(led.pair.deputy) >= led.position

    def set_table(self, table: ShareTable, me: int, copied: dict[int, int]) -> None:
        """``me``: this node; 0: it does not take part. ``copied``: from before."""
        restarted = self._table is None or any(
            self._incarnations.get(node, 1) != incarnation for node, incarnation in table.nodes.items()
        )
        self._incarnations.update(table.nodes)
        self._table = table
        self._led, self._held, self._hastened, self._to_copy = {}, {}, {}, {}
        self._to_settle = me != 0
        self._uncopied = None
        unswept = {*self._to_sweep, *[share for told in self._told.values() for _, shares in told for share in shares]}
        self._to_sweep, self._told = deque(), {}
        asks: dict[int, list[int]] = {}
        for share, pair in enumerate(table.pairs):
            if not me or pair.leader != me:
                continue
            book = self._books.led_before(share, pair)
            led = self._led[share] = LedShare(share, pair, book, copied.get(share) == pair.since)
            if book is None:
                led.asked = dict.fromkeys(table.nodes)
            else:
                self._forget_strangers(book)
                for change in self._books.take_hints(share):
                    book.change_wills(change, table.version)
                led.asked = {node: None for node in book.unknown if node in table.nodes}
                if led.state is LeadState.WHOLE:
                    self._to_copy[share] = None
            for node in led.asked:
                asks.setdefault(node, []).append(share)
            if restarted or pair.since == table.version or share in unswept:
                self._to_sweep.append(share)
        self._books.forget_hints()
        for node, shares in asks.items():
            self._links.send(node, Ask(tuple(shares)))

    def set_members(self, members: Collection[int]) -> None:
        """``members``: the numbers of all registered nodes."""
        self._members = dict.fromkeys(members)
        for led in self._led.values():
            self._forget_strangers(led.book)

    def _forget_strangers(self, book: OwnerBook) -> None:
        if book.unknown:
            book.unknown = {node: None for node in book.unknown if node in self._members}

    def led(self) -> Collection[LedShare]:
        """The shares that this node leads."""
        return self._led.values()

    def state(self, share: int) -> LeadState | None:
        led = self._led.get(share)
        return None if led is None else led.state

    def is_pending(self) -> bool:
        """Whether there is work that waits for nothing."""
        if any(not self._links.is_full(self._led[share].pair.deputy) for share in self._to_copy):
            return True
        return any(self._led[share].state is LeadState.SERVING for share in self._to_sweep)

    # Messages

    def take(self, node: int, message: Request) -> None:
        led = self._led.get(share_asked(message))
        if led is None:
            return
        if led.state is LeadState.SERVING:
            self._execute(led, node, message)
            return
        led.waiting.append((node, message))
        if led.state is LeadState.WHOLE and len(led.waiting) == 1:
            self._to_copy = {led.share: None, **self._to_copy}

    def read_wills(self, node: int, asked: WillsOf) -> None:
        """Tells the node of its wills in these shares, of those that do not serve yet once they do."""
        led = [self._led[share] for share in asked.shares if share in self._led]
        for each in led:
            each.readers[node] = asked.reading
        self._tell_readers([each for each in led if each.state is LeadState.SERVING])

    def _tell_readers(self, led: list[LedShare]) -> None:
        read: dict[tuple[int, int, int], list[LedShare]] = {}  # (node, its reading, deputy) -> shares
        for each in led:
            for node, reading in each.readers.items():
                read.setdefault((node, reading, each.pair.deputy), []).append(each)
            each.readers = {}
        for (node, reading, _), shares in read.items():
            self._tell_wills(node, reading, shares)

    def _tell_wills(self, node: int, reading: int, shares: list[LedShare]) -> None:
        """``shares`` have one deputy."""
        told: list[LedShare] = []
        wills: list[WillKey] = []
        size = 0
        for led in shares:
            told.append(led)
            found = led.book.wills.of_node(node)
            wills += found
            size += sum([len(value) for _, _, value in found])
            if len(wills) >= WILLS_PER_ANSWER or size >= ANSWER_BYTES or led is shares[-1]:
                last = max(told, key=_position)
                self._answer(last, node, WillsFound(reading, tuple([each.share for each in told]), tuple(wills)))
                told, wills, size = [], [], 0

    def _execute(self, led: LedShare, node: int, message: Request) -> None:
        table, book = self._table, led.book
        assert table is not None
        if isinstance(message, Claim):
            self.granted += 1
            key, found = book.claim(node, message, table.version)
            self._grant(led, message, key, found, book.arm(key, message))
        elif isinstance(message, Release):
            later = book.release(message.client_id, message.node, message.epoch)
            if later is None:
                self._keep(led, KeyChanged(led.share, message.client_id, OwnerKey(message.node, 0, 0)))
            answer = OwnerAnswer(message.ticket, book.counter, () if later is None else (later,))
            self._answer(led, node, answer, is_awaited=False)  # by no client
        elif isinstance(message, WillChange):
            self._change_wills(led, node, message, table)
        elif isinstance(message, Disarm):
            change = book.disarm(node, message)
            revision = 0 if change is None else book.change_wills(change, table.version)
            if change is not None and revision and led.pair.deputy:
                led.position = self._links.send(led.pair.deputy, WillsKept(led.share, revision, change.writes))
        elif isinstance(message, WillRead):
            wills = book.wills.of_client(message.client_id)
            self._answer(led, node, WillAnswer(message.ticket, False, book.counter, wills))
        else:
            newest = max(book.counter, table.version << VERSION_SHIFT)
            found = (*book.read(message.client_id), book.missing_below())
            self._answer(led, node, OwnerAnswer(message.ticket, newest, found))

    def _grant(self, led: LedShare, claim: Claim, key: OwnerKey, found: tuple[OwnerKey, ...], will: bytes) -> None:
        """The deputy answers, if there is one. ``will``: the record that is written with the key."""
        self._keep(led, KeyChanged(led.share, claim.client_id, key, claim.ticket, found, will))
        if not led.pair.deputy:
            wills = led.book.wills.besides(claim.client_id, key.node)
            self._links.send(key.node, OwnerAnswer(claim.ticket, key.epoch, found, will != b"", wills))

    def _change_wills(self, led: LedShare, node: int, change: WillChange, table: ShareTable) -> None:
        book = led.book
        settled = book.settled_elsewhere(change)
        change = settled or change
        revision = book.change_wills(change, table.version)
        if revision and led.pair.deputy:
            led.position = self._links.send(led.pair.deputy, WillsKept(led.share, revision, change.writes))
        if not revision or settled:
            wills = book.wills.of_client(change.client_id)
            self._answer(led, node, WillAnswer(change.ticket, False, book.counter, wills))
            return
        self._answer(led, node, WillAnswer(change.ticket, True, revision, ()))
        news: dict[int, list[WillWrite]] = {}
        for write in change.writes:
            news.setdefault(node_of(write[0]), []).append(write)
        for other, writes in news.items():
            if other != node and other in table.nodes:
                self._answer(led, other, WillNews(revision, tuple(writes)))

    def _keep(self, led: LedShare, change: KeyChanged) -> None:
        if led.pair.deputy:
            led.position = self._links.send(led.pair.deputy, change)

    def _answer(self, led: LedShare, node: int, answer: Answer, is_awaited: bool = True) -> None:
        if led.pair.deputy not in (0, node):
            self._held.setdefault(led.pair.deputy, deque()).append((led.position, node, answer))
            if is_awaited:
                self._hasten(led)
        else:
            self._links.send(node, answer)

    def _hasten(self, led: LedShare) -> None:
        deputy = led.pair.deputy
        if self._links.taken(deputy) < led.position and self._hastened.get(deputy, 0) < led.position:
            self._hastened[deputy] = self._links.send(deputy, Hasten())

    def stated(self, node: int, statement: Statement) -> None:
        led = self._led.get(statement.share)
        if led is None or node not in led.asked:
            return
        del led.asked[node]
        if led.state is LeadState.ASKING:
            led.statements[node] = statement
            self._collect(led)
        elif node in led.book.unknown and self._table is not None:
            led.book.replace_node(node, self._table.nodes[node], statement.own, self._table.version)
            led.book.state_wills(node, statement.wills)
            for key, revision, value in led.book.wills.of_node(node):  # it may have asked for them before
                self._answer(led, node, WillNews(revision, ((key, value),)), is_awaited=False)
            led.book.served.add(_served(node, statement))
            led.book.forget_served()
            led.state = LeadState.WHOLE
            self._books.put(led.share, led.book)
            self._to_copy[led.share] = None

    def _collect(self, led: LedShare) -> None:
        """Takes the whole book of the last pair that had one; or, once all have answered, what they have."""
        table = self._table
        assert table is not None
        source = _source(led)
        if source is None and led.asked:
            return
        book = OwnerBook(led.pair.since, led.pair.before, True)
        for copy in [source] if source else [each.copy for each in led.statements.values() if each.copy]:
            told = book_of(copy)
            book.add_older(told.entries())
            book.wills.add(copy.wills)
            book.served.add(copy.served)
            book.counter = max(book.counter, told.counter)
        book.collected = table.version if source is None else source.collected
        unknown = [node for node in self._members if node not in table.nodes] if source is None else source.unknown
        book.unknown = dict.fromkeys(unknown)
        self._forget_strangers(book)
        for node, statement in led.statements.items():
            if source is None or node in book.unknown:  # else the book knows better: news may be on their way
                book.state_wills(node, statement.wills)
                book.served.add(_served(node, statement))
            book.replace_node(node, table.nodes[node], statement.own, table.version)
        book.forget_served()
        led.book, led.state, led.statements = book, LeadState.WHOLE, {}
        led.asked = {node: None for node in led.asked if node in book.unknown}
        self._books.put(led.share, book)
        self._to_copy[led.share] = None

    # A turn

    def turn(self) -> None:
        self._copy()
        for deputy, held in self._held.items():
            taken = self._links.taken(deputy)
            while held and held[0][0] <= taken:
                _, node, answer = held.popleft()
                self._links.send(node, answer)
        self._sweep()
        self._settle()

    def _copy(self) -> None:
        """Gives whole books to deputies; their shares serve then."""
        if not self._to_copy:
            return
        count = 0
        serving: list[LedShare] = []
        for share in list(self._to_copy):
            led = self._led[share]
            if led.pair.deputy:
                if self._links.is_full(led.pair.deputy):
                    continue
                led.position = self._links.send(led.pair.deputy, copy_of(share, led.book))
                count += 1
            del self._to_copy[share]
            led.state = LeadState.SERVING
            serving.append(led)
            if count >= COPIES_PER_TURN:
                break
        self._tell_readers(serving)
        for led in serving:
            waiting, led.waiting = led.waiting, []
            for node, message in waiting:
                self._execute(led, node, message)

    def _sweep(self) -> None:
        """Tells nodes that have restarted which keys their earlier incarnations have written."""
        if not (self._told or self._to_sweep):
            return
        for node, told in list(self._told.items()):
            while told and told[0][0] <= self._links.taken(node):
                told.popleft()
            if not told:
                del self._told[node]
        found: dict[int, list[tuple[str, int]]] = {}
        shares: dict[int, dict[int, None]] = {}
        for _ in range(min(len(self._to_sweep), SWEEPS_PER_TURN)):
            led = self._led[self._to_sweep.popleft()]
            if led.state is not LeadState.SERVING:
                self._to_sweep.append(led.share)
                continue
            assert self._table is not None
            for client_id, key in led.book.earlier(self._table.nodes):
                found.setdefault(key.node, []).append((client_id, key.epoch))
                shares.setdefault(key.node, {})[led.share] = None
        for node, keys in found.items():
            number = self._links.send(node, Earlier(tuple(keys)))
            self._told.setdefault(node, deque()).append((number, list(shares[node])))

    def _settle(self) -> None:
        """Once, when all shares here serve and their deputies have everything: older books can go."""
        if not self._to_settle or self._table is None:
            return
        if self._uncopied is not None and not self._is_copied(self._uncopied):
            return
        for led in self._led.values():
            if not self._is_copied(led):
                self._uncopied = led
                return
        self._to_settle = False
        self._uncopied = None
        if self._led:
            for node in self._table.nodes:
                self._links.send(node, Settled(tuple(self._led)))


def _position(led: LedShare) -> int:
    return led.position


def _served(node: int, statement: Statement) -> list[Served]:
    return [(client_id, node, epoch) for client_id, epoch in statement.served]


def _source(led: LedShare) -> Copy | None:
    """The whole book of the last pair before this one that had one, as far as that was told."""
    void = {since: before for statement in led.statements.values() for since, before in statement.void}
    wanted = led.pair.before
    for _ in range(SHARES):
        for statement in led.statements.values():
            if wanted and statement.copy is not None and statement.copy.since == wanted:
                return statement.copy
        if wanted not in void:
            return None
        wanted = void[wanted]
    return None
