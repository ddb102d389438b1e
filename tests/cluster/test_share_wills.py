"""Wills: the leaders of shares have their records, so that they need no etcd."""

from __future__ import annotations

import pytest
from tests.cluster.owner_store import will_keys
from tests.cluster.test_shares import ShareFleet, share_fleet
from tests.cluster.test_wills import kill, leave_will, published, watch
from tests.cluster.will_records import WillRecords
from tests.harness import FakeClient

from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import HINTS_MAX, ShareBooks
from starlingmq.cluster.shares.share_messages import (
    Message,
    Statement,
    WillAnswer,
    WillChange,
    WillHint,
    WillNews,
    WillRead,
    WillsFound,
    WillsKept,
    WillsOf,
)
from starlingmq.cluster.shares.share_table import NO_TABLE, SHARES, Reassignment, share_of
from starlingmq.cluster.shares.will_book import WillBook
from starlingmq.cluster.shares.will_requests import HINTS_PER_LOOK, WillRequests
from starlingmq.cluster.takeover.transfer_frames import UNREPORTED
from starlingmq.cluster.wills.will_records import (
    ARMED,
    FIRING,
    SETTLED,
    RegisteredWill,
    client_of_key,
    decode_will,
    encode_will,
)
from starlingmq.cluster.wills.will_settlement import AGAIN_SECONDS, WillSettlements
from starlingmq.cluster.wills.will_store import PAGE, WillChanged, WillRecord, WillUpdate
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

AWAY_SECONDS = 20.0


def kept(fleet: ShareFleet) -> list[bytes]:
    return will_keys([node.cluster for node in fleet.nodes])


def led_and_deputized(fleet: ShareFleet, leader: int, deputy: int) -> str:
    """A client id whose share these nodes have."""
    shares = fleet[0].cluster.shares
    assert shares is not None
    numbers = fleet[leader].cluster.number, fleet[deputy].cluster.number
    return next(f"c{n}" for n in range(10000) if shares.table.of(f"c{n}")[:2] == numbers)


# Fleets


def test_a_healthy_cluster_writes_nothing_to_etcd_for_clients_with_wills() -> None:
    fleet = share_fleet(3)
    watcher = watch(fleet, 0)
    before = fleet.etcd.store.revision
    client = leave_will(fleet, 0, "moves", expiry=600)
    assert kept(fleet) == [b"1/moves"]
    client.drop()
    assert published(watcher) == [b"will/moves"]
    client = leave_will(fleet, 1, "moves", delay=5, expiry=600)
    client.drop()
    fleet.advance(0.5, 0.05)
    client = leave_will(fleet, 2, "moves", expiry=600)
    assert kept(fleet) == [b"3/moves"]
    client.send(Disconnect())
    assert published(watcher, 10.0) == []
    assert kept(fleet) == []
    assert fleet.etcd.store.revision == before


def test_a_will_comes_before_the_next_connack_while_etcd_is_away() -> None:
    fleet = share_fleet(3)
    watcher = watch(fleet, 0)
    leave_will(fleet, 0, "c", expiry=3600)
    fleet.etcd.lose_leader(fleet.now, AWAY_SECONDS)
    second = fleet[1].open()  # the node of the will does not know that its connection is gone
    second.send(Connect(5, "c", False, 0, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(1.0, 0.02)
    assert second.expect(Connack).session_present
    assert published(watcher) == [b"will/c"]
    assert kept(fleet) == []


@pytest.mark.parametrize("delay", [0, 3])
def test_the_wills_of_a_killed_node_are_published_by_another_one(delay: int) -> None:
    fleet = share_fleet(3)
    watcher = watch(fleet, 2)
    leave_will(fleet, 0, "c", delay=delay, expiry=3600)
    kill(fleet, 0)
    assert published(watcher, 30.0) == [b"will/c"]


def test_wills_of_a_killed_node_are_published_while_etcd_is_away_if_their_share_has_its_leader_and_deputy() -> None:
    fleet = share_fleet(4)
    watcher = watch(fleet, 2)
    name, waits = led_and_deputized(fleet, 0, 1), led_and_deputized(fleet, 3, 1)
    leave_will(fleet, 3, name, expiry=3600)
    leave_will(fleet, 3, waits, expiry=3600)
    fleet.etcd.lose_leader(fleet.now, AWAY_SECONDS)
    kill(fleet, 3)
    assert published(watcher, AWAY_SECONDS / 2) == [b"will/" + name.encode()]
    assert published(watcher, 2 * AWAY_SECONDS) == [b"will/" + waits.encode()]


def test_the_record_of_a_will_survives_the_leader_of_its_share() -> None:
    fleet = share_fleet(3)
    watcher = watch(fleet, 2)
    name = led_and_deputized(fleet, 0, 1)
    client = leave_will(fleet, 2, name, expiry=3600)
    assert kept(fleet) == [b"3/" + name.encode()]
    kill(fleet, 0)
    fleet.advance(20.0, 0.1)
    assert kept(fleet) == [b"3/" + name.encode()]
    client.drop()
    assert published(watcher) == [b"will/" + name.encode()]
    assert kept(fleet) == []


def test_a_node_states_its_wills_when_leader_and_deputy_are_lost() -> None:
    fleet = share_fleet(5)
    watcher = watch(fleet, 2)
    name = led_and_deputized(fleet, 0, 1)
    client = leave_will(fleet, 2, name, expiry=3600)
    kill(fleet, 0)
    kill(fleet, 0)
    fleet.advance(40.0, 0.1)
    assert kept(fleet) == [b"3/" + name.encode()]
    client.drop()
    assert published(watcher, 1.0) == [b"will/" + name.encode()]


def test_a_node_hears_of_a_record_that_it_has_stated_after_it_had_asked_for_its_records() -> None:
    """The leader knew none when it answered. Otherwise no node would delete the record of a will that is gone."""
    fleet = share_fleet(3)
    leader, name = fleet[0].cluster.shares, fleet.led_by(0)
    number, share = fleet[1].cluster.number, share_of(name)
    led = next(led for led in leader.leader.led() if led.share == share)
    led.book.unknown, led.asked = {number: None}, {number: None}
    will = encode_will(RegisteredWill(ARMED, 7, epoch=1))
    leader.leader.stated(number, Statement(share, (), None, (), ((b"%d/%b" % (number, name.encode()), 5, will),)))
    assert len(kept(fleet)) == 1
    fleet[0].cluster._has_events = True
    fleet.advance(5.0, 0.05)
    assert kept(fleet) == []


def test_a_will_that_disconnect_has_cancelled_is_not_taken_while_its_node_reads_its_records_again() -> None:
    fleet = share_fleet(4)
    watcher = watch(fleet, 0)
    name = led_and_deputized(fleet, 0, 2)
    client = leave_will(fleet, 1, name, expiry=3600)
    apart = fleet[1].cluster.number, fleet[3].cluster.number
    fleet.parted |= {apart, apart[::-1]}
    fleet.restart(2)  # so there is a new table, and each leader is asked for the records of the second node
    fleet.advance(5.0, 0.05)
    wills = fleet[1].cluster.wills
    assert not wills.registration.is_complete(), "the fourth node has answered"
    client.send(Disconnect())
    second = fleet[0].open()
    second.send(Connect(5, name, False, 0, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(5.0, 0.05)
    assert second.expect(Connack).session_present
    assert published(watcher) == []
    fleet.speak()
    fleet.advance(5.0, 0.05)
    assert wills.registration.is_complete()
    assert kept(fleet) == []


def test_a_will_is_cancelled_while_its_share_waits_for_etcd_even_if_its_node_dies_then() -> None:
    """The leader of the share is gone, and etcd is away: the node tells the deputy, which leads the share later."""
    fleet = share_fleet(5)
    watcher = watch(fleet, 1)
    shares = fleet[0].cluster.shares
    assert shares is not None
    name, other = [name for name in (f"c{n}" for n in range(100000)) if shares.table.of(name)[:2] == (1, 2)][:2]
    client, _ = leave_will(fleet, 4, name, expiry=3600), leave_will(fleet, 4, other, expiry=3600)
    fleet.etcd.lose_leader(fleet.now, AWAY_SECONDS)
    kill(fleet, 0)
    fleet.advance(3.0, 0.05)
    client.send(Disconnect())
    fleet.advance(1.0, 0.05)
    kill(fleet, 3)
    fleet.advance(AWAY_SECONDS, 0.1)
    assert published(watcher, 30.0) == [b"will/" + other.encode()]


def come(fleet: ShareFleet, place: int) -> FakeClient:
    client = fleet[place].open()
    will = Will(b"will/c", b"gone", 1, True, {})
    client.send(Connect(5, "c", False, 0, will=will, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(0.5, 0.02)
    return client


def test_a_client_waits_for_its_will_that_yet_another_node_has_taken_and_not_published() -> None:
    """A retained will is published only once etcd has what an earlier one of the same name retains."""
    fleet = share_fleet(3)
    come(fleet, 0)
    fleet.etcd.lose_leader(fleet.now, AWAY_SECONDS)
    second = come(fleet, 1)  # this node takes the first will and publishes it
    assert second.expect(Connack).reason == 0
    second.send(Disconnect())
    assert come(fleet, 0).expect(Connack).reason == 0
    fourth = come(fleet, 1)  # this node takes another one, and has to wait
    assert not fourth.output
    fourth.drop()
    fifth = come(fleet, 0)
    assert not fifth.output, "the client would publish before its will"
    watcher = watch(fleet, 2)
    fleet.advance(AWAY_SECONDS, 0.05)
    assert published(watcher) == [b"will/c"]
    assert fifth.expect(Connack).reason == 0


# Settlements


def test_an_earlier_settlement_does_not_count_for_a_will_that_its_node_has_not_written_yet() -> None:
    """The node was granted the client id again, and the record still has the settlement of an earlier will."""
    for will in (8, UNREPORTED):
        store, found = settlements()
        assert not found.settle("c", 2, 5, None, False, will, 0.0)
        store.answer()
        assert not found.settle("c", 2, 5, None, False, will, 0.0), "will 8 would be published after the CONNACK"
        found.turn(1.0 + 2 * AGAIN_SECONDS)
        assert store.answer(), "it looks again"
    store, done = settlements()
    assert not done.settle("c", 2, 5, None, False, 7, 0.0)
    store.answer()
    assert done.settle("c", 2, 5, None, False, 7, 0.0), "that will is settled"


def settlements() -> tuple[WillRecords, WillSettlements]:
    store = WillRecords()
    store.put(b"2/c", RegisteredWill(SETTLED, 7, epoch=3))
    found = WillSettlements(
        store, 3.0, lambda node: True, lambda name: False, lambda name, will: False, lambda changed: None
    )
    found.enter(1)
    return store, found


# The book


def change(client_id: str, key: bytes, revision: int, *writes: tuple[bytes, bytes | None]) -> WillChange:
    return WillChange(1, client_id, key, revision, writes)


def test_a_key_is_written_only_if_it_has_the_revision_that_the_writer_has_seen() -> None:
    book = OwnerBook(1, 0)
    first = book.change_wills(change("c", b"2/c", 0, (b"2/c", b"will")), 1)
    assert first and book.change_wills(change("c", b"2/c", 0, (b"2/c", b"other")), 1) == 0
    second = book.change_wills(change("c", b"2/c", first, (b"2/c", None)), 1)
    assert second > first and list(book.wills.all()) == []


def test_a_node_that_states_its_wills_loses_no_settlement_that_it_has_not_heard_of() -> None:
    book = WillBook()
    book.write(5, [(b"2/old", b"gone since")])
    book.write(20, [(b"2/c", b"settled"), (b"3/c", b"of another node")])
    book.replace_node(2, ((b"2/c", 7, b"registered"), (b"2/d", 8, b"registered")), 10)
    assert sorted(book.all()) == [
        (b"2/c", 20, b"settled"),
        (b"2/d", 8, b"registered"),
        (b"3/c", 20, b"of another node"),
    ]


def test_a_key_of_a_taken_will_is_in_the_share_of_its_client() -> None:
    assert client_of_key(b"3/a/b") == client_of_key(b"7/\0a/b/3") == "a/b"


# Requests

WILL = RegisteredWill(ARMED, 7)


class Requests:
    """Those of node 1, with what it has heard of its own records."""

    def __init__(self) -> None:
        self.found = WillRequests(ShareBooks())
        self.table = Reassignment(NO_TABLE, {1: 1, 2: 1}).table
        self.heard: list[object] = []
        self.found.follow(1, self)
        self.found.set_table(self.table, True)
        self.found.give_answers()
        self.heard.clear()

    # The follower

    def reading_begins(self) -> None:
        self.heard.append("begins")

    def took(self, records: list[WillRecord], is_last: bool) -> None:
        self.heard += [*records, *(["last"] if is_last else [])]

    def news(self, record: WillRecord, revision: int) -> None:
        self.heard.append((record, revision))

    # Answers

    def sent(self) -> list[Message]:
        return [message for _, message in self.found.take_messages()]

    def parts(self) -> list[WillsOf]:
        return [message for message in self.sent() if isinstance(message, WillsOf)]

    def asked(self) -> list[WillChange | WillRead]:
        return [message for message in self.sent() if isinstance(message, (WillChange, WillRead))]

    def answer(self, part: WillsOf, *wills: tuple[bytes, int, bytes]) -> None:
        self.found.found(WillsFound(part.reading, part.shares, wills))
        self.found.give_answers()

    def answered(self, answer: WillAnswer) -> None:
        self.found.lines.answered(answer)


def test_the_records_of_a_node_are_told_by_the_leaders_of_all_shares() -> None:
    world = Requests()
    asked = world.parts()
    assert sorted(share for each in asked for share in each.shares) == list(range(SHARES)) and len(asked) == 2
    many = tuple([(b"1/c%d" % number, 7, encode_will(WILL)) for number in range(PAGE + 1)])
    world.answer(asked[0], *many)
    assert world.heard == [WillRecord(key, 7, WILL) for key, _, _ in many[:PAGE]], "a turn takes no more"
    assert world.found.has_answers()
    world.found.give_answers()
    assert world.heard[PAGE:] == [WillRecord(many[PAGE][0], 7, WILL)] and not world.found.has_answers()
    for each in asked[1:]:
        assert world.heard[-1] != "last"
        world.answer(each)
    assert world.heard[-1] == "last" and world.found.idle() and not world.found.has_answers()


def test_a_record_of_an_unknown_form_is_told_and_has_no_value() -> None:
    world = Requests()
    world.answer(world.parts()[0], (b"1/c", 7, b"\xc1"))
    assert world.heard == [WillRecord(b"1/c", 7, None)]
    (notice,) = world.found.take_notices()
    assert "b'1/c': the record of a will is malformed" in notice and world.found.take_notices() == []


def test_a_new_table_begins_a_reading_again_and_asks_again() -> None:
    world = Requests()
    first = world.parts()
    for each in first:
        world.answer(each)
    world.heard.clear()
    world.found.read("c", lambda records: None)
    (asked,) = world.asked()
    world.found.set_table(Reassignment(world.table, {2: 1}).table, True)
    messages = world.found.take_messages()
    assert [message for _, message in messages if isinstance(message, WillRead)] == [asked]
    assert len(messages) == 2 and {node for node, _ in messages} == {2}
    world.found.give_answers()
    assert world.heard == ["begins"]
    world.answered(WillAnswer(asked.ticket, False, 0, ((b"1/c", 7, encode_will(WILL)),)))
    world.answer(first[0], (b"1/c", 7, encode_will(WILL)))
    assert world.heard == ["begins"], "an answer to what was asked before tells nothing"


def test_news_of_a_record_that_is_being_read_is_told_once() -> None:
    world = Requests()
    asked = world.parts()
    settled = RegisteredWill(SETTLED, 7)
    world.found.found(WillsFound(asked[0].reading, asked[0].shares, ((b"1/c", 7, encode_will(WILL)),)))
    world.found.news(WillNews(8, ((b"1/c", encode_will(settled)),)))
    world.found.give_answers()
    assert world.heard == [(WillRecord(b"1/c", 8, settled), 8)], "the reading would undo the news"
    world.found.news(WillNews(9, ((b"1/c", None),)))
    world.found.give_answers()
    assert world.heard[1:] == [(WillRecord(b"1/c", 0, None), 9)]


def test_a_reading_that_begins_again_takes_no_answers_of_the_earlier_one() -> None:
    world = Requests()
    first = world.parts()
    world.found.follow(1, world)
    second = world.parts()
    world.answer(first[0], (b"1/c", 7, encode_will(WILL)))
    for each in second:
        world.answer(each)
    assert world.heard == ["last"]


def test_a_deputy_is_told_of_a_change_that_waits_and_only_of_one_that_any_later_write_makes_void() -> None:
    world = Requests()
    for update in (
        WillUpdate(b"1/c", 5, None),
        WillUpdate(b"1/c", 0, WILL),
        WillUpdate(b"1/c", 5, RegisteredWill(FIRING, 7)),
        WillUpdate(b"2/c", 5, None),
    ):
        world.found.change(update, world.heard.append)
    world.sent()
    world.found.look()
    assert world.sent() == [], "the leader has had no time"
    world.found.look()
    ((node, hint),) = world.found.take_messages()
    assert node == world.table.of("c").deputy
    assert isinstance(hint, WillHint) and (hint.change.revision, hint.change.writes) == (5, ((b"1/c", None),))
    world.found.look()
    assert world.sent() == [], "once in each table"
    world.found.set_table(world.table, True)
    world.sent()
    world.found.look()
    assert world.sent() == [hint]


def test_a_deputy_makes_a_change_that_it_was_told_of_unless_the_key_has_changed_since() -> None:
    table = Reassignment(NO_TABLE, {1: 1, 2: 1, 3: 1}).table
    name = next(f"c{n}" for n in range(10000) if table.of(f"c{n}")[:2] == (1, 2))
    share, pair = share_of(name), table.of(name)
    key = b"3/" + name.encode()
    for written_since in (False, True):
        books = ShareBooks()
        books.set_table(table, 2)
        books.put(share, OwnerBook(pair.since, pair.before, True))
        books.keep_wills(1, WillsKept(share, 7, ((key, b"will"),)))
        books.hinted(2, change(name, key, 7, (key, b"not of this node")))
        books.hinted(3, change(name, key, 7, (key, None)))
        if written_since:
            books.keep_wills(1, WillsKept(share, 8, ((key, b"another"),)))
        assert [each.writes for each in books.take_hints(share)] == ([] if written_since else [((key, None),)])
    books.hinted(3, change(name, key, 7, (key, None)))
    for number in range(HINTS_MAX):
        books.hinted(3, change(name, b"3/\0%b/%d" % (name.encode(), number), 7, (key, None)))
    kept_hints = books.take_hints(share)
    assert len(kept_hints) == HINTS_MAX and all(each.key != key for each in kept_hints), "the oldest is forgotten"


# Changes


def test_changes_that_wait_for_a_lost_leader_keep_no_other_share_waiting() -> None:
    """With etcd away, the shares of a node that is gone have no other leader for as long."""
    world = Requests()
    world.sent()
    changed: list[WillChanged] = []
    lost, other = [f"c{n}" for n in range(100_000) if share_of(f"c{n}") == share_of("c0")], "c1"
    assert len(lost) > 90
    for name in (*lost, other):
        world.found.change(WillUpdate(b"1/" + name.encode(), 0, WILL), changed.append)
    first, answered = world.asked()
    assert isinstance(first, WillChange) and isinstance(answered, WillChange)
    assert (first.client_id, answered.client_id) == (lost[0], other)
    world.answered(WillAnswer(answered.ticket, True, 9, ()))
    world.found.give_answers()
    assert [each.record for each in changed] == [WillRecord(b"1/c1", 9, WILL)] and world.sent() == []
    world.answered(WillAnswer(first.ticket, True, 5, ()))
    (second,) = world.asked()
    assert isinstance(second, WillChange) and second.client_id == lost[1]


def test_a_read_goes_past_changes_that_wait_in_its_share() -> None:
    """A client waits for it. A hundred wills of a node that is gone are taken at the same time."""
    world = Requests()
    world.sent()
    for number in range(100):
        world.found.change(WillUpdate(b"1/c", number, WILL), lambda _: None)
    world.asked()
    told: list[list[WillRecord]] = []
    world.found.read("c", told.append)
    (read,) = world.asked()
    world.found.set_table(Reassignment(world.table, {2: 1}).table, True)
    assert read in world.asked(), "the next leader is asked"
    world.answered(WillAnswer(read.ticket, False, 9, ((b"1/c", 8, encode_will(WILL)),)))
    world.found.give_answers()
    assert told == [[WillRecord(b"1/c", 8, WILL)]] and not world.found.idle()


def test_what_is_told_to_deputies_comes_in_parts() -> None:
    world = Requests()
    world.sent()
    for number in range(HINTS_PER_LOOK + 5):
        world.found.change(WillUpdate(b"1/c%d" % number, 5, None), lambda _: None)
    world.found.look()
    world.sent()
    told: list[bytes] = []
    for expected in (HINTS_PER_LOOK, 5, 0):
        world.found.look()
        hints = [message for message in world.sent() if isinstance(message, WillHint)]
        assert len(hints) == expected
        told += [hint.change.key for hint in hints]
    assert told == [b"1/c%d" % number for number in range(HINTS_PER_LOOK + 5)], "the oldest first, each once"


def test_a_refused_change_tells_more_than_what_was_read_before() -> None:
    world = Requests()
    parts = world.parts()
    settled = RegisteredWill(SETTLED, 7)
    world.found.found(WillsFound(parts[0].reading, parts[0].shares, ((b"1/c", 5, encode_will(WILL)),)))
    world.found.change(WillUpdate(b"1/c", 5, None), world.heard.append)
    (change,) = world.asked()
    world.answered(WillAnswer(change.ticket, False, 8, ((b"1/c", 8, encode_will(settled)),)))
    world.found.give_answers()
    assert len(world.heard) == 1, "the reading would undo it"


def test_a_copy_that_was_made_though_its_answer_was_lost_is_read() -> None:
    """The same change is asked for again, and refused: this node hears of its copy by the reading alone."""
    world = Requests()
    parts = world.parts()
    copy = b"1/\0c/2"
    world.found.found(WillsFound(parts[0].reading, parts[0].shares, ((copy, 8, encode_will(WILL)),)))
    taken = RegisteredWill(SETTLED, 7, taker=1)
    world.found.change(WillUpdate(b"2/c", 5, taken, (copy, WILL)), lambda _: None)
    (change,) = world.asked()
    world.answered(WillAnswer(change.ticket, False, 8, ((b"2/c", 8, encode_will(taken)),)))
    world.found.give_answers()
    assert world.heard == [WillRecord(copy, 8, WILL)], "the copy would never be published, nor deleted"


def test_a_change_that_does_not_match_tells_the_record_and_each_tells_when_it_was_requested() -> None:
    world = Requests()
    world.sent()
    changed: list[WillChanged] = []
    update, again = WillUpdate(b"1/c", 5, RegisteredWill(FIRING, 7)), WillUpdate(b"1/c", 8, None)
    world.found.lines.now = 3.0
    for each in (update, again):
        world.found.change(each, changed.append)
    (message,) = world.asked()
    world.found.lines.now = 4.0
    world.answered(WillAnswer(message.ticket, False, 9, ((b"1/c", 8, encode_will(WILL)), (b"2/c", 9, b""))))
    (message,) = world.asked()
    world.answered(WillAnswer(message.ticket, True, 10, ()))
    world.found.give_answers()
    records = [WillRecord(b"1/c", 8, WILL), WillRecord(b"2/c", 9, None)]
    assert changed == [
        WillChanged(update, False, records[0], 3.0, records),
        WillChanged(again, True, WillRecord(b"1/c", 0, None), 4.0, []),
    ]


def test_a_will_that_is_taken_is_written_with_its_copy() -> None:
    world = Requests()
    world.sent()
    world.found.change(WillUpdate(b"2/c", 5, RegisteredWill(SETTLED, 7, taker=1), (b"1/\0c/2", WILL)), lambda _: None)
    (message,) = world.asked()
    assert isinstance(message, WillChange)
    assert [(key, decode_will(value or b"").state) for key, value in message.writes] == [
        (b"2/c", SETTLED),
        (b"1/\0c/2", ARMED),
    ]
