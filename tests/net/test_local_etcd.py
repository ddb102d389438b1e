"""The keys of workers of one machine: only they read and write them, they outlive the process, and leases end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.net.etcds import Client, connected
from tests.patience import within

from starlingmq.cluster.etcd.etcd_requests import Compare, Get, LeaseLost, Put, Txn, Watch, WatchEvent, WatchLost
from starlingmq.net.etcd.etcd_calls import EtcdCalls, EtcdError
from starlingmq.net.etcd.etcd_members import members, status
from starlingmq.net.local_etcd import FILE, etcd_tables
from starlingmq.net.local_etcd.etcd_tables import EtcdTables
from starlingmq.net.local_etcd.local_etcd import LocalEtcd, LocalEtcdError

SECONDS = 20.0
READ = Txn("read", (), (Get(b"", prefix=True),))


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[LocalEtcd]:
    server = LocalEtcd(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def client_of(server: LocalEtcd, **settings: Any) -> AsyncIterator[Client]:
    async with connected(server.address, username=server.user, password=server.password, **settings) as client:
        yield client


async def test_without_the_password_nothing_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, within(SECONDS):
        for user, password in (("", ""), (server.user, "wrong"), ("root", server.password)):
            calls = EtcdCalls([server.address], username=user, password=password)
            for ask in (members(calls), status(calls)):
                with pytest.raises(EtcdError, match=r"invalid auth token|authentication failed"):
                    await ask
            await calls.close()


async def test_what_was_answered_is_there_after_a_restart_and_revisions_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, client_of(server) as client:
        written = await client.txn(Txn("put", (), (Put(b"a", b"1"), Put(b"b", b"2"))))
    async with serving(tmp_path) as server, client_of(server) as client:
        (found,) = (await client.txn(READ)).found
        assert [(each.key, each.value, each.mod_revision) for each in found] == [
            (b"a", b"1", written.revision),
            (b"b", b"2", written.revision),
        ]
        lost = Txn("cas", (Compare(b"a", "mod_revision", "=", written.revision - 1),), (Put(b"a", b"3"),))
        assert not (await client.txn(lost)).succeeded
        client.submit(Watch(b"", written.revision))
        event = await client.first(WatchEvent)
        assert [change.key for change in event.changes] == [b"a", b"b"]
        assert (await client.txn(Txn("more", (), (Put(b"c", b""),)))).revision == written.revision + 1


async def test_a_lease_ends_with_its_keys_when_nothing_is_heard(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, client_of(server, lease_ttl=1) as watching:
        watching.submit(Watch(b"", 2))
        async with client_of(server, lease_ttl=1) as client:
            await client.done(Txn("put", (), (Put(b"mine", b"", True),)))
            assert client.etcd._lease_task is not None
            client.etcd._lease_task.cancel()
            gone = await watching.first(WatchEvent, lambda event: event.changes[0].value is None)
            assert [change.key for change in gone.changes] == [b"mine"]
            assert client.etcd.lease not in server._lives


async def test_a_lease_is_kept_over_a_restart_of_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, client_of(server, lease_ttl=5) as client:
        await client.done(Txn("put", (), (Put(b"mine", b"", True),)))
        client.etcd._available = False  # so that it does not give the lease back
    async with serving(tmp_path) as server, client_of(server) as client:
        assert server._lives and len((await client.txn(READ)).found[0]) == 1


async def test_leases_get_the_time_back_in_which_the_server_was_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, client_of(server, lease_ttl=2) as client:
        await client.done(Txn("put", (), (Put(b"mine", b"", True),)))
        loop = asyncio.get_running_loop()
        held_up, real = 10.0, loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + held_up)
        before = dict(server._ends)
        async with within(SECONDS):
            while server._ends == before:
                await asyncio.sleep(0.01)
        assert not any(isinstance(answer, LeaseLost) for answer in client.answers)
        assert len((await client.txn(READ)).found[0]) == 1


async def test_a_watch_from_before_the_history_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_tables, "HISTORY", 5)
    monkeypatch.setattr(etcd_tables, "TRIM_EACH", 5)
    async with serving(tmp_path) as server, client_of(server) as client:
        for number in range(20):
            await client.txn(Txn("put", (), (Put(b"a", b"%d" % number),)))
        client.submit(Watch(b"", 2))
        lost = await client.first(WatchLost)
        assert lost.compacted > 2
        assert len((await client.txn(READ)).found[0]) == 1, "the key itself is there"


async def test_a_disk_that_refuses_is_an_answer_and_nothing_is_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, client_of(server) as client:
        await client.done(Txn("put", (), (Put(b"a", b"1"),)))
        put, broken = EtcdTables._put, [True]

        def fail(self: EtcdTables, *given: Any) -> None:
            put(self, *given)
            if broken:
                raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(EtcdTables, "_put", fail)
        refused = await client.txn(Txn("two", (), (Put(b"a", b"2"), Put(b"b", b"2"))))
        assert "disk is full" in refused.error
        broken.clear()
        (found,) = (await client.done(READ)).found
        assert [(each.key, each.value) for each in found] == [(b"a", b"1")]
        assert (await client.done(Txn("again", (), (Put(b"b", b"2"),)))).succeeded


async def test_a_file_that_is_none_of_its_own_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"something else" * 1000)
    with pytest.raises(LocalEtcdError, match="not a database"):
        await LocalEtcd(tmp_path).start()
