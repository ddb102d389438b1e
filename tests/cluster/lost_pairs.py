"""Shares whose leader and deputy were both lost, and what they knew of wills and owners with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from starlingmq.cluster.shares.share_leader import LeadState, LedShare, ShareLeader


@contextmanager
def telling_of_lost_pairs(tell: Callable[[int], None]) -> Iterator[None]:
    """``tell`` is called with the share when its leader has had to ask all nodes what they have; also at the start."""
    collect = ShareLeader._collect

    def collecting(leader: ShareLeader, led: LedShare) -> None:
        collect(leader, led)
        if led.state is LeadState.WHOLE and led.book.collected == led.pair.since:
            tell(led.share)

    with patch.object(ShareLeader, "_collect", collecting):
        yield
