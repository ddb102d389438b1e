"""Whether an etcd has started without a member, as its peer port reports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.net.etcds import SECONDS, running, three

from starlingmq.cli.local_cluster import free_ports
from starlingmq.net.etcd import etcd_server
from starlingmq.net.etcd.etcd_calls import EtcdCalls
from starlingmq.net.etcd.etcd_members import EtcdMember, add_learner
from starlingmq.net.etcd.etcd_process import EtcdServerError
from starlingmq.net.etcd.etcd_rejoin import ask_members, has_begun, is_alive
from starlingmq.net.etcd.etcd_server import EtcdServer

OWN = "http://127.0.0.1:1"


def member(number: int, name: str = "", run: bool = True) -> EtcdMember:
    return EtcdMember(number, name, (f"http://127.0.0.1:{number}",), (f"http://127.0.0.1:9{number}",) * run, False)


@pytest.mark.parametrize(
    ("found", "begun"),
    [
        ([], False),
        ([member(1), member(2), member(3)], True),  # it has run, and its disk is lost
        ([member(2), member(3)], True),  # it was removed
        ([member(1, run=False), member(2), member(3)], False),  # it is late for the first start
        ([member(1, run=False), member(2, run=False)], False),  # all of them are starting now
        ([member(2, run=False)], False),
    ],
)
def test_an_etcd_has_begun_without_a_member_that_has_run(found: list[EtcdMember], begun: bool) -> None:
    assert has_begun(found, OWN) is begun


@pytest.mark.slow
async def test_members_are_told_at_the_port_for_members(tmp_path: Path) -> None:
    async with three(tmp_path) as servers:
        found = await ask_members(["http://127.0.0.1:1", servers[1].peer_url], None)
        assert {each.name for each in found} == {"a", "b", "c"} and has_begun(found, servers[0].peer_url)
        assert await is_alive(servers[0].peer_url)
    assert await ask_members(["http://127.0.0.1:1"], None) == [] and not await is_alive(servers[0].peer_url)


@pytest.mark.slow
async def test_a_member_that_runs_is_not_driven_out_by_an_empty_disk(tmp_path: Path) -> None:
    async with three(tmp_path) as servers:
        twin = EtcdServer(servers[2].settings, "c", "test", tmp_path / "elsewhere")
        with pytest.raises(EtcdServerError, match="the etcd of node c already runs at"):
            await twin.start()
        other = EtcdServer(
            type(twin.settings)(
                client_port=free_ports(1)[0], peer_port=servers[2]._ports[1], join=(servers[0].address,)
            ),
            "d",
            "test",
            tmp_path / "d",
        )
        with pytest.raises(EtcdServerError, match="belongs to the etcd member of node c"):
            await other.start()
        await asyncio.gather(twin.stop(), other.stop())


@pytest.mark.slow
async def test_a_second_node_with_the_name_of_another_adds_no_member(tmp_path: Path) -> None:
    async with running(tmp_path, "a") as first:
        assert await first.wait_ready(SECONDS)
        async with running(tmp_path, "b", join=(first.address,)) as second:
            assert await second.wait_ready(SECONDS)
            client, peer = free_ports(2)
            settings = type(first.settings)(client_port=client, peer_port=peer, join=(first.address,))
            twin = EtcdServer(settings, "b", "test", tmp_path / "elsewhere")
            with pytest.raises(EtcdServerError, match=r"the etcd of node b is at .*: change node\.name"):
                await twin.start()
            await twin.stop()
            assert len(await ask_members([first.peer_url], None)) == 2


@pytest.mark.slow
async def test_a_member_that_never_began_blocks_others_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_server, "JOIN_SECONDS", 1.0)
    async with running(tmp_path, "a") as first:
        assert await first.wait_ready(SECONDS)
        calls = EtcdCalls((first.address,), SECONDS, None)
        await add_learner(calls, OWN)
        await calls.close()
        async with running(tmp_path, "b", join=(first.address,)) as second:
            assert await second.wait_ready(SECONDS)
            found = await ask_members([first.peer_url], None)
            assert sorted(each.name for each in found) == ["a", "b"]


@pytest.mark.slow
async def test_a_joined_member_with_an_empty_disk_joins_again(tmp_path: Path) -> None:
    async with running(tmp_path, "a") as first:
        assert await first.wait_ready(SECONDS)
        async with running(tmp_path, "b", join=(first.address,)) as second:
            assert await second.wait_ready(SECONDS)
            async with running(tmp_path, "c", join=(first.address,)) as third:
                assert await third.wait_ready(SECONDS)
                client, peer = third._ports
            again = tmp_path / "again"
            joined = running(again, "c", join=(first.address,), client_port=client, peer_port=peer)
            async with joined as third:
                assert await third.wait_ready(SECONDS)
                found = await ask_members([first.peer_url], None)
                assert sorted(each.name for each in found) == ["a", "b", "c"]
