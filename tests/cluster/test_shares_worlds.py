"""Worlds of shares, and worlds of whole nodes while etcd is away; mistakes on purpose, each found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from msgspec import structs
from tests.cluster import (
    presence_world,
    shares_world,
    takeover_world,
    will_world,
)
from tests.few import few
from tests.planting import first_to_find
from tests.sim.world import World

from starlingmq.cluster.links.peer_frames import ShareFrame
from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.share_channel import ShareChannel
from starlingmq.cluster.shares.share_leader import LedShare, ShareLeader
from starlingmq.cluster.shares.share_messages import Claim, KeyChanged, OwnerAnswer, WillNews
from starlingmq.cluster.shares.share_table import Pair
from starlingmq.cluster.shares.shares import Shares
from starlingmq.cluster.shares.will_requests import WillRequests
from starlingmq.cluster.takeover.owner_store import OwnerKey

INTERPRETED = pytest.mark.interpreted_only("compiled code takes no stand-ins, and is not patched")


@INTERPRETED
@pytest.mark.parametrize("seed", few(range(4), 0))
def test_every_claim_names_all_who_hold_something_whatever_fails(seed: int) -> None:
    assert shares_world.run(seed).seen["claims"] > 20


@pytest.mark.parametrize("worlds", [1, pytest.param(4, marks=pytest.mark.long)])
def test_worlds_hold_while_etcd_is_away(worlds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "without_etcd", True)
    takeovers = sum(takeover_world.run(seed).takeovers() for seed in range(2, 2 + worlds))
    assert takeovers > 5 * worlds


def _answers_before_the_deputy(
    self: ShareLeader, led: LedShare, claim: Claim, key: OwnerKey, found: tuple[OwnerKey, ...], will: bytes
) -> None:
    self._keep(led, KeyChanged(led.share, claim.client_id, key))
    self._links.send(key.node, OwnerAnswer(claim.ticket, key.epoch, found, will != b""))


_collect = ShareLeader._collect


def _answers_before_all_are_asked(self: ShareLeader, led: LedShare) -> None:
    led.asked.clear()
    _collect(self, led)


_claim = OwnerBook.claim


def _goes_back(self: OwnerBook, node: int, claim: Claim, version: int) -> Any:
    self.counter = max([key.epoch for key in self.read(claim.client_id)], default=0)
    return _claim(self, node, structs.replace(claim, newest=0), version)


_received = Shares.received


def _hears_earlier_versions(self: Shares, node: int, incarnation: int, frame: ShareFrame) -> None:
    if frame.version < self.table.version and frame.sequence:
        self._channel(node)._received = frame.sequence - 1
        frame = ShareFrame(self.table.version, frame.sequence, frame.taken, frame.messages)
    _received(self, node, incarnation, frame)


def _takes_any_book_for_whole(self: ShareBooks, share: int, pair: Pair) -> OwnerBook | None:
    book = self.books.get(share)
    if book is not None:
        book.since, book.before = pair.since, pair.before
    return book


def _names_no_unknown(self: ShareLeader, book: OwnerBook) -> None:
    book.unknown = {}


_replace_node = OwnerBook.replace_node


def _drops_what_was_granted_since(self: OwnerBook, node: int, incarnation: int, stated: Any, version: int) -> None:
    _replace_node(self, node, incarnation, stated, version + 1)


def _keeps_copies_only(self: ShareBooks, source: int, change: KeyChanged) -> None:
    """A deputy that does not take changes."""


_channel_received = ShareChannel.received


def _takes_frames_after_a_gap(self: ShareChannel, frame: ShareFrame) -> Any:
    if frame.sequence > self._received:
        self._received = frame.sequence - 1
    return _channel_received(self, frame)


class Planted(NamedTuple):
    place: Any
    name: str
    wrong: Callable[..., Any]


SEEDS_MAX = 400
"""The rarest one is found by a world of two hundred."""

MISTAKES = {
    "two leaders: one answers without its deputy": Planted(ShareLeader, "_grant", _answers_before_the_deputy),
    "a leader answers before it has asked all": Planted(ShareLeader, "_collect", _answers_before_all_are_asked),
    "an epoch goes back": Planted(OwnerBook, "claim", _goes_back),
    "frames of an earlier version count": Planted(Shares, "received", _hears_earlier_versions),
    "any older book is taken for a whole one": Planted(ShareBooks, "led_before", _takes_any_book_for_whole),
    "nodes that could not be asked are not named": Planted(ShareLeader, "_forget_strangers", _names_no_unknown),
    "a statement drops later grants": Planted(OwnerBook, "replace_node", _drops_what_was_granted_since),
    "a deputy takes no changes": Planted(ShareBooks, "keep", _keeps_copies_only),
    "frames after a gap are taken": Planted(ShareChannel, "received", _takes_frames_after_a_gap),
}


def _is_deaf(self: WillRequests, news: WillNews) -> None:
    """A node that does not hear of what others do with its wills."""


class PlantedWill(NamedTuple):
    place: Any
    name: str
    wrong: Callable[..., Any]
    world: Any  # the module of a kind of worlds
    without_etcd: bool
    losses: bool


WILL_MISTAKES = {
    "a node hears nothing of its wills": PlantedWill(WillRequests, "news", _is_deaf, will_world, False, True),
}


@INTERPRETED
@pytest.mark.parametrize("mistake", WILL_MISTAKES.values(), ids=list(WILL_MISTAKES))
def test_each_mistake_with_wills_is_found(mistake: PlantedWill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "without_etcd", mistake.without_etcd)
    found = first_to_find(
        range(20),
        lambda: patch.object(mistake.place, mistake.name, mistake.wrong),
        lambda seed: mistake.world.run(seed, losses=mistake.losses),
    )
    assert found >= 0, "no seed below 20 finds it"


@INTERPRETED
@pytest.mark.long(kept="tests/cluster/test_share_wills.py")
def test_worlds_of_wills_hold_while_etcd_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "without_etcd", True)
    assert will_world.run(4).published
    assert presence_world.run(4).wills


@INTERPRETED
@pytest.mark.timeout(400)  # a hundred worlds and more for the rarest
@pytest.mark.parametrize(
    "name",
    few(
        MISTAKES,
        "two leaders: one answers without its deputy",
    ),
)
def test_each_planted_mistake_is_found(name: str) -> None:
    found = first_to_find(range(SEEDS_MAX), lambda: patch.object(*MISTAKES[name]), shares_world.run)
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
