"""A broker on a store that dies between any two steps, and comes back with what the store held by then.

A step is anything that can be seen afterwards: an append, a batch for the key-value store, a sync, a segment given
back, the frames of one connection. ``fuse`` counts them down; at none left everything stops where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.harness import FakeClient
from tests.storage.world import SteadyStore, StoredWorld

from starlingmq.core.client import Client
from starlingmq.core.ready import Ready
from starlingmq.storage.keys import META_AS_OF
from starlingmq.storage.kv import Batch
from starlingmq.storage.memory import MemoryKv
from starlingmq.storage.recovery import Recovered, restore
from starlingmq.wire.mqtt import Connack, Connect

NEVER = 1 << 60


class Crash(BaseException):
    """The machine or the process stops here. Nothing may catch it."""


class Span:
    def __init__(self, first: int, next: int) -> None:
        self.first = first
        self.next = next


class CrashJournal:
    """A journal in segments of a few records each."""

    def __init__(self, step: Callable[[], None], span: int) -> None:
        self.step = step
        self.span = span  # records a segment; 0: it gives back by ``trim`` alone
        self.records: dict[int, bytes] = {}
        self.spans = [Span(0, 0)]
        self.next = 0
        self.trimmed = 0
        self.ends = [0]  # of the appends since the last sync: all of one is there or none

    @property
    def first(self) -> int:
        return min(self.records, default=self.next)

    @property
    def size(self) -> int:
        return sum(map(len, self.records.values()))

    def append(self, records: Sequence[bytes]) -> int:
        self.step()
        offset = self.next
        if self.span and self.next - self.spans[-1].first >= self.span:
            self.spans.append(Span(self.next, self.next))
        for record in records:
            self.records[self.next] = record
            self.next += 1
        self.spans[-1].next = self.next
        self.ends.append(self.next)
        self.step()
        return offset

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        found = [(at, self.records[at]) for at in range(offset, self.next) if at in self.records]
        return found[:max_records]

    def read_at(self, offsets: Sequence[int]) -> list[bytes | None]:
        return [self.records.get(offset) for offset in offsets]

    def segments(self) -> Sequence[Span]:
        return [Span(span.first, span.next) for span in self.spans] if self.span else []

    def drop(self, first: int) -> None:
        self.step()
        for span in self.spans:
            if span.first == first and span.next > first:
                self._forget(span.first, span.next)
                if span is self.spans[-1]:
                    self.spans.append(Span(self.next, self.next))
                self.spans.remove(span)
                break

    def trim(self, before: int) -> None:
        self.step()
        if not self.span:
            self._forget(self.trimmed, before)
            self.trimmed = max(self.trimmed, before)
            return
        while len(self.spans) > 1 and self.spans[0].next <= before:
            span = self.spans.pop(0)
            self._forget(span.first, span.next)

    def _forget(self, first: int, end: int) -> None:
        for offset in range(first, end):
            self.records.pop(offset, None)

    def sync(self) -> None:
        self.step()
        self.ends = [self.next]

    def close(self) -> None:
        pass

    def power_failure(self, random: Random) -> None:
        """What was not synced may be there or not, from its beginning on."""
        end = random.choice(self.ends)
        for offset in range(end, self.next):
            self.records.pop(offset, None)
        self.next = end
        self.ends = [end]
        self.spans = [span for span in self.spans if span.first <= end]
        for span in self.spans:
            span.next = min(span.next, end)
        if not self.spans:
            self.spans = [Span(end, end)]

    def go_on_from(self, offset: int) -> None:
        """The owner has seen offsets up to this one given."""
        if offset > self.next:
            self.next = offset
            self.ends = [offset]
            self.spans.append(Span(offset, offset))


class CrashKv(MemoryKv):
    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__()
        self.step = step
        self.unsynced: list[Batch] = []
        self.solid = MemoryKv()

    def write(self, batch: Batch) -> None:
        self.step()
        super().write(batch)
        self.unsynced.append(batch)
        self.step()

    def sync(self) -> None:
        self.step()
        for batch in self.unsynced:
            self.solid.write(batch)
        self.unsynced.clear()
        self.step()

    def power_failure(self, random: Random) -> None:
        for batch in self.unsynced[: random.randint(0, len(self.unsynced))]:
            self.solid.write(batch)
        self.unsynced.clear()
        self._values = dict(self.solid._values)
        self._keys = list(self.solid._keys)


class Ticket:
    def __init__(self, end: int) -> None:
        self.end = end
        self.frames: list[tuple[Client, bytes]] = []


class CrashWorld(StoredWorld):
    """``power``: what waits for storage is sent after a sync that comes some turns later, and a crash takes everything
    that was not synced. Otherwise a crash takes the process alone."""

    def __init__(self, random: Random, *, power: bool, span: int, piece: int, **settings: Any) -> None:
        self.random = random
        self.power = power
        self.piece = piece
        self.fuse = NEVER
        self.crashes = 0
        self.gone: dict[str, int] = {}  # dropped, by reason, before the crashes
        self.lost = 0  # references that recovery found to point nowhere
        self.tickets: list[Ticket] = []
        super().__init__(CrashKv(self.step), CrashJournal(self.step, span), **settings)

    def step(self) -> None:
        self.fuse -= 1
        if self.fuse < 0:
            raise Crash

    def _open_store(self) -> None:
        journal, kv = self.journal, self.kv
        assert isinstance(journal, CrashJournal) and isinstance(kv, CrashKv)
        journal.go_on_from(int.from_bytes(kv.get(META_AS_OF) or b"\0", "big"))
        durability: Any = "process"  # the waiting is ours; what the store syncs of itself is not
        self.store = SteadyStore(kv, journal, durability, lambda: self.now, self.checkpoint_bytes)
        self.store.careful = self.power
        self.store.piece = self.piece
        self.state.ctx.recording = True
        self.store.attach(self.state, lambda: None)
        self.recovered = Recovered()
        self.recovered = restore(self.state, kv, journal)
        self.store.replayed(self.recovered.changes, self.recovered.changed)
        self.store.rewrite(self.recovered.ahead)
        self.lost += self.recovered.lost

    def crash(self) -> None:
        """The end, and a new beginning; another crash may come in it."""
        journal, kv = self.journal, self.kv
        assert isinstance(journal, CrashJournal) and isinstance(kv, CrashKv)
        self.crashes += 1
        for reason, count in self.state.ctx.counters.dropped.items():
            self.gone[reason] = self.gone.get(reason, 0) + count
        if self.power:
            kv.power_failure(self.random)
            journal.power_failure(self.random)
        self.tickets.clear()
        self.fuse = NEVER
        self.restart()

    def all_dropped(self) -> dict[str, int]:
        whole = dict(self.gone)
        for reason, count in self.state.ctx.counters.dropped.items():
            whole[reason] = whole.get(reason, 0) + count
        return whole

    # The two lanes

    def carry_out(self, ready: Ready) -> None:
        ticket = self._commit(ready)
        for client in ready.dirty:
            client.dirty = False
            if client.stored_from >= 0:
                if ticket is not None:
                    held = b"".join(client.frames[client.stored_from :])
                    del client.frames[client.stored_from :]
                    client.waiting += 1
                    client.unstored += len(held)
                    ticket.frames.append((client, held))
                client.stored_from = -1
            self._put(client, b"".join(client.frames))
            client.frames.clear()
            self._sent(client)
        for client in ready.pause:
            fake = self._by_client.get(client)
            if fake is not None:
                fake.reading = client.halted == 0
                if fake.reading:
                    fake.read_again()
        self.state.stored(ready)
        for session in ready.reads:
            self.state.loaded(session, self.store.load(self.state.wanted(session)), self.now)
        self.store.maintain()
        if self.tickets and self.random.random() < 0.5:
            self.sync()

    def _commit(self, ready: Ready) -> Ticket | None:
        if ready.writes:
            assert self.store.commit(ready.writes) is None
        if not self.power or (not ready.writes and not self.tickets):
            return None
        ticket = Ticket(self.journal.next)
        self.tickets.append(ticket)
        return ticket

    def _put(self, client: Client, data: bytes) -> None:
        fake = self._by_client[client]
        if data and not fake.closed:
            self.step()
            fake.output += data

    def _sent(self, client: Client) -> None:
        fake = self._by_client[client]
        if not client.closing:
            self.state.sent(client)
        elif client.waiting == 0 and not fake.closed:
            fake.closed = True
            self.state.closed(client, self.now)

    def sync(self) -> None:
        """A sync comes back: what waited for it is sent."""
        self.journal.sync()
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            for client, data in ticket.frames:
                client.waiting -= 1
                client.unstored -= len(data)
                self._put(client, data)
                self._sent(client)

    def settle(self) -> None:
        """Until nothing waits any more."""
        self.run()
        while self.tickets:
            self.sync()
            self.run()

    def connect_and_settle(self, client_id: str) -> FakeClient:
        """A connection that has read its CONNACK."""
        fake = self.open(5, client_id)
        fake.send(Connect(5, client_id))
        self.settle()
        fake.expect(Connack)
        return fake
