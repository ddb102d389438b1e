"""The model of etcd, a real one, and the part of it for workers give the same answers to the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.few import few
from tests.net.etcds import Client, connected, running
from tests.sim.etcd_model import EtcdModel

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Compare,
    Delete,
    Get,
    KeyChange,
    LeaseLost,
    Operation,
    Put,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.net.etcd.etcd_calls import COMPACT, REVOKE
from starlingmq.net.local_etcd.local_etcd import LocalEtcd
from starlingmq.net.proto import etcd_pb2 as pb

pytestmark = pytest.mark.slow

ROOTS = count(1)
KEYS = st.sampled_from([b"a", b"ab", b"a/1", b"a/2", b"b", b"b\xff", b"b\xff\xff"])
PREFIXES = st.sampled_from([b"b", b"a", b"a/", b"b\xff", b"c"])
VALUES = st.sampled_from([b"", b"1", b"2"])
OPERATORS = st.sampled_from(["=", "!=", "<", ">"])


@dataclass(frozen=True)
class Compact:
    back: int  # revisions before the current one


@dataclass(frozen=True)
class LoseLease:
    pass


@dataclass(frozen=True)
class WatchFrom:
    prefix: bytes
    back: int  # revisions before the next one


def writes_once(operations: list[Operation]) -> bool:
    puts = [each.key for each in operations if isinstance(each, Put)]
    deletes = [each for each in operations if isinstance(each, Delete)]
    gone = [key for key in puts for d in deletes if (key.startswith(d.key) if d.prefix else key == d.key)]
    return len(set(puts)) == len(puts) and not gone


prefixed = st.tuples(PREFIXES, st.just(True)) | st.tuples(KEYS, st.just(False))
operations = st.lists(
    st.builds(Put, KEYS, VALUES, st.booleans())
    | prefixed.map(lambda pair: Delete(*pair))
    | prefixed.map(lambda pair: Get(*pair)),
    max_size=4,
).filter(writes_once)
compares = st.lists(
    st.builds(Compare, KEYS, st.just("value"), OPERATORS, VALUES)
    | st.builds(Compare, KEYS, st.sampled_from(["create_revision", "mod_revision"]), OPERATORS, st.integers(0, 9)),
    max_size=2,
)
steps = st.lists(
    st.builds(lambda c, s, f: Txn("t", tuple(c), tuple(s), tuple(f)), compares, operations, operations)
    | st.builds(WatchFrom, PREFIXES, st.integers(0, 6))
    | st.builds(Compact, st.integers(0, 3))
    | st.just(LoseLease()),
    max_size=14,
)


class Twins:
    """Sends the same requests to both. Keys have their own root, the model starts at the revision of the real one."""

    def __init__(self, client: Client, revision: int) -> None:
        self.client = client
        self.start = len(client.answers)
        self.root = b"/%d/" % next(ROOTS)
        self.base = revision
        self.now = 0.0
        self.model = EtcdModel(Random(0), lease_ttl=1e9)
        self.model.store.revision = revision
        self.session = self.model.session("a")
        self.told: list[Answer] = []
        self.watched: set[bytes] = set()
        self.session.keep_alive(0.0)

    def advance(self) -> list[Answer]:
        self.now += 1
        answers = [answer for _, answer in self.model.advance(self.now)]
        self.told += answers
        return answers

    def rooted(self, txn: Txn) -> Txn:
        def of(operation: Operation) -> Operation:
            return replace(operation, key=self.root + operation.key)

        return Txn(
            txn.tag,
            tuple(
                replace(
                    each,
                    key=self.root + each.key,
                    operand=each.operand + self.base
                    if isinstance(each.operand, int) and each.operand
                    else each.operand,
                )
                for each in txn.compares
            ),
            tuple(map(of, txn.success)),
            tuple(map(of, txn.failure)),
        )

    async def txn(self, txn: Txn) -> TxnAnswer:
        self.session.request(txn, self.now)
        (expected,) = [answer for answer in self.advance() if isinstance(answer, TxnAnswer)]
        real = await self.client.txn(txn)
        if expected.error:
            assert real.error
        else:
            assert anonymous(real) == anonymous(expected)
        return expected

    async def compact(self, back: int) -> None:
        revision = max(self.base, self.model.store.revision - back, self.model.store.compacted + 1)
        if self.base < revision <= self.model.store.revision:
            await self.client.etcd.calls.call(COMPACT, pb.CompactionRequest(revision=revision))
            self.model.compact(revision)

    async def lose_lease(self) -> None:
        await self.client.etcd.calls.call(REVOKE, pb.LeaseRevokeRequest(id=self.client.etcd.lease))
        self.model.expire_lease("a", self.now)
        start = len(self.client.answers)
        answer = await self.txn(Txn("leased", (), (Put(self.root + b"lease", b"", True),)))
        assert answer.error and any(isinstance(each, LeaseLost) for each in self.told)
        await self.client.first(LeaseLost, start=start)

    async def watch(self, below: bytes, back: int) -> None:
        prefix = self.root + below
        if prefix in self.watched:
            return  # the events that the former watch has received are unknown
        self.watched.add(prefix)
        revision = max(self.base + 1, self.model.store.revision + 1 - back)
        if revision == self.model.store.compacted:
            revision += 1  # etcd before 3.6 may forget a deletion at this very one
        self.client.submit(Watch(prefix, revision))
        self.session.request(Watch(prefix, revision), self.now)
        self.advance()
        await self.mark([prefix], b"~begun")  # now it cannot fall behind

    async def mark(self, prefixes: list[bytes], name: bytes) -> None:
        """Wait until the watches have reported all events so far, or that they cannot."""
        await self.txn(Txn("mark", (), tuple(Put(prefix + name, b"") for prefix in prefixes)))
        for prefix in prefixes:

            def over(answer: WatchEvent | WatchLost, prefix: bytes = prefix) -> bool:
                if answer.prefix != prefix:
                    return False
                return isinstance(answer, WatchLost) or any(c.key == prefix + name for c in answer.changes)

            lost = [answer for answer in self.told if isinstance(answer, WatchLost) and answer.prefix == prefix]
            if lost:
                assert await self.client.first(WatchLost, over, self.start) == lost[0]
            else:
                await self.client.first(WatchEvent, over, self.start)
                assert self.client.changes(prefix, self.start) == changes(self.told, prefix)


def changes(answers: list[Answer], prefix: bytes) -> list[KeyChange]:
    events = [each for each in answers if isinstance(each, WatchEvent) and each.prefix == prefix]
    return [change for event in events for change in event.changes]


def anonymous(answer: TxnAnswer) -> TxnAnswer:
    """Remove the lease ids, which etcd draws at random."""
    return replace(
        answer, found=tuple(tuple(replace(each, lease=int(each.lease != 0)) for each in kvs) for kvs in answer.found)
    )


@pytest.fixture(scope="module", params=["etcd", "local"])
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[asyncio.Runner, Client]]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def opened() -> Client:
            directory = tmp_path_factory.mktemp("etcd")
            login: dict[str, str] = {}
            if request.param == "etcd":
                server = await stack.enter_async_context(running(directory))
                assert await server.wait_ready(20)
                address = server.address
            else:
                local = LocalEtcd(directory)
                stack.push_async_callback(local.close)
                await local.start()
                address, login = local.address, {"username": local.user, "password": local.password}
            client = await stack.enter_async_context(connected(address, lease_ttl=60, request_timeout=60.0, **login))
            await client.done(Txn("granted", (), (Put(b"granted", b"", True),)))
            return client

        client = runner.run(opened())
        yield runner, client
        runner.run(stack.aclose())


@pytest.mark.parametrize("examples", few([10, 40], 10))
def test_both_say_the_same(real: tuple[asyncio.Runner, Client], examples: int) -> None:
    runner, client = real

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps)
    @example([Txn("t", (), (Put(b"a", b"1", True),)), Txn("t", (), (Put(b"a", b"2"),))])  # leased, and then not
    def hold(drawn: list[Txn | WatchFrom | Compact | LoseLease]) -> None:
        runner.run(lives(client, drawn))

    hold()


async def lives(client: Client, drawn: list[Txn | WatchFrom | Compact | LoseLease]) -> None:
    revision = (await client.done(Txn("base", (), (Delete(b"", prefix=True),)))).revision
    twins = Twins(client, revision)
    await twins.watch(b"", 0)
    for step in drawn:
        if isinstance(step, Txn):
            await twins.txn(twins.rooted(step))
        elif isinstance(step, WatchFrom):
            await twins.watch(step.prefix, step.back)
        elif isinstance(step, Compact):
            await twins.compact(step.back)
        else:
            await twins.lose_lease()
    await twins.txn(Txn("all", (), (Get(twins.root, prefix=True),)))
    await twins.lose_lease()
    await twins.mark(sorted(twins.watched), b"~end")
