"""Figures about the shares of client ids, as this node knows them, for operators."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from starlingmq.cluster.shares.share_leader import LeadState
from starlingmq.cluster.shares.shares import Shares


class ShareFigures(NamedTuple):
    """``led``, ``deputized``: shares, by node, as the table says; 0: no node. All others are about the shares that this
    node leads."""

    version: int  # of the table
    listed: bool  # this node takes part in this version
    led: dict[int, int]
    deputized: dict[int, int]
    asking: int  # shares whose keys are being collected
    copying: int  # shares whose deputy has no copy yet
    waiting: int  # claims, releases and reads that wait for these shares
    client_ids: int  # with a key
    granted: int  # claims so far
    behind: dict[int, int]  # node -> messages about owners that it has not acknowledged
    unknown: tuple[int, ...]  # nodes that may know keys that are missing here, and could not be asked


def figures_of(shares: Shares) -> ShareFigures:
    led = shares.leader.led()
    unknown = {node: None for each in led for node in each.book.unknown}
    return ShareFigures(
        version=shares.table.version,
        listed=shares.is_listed(),
        led=dict(Counter([pair.leader for pair in shares.table.pairs])),
        deputized=dict(Counter([pair.deputy for pair in shares.table.pairs])),
        asking=sum(each.state is LeadState.ASKING for each in led),
        copying=sum(each.state is LeadState.WHOLE for each in led),
        waiting=sum(len(each.waiting) for each in led),
        client_ids=sum(len(each.book.keys) for each in led),
        granted=shares.leader.granted,
        behind=shares.behind(),
        unknown=tuple(sorted(unknown)),
    )
