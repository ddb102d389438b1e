"""Mistakes made on purpose in the shares of client ids, some of several parts at once: each is found by a world.

``test_shares_worlds`` has more of them, of one part each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from tests.cluster import shares_world
from tests.cluster.shares_node import ShareNode
from tests.cluster.test_share_losses import (
    test_a_will_that_was_settled_is_not_published_when_all_nodes_have_ended as all_nodes_end,
)
from tests.cluster.test_takeover_crashes import made
from tests.few import few

from starlingmq.cluster.shares.held_keys import HeldKeys
from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.share_leader import LeadState, LedShare, ShareLeader
from starlingmq.cluster.shares.share_lines import ShareLines
from starlingmq.cluster.shares.share_messages import Claim, KeyChanged, OwnerAnswer
from starlingmq.cluster.shares.share_table import Pair, Reassignment, ShareTable
from starlingmq.cluster.shares.shares import Shares
from starlingmq.cluster.takeover.owner_store import OwnerKey

pytestmark = pytest.mark.interpreted_only("compiled code cannot be patched")

_follow_table = Shares._follow_table
_led_before = ShareBooks.led_before
_keep_pair = Reassignment._keep
_start = ShareNode.start
_begin = HeldKeys.begin


def _grants_alone(
    self: ShareLeader, led: LedShare, claim: Claim, key: OwnerKey, found: tuple[OwnerKey, ...], will: bytes
) -> None:
    self._keep(led, KeyChanged(led.share, claim.client_id, key))
    self._links.send(key.node, OwnerAnswer(claim.ticket, key.epoch, found, will != b""))


def _answers_before_it_has_the_key(self: Shares, leader: int, change: KeyChanged) -> None:
    if change.ticket:
        self.send(change.key.node, OwnerAnswer(change.ticket, change.key.epoch, change.found))


def _believes_that_it_still_leads(self: Shares) -> None:
    replaced = not self.keeper.table.lists(self._me, self._incarnation)
    if not (self.is_listed() and replaced):
        _follow_table(self)


def _begins_with_nothing(self: ShareBooks, share: int, pair: Pair) -> OwnerBook | None:
    book = _led_before(self, share, pair)
    if book is None:
        book = OwnerBook(pair.since, pair.before, True)
        self.put(share, book)
    return book


def _any_book(self: ShareBooks, share: int, pair: Pair) -> OwnerBook | None:
    book = self.books.get(share)
    if book is not None:
        book.since, book.before = pair.since, pair.before
    return book


def _keeps_the_books_of_its_earlier_life(self: ShareNode) -> None:
    books = self.shares.books.books if self.lives else {}
    _start(self)
    self.shares.books.books = books


def _passes_over_the_deputy(self: Reassignment, pair: Pair) -> None:
    _keep_pair(self, pair)
    if pair.leader not in self._remain and pair.deputy in self._remain:
        others = [node for node in self._remain if node != pair.deputy]
        self._leaders[-1], self._deputies[-1] = (others or [pair.deputy])[0], 0


def _tells_no_deputy(
    self: ShareLeader, led: LedShare, claim: Claim, key: OwnerKey, found: tuple[OwnerKey, ...], will: bytes
) -> None:
    """The deputy has the keys of the beginning."""
    self._answer(led, key.node, OwnerAnswer(claim.ticket, key.epoch, found, will != b""))


def _serves_without_a_copy(self: ShareLeader) -> None:
    for share in list(self._to_copy):
        led = self._led[share]
        del self._to_copy[share]
        led.state = LeadState.SERVING
        waiting, led.waiting = led.waiting, []
        for node, message in waiting:
            self._execute(led, node, message)


def _asks_once(self: ShareLines[Any, Any], table: ShareTable, taking_part: bool) -> None:
    self._table, self._taking_part = table, taking_part


def _states_only_some(self: HeldKeys, shares: Any) -> None:
    _begin(self, shares)
    self._names = self._names[::2]


def _releases_any_epoch(self: OwnerBook, client_id: str, node: int, epoch: int) -> OwnerKey | None:
    self.drop(client_id, node)
    return None


def _believes_any_node(self: OwnerBook, change: Any) -> None:
    """A will is registered after the client was served elsewhere, and not known to be settled."""


def _suspects_nothing_late(self: OwnerBook, found: tuple[OwnerKey, ...], node: int) -> tuple[OwnerKey, ...]:
    return (*found, *[OwnerKey(each, 1, 1) for each in self.unknown if each != node])


class Patch(NamedTuple):
    place: Any
    name: str
    wrong: Any


class Planted(NamedTuple):
    patches: tuple[Patch, ...]
    seed: int  # of a world that finds it


MISTAKES = {
    "two leaders: one believes that it still leads, and asks no deputy": Planted(
        (Patch(Shares, "_follow_table", _believes_that_it_still_leads), Patch(ShareLeader, "_grant", _grants_alone)),
        0,
    ),
    "a new leader begins with nothing": Planted((Patch(ShareBooks, "led_before", _begins_with_nothing),), 0),
    "a claim is answered from memory of an earlier life": Planted(
        (
            Patch(ShareNode, "start", _keeps_the_books_of_its_earlier_life),
            Patch(ShareBooks, "led_before", _any_book),
        ),
        6,
    ),
    "a deputy is passed over": Planted(
        (
            Patch(Reassignment, "_keep", _passes_over_the_deputy),
            Patch(ShareBooks, "led_before", _begins_with_nothing),
        ),
        0,
    ),
    "a deputy hears of no claim": Planted((Patch(ShareLeader, "_grant", _tells_no_deputy),), 0),
    "a deputy answers a claim and forgets it": Planted((Patch(Shares, "_keep", _answers_before_it_has_the_key),), 1),
    "a leader serves before its deputy has a copy": Planted((Patch(ShareLeader, "_copy", _serves_without_a_copy),), 22),
    "a request is not made again with the next table": Planted((Patch(ShareLines, "set_table", _asks_once),), 1),
    "a node states only some of what it has": Planted((Patch(HeldKeys, "begin", _states_only_some),), 3),
    "an unknown node is named with an old session": Planted(
        (Patch(OwnerBook, "_with_suspected", _suspects_nothing_late),), 7
    ),
    "a release deletes a later key": Planted((Patch(OwnerBook, "release", _releases_any_epoch),), 1),
}


@pytest.mark.parametrize(
    "name",
    few(
        MISTAKES,
        "a new leader begins with nothing",
        "a deputy hears of no claim",
        "a node states only some of what it has",
    ),
)
def test_each_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES[name]
    for patch in mistake.patches:
        monkeypatch.setattr(*patch)
    with pytest.raises((AssertionError, KeyError)):
        shares_world.run(mistake.seed)


def test_a_will_that_is_registered_after_the_client_was_served_elsewhere_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_nodes_end(made())
    monkeypatch.setattr(OwnerBook, "settled_elsewhere", _believes_any_node)
    with pytest.raises(AssertionError):
        all_nodes_end(made())
