"""The segment journal on a disk that crashes, tears, reorders, fills up and fails, against a list."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.few import drawn, live
from tests.storage.simfs import SimFiles

from starlingmq.storage.segment.segment_journal import RecordsLost, SegmentJournal

SEGMENT_BYTES = 400


def open_journal(files: SimFiles) -> SegmentJournal:
    return SegmentJournal("journal", files, segment_bytes=SEGMENT_BYTES, open_max=2)


def offsets_in(journal: SegmentJournal) -> set[int]:
    return {offset for one in journal.segments() for offset in range(one.first, one.next)}


def offsets_lost(journal: SegmentJournal) -> set[int]:
    return {offset for one in journal.damage for offset in range(one.offset_first, one.offset_last + 1)}


class Twin:
    """All records ever appended, and what is known about them."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.synced = 0  # records below this survive a power failure
        self.gone: set[int] = set()  # thrown away
        self.lost: set[int] = set()  # by the disk, and reported

    def check(self, journal: SegmentJournal, may_miss: int) -> set[int]:
        """Every record that can be read is the right one. Offsets that are missing, all of them from ``may_miss``."""
        found = dict(journal.read(0, 1_000_000, 1_000_000_000))
        assert list(found) == sorted(found)
        assert journal.read_at(range(journal.next + 2)) == [found.get(offset) for offset in range(journal.next + 2)]
        for offset, record in found.items():
            assert record == self.records[offset]
        missing = set(range(journal.next)) - found.keys() - self.gone - self.lost
        assert all(offset >= may_miss for offset in missing), (missing, may_miss)
        return missing


class Disaster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = SimFiles()
        self.twin = Twin()
        self.faulty = False  # faults may be met now
        self.ever_faulty = False

    @initialize(forgets=st.booleans())
    def begin(self, forgets: bool) -> None:
        self.files.forgets = forgets
        self.journal = open_journal(self.files)

    @rule(sizes=st.lists(st.integers(0, 150), min_size=1, max_size=5), seed=st.integers(0, 255))
    def append(self, sizes: list[int], seed: int) -> None:
        records = [Random(seed + size).randbytes(size) for size in sizes]
        try:
            assert self.journal.append(records) == len(self.twin.records)
        except OSError:
            assert self.faulty
            return
        self.twin.records += records

    @rule()
    def sync(self) -> None:
        try:
            self.journal.sync()
        except RecordsLost as error:
            assert self.files.forgets or self.ever_faulty
            reported = offsets_lost(self.journal)
            told = {offset for first, last in error.ranges for offset in range(first, last + 1)}
            assert told <= reported
            self.twin.lost |= told
        except OSError:
            assert self.faulty
            return
        self.twin.synced = len(self.twin.records)
        self.files.forgot = False
        assert self.journal.synced == self.journal.next

    @rule(back=st.integers(-1, 12))
    def trim(self, back: int) -> None:
        before = max(0, self.journal.next - back)
        kept = set(range(before, self.journal.next)) & offsets_in(self.journal)
        try:
            self.journal.trim(before)
        except OSError:
            assert self.faulty
        assert kept <= offsets_in(self.journal) | offsets_lost(self.journal)
        self.note_gone()

    @rule(which=st.integers(0, 5))
    def drop(self, which: int) -> None:
        segments = self.journal.segments()
        if which >= len(segments):
            return
        dropped = set(range(segments[which].first, segments[which].next))
        end = segments[which + 1].first if which + 1 < len(segments) else self.journal.next
        self.twin.gone |= set(range(segments[which].first, end))  # also those lost before: not expected any more
        kept = offsets_in(self.journal) - dropped
        try:
            self.journal.drop(segments[which].first)
        except OSError:
            assert self.faulty
            # it is done when it is opened again
        else:
            assert not dropped & offsets_in(self.journal)
        assert kept <= offsets_in(self.journal) | offsets_lost(self.journal)
        self.note_gone()

    def note_gone(self) -> None:
        self.twin.gone |= set(range(self.journal.next)) - offsets_in(self.journal) - offsets_lost(self.journal)
        self.twin.gone |= set(range(self.journal.segments()[0].first if self.journal.segments() else 0))
        assert self.journal.next == len(self.twin.records)

    @rule()
    def roll(self) -> None:
        self.journal.roll()

    @rule()
    def read(self) -> None:
        try:
            missing = self.twin.check(self.journal, self.twin.synced if self.files.forgot else self.journal.next)
            assert missing <= offsets_lost(self.journal)
        except OSError:
            assert self.faulty

    @rule(
        call=st.sampled_from(
            ["write", "sync", "sync_directory", "cut", "create", "open", "remove", "rename", "read", "any"]
        ),
        number=st.integers(1, 3),
        times=st.integers(1, 3),
    )
    def fail(self, call: str, number: int, times: int) -> None:
        self.files.fail(call, number, times=times)
        self.faulty = self.ever_faulty = True

    @rule(room=st.integers(0, 200))
    def fill_up(self, room: int) -> None:
        self.files.capacity = self.files.used() + room
        self.faulty = self.ever_faulty = True

    @rule()
    def heal(self) -> None:
        self.files.heal()
        self.faulty = False

    @rule()
    def close_and_open(self) -> None:
        self.journal.close()
        assert not self.files.descriptors
        self.open_again(power=False)

    @rule()
    def process_death(self) -> None:
        self.files.process_death()
        self.open_again(power=False)

    @rule(seed=st.integers(0, 1 << 32))
    def power_failure(self, seed: int) -> None:
        self.files.power_failure(Random(seed))
        self.open_again(power=True)

    def open_again(self, power: bool) -> None:
        try:
            self.journal = open_journal(self.files)
        except OSError:
            assert self.faulty
            self.files.process_death()
            self.heal()
            self.journal = open_journal(self.files)
        self.heal()
        may_miss = self.twin.synced if power or self.files.forgot else len(self.twin.records)
        assert may_miss <= self.journal.next, (may_miss, self.journal.next)
        assert self.journal.next <= len(self.twin.records) + 1
        self.twin.records += [b""] * (self.journal.next - len(self.twin.records))  # skipped, see _begin_anew
        missing = self.twin.check(self.journal, may_miss)
        reported = offsets_lost(self.journal)
        # That the first files are missing only the owner can know, who threw some away.
        assert {offset for offset in missing if offset >= self.journal.first} <= reported, (missing, reported)
        if not self.ever_faulty:  # no false alarm
            assert all(offset >= may_miss or offset in self.twin.lost | self.twin.gone for offset in reported)
        del self.twin.records[self.journal.next :]
        self.twin.lost = {offset for offset in self.twin.lost | missing if offset < self.journal.next}
        self.twin.gone = {offset for offset in self.twin.gone if offset < self.journal.next}
        self.files.forgot = self.files.forgot and not power

    @invariant()
    def few_descriptors_are_open(self) -> None:
        assert len(self.files.descriptors) <= 2 + 9 + 2 + (40 if self.ever_faulty else 0)

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        self.files.heal()
        while True:
            try:
                self.journal.sync()
                break
            except RecordsLost:
                pass
        self.journal.close()
        assert not self.files.descriptors
        self.files.power_failure(Random(0))
        assert open_journal(self.files).next == len(self.twin.records)


@drawn(40, 150)
def test_promised_records_survive_disasters(examples: int) -> None:
    lax = {"report_multiple_bugs": False, "suppress_health_check": list(HealthCheck)}
    live(Disaster, examples, stateful_step_count=40, **lax)
