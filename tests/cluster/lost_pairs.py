"""Shares whose leader and deputy were both lost, and what they knew of wills and owners with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from starlingmq.cluster.shares.share_leader import LeadState, LedShare, ShareLeader


@contextmanager
def telling_of_lost_pairs(tell: Callable[[], None]) -> Iterator[None]:
    """``tell`` is called when a leader has had to ask all nodes what they have; also by the first leaders."""
    collect = ShareLeader._collect

    def collecting(leader: ShareLeader, led: LedShare) -> None:
        collect(leader, led)
        if led.state is LeadState.WHOLE and led.book.collected == led.pair.since:
            tell()

    with patch.object(ShareLeader, "_collect", collecting):
        yield
