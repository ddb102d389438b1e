"""Wills: the leaders of shares have their records, so that they need no etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.owner_store import will_keys
from tests.cluster.test_shares import ShareFleet, share_fleet
from tests.cluster.test_wills import kill, leave_will, published, watch
from tests.harness import FakeClient

from starlingmq.cluster.etcd.etcd_cas import CasUpdate, EtcdCas
from starlingmq.cluster.etcd.etcd_requests import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Put,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import HINTS_MAX, ShareBooks
from starlingmq.cluster.shares.share_messages import (
    WillAnswer,
    WillChange,
    WillHint,
    WillNews,
    WillRead,
    WillsKept,
    WillsOf,
)
from starlingmq.cluster.shares.share_table import NO_TABLE, SHARES, Reassignment, share_of
from starlingmq.cluster.shares.will_book import WillBook
from starlingmq.cluster.shares.will_gateway import WillGateway
from starlingmq.cluster.takeover.transfer_frames import UNREPORTED
from starlingmq.cluster.wills.will_records import (
    FIRING,
    REGISTERED,
    SETTLED,
    RegisteredWill,
    all_wills,
    client_of_key,
    encode_will,
)
from starlingmq.cluster.wills.will_settlement import AGAIN_SECONDS, WillSettlements
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
    earlier = KeyValue(all_wills("test") + b"2/c", encode_will(RegisteredWill(SETTLED, 7, epoch=3)), 1, 10)
    for will in (8, UNREPORTED):
        found = settlements()
        assert not found.settle("c", 2, 5, None, False, will, 0.0)
        (request,) = found.take_requests(1.0)
        found.answered(TxnAnswer(request.tag, True, 20, ((earlier,), ())), 1.0)
        assert not found.settle("c", 2, 5, None, False, will, 0.0), "will 8 would be published after the CONNACK"
        found.turn(1.0 + 2 * AGAIN_SECONDS)
        assert found.take_requests(1.0 + 2 * AGAIN_SECONDS), "it looks again"
    done = settlements()
    assert not done.settle("c", 2, 5, None, False, 7, 0.0)
    (request,) = done.take_requests(1.0)
    done.answered(TxnAnswer(request.tag, True, 20, ((earlier,), ())), 1.0)
    assert done.settle("c", 2, 5, None, False, 7, 0.0), "that will is settled"


def settlements() -> WillSettlements:
    found = WillSettlements("test", 3.0, lambda node: True, lambda name: False, lambda name, will: False)
    found.enter(1)
    return found


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


# The gateway

PREFIX = all_wills("test")


class Gateway:
    """With what it has sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, WillChange | WillRead | WillsOf | WillHint]] = []
        self.gateway = WillGateway(PREFIX, self._send)
        self.table = Reassignment(NO_TABLE, {1: 1, 2: 1}).table
        self.gateway.set_table(self.table, True)

    def _send(self, node: int, message: WillChange | WillRead | WillsOf | WillHint) -> int:
        self.sent.append((node, message))
        return 0

    def ask(self, request: Txn) -> list[tuple[int, WillChange | WillRead | WillsOf | WillHint]]:
        assert self.gateway.divert([request]) == []
        sent, self.sent = self.sent, []
        return sent

    def page(self, after: bytes = b"") -> list[WillsOf]:
        get = Get(PREFIX + b"1/", prefix=True, limit=2, after=after)
        return [message for _, message in self.ask(Txn("page", (), (get,))) if isinstance(message, WillsOf)]


def test_a_page_is_told_by_the_leaders_of_all_shares() -> None:
    world = Gateway()
    asked = world.page()
    assert [each.share for each in asked] == list(range(SHARES)) and {each.node for each in asked} == {1}
    for each in asked[:-1]:
        wills = ((b"1/c%d" % each.share, 7, b"value"),) if each.share < 3 else ()
        world.gateway.answered(WillAnswer(each.ticket, False, 0, wills))
    (first,) = world.gateway.take_answers()
    assert isinstance(first, TxnAnswer) and [kv.key for kv in first.found[0]] == [PREFIX + b"1/c0", PREFIX + b"1/c1"]
    assert world.page(PREFIX + b"1/c1") == []
    assert not world.gateway.has_answers(), "the last share may have more"
    world.gateway.answered(WillAnswer(asked[-1].ticket, False, 0, ()))
    (last,) = world.gateway.take_answers()
    assert isinstance(last, TxnAnswer) and [kv.key for kv in last.found[0]] == [PREFIX + b"1/c2"]


def test_a_new_table_loses_the_watch_and_asks_again() -> None:
    world = Gateway()
    for each in world.page():
        world.gateway.answered(WillAnswer(each.ticket, False, 0, ()))
    world.gateway.take_answers()
    world.gateway.divert([Watch(PREFIX + b"1/", 1)])
    (asked,) = world.ask(Txn("read", (), (Get(PREFIX + b"2/c"), Get(PREFIX + b"2/\0c/", prefix=True))))
    world.gateway.set_table(Reassignment(world.table, {2: 1}).table, True)
    assert world.sent == [(2, asked[1])]
    assert world.gateway.take_answers() == [WatchLost(PREFIX + b"1/", 0)]


def test_news_of_a_key_that_is_being_read_is_told_once() -> None:
    world = Gateway()
    asked = world.page()
    share = share_of("c")
    world.gateway.answered(WillAnswer(asked[share].ticket, False, 0, ((b"1/c", 7, b"registered"),)))
    world.gateway.news(WillNews(8, ((b"1/c", b"settled"),)))
    for each in asked:
        if each.share != share:
            world.gateway.answered(WillAnswer(each.ticket, False, 0, ()))
    news, page = world.gateway.take_answers()
    assert isinstance(news, WatchEvent) and news.changes[0].value == b"settled"
    assert isinstance(page, TxnAnswer) and page.found == ((),), "the page would undo the news"


def test_a_reading_that_begins_again_takes_no_answers_of_the_earlier_one() -> None:
    world = Gateway()
    first = world.page()
    second = world.page()
    world.gateway.answered(WillAnswer(first[0].ticket, False, 0, ((b"1/c", 7, b"value"),)))
    for each in second:
        world.gateway.answered(WillAnswer(each.ticket, False, 0, ()))
    (page,) = world.gateway.take_answers()
    assert isinstance(page, TxnAnswer) and page.found == ((),)


def test_a_deputy_is_told_of_a_change_that_waits_and_only_of_one_that_any_later_write_makes_void() -> None:
    world = Gateway()
    world.gateway.divert([Watch(PREFIX + b"1/", 1)])
    fires = encode_will(RegisteredWill(FIRING, 7))
    key, another = PREFIX + b"1/c", PREFIX + b"2/c"
    for compare, write in (
        (Compare(key, "mod_revision", "=", 5), Delete(key)),
        (Compare(key, "mod_revision", "=", 0), Put(key, encode_will(RegisteredWill(REGISTERED, 7)))),
        (Compare(key, "mod_revision", "=", 5), Put(key, fires)),
        (Compare(another, "mod_revision", "=", 5), Delete(another)),
    ):
        world.ask(Txn("change", (compare,), (write,), (Get(key),)))
    world.gateway.look()
    assert world.sent == [], "the leader has had no time"
    world.gateway.look()
    ((node, hint),) = world.sent
    assert node == world.table.of("c").deputy
    assert isinstance(hint, WillHint) and (hint.change.revision, hint.change.writes) == (5, ((b"1/c", None),))
    world.gateway.look()
    assert len(world.sent) == 1, "once in each table"


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


def test_changes_of_different_keys_do_not_wait_for_each_other_and_those_of_one_key_do() -> None:
    changes = EtcdCas("t", 1, 10)
    for key in (b"a", b"b"):
        changes.add(CasUpdate(key, 0, b"1"))
    first, second = changes.take_requests(1.0)
    changes.add(CasUpdate(b"a", 5, b"2"))
    assert changes.take_requests(1.0) == [] and len(changes) == 3
    result = changes.answered(TxnAnswer(second.tag, True, 6), 1.0)
    assert result is not None and [each.key for each in result.done] == [b"b"]
    changes.answered(TxnAnswer(first.tag, True, 5), 1.0)
    (again,) = changes.take_requests(1.0)
    assert again.compares[0].operand == 5


class Counted(dict[bytes, CasUpdate]):
    """Counts the keys that it has shown."""

    shown = 0

    def __iter__(self) -> Iterator[bytes]:
        for key in super().__iter__():
            self.shown += 1
            yield key


@pytest.mark.interpreted_only("compiled code reads a dict without asking it")
def test_the_next_changes_are_found_without_looking_at_all_that_wait() -> None:
    """With 100,000 wills that are due at once, each turn would take seconds."""
    changes = EtcdCas("t", 1, 10)
    waiting = changes._waiting = Counted()
    for number in range(1000):
        changes.add(CasUpdate(b"%d" % number, 0, b"1"))
    first = changes.take_requests(1.0)
    assert len(first) == 10
    changes.answered(TxnAnswer(first[0].tag, True, 5), 1.0)
    assert len(changes.take_requests(1.0)) == 1
    assert waiting.shown <= 20
