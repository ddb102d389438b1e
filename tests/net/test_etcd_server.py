"""etcd as a child process of the node, with real ones: start, join, restart, end; and the client during all of
these.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import trustme
from tests.net.etcds import SECONDS, connected, running, settings, three
from tests.patience import slowness, within

from starlingmq.cluster.etcd.etcd_requests import (
    EtcdState,
    Get,
    KeyChange,
    LeaseLost,
    Put,
    Txn,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.config.cluster_section import EtcdConfig, EtcdTlsConfig
from starlingmq.net.etcd.etcd_calls import AUTHENTICATE, COMPACT, MOVE_LEADER, EtcdCalls, EtcdError, EtcdMethod
from starlingmq.net.etcd.etcd_members import addresses, members, remove, status
from starlingmq.net.etcd.etcd_process import EtcdServerError, parse_line
from starlingmq.net.etcd.etcd_server import ELECTION, EtcdServer
from starlingmq.net.proto import etcd_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]


COPY_IS_GONE: Final = 250  # milliseconds, from a new leader of the etcds until publishers go on without a lost copy


def put(number: int, leased: bool = False) -> Txn:
    return Txn(f"put {number}", (), (Put(b"/k", b"%d" % number, leased),))


def values(changes: Sequence[KeyChange]) -> list[bytes | None]:
    return [change.value for change in changes]


async def gone(pid: int) -> None:
    async with within(SECONDS):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.02)


def test_publishers_wait_for_an_election_for_one_second_at_most() -> None:
    """A time-out is so many heartbeats; a member waits for one less than twice as many, chosen at random."""
    heartbeat, timeout = (int(ELECTION[name]) for name in ("heartbeat-interval", "election-timeout"))
    assert timeout >= 5 * heartbeat, "etcd refuses less"
    assert (2 * (timeout // heartbeat) - 1) * heartbeat + COPY_IS_GONE <= 1000


async def test_no_program_gets_a_line_that_says_how_to_install_it(tmp_path: Path) -> None:
    server = EtcdServer(settings(binary="etcd-of-nobody"), "a", "test", tmp_path)
    with pytest.raises(EtcdServerError, match="apt-get install etcd-server"):
        await server.start()
    await server.stop()


def test_lines_of_its_log_are_told_with_their_level_and_cause() -> None:
    assert parse_line('{"level":"warn","msg":"slow","error":"disk"}') == (30, "slow: disk")
    assert parse_line('{"level":"fatal","msg":"bad"}') == (40, "bad")
    assert parse_line("not JSON") == (30, "not JSON")
    assert parse_line("panic: freepages") == (40, "panic: freepages")


CHATTY = """#!/bin/sh
echo '{"level":"warn","msg":"apply request took too long"}' >&2
echo '{"level":"error","msg":"lost the TCP streaming connection"}' >&2
exit 3
"""


async def test_only_errors_of_etcd_are_logged_beside_its_start_and_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "etcd"
    program.write_text(CHATTY)
    program.chmod(0o755)
    server = EtcdServer(EtcdConfig(binary=str(program), client_port=0, peer_port=0), "a", "test", tmp_path / "data")
    with caplog.at_level(logging.INFO, "starlingmq.etcd"):
        await server.start()
        while not any("exit status 3" in record.message for record in caplog.records):
            await asyncio.sleep(0.01)
        await server.stop()
    said = [record.message for record in caplog.records if record.name == "starlingmq.etcd"]
    assert said[0].startswith("etcd starts (process ") and server.address in said[0]
    assert said[1:] == [
        "etcd: lost the TCP streaming connection",
        "etcd ended with exit status 3 (lost the TCP streaming connection); it is restarted in 0.4 s",
        "etcd has stopped",
    ]


@pytest.mark.slow
async def test_one_that_is_killed_comes_back_with_all_it_knew_and_watches_go_on(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address, lease_ttl=60) as client:
        client.submit(Watch(b"/", 1))
        await client.done(put(1, leased=True))
        lease = client.etcd.lease
        so_far = len(client.answers)
        os.kill(server.pid, signal.SIGKILL)
        await client.first(EtcdState, lambda state: not state.available, so_far)
        away = len(client.answers)
        await client.first(EtcdState, lambda state: state.available, away)
        await client.done(put(2))
        # The first put may be seen after the restart only: it is acknowledged to its client, not to the watch.
        await client.first(WatchEvent, lambda event: event.changes[-1].value == b"2")
        # A put whose answer is lost is repeated.
        assert list(dict.fromkeys(values(client.changes(b"/")))) == [b"1", b"2"]
        assert server.restarts == 1 and client.etcd.lease == lease
        assert not [answer for answer in client.answers if isinstance(answer, LeaseLost)]


@pytest.mark.slow
async def test_it_ends_with_the_node_and_keeps_its_ports_and_data(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address) as client:
        await client.done(put(1))
        first = server.pid, server.address, server.peer_url
    await gone(first[0])
    async with running(tmp_path) as server, connected(server.address) as client:
        assert (server.address, server.peer_url) == first[1:]
        answer = await client.done(Txn("get", (), (Get(b"/k"),)))
        assert answer.found[0][0].value == b"1"


@pytest.mark.slow
async def test_it_dies_with_a_node_that_is_killed(tmp_path: Path) -> None:
    settings()  # skipped without etcd
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom tests.net.etcds import running\n"
        "async def main():\n async with running(Path(sys.argv[1])) as server:\n"
        "  await server.wait_ready(20)\n  print(server.pid, flush=True)\n  await asyncio.sleep(60)\nasyncio.run(main())"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), env=env, stdout=asyncio.subprocess.PIPE
    )
    assert node.stdout is not None
    pid = int(await node.stdout.readline())
    os.kill(pid, 0)
    node.kill()
    await node.wait()
    await gone(pid)


@pytest.mark.slow
async def test_a_lease_that_ran_out_is_granted_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address, lease_ttl=2) as client:
        client.submit(Watch(b"/", 1))
        await client.done(put(1, leased=True))
        async with connected(server.address, lease_ttl=2) as other:
            await other.done(Txn("other", (), (Put(b"/other", b"", True),)))
        # The other one has stopped gracefully, so its key was deleted immediately.
        await client.first(WatchEvent, lambda event: event.changes[-1] == KeyChange(b"/other", None, event.revision))
        so_far = len(client.answers)
        os.kill(server.pid, signal.SIGSTOP)  # no member answers for longer than the lease
        await client.first(EtcdState, lambda state: not state.available, so_far)
        former = client.etcd.lease
        os.kill(server.pid, signal.SIGCONT)
        lost = await client.first(LeaseLost)
        assert lost.lease == client.etcd.lease != former
        await client.first(WatchEvent, lambda event: event.changes[-1] == KeyChange(b"/k", None, event.revision))
        await client.done(put(2, leased=True))


@pytest.mark.slow
async def test_a_watch_from_behind_compaction_is_lost_and_begins_anew_in_front(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address) as client:
        for number in range(3):
            revision = (await client.done(put(number))).revision
        await client.etcd.calls.call(COMPACT, pb.CompactionRequest(revision=revision))
        client.submit(Watch(b"/", revision - 1))
        assert await client.first(WatchLost) == WatchLost(b"/", revision)
        client.submit(Watch(b"/", revision + 1))
        await client.done(put(9))
        await client.first(WatchEvent)
        assert values(client.changes(b"/")) == [b"9"]


@pytest.mark.slow
async def test_three_go_on_when_the_leader_moves_and_when_it_is_killed(tmp_path: Path) -> None:
    async with three(tmp_path) as servers, connected(*(server.address for server in servers), lease_ttl=60) as client:
        client.submit(Watch(b"/", 1))
        await client.done(put(0, leased=True))
        states = {server: await status(client.etcd.calls, server.address) for server in servers}
        leader = next(server for server, state in states.items() if state.member == state.leader)
        others = [server for server in servers if server is not leader]
        calls = EtcdCalls([leader.address])
        await calls.call(MOVE_LEADER, pb.MoveLeaderRequest(target_id=states[others[0]].member))
        await calls.close()
        await client.done(put(1))
        for number, server in enumerate((others[0], leader), 2):  # the current leader, then the former one
            os.kill(server.pid, signal.SIGKILL)
            await client.done(put(number))
            async with within(SECONDS):
                while not server.restarts:
                    await asyncio.sleep(0.02)
            assert await server.wait_ready(SECONDS)
        last = await client.done(put(9))
        await client.first(WatchEvent, lambda event: event.revision == last.revision)
        seen = values(client.changes(b"/"))
        assert [value for i, value in enumerate(seen) if i == 0 or value != seen[i - 1]] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"9",
        ]
        assert not [answer for answer in client.answers if isinstance(answer, LeaseLost)]


@pytest.mark.slow
async def test_a_client_finds_the_other_members_and_asks_them_when_its_own_is_away(tmp_path: Path) -> None:
    async with three(tmp_path) as servers, connected(servers[0].address, discover=True, lease_ttl=2) as client:
        client.submit(Watch(b"/", 1))
        await client.done(put(1, leased=True))
        async with within(SECONDS):
            while len(client.etcd.calls.endpoints) < 3:
                await asyncio.sleep(0.02)
        await servers[0].stop()
        last = await client.done(put(2))
        await client.first(WatchEvent, lambda event: event.revision == last.revision)


@pytest.mark.slow
async def test_a_member_joins_as_a_learner_and_is_promoted_and_can_be_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as first, connected(first.address) as client:
        await client.done(put(1))
        async with running(tmp_path, "b", join=(first.address,)) as second:
            assert await second.wait_ready(SECONDS)
            found = await members(client.etcd.calls)
            assert {member.name: member.learner for member in found} == {"a": False, "b": False}
            assert sorted(addresses(found)) == sorted([first.address, second.address])
            async with connected(second.address) as there:
                assert (await there.done(Txn("get", (), (Get(b"/k"),)))).found[0][0].value == b"1"
            os.kill(second.pid, signal.SIGKILL)
            await client.done(put(2))  # two of two are needed: done when it is back
            assert second.restarts == 1
            async with within(SECONDS):
                while len(await members(client.etcd.calls)) == 2:
                    with suppress(EtcdError):  # refused until all have been connected for some seconds
                        await remove(client.etcd.calls, next(member.id for member in found if member.name == "b"))
                    await asyncio.sleep(0.1)
        await client.done(put(3))
        assert [member.name for member in await members(client.etcd.calls)] == ["a"]


@pytest.mark.slow
async def test_tls_admits_only_nodes_with_a_certificate(tmp_path: Path) -> None:
    tls = certificate(tmp_path / "node", trustme.CA(), "localhost")
    async with running(tmp_path, "a", tls) as first, running(tmp_path, "b", tls, join=(first.address,)) as second:
        assert await second.wait_ready(SECONDS)
        async with connected(first.address, tls=tls) as client:
            await client.done(put(1))
        async with connected(first.address, request_timeout=1.0) as stranger:
            assert (await stranger.txn(put(2))).error


def certificate(directory: Path, authority: trustme.CA, *names: str) -> EtcdTlsConfig:
    directory.mkdir()
    issued = authority.issue_cert("127.0.0.1", *names)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    return EtcdTlsConfig(ca=f"{directory}/ca.pem", cert=f"{directory}/cert.pem", key=f"{directory}/key.pem")


@pytest.mark.slow
async def test_a_certificate_of_a_device_opens_neither_port_of_an_etcd_that_asks_for_a_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    node = certificate(tmp_path / "node", authority, "node.starling.internal")
    device = certificate(tmp_path / "device", authority, "device-7.starling.internal")
    name = {"allowed_name": "node.starling.internal"}
    async with (
        running(tmp_path, "a", node, **name) as first,
        running(tmp_path, "b", node, join=(first.address,), **name) as second,
    ):
        assert await second.wait_ready(SECONDS)
        async with connected(first.address, tls=node) as client:
            await client.done(put(1))
            async with connected(first.address, tls=device, request_timeout=1.0) as stranger:
                assert (await stranger.txn(put(2))).error
            found = await client.done(Txn("get", (), (Get(b"/k"),)))
            assert found.found[0][0].value == b"1"
        port = int(first.peer_url.rpartition(":")[2])
        assert await asyncio.to_thread(answers, node, port)
        assert not await asyncio.to_thread(answers, device, port)


def answers(tls: EtcdTlsConfig, port: int) -> bool:
    """Whether the peer port answers HTTPS with this certificate."""
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS * slowness(), context=context)
    try:
        connection.request("GET", "/version")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.mark.slow
async def test_user_and_password(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        assert await server.wait_ready(SECONDS)
        calls = EtcdCalls([server.address])
        # Two texts, numbered 1 and 2, are what these ask for as well.
        for name, one, two in (
            ("UserAdd", "root", "right"),
            ("RoleAdd", "root", ""),
            ("UserGrantRole", "root", "root"),
        ):
            method = EtcdMethod(f"/etcdserverpb.Auth/{name}", AUTHENTICATE.request, pb.MoveLeaderResponse)
            await calls.call(method, pb.AuthenticateRequest(name=one, password=two))
        await calls.call(
            EtcdMethod("/etcdserverpb.Auth/AuthEnable", pb.StatusRequest, pb.MoveLeaderResponse), pb.StatusRequest()
        )
        await calls.close()
        async with connected(server.address) as nobody:
            await nobody.refused(put(0), "user name is empty")
        async with connected(server.address, username="root", password="right") as client:
            await client.done(put(1))
        async with connected(server.address, username="root", password="wrong") as client:
            await client.refused(put(2), "authentication failed")
