"""The table of shares: which node leads each share of the client ids, and which one is its deputy.

Laws:

- A table is replaced by one with the next version, and never changed otherwise. It is written to etcd by the leader of
  the cluster, when nodes come, go or restart.
- A node takes part only while the table lists it with its present incarnation: what an earlier incarnation kept in
  memory is gone.
- ``Pair.since`` is the version in which leader or deputy last changed, or restarted; ``Pair.before`` is the ``since``
  of the pair that led the share until then.
- A share goes to its deputy if its leader is gone, so that its keys need not be collected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

SHARES: Final = 1024
VERSION_SHIFT: Final = 40  # an epoch is a version of the table, and in its lower bits a counter


def share_of(client_id: str) -> int:
    return crc32(client_id.encode()) % SHARES


class Pair(NamedTuple):
    """The nodes that keep the keys of a share; 0: none."""

    leader: int
    deputy: int
    since: int
    before: int


class ShareTable(NamedTuple):
    version: int
    nodes: dict[int, int]  # number -> incarnation
    pairs: tuple[Pair, ...]

    def lists(self, node: int, incarnation: int) -> bool:
        return incarnation != 0 and self.nodes.get(node) == incarnation

    def of(self, client_id: str) -> Pair:
        return self.pairs[share_of(client_id)]


NO_TABLE: Final = ShareTable(0, {}, (Pair(0, 0, 0, 0),) * SHARES)
_decoder = msgspec.msgpack.Decoder(tuple[int, dict[int, int], list[tuple[int, int, int, int]]])


def encode_table(table: ShareTable) -> bytes:
    return msgspec.msgpack.encode((table.version, table.nodes, table.pairs))


def decode_table(value: bytes) -> ShareTable | None:
    """None if it is no table that this version knows."""
    try:
        version, nodes, pairs = _decoder.decode(value)
    except msgspec.MsgspecError:
        return None
    return ShareTable(version, nodes, tuple([Pair(*pair) for pair in pairs])) if len(pairs) == SHARES else None


class Reassignment:
    """The next table for ``nodes``. ``lost``: the number of shares whose leader and deputy are both gone."""

    def __init__(self, table: ShareTable, nodes: Mapping[int, int]) -> None:
        self.lost = 0
        self._nodes = nodes
        self._remain = [number for number, incarnation in nodes.items() if table.lists(number, incarnation)]
        self._leaders: list[int] = []
        self._deputies: list[int] = []
        for pair in table.pairs:
            self._keep(pair)
        self._balance_leaders()
        self._balance_deputies()
        self.table = self._next(table)

    def _keep(self, pair: Pair) -> None:
        leader, deputy = [number if number in self._remain else 0 for number in pair[:2]]
        self.lost += leader == deputy == 0
        self._leaders.append(leader or deputy)
        self._deputies.append(deputy if leader else 0)

    def _balance_leaders(self) -> None:
        leaders, deputies = self._leaders, self._deputies
        for share, target in _moves(leaders, self._nodes, [()] * SHARES, deputies):
            if leaders[share]:
                deputies[share] = leaders[share]  # it has all keys
            leaders[share] = target
            if deputies[share] == target:
                deputies[share] = 0

    def _balance_deputies(self) -> None:
        if len(self._nodes) > 1:
            leading = [(leader,) for leader in self._leaders]
            for share, target in _moves(self._deputies, self._nodes, leading, []):
                self._deputies[share] = target

    def _next(self, table: ShareTable) -> ShareTable:
        version = table.version + 1
        pairs: list[Pair] = []
        for leader, deputy, pair in zip(self._leaders, self._deputies, table.pairs, strict=True):
            same = (leader, deputy) == pair[:2] and all(not node or node in self._remain for node in pair[:2])
            pairs.append(pair if same else Pair(leader, deputy, version, pair.since))
        return ShareTable(version, dict(self._nodes), tuple(pairs))


def _moves(
    places: list[int], nodes: Mapping[int, int], without: Sequence[Collection[int]], first: Sequence[int]
) -> list[tuple[int, int]]:
    """(share, node) of the fewest moves after which each share is at a node and no node has more than its part.
    ``without``: nodes that a share must not be moved to. ``first``: nodes to which a share is moved rather than to
    others."""
    count = {number: places.count(number) for number in nodes}
    most = -(-SHARES // len(nodes))
    moves: list[tuple[int, int]] = []
    for share, place in enumerate(places):
        if place and count[place] <= most:
            continue
        open_to = [number for number in nodes if number not in without[share] and number != place]
        if place:
            open_to = [number for number in open_to if count[number] < SHARES // len(nodes)]
        if not open_to:
            continue
        target = min(open_to, key=count.__getitem__)
        if first and first[share] in open_to and count[first[share]] < most:
            target = first[share]
        if place:
            count[place] -= 1
        count[target] += 1
        moves.append((share, target))
    return moves
