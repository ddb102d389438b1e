"""The primary of a group, answer by answer: a node believes only what its watch or a read has told it."""

from __future__ import annotations

import pytest

from starlingmq.cluster.etcd.etcd_requests import Answer, KeyValue, Request, Txn, TxnAnswer, Watch, WatchLost
from starlingmq.cluster.groups.group_primaries import GroupPrimaries

PREFIX = b"/starlingmq/test/groups/"
SHARE = b"$share/g/t"
KEY = PREFIX + b"g/t"


def begun() -> GroupPrimaries:
    """The elections of node 1, in its third incarnation; it has read that there is no primary, and watches."""
    elections = GroupPrimaries("test")
    elections.enter(1, 3)
    elections.begin()
    assert take(elections, read(elections, 5)) == [Watch(PREFIX, 6)]
    return elections


def asked(elections: GroupPrimaries) -> Txn:
    (request,) = elections.take_requests(10.0)
    assert isinstance(request, Txn)
    return request


def read(elections: GroupPrimaries, revision: int, *found: KeyValue) -> TxnAnswer:
    """The answer to the reading that it asks for now."""
    request = asked(elections)
    assert not request.compares
    return TxnAnswer(request.tag, True, revision, (found,))


def take(elections: GroupPrimaries, answer: Answer) -> list[Request]:
    elections.answered(answer, 10.0)
    return elections.take_requests(10.0)


@pytest.mark.parametrize("succeeded", [True, False])
def test_an_answer_to_a_campaign_that_comes_after_the_watch_was_lost_tells_nothing(succeeded: bool) -> None:
    elections = begun()
    elections.want(SHARE, True)
    campaign = asked(elections)
    elections.answered(WatchLost(PREFIX, 7), 10.0)
    elections.answered(TxnAnswer(campaign.tag, succeeded, 8, ((),) if succeeded else ()), 10.0)
    assert elections.primary(SHARE).epoch == 0
    there = KeyValue(KEY, b"1/3" if succeeded else b"2/1", 8, 8)
    assert take(elections, read(elections, 9, there)) == [Watch(PREFIX, 10)]
    assert elections.primary(SHARE).epoch == 8
    assert elections.is_ours(elections.primary(SHARE)) == succeeded
    assert elections.take_requests(20.0) == []


def test_a_node_that_reads_no_primary_campaigns_again() -> None:
    elections = begun()
    elections.want(SHARE, True)
    campaign = asked(elections)
    elections.answered(WatchLost(PREFIX, 7), 10.0)
    elections.answered(TxnAnswer(campaign.tag, False, 0, (), "no answer"), 10.0)
    (reading,) = elections.take_requests(elections.wake_at())
    assert isinstance(reading, Txn) and not reading.compares
    elections.answered(TxnAnswer(reading.tag, True, 9, ((),)), 11.0)
    watch, again = elections.take_requests(11.0)
    assert watch == Watch(PREFIX, 10) and isinstance(again, Txn) and again.compares
