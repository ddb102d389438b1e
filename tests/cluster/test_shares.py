"""Owners of client ids in the memory of the nodes: tables, channels, and small fleets (docs/CLUSTER.md, etcd)."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.cluster.fleet import Fleet, NodeWorld
from tests.cluster.test_takeover import lasting, publish, published, subscribe

from starlingmq.cluster.links.peer_frames import Envelope, ShareFrame
from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.share_leader import (
    ANSWER_BYTES,
    SWEEPS_PER_TURN,
    WILLS_PER_ANSWER,
    LeadState,
    ShareLeader,
)
from starlingmq.cluster.shares.share_messages import (
    Claim,
    KeyChanged,
    Message,
    OwnerAnswer,
    Release,
    WillRead,
    WillsFound,
    WillsOf,
)
from starlingmq.cluster.shares.share_table import (
    NO_TABLE,
    SHARES,
    VERSION_SHIFT,
    Reassignment,
    ShareTable,
    decode_table,
    encode_table,
    share_of,
)
from starlingmq.cluster.shares.shares import Shares
from starlingmq.cluster.takeover.owner_store import OwnerKey
from starlingmq.wire.mqtt import Connect


class ShareFleet(Fleet):
    spread = True

    def led_by(self, place: int) -> str:
        """A client id of a share that this node leads."""
        shares = self.nodes[place].cluster.shares
        assert shares is not None
        number = self.nodes[place].cluster.number
        return next(f"c{n}" for n in range(10000) if shares.table.of(f"c{n}").leader == number)


def share_fleet(count: int) -> ShareFleet:
    fleet = ShareFleet(count)
    fleet.settle()
    return fleet


# The table


def assigned(table: ShareTable, **nodes: int) -> ShareTable:
    return Reassignment(table, {int(name[1:]): incarnation for name, incarnation in nodes.items()}).table


def test_each_node_leads_and_deputizes_the_same_part() -> None:
    table = assigned(NO_TABLE, n1=1, n2=1, n3=1)
    for place in (0, 1):
        counts = Counter(pair[place] for pair in table.pairs)
        assert set(counts) == {1, 2, 3} and max(counts.values()) - min(counts.values()) <= 2
    assert all(pair.leader != pair.deputy for pair in table.pairs)


def test_the_shares_of_a_lost_leader_go_to_their_deputies() -> None:
    before = assigned(NO_TABLE, n1=1, n2=1, n3=1)
    after = assigned(before, n1=1, n3=1)
    for was, now in zip(before.pairs, after.pairs, strict=True):
        if was.leader == 2:
            assert (now.leader, now.since, now.before) == (was.deputy, after.version, was.since)
        elif was.deputy != 2 and now[:2] == was[:2]:
            assert now == was


def test_a_node_that_restarted_leads_nothing_that_its_deputy_can_lead() -> None:
    before = assigned(NO_TABLE, n1=1, n2=1, n3=1)
    after = assigned(before, n1=1, n2=2, n3=1)
    assert not Reassignment(before, {1: 1, 2: 2, 3: 1}).lost
    concerned = [(was, now) for was, now in zip(before.pairs, after.pairs, strict=True) if 2 in was[:2]]
    for was, now in concerned:
        survivor = was.deputy if was.leader == 2 else was.leader
        assert survivor in now[:2], "the only node with the keys is gone from the pair"
        assert now.since == after.version, "a pair with the node of another life is another pair"


def test_a_node_that_comes_gets_its_part_and_nothing_else_moves() -> None:
    before = assigned(NO_TABLE, n1=1, n2=1)
    after = assigned(before, n1=1, n2=1, n3=1)
    moved = [now for was, now in zip(before.pairs, after.pairs, strict=True) if was.leader != now.leader]
    assert all(now.leader == 3 for now in moved) and abs(len(moved) - SHARES // 3) <= 2


def test_a_cluster_of_one_has_no_deputies() -> None:
    assert set(assigned(NO_TABLE, n4=1).pairs) == {(4, 0, 1, 0)}


def test_a_table_survives_its_encoding_and_nothing_else_is_one() -> None:
    table = assigned(NO_TABLE, n1=1, n2=3)
    assert decode_table(encode_table(table)) == table
    assert decode_table(b"") is None and decode_table(encode_table(table)[:-1]) is None


# The book


def test_an_epoch_is_above_all_of_the_share_and_above_all_that_the_node_knows() -> None:
    book = OwnerBook(1, 0)
    first, found = book.claim(1, Claim(1, "c", 1, 0, 0), 1)
    assert first.epoch > 1 << VERSION_SHIFT and found == ()
    second, found = book.claim(2, Claim(1, "d", 1, 0, first.epoch + 10), 1)
    assert second.epoch == first.epoch + 11 and found == ()
    third, found = book.claim(2, Claim(1, "c", 1, 0, 0), 2)
    assert third.epoch > 2 << VERSION_SHIFT and found == (first,)


def test_a_key_keeps_the_epoch_in_which_it_was_created_and_goes_with_its_release() -> None:
    book = OwnerBook(1, 0)
    first, _ = book.claim(1, Claim(1, "c", 1, 0, 0), 1)
    again, _ = book.claim(1, Claim(1, "c", 1, 0, 0), 1)
    assert (again.created, again.epoch) == (first.epoch, first.epoch + 1)
    assert book.release("c", 1, first.epoch) == again
    assert book.release("c", 1, again.epoch) is None and not book.keys


def test_an_unknown_node_is_named_with_all_that_it_can_have_until_it_has_said_what_it_has() -> None:
    book = OwnerBook(2, 0)
    book.collected, book.unknown = 2, {3: None}
    latest = (2 << VERSION_SHIFT) - 1
    key, found = book.claim(1, Claim(1, "c", 1, 0, 0), 2)
    assert found == (OwnerKey(3, latest, latest),)
    again, found = book.claim(2, Claim(1, "c", 1, 0, 0), 2)
    assert found == (key, OwnerKey(3, latest, latest)) and key.epoch > latest, "what was claimed since is later"
    third, found = book.claim(3, Claim(1, "c", 1, 0, 0), 2)
    assert found == (key, again), "it claims itself"
    assert book.claim(1, Claim(1, "c", 1, 0, 0), 2)[1] == (key, again, third), "and has a known key that is later"
    book.replace_node(3, 1, [("d", 7, 0)], 2)
    assert book.claim(1, Claim(1, "d", 1, 0, 0), 2)[1] == (OwnerKey(3, 7, 7, 1),)


# Fleets


def test_a_client_finds_its_session_and_etcd_is_written_for_none() -> None:
    fleet = share_fleet(3)
    revision = fleet.etcd.store.revision
    publisher = fleet.connect(0, "p")
    for number in range(12):
        client = lasting(fleet, number % 3, f"c{number}")
        subscribe(client, b"t", 1)
        client.drop()
        moved = lasting(fleet, (number + 1) % 3, f"c{number}")
        assert moved.connack.session_present
        fleet.advance(0.5)
        moved.disconnect(properties={17: 0})
    publisher.disconnect()
    fleet.advance(1.0)
    assert fleet.etcd.store.revision == revision
    for node in fleet.nodes:
        assert node.cluster.shares is not None
        assert not any(book.keys for book in node.cluster.shares.books.books.values()), "a key is left"


def test_everybody_connects_and_moves_while_etcd_is_away() -> None:
    fleet = share_fleet(3)
    fleet.etcd.lose_leader(fleet.now, 3600.0)
    fleet.advance(30.0, 0.1)
    for number in range(9):
        client = lasting(fleet, number % 3, f"c{number}")
        assert not client.connack.session_present
        subscribe(client, b"t", 1)
        client.drop()
    fleet.advance(60.0, 0.1)
    for number in range(9):
        assert lasting(fleet, (number + 1) % 3, f"c{number}").connack.session_present


def test_a_session_is_found_after_the_leader_of_its_share_is_gone() -> None:
    fleet = share_fleet(3)
    client_id = fleet.led_by(2)
    client = lasting(fleet, 0, client_id)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.end(2)
    fleet.advance(20.0, 0.05)
    moved = lasting(fleet, 1, client_id)
    assert moved.connack.session_present
    publish(fleet.connect(0, "p"), b"t", b"1")
    assert published(moved.receive()) == [b"1"]


def test_claims_wait_for_a_deputy_that_is_gone_while_etcd_is_away_and_no_longer() -> None:
    fleet = share_fleet(3)
    shares = fleet[0].cluster.shares
    assert shares is not None
    third = fleet[2].cluster.number
    pair = (fleet[0].cluster.number, third)
    client_id = next(f"c{n}" for n in range(10000) if shares.table.pairs[share_of(f"c{n}")][:2] == pair)
    fleet.etcd.lose_leader(fleet.now, 30.0)
    fleet.end(2)
    fake = fleet[0].open()
    fake.send(Connect(5, client_id, True, 0))
    fleet.advance(3.0, 0.05)
    assert not fake.output, "a claim was answered without the deputy"
    fleet.advance(60.0, 0.05)
    assert lasting(fleet, 0, client_id).connack is not None


def test_claims_that_wait_for_a_lost_node_do_not_keep_those_of_other_shares_waiting() -> None:
    """512 claims were under way at a node, of whatever shares: with as many that nothing answered, none was made."""
    fleet = share_fleet(3)
    shares, ownership, gone = fleet[0].cluster.shares, fleet[0].cluster.ownership, fleet[2].cluster.number
    table = shares.table
    lost = [f"c{n}" for n in range(4000) if gone in table.of(f"c{n}")[:2]][:2000]
    kept = next(f"c{n}" for n in range(4000) if gone not in table.of(f"c{n}")[:2])
    fleet.etcd.lose_leader(fleet.now, 20.0)
    fleet.end(2)
    for client_id in lost:
        fleet[0].open().send(Connect(5, client_id, True, 0))
    fleet.advance(2.0, 0.1)
    assert lasting(fleet, 0, kept).connack.reason == 0
    fleet.advance(40.0, 0.1)
    assert lasting(fleet, 0, lost[-1]).connack.reason == 0
    assert ownership.idle() and shares.owners.lines.idle()


def test_a_node_without_storage_says_that_it_knows_nothing_of_its_earlier_incarnation() -> None:
    fleet = share_fleet(3)
    lasting(fleet, 1, "c")
    earlier = fleet[1].state.ctx.sessions["c"].epoch
    fleet.restart(1)
    fleet.advance(5.0, 0.05)
    fleet.settle()
    assert fleet[1].cluster.qos2._since > earlier
    lasting(fleet, 1, "c")
    assert fleet[1].state.ctx.sessions["c"].epoch > fleet[1].cluster.qos2._since


class Claimed:
    """A client id whose share the first of three nodes leads, and the number of each node by what it is for it."""

    def __init__(self) -> None:
        self.fleet = share_fleet(3)
        self.client_id = self.fleet.led_by(0)
        self.shares = [node.cluster.shares for node in self.fleet.nodes]
        self.places = {node.cluster.number: place for place, node in enumerate(self.fleet.nodes)}
        pair = self.of(self.fleet[0].cluster.number).table.of(self.client_id)
        self.leader, self.deputy = pair.leader, pair.deputy
        (self.other,) = set(self.places) - {pair.leader, pair.deputy}

    def of(self, number: int) -> Shares:
        found = self.shares[self.places[number]]
        assert found is not None
        return found

    def frames_at(self, number: int) -> list[tuple[int, int]]:
        """The nodes between which frames about owners go when the client connects to that node."""
        self.fleet.carried.clear()
        lasting(self.fleet, self.places[number], self.client_id)
        return [(each.source, each.target) for each in self.fleet.carried if isinstance(each.body, ShareFrame)]

    def kept(self) -> list[int]:
        """The nodes whose keys the deputy has."""
        book = self.of(self.deputy).books.books[share_of(self.client_id)]
        return [key.node for key in book.read(self.client_id)]


def test_a_claim_at_the_leader_costs_frames_with_its_deputy_only() -> None:
    it = Claimed()
    assert it.frames_at(it.leader) == [(it.leader, it.deputy), (it.deputy, it.leader)]


def test_a_claim_at_the_deputy_is_answered_with_the_change_that_it_has_to_keep() -> None:
    it = Claimed()
    assert it.frames_at(it.deputy) == [(it.deputy, it.leader), (it.leader, it.deputy)]
    assert it.kept() == [it.deputy]


def test_a_claim_of_another_node_is_answered_by_the_deputy_when_it_has_the_key() -> None:
    it = Claimed()
    assert it.frames_at(it.other) == [(it.other, it.leader), (it.leader, it.deputy), (it.deputy, it.other)]
    assert it.kept() == [it.other]


def test_a_node_that_is_not_the_deputy_answers_no_claim() -> None:
    it = Claimed()
    kept = KeyChanged(share_of(it.client_id), it.client_id, OwnerKey(it.other, 1, 1, 1), 7, ())
    for number, answers in ((it.deputy, 1), (it.other, 0)):
        shares = it.of(number)
        before = sum(shares.behind().values()) + len(shares._local)
        shares._keep(it.leader, kept)
        assert sum(shares.behind().values()) + len(shares._local) == before + answers
    assert it.kept() == [it.other]


def test_answers_are_given_before_another_table_is_followed() -> None:
    """Otherwise a node that becomes the leader of a share does not count what it was just granted."""
    shares = share_fleet(3)[0].cluster.shares
    assert shares is not None
    before = shares.table
    versions: list[int] = []
    shares.owners._answers.append((OwnerAnswer(1, 1, ()), lambda answer: versions.append(shares.table.version)))
    later = Reassignment(before, {node: incarnation + 1 for node, incarnation in before.nodes.items()}).table
    shares.keeper.learn(later)
    shares.begin_turn(100.0)
    assert versions == [before.version] and shares.table.version == later.version > before.version


def test_a_table_that_comes_from_another_node_is_followed_after_the_answers() -> None:
    fleet = share_fleet(3)
    shares = fleet[0].cluster.shares
    assert shares is not None
    before = shares.table
    later = Reassignment(before, {node: incarnation + 1 for node, incarnation in before.nodes.items()}).table
    word = ShareFrame(later.version, 0, 0, b"", encode_table(later))
    shares.owners._answers.append((OwnerAnswer(1, 1, ()), lambda answer: None))
    assert not shares.received(fleet[1].cluster.number, 1, word), "the turn has work"
    assert shares.table.version == before.version
    shares.begin_turn(100.0)
    assert shares.table.version == later.version


class Silent:
    """Links to nodes that acknowledge nothing, unless a test says so of node 3."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str]] = []
        self.taken_by_3 = 0

    def send(self, node: int, message: Message) -> int:
        self.sent.append((node, type(message).__name__))
        return len(self.sent)

    def taken(self, node: int) -> int:
        return self.taken_by_3 if node == 3 else 0

    def is_full(self, node: int) -> bool:
        return False


def test_an_answer_that_waits_for_the_deputy_hastens_its_acknowledgement() -> None:
    it = Claimed()
    leader = it.of(it.leader).leader
    leader._links = links = Silent()
    leader._hastened = {}
    leader.take(it.other, Claim(7, it.client_id, 1, 0, 0))
    assert links.sent == [(it.deputy, "KeyChanged")], "the deputy answers"
    for ticket in (8, 9):
        leader.take(it.other, WillRead(ticket, it.client_id))
    assert links.sent[1:] == [(it.deputy, "Hasten")], "once"
    leader.take(it.other, Release(10, it.client_id, it.other, 1 << 62))
    assert links.sent[2:] == [(it.deputy, "KeyChanged")], "no client waits for it"


def test_a_node_reads_its_wills_of_all_shares_in_parts_and_those_that_do_not_serve_yet_later() -> None:
    it = Claimed()
    leader = it.of(it.leader).leader
    leader._links = links = Silent()
    leader._hastened = {}
    led = [each for each in leader.led() if each.pair.deputy == it.deputy]
    large, many, late = led[:3]
    for each, count, value in ((large, 1, bytes(ANSWER_BYTES)), (many, WILLS_PER_ANSWER, b"will"), (late, 1, b"will")):
        each.book.put_wills(7, tuple([(b"%d/%d-%d" % (it.other, each.share, n), value) for n in range(count)]))
    late.state = LeadState.WHOLE
    shares = tuple([each.share for each in led])
    assert not leader._held.get(it.deputy)
    leader.read_wills(it.other, WillsOf(4, shares))
    told = [answer for _, _, answer in leader._held[it.deputy] if isinstance(answer, WillsFound)]
    assert [answer.reading for answer in told] == [4, 4, 4]
    assert [len(answer.wills) for answer in told] == [1, WILLS_PER_ANSWER, 0]
    assert [share for answer in told for share in answer.shares] == [share for share in shares if share != late.share]
    assert set(links.sent) == {(it.deputy, "Hasten")}, "the answers wait until the deputy has what they depend on"
    leader._to_copy[late.share] = None
    leader.turn()
    (last,) = [answer for _, _, answer in leader._held[it.deputy] if answer not in told]
    assert isinstance(last, WillsFound) and (last.shares, len(last.wills)) == ((late.share,), 1)


def test_a_node_that_comes_back_after_a_table_without_it_is_told_of_the_keys_of_its_earlier_life() -> None:
    listed = Reassignment(NO_TABLE, {1: 1, 2: 1, 3: 1}).table
    without = Reassignment(listed, {1: 1, 2: 1}).table
    back = Reassignment(without, {1: 1, 2: 1, 3: 9}).table
    client_id = next(f"c{n}" for n in range(10000) if listed.of(f"c{n}")[:2] == back.of(f"c{n}")[:2] == (1, 2))
    for tables in ((listed, without, back), (without, back)):
        books, links = ShareBooks(), Silent()
        leader = ShareLeader(books, links)
        for table in tables:
            books.set_table(table, 1)
            if table is tables[0]:
                pair = table.of(client_id)
                book = OwnerBook(pair.since, pair.before, True)
                book.put(client_id, OwnerKey(3, 5, 5, 1))
                books.put(share_of(client_id), book)
            share = share_of(client_id)
            leader.set_table(table, 1, {share: table.pairs[share].since})
            for _ in range(SHARES // SWEEPS_PER_TURN + 1):
                leader.turn()
            assert ((3, "Earlier") in links.sent) == (table is back)


def test_a_node_that_was_not_told_of_the_keys_of_its_earlier_life_is_told_in_the_next_table() -> None:
    """A message that is under way is lost with a table, here because another node has gone."""
    listed = Reassignment(NO_TABLE, {1: 1, 2: 1, 3: 1, 4: 1}).table
    back = Reassignment(listed, {1: 1, 2: 1, 3: 9, 4: 1}).table
    after = Reassignment(back, {1: 1, 2: 1, 3: 9}).table
    client_id = next(f"c{n}" for n in range(10000) if listed.of(f"c{n}") == back.of(f"c{n}") == after.of(f"c{n}"))
    share = share_of(client_id)
    for taken in (0, 1 << 40):
        books, links = ShareBooks(), Silent()
        leader = ShareLeader(books, links)
        me = listed.pairs[share].leader
        for table in (listed, back, after):
            books.set_table(table, me)
            if table is listed:
                book = OwnerBook(table.pairs[share].since, table.pairs[share].before, True)
                book.put(client_id, OwnerKey(3, 5, 5, 1))
                books.put(share, book)
            leader.set_table(table, me, {share: table.pairs[share].since})
            if table is back:
                links.taken_by_3 = taken
            for _ in range(SHARES // SWEEPS_PER_TURN + 1):
                leader.turn()
        assert links.sent.count((3, "Earlier")) == (1 if taken else 2)


def test_who_loses_leader_and_deputy_at_once_loses_a_session_once_at_most() -> None:
    fleet = share_fleet(5)
    shares = fleet[0].cluster.shares
    assert shares is not None
    lost = fleet[3].cluster.number, fleet[4].cluster.number
    client_id = next(f"c{n}" for n in range(10000) if set(shares.table.of(f"c{n}")[:2]) == set(lost))
    subscribe(lasting(fleet, 0, client_id), b"f", 1)
    for _ in lost:
        fleet.end(3)
    fleet.advance(20.0, 0.05)
    assert shares.table.of(client_id).leader not in lost
    first = lasting(fleet, 1, client_id)
    assert not first.connack.session_present, "nodes that are lost may have had a later session"
    subscribe(first, b"f", 1)
    for place in (2, 0, 1):
        assert lasting(fleet, place, client_id).connack.session_present, "that they cannot have what came since"


def lacking(node: NodeWorld) -> int:
    shares = node.cluster.shares
    return shares.lacking() if shares is not None and shares.is_listed() else 0


def test_a_node_that_starts_counts_the_shares_that_it_lacks_and_serves_once_it_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = share_fleet(3)
    assert [lacking(node) for node in fleet.nodes] == [0, 0, 0]
    node = fleet.begin()
    with monkeypatch.context() as patch:
        carry = fleet.carry

        def lose(source: NodeWorld, hop: int, envelope: Envelope) -> None:
            if hop != node.cluster.number or not isinstance(envelope.body, ShareFrame):
                carry(source, hop, envelope)

        patch.setattr(fleet, "carry", lose)
        for _ in range(100):
            fleet.advance(0.01)
            assert not node.cluster.serving
        assert lacking(node) > 0
    while not node.cluster.serving:
        fleet.advance(0.01)
    assert lacking(node) == 0
