"""All nodes end together, and the books of all shares with them: what the leaders learn from the nodes again."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from tests.cluster.takeover_world import RoamingWorld
from tests.cluster.test_share_wills import change
from tests.cluster.test_takeover_crashes import made
from tests.cluster.test_will_worlds import publishing
from tests.sim.clients import FOREVER
from tests.sim.node import Node

from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import book_of, copy_of
from starlingmq.cluster.shares.will_requests import WillRequests
from starlingmq.cluster.takeover.owner_store import OwnerKey
from starlingmq.cluster.wills.will_records import FIRING, SETTLED, RegisteredWill, decode_will, encode_will
from starlingmq.wire.mqtt import Connect, Will, encode
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

INTERPRETED = pytest.mark.interpreted_only("compiled code cannot be patched")


class Visitor:
    """A client with a will, at a node of a world."""

    def __init__(self, node: Node, payload: bytes) -> None:
        assert node.process is not None
        self.heard = b""
        self.process = node.process
        self.client = self.process.accept(self, "visitor")
        connect = Connect(
            5,
            "visitor",
            False,
            will=Will(b"will", payload, 1, False, {}),
            properties={SESSION_EXPIRY_INTERVAL: FOREVER},
        )
        self.process.receive(self.client, encode(connect, 5))

    def hear(self, data: bytes) -> None:
        self.heard += data

    def closed_by_broker(self) -> None:
        """Its node has ended."""


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> RoamingWorld:
    return made()


def end_all(world: RoamingWorld) -> None:
    for node in world.nodes:
        if node.process is not None:
            node.crash(False)
    for node in world.nodes:
        world.start_if_wanted(node)
    world.pass_time(30.0)


@INTERPRETED
def test_a_will_that_was_settled_is_not_published_when_all_nodes_have_ended(shares: RoamingWorld) -> None:
    """Another node has published it, and its own node ends before it hears of that."""
    home, there, _ = shares.nodes
    with publishing() as published:
        Visitor(home, b"first")
        shares.pass_time(1.0)
        with patch.object(WillRequests, "news", lambda self, news: None):
            second = Visitor(there, b"second")
            shares.pass_time(1.0)
            assert second.heard and published == [b"first"]
            end_all(shares)
        assert published == [b"first", b"second"]


@INTERPRETED
def test_a_will_that_was_not_settled_is_published_when_all_nodes_have_ended(shares: RoamingWorld) -> None:
    home, there, _ = shares.nodes
    with publishing() as published:
        Visitor(home, b"first")
        shares.pass_time(1.0)
        end_all(shares)
        assert published == [b"first"]
        second = Visitor(there, b"second")
        shares.pass_time(1.0)
        assert second.heard and published == [b"first"]


# The book


def firing(epoch: int) -> bytes:
    return encode_will(RegisteredWill(FIRING, 7, epoch=epoch))


def test_a_collected_book_tells_that_a_will_was_settled_since() -> None:
    book = OwnerBook(1, 0, True)
    for node in (2, 3):
        book.put("c", OwnerKey(node, 10 * node, 10 * node, 1))
    book.served.add([("c", 3, 30)])
    book.forget_served()
    later = book_of(copy_of(0, book))  # at its deputy
    for each in (book, later):
        settled = each.settled_elsewhere(change("c", b"2/c", 0, (b"2/c", firing(20))))
        assert settled is not None
        record = decode_will(settled.writes[0][1] or b"")
        assert (settled.key, record.state, record.id, record.epoch) == (b"2/c", SETTLED, 7, 30)
        assert each.settled_elsewhere(change("c", b"2/c", 0, (b"2/c", firing(30)))) is None, "a later will"
        assert each.settled_elsewhere(change("c", b"3/c", 0, (b"3/c", firing(20)))) is None, "its own node"
        assert each.settled_elsewhere(change("d", b"2/d", 0, (b"2/d", firing(20)))) is None, "another client"
        each.wills.write(5, [(b"2/c", firing(20))])
        assert each.settled_elsewhere(change("c", b"2/c", 5, (b"2/c", firing(20)))) is None, "the book has the record"


def test_a_collected_book_keeps_what_it_needs_of_who_was_served() -> None:
    book = OwnerBook(1, 0, True)
    book.put("c", OwnerKey(2, 20, 20, 1))
    book.served.add([("c", 2, 20)])
    book.unknown = {3: None}
    book.forget_served()
    assert list(book.served.all()) == [("c", 2, 20)], "the node that cannot be asked may have an older will"
    book.unknown = {}
    book.forget_served()
    assert list(book.served.all()) == [], "no other node has anything of the client"
    book.put("c", OwnerKey(3, 10, 10, 1))
    book.served.add([("c", 2, 20)])
    book.drop("c", 2)
    assert book.served.settled_below("c", 3) == 20, "its will may still come"
    book.drop("c", 3)
    assert list(book.served.all()) == []
