"""A request that a leader of etcd took along when it went has an answer once there is another leader, not by its own
time-out.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.net.etcds import Client, connected, three
from tests.patience import within

from starlingmq.cluster.etcd.etcd_requests import Put, Revoke, Txn, TxnAnswer
from starlingmq.net.etcd.etcd_calls import REVOKE, STATUS, TXN
from starlingmq.net.etcd.etcd_members import status
from starlingmq.net.proto import etcd_pb2 as pb

NEVER = 3600.0  # seconds: a test that waits for this fails


def put(number: int) -> Txn:
    return Txn(f"put {number}", (), (Put(b"/k", b"%d" % number),))


class Member:
    """A member of etcd: it says who leads, unless it is ``silent``, and answers nothing else while ``lost``."""

    def __init__(self) -> None:
        self.term = self.leader = 1
        self.lost = self.silent = False
        self.asked: list[object] = []
        self._news = asyncio.Event()

    async def call(self, method: Any, request: object, endpoint: str = "") -> object:
        self.asked.append(method)
        self._news.set()
        header = pb.ResponseHeader(raft_term=self.term)
        if method is STATUS:
            if self.silent:
                await asyncio.Event().wait()
            return pb.StatusResponse(header=header, leader=self.leader)
        if self.lost:
            await asyncio.Event().wait()
        return method.answer(header=header)

    async def until_asked(self, method: object, times: int) -> None:
        """That often from now on."""
        start = len(self.asked)
        async with within(20.0):
            while self.asked[start:].count(method) < times:
                self._news.clear()
                await self._news.wait()

    def elect(self) -> None:
        self.term += 1
        self.leader += 1


@asynccontextmanager
async def asking(member: Member, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A client that has had one answer, and gets no other one."""
    monkeypatch.setattr("starlingmq.net.etcd.etcd_client.LATE_SECONDS", 0.001)
    client = Client(["127.0.0.1:1"], request_timeout=NEVER)
    monkeypatch.setattr(client.etcd.calls, "call", member.call)
    try:
        assert not (await client.txn(put(0))).error
        member.lost = True
        yield client
    finally:
        await client.etcd.close()


async def test_a_put_has_an_answer_once_there_is_another_leader_and_none_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Member()
    async with asking(member, monkeypatch) as client:
        client.submit(put(1))
        await member.until_asked(STATUS, 3)  # the leader is there: only late
        member.leader = 0
        member.term += 1
        await member.until_asked(STATUS, 3)  # an election is under way
        assert [answer.tag for answer in client.answers if isinstance(answer, TxnAnswer)] == ["put 0"]
        member.elect()
        answer = await client.first(TxnAnswer, lambda answer: answer.tag == "put 1")
        assert not answer.succeeded and "another leader was elected" in answer.error
        member.lost = False
        assert not (await client.txn(put(2))).error


async def test_another_leader_is_acted_upon_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers wait until a copy that is lost with the leader of the etcds is known to be gone."""
    member = Member()
    async with asking(member, monkeypatch) as client, within(20.0):
        monkeypatch.setattr("starlingmq.net.etcd.etcd_client.LATE_SECONDS", 0.1)
        client.submit(put(1))
        await member.until_asked(TXN, 1)
        monkeypatch.setattr("starlingmq.net.etcd.etcd_client.LATE_SECONDS", NEVER)  # from the first look on
        member.elect()
        answer = await client.first(TxnAnswer, lambda answer: answer.tag == "put 1")
        assert "another leader was elected" in answer.error


async def test_another_leader_that_an_answer_tells_of_is_acted_upon_while_its_member_does_not_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Member()
    async with asking(member, monkeypatch) as client, within(20.0):
        member.silent = True
        client.submit(put(1))
        await member.until_asked(STATUS, 1)
        member.elect()
        member.lost = False
        assert not (await client.txn(put(2))).error
        answer = await client.first(TxnAnswer, lambda answer: answer.tag == "put 1")
        assert "another leader was elected" in answer.error


async def test_the_end_of_a_lease_is_asked_for_again_once_there_is_another_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Member()
    async with asking(member, monkeypatch) as client:
        client.submit(Revoke(7))
        await member.until_asked(STATUS, 3)
        assert member.asked.count(REVOKE) == 1
        member.elect()
        await member.until_asked(REVOKE, 1)
        assert member.asked.count(TXN) == 1


@pytest.mark.slow
async def test_a_put_behind_a_killed_leader_does_not_wait_for_its_time_out(tmp_path: Path) -> None:
    async with three(tmp_path) as servers:
        async with connected(servers[0].address) as client:
            await client.done(put(0))
            states = {server: await status(client.etcd.calls, server.address) for server in servers}
        leader = next(server for server, state in states.items() if state.member == state.leader)
        other = next(server for server in servers if server is not leader)
        async with connected(other.address, request_timeout=NEVER) as client:
            await client.done(put(1))
            os.kill(leader.pid, signal.SIGSTOP)  # a follower goes on sending to it: a closed connection is no evidence
            try:
                answer = await client.txn(put(2))
                # Only a put that comes after the others have missed the leader is simply done.
                assert "another leader was elected" in answer.error or not answer.error
                await client.done(put(3))
            finally:
                os.kill(leader.pid, signal.SIGCONT)
